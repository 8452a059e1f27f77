//! Writing the rows of a thread as lines of JSON.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::Path;

use chrono::Utc;

use super::{read_events, read_most_events, read_rest};
use crate::error::{Error, IoContext, Result};
use crate::files::Files;
use crate::model::closed::Closed;
use crate::model::rows::{Table, Tallies, Values, line};
use crate::model::time;
use crate::queue::Queue;

/// Exports a thread, which may be in use. Returns how many rows of each kind.
///
/// # Errors
///
/// [`Error::ImportUnfinished`]; those of the store; that `out` cannot be written.
pub fn export(queue: &mut Queue, out: &mut dyn Write) -> Result<Tallies> {
    if let Some(Closed::Importing { .. }) = queue.store.closed()? {
        return Err(Error::ImportUnfinished);
    }
    let written = |done: io::Result<()>| done.at("write", Path::new("the export"));
    let id = format!("{:x}-{:x}", Utc::now().timestamp_micros(), std::process::id());
    written(out.write_all(line::header(&id, &time::now()).as_bytes()))?;
    let (mut tallies, last) = (Tallies::default(), Cell::new(0));
    let mut write = |out: &mut dyn Write, table: &'static Table, rows: Vec<Values>| -> Result<()> {
        let mut lines = Vec::new();
        for row in &rows {
            tallies.add(table, row);
            line::write(table, row, &mut lines);
            written(out.write_all(&lines))?;
            lines.clear();
        }
        if *table == *Table::events() {
            last.set(rows.last().map_or(last.get(), |row| row[0].number()));
        }
        Ok(())
    };
    read_most_events(&mut *queue.store, 0, &mut |table, rows| write(out, table, rows))?;
    // The reader of the export may be slow, and what was stored at one moment is to be read at once.
    let mut spool = Spool { files: queue.files.clone(), memory: Vec::new(), file: None };
    queue.store.in_snapshot(&mut |store| {
        read_events(store, last.get(), &mut |table, rows| write(&mut spool, table, rows))?;
        read_rest(store, &mut |table, rows| write(&mut spool, table, rows))
    })?;
    written(spool.copy_to(out))?;
    written(out.write_all(line::end(&tallies).as_bytes()).and_then(|()| out.flush()))?;
    Ok(tallies)
}

/// What is kept until it can be written: a few MiB in memory, and more in a file without a name.
struct Spool {
    files: Files,
    memory: Vec<u8>,
    file: Option<File>,
}

const IN_MEMORY: usize = 4 * 1024 * 1024;

impl Write for Spool {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.memory.extend_from_slice(data);
        if self.memory.len() > IN_MEMORY {
            self.flush()?;
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(self.files.make_unnamed_file("run")?),
        };
        file.write_all(&self.memory)?;
        self.memory.clear();
        Ok(())
    }
}

impl Spool {
    fn copy_to(mut self, out: &mut dyn Write) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            file.rewind()?;
            io::copy(file, out)?;
        }
        out.write_all(&self.memory)
    }
}
