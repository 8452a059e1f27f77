//! `thread acp`: the sessions of the gateway `thread serve`, for editors that speak the Agent Client Protocol.
//!
//! It keeps nothing: a session is a thread on the gateway's disk. Each session that the editor has open is a task with a
//! connection of its own (`session`), which is a place in that thread. What is read there becomes updates by rules that
//! know nothing but the events (`updates`), so a session that is loaded after a crash looks as if nothing had happened.

mod choices;
mod content;
mod editor;
mod options;
mod orders;
mod permissions;
mod problem;
mod requests;
mod rpc;
mod server;
mod servers;
mod session;
mod updates;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use thread_protocol::client::{NotFound, usage};

use crate::options::Options;
use crate::server::Server;

/// How long what was said last may take to be written.
const LAST: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(e) if !e.use_stderr() => {
            // Help or version. If the reader closed the pipe, there is nothing more to print.
            drop(e.print());
            return ExitCode::SUCCESS;
        }
        Err(e) => {
            return report(&usage(&e.render().to_string()), "see `thread acp --help`", 2);
        }
    };
    // That no gateway runs yet is no reason to end: the editor is told when it asks for a session.
    if let Err(e @ NotFound::NoAddress(_)) = requests::find(&options) {
        return report(&e.to_string(), e.fix(), 2);
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return report(&format!("cannot start: {e}"), "close other programs", 1),
    };
    let (lines, editor, written) = match (rpc::read_lines(), editor::writer()) {
        (Ok(lines), Ok((editor, written))) => (lines, editor, written),
        (Err(e), _) | (_, Err(e)) => {
            return report(&format!("cannot start: {e}"), "check the limits on threads", 1);
        }
    };
    runtime.block_on(Server::new(options, editor).run(lines));
    // Neither the thread that reads stdin, nor an editor that does not read, may delay the exit.
    runtime.shutdown_background();
    let _ = written.recv_timeout(LAST);
    ExitCode::SUCCESS
}

fn report(what: &str, fix: &str, exit: u8) -> ExitCode {
    let plain = |text: &str| text.replace(|c: char| c.is_control(), " ");
    eprintln!("Error: {} - {}", plain(what), plain(fix));
    ExitCode::from(exit)
}
