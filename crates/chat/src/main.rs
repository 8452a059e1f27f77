//! `thread chat`: a terminal client of the gateway `thread serve`.
//!
//! Every message is an event on the gateway's disk. The connection, which survives a gateway that is restarted, is
//! `thread_protocol::client`; this program shows what arrives, and sends what is typed.

mod config;
mod dialog;
mod error;
mod keyboard;
mod options;
mod screen;
mod session;
mod turn;
mod visible;

use std::io::{self, IsTerminal, Read};
use std::process::ExitCode;

use clap::Parser;

use crate::error::{Failure, Result};
use crate::options::Options;
use crate::screen::Screen;
use crate::session::Session;
use crate::turn::Outcome;

/// The exit code after Ctrl-C, as in shells.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(e) if !e.use_stderr() => {
            // Help or version. If the reader closed the pipe, there is nothing more to print.
            drop(e.print());
            return ExitCode::SUCCESS;
        }
        Err(e) => {
            let json = std::env::args_os().any(|argument| argument == "--json");
            let failure = Failure::of_usage(&e);
            Screen::new(json).failure(&failure);
            return ExitCode::from(failure.exit);
        }
    };
    let mut screen = Screen::new(options.json);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            screen.failure(&Failure::new(
                "failed",
                format_args!("cannot start: {e}"),
                "close other programs",
            ));
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(run(options, &mut screen));
    // A thread that is blocked on reading the terminal must not delay the exit.
    runtime.shutdown_background();
    match done {
        Ok(Outcome::Final) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::FAILURE,
        Ok(Outcome::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(failure) => {
            screen.failure(&failure);
            ExitCode::from(failure.exit)
        }
    }
}

async fn run(options: Options, screen: &mut Screen) -> Result<Outcome> {
    let message = match options.message.as_deref() {
        Some("-") => Some(read_stdin()?),
        Some(text) => Some(text.to_owned()),
        None if options.sessions || options.history.is_some() || io::stdin().is_terminal() => None,
        None => Some(read_stdin()?),
    };
    if message.as_deref().is_some_and(|text| text.trim().is_empty()) {
        return Err(Failure::usage("the message is empty", "say something: thread chat 'hello'"));
    }
    let config = config::load(&options)?;
    let mut session = Session::open(config, &options).await?;
    if options.sessions {
        screen.sessions(&session.list().await?);
        return Ok(Outcome::Final);
    }
    if let Some(count) = options.history {
        screen.history(&session.history(count).await?);
        if message.is_none() && !io::stdin().is_terminal() {
            return Ok(Outcome::Final);
        }
    }
    match message {
        Some(text) => turn::send(&mut session, screen, &text).await,
        None => dialog::run(&mut session, screen).await,
    }
}

fn read_stdin() -> Result<String> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).map_err(|e| {
        Failure::new("io", format_args!("cannot read the message: {e}"), "give it as UTF-8 text")
    })?;
    Ok(text)
}
