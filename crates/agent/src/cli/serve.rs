//! `thread agent -- PROGRAM`: the adapter itself, as the handler of a consumer.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use thread::model::duration;
use thread::model::subscription::ConsumerId;
use thread_agent::adapter::{Adapter, Options, Permit};
use thread_agent::protocol::{Acp, Exec, Ndjson, Protocol};

use super::{Failure, Globals, Result, current_directory, variable};

/// How the program is run.
#[derive(Args, Clone)]
pub struct Settings {
    /// How to talk to PROGRAM
    #[arg(long, value_enum, value_name = "P", default_value_t = ProtocolArg::Exec, requires = "program")]
    protocol: ProtocolArg,
    /// End a program that should be answering and has printed nothing for this long
    #[arg(long, value_name = "D", default_value = "10m", requires = "program")]
    #[arg(value_parser = duration::parse_positive)]
    quiet: Duration,
    /// How to answer when the program asks for permission (acp)
    #[arg(long, value_enum, value_name = "HOW", default_value_t = PermitArg::Ask, requires = "program")]
    permit: PermitArg,
    /// A file of NAME=value lines for the program's environment (API keys), read at each start
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "program")]
    pub env_file: Option<PathBuf>,
}

/// How often the adapter tries a message, and how long it stays. Of an option given twice the last counts,
/// because those for a sub-agent are appended.
#[derive(Args, Clone)]
pub struct Stay {
    /// How many times to try a message
    #[arg(long, value_name = "N", default_value = "3", overrides_with = "attempts")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    attempts: u64,
    /// End after this long with nothing to do; the next message starts it again
    #[arg(long, value_name = "D", default_value = "10m", overrides_with = "idle")]
    #[arg(value_parser = duration::parse)]
    idle: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ProtocolArg {
    /// Run once for each message: text on stdin, text on stdout
    Exec,
    /// Kept running: one line of JSON in per message, lines of JSON out
    Ndjson,
    /// Kept running: an agent that speaks the Agent Client Protocol (Claude Code, Gemini CLI, Codex, Goose,
    /// …)
    Acp,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PermitArg {
    /// Push an event, and wait 5 minutes for somebody to answer it
    Ask,
    Allow,
    Reject,
}

impl Settings {
    /// Returns these settings as arguments of a command line, without the file.
    pub fn words(&self) -> Vec<String> {
        let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            value().map(|value| value.get_name().to_owned()).unwrap_or_default()
        };
        let pairs = [
            ("--protocol", name(&|| self.protocol.to_possible_value())),
            ("--quiet", duration::format(self.quiet)),
            ("--permit", name(&|| self.permit.to_possible_value())),
        ];
        pairs.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect()
    }
}

impl Stay {
    /// Returns these settings as arguments of a command line.
    pub fn words(&self) -> Vec<String> {
        let (attempts, idle) = (self.attempts.to_string(), duration::format(self.idle));
        ["--attempts", &attempts, "--idle", &idle].map(str::to_owned).to_vec()
    }
}

/// Processes the consumer's messages until there has been nothing to do for long enough.
pub fn run(settings: Settings, stay: Stay, program: Vec<String>, globals: &Globals) -> Result<()> {
    // The consumer's lock must be held by this process only, not by what the agent leaves behind.
    close_fds::set_fds_cloexec(3, &[]);
    let consumer = variable("THREAD_CONSUMER").and_then(|name| name.into_string().ok()).ok_or_else(|| {
        Failure::usage(
            "this is not the handler of a consumer (THREAD_CONSUMER is not set)",
            "subscribe the agent with `thread agent install`",
        )
    })?;
    let queue = globals.open()?;
    let launcher = super::find_launcher()?;
    let environment = settings.env_file.as_deref().map(read_env_file).transpose()?.unwrap_or_default();
    let protocol: Box<dyn Protocol> = match settings.protocol {
        ProtocolArg::Exec => Box::<Exec>::default(),
        ProtocolArg::Ndjson => Box::<Ndjson>::default(),
        ProtocolArg::Acp => Box::new(Acp::new(current_directory()?)),
    };
    let options = Options {
        consumer: ConsumerId::stored(consumer),
        program: program.into_iter().map(Into::into).collect(),
        environment,
        protocol,
        attempts: stay.attempts,
        idle: stay.idle,
        quiet: settings.quiet,
        permit: match settings.permit {
            PermitArg::Ask => Permit::Ask,
            PermitArg::Allow => Permit::Allow,
            PermitArg::Reject => Permit::Reject,
        },
    };
    let adapter = Adapter::new(queue, launcher, options)?;
    let stop = adapter.stopper();
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])
        .map_err(|e| Failure::failed(format_args!("cannot listen to signals: {e}"), "try again"))?;
    std::thread::spawn(move || signals.forever().for_each(|_| stop.stop()));
    adapter.run()?;
    Ok(())
}

/// Reads the variables in a file of `NAME=value` lines. Blank lines and lines that begin with `#` are skipped;
/// `export` may precede a name, and a value may be quoted.
fn read_env_file(file: &Path) -> Result<Vec<(String, String)>> {
    let text = std::fs::read_to_string(file).map_err(|e| {
        Failure::failed(format_args!("cannot read {}: {e}", file.display()), "check the file of --env-file")
    })?;
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let entries = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    entries
        .map(|(number, line)| {
            variable_of(line).ok_or_else(|| {
                Failure::usage(
                    format_args!("line {number} of {} is not NAME=value", file.display()),
                    "write one variable per line",
                )
            })
        })
        .collect()
}

fn variable_of(line: &str) -> Option<(String, String)> {
    let (name, value) = line.strip_prefix("export ").unwrap_or(line).split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    let named = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let quoted = value.starts_with(['"', '\'']).then(|| shlex::split(value)).flatten();
    let value = quoted.map_or_else(|| value.to_owned(), |words| words.join(" "));
    (named && !value.contains('\0')).then(|| (name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_an_env_file_are_parsed() {
        let variable = |line| variable_of(line).map(|(name, value)| format!("{name}|{value}"));
        assert_eq!(variable("KEY=a b#c").as_deref(), Some("KEY|a b#c"));
        assert_eq!(variable("export KEY='a b'").as_deref(), Some("KEY|a b"));
        assert_eq!(variable("KEY=").as_deref(), Some("KEY|"));
        for bad in ["KEY", "=x", "A B=c"] {
            assert_eq!(variable(bad), None, "{bad}");
        }
    }
}
