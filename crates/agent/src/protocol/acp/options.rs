//! What can be chosen at an agent: its configuration options, or the modes that older agents have in place of these.

use std::collections::BTreeMap;

use agent_client_protocol_schema::v1::{
    AGENT_METHOD_NAMES, SessionConfigKind, SessionConfigOption, SessionConfigSelectOption,
    SessionConfigSelectOptions, SessionModeState, SetSessionConfigOptionRequest, SetSessionModeRequest,
};
use serde_json::{Value, json};
use thread_conversation::{AgentOption, OptionChoice, OptionChosen};

use super::call::word_of;

/// The id of the option that stands for modes, and the category of such options.
const MODE: &str = "mode";

/// What an agent has.
#[derive(Debug, Default)]
pub struct Options {
    all: Vec<AgentOption>,
    /// It has modes, and no configuration options.
    are_modes: bool,
    /// What was asked for, by the ids of the requests.
    asked: BTreeMap<u64, OptionChosen>,
}

impl Options {
    pub fn all(&self) -> &[AgentOption] {
        &self.all
    }

    /// Takes in the response with which a session begins.
    pub fn are(&mut self, response: &Value) {
        // An agent that has both says the same in both.
        if let Some(all) = options_of(&response["configOptions"]).filter(|all| !all.is_empty()) {
            (self.all, self.are_modes) = (all, false);
        } else if let Ok(modes) = serde_json::from_value(response["modes"].clone()) {
            (self.all, self.are_modes) = (vec![option_of(modes)], true);
        } else {
            (self.all, self.are_modes) = (Vec::new(), false);
        }
    }

    /// Takes in an update. Returns whether it was one of options.
    pub fn update(&mut self, update: &Value) -> bool {
        match update["sessionUpdate"].as_str() {
            Some("config_option_update") => {
                if let Some(all) = options_of(&update["configOptions"]) {
                    (self.all, self.are_modes) = (all, false);
                }
                true
            }
            Some("current_mode_update") => {
                if let Some(mode) = update["currentModeId"].as_str().filter(|_| self.are_modes) {
                    self.all.iter_mut().for_each(|option| option.current = mode.to_owned());
                }
                true
            }
            _ => false,
        }
    }

    /// The request that changes an option; `None` if it has that value already, or cannot have it.
    pub fn request(&self, session: &str, chosen: &OptionChosen) -> Option<(&'static str, Value)> {
        let option = self.all.iter().find(|option| option.id == chosen.id)?;
        let can_be = option.choices.iter().any(|choice| choice.id == chosen.value);
        if !can_be || (option.current == chosen.value && self.asked.is_empty()) {
            return None;
        }
        let (session, value) = (session.to_owned(), chosen.value.clone());
        Some(match self.are_modes {
            true => (AGENT_METHOD_NAMES.session_set_mode, json!(SetSessionModeRequest::new(session, value))),
            false => {
                let request = SetSessionConfigOptionRequest::new(session, chosen.id.clone(), &*value);
                (AGENT_METHOD_NAMES.session_set_config_option, json!(request))
            }
        })
    }

    pub fn is_asked(&mut self, id: u64, chosen: OptionChosen) {
        self.asked.insert(id, chosen);
    }

    /// The agent has done what that request asked for.
    pub fn is_set(&mut self, id: u64, response: &Value) {
        let Some(chosen) = self.asked.remove(&id) else { return };
        if let Some(all) = options_of(&response["configOptions"]).filter(|_| !self.are_modes) {
            self.all = all;
        } else if let Some(option) = self.all.iter_mut().find(|option| option.id == chosen.id) {
            option.current = chosen.value;
        }
    }

    /// The agent has not done it. Returns what to tell people.
    pub fn is_refused(&mut self, id: u64, why: &str) -> Option<String> {
        let chosen = self.asked.remove(&id)?;
        let option = self.all.iter().find(|option| option.id == chosen.id)?;
        Some(format!("{} cannot be {}: {why}", option.name, chosen.value))
    }
}

/// Modes as an option.
fn option_of(modes: SessionModeState) -> AgentOption {
    let choice = |mode: agent_client_protocol_schema::v1::SessionMode| OptionChoice {
        id: mode.id.to_string(),
        name: mode.name,
        description: mode.description,
    };
    AgentOption {
        id: MODE.to_owned(),
        name: "Mode".to_owned(),
        description: None,
        category: Some(MODE.to_owned()),
        current: modes.current_mode_id.to_string(),
        choices: modes.available_modes.into_iter().map(choice).collect(),
    }
}

/// Configuration options; `None` if it is no list. Those of a kind that is not known are left out: agents send others than
/// lists of values only to clients that say they know them.
fn options_of(all: &Value) -> Option<Vec<AgentOption>> {
    let known = |one: &Value| serde_json::from_value::<SessionConfigOption>(one.clone()).ok();
    Some(all.as_array()?.iter().filter_map(known).filter_map(selected).collect())
}

fn selected(option: SessionConfigOption) -> Option<AgentOption> {
    let SessionConfigKind::Select(select) = option.kind else { return None };
    let choices: Vec<SessionConfigSelectOption> = match select.options {
        SessionConfigSelectOptions::Ungrouped(choices) => choices,
        SessionConfigSelectOptions::Grouped(groups) => {
            groups.into_iter().flat_map(|group| group.options).collect()
        }
        _ => return None,
    };
    let choice = |choice: SessionConfigSelectOption| OptionChoice {
        id: choice.value.to_string(),
        name: choice.name,
        description: choice.description,
    };
    Some(AgentOption {
        id: option.id.to_string(),
        name: option.name,
        description: option.description,
        category: option.category.as_ref().and_then(word_of),
        current: select.current_value.to_string(),
        choices: choices.into_iter().map(choice).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(id: &str, current: &str, values: &[&str]) -> Value {
        let value = |value: &&str| json!({ "value": value, "name": value });
        let options: Vec<Value> = values.iter().map(value).collect();
        json!({ "id": id, "name": id, "category": id, "type": "select", "currentValue": current, "options": options })
    }

    fn modes(current: &str) -> Value {
        json!({ "currentModeId": current, "availableModes": [{ "id": "a", "name": "A" }, { "id": "b", "name": "B" }] })
    }

    fn chosen(id: &str, value: &str) -> OptionChosen {
        OptionChosen { id: id.into(), value: value.into() }
    }

    fn current(options: &Options) -> Vec<(&str, &str)> {
        options.all().iter().map(|option| (&*option.id, &*option.current)).collect()
    }

    #[test]
    fn modes_are_an_option_unless_there_are_options() {
        let mut options = Options::default();
        options.are(&json!({ "modes": modes("a") }));
        assert_eq!(current(&options), [("mode", "a")]);
        assert!(options.update(&json!({ "sessionUpdate": "current_mode_update", "currentModeId": "b" })));
        assert_eq!(current(&options), [("mode", "b")]);
        let (method, params) = options.request("s", &chosen("mode", "a")).unwrap();
        assert_eq!((method, params), ("session/set_mode", json!({ "sessionId": "s", "modeId": "a" })));
        assert!(options.request("s", &chosen("mode", "b")).is_none());
        assert!(options.request("s", &chosen("mode", "c")).is_none());
        assert!(options.request("s", &chosen("x", "a")).is_none());
        options.is_asked(7, chosen("mode", "a"));
        // Back to what it has, before the agent has answered.
        assert!(options.request("s", &chosen("mode", "b")).is_some());
        options.is_set(7, &json!({}));
        assert_eq!(current(&options), [("mode", "a")]);
        options.is_asked(8, chosen("mode", "b"));
        assert_eq!(options.is_refused(8, "no").as_deref(), Some("Mode cannot be b: no"));
        assert_eq!(current(&options), [("mode", "a")]);

        let grouped = json!({
            "id": "model", "name": "Model", "type": "select", "currentValue": "x",
            "options": [{ "group": "g", "name": "G", "options": [{ "value": "x", "name": "X" }, { "value": "y", "name": "Y" }] }],
        });
        let switch = json!({ "id": "fast", "name": "Fast", "type": "boolean", "currentValue": true });
        let all = json!([select("mode", "c", &["c", "d"]), grouped, switch, { "id": 7 }]);
        options.are(&json!({ "modes": modes("a"), "configOptions": all }));
        assert_eq!(current(&options), [("mode", "c"), ("model", "x")]);
        // What it says of modes besides is the same.
        options.update(&json!({ "sessionUpdate": "current_mode_update", "currentModeId": "a" }));
        assert_eq!(current(&options), [("mode", "c"), ("model", "x")]);
        let (method, params) = options.request("s", &chosen("model", "y")).unwrap();
        assert_eq!(method, "session/set_config_option");
        assert_eq!(params, json!({ "sessionId": "s", "configId": "model", "value": "y" }));
        options.is_asked(9, chosen("model", "y"));
        options.is_set(9, &json!({ "configOptions": [select("mode", "d", &["c", "d"])] }));
        assert_eq!(current(&options), [("mode", "d")]);
        let update = json!({ "sessionUpdate": "config_option_update", "configOptions": [] });
        assert!(options.update(&update) && options.all().is_empty());
        assert!(!options.update(&json!({ "sessionUpdate": "plan" })));
        options.are(&json!({}));
        assert!(options.all().is_empty());
    }
}
