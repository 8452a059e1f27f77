//! `thread step`: running a command once for an event, however often its handler is run.

#![expect(clippy::disallowed_types, reason = "the command is a program of the handler's")]

use std::ffi::OsString;
use std::io::{self, PipeReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use chrono::Utc;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use super::{Globals, environment, event_id, output, signals};
use crate::error::Code;
use crate::failure::{Failure, Result, WithHint, failed, usage};
use crate::model::ledger::Sleep;
use crate::model::run::NOT_NOW;
use crate::model::step::{Kind, LONGEST_RESULT, Step as Stored};
use crate::model::subscription::ConsumerId;
use crate::model::time;
use crate::queue::Queue;
use crate::run::steps::{self, Begun, Of};
use crate::store::StepsOf;

/// How often to look whether a command has ended that does not close its stdout.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Run a command once for an event, and print the same each time
///
/// For handlers of single events (--deliver stdin --batch-size 1), which may be run several times for the same event. If
/// the command succeeds, what it prints is stored. From then on, the step prints that and runs nothing. If it fails,
/// nothing is stored, and its exit code is that of the step. A command that is killed before its result is stored runs
/// again; it gets THREAD_STEP_KEY, which is the same each time, to pass on to what it calls.
///
/// Each step of a handler needs a name of its own. After a `thread sleep` or `thread await` that is not over, steps do
/// nothing and end with exit 75.
#[derive(Args)]
#[command(override_usage = "\
thread step [OPTIONS] <NAME> -- <CMD>...
       thread step [OPTIONS] --list
       thread step [OPTIONS] --forget <NAME>")]
#[command(after_help = "\
Examples:
  thread step charge -- ./charge.sh \"$order\"
  thread step -t inbox --list
  thread step -t inbox --consumer orders --event 42 --forget charge")]
pub struct Step {
    /// The step's name
    #[arg(value_name = "NAME", value_parser = name, conflicts_with_all = ["list", "forget"])]
    name: Option<String>,
    /// The command and its arguments
    #[arg(value_name = "CMD", last = true, conflicts_with_all = ["list", "forget"])]
    words: Vec<OsString>,
    /// List the steps of the event, or without one, of the consumer, or of all
    #[arg(long, conflicts_with = "forget")]
    list: bool,
    /// Remove a step, so that it is done again
    #[arg(long, value_name = "NAME")]
    forget: Option<String>,
    #[command(flatten)]
    of: OfArgs,
}

/// The event for which steps are done.
#[derive(Args)]
pub struct OfArgs {
    /// The event [default: $THREAD_EVENT_ID]
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true)]
    event: Option<i64>,
    /// The consumer [default: $THREAD_CONSUMER]
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// The claim by which you have the event, if you took it with `thread pop --claim`
    #[arg(long, value_name = "TOKEN")]
    claim: Option<String>,
}

/// Parses a step's name.
pub fn name(text: &str) -> std::result::Result<String, String> {
    Stored::check_name(text).map(|()| text.to_owned())
}

impl OfArgs {
    /// The consumer, if one is named.
    fn named_consumer(&self) -> Result<Option<ConsumerId>> {
        let name =
            self.consumer.clone().map(OsString::from).or_else(|| environment::variable("THREAD_CONSUMER"));
        match name.map(OsString::into_string).transpose() {
            Err(_) => usage("THREAD_CONSUMER is not UTF-8", "set it correctly"),
            Ok(Some(name)) if name.is_empty() => usage("the consumer's name is empty", "give its name"),
            Ok(name) => Ok(name.map(ConsumerId::stored)),
        }
    }

    pub fn consumer(&self) -> Result<ConsumerId> {
        let missing = || usage("no consumer given", "name it with --consumer, or set THREAD_CONSUMER");
        self.named_consumer()?.map_or_else(missing, Ok)
    }

    /// The event, if one is given.
    fn named_event(&self) -> Result<Option<i64>> {
        let Some(text) = environment::variable("THREAD_EVENT_ID").filter(|_| self.event.is_none()) else {
            return Ok(self.event);
        };
        match text.to_str().and_then(|text| event_id(text).ok()) {
            Some(id) => Ok(Some(id)),
            None => usage("THREAD_EVENT_ID is not an event id", "set it correctly, or give --event"),
        }
    }

    pub fn event(&self) -> Result<i64> {
        let missing = || {
            usage(
                "steps are for one event, and none is given",
                "subscribe the handler with --deliver stdin --batch-size 1, which sets THREAD_EVENT_ID, or give --event",
            )
        };
        self.named_event()?.map_or_else(missing, Ok)
    }

    pub fn of<'a>(&'a self, consumer: &'a ConsumerId, event: i64) -> Of<'a> {
        Of { consumer, event, claim: self.claim.as_deref() }
    }
}

/// Ends with exit 75, because the event is to sleep.
pub fn sleeps(of: Of<'_>, sleep: &Sleep) -> Result<()> {
    let until = time::format(sleep.until);
    let what = match (sleep.awaits, sleep.is_endless(Utc::now())) {
        (true, true) => format!("event {} sleeps until another event comes", of.event),
        (true, false) => format!("event {} sleeps until another event comes, or until {until}", of.event),
        (false, _) => format!("event {} sleeps until {until}", of.event),
    };
    output::note(format_args!("{what}; end this run now, as by set -e (exit {NOT_NOW})"));
    Err(Failure::said(NOT_NOW as u8))
}

impl Step {
    /// Whether it is neither --list nor --forget.
    pub fn runs_a_command(&self) -> bool {
        !self.list && self.forget.is_none()
    }

    pub fn run(mut self, globals: &Globals) -> Result<()> {
        if self.list {
            return self.list(globals);
        }
        if let Some(name) = &self.forget {
            let (consumer, event) = (self.of.consumer()?, self.of.event()?);
            let mut queue = globals.open()?;
            signals::defer();
            return Ok(steps::forget(&mut queue, self.of.of(&consumer, event), name)?);
        }
        let Some(name) = self.name.take() else {
            return usage("no name given", "name the step, as in `thread step charge -- ./charge.sh`");
        };
        if self.words.is_empty() {
            return usage("no command given", format_args!("give it after --: thread step {name} -- CMD"));
        }
        let (consumer, event) = (self.of.consumer()?, self.of.event()?);
        let of = self.of.of(&consumer, event);
        let mut queue = globals.open()?;
        let words: Vec<&[u8]> = self.words.iter().map(|word| word.as_bytes()).collect();
        let step = match steps::begin(&mut queue, of, &of.step(&name, Kind::Step, &words))? {
            Begun::Done(result) => return output::bytes(&result).map(drop),
            Begun::Asleep(sleep) => return sleeps(of, &sleep),
            Begun::Run(step) => step,
        };
        let location = queue.location().clone();
        // It may run for long.
        drop(queue);
        let (status, printed) = run(&self.words, &step.key)?;
        if let Some(code) = failure_of(status) {
            // What it has printed is for people, who look for the reason.
            output::bytes(&printed)?;
            return Err(Failure::said(code));
        }
        if printed.len() > LONGEST_RESULT {
            return failed(
                Code::TooLarge,
                format_args!(
                    "the step '{name}' has printed more than 1 MiB; it is not stored, and will run again"
                ),
                "let it write to a file, and print its name",
            );
        }
        signals::defer();
        let mut queue = Queue::open(location)?;
        match steps::finish(&mut queue, of, &step, printed.clone())? {
            None => output::bytes(&printed).map(drop),
            Some(sleep) => sleeps(of, &sleep),
        }
    }

    fn list(&self, globals: &Globals) -> Result<()> {
        let (consumer, event) = (self.of.named_consumer()?, self.of.named_event()?);
        let mut queue = globals.open()?;
        let of = StepsOf { consumer: consumer.as_ref(), event, ..StepsOf::default() };
        let all = queue.store.steps(of)?;
        let now = Utc::now();
        let lines = all.iter().map(|step| match globals.json {
            true => format!("{}\n", as_json(step)),
            false => {
                let Stored { consumer, event_id, name, kind, words, .. } = step;
                let (kind, state) = (kind.as_str(), step.state(now));
                let at = step.ended.or(step.until).unwrap_or(step.since);
                format!(
                    "{} {event_id} {} {kind} {state} {} {}\n",
                    output::plain(consumer.as_str()),
                    output::plain(name),
                    time::format(at),
                    output::plain(words)
                )
            }
        });
        output::bytes(lines.collect::<String>().as_bytes()).map(drop)
    }
}

/// A step as an object.
fn as_json(step: &Stored) -> Value {
    let mut object = json!({
        "consumer_id": step.consumer.as_str(),
        "event_id": step.event_id,
        "name": step.name,
        "kind": step.kind.as_str(),
        "state": step.state(Utc::now()),
        "words": step.words,
        "began": time::format(step.since),
        "ended": step.ended.map(time::format),
        "until": step.until.map(time::format),
    });
    if step.kind == Kind::Step {
        object["key"] = json!(step.key);
    }
    object
}

/// The exit code of a command that has failed, as a shell has it.
fn failure_of(status: ExitStatus) -> Option<u8> {
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    (!status.success()).then(|| u8::try_from(code).unwrap_or(1))
}

/// Runs the command. Returns how it has ended, and what it has printed, at most a byte more than is kept.
fn run(words: &[OsString], key: &str) -> Result<(ExitStatus, Vec<u8>)> {
    let shown = words[0].to_string_lossy();
    let (mut output, end) = io::pipe().with_hint("cannot make a pipe", "close some files")?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env("THREAD_STEP_KEY", key).stdout(end);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(cause) => {
            // As a shell says it.
            let is_missing = cause.kind() == io::ErrorKind::NotFound;
            output::to_stderr(&output::failure_line(
                &Failure::failed(
                    format_args!("cannot run {}: {cause}", output::plain(&shown)),
                    "check the command",
                ),
                false,
            ));
            return Err(Failure::said(if is_missing { 127 } else { 126 }));
        }
    };
    // Only the command's own copies of its end are left.
    drop(command);
    read_until_end(&mut child, &mut output).with_hint(format_args!("cannot read from {shown}"), "try again")
}

/// Reads what a command prints until it ends, not waiting for processes that it leaves in the background.
fn read_until_end(child: &mut Child, output: &mut PipeReader) -> io::Result<(ExitStatus, Vec<u8>)> {
    rustix::io::ioctl_fionbio(&*output, true)?;
    let mut printed = Vec::new();
    loop {
        let status = child.try_wait()?;
        // Whatever it has printed before its end is there.
        let is_closed = read_all(output, &mut printed)?;
        if let Some(status) = status {
            return Ok((status, printed));
        }
        if is_closed {
            return Ok((child.wait()?, printed));
        }
        let timeout = Timespec::try_from(LOOK_EVERY).ok();
        poll(&mut [PollFd::new(&*output, PollFlags::IN)], timeout.as_ref()).ok();
    }
}

/// Reads what is there. Returns whether nothing can follow.
fn read_all(output: &mut PipeReader, printed: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 64 * 1024];
    loop {
        match output.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(length) => {
                // The rest is read, so that the command can end, and dropped.
                let room = (LONGEST_RESULT + 1).saturating_sub(printed.len());
                printed.extend_from_slice(&buffer[..length.min(room)]);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}
