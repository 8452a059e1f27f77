//! `thread man`: manual pages.

use std::io::{self, Write};

use clap::{Args, CommandFactory};
use clap_mangen::roff::{Roff, roman};

use super::{Cli, Globals, output};
use crate::failure::{Result, WithHint, usage};

/// Print the manual page of thread or of one command
///
/// The output is roff: pipe it into `man -l -`, or save it in a directory of manual pages.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread man dead list >thread-dead-list.1
  thread man push | man -l -")]
pub struct Man {
    /// The command [default: thread as a whole]
    #[arg(value_name = "COMMAND")]
    words: Vec<String>,
}

impl Man {
    pub fn run(self, _: &Globals) -> Result<()> {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        for word in &self.words {
            let Some(found) = command.find_subcommand(word).cloned() else {
                let name = self.words.join(" ");
                let what = format_args!("there is no command 'thread {name}'");
                return usage(what, "see `thread --help` for all commands");
            };
            command = found;
        }
        let mut page = Vec::new();
        write_page(command, &mut page).with_hint("cannot write the page", "try again")?;
        output::bytes(&page).map(drop)
    }
}

fn write_page(command: clap::Command, page: &mut dyn Write) -> io::Result<()> {
    let after = command.get_after_long_help().or(command.get_after_help());
    let after = after.map_or_else(String::new, |text| text.to_string());
    let bare = command.after_help(None::<&str>).after_long_help(None::<&str>);
    let name = bare.get_bin_name().unwrap_or("thread").to_owned();
    let title = name.replace(' ', "-").to_uppercase();
    let source = concat!("thread ", env!("CARGO_PKG_VERSION"));
    // A blank date, so that the same program prints the same page. An empty one would be left out, and the
    // next field would become the date.
    clap_mangen::Man::new(bare).title(title).date(" ").source(source).manual("thread").render(page)?;

    // Written here, because the generator would join the lines of the examples.
    let mut rest = Roff::new();
    for section in after.split("\n\n") {
        write_section(section, &mut rest);
    }
    // The pages of the program and of the commands that contain this one.
    let words: Vec<&str> = name.split(' ').collect();
    let parents: Vec<String> = (1..words.len()).map(|depth| words[..depth].join("-") + "(1)").collect();
    if !parents.is_empty() {
        rest.control("SH", ["SEE ALSO"]).text([roman(parents.join(", "))]);
    }
    rest.to_writer(page)
}

/// Writes one section of the help below the options: a heading with indented lines, which are kept as they
/// are, or a sentence.
fn write_section(section: &str, page: &mut Roff) {
    let Some((heading, lines)) = section.split_once(":\n") else {
        page.control("PP", []).text([roman(section)]);
        return;
    };
    page.control("SH", [heading.to_uppercase().as_str()]).control("nf", []);
    for line in lines.lines() {
        page.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    page.control("fi", []);
}
