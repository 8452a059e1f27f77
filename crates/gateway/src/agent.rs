//! The agent of new sessions, and how runs are started.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use thread::Queue;
use thread::failure::Failure;
use thread::model::subscription::ConsumerId;
use thread::run::launcher::is_executable;
use thread::run::{Launcher, WakeBy};
use thread_agent::install::Install;
use thread_agent::launcher;
use thread_agent::settings::{Settings, Stay, read_env_file};
use thread_conversation::CONSUMER;
use thread_sessions::Result;

/// The agent that new sessions get.
#[derive(Debug, Clone)]
pub struct Agent {
    /// Its name, if it can be told from the command.
    pub name: Option<String>,
    install: Install,
    launcher: Launcher,
}

impl Agent {
    /// Builds an agent from a shell command, as it would be typed in `cwd`, or from a model: `openai:URL#MODEL`.
    ///
    /// # Errors
    ///
    /// The model's URL or key is missing; the command cannot be run; the file of `--env-file` cannot be used; the adapter is not installed.
    pub fn new(
        line: &str,
        settings: &Settings,
        stay: &Stay,
        cwd: PathBuf,
        launcher: &Launcher,
    ) -> Result<Agent, Failure> {
        let model = settings.with_model(line)?;
        let settings = model.clone().unwrap_or_else(|| settings.clone()).located(&cwd)?;
        let env_file = settings.env_file.as_ref().map(|file| cwd.join(file));
        if let Some(file) = &env_file {
            read_env_file(file).map_err(|e| Failure::usage(e.what, e.hint))?;
        }
        let options = [settings.words(), stay.words()].concat();
        let words = if model.is_some() { Vec::new() } else { words(line, &cwd)? };
        let name = match model.and_then(|model| model.model) {
            Some(model) => name_of(&[model.split(':').next().unwrap_or_default().to_owned()]),
            None => name_of(&words),
        };
        let install = Install { options, env_file, ..Install::new(words, cwd) };
        install.handler().map_err(|e| {
            Failure::failed(e.to_string(), "install thread-agent next to thread-serve, or on PATH")
        })?;
        Ok(Agent { name, install, launcher: launcher.clone() })
    }

    /// Subscribes the agent in a thread whose first `said` events are past for it.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn install(&self, queue: &mut Queue, said: i64) -> Result<()> {
        let from = Some(said).filter(|said| *said > 0);
        Ok(thread_agent::install(queue, &self.launcher, &Install { from, ..self.install.clone() })?)
    }

    /// Makes this the agent of a thread. A run of another agent continues to its end.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn replace(&self, queue: &mut Queue) -> Result<()> {
        let consumer = consumer();
        let handler = self.install.handler()?;
        match queue.find_subscription(&consumer)? {
            Some(subscription) if subscription.handler_cmd == handler => return Ok(()),
            Some(_) => drop(queue.unsubscribe(&consumer)?),
            None => {}
        }
        match self.install(queue, 0) {
            // Another gateway has just done the same.
            Err(thread_sessions::RequestError::Thread(thread::Error::AlreadySubscribed(_))) => Ok(()),
            done => done,
        }
    }
}

/// Splits a shell command into program and arguments. A plain command is started without a shell, so that a
/// missing program is noticed at startup; everything else is left to `sh -c`.
fn words(line: &str, cwd: &Path) -> Result<Vec<String>, Failure> {
    const SHELLS_OWN: [char; 14] = ['|', '&', ';', '<', '>', '(', ')', '$', '`', '*', '?', '[', '~', '#'];
    let usage = |what: String| Failure::usage(what, "give --agent a command that sh can run: 'llm -m local'");
    let assigns =
        line.split_whitespace().next().ok_or_else(|| usage("--agent is empty".into()))?.contains('=');
    if assigns || line.contains(SHELLS_OWN) || line.contains('\n') {
        let checked = Command::new("/bin/sh").args(["-n", "-c", line]).stdin(Stdio::null()).output();
        return match checked {
            Ok(output) if !output.status.success() => {
                let why = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
                Err(usage(format!("--agent is not a valid shell command: {why}")))
            }
            // If there is no shell, the adapter will report it.
            _ => Ok(vec!["sh".into(), "-c".into(), line.into()]),
        };
    }
    let words = shlex::split(line).filter(|words| !words.is_empty());
    let words = words.ok_or_else(|| {
        usage(format!("--agent is not a valid shell command: a quote is not closed in {line}"))
    })?;
    let program = &words[0];
    let found = match program.contains('/') {
        true => is_executable(&cwd.join(program)),
        false => launcher::on_path(program).is_some(),
    };
    if !found {
        return Err(Failure::failed(
            format!("there is no program '{program}' for --agent"),
            "install it, or give its whole path",
        ));
    }
    Ok(words)
}

/// What to call an agent: `claude-code-acp` for `npx -y @zed-industries/claude-code-acp@latest`. `None` if the
/// command gives none.
fn name_of(words: &[String]) -> Option<String> {
    const STARTERS: [&str; 7] = ["node", "npx", "python", "python3", "uvx", "bun", "bunx"];
    if words.iter().any(|word| word == "-c") {
        return None;
    }
    let mut names = words.iter().filter(|word| !word.starts_with('-')).map(|word| word.rsplit('/').next());
    let name = names.find_map(|name| name.filter(|name| !STARTERS.contains(name)))?.split('@').next()?;
    let name = [".py", ".mjs", ".js", ".sh"].iter().find_map(|kind| name.strip_suffix(kind)).unwrap_or(name);
    let is_plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    is_plain.then(|| name.to_owned())
}

/// The consumer id of a session's agent.
pub fn consumer() -> ConsumerId {
    ConsumerId::stored(CONSUMER)
}

/// How handlers are started after a push: by the gateway itself, with the program `thread`.
///
/// # Errors
///
/// The program `thread` is not installed.
pub fn launcher() -> Result<Launcher, Failure> {
    let program = thread_agent::launcher::program("thread")
        .map_err(|e| Failure::failed(e, "install thread next to thread-serve, or on PATH"))?;
    Ok(Launcher { program, waking: WakeBy::Dispatch })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_called_after_its_program() {
        let of = |line: &str| name_of(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(of("npx -y @zed-industries/claude-code-acp@latest").as_deref(), Some("claude-code-acp"));
        assert_eq!(of("opencode acp").as_deref(), Some("opencode"));
        assert_eq!(of("/opt/venv/bin/python /srv/helper.py --acp").as_deref(), Some("helper"));
        assert_eq!((of("sh -c x"), of("'a\"b'"), of("node")), (None, None, None));
    }
}
