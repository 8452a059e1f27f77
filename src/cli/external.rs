//! External commands, as in git: `thread hello` runs `thread-hello`, from this program's directory or else
//! from `PATH`.

#![expect(clippy::disallowed_types, reason = "programs take its place")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, CommandFactory, FromArgMatches, value_parser};

use super::{Cli, Globals, environment, signals};
use crate::failure::{Result, WithHint};
use crate::files::absolute_location;
use crate::model::location::Location;
use crate::queue::locations;
use crate::run::launcher::{self, executable_in, is_executable};

const PREFIX: &str = "thread-";

/// Executes the external command that the command line names, in place of this process, so that stdin,
/// stdout, signals and the exit code are its own. Returns only if there is none, or it cannot be run.
pub fn run(args: &[OsString]) -> Result<()> {
    let Some((globals, mut name, mut words)) = parse(args) else { return Ok(()) };
    if name == "help" && !words.is_empty() {
        name = words.remove(0);
        words.insert(0, "--help".into());
    }
    if Cli::command().find_subcommand(&name).is_some() {
        return Ok(());
    }
    let mut file = OsString::from(PREFIX);
    file.push(&name);
    let named = (!file.as_encoded_bytes().contains(&b'/')).then_some(file);
    let program = named.and_then(|file| executable_in(directories(), file));
    let Some(program) = program else { return Ok(()) };
    globals.enter()?;
    let mut command = Command::new(&program);
    if let Some(thread) = globals.thread.last() {
        command.env("THREAD_DIR", absolute_location(thread)?.as_os_str());
    }
    command.args(globals.json.then_some("--json")).args(words);
    replace_this(command)
}

/// Executes `thread-<scheme>` with this program's arguments, in place of this process, if the thread is in a
/// location that only that program knows. Returns only if this one knows it, or there is none.
#[expect(clippy::disallowed_methods, reason = "the program of a scheme is found by its name")]
pub fn hand_over(location: &Location, args: &[OsString]) -> Result<()> {
    if locations::is_known(location) {
        return Ok(());
    }
    let file = format!("{PREFIX}{}", location.scheme().unwrap_or_default());
    let Some(program) = executable_in(directories(), file) else { return Ok(()) };
    let mut command = Command::new(&program);
    command.args(&args[1..]);
    replace_this(command)
}

/// Returns only if that fails.
fn replace_this(mut command: Command) -> Result<()> {
    signals::restore_for_exec();
    let failed = command.exec();
    let program = Path::new(command.get_program()).display();
    Err(failed).with_hint(format_args!("cannot run {program}"), "check the file and its first line")
}

/// The options before the command's name, the name, and the unparsed arguments after it.
fn parse(args: &[OsString]) -> Option<(Globals, OsString, Vec<OsString>)> {
    let program = Globals::augment_args(clap::Command::new("thread").disable_help_subcommand(true))
        .allow_external_subcommands(true)
        .external_subcommand_value_parser(value_parser!(OsString));
    let matches = program.try_get_matches_from(args).ok()?;
    let (name, rest) = matches.subcommand()?;
    let words = rest.get_many::<OsString>("").into_iter().flatten().cloned().collect();
    Some((Globals::from_arg_matches(&matches).ok()?, name.into(), words))
}

/// The directories to search for external commands, in order.
fn directories() -> Vec<PathBuf> {
    let own = environment::own_program().ok();
    let beside = own.as_deref().and_then(Path::parent).map(Path::to_owned);
    beside.into_iter().chain(launcher::directories(&environment::path())).collect()
}

/// The section of the help that lists external commands; empty if there are none. It gives their names alone, so that
/// the help looks the same wherever the programs are.
#[expect(clippy::disallowed_methods, reason = "looks for programs")]
pub fn listed() -> String {
    let mut found = BTreeSet::new();
    for entry in directories().iter().flat_map(std::fs::read_dir).flatten().flatten() {
        let file = entry.file_name();
        let name = file.to_str().and_then(|file| file.strip_prefix(PREFIX)).filter(|name| !name.is_empty());
        found.extend(name.filter(|_| is_executable(&entry.path())).map(str::to_owned));
    }
    let own = Cli::command();
    found.retain(|name| own.find_subcommand(name).is_none());
    if found.is_empty() {
        return String::new();
    }
    let names = Vec::from_iter(found).join(" ");
    format!("Further programs, which run as commands of thread:\n  {names}\n\n")
}
