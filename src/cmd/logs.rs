//! `thread logs`: what a consumer's handler printed.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use clap::Args;

use crate::cmd::{ConsumerArg, ThreadArg, unknown_consumer};
use crate::error::{Failure, Result};
use crate::output::{self, Foreign, Reader};

/// How often a followed log is looked at.
const STEP: Duration = Duration::from_millis(100);

/// Show what a consumer's handler printed
///
/// The handler's standard output and error, with a line before and after each run. On a terminal,
/// control characters in it stand as text.
#[derive(Args)]
#[command(after_help = "Example:\n  thread logs --thread inbox --consumer bot --tail 50 -f")]
pub struct Logs {
    #[command(flatten)]
    thread: ThreadArg,
    #[command(flatten)]
    consumer: ConsumerArg,
    /// Only the last N lines
    #[arg(long, value_name = "N", value_parser = crate::cmd::limit, allow_negative_numbers = true)]
    tail: Option<u64>,
    /// Go on printing as more comes, until the reader goes away
    #[arg(short = 'f', long)]
    follow: bool,
    /// Print errors as JSON
    #[arg(long)]
    json: bool,
}

impl Logs {
    pub fn run(self) -> Result<()> {
        let consumer = self.consumer.existing()?;
        let thread = self.thread.open()?;
        let subscribed = thread.store.subscription(&consumer)?.is_some();
        let path = thread.files.handler_log(&consumer);
        if !subscribed && !path.exists() {
            return Err(unknown_consumer(&consumer));
        }
        drop(thread);
        let mut printed = match File::open(&path) {
            Ok(file) => Some(file),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(cannot_read(&path, &e)),
        };
        let mut output = Foreign::to_stdout();
        if let Some(file) = &mut printed {
            if let Some(lines) = self.tail {
                let start = start_of_tail(file, lines).map_err(|e| cannot_read(&path, &e))?;
                file.seek(SeekFrom::Start(start)).map_err(|e| cannot_read(&path, &e))?;
            }
            if copy(file, &path, &mut output)? == Reader::Gone {
                return Ok(());
            }
        }
        while self.follow && !output::reader_is_gone(STEP) {
            // Asked first: a log that was set aside is read to its end before the new one is begun.
            let current = is_current(printed.as_ref(), &path);
            if let Some(file) = &mut printed
                && copy(file, &path, &mut output)? == Reader::Gone
            {
                return Ok(());
            }
            if !current {
                printed = File::open(&path).ok();
            }
        }
        Ok(())
    }
}

fn cannot_read(path: &Path, error: &io::Error) -> Failure {
    Failure::could_not(format_args!("cannot read {}: {error}", path.display()), "check its permissions")
}

fn is_current(file: Option<&File>, path: &Path) -> bool {
    match (file.map(File::metadata), fs::metadata(path)) {
        (Some(Ok(open)), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        (None, Ok(_)) => false,
        _ => true,
    }
}

/// Prints the rest of a file.
fn copy(file: &mut File, path: &Path, output: &mut Foreign) -> Result<Reader> {
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let read = file.read(&mut chunk).map_err(|e| cannot_read(path, &e))?;
        if read == 0 {
            return Ok(Reader::There);
        }
        if output.print(&chunk[..read])? == Reader::Gone {
            return Ok(Reader::Gone);
        }
    }
}

/// Where the last `lines` lines begin. Reads backwards, so that the size of the file is no matter.
fn start_of_tail(file: &mut File, lines: u64) -> io::Result<u64> {
    const CHUNK: u64 = 64 * 1024;
    let length = file.metadata()?.len();
    let (mut from, mut wanted) = (length, lines);
    while from > 0 {
        let start = from.saturating_sub(CHUNK);
        file.seek(SeekFrom::Start(start))?;
        let mut chunk = Vec::new();
        (&*file).take(from - start).read_to_end(&mut chunk)?;
        for (at, _) in chunk.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            let after = start + at as u64 + 1;
            if after == length {
                // The newline that ends the last line begins none.
                continue;
            }
            wanted -= 1;
            if wanted == 0 {
                return Ok(after);
            }
        }
        from = start;
    }
    Ok(0)
}
