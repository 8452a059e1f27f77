//! Asking an external notifier to schedule a dispatch.
//!
//! A notifier is a program that stores commands and runs them later. It is called once per push as
//! `notifier task add --author <source> --task-id dispatch-<slug> --command "thread dispatch …"`,
//! and answers with its exit code: 0, queued; 1, a task of that name is already queued. Neither
//! answer is relied on: see `wake`.

use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use std::{io, thread};

use rustix::process::{Pid, Signal, kill_process_group};
use sha1::{Digest, Sha1};

use super::spawn;
use crate::model::exponential_backoff::ExponentialBackoff;
use crate::model::location::Location;

/// How long a notifier may take to answer before it is killed.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Longest author, in bytes: notifiers use it as a file name.
const MAX_AUTHOR: usize = 100;

/// A notifier's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Queued,
    AlreadyQueued,
    /// Neither; the reason, for the log.
    Failed(String),
}

/// Asks `program` to run a dispatch of the thread at `location`, on behalf of `source`. `word` is how a
/// shell finds the program `thread`.
#[expect(clippy::disallowed_methods, reason = "ends a notifier that hangs")]
pub fn ask(program: &Path, word: &str, location: &Location, source: &str) -> Answer {
    let Some(path) = location.as_os_str().to_str() else {
        return Answer::Failed("the thread's path is not UTF-8".into());
    };
    let mut command = Command::new(program);
    command.args(["task", "add", "--author", &author(source)]);
    command.args(["--task-id", &format!("dispatch-{}", slug(path))]);
    command.args(["--command", &format!("{word} dispatch --thread {}", quoted(path))]);
    let program = program.display();
    let mut child = match spawn::detached(&mut command, None).spawn() {
        Ok(child) => child,
        Err(e) => return Answer::Failed(format!("cannot start {program}: {e}")),
    };
    match wait(&mut child) {
        Ok(Some(status)) => match status.code() {
            Some(0) => Answer::Queued,
            Some(1) => Answer::AlreadyQueued,
            _ => Answer::Failed(format!("{program} ended with {status}")),
        },
        Err(e) => Answer::Failed(format!("cannot wait for {program}: {e}")),
        Ok(None) => {
            // It leads its own process group, so its children are killed too.
            // If this fails, the group is already gone.
            kill_process_group(Pid::from_child(&child), Signal::KILL).ok();
            drop(child.wait());
            let limit = ANSWER_LIMIT.as_secs();
            Answer::Failed(format!("{program} gave no answer within {limit} s and was killed"))
        }
    }
}

/// Waits for a child, for at most [`ANSWER_LIMIT`]; `None` if it is still running then. Polls, because a
/// library must not handle SIGCHLD.
fn wait(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let end = Instant::now() + ANSWER_LIMIT;
    let mut backoff = ExponentialBackoff::new(Duration::from_micros(500), Duration::from_millis(10));
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= end {
            return Ok(status);
        }
        thread::sleep(backoff.pause());
    }
}

/// A path quoted for a shell.
pub fn quoted(path: &str) -> String {
    shlex::try_quote(path).map_or_else(|_| path.to_owned(), |quoted| quoted.into_owned())
}

/// A name for the thread at `path` that can be used as a file name: each character other than ASCII letters
/// and digits becomes `-`; a name over 40 characters becomes its first 32 and a digest of the path.
pub fn slug(path: &str) -> String {
    let plain: String = path.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let plain = plain.trim_matches('-');
    if plain.len() <= 40 {
        return plain.to_owned();
    }
    let digest = Sha1::digest(path.as_bytes());
    format!("{}-{:02x}{:02x}{:02x}", &plain[..32], digest[0], digest[1], digest[2])
}

/// The source, made usable as a file name.
pub fn author(source: &str) -> String {
    let mut author = source.replace('/', "-");
    if author.starts_with(['-', '.']) {
        author.replace_range(..1, "_");
    }
    author.truncate(author.floor_char_boundary(MAX_AUTHOR));
    author
}
