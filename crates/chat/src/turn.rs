//! One message, from sending it to the end of its run.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

use serde_json::Value;
use thread_protocol::client::Received;
use thread_protocol::event::{
    ErrorCode, Event, Permission, PermissionRequest, Plan, PlanStatus, Role, RunStatus, ToolCall, ToolResult,
};
use thread_protocol::{COMMANDS, Frame, Unreadable, code};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{Failure, Result};
use crate::keyboard;
use crate::screen::{Screen, content};
use crate::session::Session;
use crate::visible::{verbatim, visible};

/// How a message ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Final,
    /// By an error, or another client.
    Failed,
    /// By Ctrl-C here.
    Interrupted,
}

/// Sends a message and shows its run.
pub async fn send(session: &mut Session, screen: &mut Screen, text: &str) -> Result<Outcome> {
    let mut interrupts = signal(SignalKind::interrupt())
        .map_err(|e| Failure::new("failed", format_args!("cannot listen to signals: {e}"), "try again"))?;
    let text = as_message(text);
    let accepted = tokio::select! {
        accepted = session.send(&text) => accepted?,
        _ = interrupts.recv() => return Ok(Outcome::Interrupted),
    };
    let mut turn = Turn {
        session,
        screen,
        run: accepted.run_id,
        said: String::new(),
        calls: HashMap::new(),
        questions: VecDeque::new(),
        asks: false,
        interrupted: false,
    };
    let outcome = turn.follow(&mut interrupts).await;
    if !matches!(outcome, Ok(Outcome::Final)) {
        turn.take_back();
    }
    turn.screen.end_line();
    outcome
}

/// The text to send: behind a second `/` if it begins with one, but with no command. So it is a message for
/// gateways that take every such text for a command, too.
fn as_message(text: &str) -> Cow<'_, str> {
    match text.strip_prefix('/') {
        Some(rest) if !rest.starts_with('/') && !COMMANDS.contains(&first_word(rest)) => {
            format!("/{text}").into()
        }
        _ => text.into(),
    }
}

fn first_word(text: &str) -> &str {
    text.split(char::is_whitespace).next().unwrap_or_default()
}

struct Turn<'a> {
    session: &'a mut Session,
    screen: &'a mut Screen,
    /// `None` if the message is a command, which the gateway answers itself.
    run: Option<String>,
    /// The answer so far, from the current attempt.
    said: String,
    /// The tool calls without a result.
    calls: HashMap<String, ToolCall>,
    /// Permission requests without an answer; the user is asked for the first.
    questions: VecDeque<PermissionRequest>,
    /// Whether the terminal is read for an answer.
    asks: bool,
    /// Whether Ctrl-C has requested the cancellation.
    interrupted: bool,
}

impl Turn<'_> {
    async fn follow(&mut self, interrupts: &mut Signal) -> Result<Outcome> {
        loop {
            tokio::select! {
                received = self.session.receive() => {
                    if let Some(outcome) = self.take(received?) {
                        return Ok(outcome);
                    }
                }
                line = keyboard::line(), if self.asks => {
                    self.answer(&line.unwrap_or_default()).await;
                }
                _ = interrupts.recv() => {
                    let Some(run) = self.run.as_ref().filter(|_| !self.interrupted) else {
                        return Ok(Outcome::Interrupted);
                    };
                    self.interrupted = true;
                    self.screen.note("cancelling; Ctrl-C again quits");
                    tokio::select! {
                        // It may have ended already; the next event will show.
                        asked = self.session.cancel(run) => if let Err(failure) = asked {
                            self.screen.note(failure.what);
                        },
                        _ = interrupts.recv() => return Ok(Outcome::Interrupted),
                    }
                }
            }
        }
    }

    /// Shows what was received. Returns how the message ended, once it has.
    fn take(&mut self, received: Received) -> Option<Outcome> {
        match received {
            Received::Event(frame, text) => {
                self.screen.frame(&text);
                return self.event(*frame);
            }
            Received::Unknown(text) => self.screen.frame(&text),
            Received::Lost(why) => {
                self.screen.note(format_args!("the connection was lost ({why}); connecting again"));
            }
            // Sessions are entered by a call here.
            Received::Entered(_) => {}
            Received::Unreadable(error) => {
                self.screen.unreadable(&error);
                return self.may_be_the_end(&error).then_some(Outcome::Failed);
            }
        }
        None
    }

    /// Whether nothing may follow for this run. Better an end too early than to wait for ever.
    fn may_be_the_end(&self, error: &Unreadable) -> bool {
        let ends = ["final", "error", "cancelled"];
        self.run.is_some()
            && error.run_id == self.run
            && ends.iter().any(|end| error.event.as_deref() == Some(end))
    }

    fn event(&mut self, frame: Frame) -> Option<Outcome> {
        match frame.event {
            Event::Message(message) if self.run.is_none() && message.role == Role::System => {
                self.screen.answer(&content(&message.content));
                return Some(Outcome::Final);
            }
            Event::Error(error) if error.error_code == ErrorCode::SessionDeleted => {
                let fix = "begin another one: thread chat --new";
                self.screen.failure(&Failure::new(code::UNKNOWN_SESSION, "the session was deleted", fix));
                return Some(Outcome::Failed);
            }
            _ if self.run.is_none() || frame.run_id != self.run => {}
            Event::Token(token) => {
                self.said.push_str(&token.content);
                if self.screen.streams() {
                    self.screen.answer(&token.content);
                }
            }
            // The attempt begins again.
            Event::Status(status) if status.status == RunStatus::Started && !self.said.is_empty() => {
                self.take_back();
                self.screen.note("the answer was cut off; it begins again");
            }
            Event::ToolCall(call) => {
                self.screen.note(format_args!("-> {} {}", call.tool_name, brief(&call.arguments)));
                self.calls.insert(call.call_id.clone(), call);
            }
            Event::ToolResult(ToolResult { call_id, tool_name, result, error, unreported, .. }) => {
                self.calls.remove(&call_id);
                self.screen.note(match error {
                    Some(why) if unreported => format!("<- {tool_name}: no result reported ({why})"),
                    Some(error) => format!("<- {tool_name} failed: {error}"),
                    None => format!("<- {tool_name} {}", brief(&result.unwrap_or_default())),
                });
            }
            Event::Queued(queued) => {
                self.screen.note(format_args!("waiting, place {} in the queue", queued.position));
            }
            Event::Plan(plan) => self.screen.note(progress(&plan)),
            Event::Large(large) => {
                let kind = large.subtype.as_deref().unwrap_or(&large.r#type);
                self.screen.note(format_args!("{kind} of {} bytes, at {}", large.bytes, large.url));
            }
            Event::Permission(Permission::Request(request)) => {
                self.questions.push_back(request);
                if self.questions.len() == 1 {
                    self.ask();
                }
            }
            Event::Permission(Permission::Answer(answer)) => {
                if let Some(at) =
                    self.questions.iter().position(|asked| asked.request_id == answer.request_id)
                {
                    match &*answer.choice {
                        "" => self.screen.note("the agent needs no answer any more"),
                        choice => self.screen.note(format_args!("it was answered: {choice}")),
                    }
                    self.answered(at);
                }
            }
            Event::Final(answer) => {
                let whole = content(&answer.content);
                if !self.screen.streams() || self.said != whole {
                    // Not streamed, or the whole answer differs from what was streamed.
                    self.screen.end_line();
                    self.screen.answer(&whole);
                }
                return Some(Outcome::Final);
            }
            Event::Error(error) if error.retryable => {
                self.take_back();
                self.screen.note(format_args!("{}; trying again", error.message));
            }
            Event::Error(error) => {
                let fix = "send it again, or see the session's log";
                let code = error.error_code.as_str().to_owned();
                self.screen.failure(&Failure::new(code, &error.message, fix));
                return Some(Outcome::Failed);
            }
            Event::Cancelled(cancelled) => {
                self.screen.note(format_args!("cancelled: {}", cancelled.message));
                return Some(if self.interrupted { Outcome::Interrupted } else { Outcome::Failed });
            }
            _ => {}
        }
        None
    }

    /// The partial text is not the answer: if it is not on the screen yet, it goes to stderr.
    fn take_back(&mut self) {
        let said = std::mem::take(&mut self.said);
        if !said.is_empty() && !self.screen.streams() {
            self.screen.quote(&visible(said.trim_end_matches('\n')));
        }
    }

    /// Shows the whole first question, and asks for an answer if there is a user. If not, another client may
    /// answer.
    fn ask(&mut self) {
        self.asks = false;
        let Some(question) = self.questions.front() else { return };
        self.screen.note("the agent asks for permission:");
        self.screen.quote(&verbatim(&question.title));
        if let Some(call) = question.call_id.as_ref().and_then(|id| self.calls.get(id)) {
            self.screen.note("for this tool call:");
            self.screen.quote(&verbatim(&format!("{} {}", call.tool_name, brief(&call.arguments))));
        }
        for (n, choice) in (1..).zip(&question.choices) {
            let choice = verbatim(&format!("{n} {} ({})", choice.name, choice.kind));
            // On one line, so that none passes for two.
            self.screen.quote(&choice.replace('\n', "\\n"));
        }
        self.asks = self.screen.can_ask() && keyboard::discard().is_ok();
        if self.asks {
            self.screen.note("type a number, then Enter");
        }
    }

    /// Takes a typed line as the answer to the first question.
    async fn answer(&mut self, line: &str) {
        let Some(question) = self.questions.front() else { return };
        if line.is_empty() {
            // Ctrl-D.
            self.screen.note("no answer was given; another client may give one");
            return self.answered(0);
        }
        let number = line.trim().parse::<usize>().ok();
        let Some(choice) = number.and_then(|n| question.choices.get(n.checked_sub(1)?)) else {
            return self.screen.note(format_args!("type a number from 1 to {}", question.choices.len()));
        };
        if let Err(failure) = self.session.permit(&question.request_id, &choice.id).await {
            self.screen.note(failure.what);
        }
        self.answered(0);
    }

    fn answered(&mut self, question: usize) {
        self.questions.remove(question);
        if question == 0 {
            self.ask();
        }
    }
}

fn progress(plan: &Plan) -> String {
    let done = plan.entries.iter().filter(|entry| entry.status == PlanStatus::Completed).count();
    let now = plan.entries.iter().find(|entry| entry.status == PlanStatus::InProgress);
    let now = now.map_or(String::new(), |entry| format!("; now: {}", entry.content));
    format!("plan: {done} of {} done{now}", plan.entries.len())
}

/// A value on one line: text as it is, everything else as JSON.
fn brief(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_message_and_a_command_is_a_command() {
        for (text, sent) in [
            ("hello /new", "hello /new"),
            ("/new x", "/new x"),
            ("/help", "/help"),
            ("//x", "//x"),
            ("/etc/hosts is wrong", "//etc/hosts is wrong"),
            ("/newer", "//newer"),
            ("/", "//"),
        ] {
            assert_eq!(as_message(text), sent);
        }
    }
}
