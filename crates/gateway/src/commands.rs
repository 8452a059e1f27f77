//! Commands: messages that the gateway answers itself, to the sender only. Nothing is stored.

use serde_json::{Value, json};

use crate::actions::{self, Reply};
use crate::client::Client;
use crate::error::Result;
use crate::protocol::event::in_session;
use crate::protocol::frame;
use crate::session::{blocking, history};
use crate::session_id::SessionId;

const HELP: &str = "\
/new [title]           starts a new session
/sessions              lists the last sessions
/session <n or id>     switches to a session, by its number in the last list or by its id
/history [n]           shows the last messages
/status                shows the status of the gateway and the session
/cancel                cancels the run under way
/help                  shows this help
//text                 sends /text to the agent";

const LISTED: usize = 10;

/// The text of a message, parsed.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<'t> {
    Command(Command<'t>),
    /// A message for the agent.
    Text(&'t str),
}

#[derive(Debug, PartialEq, Eq)]
pub enum Command<'t> {
    New(Option<&'t str>),
    Sessions,
    Session(&'t str),
    History(&'t str),
    Status,
    Cancel,
    Help,
    Unknown(&'t str),
}

pub fn parse(text: &str) -> Parsed<'_> {
    let Some(rest) = text.strip_prefix('/') else { return Parsed::Text(text) };
    if rest.starts_with('/') {
        return Parsed::Text(rest);
    }
    let (word, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let argument = argument.trim();
    Parsed::Command(match word.trim() {
        "new" => Command::New(Some(argument).filter(|title| !title.is_empty())),
        "sessions" => Command::Sessions,
        "session" => Command::Session(argument),
        "history" => Command::History(argument),
        "status" => Command::Status,
        "cancel" => Command::Cancel,
        "help" => Command::Help,
        word => Command::Unknown(word),
    })
}

/// Executes a command. Its answer is an event that follows the response. Never fails: a command that cannot
/// be executed says so in its answer.
pub async fn execute(client: &mut Client, command: Command<'_>) -> Result<Reply> {
    let text = match answer(client, command).await {
        Ok(text) => text,
        Err(e) => format!("Error: {e}"),
    };
    let session = client.session().map(|session| session.to_string());
    let payload = json!({
        "role": "system",
        "content": text,
        "messageId": format!("msg_{}", uuid::Uuid::new_v4()),
        "timestamp": thread::model::time::now(),
        "fromSelf": false,
    });
    let Value::Object(mut payload) = payload else { return Ok(Value::Null.into()) };
    match client.session() {
        Some(session) => payload = in_session(payload, session, None),
        None => payload.extend([("sessionId".to_owned(), Value::Null), ("runId".to_owned(), Value::Null)]),
    }
    let reply = json!({ "runId": null, "sessionId": session, "status": "accepted" });
    Ok(Reply { payload: reply, then: vec![frame::event("message", payload, None)] })
}

async fn answer(client: &mut Client, command: Command<'_>) -> Result<String> {
    Ok(match command {
        Command::Help => HELP.to_owned(),
        Command::Unknown(word) => format!("There is no command /{word}.\n{HELP}"),
        Command::New(title) => {
            let title = title.map(|title| crate::protocol::content::beginning(title, 200));
            let session = actions::create(client, title).await?;
            client.enter(session).await?;
            format!("Switched to the new session {session}.")
        }
        Command::Sessions => sessions(client).await?,
        Command::Session(which) => match resolve(client, which) {
            None => "Name a session by its number in the last list of /sessions, or by its id.".to_owned(),
            Some(session) => {
                let switched = actions::switch(client, session, None).await?;
                let title =
                    switched["title"].as_str().filter(|title| !title.is_empty()).unwrap_or("(no title)");
                format!("Switched to {title} ({session}).")
            }
        },
        Command::History(count) => recent(client, count).await?,
        Command::Status => {
            let status = actions::status(client, None).await?;
            let (gateway, session) = (&status["gateway"], &status["session"]);
            let mut text = format!(
                "Gateway {}, up {} s, {} connections, {} sessions in use.",
                gateway["version"].as_str().unwrap_or_default(),
                gateway["uptime"],
                gateway["activeConnections"],
                gateway["activeSessions"]
            );
            if session.is_object() {
                text += &format!(
                    "\nSession {}: {} messages, {} queued, run under way: {}, {} clients.",
                    session["id"].as_str().unwrap_or_default(),
                    session["messageCount"],
                    session["queuedRequests"],
                    session["activeRun"].as_str().unwrap_or("none"),
                    session["clients"]
                );
            }
            text
        }
        Command::Cancel => {
            let session = client.session_or_current(None)?;
            match actions::cancel(client, session, None).await? {
                Some(run) => format!("Cancellation of {run} was requested."),
                None => "No run is under way.".to_owned(),
            }
        }
    })
}

async fn sessions(client: &mut Client) -> Result<String> {
    let gateway = client.gateway.clone();
    let page = blocking(move || gateway.catalogue.page(&gateway.root, 0, LISTED)).await?;
    let sessions = page["sessions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let id = |session: &Value| session["id"].as_str().and_then(SessionId::parse);
    client.last_list = sessions.iter().filter_map(id).collect();
    if sessions.is_empty() {
        return Ok("There are no sessions yet.".to_owned());
    }
    let line = |(n, session): (usize, &Value)| {
        let title = session["title"].as_str().filter(|title| !title.is_empty()).unwrap_or("(no title)");
        let (messages, at) = (&session["messageCount"], session["lastActivity"].as_str().unwrap_or_default());
        format!("{}. {title} - {messages} messages, {at}", n + 1)
    };
    Ok(sessions.iter().enumerate().map(line).collect::<Vec<_>>().join("\n"))
}

fn resolve(client: &Client, which: &str) -> Option<SessionId> {
    let number = which.parse::<usize>().ok().and_then(|n| client.last_list.get(n.checked_sub(1)?).copied());
    number.or_else(|| SessionId::parse(which))
}

async fn recent(client: &mut Client, count: &str) -> Result<String> {
    let count = match count {
        "" => Some(LISTED),
        count => count.parse().ok().filter(|count| (1..=200).contains(count)),
    };
    let Some(count) = count else { return Ok("Give a number from 1 to 200: /history 20.".to_owned()) };
    let session = client.session_or_current(None)?;
    let gateway = client.gateway.clone();
    let page = blocking(move || history::before(&mut gateway.root.queue(session)?, i64::MAX, count)).await?;
    let line = |event: &thread::Event| {
        let role = history::role(&thread_agent::conversation::Entry::of(event).1);
        format!("[{}] {role}: {}", event.created_at, crate::protocol::content::text(&event.content))
    };
    Ok(match page.messages.is_empty() {
        true => "Nothing has been said yet.".to_owned(),
        false => page.messages.iter().map(line).collect::<Vec<_>>().join("\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_slashes_make_a_text_of_a_command() {
        assert_eq!(parse("hello /new"), Parsed::Text("hello /new"));
        assert_eq!(parse("//new x"), Parsed::Text("/new x"));
        assert_eq!(parse("/new  a b "), Parsed::Command(Command::New(Some("a b"))));
        assert_eq!(parse("/new"), Parsed::Command(Command::New(None)));
        assert_eq!(parse("/session 3"), Parsed::Command(Command::Session("3")));
        assert_eq!(parse("/nonsense 3"), Parsed::Command(Command::Unknown("nonsense")));
    }
}
