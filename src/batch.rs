//! A batch on its way from a pipe or file to the database.
//!
//! What comes through a pipe is read to its end and checked before the write transaction begins, so
//! that a slow producer holds no lock. It is kept in a compact form of our own: in memory up to a
//! few MiB, beyond that in an unlinked file in the thread's directory, so that memory stays bounded
//! and nothing is left behind, whatever happens.
//!
//! What lies in a file need not be waited for: it is read and checked in a thread of its own, a few
//! blocks ahead of the transaction that stores it.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::path::Path;
use std::sync::mpsc::sync_channel;

use crate::error::{Failure, OrFix, Result};
use crate::event::{NewEvent, Type};

/// Beyond this the batch goes to a file.
const IN_MEMORY: usize = 4 * 1024 * 1024;

/// Events are handed on in blocks of about this many bytes.
const BLOCK: usize = 256 * 1024;

/// How many blocks are read ahead.
const AHEAD: usize = 4;

/// Longest line, in bytes: no longer row fits the database.
const MAX_LINE: u64 = 1_000_000_000;

/// What is known of a batch when it was read.
#[derive(Debug, Default)]
pub struct About {
    /// How many events there are.
    pub count: u64,
    /// Events whose structured source does not fit its form: how many, the first one's line, and
    /// the form.
    pub odd_sources: Option<(u64, u64, &'static str)>,
    /// The source of the last event; none when there was no event.
    pub last_source: Option<String>,
}

/// Checked events, waiting to be stored.
pub struct Batch {
    pub about: About,
    kept: Kept,
}

/// Blocks of events; in a file each stands behind its length.
enum Kept {
    Memory(Vec<Vec<u8>>),
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
        let cannot_keep = "cannot keep the batch beside the database, nothing was stored";
        let fix = "free some space, then push again";
        let (mut blocks, mut size, mut spill) = (Vec::new(), 0, None);
        let about = read_blocks(
            input,
            |_| (),
            |block| {
                size += block.len();
                blocks.push(block);
                if size < IN_MEMORY && spill.is_none() {
                    return Ok(());
                }
                let file = match &mut spill {
                    Some(file) => file,
                    none => none.insert(tempfile::tempfile_in(room).or_fix(cannot_keep, fix)?),
                };
                for block in blocks.drain(..) {
                    write_block(file, &block).or_fix(cannot_keep, fix)?;
                }
                Ok(())
            },
        )?;
        let kept = match spill {
            None => Kept::Memory(blocks),
            Some(mut file) => {
                file.rewind().or_fix(cannot_keep, fix)?;
                Kept::File(file)
            }
        };
        Ok(Batch { about, kept })
    }

    /// Hands over the events, in order.
    pub fn for_each(self, mut take: impl FnMut(&NewEvent<'_>) -> Result<()>) -> Result<()> {
        match self.kept {
            Kept::Memory(blocks) => blocks.iter().try_for_each(|block| decode(block, &mut take)),
            Kept::File(mut file) => {
                let (cannot, fix) =
                    ("cannot read the batch back, nothing was stored", "check the disk, then push again");
                let mut block = Vec::new();
                while read_block(&mut file, &mut block).or_fix(cannot, fix)? {
                    decode(&block, &mut take)?;
                }
                Ok(())
            }
        }
    }
}

/// Hands over the events of a file while the next ones are being read, checked and shown to `see`.
///
/// # Errors
///
/// As [`Batch::read`], but when events before the wrong line were handed over already.
pub fn stream(
    input: impl Read + Send,
    see: impl FnMut(&NewEvent<'_>) + Send,
    mut take: impl FnMut(&NewEvent<'_>) -> Result<()>,
) -> Result<About> {
    let (sender, blocks) = sync_channel(AHEAD);
    std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().spawn_scoped(scope, move || {
            read_blocks(input, see, |block| {
                sender.send(block).or_fix("the batch could not be stored", "push it again")
            })
        });
        let reader = reader.or_fix(
            "there is no thread to read the batch, nothing was stored",
            "check the limit on processes, then push again",
        )?;
        // Ends with the sender; dropping the receiver because of an error ends the reader.
        let taken = blocks.into_iter().try_for_each(|block| decode(&block, &mut take));
        let read = reader.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked));
        taken.and(read)
    })
}

/// Reads and checks NDJSON to its end and hands on blocks of encoded events.
fn read_blocks(
    input: impl Read,
    mut see: impl FnMut(&NewEvent<'_>),
    mut hand_on: impl FnMut(Vec<u8>) -> Result<()>,
) -> Result<About> {
    let mut input = BufReader::with_capacity(BLOCK, input);
    let mut about = About::default();
    let (mut line, mut block, mut number) = (Vec::new(), Vec::with_capacity(BLOCK + BLOCK / 4), 0);
    let mut last_source = String::new();
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
        about.count += 1;
        if let Some(form) = event.source_warning() {
            about.odd_sources.get_or_insert((0, number, form)).0 += 1;
        }
        last_source.clear();
        last_source.push_str(&event.source);
        see(&event);
        encode(&event, &mut block);
        if block.len() >= BLOCK {
            hand_on(std::mem::replace(&mut block, Vec::with_capacity(BLOCK + BLOCK / 4)))?;
        }
    }
    about.last_source = (!last_source.is_empty()).then_some(last_source);
    if !block.is_empty() {
        hand_on(block)?;
    }
    Ok(about)
}

fn write_block(file: &mut File, block: &[u8]) -> io::Result<()> {
    file.write_all(&(block.len() as u64).to_le_bytes())?;
    file.write_all(block)
}

/// Reads the next block; false at the end.
fn read_block(file: &mut File, block: &mut Vec<u8>) -> io::Result<bool> {
    let mut length = [0; 8];
    match file.read_exact(&mut length) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        read => read?,
    }
    block.resize(u64::from_le_bytes(length) as usize, 0);
    file.read_exact(block).map(|()| true)
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

/// Hands over the events of a block.
fn decode(mut block: &[u8], take: &mut impl FnMut(&NewEvent<'_>) -> Result<()>) -> Result<()> {
    let from = &mut block;
    while !from.is_empty() {
        let [kind, source, content] = [(); 3].map(|()| take_text(from));
        let [subtype, metadata, idempotency_key] =
            [(); 3].map(|()| (!take_text(from).is_empty()).then(|| take_text(from)));
        take(&NewEvent {
            kind: Type::parse(&kind).unwrap_or(Type::Message),
            source,
            content,
            subtype,
            metadata,
            idempotency_key,
        })?;
    }
    Ok(())
}

/// What was text when it was encoded is borrowed as text, unless the disk has changed it.
fn take_text<'b>(from: &mut &'b [u8]) -> Cow<'b, str> {
    let (length, rest) =
        from.split_first_chunk().map_or((0, *from), |(length, rest)| (u32::from_le_bytes(*length), rest));
    let (text, rest) = rest.split_at_checked(length as usize).unwrap_or((rest, &[]));
    *from = rest;
    std::str::from_utf8(text).map_or_else(|_| String::from_utf8_lossy(text), Cow::Borrowed)
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
