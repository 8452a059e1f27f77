//! `thread logs`: the output of a consumer's handler.

mod run;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use clap::Args;

use super::output::{self, Reader, UntrustedOutput};
use super::{ConsumerArg, Globals, limit};
use crate::error::{Error, IoContext};
use crate::failure::{Result, usage};
use crate::files::Access;
use crate::model::subscription::{ConsumerId, Subscription};
use crate::queue::Queue;

/// Polling interval of --follow.
const STEP: Duration = Duration::from_millis(100);

/// Show what a consumer's handler printed
///
/// The handler's standard output and error, with a line before and after each run. On a terminal,
/// control characters in it are shown as text. The name can be left out if there is only one consumer.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread logs -t inbox bot --tail 50 -f
  thread logs -t inbox bot --run last")]
pub struct Logs {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// Only the last N lines
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    tail: Option<u64>,
    /// Keep printing what the handler prints, until the reader closes its end
    #[arg(short = 'f', long)]
    follow: bool,
    /// Only what this run printed, by its number in `thread info CONSUMER --runs`, or `last`
    #[arg(long, value_name = "N", value_parser = run_number, allow_negative_numbers = true,
        conflicts_with_all = ["tail", "follow"])]
    run: Option<RunNumber>,
}

#[derive(Debug, Clone, Copy)]
enum RunNumber {
    Last,
    Of(u64),
}

fn run_number(text: &str) -> std::result::Result<RunNumber, String> {
    match text {
        "last" => Ok(RunNumber::Last),
        number => limit(number).map(RunNumber::Of).map_err(|problem| format!("{problem}, or last")),
    }
}

impl Logs {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let mut queue = globals.open()?;
        let consumer = match self.consumer.name()? {
            Some(name) => ConsumerId::stored(name),
            None => the_only_consumer(&mut queue)?,
        };
        match self.run {
            Some(RunNumber::Of(number)) => {
                return run::print(&mut queue, &consumer, i64::try_from(number).unwrap_or(i64::MAX));
            }
            Some(RunNumber::Last) => {
                let last = queue.runs(&consumer, 1)?.first().map_or(1, |run| run.number);
                return run::print(&mut queue, &consumer, last);
            }
            None => {}
        }
        let files = queue.files().clone();
        let name = files.handler_log(&consumer);
        match queue.store.subscription(&consumer)? {
            Some(Subscription { ran_on: Some(host), .. }) => {
                output::note(format_args!("the last run was on {host}, which has its output"));
            }
            // A log outlives its subscription.
            None if !files.exists(&name) => return Err(Error::UnknownConsumer(consumer).into()),
            _ => {}
        }
        drop(queue);
        let path = files.path_of(&name);
        let mut printed = files.open_file(&name, Access::Read).if_there().at("read", &path)?;
        if let (Some(file), Some(lines)) = (&mut printed, self.tail) {
            let start = start_of_tail(file, lines).at("read", &path)?;
            file.seek(SeekFrom::Start(start)).at("read", &path)?;
        }
        let mut output = UntrustedOutput::to_stdout();
        loop {
            // Opened before the copy: if the log was rotated, the old file is then read to its end before
            // the new one.
            let latest = files.open_file(&name, Access::Read).ok();
            if let Some(file) = &mut printed
                && copy(file, &path, &mut output)? == Reader::Gone
            {
                return Ok(());
            }
            if latest.is_some() && identity(&latest) != identity(&printed) {
                printed = latest;
            }
            if !self.follow {
                return Ok(());
            }
            std::thread::sleep(STEP);
            if output::reader_is_gone() {
                return Ok(());
            }
        }
    }
}

fn the_only_consumer(queue: &mut Queue) -> Result<ConsumerId> {
    let mut names: Vec<ConsumerId> =
        queue.store.subscriptions()?.into_iter().map(|one| one.consumer).collect();
    match names.len() {
        0 => usage("no consumer is subscribed", "give the name of one that was, or `thread subscribe` one"),
        1 => Ok(names.remove(0)),
        _ => {
            let names: Vec<&str> = names.iter().map(ConsumerId::as_str).collect();
            usage("no consumer given", format_args!("give one of {}", output::plain(&names.join(", "))))
        }
    }
}

fn identity(file: &Option<File>) -> Option<(u64, u64)> {
    file.as_ref()?.metadata().ok().map(|about| (about.dev(), about.ino()))
}

/// Prints the rest of a file.
fn copy(file: &mut File, path: &Path, output: &mut UntrustedOutput) -> Result<Reader> {
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let read = file.read(&mut chunk).at("read", path)?;
        if read == 0 {
            return Ok(Reader::There);
        }
        if output.print(&chunk[..read])? == Reader::Gone {
            return Ok(Reader::Gone);
        }
    }
}

/// Offset of the last `lines` lines. Reads backwards, so that the size of the file does not matter.
fn start_of_tail(file: &File, lines: u64) -> io::Result<u64> {
    let mut chunk = vec![0; 64 * 1024];
    // Without the newline at the end of the file, which starts no line.
    let mut end = file.metadata()?.len().saturating_sub(1);
    let mut wanted = lines;
    while end > 0 {
        let start = end.saturating_sub(chunk.len() as u64);
        let part = &mut chunk[..(end - start) as usize];
        file.read_exact_at(part, start)?;
        for at in memchr::memrchr_iter(b'\n', part) {
            wanted -= 1;
            if wanted == 0 {
                return Ok(start + at as u64 + 1);
            }
        }
        end = start;
    }
    Ok(0)
}
