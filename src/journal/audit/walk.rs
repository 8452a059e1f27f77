//! One way through the copy and the table side by side, line by line, in bounded memory.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Take};
use std::ops::Range;

use anyhow::Context;
use serde::de::IgnoredAny;

use super::Faults;
use super::repair::Draft;
use crate::files::Files;
use crate::journal::Place;
use crate::progress::Progress;
use crate::rotation::MAX_LINES;
use crate::store::{Reading, Store};

/// Lines up to this many bytes are read whole, longer ones only where the table has such.
const LINE: usize = 1024 * 1024;

/// As many bytes of rows are held at a time.
pub const PAGE: usize = 256 * 1024;

/// One way through the copy and the table side by side.
pub struct Walk<'s> {
    rows: Rows<'s>,
    /// The newest id ever given.
    newest_ever: i64,
    /// The last event that had its line.
    pub after: i64,
    /// Whether events may lack a line before the first one of the file: a file that was rotated
    /// before this one may have been removed.
    gap_allowed: bool,
    progress: Progress,
}

/// What the way through one file came to.
#[derive(Debug, Default)]
pub struct Walked {
    pub faults: Faults,
    /// Some line tells of an event in a way that the table does not: nothing else may know of it.
    pub has_more: bool,
    /// The place after the last line.
    pub end: Place,
    /// The id after which the file begins.
    pub base: i64,
}

impl<'s> Walk<'s> {
    pub fn new(store: &'s mut Store, upto: i64) -> anyhow::Result<Walk<'s>> {
        let newest_ever = store.newest_ever()?;
        let progress = Progress::of("checking events.jsonl", None);
        Ok(Walk { rows: Rows::after(store, 0, upto), newest_ever, after: 0, gap_allowed: true, progress })
    }

    /// Goes back.
    pub fn restart(&mut self, after: i64) {
        self.after = after;
        self.rows.restart(after);
    }

    /// Passes on to the current file, which begins after `base` where that is known.
    pub fn enter_current(&mut self, base: Option<i64>) {
        let Some(base) = base else { return };
        self.gap_allowed = false;
        if is_file_long(self.after, base) || self.after == 0 {
            self.restart(base.max(self.after));
        }
    }

    /// Goes through the first `length` bytes of a file, and writes what it should be to `draft`.
    pub fn file(
        &mut self,
        file: &File,
        length: u64,
        mut draft: Option<&mut Draft>,
    ) -> anyhow::Result<Walked> {
        let mut lines = Lines::of(file, length)?;
        let mut walked = Walked { base: self.after, ..Walked::default() };
        let faults = &mut walked.faults;
        let mut begun = false;
        while let Some(line) = lines.next(self.rows.peek()?.map_or(0, |(_, row)| row.len()))? {
            self.progress.advance(1);
            let Some(id) = line.id.filter(|_| line.is_whole) else {
                faults.note(lines.number);
                if line.is_whole {
                    faults.wrong += 1
                } else {
                    faults.torn = true
                }
                continue;
            };
            if id <= self.after {
                faults.note(lines.number);
                faults.repeated += 1;
                continue;
            }
            let verdict = self.judge(id, &lines.text, &line)?;
            if !matches!(verdict, Verdict::Right | Verdict::Pruned) {
                faults.note(lines.number);
            }
            match verdict {
                Verdict::Unknown => {
                    faults.unknown += 1;
                    walked.has_more = true;
                    continue;
                }
                Verdict::Wrong => {
                    faults.wrong += 1;
                    walked.has_more |= line.is_event(&lines.text);
                    // The event whose line this should be gets its own.
                    if self.rows.peek()?.is_some_and(|(next, _)| next == id) {
                        self.pass_row(draft.as_deref_mut())?;
                        begun = true;
                    }
                    continue;
                }
                Verdict::Right | Verdict::Pruned => {}
            }
            if !begun && self.gap_allowed && is_file_long(self.after, id - 1) {
                // As many lines before it as are spoilt were of this file.
                walked.base = id - 1 - i64::try_from(faults.wrong).unwrap_or(0);
                walked.base = walked.base.max(self.after);
                self.restart(walked.base);
            }
            begun = true;
            while self.rows.peek()?.is_some_and(|(next, _)| next < id) {
                faults.note(lines.number);
                faults.missing += 1;
                self.pass_row(draft.as_deref_mut())?;
            }
            if matches!(verdict, Verdict::Right) {
                self.pass_row(draft.as_deref_mut())?;
            } else {
                self.after = id;
                if let Some(draft) = &mut draft {
                    draft.line(id, &lines.text, &line)?;
                }
            }
        }
        walked.end = Place { bytes: length, lines: lines.number, id: self.after };
        Ok(walked)
    }

    /// The first event of the file after a rotated one, where that can be told: `later` are the
    /// rotated files that follow, and the current one begins after `base`.
    pub fn start_of_next(
        &mut self,
        files: &Files,
        later: &[String],
        base: Option<i64>,
    ) -> anyhow::Result<Option<i64>> {
        for name in later {
            let file = match File::open(files.dir().join(name)) {
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                opened => opened.with_context(|| format!("cannot open {name}"))?,
            };
            let mut lines = Lines::of(&file, file.metadata()?.len())?;
            // Somebody may have emptied a file instead of deleting it.
            let Some(line) = lines.next(0)? else { continue };
            return match line.id.filter(|_| line.is_whole) {
                Some(id) => Ok(self.rows.look_up(id, &lines.text)?.filter(|&same| same).map(|_| id)),
                None => Ok(None),
            };
        }
        Ok(base.map(|base| base.saturating_add(1)))
    }

    /// What a rotated file lacks at its end, before the event with which the next file begins. Where
    /// a whole file fits between the two, that was removed.
    pub fn end_of_rotated(
        &mut self,
        walked: &mut Walked,
        next: Option<i64>,
        draft: Option<&mut Draft>,
    ) -> anyhow::Result<()> {
        match next {
            Some(next) if !is_file_long(self.after, next - 1) => self.rest(walked, next, draft),
            _ => Ok(()),
        }
    }

    /// What the table has before the event `before`, and no line.
    pub fn rest(
        &mut self,
        walked: &mut Walked,
        before: i64,
        mut draft: Option<&mut Draft>,
    ) -> anyhow::Result<()> {
        while self.rows.peek()?.is_some_and(|(id, _)| id < before) {
            self.progress.advance(1);
            walked.faults.note(walked.end.lines + 1);
            walked.faults.missing += 1;
            self.pass_row(draft.as_deref_mut())?;
        }
        Ok(())
    }

    fn judge(&mut self, id: i64, text: &[u8], line: &Line) -> anyhow::Result<Verdict> {
        let next = self.rows.peek()?;
        let same = match next {
            Some((next, row)) if next == id => Some(row == text),
            Some((next, _)) if next < id => self.rows.look_up(id, text)?,
            _ => None,
        };
        Ok(match same {
            Some(true) => Verdict::Right,
            Some(false) => Verdict::Wrong,
            None if id > self.newest_ever => Verdict::Unknown,
            None if line.is_event(text) => Verdict::Pruned,
            None => Verdict::Wrong,
        })
    }

    /// Moves past the next row, and writes its line.
    fn pass_row(&mut self, draft: Option<&mut Draft>) -> anyhow::Result<()> {
        if let Some((id, row)) = self.rows.peek()? {
            if let Some(draft) = draft {
                draft.row(id, row)?;
            }
            self.after = id;
            self.rows.pass();
        }
        Ok(())
    }
}

/// What a line with an id is.
enum Verdict {
    /// Just its event.
    Right,
    /// An event's that is no longer stored.
    Pruned,
    Wrong,
    /// It was never stored in this table.
    Unknown,
}

/// Whether a whole rotated file fits between these ids: they are set aside with more lines only.
fn is_file_long(after: i64, upto: i64) -> bool {
    upto.saturating_sub(after).unsigned_abs() > MAX_LINES && upto > after
}

/// The rows of the table as lines, oldest first, a page at a time.
struct Rows<'s> {
    store: &'s mut Store,
    reading: Reading<'static>,
    upto: i64,
    more: bool,
    page: Vec<u8>,
    /// Where the lines of the page are that have not been passed.
    waiting: VecDeque<(i64, Range<usize>)>,
}

impl Rows<'_> {
    fn after(store: &mut Store, after: i64, upto: i64) -> Rows<'_> {
        let reading = Reading { after, left: None, filter: None };
        Rows { store, reading, upto, more: true, page: Vec::new(), waiting: VecDeque::new() }
    }

    fn restart(&mut self, after: i64) {
        self.reading.after = after;
        self.waiting.clear();
        self.more = true;
    }

    fn peek(&mut self) -> anyhow::Result<Option<(i64, &[u8])>> {
        while self.waiting.is_empty() && self.more {
            self.page.clear();
            let (page, waiting, upto) = (&mut self.page, &mut self.waiting, self.upto);
            let mut is_past = false;
            let more = self.store.read_rows(&mut self.reading, |row| {
                is_past = row.id > upto;
                if !is_past {
                    let start = page.len();
                    row.write_line(page);
                    waiting.push_back((row.id, start..page.len()));
                }
                !is_past && page.len() < PAGE
            })?;
            self.more = more && !is_past;
        }
        Ok(self.waiting.front().map(|(id, range)| (*id, &self.page[range.clone()])))
    }

    fn pass(&mut self) {
        self.waiting.pop_front();
    }

    /// Whether the line of that event is this text; nothing when there is no such event.
    fn look_up(&mut self, id: i64, text: &[u8]) -> anyhow::Result<Option<bool>> {
        let mut one = Reading { after: id - 1, left: Some(1), filter: None };
        let (mut same, mut line) = (None, Vec::new());
        self.store.read_rows(&mut one, |row| {
            if row.id == id {
                row.write_line(&mut line);
                same = Some(line == text);
            }
            false
        })?;
        Ok(same)
    }
}

/// The lines of a file, whatever it holds, in bounded memory.
struct Lines<'f> {
    reader: BufReader<Take<&'f File>>,
    /// The line read last, from 1; its text is cut off when it is longer than any line should be.
    number: u64,
    text: Vec<u8>,
    offset: u64,
}

/// What is known of the line read last.
pub struct Line {
    pub offset: u64,
    pub length: u64,
    /// Whether it ends in a newline.
    is_whole: bool,
    /// The event it says it is.
    id: Option<i64>,
}

impl<'f> Lines<'f> {
    fn of(mut file: &'f File, length: u64) -> io::Result<Lines<'f>> {
        file.seek(SeekFrom::Start(0))?;
        let reader = BufReader::with_capacity(64 * 1024, file.take(length));
        Ok(Lines { reader, number: 0, text: Vec::new(), offset: 0 })
    }

    /// Reads the next line; `expected` is how long the line is that should come.
    fn next(&mut self, expected: usize) -> io::Result<Option<Line>> {
        let most = expected.max(LINE) as u64;
        self.text.clear();
        let mut length = (&mut self.reader).take(most).read_until(b'\n', &mut self.text)? as u64;
        if length == 0 {
            return Ok(None);
        }
        let mut is_whole = self.text.ends_with(b"\n");
        while !is_whole && length >= most {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                break;
            }
            let end = memchr::memchr(b'\n', buffer);
            let used = end.map_or(buffer.len(), |end| end + 1);
            is_whole = end.is_some();
            self.reader.consume(used);
            length += used as u64;
        }
        let line = Line { offset: self.offset, length, is_whole, id: id_of(&self.text) };
        self.offset += length;
        self.number += 1;
        Ok(Some(line))
    }
}

impl Line {
    /// Whether it has the form of an event, as far as it was read.
    fn is_event(&self, text: &[u8]) -> bool {
        self.length > text.len() as u64 || serde_json::from_slice::<IgnoredAny>(text).is_ok()
    }
}

/// The id at the beginning of an event's line.
fn id_of(line: &[u8]) -> Option<i64> {
    let rest = line.strip_prefix(b"{\"id\":")?;
    let end = memchr::memchr(b',', rest)?;
    rest[end..].strip_prefix(b",\"created_at\":\"")?;
    let id: i64 = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
    (id > 0).then_some(id)
}
