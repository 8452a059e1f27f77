//! `thread completions`: completion scripts for shells, and the internal command with which they list
//! consumers.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, FromArgMatches, Subcommand};
use clap_complete::Shell;

use super::{Cli, Command, Globals, output};
use crate::error::Code;
use crate::failure::{Result, failed};
use crate::model::subscription::ConsumerId;

/// Print a shell script that completes commands and consumers
///
/// Save it where the shell looks for such scripts, as in the examples, and open a new shell. The script asks
/// thread for the names of consumers; everything else is in the script itself, so print it again after an
/// update.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread completions bash >~/.local/share/bash-completion/completions/thread
  thread completions zsh >~/.zfunc/_thread
  thread completions fish >~/.config/fish/completions/thread.fish")]
pub struct Completions {
    /// The shell
    #[arg(value_parser = PossibleValuesParser::new(["bash", "zsh", "fish"]).try_map(|name| name.parse::<Shell>()))]
    shell: Shell,
}

impl Completions {
    pub fn run(self, _: &Globals) -> Result<()> {
        // clap_complete offers hidden options too, so they are removed.
        let globals = Globals::augment_args(clap::Command::new("thread"));
        let shown = globals.get_arguments().filter(|arg| !arg.is_hide_set()).cloned();
        let program = clap::Command::new("thread").version(env!("CARGO_PKG_VERSION")).args(shown);
        let mut program = Command::augment_subcommands(program);
        // The parser accepts any type, because --type is unused if all lines of a batch have one; only valid
        // types are offered.
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

/// The script, extended to complete consumer names.
fn with_consumers(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => script.to_owned() + include_str!("completions/consumers.bash"),
        Shell::Fish => script.to_owned() + include_str!("completions/consumers.fish"),
        _ => {
            let place = |line: &str| match line.starts_with("'::word -- ") {
                true => line.replace(":_default'", ":_thread_consumers'") + "\n",
                false => format!("{line}\n"),
            };
            let script: String = script.lines().map(place).collect();
            script.replacen("\n\n", concat!("\n\n", include_str!("completions/consumers.zsh"), "\n"), 1)
        }
    }
}

/// The internal command that the scripts run.
pub const CONSUMERS: &str = "_consumers";

/// Prints the consumers whose names start with the last word of `line`, a command line up to the cursor.
/// Fails if no consumer name is expected there.
pub fn print_consumers(line: &str) -> Result<()> {
    let Some((globals, prefix)) = consumer_prefix(line) else {
        return failed(Code::Failed, "no consumer name is expected here", "complete something else");
    };
    globals.enter()?;
    let mut queue = globals.open()?;
    let mut consumers = queue.store.subscriptions()?;
    // Names that only another program can have stored may contain characters special to the shell.
    let matches = |name: &str| name.starts_with(&prefix) && ConsumerId::new(name).is_ok();
    consumers.retain(|one| matches(one.consumer.as_str()));
    consumers.iter().try_for_each(|one| output::line(&one.consumer))
}

/// The prefix of a consumer's name at the end of the line; `None` if no consumer is expected there. Parses
/// the line with a placeholder as its last word, and checks which argument got the placeholder.
fn consumer_prefix(line: &str) -> Option<(Globals, String)> {
    const PLACEHOLDER: &str = "\0";
    let mut words =
        shlex::split(line).unwrap_or_else(|| line.split_whitespace().map(str::to_owned).collect());
    let prefix = if line.ends_with(char::is_whitespace) { String::new() } else { words.pop()? };
    let program = words.iter().position(|word| word == "thread" || word.ends_with("/thread"))?;
    if prefix.starts_with('-') {
        return None;
    }
    words.push(PLACEHOLDER.to_owned());
    let parsed = Cli::command().ignore_errors(true).try_get_matches_from(&words[program..]).ok()?;
    let mut command = &parsed;
    while let Some((_, inner)) = command.subcommand() {
        command = inner;
    }
    let given = |id| command.try_get_one::<String>(id).ok().flatten();
    let consumer = given("consumer").or_else(|| given("word"))?;
    (consumer == PLACEHOLDER).then(|| Some((Globals::from_arg_matches(&parsed).ok()?, prefix)))?
}
