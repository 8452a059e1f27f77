//! `thread import`: making a thread the same as one that was exported.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use rustix::fs::FileType;
use serde_json::{Map, Value, json};

use super::progress::Progress;
use super::{Globals, environment, output, signals, stdin};
use crate::error::{Code, Error};
use crate::failure::{Result, WithHint, failed};
use crate::maintenance::moving;
use crate::model::rows::Tallies;
use crate::model::subscription::ConsumerId;
use crate::queue::Queue;

/// Store everything that `thread export` printed, in an empty thread
///
/// The thread must exist and be empty. All of the file is checked before anything is stored, and refused with the number
/// of the line if anything is wrong with it. Then events are stored in pieces, and the rest in one step. As long as it
/// is not complete, nobody can push to the thread; if the import was interrupted, the same command continues it.
///
/// At the end everything is read back and compared, and the number of rows of each kind is printed with a digest. All
/// consumers are paused, so nothing is handled twice; `thread resume` releases one.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread init new && thread import -t new inbox.ndjson
  thread export -t inbox | thread import -t new")]
pub struct Import {
    /// The file that was exported; - is stdin
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath, default_value = "-")]
    file: PathBuf,
}

impl Import {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let mut queue = globals.open()?;
        let file = if self.file == Path::new("-") { of_stdin(&queue)? } else { open(&self.file)? };
        let hint = "give a file, or - and a pipe; nothing was stored";
        let length = file.metadata().with_hint("cannot read the export", hint)?.len();
        // It is read twice.
        let mut progress = Progress::of("importing", Some(length.saturating_mul(2)));
        let mut input = BufReader::with_capacity(256 * 1024, file);
        let imported = moving::import(&mut queue, &mut input, &mut |bytes| progress.advance(bytes))?;
        drop(progress);
        signals::defer();
        warn_if_behind(imported.log_behind.as_ref());
        print(&imported.rows, &imported.paused, json!({}), globals);
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "a file of the user")]
fn open(path: &Path) -> Result<File> {
    let what = format!("cannot read {}", path.display());
    let file = File::open(path).with_hint(&what, "check the path; nothing was stored")?;
    if !file.metadata().is_ok_and(|about| about.is_file()) {
        return failed(
            Code::Io,
            format!("{what}: it is not a file"),
            "pipe it to `thread import -`; nothing was stored",
        );
    }
    Ok(file)
}

/// Stdin, if that is a file, or else a file with what was read from it: all of it is checked first.
fn of_stdin(queue: &Queue) -> Result<File> {
    if stdin::is_closed() {
        return failed(
            Code::Io,
            "cannot read the export from stdin, which is closed or not connected to anything",
            "give it a file or a pipe; nothing was stored",
        );
    }
    let hint = "free some space, then import it again; nothing was stored";
    let what = "cannot keep what was read from stdin";
    let is_file = rustix::fs::fstat(environment::stdin())
        .is_ok_and(|about| FileType::from_raw_mode(about.st_mode).is_file());
    if is_file {
        let stdin = environment::stdin().as_fd().try_clone_to_owned();
        return Ok(stdin
            .with_hint("cannot read from stdin", "name the file instead; nothing was stored")?
            .into());
    }
    let mut file = queue.files.make_unnamed_file("run").with_hint(what, hint)?;
    let mut input = environment::stdin().lock();
    let mut chunk = vec![0; 256 * 1024];
    loop {
        match input.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => file.write_all(&chunk[..read]).with_hint(what, hint)?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                return Err(e).with_hint("cannot read from stdin", "import it again; nothing was stored");
            }
        }
    }
    file.rewind().with_hint(what, hint)?;
    Ok(file)
}

pub(super) fn warn_if_behind(log_behind: Option<&Error>) {
    if let Some(e) = log_behind {
        output::warn(format_args!(
            "everything is stored, but events.jsonl is behind: {e}; the next push brings it up to date"
        ));
    }
}

/// Prints what was moved: for each kind of row a line with the number and the digest of all. As JSON, in one object with
/// these facts.
pub(super) fn print(rows: &Tallies, paused: &[ConsumerId], mut facts: Value, globals: &Globals) {
    let moved = || rows.iter().filter(|(table, tally)| tally.count > 0 && table.kind != "thread");
    let names: Vec<&str> = paused.iter().map(ConsumerId::as_str).collect();
    let printed = if globals.json {
        let rows: Map<_, _> = moved().map(|(table, tally)| (table.kind.to_owned(), json!(tally))).collect();
        facts["rows"] = Value::Object(rows);
        facts["paused"] = json!(names);
        output::line(facts)
    } else {
        let lines =
            moved().map(|(table, tally)| format!("{}\t{}\t{}\n", table.kind, tally.count, tally.digest));
        output::bytes(lines.collect::<String>().as_bytes()).map(drop)
    };
    output::confirm(printed, "everything is stored");
    if !paused.is_empty() {
        output::note(format_args!(
            "these consumers are paused and were not before: {}; `thread resume` releases one",
            names.join(", ")
        ));
    }
}
