//! `thread completions`: scripts by which shells complete command lines, and the consumers' names, which
//! those scripts ask for.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, CommandFactory, Subcommand};
use clap_complete::Shell;

use super::error::{Failure, Result};
use super::{Cli, Command, Globals, environment, output};
use crate::model::subscription::ConsumerId;
use crate::queue::Queue;

/// Print a script for a shell that completes commands and consumers
///
/// Save it where the shell looks for such scripts, as in the examples, and open a new shell. In bash, zsh
/// and fish the script asks thread for the names of consumers; everything else is in the script itself,
/// so print it again after an update.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread completions bash >~/.local/share/bash-completion/completions/thread
  thread completions zsh >~/.zfunc/_thread
  thread completions fish >~/.config/fish/completions/thread.fish
  thread completions powershell >>\"$PROFILE\"
  thread completions elvish >>~/.config/elvish/rc.elv")]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub fn run(self, _: &Globals) -> Result<()> {
        // Hidden options would be completed too, so they are left out.
        let globals = Globals::augment_args(clap::Command::new("thread"));
        let shown = globals.get_arguments().filter(|arg| !arg.is_hide_set()).cloned();
        let program = clap::Command::new("thread").version(env!("CARGO_PKG_VERSION")).args(shown);
        let mut program = Command::augment_subcommands(program);
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, "thread", &mut script);
        let script = String::from_utf8_lossy(&script);
        output::bytes(with_consumers(self.shell, &script).as_bytes()).map(drop)
    }
}

/// The script, with the consumers' names wherever one is to be given.
fn with_consumers(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => script.to_owned() + include_str!("completions/consumers.bash"),
        Shell::Fish => {
            let option = |line: &str| match line.contains(" -l consumer ") && line.ends_with(" -r") {
                true => format!("{line} -f -a '(__thread_consumers)'\n"),
                false => format!("{line}\n"),
            };
            script.lines().map(option).collect::<String>() + include_str!("completions/consumers.fish")
        }
        Shell::Zsh => {
            let place = |line: &str| match line.starts_with("'--consumer=") || line.starts_with("'::word -- ")
            {
                true => line.replace(":_default'", ":_thread_consumers'") + "\n",
                false => format!("{line}\n"),
            };
            let script: String = script.lines().map(place).collect();
            let (head, body) = script.split_once("\n\n").unwrap_or((&script, ""));
            format!("{head}\n\n{}\n{body}", include_str!("completions/consumers.zsh"))
        }
        _ => script.to_owned(),
    }
}

/// The command by which those scripts ask.
const CONSUMERS: &str = "_consumers";

/// Whether a script asks.
pub fn is_asked(args: &[OsString]) -> bool {
    args.len() == 3 && args[1] == CONSUMERS
}

/// Prints the consumers whose names begin as the last word of a command line does, up to the cursor. Fails
/// where no consumer is to be named.
pub fn print_consumers(line: &str) -> Result<()> {
    let nothing = || Failure::failed("no consumer is to be named there", "complete something else");
    let place = Place::of(line).ok_or_else(nothing)?;
    if let Some(dir) = place.directories.iter().try_for_each(|dir| environment::enter(dir)).err() {
        return Err(Failure::failed(dir, "name a directory that is there"));
    }
    let globals = Globals { thread: place.thread, ..Globals::default() };
    let mut queue = Queue::open(globals.path()?)?;
    let mut names = String::new();
    for subscription in queue.store().subscriptions()? {
        let name = subscription.consumer.as_str();
        // Names that only another program takes would not survive the shell.
        if name.starts_with(&place.begun) && ConsumerId::new(name).is_ok() {
            names.push_str(name);
            names.push('\n');
        }
    }
    output::bytes(names.as_bytes()).map(drop)
}

/// A place in a command line where a consumer is to be named.
struct Place {
    thread: Vec<PathBuf>,
    directories: Vec<PathBuf>,
    /// What of the name is there.
    begun: String,
}

impl Place {
    fn of(line: &str) -> Option<Place> {
        let mut words =
            shlex::split(line).unwrap_or_else(|| line.split_whitespace().map(str::to_owned).collect());
        let begun = if line.ends_with(char::is_whitespace) { String::new() } else { words.pop()? };
        let program = words.iter().position(|word| word == "thread" || word.ends_with("/thread"))?;
        let mut place = Place { thread: Vec::new(), directories: Vec::new(), begun };
        let mut command = Cli::command();
        command.build();
        let (mut positionals, mut named) = (0, false);
        let mut words = words.drain(program + 1..);
        while let Some(word) = words.next() {
            if let Some(found) = command.find_subcommand(&word).filter(|_| positionals == 0) {
                command = found.clone();
            } else if let Some(option) = word.strip_prefix('-').filter(|option| !option.is_empty()) {
                let (option, value) = split_option(option);
                let known = command.get_arguments().find(|arg| match option.strip_prefix('-') {
                    Some(long) => arg.get_long() == Some(long),
                    None => arg.get_short().is_some_and(|short| option.starts_with(short)),
                });
                let Some(known) =
                    known.filter(|arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append))
                else {
                    continue;
                };
                let id = known.get_id().as_str();
                let Some(value) = value.or_else(|| words.next()) else {
                    // The option's value is what is being written.
                    return (id == "consumer").then_some(place);
                };
                match id {
                    "thread" => place.thread = vec![value.into()],
                    "directories" => place.directories.push(value.into()),
                    "consumer" => named = true,
                    _ => {}
                }
            } else {
                positionals += 1;
            }
        }
        let takes = command.get_arguments().any(|arg| arg.get_id() == "consumer");
        let option = place.begun.starts_with('-');
        (takes && positionals == 0 && !named && !option).then_some(place)
    }
}

/// An option without its first dash, and the value that is written together with it.
fn split_option(option: &str) -> (&str, Option<String>) {
    let end = match option.starts_with('-') {
        true => option.find('=').map(|at| (at, at + 1)),
        false => {
            option.chars().next().map(char::len_utf8).filter(|&end| end < option.len()).map(|end| (end, end))
        }
    };
    end.map_or((option, None), |(end, rest)| (&option[..end], Some(option[rest..].to_owned())))
}
