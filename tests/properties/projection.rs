//! The copy is the table, whatever happened to it before the last push.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;
use rusqlite::Connection;
use serde_json::Value;
use sha1::{Digest, Sha1};
use thread::journal;
use thread::rotation::MAX_LINES;

use crate::world::{Parts, Place, cases, parts};

#[derive(Debug, Clone)]
enum Step {
    /// Each is followed by bringing the copy up to date, as a push does.
    Push(Vec<Parts>),
    /// The same where the lines are prepared, and another program stores something meanwhile.
    PushPrepared(Vec<Parts>, bool),
    /// So many that the next push rotates.
    PushMany,
    /// Rows of another program, which knows nothing of the copy.
    Foreign(Vec<Parts>, bool),
    TearTail(usize),
    Append(&'static [u8]),
    DeleteLine(Index),
    DoubleLine(Index),
    SwapLines(Index, Index),
    EditByte(Index, u8),
    Truncate(Index),
    Delete,
    /// The same bytes in another file.
    Replace,
    DeleteState,
    SpoilState(Index, u8),
    TruncateState(Index),
    Reboot,
    DeleteOldestRotated,
    DeleteAllRotated,
    EmptyNewestRotated,
}

fn step(rotations: u32) -> impl Strategy<Value = Step> {
    let few = prop::collection::vec(parts(), 1..6);
    let garbage: &[&[u8]] = &[b"\n", b"{}\n", b"garbage", b"\xff\0", b"{\"id\":1,\"created_at\":\"\"}\n"];
    let file = prop_oneof![
        2 => (1..40usize).prop_map(Step::TearTail),
        1 => prop::sample::select(garbage).prop_map(Step::Append),
        1 => any::<Index>().prop_map(Step::DeleteLine),
        1 => any::<Index>().prop_map(Step::DoubleLine),
        1 => any::<(Index, Index)>().prop_map(|(a, b)| Step::SwapLines(a, b)),
        1 => any::<(Index, u8)>().prop_map(|(at, byte)| Step::EditByte(at, byte)),
        1 => any::<Index>().prop_map(Step::Truncate),
        1 => Just(Step::Delete),
        1 => Just(Step::Replace),
    ];
    let state = prop_oneof![
        2 => Just(Step::DeleteState),
        1 => any::<(Index, u8)>().prop_map(|(at, byte)| Step::SpoilState(at, byte)),
        1 => any::<Index>().prop_map(Step::TruncateState),
        2 => Just(Step::Reboot),
    ];
    let rotated = prop_oneof![
        2 => Just(Step::DeleteOldestRotated),
        1 => Just(Step::DeleteAllRotated),
        1 => Just(Step::EmptyNewestRotated),
    ];
    prop_oneof![
        3 => few.clone().prop_map(Step::Push),
        3 => (few.clone(), any::<bool>()).prop_map(|(events, other)| Step::PushPrepared(events, other)),
        rotations => Just(Step::PushMany),
        2 => (few, any::<bool>()).prop_map(|(events, odd)| Step::Foreign(events, odd)),
        5 => file,
        3 => state,
        rotations => rotated,
    ]
}

/// The thread and what its copy must be.
struct Model {
    place: Place,
    /// All lines ever, made from the table independently of the program.
    lines: Vec<u8>,
    last: i64,
    /// How much of that somebody removed with old rotated files.
    removed: usize,
}

impl Model {
    fn new() -> Model {
        Model { place: Place::new(), lines: Vec::new(), last: 0, removed: 0 }
    }

    fn push(&mut self, events: &[Parts]) {
        self.place.push(events);
        self.catch_up();
    }

    fn catch_up(&mut self) {
        let thread = &mut self.place.thread;
        journal::catch_up(&thread.files, &mut thread.store).unwrap();
    }

    fn current(&self) -> PathBuf {
        self.place.thread.files.jsonl()
    }

    fn state(&self) -> PathBuf {
        self.place.thread.files.run("_journal")
    }

    /// Oldest first.
    fn rotated(&self) -> Vec<PathBuf> {
        let names = fs::read_dir(self.place.dir()).unwrap().map(|entry| entry.unwrap().path());
        let mut rotated: Vec<_> =
            names.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("events-")).collect();
        rotated.sort();
        rotated
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let plain = self.place.plain();
        self.last = append_lines(&plain, self.last, &mut self.lines);
        let mut copy = Vec::new();
        for path in self.rotated().iter().chain([&self.current()]) {
            copy.extend(fs::read(path).unwrap());
        }
        // With old files removed, either the rest is there, or everything again.
        if copy == self.lines {
            self.removed = 0;
        } else if copy != self.lines[self.removed..] {
            let agree = copy.iter().zip(&self.lines[self.removed..]).take_while(|(a, b)| a == b).count();
            return Err(TestCaseError::fail(format!(
                "the copy has {} bytes, the table makes {} ({} of them removed); they agree for {agree}",
                copy.len(),
                self.lines.len(),
                self.removed,
            )));
        }
        Ok(())
    }

    fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Push(events) => {
                self.push(events);
                self.check()?;
            }
            Step::PushPrepared(events, other) => {
                let prepared = self.place.push_prepared(events);
                prop_assert!(prepared.is_some());
                if *other {
                    self.place.push(&events[..1]);
                }
                let thread = &mut self.place.thread;
                journal::catch_up_with(&thread.files, &mut thread.store, prepared).unwrap();
                self.check()?;
            }
            Step::PushMany => {
                let one = Parts { source: "s".into(), kind: "record", subtype: None, content: "c".into() };
                self.push(&vec![one; MAX_LINES as usize + 1]);
                self.check()?;
            }
            Step::Foreign(events, odd) => {
                let plain = self.place.plain();
                for Parts { source, kind, subtype, content } in events {
                    let sql = "INSERT INTO events (source, type, subtype, content) VALUES (?, ?, ?, ?)";
                    if *odd {
                        let broken = [content.as_bytes(), b"\xff\xfe"].concat();
                        plain.execute(sql, rusqlite::params![source, 5, 1.5, broken]).unwrap();
                    } else {
                        plain.execute(sql, rusqlite::params![source, kind, subtype, content]).unwrap();
                    }
                }
            }
            Step::TearTail(bytes) => self.edit(|text| text.truncate(text.len().saturating_sub(*bytes))),
            Step::Append(garbage) => self.edit(|text| text.extend_from_slice(garbage)),
            Step::DeleteLine(at) => self.edit_lines(|lines| {
                lines.remove(at.index(lines.len()));
            }),
            Step::DoubleLine(at) => self.edit_lines(|lines| {
                let at = at.index(lines.len());
                lines.insert(at, lines[at].clone());
            }),
            Step::SwapLines(a, b) => self.edit_lines(|lines| {
                let (a, b) = (a.index(lines.len()), b.index(lines.len()));
                lines.swap(a, b);
            }),
            Step::EditByte(at, byte) => self.edit(|text| {
                if !text.is_empty() {
                    let at = at.index(text.len());
                    text[at] = *byte;
                }
            }),
            Step::Truncate(at) => self.edit(|text| text.truncate(at.index(text.len() + 1))),
            Step::Delete => drop(fs::remove_file(self.current())),
            Step::Replace => {
                let other = self.place.dir().join("run/copy");
                if fs::copy(self.current(), &other).is_ok() {
                    fs::rename(other, self.current()).unwrap();
                }
            }
            Step::DeleteState => drop(fs::remove_file(self.state())),
            Step::SpoilState(at, byte) => {
                let mut state = fs::read(self.state()).unwrap_or_default();
                if !state.is_empty() {
                    let at = at.index(state.len());
                    state[at] = *byte;
                    fs::write(self.state(), state).unwrap();
                }
            }
            Step::TruncateState(at) => {
                let state = fs::read(self.state()).unwrap_or_default();
                if !state.is_empty() {
                    fs::write(self.state(), &state[..at.index(state.len())]).unwrap();
                }
            }
            Step::Reboot => reboot(&self.state()),
            Step::DeleteOldestRotated => {
                if let Some(oldest) = self.rotated().first() {
                    self.removed += fs::metadata(oldest).unwrap().len() as usize;
                    fs::remove_file(oldest).unwrap();
                }
            }
            Step::DeleteAllRotated => {
                for path in self.rotated() {
                    self.removed += fs::metadata(&path).unwrap().len() as usize;
                    fs::remove_file(path).unwrap();
                }
            }
            // Emptied rather than removed; the same to whoever wants the space.
            Step::EmptyNewestRotated => {
                if let [only] = &self.rotated()[..] {
                    self.removed += fs::metadata(only).unwrap().len() as usize;
                    fs::write(only, "").unwrap();
                }
            }
        }
        Ok(())
    }

    /// Changes the current file in place, as an editor or a torn write would, at a later time.
    fn edit(&self, change: impl FnOnce(&mut Vec<u8>)) {
        let Ok(about) = fs::metadata(self.current()) else { return };
        let mut text = fs::read(self.current()).unwrap();
        change(&mut text);
        let mut file = OpenOptions::new().write(true).truncate(true).open(self.current()).unwrap();
        file.write_all(&text).unwrap();
        file.set_modified(about.modified().unwrap() + Duration::from_secs(1)).unwrap();
    }

    fn edit_lines(&self, change: impl FnOnce(&mut Vec<Vec<u8>>)) {
        self.edit(|text| {
            let mut lines: Vec<Vec<u8>> = text.split_inclusive(|&b| b == b'\n').map(<[u8]>::to_vec).collect();
            if !lines.is_empty() {
                change(&mut lines);
            }
            *text = lines.concat();
        });
    }
}

/// Appends the lines that the rows past `after` make; answers with the last id.
fn append_lines(conn: &Connection, after: i64, lines: &mut Vec<u8>) -> i64 {
    let mut last = after;
    let sql = "SELECT id, created_at, source, type, subtype, content FROM events WHERE id > ? ORDER BY id";
    let mut statement = conn.prepare_cached(sql).unwrap();
    let mut rows = statement.query([after]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        last = row.get(0).unwrap();
        let mut line = format!("{{\"id\":{last}");
        for (column, name) in (1..).zip(["created_at", "source", "type", "subtype", "content"]) {
            let text = match row.get_ref(column).unwrap() {
                rusqlite::types::ValueRef::Null => Value::Null,
                other => String::from_utf8_lossy(other.as_bytes().unwrap()).into(),
            };
            line += &format!(",\"{name}\":{text}");
        }
        lines.extend_from_slice(line.as_bytes());
        lines.extend_from_slice(b"}\n");
    }
    last
}

/// Makes what the last writer knew look as if the machine had been started again since.
fn reboot(state: &Path) {
    let text = fs::read_to_string(state).unwrap_or_default();
    let Some(mut known) = text.lines().next().and_then(|json| serde_json::from_str::<Value>(json).ok())
    else {
        return;
    };
    known["boot"] = "another boot".into();
    let json = known.to_string();
    let sum: String = Sha1::digest(json.as_bytes()).iter().map(|b| format!("{b:02x}")).collect();
    File::create(state).unwrap().write_all(format!("{json}\n{sum}\n").as_bytes()).unwrap();
}

fn the_copy_is_the_table(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut model = Model::new();
    for step in steps {
        model.take(step)?;
    }
    model.push(&[Parts { source: "s".into(), kind: "record", subtype: None, content: "the last".into() }]);
    model.check()
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn the_copy_is_the_table_after_any_damage(steps in prop::collection::vec(step(0), 1..25)) {
        the_copy_is_the_table(&steps)?;
    }
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn the_copy_is_the_table_after_any_damage_and_rotations(steps in prop::collection::vec(step(4), 4..18)) {
        the_copy_is_the_table(&steps)?;
    }
}

fn record(content: impl Into<String>) -> Parts {
    Parts { source: "s".into(), kind: "record", subtype: None, content: content.into() }
}

#[test]
fn an_edit_before_a_reboot_is_mended_after_it() {
    let mut model = Model::new();
    // Long enough for a part to be synced, which is then known to be right.
    model.push(&vec![record("x".repeat(200_000)); 12]);
    model.edit(|text| text[100_000] = b'y');
    reboot(&model.state());
    model.push(&[record("more")]);
    model.check().unwrap();
}

#[test]
fn what_was_not_synced_before_a_reboot_is_written_again() {
    let mut model = Model::new();
    model.push(&vec![record("x".repeat(200_000)); 12]);
    model.push(&[record("not synced")]);
    // The length and the time reached the disk, the bytes did not.
    let about = fs::metadata(model.current()).unwrap();
    model.edit(|text| {
        let end = text.len();
        text[end - 30..].fill(0);
    });
    let file = OpenOptions::new().append(true).open(model.current()).unwrap();
    file.set_modified(about.modified().unwrap()).unwrap();
    reboot(&model.state());
    model.push(&[record("more")]);
    model.check().unwrap();
}

#[test]
fn an_emptied_rotated_file_doubles_nothing_in_the_others() {
    let mut model = Model::new();
    for _ in 0..2 {
        model.push(&vec![record("c"); MAX_LINES as usize + 1]);
    }
    model.push(&[record("last")]);
    let rotated = model.rotated();
    assert_eq!(rotated.len(), 2);
    fs::write(&rotated[1], "").unwrap();
    fs::remove_file(model.state()).unwrap();
    model.push(&[record("more")]);
    let copy: String =
        rotated.iter().chain([&model.current()]).map(|p| fs::read_to_string(p).unwrap()).collect();
    let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].as_i64().unwrap();
    assert_eq!(
        copy.lines().map(id).collect::<Vec<_>>(),
        (1..=2 * (MAX_LINES as i64 + 1) + 2).collect::<Vec<_>>()
    );
}
