//! A conversation at the terminal, with line editing and history.

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Behavior, Config, Editor, ExternalPrinter};
use thread_protocol::client::Received;
use thread_protocol::event::{Event, Permission};

use crate::error::{Failure, Result};
use crate::screen::{Screen, content};
use crate::session::Session;
use crate::turn::{self, Outcome};
use crate::visible::{verbatim, visible};

type Lines = Editor<(), FileHistory>;

/// Reads and sends messages until Ctrl-D, `/quit`, or Ctrl-C at the prompt.
pub async fn run(session: &mut Session, screen: &mut Screen) -> Result<Outcome> {
    let cannot = |e: ReadlineError| {
        Failure::new(
            "io",
            format_args!("cannot read lines from here: {e}"),
            "give the message as an argument",
        )
    };
    // The prompt goes to the terminal even if stdout, which gets the answers, is redirected.
    let config = Config::builder().behavior(Behavior::PreferTerm).build();
    let mut lines = Lines::with_config(config).map_err(cannot)?;
    let history = session.config.history();
    if let Some(history) = &history {
        // There is no file the first time.
        let _ = lines.load_history(history);
    }
    screen.note(format_args!("session {}; /help lists the commands, Ctrl-D quits", session.id()));
    let outcome = loop {
        let mut printer = lines.create_external_printer().map_err(cannot)?;
        let reading = tokio::task::spawn_blocking(move || {
            let line = lines.readline("> ");
            (lines, line)
        });
        let (back, line) = listen(session, screen, &mut printer, reading).await?;
        lines = back;
        let line = match line {
            Ok(line) => line,
            Err(ReadlineError::Eof) => break Outcome::Final,
            Err(ReadlineError::Interrupted) => break Outcome::Interrupted,
            Err(e) => return Err(cannot(e)),
        };
        match line.trim() {
            "" => continue,
            "/quit" | "/exit" => break Outcome::Final,
            text => {
                let _ = lines.add_history_entry(text);
                if let Some(history) = &history {
                    let _ = lines.append_history(history);
                }
                if let Err(failure) = turn::send(session, screen, text).await {
                    // A refused message does not end the conversation.
                    screen.failure(&failure);
                }
            }
        }
    };
    Ok(outcome)
}

/// Waits for a line; until then shows what other clients and the agent send.
async fn listen<T>(
    session: &mut Session,
    screen: &mut Screen,
    printer: &mut impl ExternalPrinter,
    mut reading: tokio::task::JoinHandle<T>,
) -> Result<T> {
    let gone = |_| Failure::new("io", "the terminal cannot be read", "give the message as an argument");
    loop {
        tokio::select! {
            line = &mut reading => return line.map_err(gone),
            received = session.receive() => match received {
                Ok(received) => {
                    if let Some(line) = at_prompt(screen, &received) {
                        let _ = printer.print(format!("{line}\n"));
                    }
                }
                Err(failure) => {
                    let _ = printer.print(format!("Error: {} - {}\n", failure.what, failure.fix));
                    // Returns only then: the editor has the terminal until the line is complete.
                    return reading.await.map_err(gone);
                }
            }
        }
    }
}

/// What the editor has to print; `None` if nothing is shown.
fn at_prompt(screen: &mut Screen, received: &Received) -> Option<String> {
    match received {
        Received::Event(_, text) | Received::Unknown(text) if screen.json => screen.frame_at_prompt(text),
        Received::Event(frame, _) => shown(&frame.event),
        Received::Unknown(_) | Received::Entered(_) => None,
        Received::Lost(_) if screen.json => None,
        Received::Unreadable(error) => Some(visible(&format!("[error] {error}"))),
        Received::Lost(why) => Some(visible(&format!("[the connection was lost ({why}); connecting again]"))),
    }
}

fn shown(event: &Event) -> Option<String> {
    let text = match event {
        Event::Message(message) if !message.from_self => {
            format!("[{}] {}", message.role, content(&message.content))
        }
        Event::Final(answer) => format!("[agent] {}", content(&answer.content)),
        Event::Error(error) if !error.retryable => format!("[error] {}", error.message),
        Event::Title(title) => format!("[title] {}", title.title),
        Event::Permission(Permission::Request(request)) => {
            format!(
                "[the agent asks for permission]\n  | {}",
                verbatim(&request.title).replace('\n', "\n  | ")
            )
        }
        _ => return None,
    };
    Some(visible(&text))
}
