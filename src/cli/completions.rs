//! `thread completions`: scripts by which shells complete command lines, and the consumers' names, which
//! those scripts ask for.

use std::ffi::OsString;

use clap::{Args, CommandFactory, FromArgMatches, Subcommand};
use clap_complete::Shell;

use super::error::{Result, failed};
use super::{Cli, Command, Globals, output};
use crate::model::subscription::ConsumerId;

/// Print a shell script that completes commands and consumers
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
        // In a batch whose lines all have a type any other is accepted, but not offered.
        for name in ["push", "ask", "reply"] {
            program = program.mut_subcommand(name, |one| {
                one.mut_arg("kind", |kind| kind.value_parser(["message", "record"]))
            });
        }
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
            script.replacen("\n\n", concat!("\n\n", include_str!("completions/consumers.zsh"), "\n"), 1)
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
    let Some((globals, begun)) = consumer_begun(line) else {
        return failed("no consumer is to be named there", "complete something else");
    };
    globals.enter()?;
    let mut queue = globals.open()?;
    let mut consumers = queue.store().subscriptions()?;
    // Names that only another program takes would not survive the shell.
    let is_meant = |name: &str| name.starts_with(&begun) && ConsumerId::new(name).is_ok();
    consumers.retain(|one| is_meant(one.consumer.as_str()));
    consumers.iter().try_for_each(|one| output::line(&one.consumer))
}

/// What of a consumer's name ends the line, if one does. Parses the line with another word in place of
/// the one that is being written, and looks where that went.
fn consumer_begun(line: &str) -> Option<(Globals, String)> {
    const HERE: &str = "\0";
    let mut words =
        shlex::split(line).unwrap_or_else(|| line.split_whitespace().map(str::to_owned).collect());
    let begun = if line.ends_with(char::is_whitespace) { String::new() } else { words.pop()? };
    let program = words.iter().position(|word| word == "thread" || word.ends_with("/thread"))?;
    if begun.starts_with('-') {
        return None;
    }
    words.push(HERE.to_owned());
    let parsed = Cli::command().ignore_errors(true).try_get_matches_from(&words[program..]).ok()?;
    let mut command = &parsed;
    while let Some((_, inner)) = command.subcommand() {
        command = inner;
    }
    let given = |id| command.try_get_one::<String>(id).ok().flatten();
    let place = given("consumer").or_else(|| given("word"))?;
    (place == HERE).then(|| Some((Globals::from_arg_matches(&parsed).ok()?, begun)))?
}
