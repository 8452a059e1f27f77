//! The webhooks that `--hook` lets in: who sends them, by what they are recognized, and where they go.

pub mod signature;

use thread::failure::Failure;
use tokio::sync::Semaphore;

use self::signature::{Secret, Sender};
use crate::inspect::threads::Threads;

/// How many bodies are read at a time.
const AT_ONCE: usize = 32;

/// A webhook that `--hook` lets in: `NAME=SENDER:SECRET_ENV:THREAD`.
#[derive(Debug, Clone)]
pub struct HookOption {
    name: String,
    sender: Sender,
    /// The environment variable with the secret.
    pub variable: String,
    /// One of `--thread`.
    thread: String,
}

impl HookOption {
    /// Reads the option's value.
    ///
    /// # Errors
    ///
    /// Why it is none.
    pub fn parse(text: &str) -> Result<HookOption, String> {
        let form = || "not of the form NAME=github:SECRET_ENV:THREAD".to_owned();
        let (name, rest) = text.split_once('=').ok_or_else(form)?;
        let [sender, variable, thread] = rest.splitn(3, ':').collect::<Vec<_>>()[..] else {
            return Err(form());
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || !name.chars().all(is_plain) {
            return Err(format!(
                "the name '{name}' has other characters than letters, digits, '.', '_' and '-'"
            ));
        }
        let sender = Sender::parse(sender)
            .ok_or_else(|| format!("the sender '{sender}' is not one of github, stripe and standard"))?;
        if variable.is_empty() || thread.is_empty() {
            return Err(form());
        }
        let [name, variable, thread] = [name, variable, thread].map(str::to_owned);
        Ok(HookOption { name, sender, variable, thread })
    }
}

/// A sender, and the thread that its webhooks become events of.
#[derive(Debug)]
pub struct Hook {
    pub name: String,
    pub sender: Sender,
    pub secret: Secret,
    /// Its id in the list of threads.
    pub thread: String,
}

/// The webhooks that are let in.
pub struct Hooks {
    all: Vec<Hook>,
    /// A permit for each body that is being read.
    pub reading: Semaphore,
}

impl Hooks {
    /// The webhooks of the options. `secret` gives the value of an environment variable.
    ///
    /// # Errors
    ///
    /// A secret is missing, or none; a thread is none of `--thread`; a name is used twice.
    pub fn new(
        options: &[HookOption],
        threads: &Threads,
        secret: impl Fn(&str) -> Option<String>,
    ) -> Result<Hooks, Failure> {
        let mut all: Vec<Hook> = Vec::new();
        for HookOption { name, sender, variable, thread } in options.iter().cloned() {
            let wrong = |what: String, fix: &str| Err(Failure::usage(format!("--hook {name}: {what}"), fix));
            if all.iter().any(|other| other.name == name) {
                return wrong("the name is given twice".to_owned(), "give each a name of its own");
            }
            if !threads.named().iter().any(|target| target.id.to_string() == thread) {
                let what = format!("there is no thread '{thread}' here");
                return wrong(what, "name one of --thread, such as --thread inbox=DIR");
            }
            let Some(text) = secret(&variable) else {
                return wrong(format!("{variable} is not set"), "set it to the secret that the sender shows");
            };
            match Secret::new(sender, &text) {
                Ok(secret) => all.push(Hook { name, sender, secret, thread }),
                Err(why) => {
                    return wrong(format!("the secret in {variable} {why}"), "set it as the sender shows it");
                }
            }
        }
        Ok(Hooks { all, reading: Semaphore::new(AT_ONCE) })
    }

    /// The webhook of that name.
    pub fn find(&self, name: &str) -> Option<&Hook> {
        self.all.iter().find(|hook| hook.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_names_a_sender_a_secret_and_a_thread() {
        let hook = HookOption::parse("ci=github:CI_SECRET:inbox").unwrap();
        assert_eq!((&*hook.name, &*hook.variable, &*hook.thread), ("ci", "CI_SECRET", "inbox"));
        for bad in [
            "",
            "ci",
            "ci=github",
            "ci=github:X",
            "ci=github::t",
            "ci=github:X:",
            "=github:X:t",
            "a/b=github:X:t",
            "ci=gitlab:X:t",
        ] {
            assert!(HookOption::parse(bad).is_err(), "{bad}");
        }
    }
}
