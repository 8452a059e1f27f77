//! `thread agent run`, which gives a task to a sub-agent, and `thread agent _report`, the reporter.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::install::Install;
use crate::settings::Settings;
use crate::sub_agent::{self, DISPATCH_EVERY, NewSubAgent, Sub};
use clap::{Args, ValueHint};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use thread::error::Code;
use thread::model::subscription::ConsumerId;
use thread::{LOOK_EVERY, Queue};
use thread_conversation::CONSUMER;

use super::install::readable;
use super::serve::ENV_FILE;
use super::{Failure, Globals, Result, current_directory, find_launcher, open, print, variable};

/// Give a task to a sub-agent, and print its answer
///
/// The task is read from stdin. The sub-agent works on a thread of its own, in the folder `agents` of the
/// parent's thread. What it does is copied to the parent's thread, and its answer becomes the result of the
/// tool call. Exits 0 if it answered. A sub-agent cannot have sub-agents of its own.
#[derive(Args)]
#[command(
    after_help = "Example:\n  echo 'Summarise README.md' | thread agent run --name reader -- claude -p"
)]
pub struct Command {
    /// The parent's thread [default: $THREAD_DIR, or the one you are in]
    // With this id it replaces the global option --thread.
    #[arg(id = "thread", short, long = "parent", visible_alias = "thread", value_name = "PATH")]
    #[arg(value_hint = ValueHint::DirPath)]
    pub parent: Option<PathBuf>,
    /// The id of the tool call that it works for [default: a new one]
    #[arg(long, value_name = "ID")]
    call: Option<String>,
    /// The sub-agent's name: a-z, 0-9 and -
    #[arg(long, value_name = "NAME", default_value = "agent", value_parser = name)]
    name: String,
    /// Print its id at once; its answer is pushed to the parent as a message with priority later
    #[arg(long)]
    background: bool,
    #[command(flatten)]
    settings: Settings,
    /// The agent program and its arguments [default: the parent's]
    #[arg(last = true, group = "who", value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    program: Vec<String>,
}

fn name(text: &str) -> std::result::Result<String, String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    match !text.is_empty() && text.len() <= 64 && text.chars().all(fits) {
        true => Ok(text.to_owned()),
        false => Err("it must be 1 to 64 of a-z, 0-9 and -".to_owned()),
    }
}

impl Command {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let mut task = String::new();
        std::io::stdin().read_to_string(&mut task).map_err(|e| {
            Failure::usage(format_args!("cannot read the task from stdin: {e}"), "give it as UTF-8 text")
        })?;
        let mut parent = open(self.parent)?;
        let launcher = find_launcher()?;
        if sub_agent::is_sub_agent(parent.path()) {
            let hint = "do the task here, or leave it to the parent";
            return Err(Failure::failed("a sub-agent cannot have sub-agents of its own", hint));
        }
        // The environment of a persistent program names the run it was started for, not the current one.
        let persistent = variable("THREAD_AGENT").is_some_and(|protocol| protocol != "exec");
        let by_hand = || ("run_by_hand".to_owned(), 0);
        let current = sub_agent::current_run(&mut parent)?;
        let (run_id, attempt) = match variable("THREAD_RUN_ID").and_then(|id| id.into_string().ok()) {
            Some(own) if !persistent => current.filter(|(id, _)| *id == own).unwrap_or((own, 0)),
            Some(_) => current.unwrap_or_else(by_hand),
            None => by_hand(),
        };
        let cwd = current_directory()?;
        let handler = match self.program.is_empty() && self.settings.url.is_none() {
            true => handler_of_parent(&mut parent)?,
            false => {
                let file = self.settings.env_file.clone().or_else(|| variable(ENV_FILE).map(PathBuf::from));
                let settings = Settings { env_file: file, ..self.settings }.located(&cwd)?;
                let env_file =
                    settings.env_file.as_ref().map(|file| readable(&cwd.join(file))).transpose()?;
                let options = settings.words();
                Install { options, env_file, ..Install::new(self.program, cwd.clone()) }.handler()?
            }
        };
        let new = NewSubAgent {
            call_id: self.call,
            name: self.name,
            run_id,
            attempt,
            task,
            background: self.background,
            handler,
            cwd,
        };
        let sub = sub_agent::start(&mut parent, &launcher, &new)?;
        if sub.background {
            return match globals.json {
                true => print(json!({ "sub_agent": sub.id, "thread": sub.dir, "call_id": sub.call_id })),
                false => print(&sub.id),
            };
        }
        let mut queue = Queue::open(&sub.dir)?;
        let outcome = wait(&sub, &mut queue, &launcher)?;
        sub.deliver(&mut parent, &launcher, &outcome)?;
        match outcome {
            Ok(answer) => print(answer.strip_suffix('\n').unwrap_or(&answer)),
            Err(error) => Err(Failure::failed(
                format_args!("the sub-agent {} gave no answer: {error}", sub.id),
                format_args!("see `thread peek --thread {}`", sub.dir.display()),
            )),
        }
    }
}

/// Returns the command line of the parent's own agent.
fn handler_of_parent(parent: &mut Queue) -> Result<String> {
    let consumer = variable("THREAD_CONSUMER").and_then(|name| name.into_string().ok());
    let consumer = ConsumerId::stored(consumer.unwrap_or_else(|| CONSUMER.to_owned()));
    sub_agent::handler_of_parent(parent, &consumer)?.ok_or_else(|| {
        Failure::failed(
            format_args!(
                "the parent's consumer '{consumer}' is not a `thread agent` whose program could be run"
            ),
            "name a program: `thread agent run -- PROGRAM`",
        )
    })
}

/// Waits for the outcome of the sub-agent. A signal cancels it.
fn wait(
    sub: &Sub,
    queue: &mut Queue,
    launcher: &thread::run::Launcher,
) -> Result<std::result::Result<String, String>> {
    let signal = Arc::new(AtomicUsize::new(0));
    for which in [SIGHUP, SIGINT, SIGTERM] {
        let number = usize::try_from(which).unwrap_or_default();
        signal_hook::flag::register_usize(which, Arc::clone(&signal), number)
            .map_err(|e| Failure::failed(format_args!("cannot listen to signals: {e}"), "try again"))?;
    }
    let watcher = queue.watcher();
    let mut dispatched = Instant::now();
    loop {
        if let Some(outcome) = sub.ending(queue)? {
            return Ok(outcome);
        }
        let signal = signal.swap(0, Ordering::Relaxed);
        if signal != 0 {
            sub.cancel(queue, launcher, "the process that waited for it was ended")?;
            let exit = 128 + u8::try_from(signal).unwrap_or_default();
            return Err(Failure::new(
                exit,
                Code::Interrupted,
                "the sub-agent was cancelled",
                "run it again if it is still needed",
            ));
        }
        if dispatched.elapsed() >= DISPATCH_EVERY {
            thread::run::dispatch(queue, launcher)?;
            dispatched = Instant::now();
        }
        queue.files().must_be_there()?;
        watcher.wait(LOOK_EVERY, None);
    }
}

/// Runs the reporter of the sub-agent whose thread this is.
pub fn report(globals: &Globals) -> Result<()> {
    let mut queue = open(globals.thread.clone())?;
    let launcher = find_launcher()?;
    let sub = Sub::of(&mut queue)?;
    Ok(sub.report(&mut queue, &launcher)?)
}
