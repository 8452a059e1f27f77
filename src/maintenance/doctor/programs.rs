//! Checks that the programs of handlers, and the notifier, can be run.

#![expect(clippy::disallowed_types, reason = "a shell checks whether a handler's program exists")]

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Doctor, Finding};
use crate::error::{Error, Result};
use crate::model::run::Options;
use crate::model::subscription::Subscription;
use crate::queue::Queue;
use crate::run::spawn::handler_environment;
use crate::run::{WakeBy, dispatch};

const CHECK: &str = "program";

pub fn check(doctor: &mut Doctor<'_>, queue: &mut Queue) {
    if let Err(e) = notifier(doctor).and_then(|()| handlers(doctor, queue)) {
        doctor.report(Finding::failed(CHECK, e));
    }
}

fn notifier(doctor: &mut Doctor<'_>) -> Result<()> {
    if doctor.files.location().backend().wakes_on_push
        && let WakeBy::Notifier { program, .. } = &doctor.launcher.waking
        && !can_run(program.as_os_str(), None, None)?
    {
        let problem = format!("the notifier {} cannot be run", program.display());
        let advice = "set THREAD_NOTIFIER to a program that can be run, to `embedded` or to `off`";
        doctor.report(Finding::error(CHECK, problem).advise(advice));
    }
    Ok(())
}

fn handlers(doctor: &mut Doctor<'_>, queue: &mut Queue) -> Result<()> {
    // Handlers run as the owner, who may be able to run programs that this user cannot.
    if !queue.files.is_owner() {
        return Ok(());
    }
    for subscription in queue.store.subscriptions()? {
        // If the working directory is gone, that is reported already, and the program may be fine.
        if dispatch::check(&queue.files, &subscription).is_ok()
            && let Some(word) = program_of(&subscription)
            && let dir = subscription.cwd.as_deref().map(|cwd| queue.files.resolve(cwd))
            && !can_run(word.as_ref(), dir.as_deref(), Some(&subscription.options))?
        {
            let consumer = &subscription.consumer;
            let problem =
                format!("the handler of '{consumer}' begins with '{word}', which the shell cannot run");
            let advice =
                "install it, or `thread unsubscribe` it, then `thread subscribe` it with another handler";
            doctor.report_lack(Finding::error(CHECK, problem).advise(advice));
        }
    }
    Ok(())
}

/// The first word of a handler, if it needs no shell expansion and does not depend on the directory in which
/// a dispatcher runs.
fn program_of(subscription: &Subscription) -> Option<&str> {
    let word = subscription.handler_cmd.split_whitespace().next()?;
    let is_plain = word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_./-".contains(&b));
    let has_place = subscription.cwd.is_some() || !word.contains('/') || word.starts_with('/');
    (is_plain && has_place).then_some(word)
}

/// Whether a shell, run in that directory and with a handler's environment, can run `word`. Only the shell
/// knows its builtins.
fn can_run(word: &OsStr, dir: Option<&Path>, options: Option<&Options>) -> Result<bool> {
    // `command -v` of some shells accepts a path to a file that is not executable.
    const SCRIPT: &str = r#"command -v -- "$1" && case $1 in */*) [ -f "$1" ] && [ -x "$1" ];; esac"#;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", SCRIPT, "sh"]).arg(word);
    command.current_dir(dir.unwrap_or(Path::new(".")));
    if let Some(options) = options {
        command.env_clear().envs(handler_environment(options));
    }
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let status = status.map_err(|source| Error::Spawn { what: "/bin/sh", source })?;
    // A shell that was killed has not given an answer.
    Ok(status.success() || status.code().is_none())
}
