//! `thread session`: many commands by one process, for programs that use a thread all the time.
//!
//! A request holds the arguments of a command, and the command is run by the same code as on a command line. Only what
//! belongs to a process is replaced: the standard streams by [`capture`], and opening the thread by [`opened`].

use std::io::{self, BufRead, Read};

use clap::Args;
use clap::error::ErrorKind;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::output::Reader;
use super::{Command, Globals, capture, environment, exit_of, named_command, opened, output};
use super::{parse_alone, signals, usage_error};
use crate::error::Code;
use crate::failure::{Failure, Result, WithHint, failed, usage};
use crate::model::location::Location;
use crate::run::reap;

/// The longest request, in bytes: as long as a line of a batch.
const MAX_REQUEST: u64 = 1_000_000_000;

/// Run many commands in one process, for programs
///
/// Reads requests from stdin, one JSON object a line, and answers each with a line on stdout, in the same order. A request has
/// the arguments of a command: {"id":1,"args":["push","Hello"]}; "input" is what the command reads from stdin. The answer
/// has the same "id"; "exit", the exit code; and "out", a list of what the command prints with --json. If it failed, the
/// answer has "error", "suggestion" and "code"; warnings and notes are in "notices".
///
/// The thread stays open, so that a command takes about as long as what it does. All commands are for that one thread. A
/// request may not wait: for --follow, --wait, --sync, `ask`, and for a command that reads or prints something else than events
/// and JSON, run a process of its own.
///
/// The first line says which thread it is. The session ends with the input.
#[derive(Args)]
#[command(after_help = "\
Example:
  jq -nc '{id: 1, args: [\"push\", \"Hello\"]}' | thread session -t inbox")]
pub struct Session {}

/// A line of the input.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request<'r> {
    /// Any value; it comes back in the answer.
    #[serde(borrow, default)]
    id: Option<&'r RawValue>,
    args: Vec<String>,
    input: Option<String>,
}

impl Session {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let location = globals.open()?.location().clone();
        let hello = json!({ "thread": location.to_string(), "version": env!("CARGO_PKG_VERSION") });
        output::line(hello)?;
        let _kept = opened::keep();
        let mut input = environment::stdin().lock();
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = input.by_ref().take(MAX_REQUEST).read_until(b'\n', &mut line);
            match read {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                read => read.with_hint("cannot read the next request", "start another session")?,
            };
            if line.is_empty() {
                return Ok(());
            }
            if line.last() != Some(&b'\n') && line.len() as u64 == MAX_REQUEST {
                return failed(
                    Code::TooLarge,
                    format_args!("a request is longer than {MAX_REQUEST} bytes"),
                    "store the content in a file and push its path",
                );
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let answered = output::bytes(answer(&line, &location).as_bytes())?;
            signals::end_deferral();
            if answered == Reader::Gone {
                return Ok(());
            }
            // Supervisors, which nothing else waits for.
            reap();
        }
    }
}

/// Runs a request and returns the line that answers it.
fn answer(line: &[u8], location: &Location) -> String {
    let (id, done) = match serde_json::from_slice::<Request<'_>>(line) {
        Ok(request) => {
            let id = request.id.map_or("null", RawValue::get).to_owned();
            capture::begin(request.input);
            (id, run(request.args, location))
        }
        Err(e) => {
            capture::begin(None);
            let wrong = usage(
                format_args!("the request is not an object with \"args\", a list of words: {e}"),
                "see `thread session --help`",
            );
            ("null".to_owned(), wrong)
        }
    };
    let failure = done.err();
    let exit = failure.as_ref().map_or(0, exit_of);
    if let Some(failure) = failure.as_ref().filter(|_| exit == 0) {
        output::warn(format_args!("{failure}; what was pushed is stored"));
    }
    let printed = capture::end();
    let mut answer = format!("{{\"id\":{id},\"exit\":{exit},\"out\":[{}]", printed.elements());
    if let Some(Failure { what, hint, code, .. }) =
        failure.filter(|failure| exit != 0 && !failure.what.is_empty())
    {
        let error = json!({ "error": what, "suggestion": hint, "code": code.as_str() }).to_string();
        answer.push_str(&error.replacen('{', ",", 1));
        answer.pop();
    }
    if !printed.notices.is_empty() {
        answer.push_str(&format!(",\"notices\":{}", json!(printed.notices)));
    }
    answer.push_str("}\n");
    answer
}

fn run(args: Vec<String>, location: &Location) -> Result<()> {
    signals::forget_stored();
    let args: Vec<_> = ["thread".to_owned()].into_iter().chain(args).map(Into::into).collect();
    let (command, mut globals) = match parse_alone(&args) {
        Ok(parsed) => parsed,
        Err(None) => {
            return usage(
                "the request does not begin with a command",
                "see `thread --help` for the commands; options follow them",
            );
        }
        Err(Some(e)) if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return usage("a session prints no help", format_args!("run `{} --help`", named_command(&args)));
        }
        Err(Some(e)) => return usage_error(&e, &named_command(&args)),
    };
    if !globals.thread.is_empty() || globals.changes_directory() {
        return usage(
            "a session is for one thread, and stays in its directory",
            "leave out --thread and -C, and start another session for another thread",
        );
    }
    if let Some(why) = unfit(&command) {
        return usage(
            format_args!("a session cannot run `{}`: {why}", named_command(&args)),
            "run it as a process of its own",
        );
    }
    globals.thread.push(location.clone());
    globals.json = true;
    let done = command.run(&globals);
    if done.as_ref().is_err_and(|failure| failure.exit == 1) {
        // The thread may have been moved, or the connection be broken.
        opened::close();
    }
    done
}

/// Why a session does not run this command, which would hold up all others or use the standard streams.
fn unfit(command: &Command) -> Option<&'static str> {
    let waits = match command {
        Command::Push(push) => push.waits(),
        Command::Pop(pop) => pop.reading.waits(),
        Command::Peek(peek) if peek.pretty => return Some("--pretty is for people"),
        Command::Peek(peek) => peek.reading.waits(),
        Command::Step(step) => return step.runs_a_command().then_some("it runs a command"),
        Command::Reply(_)
        | Command::Subscribe(_)
        | Command::Unsubscribe(_)
        | Command::Ack(_)
        | Command::Nack(_)
        | Command::Reject(_)
        | Command::Claim(_)
        | Command::Sleep(_)
        | Command::Await(_)
        | Command::Seek(_)
        | Command::Redo(_)
        | Command::Info(_)
        | Command::Pause(_)
        | Command::Resume(_)
        | Command::Dead(_)
        | Command::Scheduled(_)
        | Command::Schedule(_)
        | Command::Config(_)
        | Command::Prune(_) => false,
        _ => return Some("it is not for single events and consumers"),
    };
    waits.then_some("it would hold up the others")
}
