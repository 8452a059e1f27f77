//! The agent of the sessions that are made here, and how runs are started.

use std::path::PathBuf;

use thread::Queue;
use thread::model::subscription::ConsumerId;
use thread::run::{Launcher, WakeBy};
use thread_agent::install::{CONSUMER, Install};

use crate::error::{Result, StartError};

/// What sessions that are made here are given.
#[derive(Debug, Clone)]
pub struct Agent {
    install: Install,
    launcher: Launcher,
}

impl Agent {
    /// # Errors
    ///
    /// The command is no command line; the adapter is not installed.
    pub fn new(
        command: &str,
        protocol: &str,
        cwd: PathBuf,
        launcher: &Launcher,
    ) -> Result<Agent, StartError> {
        let program = shlex::split(command).filter(|words| !words.is_empty()).ok_or_else(|| {
            StartError::usage(
                format!("'{command}' is not a command"),
                "give --agent a program and its arguments",
            )
        })?;
        let mut install = Install::new(program, cwd);
        install.options = vec!["--protocol".into(), protocol.to_owned()];
        install.handler().map_err(|e| {
            StartError::failed(e.to_string(), "install thread-agent beside thread-serve, or on PATH")
        })?;
        Ok(Agent { install, launcher: launcher.clone() })
    }

    /// Subscribes it in a thread.
    ///
    /// # Errors
    ///
    /// Those of the thread.
    pub fn install(&self, queue: &mut Queue) -> Result<()> {
        Ok(thread_agent::install(queue, &self.launcher, &self.install)?)
    }

    /// Puts it in the place of another one, whose run under way goes on to its end.
    ///
    /// # Errors
    ///
    /// Those of the thread.
    pub fn replace(&self, queue: &mut Queue) -> Result<()> {
        let consumer = consumer();
        let handler = self.install.handler()?;
        match queue.store().subscription(&consumer)? {
            Some(subscription) if subscription.handler_cmd == handler => return Ok(()),
            Some(_) => drop(queue.store().unsubscribe(&consumer)?),
            None => {}
        }
        match self.install(queue) {
            // Another gateway was quicker.
            Err(crate::error::RequestError::Thread(thread::Error::AlreadySubscribed(_))) => Ok(()),
            done => done,
        }
    }
}

/// The name under which a session's agent is subscribed.
pub fn consumer() -> ConsumerId {
    ConsumerId::stored(CONSUMER)
}

/// How a push of the gateway starts handlers: itself, through the program `thread`.
///
/// # Errors
///
/// The program `thread` is not installed.
pub fn launcher() -> Result<Launcher, StartError> {
    let program = thread_agent::launcher::program("thread")
        .map_err(|e| StartError::failed(e, "install thread beside thread-serve, or on PATH"))?;
    Ok(Launcher { program, waking: WakeBy::Dispatch })
}
