//! Commands: messages that the gateway answers itself, to the sender only. None is stored; `/clear` stores an event
//! of its own. Any other text that begins with a slash is an ordinary message.

use std::sync::PoisonError;

use thread_protocol::event;
use thread_protocol::method::{Acceptance, Accepted, ListParams, NewParams, SessionsList, SessionsNew};
use thread_sessions::excerpt::TITLE;
use thread_sessions::{Result, SessionId};

use super::caller::{Caller, Reply, Subscribe, Then};
use super::methods::Handler;
use super::runs::request_cancel;
use super::sessions;
use crate::session::frames::notice;
use crate::session::history;

const HELP: &str = "\
/new [@agent] [title]  starts a new session, with another agent if one is named
/sessions              lists the last sessions
/session <n or id>     switches to a session, by its number in the last list or by its id
/history [n]           shows the last messages
/status                shows the status of the gateway and the session
/cancel                cancels the run under way
/clear                 makes the agent forget what was said so far; the conversation stays
/help                  shows this help
//text                 sends /text to the agent";

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
    Clear,
    Help,
}

pub fn parse(text: &str) -> Parsed<'_> {
    let Some(rest) = text.strip_prefix('/') else { return Parsed::Text(text) };
    let (word, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let argument = argument.trim();
    Parsed::Command(match word {
        "new" => Command::New(Some(argument).filter(|title| !title.is_empty())),
        "sessions" => Command::Sessions,
        "session" => Command::Session(argument),
        "history" => Command::History(argument),
        "status" => Command::Status,
        "cancel" => Command::Cancel,
        "clear" if argument.is_empty() => Command::Clear,
        "help" => Command::Help,
        _ if rest.starts_with('/') => return Parsed::Text(rest),
        _ => return Parsed::Text(text),
    })
}

/// Executes a command. Its answer is an event that follows the response. If a command cannot be executed, its
/// answer says why.
pub async fn execute(caller: &Caller, command: Command<'_>) -> Reply<Accepted> {
    let answer = answer(caller, command).await;
    let (text, subscribe) = answer.unwrap_or_else(|e| (format!("Error: {e}"), Subscribe::Stay));
    let session = match &subscribe {
        Subscribe::At { live, .. } => Some(live.session),
        Subscribe::Stay => caller.session,
    };
    let message = event::Message {
        role: event::Role::System,
        content: text.into(),
        message_id: format!("msg_{}", uuid::Uuid::new_v4()),
        timestamp: thread::model::time::now(),
        from_self: false,
        source: None,
        priority: None,
        metadata: None,
        large: None,
    };
    let payload = Accepted {
        run_id: None,
        session_id: session.map(|session| session.to_string()),
        status: Acceptance::Accepted,
        scheduled: None,
        scheduled_at: None,
    };
    Reply { payload, subscribe, then: Then::Send(notice(message, session, None)) }
}

/// The text of the answer, and where the connection reads from then on.
async fn answer(caller: &Caller, command: Command<'_>) -> Result<(String, Subscribe)> {
    let text = match command {
        Command::Help => HELP.to_owned(),
        Command::New(title) => {
            let (agent, title) = named_agent(title);
            let title = title.map(|title| thread_sessions::excerpt::beginning(title, TITLE));
            let params = NewParams { title, agent: agent.map(str::to_owned), ..NewParams::default() };
            let reply = SessionsNew::handle(caller, params).await?;
            let with = reply.payload.agent.as_ref().filter(|_| agent.is_some());
            let with = with.map(|name| format!(" with {name}")).unwrap_or_default();
            let text = format!("Switched to the new session {}{with}.", reply.payload.session_id);
            return Ok((text, reply.subscribe));
        }
        Command::Sessions => list(caller).await?,
        Command::Session(which) => match resolve(caller, which) {
            None => "Name a session by its number in the last list of /sessions, or by its id.".to_owned(),
            Some(session) => {
                let reply = sessions::enter(caller, session, None).await?;
                let text = format!("Switched to {} ({session}).", or_untitled(&reply.payload.title));
                return Ok((text, reply.subscribe));
            }
        },
        Command::History(count) => recent(caller, count).await?,
        Command::Status => {
            let status = sessions::status_of(caller, caller.session).await?;
            let gateway = status.gateway;
            let mut text = format!(
                "Gateway {}, up {} s, {} connections, {} sessions in use.",
                gateway.version, gateway.uptime, gateway.active_connections, gateway.active_sessions
            );
            if let Some(session) = status.session {
                text += &format!(
                    "\nSession {}{}: {} messages, {} queued, run under way: {}, {} clients.",
                    session.id,
                    session.agent.map(|agent| format!(" with {agent}")).unwrap_or_default(),
                    session.message_count,
                    session.queued_requests,
                    session.active_run.as_deref().unwrap_or("none"),
                    session.clients
                );
            }
            text
        }
        Command::Clear => {
            let session = caller.session_or_current(None)?;
            caller.write(session, |to| to.clear()).await?;
            "From the next message on, the agent starts with an empty context.".to_owned()
        }
        Command::Cancel => {
            let session = caller.session_or_current(None)?;
            match request_cancel(caller, session, None).await? {
                Some(run) => format!("Cancellation of {run} was requested."),
                None => "No run is under way.".to_owned(),
            }
        }
    };
    Ok((text, Subscribe::Stay))
}

/// The agent that the argument of `/new` names, and the title.
fn named_agent(argument: Option<&str>) -> (Option<&str>, Option<&str>) {
    let Some(named) = argument.and_then(|argument| argument.strip_prefix('@')) else {
        return (None, argument);
    };
    let (agent, title) = named.split_once(char::is_whitespace).unwrap_or((named, ""));
    (Some(agent), Some(title.trim()).filter(|title| !title.is_empty()))
}

fn or_untitled(title: &str) -> &str {
    if title.is_empty() { "(no title)" } else { title }
}

async fn list(caller: &Caller) -> Result<String> {
    let page = SessionsList::handle(caller, ListParams::default()).await?.payload;
    if page.sessions.is_empty() {
        return Ok("There are no sessions yet.".to_owned());
    }
    let line = |(n, session): (usize, &thread_protocol::method::SessionSummary)| {
        let (messages, at) = (session.message_count, &session.last_activity);
        let with = session.agent.as_ref().map(|agent| format!(", {agent}")).unwrap_or_default();
        format!("{}. {} - {messages} messages, {at}{with}", n + 1, or_untitled(&session.title))
    };
    let list = page.sessions.iter().filter_map(|session| SessionId::parse(&session.id)).collect();
    *caller.last_list.lock().unwrap_or_else(PoisonError::into_inner) = list;
    Ok(page.sessions.iter().enumerate().map(line).collect::<Vec<_>>().join("\n"))
}

fn resolve(caller: &Caller, which: &str) -> Option<SessionId> {
    let last_list = caller.last_list.lock().unwrap_or_else(PoisonError::into_inner);
    let number = which.parse::<usize>().ok().and_then(|n| last_list.get(n.checked_sub(1)?).copied());
    number.or_else(|| SessionId::parse(which))
}

async fn recent(caller: &Caller, count: &str) -> Result<String> {
    let count = match count {
        "" => Some(10),
        count => count.parse().ok().filter(|count| (1..=200).contains(count)),
    };
    let Some(count) = count else { return Ok("Give a number from 1 to 200: /history 20.".to_owned()) };
    let session = caller.session_or_current(None)?;
    let messages = history::read(&caller.gateway.hub.context, session, None, count).await?.messages;
    let line = |entry: &thread_protocol::method::HistoryEntry| {
        format!("[{}] {}: {}", entry.timestamp, entry.role, entry.content.text())
    };
    Ok(match messages.is_empty() {
        true => "Nothing has been said yet.".to_owned(),
        false => messages.iter().map(line).collect::<Vec<_>>().join("\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_know_all_commands() {
        let lines =
            HELP.lines().filter_map(|line| line.strip_prefix('/')).filter(|line| !line.starts_with('/'));
        let named = lines.filter_map(|line| line.split_whitespace().next());
        assert!(named.eq(thread_protocol::COMMANDS.iter().copied()), "{HELP}");
    }

    #[test]
    fn two_slashes_make_a_text_of_a_command() {
        assert_eq!(parse("hello /new"), Parsed::Text("hello /new"));
        assert_eq!(parse("//new x"), Parsed::Text("/new x"));
        assert_eq!(parse("/new  a b "), Parsed::Command(Command::New(Some("a b"))));
        assert_eq!(parse("/new"), Parsed::Command(Command::New(None)));
        assert_eq!(named_agent(Some("@helper  a b")), (Some("helper"), Some("a b")));
        assert_eq!(named_agent(Some("@helper")), (Some("helper"), None));
        assert_eq!(named_agent(Some("a @b")), (None, Some("a @b")));
        assert_eq!(parse("/session 3"), Parsed::Command(Command::Session("3")));
        for text in ["/etc/hosts is wrong", "/newer", "/", "/ new"] {
            assert_eq!(parse(text), Parsed::Text(text));
        }
    }
}
