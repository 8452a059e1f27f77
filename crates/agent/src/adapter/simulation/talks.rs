//! A protocol of lines with everything that a protocol can have: a program that is told when to stop, that takes messages
//! ahead, speaks unasked, and asks for permission.

use std::fmt::Write;

use thread_conversation::{Choice, Permission, ToolCall, ToolResult};

use crate::lines::Lines;
use crate::protocol::{Done, Output, Prompt, Protocol};

#[derive(Default)]
pub struct Talks {
    pub stops: bool,
    pub takes_ahead: bool,
    pub speaks_unasked: bool,
    pub lines: Lines,
}

fn permission(id: &str) -> Permission {
    let choice = |id: &str, kind: &str| Choice { id: id.into(), name: id.into(), kind: kind.into() };
    Permission {
        request_id: id.into(),
        choices: vec![choice("yes", "allow_once"), choice("no", "reject_once")],
        ..serde_json::from_value(serde_json::json!({ "request_id": "", "choices": [] })).unwrap()
    }
}

fn output(line: &str) -> Output {
    let (word, rest) = line.split_at(1);
    let text = rest.trim().to_owned();
    let answered = |content| Done::Answered { content, total_tokens: None, stage: None };
    match word {
        "t" => Output::Token(text),
        "h" => Output::Thinking(text),
        "c" => Output::Call(ToolCall::new(text, "ls", serde_json::Value::Null)),
        "r" => Output::Result(ToolResult::new(text, "ls", Ok(serde_json::json!("done")))),
        "a" => Output::Asks(permission(&text)),
        "w" => Output::Withdrawn(text),
        "s" => Output::Session(text),
        "d" => Output::Done(answered(None)),
        "D" => Output::Done(answered(Some(text))),
        "f" => Output::Done(Done::Failed { error: "no".into(), retryable: true }),
        "F" => Output::Done(Done::Failed { error: "never".into(), retryable: false }),
        "x" => Output::Done(Done::Cancelled),
        _ => Output::Done(Done::Broken("what?".into())),
    }
}

impl Protocol for Talks {
    fn name(&self) -> &'static str {
        "acp"
    }

    fn speaks_unasked(&self) -> bool {
        self.speaks_unasked
    }

    fn takes(&self, _: &str) -> bool {
        false
    }

    fn started(&mut self) {
        self.lines = Lines::default();
    }

    fn prompt(&mut self, prompt: Prompt, out: &mut Vec<u8>) {
        let mut line = String::new();
        writeln!(line, "{{\"id\":{},", prompt.run.reply_to).unwrap();
        out.extend(line.into_bytes());
    }

    fn takes_ahead(&self) -> bool {
        self.takes_ahead
    }

    fn read(&mut self, bytes: &[u8], _: &mut Vec<u8>) -> Vec<Output> {
        let lines = self.lines.push(bytes).into_iter();
        lines.map(|line| output(std::str::from_utf8(&line.unwrap()).unwrap())).collect()
    }

    fn cancel(&mut self, out: &mut Vec<u8>) -> bool {
        if self.stops {
            out.extend(b"stop\n");
        }
        self.stops
    }

    fn permit(&mut self, request_id: &str, _: Option<&str>, out: &mut Vec<u8>) {
        out.extend(format!("permitted {request_id}\n").into_bytes());
    }
}
