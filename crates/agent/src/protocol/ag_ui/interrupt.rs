//! What an agent behind AG-UI waits for before it continues: asked as permission.

use serde_json::{Value, json};
use thread_conversation::{Choice, Permission};

const ALLOW: &str = "allow";
const REJECT: &str = "reject";

/// The keys of what LangGraph's agents give `interrupt()` that have a sentence for people.
const SAID: [&str; 6] = ["message", "question", "prompt", "description", "title", "query"];

/// The longest title that is made of a value, in characters.
const LONGEST_TITLE: usize = 300;

/// Something that a run was interrupted for.
#[derive(Debug)]
pub struct Interrupt {
    pub id: String,
    form: Form,
    /// The entry of `resume`, once it is answered.
    pub answer: Option<Value>,
}

/// The form of the answer.
#[derive(Debug)]
enum Form {
    /// `{"approved":true}`, which is what agents take unless they say something else.
    Approval,
    Boolean,
    /// One of these texts.
    OneOf(Vec<String>),
    /// Something that has to be written. It can only be cancelled.
    Other,
}

impl Interrupt {
    /// What LangGraph says by default that it waits for, in the form of an interrupt: any value, often as JSON in a text.
    pub fn of_lang_graph(id: &str, value: &Value) -> Value {
        let parsed = value.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
        let value = parsed.as_ref().filter(|parsed| parsed.is_object() || parsed.is_array()).unwrap_or(value);
        let title: String = words(value).chars().take(LONGEST_TITLE).collect();
        let given = if value.is_string() { &Value::Null } else { value };
        json!({ "id": id, "message": title, "given": given })
    }

    /// The interrupt in an event, and the request for permission that asks it. `arguments` are those of a call.
    pub fn of(event: &Value, arguments: impl FnOnce(&str) -> Value) -> Option<(Interrupt, Permission)> {
        let text = |key: &str| event[key].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let id = text("id")?;
        let form = Form::of(&event["responseSchema"]);
        let call_id = text("toolCallId");
        let permission = Permission {
            request_id: id.clone(),
            title: text("message").or_else(|| text("reason")).unwrap_or_else(|| "The agent asks".to_owned()),
            arguments: call_id.as_deref().map_or_else(|| event["given"].clone(), arguments),
            call_id,
            details: match form {
                Form::Other => "The answer has to be written, which is not possible here.".to_owned(),
                _ => String::new(),
            },
            choices: form.choices(),
            wait_ms: None,
        };
        Some((Interrupt { id, form, answer: None }, permission))
    }

    /// Notes the answer: the id of a choice; `None` is no answer.
    pub fn answer(&mut self, choice: Option<&str>) {
        let payload = match (&self.form, choice) {
            (_, None) | (Form::Other, _) => None,
            (Form::Approval, Some(choice)) => Some(json!({ "approved": choice == ALLOW })),
            (Form::Boolean, Some(choice)) => Some(json!(choice == ALLOW)),
            (Form::OneOf(texts), Some(choice)) => {
                texts.iter().find(|text| *text == choice).map(|text| json!(text))
            }
        };
        self.answer.get_or_insert(match payload {
            Some(payload) => json!({ "interruptId": self.id, "status": "resolved", "payload": payload }),
            None => json!({ "interruptId": self.id, "status": "cancelled" }),
        });
    }
}

/// A value in words: the sentence for people that it has, or else all of it.
fn words(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().map(words).collect::<Vec<_>>().join("; "),
        Value::Object(all) => {
            let said = SAID.iter().find_map(|key| all.get(*key)?.as_str().filter(|text| !text.is_empty()));
            let pair =
                |(key, value): (&String, &Value)| format!("{}: {}", key.replace('_', " "), words(value));
            said.map_or_else(
                || all.iter().filter(|(_, value)| !value.is_null()).map(pair).collect::<Vec<_>>().join(", "),
                str::to_owned,
            )
        }
        other => other.to_string(),
    }
}

impl Form {
    fn of(schema: &Value) -> Form {
        let texts = schema["enum"]
            .as_array()
            .map(|all| all.iter().map(|one| one.as_str().map(str::to_owned)).collect());
        match texts.unwrap_or(None::<Vec<String>>) {
            Some(texts) if !texts.is_empty() => Form::OneOf(texts),
            _ if !schema.is_object() || !schema["properties"]["approved"].is_null() => Form::Approval,
            _ if schema["type"] == "boolean" => Form::Boolean,
            _ => Form::Other,
        }
    }

    fn choices(&self) -> Vec<Choice> {
        let choice =
            |id: &str, name: &str, kind: &str| Choice { id: id.into(), name: name.into(), kind: kind.into() };
        match self {
            Form::Approval | Form::Boolean => {
                vec![choice(ALLOW, "Allow", "allow_once"), choice(REJECT, "Reject", "reject_once")]
            }
            Form::OneOf(texts) => {
                let texts = texts.iter().map(|text| choice(text, text, "allow_once"));
                texts.chain([choice(REJECT, "Cancel", "reject_once")]).collect()
            }
            Form::Other => vec![choice(REJECT, "Cancel", "reject_once")],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lang_graph_waits_for_is_said_in_words() {
        let asked = |value: Value| {
            let (_, asked) = Interrupt::of(&Interrupt::of_lang_graph("i", &value), |_| Value::Null).unwrap();
            (asked.title, asked.arguments)
        };
        let title = |value: Value| asked(value).0;
        assert_eq!(asked(json!("sure?")), ("sure?".to_owned(), Value::Null));
        assert_eq!(title(json!("7")), "7");
        let question = json!({ "question": "Send it?", "to": "ada" });
        assert_eq!(asked(question.clone()), ("Send it?".to_owned(), question.clone()));
        assert_eq!(asked(question.to_string().into()), ("Send it?".to_owned(), question));
        let action =
            json!([{ "action_request": { "action": "rm", "args": { "path": "a b", "all": true } } }]);
        assert_eq!(title(action.clone()), "action request: action: rm, args: path: a b, all: true");
        assert_eq!(asked(action.to_string().into()).1, action);
        assert_eq!(
            (title(Value::Null), title(json!({}))),
            ("The agent asks".to_owned(), "The agent asks".to_owned())
        );
        assert_eq!(title(json!("x".repeat(1000))).len(), LONGEST_TITLE);
    }

    #[test]
    fn an_answer_has_the_form_that_the_agent_asks_for() {
        let answer = |schema: Value, choice: Option<&str>| {
            let event = json!({ "id": "i", "reason": "r", "responseSchema": schema });
            let (mut interrupt, asked) = Interrupt::of(&event, |_| Value::Null).unwrap();
            interrupt.answer(choice);
            let answer = interrupt.answer.unwrap();
            (asked.choices.len(), answer["status"].as_str().unwrap().to_owned(), answer["payload"].clone())
        };
        let resolved = |count, payload| (count, "resolved".to_owned(), payload);
        let approval = json!({ "type": "object", "properties": { "approved": { "type": "boolean" } } });
        assert_eq!(answer(approval, Some("allow")), resolved(2, json!({ "approved": true })));
        assert_eq!(answer(Value::Null, Some("reject")), resolved(2, json!({ "approved": false })));
        assert_eq!(answer(json!({ "type": "boolean" }), Some("allow")), resolved(2, json!(true)));
        let one_of = json!({ "type": "string", "enum": ["a", "b"] });
        assert_eq!(answer(one_of.clone(), Some("b")), resolved(3, json!("b")));
        let cancelled = |count| (count, "cancelled".to_owned(), Value::Null);
        assert_eq!(answer(one_of, Some("reject")), cancelled(3));
        assert_eq!(answer(json!({ "type": "string" }), Some("reject")), cancelled(1));
        assert_eq!(answer(Value::Null, None), cancelled(2));
    }
}
