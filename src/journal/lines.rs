//! The lines of the copy, one at a time.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::rotation;

/// How every line begins.
const HEAD: &[u8] = b"{\"id\":";

/// What is read of the copy.
pub struct Lines {
    file: BufReader<File>,
    /// The line that is looked at, with its newline; empty before it is looked at.
    line: Vec<u8>,
}

impl Lines {
    /// The lines that begin at this place of the file.
    pub fn after(mut file: File, bytes: u64) -> io::Result<Lines> {
        file.seek(SeekFrom::Start(bytes))?;
        Ok(Lines { file: BufReader::with_capacity(64 * 1024, file), line: Vec::new() })
    }

    /// The line that comes next; empty when there is none. The last may be torn.
    pub fn peek(&mut self) -> io::Result<&[u8]> {
        if self.line.is_empty() {
            (&mut self.file).take(HEAD.len() as u64).read_until(b'\n', &mut self.line)?;
            if self.line == HEAD {
                self.file.read_until(b'\n', &mut self.line)?;
            } else if self.line.last() != Some(&b'\n') {
                // Garbage is not taken into memory, however long it is: its beginning tells enough.
                self.file.skip_until(b'\n')?;
            }
        }
        Ok(&self.line)
    }

    /// Goes on to the line after it.
    pub fn next(&mut self) {
        self.line.clear();
    }

    /// The id of the line that was looked at, if it is a whole line of an event.
    pub fn id(&self) -> Option<i64> {
        let rest = self.line.strip_prefix(HEAD)?;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (id, rest) = rest.split_at(digits);
        let whole = rest.starts_with(b",\"created_at\":") && rest.ends_with(b"}\n");
        if !whole || serde_json::from_slice::<IgnoredAny>(&self.line).is_err() {
            return None;
        }
        std::str::from_utf8(id).ok()?.parse().ok()
    }

    /// Whether this holds for the id of any line from here on.
    pub fn any(&mut self, mut holds: impl FnMut(i64) -> anyhow::Result<bool>) -> anyhow::Result<bool> {
        while !self.peek()?.is_empty() {
            if let Some(id) = self.id()
                && holds(id)?
            {
                return Ok(true);
            }
            self.next();
        }
        Ok(false)
    }
}

/// The id of the last whole line in the rotated copies; 0 when there is none. Somebody may have
/// emptied a file instead of deleting it: then the one before tells.
pub fn last_id(dir: &Path) -> io::Result<i64> {
    for name in rotation::names(dir, "events-", "jsonl")?.iter().rev() {
        if let Some(id) = last_id_of(&dir.join(name))? {
            return Ok(id);
        }
    }
    Ok(0)
}

/// The same of one file; nothing when it has no such line.
pub fn last_id_of(path: &Path) -> io::Result<Option<i64>> {
    #[derive(Deserialize)]
    struct Line {
        id: i64,
    }
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut size = 64 * 1024;
    loop {
        let mut tail = Vec::new();
        file.seek(SeekFrom::Start(length.saturating_sub(size)))?;
        (&file).take(size).read_to_end(&mut tail)?;
        let lines = tail.split(|&b| b == b'\n').rev();
        if let Some(line) = lines.filter_map(|line| serde_json::from_slice::<Line>(line).ok()).next() {
            return Ok(Some(line.id));
        }
        if size >= length {
            return Ok(None);
        }
        size = size.saturating_mul(16);
    }
}
