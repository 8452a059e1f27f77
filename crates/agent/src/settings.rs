//! The options that say how an agent program is run, written once for the command lines of `thread agent` and
//! `thread serve`.
//!
//! A command that flattens them has an argument with the id `program` in the group `who`, which `--url` is in as well:
//! without a program or a model they have no effect.
//! An option's value is kept in the handler of a subscription as text ([`Settings::words`], [`Stay::words`]).

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use thread::failure::{self, Failure, WithHint};
use thread::model::duration;

use crate::model::{ToolServer, checked_url, parse_url};

/// How many turns a model may take for one message, unless it is told.
pub const MAX_TURNS: u64 = 50;

/// How the program is run.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// How to talk to the program
    #[arg(long, value_enum, value_name = "P", default_value_t = ProtocolArg::Exec, requires = "who")]
    pub protocol: ProtocolArg,
    /// A model's server, such as http://localhost:11434/v1 (openai), or an agent (ag-ui)
    #[arg(long, value_name = "URL", group = "who", value_parser = checked_url)]
    pub url: Option<String>,
    /// The model's name (openai)
    #[arg(long, value_name = "NAME", requires = "url")]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub model: Option<String>,
    /// The variable that has the server's key (openai, ag-ui)
    ///
    /// It is looked up in --env-file, then in the environment. For api.openai.com (by HTTPS) it is OPENAI_API_KEY
    /// by default; other servers get no key unless one is named.
    #[arg(long, value_name = "VAR", requires = "who", value_parser = variable_name)]
    pub key_env: Option<String>,
    /// A file with a text for the model, before each conversation (openai)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "who")]
    pub system: Option<PathBuf>,
    /// Tools (MCP): a command, or a URL; repeatable (openai)
    ///
    /// A command is started without a shell, in the folder `work` of the conversation's thread, with a few variables
    /// (PATH, HOME, LANG and the like). Its tools are called SERVER__TOOL; NAME=COMMAND gives the server a name.
    #[arg(long, value_name = "COMMAND", requires = "who", value_parser = ToolServer::parse)]
    pub tools: Vec<ToolServer>,
    /// The most turns that a model may take for one message (openai)
    #[arg(long, value_name = "N", default_value = "50", requires = "who", hide_short_help = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub max_turns: u64,
    /// How many tokens the model can read; earlier parts of a longer conversation are summarised (openai) [default:
    /// what the model says, or 4096 for Ollama, at port 11434]
    #[arg(long, value_name = "N", requires = "who", hide_short_help = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(512..))]
    pub context: Option<u64>,
    /// Whether the model has the tools memory_get, memory_set and so on, and its notes (openai)
    #[arg(long, value_name = "BOOL", default_value_t = true, requires = "who", hide_short_help = true)]
    #[arg(action = clap::ArgAction::Set)]
    pub memory: bool,
    /// End a program that should be answering and has printed nothing for this long
    #[arg(long, value_name = "D", default_value = "10m", requires = "who")]
    #[arg(value_parser = duration::parse_positive)]
    #[arg(hide_short_help = true)]
    pub quiet: Duration,
    /// The most that the program may write for one message, such as 64MiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB", requires = "who", value_parser = size)]
    #[arg(hide_short_help = true)]
    pub max_output: u64,
    /// How to answer when permission is asked (acp, openai, ag-ui)
    ///
    /// A model needs it for each call of a tool that its server does not mark as read-only (readOnlyHint).
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Permit::Ask, requires = "who")]
    pub permit: Permit,
    /// How long to wait for an answer before the request is rejected; off: for as long as it takes
    #[arg(long, value_name = "D", default_value = "5m", requires = "who", value_parser = PermitWait::parse)]
    #[arg(hide_short_help = true)]
    pub permit_wait: PermitWait,
    /// What a conversation may take: 2.50 in the currency that the agent names, or 200000tokens. A message over it gets
    /// an error
    #[arg(long, value_name = "AMOUNT", requires = "who", value_parser = Budget::parse, hide_short_help = true)]
    pub budget: Option<Budget>,
    /// Put the last N messages, at most 32 KiB, before each message on stdin (exec) [default without N: 50]
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "50")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..), requires = "who")]
    #[arg(hide_short_help = true)]
    pub transcript: Option<u32>,
    /// Give the program the tools of `thread mcp`: this conversation's thread, all sessions in the same root,
    /// running processes, sub-agents (acp, openai)
    #[arg(long, requires = "who")]
    pub mcp: bool,
    /// Also give the program the MCP servers that an editor names for a conversation; `thread acp` keeps them in the
    /// thread, in `mcp-servers.json` (acp)
    #[arg(long, requires = "who", hide_short_help = true)]
    pub mcp_servers: bool,
    /// A file of NAME=value lines for the program's environment (API keys), read at each start
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "who")]
    pub env_file: Option<PathBuf>,
}

/// How often the adapter tries a message, and how long it stays. Of an option given twice the last counts.
#[derive(Debug, Clone, Args)]
pub struct Stay {
    /// How many times to try a message
    #[arg(long, value_name = "N", default_value = "3", overrides_with = "attempts", requires = "who")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(hide_short_help = true)]
    pub attempts: u64,
    /// End a program that is kept running after this long with nothing to do; the next message starts it again
    #[arg(long, value_name = "D", default_value = "10m", overrides_with = "idle", requires = "who")]
    #[arg(value_parser = duration::parse)]
    pub idle: Duration,
    /// At most this many programs at once in all threads of the same folder; 0: any number
    #[arg(long, value_name = "N", default_value_t = 0, overrides_with = "max_agents", requires = "who")]
    #[arg(hide_short_help = true)]
    pub max_agents: u32,
}

/// The values of `--protocol`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProtocolArg {
    /// Run once for each message: text on stdin, text on stdout
    Exec,
    /// Kept running: one line of JSON in per message, lines of JSON out
    Ndjson,
    /// Kept running: an agent that speaks the Agent Client Protocol (Claude Code, Gemini CLI, Codex, Goose,
    /// …)
    Acp,
    /// No program, but a model at --url, by OpenAI's chat completions (Ollama, llama.cpp, vLLM, OpenAI, …)
    #[value(name = "openai")]
    OpenAi,
    /// No program, but an agent at --url that speaks AG-UI (LangGraph, Pydantic AI, Mastra, …)
    #[value(name = "ag-ui")]
    AgUi,
}

impl ProtocolArg {
    /// Whether the agent is a model: its memory is the thread, so it continues wherever a run stands.
    pub fn goes_on_from_a_step(self) -> bool {
        self == ProtocolArg::OpenAi
    }

    /// Whether the agent is given from the thread what was said before.
    pub fn remembers_by_thread(self) -> bool {
        matches!(self, ProtocolArg::OpenAi | ProtocolArg::AgUi)
    }
}

/// What a conversation may take: the value of `--budget`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// In the currency that the agent names; positive.
    Cost(f64),
    /// Read and written together; positive.
    Tokens(u64),
}

impl Budget {
    /// Reads an amount such as `2.50`, or a number of tokens such as `200000tokens`.
    ///
    /// # Errors
    ///
    /// It is neither; a sentence.
    pub fn parse(text: &str) -> Result<Budget, String> {
        let budget = match text.strip_suffix("tokens") {
            Some(number) => number.trim_end().parse().ok().filter(|number| *number > 0).map(Budget::Tokens),
            None => text.parse().ok().filter(|cost: &f64| cost.is_finite() && *cost > 0.0).map(Budget::Cost),
        };
        budget.ok_or_else(|| {
            "write an amount, such as 2.50, or a number of tokens, such as 200000tokens".to_owned()
        })
    }
}

impl std::fmt::Display for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Budget::Cost(amount) => write!(f, "{amount}"),
            Budget::Tokens(number) => write!(f, "{number}tokens"),
        }
    }
}

/// How long a request for permission waits for an answer; `None`: for as long as it takes. The value of
/// `--permit-wait`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermitWait(pub Option<Duration>);

impl PermitWait {
    /// Reads a duration; `off` and `0` mean that there is no limit.
    ///
    /// # Errors
    ///
    /// It is neither; a sentence.
    pub fn parse(text: &str) -> Result<PermitWait, String> {
        let wait = if text == "off" { Duration::ZERO } else { duration::parse(text)? };
        Ok(PermitWait(Some(wait).filter(|wait| !wait.is_zero())))
    }

    fn format(self) -> String {
        self.0.map_or_else(|| "off".to_owned(), duration::format)
    }
}

/// How requests for permission are answered: the values of `--permit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Permit {
    /// Push an event, and wait for an answer (--permit-wait)
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
            ("--max-output", self.max_output.to_string()),
            ("--permit", name(&|| self.permit.to_possible_value())),
            ("--permit-wait", self.permit_wait.format()),
        ];
        let system = self.system.as_ref().map(|file| file.to_string_lossy().into_owned());
        let budget = self.budget.map(|budget| budget.to_string());
        let given = [
            ("--url", &self.url),
            ("--model", &self.model),
            ("--key-env", &self.key_env),
            ("--system", &system),
            ("--budget", &budget),
        ];
        let given = given.into_iter().filter_map(|(option, value)| Some((option, value.clone()?)));
        let words = pairs.into_iter().chain(given).flat_map(|(option, value)| [option.to_owned(), value]);
        let tools = self.tools.iter().flat_map(|server| ["--tools".to_owned(), server.to_string()]);
        let turns =
            (self.max_turns != MAX_TURNS).then(|| ["--max-turns".to_owned(), self.max_turns.to_string()]);
        let context = self.context.map(|context| ["--context".to_owned(), context.to_string()]);
        let turns = turns.into_iter().chain(context);
        let words = words.chain(tools).chain(turns.flatten());
        let words = words.chain(self.transcript.map(|most| format!("--transcript={most}")));
        let memory = (!self.memory).then(|| "--memory=false".to_owned());
        let flags = [("--mcp", self.mcp), ("--mcp-servers", self.mcp_servers)];
        let flags = flags.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag.to_owned());
        words.chain(flags).chain(memory).collect()
    }

    /// These settings, of a command given in `cwd`, for an adapter that is started elsewhere; the file with its
    /// variables is given too.
    ///
    /// # Errors
    ///
    /// The options do not fit together, the system text cannot be read, or the key is missing.
    pub fn located(mut self, cwd: &Path) -> failure::Result<Settings> {
        self.check()?;
        if let Some(file) = &mut self.system {
            *file = cwd.join(&*file);
            std::fs::read_to_string(&*file)
                .with_hint(format_args!("cannot read {}", file.display()), "check the file of --system")?;
        }
        if let Some(name) = &self.key_env {
            let file = self.env_file.as_ref().map(|file| read_env_file(&cwd.join(file))).transpose()?;
            key(name, &file.unwrap_or_default()).ok_or_else(|| missing_key(name))?;
        }
        Ok(self)
    }

    /// The model or the agent that a word such as `openai:http://localhost:11434/v1#qwen3` or
    /// `ag-ui:http://localhost:8000/` stands for, with these settings; `None` if it is another kind of word.
    ///
    /// # Errors
    ///
    /// It has no URL, or a model has no name.
    pub fn with_server(&self, word: &str) -> failure::Result<Option<Settings>> {
        if let Some(url) = word.trim().strip_prefix("ag-ui:") {
            let hint = "write ag-ui:URL, such as ag-ui:http://localhost:8000/";
            let url = checked_url(url).map_err(|why| {
                let why = why.replace("the model is given by --model", "it must have no #");
                Failure::usage(format_args!("the URL in '{word}': {why}"), hint)
            })?;
            return Ok(Some(Settings {
                protocol: ProtocolArg::AgUi,
                url: Some(url),
                model: None,
                ..self.clone()
            }));
        }
        let Some(rest) = word.trim().strip_prefix("openai:") else { return Ok(None) };
        let hint = "write openai:URL#MODEL, such as openai:http://localhost:11434/v1#qwen3";
        let (url, model) = rest
            .split_once('#')
            .filter(|(_, model)| !model.is_empty())
            .ok_or_else(|| Failure::usage(format_args!("'{word}' names no model"), hint))?;
        let url =
            parse_url(url).map_err(|why| Failure::usage(format_args!("the URL in '{word}': {why}"), hint))?;
        let (url, model) = (Some(url), Some(model.to_owned()));
        Ok(Some(Settings { protocol: ProtocolArg::OpenAi, url, model, ..self.clone() }))
    }

    /// Checks that the options fit together.
    ///
    /// # Errors
    ///
    /// They do not: a usage error.
    pub fn check(&self) -> failure::Result<()> {
        let (is_model, is_agent) = (self.protocol == ProtocolArg::OpenAi, self.protocol == ProtocolArg::AgUi);
        if is_agent && (self.url.is_none() || self.model.is_some()) {
            return failure::usage(
                "an agent of --protocol ag-ui has a --url, and no --model",
                "give its URL alone: --protocol ag-ui --url http://localhost:8000/",
            );
        }
        if !is_agent && (is_model != self.url.is_some() || is_model != self.model.is_some()) {
            return failure::usage(
                "--protocol openai and --url belong together",
                "give both, with --model: --protocol openai --url http://localhost:11434/v1 --model qwen3",
            );
        }
        if !is_model && !is_agent && self.key_env.is_some() {
            return failure::usage(
                "only a server at --url has a key",
                "leave out --key-env, or give --protocol openai or ag-ui",
            );
        }
        if !is_model && self.system.is_some() {
            return failure::usage(
                "only a model at --url has a system text",
                "leave out --system, or give --protocol openai",
            );
        }
        let is_default = self.max_turns == MAX_TURNS && self.context.is_none() && self.memory;
        if !is_model && (!self.tools.is_empty() || !is_default) {
            return failure::usage(
                "only a model at --url has --tools, --max-turns, --context and --memory",
                "leave them out, or give --protocol openai; an agent program sees to this itself",
            );
        }
        if self.mcp && !matches!(self.protocol, ProtocolArg::Acp | ProtocolArg::OpenAi) {
            return failure::usage(
                "only an agent of the Agent Client Protocol can be given tools",
                "give --protocol acp or openai as well, or leave out --mcp",
            );
        }
        if self.mcp_servers && self.protocol != ProtocolArg::Acp {
            return failure::usage(
                "only an agent of the Agent Client Protocol can be given the MCP servers of an editor",
                "give --protocol acp as well, or leave out --mcp-servers",
            );
        }
        if self.transcript.is_some() && self.protocol != ProtocolArg::Exec {
            return failure::usage(
                "a program that is kept running is given the conversation so far anyway",
                "leave out --transcript",
            );
        }
        Ok(())
    }
}

impl Stay {
    /// Of a sub-agent: if it dies, the call fails and its caller decides what to do; and no other message will come.
    pub fn for_sub_agent(self) -> Stay {
        Stay { attempts: 1, idle: Duration::ZERO, ..self }
    }

    /// Returns these settings as arguments of a command line.
    pub fn words(&self) -> Vec<String> {
        let (attempts, idle) = (self.attempts.to_string(), duration::format(self.idle));
        let limit = (self.max_agents > 0).then(|| ["--max-agents".to_owned(), self.max_agents.to_string()]);
        let words = ["--attempts", &attempts, "--idle", &idle].map(str::to_owned);
        words.into_iter().chain(limit.into_iter().flatten()).collect()
    }
}

/// The value of a variable with a key, of a file for programs or of the environment; `None` if it is not set.
pub fn key(name: &str, file: &[(String, String)]) -> Option<String> {
    let of_file = file.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let value = of_file.or_else(|| std::env::var(name).ok())?;
    Some(value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// The error of a variable with a key that is not set.
pub fn missing_key(name: &str) -> Failure {
    let hint = format_args!("write {name}=… into a file that only you can read, and give it as --env-file");
    Failure::usage(format_args!("the variable {name} of --key-env is not set"), hint)
}

/// A name of a variable.
///
/// # Errors
///
/// It cannot be one; a sentence.
pub fn variable_name(text: &str) -> Result<String, String> {
    let is_name = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    match !text.is_empty() && is_name && !text.starts_with(|c: char| c.is_ascii_digit()) {
        true => Ok(text.to_owned()),
        false => Err("it must be the name of a variable, not the key itself".to_owned()),
    }
}

/// A size in bytes, or in units such as `64MiB` or `64M`.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err("write it as bytes, or as 64KiB, 64MiB or 1GiB".to_owned()),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "it must be a number of bytes".to_owned())
}

/// Reads the variables in a file of `NAME=value` lines. Blank lines and lines that begin with `#` are skipped;
/// `export` may precede a name, and a value may be quoted.
///
/// # Errors
///
/// The file cannot be read, or a line is not `NAME=value`.
pub fn read_env_file(file: &Path) -> failure::Result<Vec<(String, String)>> {
    let text = std::fs::read_to_string(file)
        .with_hint(format_args!("cannot read {}", file.display()), "check the file of --env-file")?;
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let entries = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    entries
        .map(|(number, line)| {
            variable_of(line).ok_or_else(|| {
                let what = format_args!("line {number} of {} is not NAME=value", file.display());
                Failure::usage(what, "write one variable per line")
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
    fn sizes_are_parsed() {
        assert_eq!(["5", "5b", "2K", "64MiB", "1gib"].map(size), [5, 5, 2048, 64 << 20, 1 << 30].map(Ok));
        for bad in ["", "M", "5 M", "-1", "1.5M", "5X", "99999999999G"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn budgets_are_parsed() {
        let budget = |text: &str| Budget::parse(text).map(|budget| budget.to_string());
        let good = [("2.50", "2.5"), ("3", "3"), ("200000tokens", "200000tokens"), ("5 tokens", "5tokens")];
        for (text, same) in good {
            assert_eq!(budget(text).as_deref(), Ok(same));
        }
        for bad in ["", "0", "-1", "inf", "NaN", "0tokens", "1.5tokens", "tokens", "2 USD"] {
            assert!(budget(bad).is_err(), "{bad}");
        }
    }

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
