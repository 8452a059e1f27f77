//! A batch on its way from a pipe to the database.
//!
//! Everything is read and checked before the write transaction begins, so that a slow producer
//! holds no lock. What was checked is kept in a compact form of our own: in memory up to a few
//! MiB, beyond that in an unlinked file in the thread's directory, so that memory stays bounded
//! and nothing is left behind, whatever happens.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

use crate::error::{Failure, OrFix, Result};
use crate::event::{NewEvent, Type};

/// Beyond this the batch goes to a file.
const IN_MEMORY: usize = 4 * 1024 * 1024;

/// Longest line, in bytes: no longer row fits the database.
const MAX_LINE: u64 = 1_000_000_000;

/// Checked events, waiting to be stored.
pub struct Batch {
    events: Spool,
    /// Events whose structured source does not fit its form: how many, the first one's line, and
    /// the form.
    pub odd_sources: Option<(u64, u64, &'static str)>,
    /// The source of the last event.
    pub last_source: Option<String>,
}

enum Spool {
    Memory(Vec<u8>),
    File(File),
}

impl Batch {
    /// Reads NDJSON to its end. `room` is the directory where a large batch is kept.
    ///
    /// # Errors
    ///
    /// The first line that is no event, by its number (from 1, blank lines counted); or what went
    /// wrong with reading or keeping.
    pub fn read(input: impl Read, room: &Path) -> Result<Batch> {
        let mut input = BufReader::with_capacity(256 * 1024, input);
        let mut batch = Batch { events: Spool::Memory(Vec::new()), odd_sources: None, last_source: None };
        let mut spill: Option<BufWriter<File>> = None;
        let (mut line, mut encoded, mut number) = (Vec::new(), Vec::new(), 0);
        let mut last_source = String::new();
        let cannot_keep = "cannot keep the batch beside the database, nothing was stored";
        let fix = "free some space, then push again";
        loop {
            line.clear();
            let read = input.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut line);
            let read = read.or_fix("cannot read the batch, nothing was stored", "push again")?;
            if read == 0 {
                break;
            }
            number += 1;
            if number == 1 && line.starts_with(b"\xef\xbb\xbf") {
                line.drain(..3);
            }
            let text = line.trim_ascii();
            if text.is_empty() {
                continue;
            }
            let event = if read as u64 > MAX_LINE {
                Err(format!("is longer than {MAX_LINE} bytes"))
            } else {
                NewEvent::from_json(text).map_err(|unfit| unfit.0)
            };
            let event = event.map_err(|what| {
                Failure::asked_wrongly(
                    format_args!("line {number} of the batch {what}"),
                    "mend that line and push the whole batch again; nothing was stored",
                )
            })?;
            if let Some(form) = event.source_warning() {
                batch.odd_sources.get_or_insert((0, number, form)).0 += 1;
            }
            last_source.clear();
            last_source.push_str(&event.source);
            encode(&event, &mut encoded);
            if encoded.len() >= IN_MEMORY {
                let file = match &mut spill {
                    Some(file) => file,
                    None => {
                        spill.insert(BufWriter::new(tempfile::tempfile_in(room).or_fix(cannot_keep, fix)?))
                    }
                };
                file.write_all(&encoded).or_fix(cannot_keep, fix)?;
                encoded.clear();
            }
        }
        batch.last_source = (!last_source.is_empty()).then_some(last_source);
        batch.events = match spill {
            None => Spool::Memory(encoded),
            Some(mut file) => {
                let written =
                    file.write_all(&encoded).and_then(|()| file.into_inner().map_err(|e| e.into_error()));
                let mut file = written.or_fix(cannot_keep, fix)?;
                file.rewind().or_fix(cannot_keep, fix)?;
                Spool::File(file)
            }
        };
        Ok(batch)
    }

    pub fn is_empty(&self) -> bool {
        self.last_source.is_none()
    }

    /// Hands over the events, in order.
    pub fn for_each(&self, take: impl FnMut(&NewEvent<'_>) -> Result<()>) -> Result<()> {
        match &self.events {
            Spool::Memory(bytes) => decode_all(&mut &bytes[..], take),
            Spool::File(file) => decode_all(&mut BufReader::with_capacity(256 * 1024, file), take),
        }
    }
}

/// Appends an event: its texts, each behind its length; an optional one behind a mark of its presence.
fn encode(event: &NewEvent<'_>, out: &mut Vec<u8>) {
    let mut text = |text: &str| {
        out.extend_from_slice(&(text.len() as u32).to_le_bytes());
        out.extend_from_slice(text.as_bytes());
    };
    text(event.kind.as_str());
    text(&event.source);
    text(&event.content);
    for optional in [&event.subtype, &event.metadata, &event.idempotency_key] {
        match optional {
            Some(value) => {
                text("s");
                text(value);
            }
            None => text(""),
        }
    }
}

fn decode_all(from: &mut impl BufRead, mut take: impl FnMut(&NewEvent<'_>) -> Result<()>) -> Result<()> {
    let [mut kind, mut source, mut content, mut present] = [const { Vec::new() }; 4];
    let mut optional = [const { (false, Vec::new()) }; 3];
    let cannot = "cannot read the batch back, nothing was stored";
    let fix = "check the disk, then push again";
    while !from.fill_buf().or_fix(cannot, fix)?.is_empty() {
        let mut text = |into: &mut Vec<u8>| read_text(from, into).or_fix(cannot, fix);
        for field in [&mut kind, &mut source, &mut content] {
            text(field)?;
        }
        for (is_there, value) in &mut optional {
            text(&mut present)?;
            *is_there = !present.is_empty();
            if *is_there {
                text(value)?;
            }
        }
        let [subtype, metadata, idempotency_key] =
            optional.each_ref().map(|(is_there, value)| is_there.then(|| as_text(value)));
        take(&NewEvent {
            kind: if kind == b"record" { Type::Record } else { Type::Message },
            source: as_text(&source),
            content: as_text(&content),
            subtype,
            metadata,
            idempotency_key,
        })?;
    }
    Ok(())
}

fn read_text(from: &mut impl BufRead, into: &mut Vec<u8>) -> io::Result<()> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    into.resize(u32::from_le_bytes(length) as usize, 0);
    from.read_exact(into)
}

/// What was text when it was written is borrowed as text, unless the disk has changed it.
fn as_text(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: &str) -> Result<Vec<(String, Option<String>, String)>> {
        let batch = Batch::read(input.as_bytes(), &std::env::temp_dir())?;
        let mut events = Vec::new();
        batch.for_each(|e| {
            events.push((
                e.source.to_string(),
                e.subtype.as_ref().map(|s| s.to_string()),
                e.content.to_string(),
            ));
            Ok(())
        })?;
        Ok(events)
    }

    #[test]
    fn blank_lines_crlf_and_a_missing_last_newline_are_fine() {
        let line = |n: u32| format!(r#"{{"source":"s{n}","type":"record","content":"c","subtype":null}}"#);
        let input = format!("\u{feff}{}\r\n\n  \r\n{}", line(1), line(2));
        let events = read(&input).unwrap();
        assert_eq!(events, [("s1".into(), None, "c".into()), ("s2".into(), None, "c".into())]);
    }

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        let good = r#"{"source":"s","type":"record","content":"c"}"#;
        let failure = read(&format!("{good}\n\n{good}\nnonsense\n")).unwrap_err();
        assert_eq!(failure.code, 2);
        assert!(failure.what.starts_with("line 4 of the batch"), "{failure}");
    }

    #[test]
    fn a_large_batch_comes_back_as_it_was() {
        let content = "x".repeat(100_000);
        let input: String = (0..100)
            .map(|n| format!("{{\"source\":\"s{n}\",\"type\":\"record\",\"subtype\":\"\",\"content\":\"{content}{n}\"}}\n"))
            .collect();
        let events = read(&input).unwrap();
        assert_eq!(events.len(), 100);
        for (n, event) in events.into_iter().enumerate() {
            assert_eq!(event, (format!("s{n}"), Some(String::new()), format!("{content}{n}")));
        }
    }
}
