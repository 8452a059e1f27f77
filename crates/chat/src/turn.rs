//! One message, from sending it to the end of its run.

use std::io::{self, BufRead, IsTerminal};

use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::client::Event;
use crate::error::{Failure, Result};
use crate::screen::{Screen, content};
use crate::session::Session;

/// How a message ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Final,
    Failed,
    /// By another client.
    Cancelled,
    /// By Ctrl-C here.
    Interrupted,
}

/// Sends a message and shows its run.
pub async fn send(session: &mut Session, screen: &mut Screen, text: &str) -> Result<Outcome> {
    let mut interrupts = signal(SignalKind::interrupt())
        .map_err(|e| Failure::new(format_args!("cannot listen to signals: {e}"), "try again"))?;
    let accepted = tokio::select! {
        accepted = session.send(text) => accepted?,
        _ = interrupts.recv() => return Ok(Outcome::Interrupted),
    };
    session.moved_to(accepted["sessionId"].as_str().unwrap_or_default());
    let run = accepted["runId"].as_str().unwrap_or_default().to_owned();
    let is_command = text.starts_with('/') && !text.starts_with("//");
    let mut turn = Turn { session, screen, run, is_command, streamed: String::new(), interrupted: false };
    turn.follow(&mut interrupts).await
}

struct Turn<'a> {
    session: &'a mut Session,
    screen: &'a mut Screen,
    run: String,
    /// Whether the message is a command, which the gateway answers itself.
    is_command: bool,
    /// The part of the answer that has been shown.
    streamed: String,
    /// Whether Ctrl-C has requested the cancellation.
    interrupted: bool,
}

impl Turn<'_> {
    async fn follow(&mut self, interrupts: &mut Signal) -> Result<Outcome> {
        loop {
            tokio::select! {
                event = self.session.event() => {
                    let event = event?;
                    self.screen.event(&event);
                    if let Some(outcome) = self.take(&event).await? {
                        self.screen.end_line();
                        return Ok(outcome);
                    }
                }
                _ = interrupts.recv() => {
                    if self.interrupted || self.run.is_empty() {
                        return Ok(Outcome::Interrupted);
                    }
                    self.interrupted = true;
                    self.screen.note("cancelling; Ctrl-C again quits");
                    tokio::select! {
                        asked = self.session.cancel(&self.run) => asked?,
                        _ = interrupts.recv() => return Ok(Outcome::Interrupted),
                    }
                }
            }
        }
    }

    /// Shows an event. Returns how the message ended, once it has.
    async fn take(&mut self, event: &Event) -> Result<Option<Outcome>> {
        if self.is_command && event.event == "message" && event.text("role") == "system" {
            self.screen.answer(&content(&event.payload["content"]));
            return Ok(Some(Outcome::Final));
        }
        if event.text("errorCode") == "session_deleted" {
            let fix = "begin another one: thread chat --new";
            self.screen.failure(&Failure::new("the session was deleted", fix));
            return Ok(Some(Outcome::Failed));
        }
        if event.text("runId") != self.run || self.run.is_empty() {
            return Ok(None);
        }
        match event.event.as_str() {
            "token" => {
                self.streamed.push_str(event.text("content"));
                self.screen.answer(event.text("content"));
            }
            "tool_call" => self.screen.note(format_args!(
                "-> {} {}",
                event.text("toolName"),
                brief(&event.payload["arguments"])
            )),
            "tool_result" => self.screen.note(match &event.payload["error"] {
                Value::Null => format!("<- {} {}", event.text("toolName"), brief(&event.payload["result"])),
                error => format!("<- {} failed: {}", event.text("toolName"), brief(error)),
            }),
            "queued" => {
                self.screen.note(format_args!("waiting, place {} in the queue", event.payload["position"]))
            }
            "permission" => self.permit(event).await?,
            "final" => {
                let whole = content(&event.payload["content"]);
                if self.streamed != whole {
                    // Not streamed, or the whole answer differs from what was streamed.
                    self.screen.end_line();
                    self.screen.answer(&whole);
                }
                return Ok(Some(Outcome::Final));
            }
            "error" if event.payload["retryable"] == true => {
                self.streamed.clear();
                self.screen.end_line();
                self.screen.note(format_args!("{}; trying again", event.text("message")));
            }
            "error" => {
                let fix = "send it again, or see the session's log";
                self.screen.failure(&Failure::new(event.text("message"), fix));
                return Ok(Some(Outcome::Failed));
            }
            "cancelled" => {
                self.screen.note(format_args!("cancelled: {}", event.text("message")));
                return Ok(Some(if self.interrupted { Outcome::Interrupted } else { Outcome::Cancelled }));
            }
            _ => {}
        }
        Ok(None)
    }

    /// Asks the user at the terminal. Without one, another client may answer.
    async fn permit(&mut self, event: &Event) -> Result<()> {
        let choices: Vec<&Value> = event.payload["choices"].as_array().into_iter().flatten().collect();
        self.screen.note(format_args!("the agent asks for permission: {}", event.text("title")));
        for (n, choice) in choices.iter().enumerate() {
            self.screen.note(format_args!("  {} {}", n + 1, choice["name"].as_str().unwrap_or_default()));
        }
        if !io::stdin().is_terminal() || self.screen.json() {
            return Ok(());
        }
        self.screen.note("type a number, then Enter");
        // An answer of another client that comes meanwhile is shown after this line.
        let typed = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            io::stdin().lock().read_line(&mut line).map(|_| line)
        });
        let typed = typed.await.ok().and_then(|line| line.ok()).unwrap_or_default();
        let choice = typed.trim().parse::<usize>().ok().and_then(|n| choices.get(n.wrapping_sub(1)));
        match choice.and_then(|choice| choice["id"].as_str()) {
            Some(id) => self.session.permit(event.text("requestId"), id).await,
            None => {
                self.screen.note("no answer was given");
                Ok(())
            }
        }
    }
}

/// A value on one line: text as it is, everything else as JSON.
fn brief(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
