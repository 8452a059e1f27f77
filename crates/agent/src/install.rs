//! Installing an agent: the subscription that starts `thread-agent`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use thread::files::log::{Level, Quoted};
use thread::model::run::Options;
use thread::model::subscription::{ConsumerId, NewSubscription};
use thread::run::Launcher;
use thread::run::control::notify_supervisors;
use thread::{Error, Queue, Result};

use crate::launcher;
use crate::settings::ProtocolArg;
use crate::store::keep_from;

/// The events that start an agent: messages from others, and cancel requests.
pub const FILTER: &str = "type = 'message' AND source <> 'self' OR subtype = 'cancel'";

/// The consumer's backoff and limit, which apply to the adapter itself: it retries the agent program on its
/// own.
const BACKOFF: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(15)];
const MAX_ATTEMPTS: u32 = 20;

/// An agent to install.
#[derive(Debug, Clone)]
pub struct Install {
    pub consumer: ConsumerId,
    /// Options of `thread-agent`, such as `--protocol`, `acp`.
    pub options: Vec<String>,
    /// Variables for the program, set in the command line; those of `env_file` take precedence.
    pub environment: Vec<(String, String)>,
    /// A file of `NAME=value` lines that the adapter reads whenever it starts; absolute.
    pub env_file: Option<PathBuf>,
    /// The agent program and its arguments; empty if the options name a model instead.
    pub program: Vec<String>,
    /// The working directory; absolute.
    pub cwd: PathBuf,
    /// Events after this id are pending; `None` keeps the stored cursor, or starts at the first event.
    pub from: Option<i64>,
    /// Takes the place of the agent that the consumer has, if it has one: the cursor stays, and a run under way
    /// continues to its end.
    pub replace: bool,
}

impl Install {
    /// An agent with the default consumer name and starting point, without options.
    pub fn new(program: Vec<String>, cwd: PathBuf) -> Install {
        Install {
            consumer: ConsumerId::stored(thread_conversation::CONSUMER),
            options: Vec::new(),
            environment: Vec::new(),
            env_file: None,
            program,
            cwd,
            from: None,
            replace: false,
        }
    }

    /// How the adapter talks to it; `None` if the options do not say, which stands for the default.
    pub fn protocol(&self) -> Option<ProtocolArg> {
        let mut pairs = self.options.windows(2);
        let pair = pairs.find(|pair| pair[0] == "--protocol")?;
        ProtocolArg::from_str(&pair[1], false).ok()
    }

    /// Returns the handler's command line: the adapter with the current `PATH`, so that a later dispatch, for
    /// example by cron, starts the same programs.
    ///
    /// # Errors
    ///
    /// `thread-agent` is neither in this program's directory nor on `PATH`; an argument contains a NUL character.
    pub fn handler(&self) -> Result<String> {
        let adapter = launcher::program("thread-agent").map_err(Error::Other)?;
        let mut words = vec![adapter.to_string_lossy().into_owned()];
        words.extend(self.options.iter().cloned());
        if let Some(file) = &self.env_file {
            words.extend(["--env-file".to_owned(), file.to_string_lossy().into_owned()]);
        }
        if !self.program.is_empty() {
            words.push("--".to_owned());
            words.extend(self.program.iter().cloned());
        }
        let words: Vec<String> = words.iter().map(|word| quoted(word)).collect::<Result<_>>()?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut line = format!("PATH={}", quoted(&path.to_string_lossy())?);
        for (name, value) in &self.environment {
            line.push_str(&format!(" {name}={}", quoted(value)?));
        }
        Ok(format!("{line} exec {}", words.join(" ")))
    }
}

/// A word of a command line, as the shell reads it.
///
/// # Errors
///
/// It has a NUL character.
pub fn quoted(word: &str) -> Result<String> {
    let quoted = shlex::try_quote(word).map(|quoted| quoted.into_owned());
    quoted.map_err(|_| Error::Other("an argument of the agent has a NUL character".into()))
}

/// Subscribes the agent, and starts it if something is pending.
///
/// # Errors
///
/// [`Error::AlreadySubscribed`], unless it may replace another; those of [`Install::handler`]. A failure to start it is only logged in the
/// thread: the next push starts it.
pub fn install(queue: &mut Queue, launcher: &Launcher, install: &Install) -> Result<()> {
    let consumer = &install.consumer;
    let new = NewSubscription {
        consumer: consumer.clone(),
        handler_cmd: install.handler()?,
        filter: Some(FILTER.to_owned()),
        cwd: Some(install.cwd.clone()),
        options: Options { backoff: BACKOFF.to_vec(), max_attempts: MAX_ATTEMPTS, ..Options::default() },
        from: install.from,
        replace: install.replace,
    };
    queue.subscribe(&new)?;
    if install.protocol().is_some_and(ProtocolArg::remembers_by_thread) {
        keep_from(queue, consumer.as_str(), 1);
    } else {
        queue.set_hold(consumer.as_str(), None)?;
    }
    if new.replace {
        // Ends a wait of the one that was replaced.
        notify_supervisors(queue);
    }
    queue.log(
        Level::Info,
        format_args!("subscribe: consumer={consumer} handler_cmd={}", Quoted(&new.handler_cmd)),
    );
    if let Err(e) = thread::run::wake::wake_consumer(queue, launcher, consumer) {
        queue.log(Level::Warn, format_args!("wake: consumer={consumer} not woken: {e}"));
    }
    Ok(())
}
