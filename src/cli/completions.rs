//! `thread completions`: scripts by which shells complete command lines.

use clap::{Args, Subcommand};
use clap_complete::Shell;

use super::error::Result;
use super::{Command, Globals, output};

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
    pub fn run(self, _: &Globals) -> Result<()> {
        // Hidden options would be completed too, so they are left out.
        let globals = Globals::augment_args(clap::Command::new("thread"));
        let shown = globals.get_arguments().filter(|arg| !arg.is_hide_set()).cloned();
        let program = clap::Command::new("thread").version(env!("CARGO_PKG_VERSION")).args(shown);
        let mut program = Command::augment_subcommands(program);
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, "thread", &mut script);
        output::bytes(&script).map(drop)
    }
}
