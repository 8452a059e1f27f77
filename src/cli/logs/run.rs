//! `thread logs CONSUMER --run N`: what one run printed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::cli::output::{self, Reader, UntrustedOutput, plain};
use crate::error::{Code, Error, IoContext};
use crate::failure::{Result, failed};
use crate::files::Access;
use crate::model::run::{Run, RunResult, Span};
use crate::model::subscription::ConsumerId;
use crate::queue::Queue;

/// Prints the output of the run with this number: from the log, if that is here and still has it, and else what the store
/// keeps of it.
pub fn print(queue: &mut Queue, consumer: &ConsumerId, number: i64) -> Result<()> {
    let Some(run) = queue.run(consumer, number)? else {
        if queue.runs(consumer, 1)?.is_empty() && queue.find_subscription(consumer)?.is_none() {
            return Err(Error::UnknownConsumer(consumer.clone()).into());
        }
        return failed(
            Code::Failed,
            format_args!("there is no run {number} of '{consumer}'"),
            format_args!("`thread info {consumer} --runs` lists those that are kept"),
        );
    };
    let name = queue.files().handler_log(consumer);
    if let Some(span) = run.output {
        let path = queue.files().path_of(&name);
        let log = queue.files().open_file(&name, Access::Read).if_there().at("read", &path)?;
        if let Some(log) = log
            && is_of_a_run(&log, span).at("read", &path)?
        {
            return copy(&log, span).at("read", &path)?;
        }
    }
    match &run.tail {
        Some(tail) => print_tail(&run, tail),
        None => Err(missing(queue, consumer, &run)),
    }
}

/// Whether what is there in a log follows the line that comes before the output of a run: it may be another machine's.
fn is_of_a_run(log: &File, span: Span) -> io::Result<bool> {
    const LONGEST: u64 = 256;
    if span.offset == 0 {
        return Ok(true);
    }
    let start = span.offset.saturating_sub(LONGEST);
    let mut before = vec![0; usize::try_from(span.offset - start).unwrap_or(0)];
    log.read_exact_at(&mut before, start)?;
    let Some((b'\n', before)) = before.split_last() else { return Ok(false) };
    let line = before.iter().rposition(|byte| *byte == b'\n').map_or(before, |at| &before[at + 1..]);
    Ok(line.starts_with(b"=== "))
}

fn copy(log: &File, span: Span) -> io::Result<Result<()>> {
    let mut output = UntrustedOutput::to_stdout();
    let mut chunk = vec![0; 64 * 1024];
    let (mut at, mut left) = (span.offset, span.length);
    while left > 0 {
        let most = chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = log.read_at(&mut chunk[..most], at)?;
        if read == 0 {
            break;
        }
        (at, left) = (at + read as u64, left - read as u64);
        match output.print(&chunk[..read]) {
            Ok(Reader::There) => {}
            done => return Ok(done.map(drop)),
        }
    }
    Ok(Ok(()))
}

fn print_tail(run: &Run, tail: &str) -> Result<()> {
    let host = run.host.as_deref().unwrap_or("another machine");
    output::note(format_args!("this is the end of what it printed, as it was kept; its log is on {host}"));
    let end = if tail.is_empty() || tail.ends_with('\n') { "" } else { "\n" };
    UntrustedOutput::to_stdout().print(format!("{tail}{end}").as_bytes()).map(drop)
}

/// Why there is nothing to print.
fn missing(queue: &Queue, consumer: &ConsumerId, run: &Run) -> crate::failure::Failure {
    let Run { number, .. } = run;
    let whole = format!("`thread logs {consumer}`");
    let (what, hint) = match (&run.host, run.result) {
        (_, RunResult::Unknown) => {
            let what =
                format!("what run {number} of '{consumer}' printed is not known: its supervisor was killed");
            (what, format!("{whole} on the machine of the run may show it"))
        }
        (Some(host), _) => {
            let what = format!("the output of run {number} of '{consumer}' is not kept here");
            (what, format!("look for it with {whole} on {}, unless its log was rotated", plain(host)))
        }
        (None, _) => {
            let what = format!(
                "the log has no output of run {number} of '{consumer}', or no longer, as it was rotated"
            );
            let dir = queue.files().path_of(crate::files::HANDLER_LOGS);
            (what, format!("{whole} shows what is there, and rotated logs are in {}", dir.display()))
        }
    };
    crate::failure::Failure::failed(what, hint)
}
