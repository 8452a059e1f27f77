//! `thread completions`: scripts by which shells complete command lines.

use clap::{Args, Subcommand};
use clap_complete::Shell;

use crate::cmd::Command;
use crate::error::Result;
use crate::output;

/// Print a script that completes commands and options in a shell
///
/// Put it where the shell looks for such scripts, as in the examples, and open a new shell. The
/// script is complete in itself: it does not call thread. After an update of thread, print it
/// again.
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
    pub fn run(self) -> Result<()> {
        // What is hidden would be completed too, so only the commands are taken, without the
        // options that are accepted before them.
        let mut program = Command::augment_subcommands(clap::Command::new("thread").version("-"));
        for (command, option, words) in
            [("push", "kind", ["message", "record"]), ("subscribe", "deliver", ["wake", "stdin"])]
        {
            program = program
                .mut_subcommand(command, |command| command.mut_arg(option, |arg| arg.value_parser(words)));
        }
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, "thread", &mut script);
        output::bytes(&script).map(drop)
    }
}
