//! `thread export`: all rows of a thread as NDJSON.

use std::io::{self, Write};

use clap::Args;

use super::{Globals, environment};
use crate::failure::Result;
use crate::maintenance::moving;

/// Print everything that is in the thread, as NDJSON
///
/// Prints events with their ids, times and idempotency keys, settings, consumers with their options, cursors and what
/// they have finished, waits, dead letters, past runs, scheduled events and schedules, as of one moment. `thread import`
/// makes a thread of it that is the same. The thread may be in use.
///
/// The first line is a header, the last has the number of lines of each kind, so a file that was cut off is noticed.
/// Claims are left out: their events are pending in the other thread. Logs and sealed parts of the JSONL log are not in
/// it; to keep those, use `thread backup`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread export -t inbox >inbox.ndjson
  thread export -t inbox | thread import -t other")]
pub struct Export {}

impl Export {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let mut queue = globals.open()?;
        let mut stdout = Stdout { is_gone: false };
        let mut out = io::BufWriter::with_capacity(256 * 1024, &mut stdout);
        let exported = moving::export(&mut queue, &mut out);
        drop(out.into_parts());
        match exported {
            // Nobody reads it any more.
            Err(_) if stdout.is_gone => Ok(()),
            exported => Ok(exported.map(drop)?),
        }
    }
}

/// Stdout, whose reader may go.
struct Stdout {
    is_gone: bool,
}

impl Write for Stdout {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = environment::stdout().write(data);
        self.is_gone |= written.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::BrokenPipe);
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        environment::stdout().flush()
    }
}
