//! Asking an external notifier to schedule a dispatch.
//!
//! A notifier is a program that keeps commands and runs them later. It is asked once per push,
//! `notifier task add --author <source> --task-id dispatch-<slug> --command "thread dispatch …"`,
//! and answers with its exit code: 0, queued; 1, a task of that name is queued already.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sha1::{Digest, Sha1};
use wait_timeout::ChildExt;

use crate::spawn;
use crate::spawn::quoted;

/// How long a notifier may take to answer before it is killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest author, in bytes: notifiers make a file name of it.
const MAX_AUTHOR: usize = 100;

/// Who schedules dispatches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// This notifier.
    Program(PathBuf),
    /// Nobody else: this program dispatches itself.
    Embedded,
    /// Somebody runs `thread dispatch`.
    Off,
}

/// What a notifier said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Queued,
    AlreadyQueued,
    /// Neither; why, for the log.
    Failed(String),
}

/// The choice made by `THREAD_NOTIFIER`: a program, `embedded`, `off`, or (unset, empty or `auto`)
/// `notifier` where `PATH` has it, else embedded.
pub fn choice() -> Choice {
    match std::env::var_os("THREAD_NOTIFIER") {
        Some(value) if value == "embedded" => Choice::Embedded,
        Some(value) if value == "off" => Choice::Off,
        Some(value) if !value.is_empty() && value != "auto" => Choice::Program(value.into()),
        _ => spawn::on_path("notifier").map_or(Choice::Embedded, Choice::Program),
    }
}

/// Asks `program` to run a dispatch of the thread in `dir`, on behalf of `source`.
pub fn ask(program: &Path, dir: &Path, source: &str) -> Answer {
    let mut command = Command::new(program);
    command.args(["task", "add", "--author", &author(source)]);
    command.args(["--task-id", &format!("dispatch-{}", slug(&dir.to_string_lossy()))]);
    command.args(["--command", &dispatch_command(dir)]);
    spawn::hear_of_children();
    let mut child = match spawn::detached(&mut command, None).spawn() {
        Ok(child) => child,
        Err(e) => return Answer::Failed(format!("cannot start {}: {e}", program.display())),
    };
    match child.wait_timeout(PATIENCE) {
        Ok(Some(status)) => match status.code() {
            Some(0) => Answer::Queued,
            Some(1) => Answer::AlreadyQueued,
            _ => Answer::Failed(format!("{} ended with {status}", program.display())),
        },
        waited => {
            // It leads a process group of its own; whatever it started goes with it.
            if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
                // Nothing is left to end when this fails.
                rustix::process::kill_process_group(group, rustix::process::Signal::KILL).ok();
            }
            drop(child.kill());
            drop(child.wait());
            match waited {
                Err(e) => Answer::Failed(format!("cannot wait for {}: {e}", program.display())),
                Ok(_) => Answer::Failed(format!(
                    "{} gave no answer within {} s and was killed",
                    program.display(),
                    PATIENCE.as_secs()
                )),
            }
        }
    }
}

/// What the notifier is to run. `thread`, where that is this program, else its absolute path.
fn dispatch_command(dir: &Path) -> String {
    format!("{} dispatch --thread {}", program_word(), quoted(dir))
}

fn program_word() -> String {
    let same_file = |a: &Path, b: &Path| match (std::fs::metadata(a), std::fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    };
    match (spawn::on_path("thread"), std::env::current_exe()) {
        (Some(found), Ok(own)) if same_file(&found, &own) => "thread".to_owned(),
        (_, Ok(own)) => quoted(&own),
        (_, Err(_)) => "thread".to_owned(),
    }
}

/// A name for the thread at `path` that is fit for a file name: every character but letters and
/// digits becomes `-`; over 40 characters, the first 32 with a digest of the path.
pub fn slug(path: &str) -> String {
    let plain: String = path.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let plain = plain.trim_matches('-');
    if plain.len() <= 40 {
        return plain.to_owned();
    }
    let digest = Sha1::digest(path.as_bytes());
    format!("{}-{:02x}{:02x}{:02x}", &plain[..32], digest[0], digest[1], digest[2])
}

/// The source in a form that is fit for a file name.
pub fn author(source: &str) -> String {
    let mut author = source.replace('/', "-");
    if author.starts_with(['-', '.']) {
        author.replace_range(..1, "_");
    }
    let mut end = author.len().min(MAX_AUTHOR);
    while !author.is_char_boundary(end) {
        end -= 1;
    }
    author.truncate(end);
    author
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slug_is_short_and_plain() {
        assert_eq!(slug("/home/user/my-project/thread"), "home-user-my-project-thread");
        assert_eq!(slug("/tmp/a b;$(c)'"), "tmp-a-b---c");
        let long = format!("/{}", "x".repeat(60));
        let short = slug(&long);
        assert_eq!(short.len(), 39);
        assert!(short.starts_with(&"x".repeat(32)));
        assert_ne!(short, slug(&format!("/{}", "x".repeat(61))));
        assert_eq!(slug(&format!("/{}", "y".repeat(40))), "y".repeat(40));
    }

    #[test]
    fn the_author_is_fit_for_a_file_name() {
        assert_eq!(author("external:a:b:group:g/t:p"), "external:a:b:group:g-t:p");
        assert_eq!(author("/etc"), "_etc");
        assert_eq!(author("..x"), "_.x");
        assert_eq!(author("-rf"), "_rf");
        assert_eq!(author(&"é".repeat(80)).len(), 100);
        assert!(author(&format!("a{}", "é".repeat(80))).len() <= 100);
    }
}
