//! Programs that are to be run: those that handlers begin with, and the notifier.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{Doctor, Finding};
use crate::dispatch;
use crate::notifier::{self, Choice};
use crate::spawn;
use crate::spawn::quoted;
use crate::subscription::Subscription;
use crate::thread::Thread;

const CHECK: &str = "program";

/// What the shell does itself, and what begins a compound command.
const BUILTINS: &[&str] = &[
    ".", ":", "alias", "bg", "break", "case", "cd", "command", "continue", "eval", "exec", "exit", "export",
    "false", "fg", "for", "function", "getopts", "hash", "if", "jobs", "kill", "let", "local", "printf",
    "pwd", "read", "readonly", "return", "select", "set", "shift", "source", "test", "time", "times", "trap",
    "true", "type", "typeset", "ulimit", "umask", "unalias", "unset", "until", "wait", "while", "echo", "[[",
    "[",
];

pub fn check(doctor: &mut Doctor, thread: &Thread) {
    notifier(doctor);
    // Handlers run as the owner, who may be able to run what others cannot.
    if !thread.files.is_owner() {
        return;
    }
    // Trouble with the table is told by the check of the consumers.
    for subscription in thread.store.subscriptions().unwrap_or_default() {
        // Where its directory is gone, that is told, and its program need not be missing.
        if dispatch::defect(&subscription).is_none() {
            handler(doctor, &subscription);
        }
    }
}

fn handler(doctor: &mut Doctor, subscription: &Subscription) {
    let consumer = &subscription.consumer;
    let word = first_word(&subscription.handler_cmd);
    let missing = word.filter(|word| !can_be_run(word, subscription));
    if let Some(word) = missing {
        let place = if word.contains('/') { "is not there or cannot be run" } else { "is not on PATH" };
        let problem = format!("the handler of '{consumer}' begins with '{word}', which {place}");
        let fix = "install it, or `thread unsubscribe` it, then `thread subscribe` it with another handler";
        doctor.tell(Finding::error(CHECK, problem).instead(fix));
    } else if speaks_of_thread(&subscription.handler_cmd) && spawn::on_path("thread").is_none() {
        let problem = format!("the handler of '{consumer}' speaks of `thread`, which is not on PATH");
        let fix = "add its directory to the PATH of whoever pushes";
        doctor.tell(Finding::warning(CHECK, problem).instead(fix));
    }
}

/// Whether a program is there, as the handler would look for it.
fn can_be_run(word: &str, subscription: &Subscription) -> bool {
    if !word.contains('/') {
        return spawn::on_path(word).is_some();
    }
    match &subscription.cwd {
        Some(cwd) => spawn::is_executable(&cwd.join(word)),
        // It runs wherever the next dispatcher happens to be.
        None => !word.starts_with('/') || spawn::is_executable(Path::new(word)),
    }
}

fn speaks_of_thread(command: &str) -> bool {
    command.split(|c: char| !(c.is_alphanumeric() || "_-./".contains(c))).any(|word| word == "thread")
}

/// The program that a command begins with, where that can be told without being a shell.
fn first_word(command: &str) -> Option<String> {
    let word = shlex::split(command)?.into_iter().next()?;
    let is_plain = !word.is_empty() && !word.contains(|c: char| "$`\\*?[]{}~=;&|<>()!#\n\"'".contains(c));
    (is_plain && !BUILTINS.contains(&word.as_str())).then_some(word)
}

fn notifier(doctor: &mut Doctor) {
    let fix = "set THREAD_NOTIFIER to a program that can be run, to `embedded` or to `off`";
    if let Choice::Program(program) = notifier::choice() {
        let found = match program.to_str() {
            Some(name) if !name.contains('/') => spawn::on_path(name).is_some(),
            _ => spawn::is_executable(&program),
        };
        if !found {
            let problem = format!("the notifier {} cannot be run", program.display());
            doctor.tell(Finding::error(CHECK, problem).instead(fix));
        }
    } else if let Some(path) = unusable_notifier() {
        let problem =
            format!("{} is on PATH but cannot be run, so pushes dispatch themselves", path.display());
        let fix = format!("`chmod +x {}`, or remove it", quoted(&path));
        doctor.tell(Finding::warning(CHECK, problem).instead(fix));
    }
}

/// A file on `PATH` that would be the notifier if it could be run.
fn unusable_notifier() -> Option<PathBuf> {
    let asked = std::env::var_os("THREAD_NOTIFIER").is_none_or(|value| value.is_empty() || value == "auto");
    let is_blunt =
        |path: &Path| path.metadata().is_ok_and(|f| f.is_file() && f.permissions().mode() & 0o111 == 0);
    let path = std::env::var_os("PATH").filter(|_| asked)?;
    std::env::split_paths(&path).map(|dir| dir.join("notifier")).find(|path| is_blunt(path))
}

#[cfg(test)]
mod tests {
    use super::first_word;

    #[test]
    fn the_first_word_is_told_only_where_it_is_plain() {
        for (command, word) in [
            ("agent run", "agent"),
            ("  ./agent.sh | tee log", "./agent.sh"),
            ("'/opt/my agent/run' --once", "/opt/my agent/run"),
            ("thread pop --resume | sh x.sh", "thread"),
        ] {
            assert_eq!(first_word(command).as_deref(), Some(word), "{command}");
        }
        for command in [
            "",
            "# nothing",
            "A=1 agent",
            "$AGENT run",
            "~/agent",
            "cd x && agent",
            "(agent)",
            "if true; then a; fi",
            "agent; other",
            "! agent",
            "'unbalanced",
            "{ agent; }",
            ": ok",
            "exec agent",
            "*",
            "agent>log",
        ] {
            assert_eq!(first_word(command), None, "{command}");
        }
    }
}
