//! Command lines that cannot be understood: what is wrong with them, and what was probably meant.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use crate::cmd::Cli;
use crate::error::Failure;

const PROGRAM: &str = "thread";

/// What other tools, and people in a hurry, call our commands. They are only suggested: a second
/// name that worked would be one more to know.
const COMMANDS: &[(&str, &[&str])] = &[
    ("init", &["create", "make", "new"]),
    (
        "push",
        &["add", "append", "emit", "enqueue", "post", "produce", "pub", "publish", "put", "send", "write"],
    ),
    ("pop", &["consume", "dequeue", "fetch", "get", "next", "pull", "receive", "take"]),
    ("peek", &["cat", "events", "follow", "query", "read", "tail", "wait", "watch"]),
    ("subscribe", &["listen", "on", "register", "sub"]),
    ("unsubscribe", &["remove", "rm", "unregister", "unsub"]),
    ("dispatch", &["run", "start", "trigger", "wake"]),
    ("ack", &["acknowledge", "commit", "complete", "confirm", "done"]),
    ("seek", &["replay", "reset", "rewind"]),
    ("info", &["consumers", "describe", "list", "ls", "show", "stat", "state", "stats", "status"]),
    ("stop", &["abort", "cancel", "kill"]),
    ("resume", &["continue", "unpause"]),
    ("logs", &["log", "output"]),
    ("dead", &["dead-letter", "dead-letters", "dlq"]),
    ("doctor", &["check", "fsck", "repair", "verify"]),
    ("prune", &["clean", "cleanup", "compact", "delete", "expire", "gc", "purge", "trim"]),
    ("backup", &["copy", "dump", "export", "snapshot"]),
    ("completions", &["completion"]),
    ("guide", &["docs", "skill", "tutorial"]),
];

/// The same for options, without their hyphens. Where several fit, the first that the command has.
const OPTIONS: &[(&str, &[&str])] = &[
    ("content", &["body", "data", "message", "msg", "payload", "text"]),
    ("content-file", &["file", "input", "stdin"]),
    ("type", &["kind"]),
    ("source", &["author", "from", "sender"]),
    ("idempotency-key", &["dedup", "dedupe", "key"]),
    ("thread", &["dir", "directory", "path", "queue"]),
    ("consumer", &["group", "name", "subscriber"]),
    ("handler", &["cmd", "command", "exec", "run"]),
    ("filter", &["match", "query", "sql", "where"]),
    ("event-id", &["event", "id", "last-event-id", "up-to"]),
    ("last-event-id", &["after", "from", "offset", "since"]),
    ("limit", &["count", "max", "n"]),
    ("wait", &["block", "timeout"]),
    ("max-attempts", &["attempts", "max-retries", "retries"]),
    ("tail", &["last", "lines"]),
    ("follow", &["stream", "watch"]),
    ("json", &["format", "output"]),
];

/// Whether the name of the program stands alone.
pub fn is_only_the_program(error: &clap::Error, args: &[OsString]) -> bool {
    lacks_command(error) && name_of(&asked_for(args)) == PROGRAM
}

/// The parser's complaint in this program's form: what, and how to mend it. `args` are the words
/// that it is about, the program's name first.
pub fn explain(error: &clap::Error, args: &[OsString]) -> Failure {
    if let [program, help, rest @ ..] = args
        && help == "help"
    {
        // `thread help psuh` is mistaken where `thread psuh` is.
        let again: Vec<OsString> = [program].into_iter().chain(rest).cloned().collect();
        if let Err(error) = Cli::try_parse_from(&again) {
            return explain(&error, &again);
        }
    }
    let command = asked_for(args);
    if lacks_command(error) {
        return no_command(&command);
    }
    let name = name_of(&command);
    let rendered = error.render().to_string();
    // The first paragraph says what is wrong, sometimes with a list below it.
    let what: Vec<&str> = rendered.split("\n\n").next().unwrap_or_default().lines().map(str::trim).collect();
    let what = what.join(" ");
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    match suggestion(error, &command) {
        Some(meant) => {
            Failure::asked_wrongly(what, format_args!("did you mean '{meant}'? see `{name} --help`"))
        }
        None => Failure::asked_wrongly(what, format_args!("see `{name} --help`")),
    }
}

/// What is said of words that name no command, where only the name of one may stand.
pub fn no_such_command(words: &[String]) -> Failure {
    let args: Vec<OsString> =
        ["thread"].into_iter().chain(words.iter().map(String::as_str)).map(Into::into).collect();
    match Cli::try_parse_from(&args) {
        Err(error) => explain(&error, &args),
        Ok(_) => {
            Failure::asked_wrongly(format_args!("`{}` is no command", words.join(" ")), "see `thread --help`")
        }
    }
}

fn lacks_command(error: &clap::Error) -> bool {
    matches!(error.kind(), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand)
}

fn no_command(command: &clap::Command) -> Failure {
    let name = name_of(command);
    if name == PROGRAM {
        return Failure::asked_wrongly(
            "no command is given",
            "try `thread init <path>`, or see `thread --help`",
        );
    }
    let names: Vec<&str> =
        command.get_subcommands().map(clap::Command::get_name).filter(|&name| name != "help").collect();
    Failure::asked_wrongly(
        format_args!("`{name}` does not say what to do"),
        format_args!("add one of {}; see `{name} --help`", names.join(", ")),
    )
}

/// As it is typed, from the program's name on.
fn name_of(command: &clap::Command) -> &str {
    command.get_bin_name().unwrap_or(PROGRAM)
}

/// The command that the words name, as far as they name one.
fn asked_for(args: &[OsString]) -> clap::Command {
    let mut command = Cli::command();
    command.build();
    // Before a command's name stand only options without a value.
    for word in args.iter().skip(1).filter(|word| !word.as_encoded_bytes().starts_with(b"-")) {
        match command.find_subcommand(word) {
            Some(found) => command = found.clone(),
            None => break,
        }
    }
    command
}

/// What was meant by a word that `command` does not know.
fn suggestion(error: &clap::Error, command: &clap::Command) -> Option<String> {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    if let Some(word) = word(ContextKind::InvalidSubcommand)
        && let Some(name) = ours(COMMANDS, word, |name| command.find_subcommand(name).is_some())
    {
        return Some(name.to_owned());
    }
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(word) = word(ContextKind::InvalidArg)
    {
        let name = word.trim_start_matches('-');
        let asked = command.get_bin_name().unwrap_or("thread");
        // As git, and other tools that work on a directory, take it.
        if !command.has_subcommands() && has_option(command, "thread") && is_thread(word) {
            return Some(format!("--thread {word}"));
        }
        // Known there, so it stands before the command's name.
        if word.starts_with("--") && has_option(command, name) {
            return Some(format!("{asked} --{name}"));
        }
        if command.has_subcommands() && matches!(name, "thread" | "consumer") {
            return Some(format!("{asked} <COMMAND> --{name}"));
        }
        if let Some(name) = ours(OPTIONS, name, |name| has_option(command, name)) {
            return Some(format!("--{name}"));
        }
    }
    let similar = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue]
        .into_iter()
        .find_map(|kind| error.get(kind));
    match similar {
        Some(ContextValue::String(one)) => Some(one.clone()),
        // The most similar comes last.
        Some(ContextValue::Strings(several)) => several.last().cloned(),
        _ => None,
    }
}

/// Whether a thread seems to be there, as far as can be seen without opening it.
fn is_thread(path: &str) -> bool {
    Path::new(path).join("events.db").exists()
}

/// Our word for somebody else's, among those that are there.
fn ours(
    table: &[(&'static str, &[&str])],
    theirs: &str,
    is_there: impl Fn(&str) -> bool,
) -> Option<&'static str> {
    let mut fitting = table.iter().filter(|(_, others)| others.contains(&theirs)).map(|(ours, _)| *ours);
    fitting.find(|ours| is_there(ours))
}

fn has_option(command: &clap::Command, name: &str) -> bool {
    command.get_arguments().any(|option| option.get_long() == Some(name))
}
