//! The JSONL log matches the table, whatever happened to it before the last push.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;
use rusqlite::Connection;
use serde_json::Value;
use sha1::{Digest, Sha1};
use thread::files::rotation::MAX_LINES;
use thread::files::{JSONL, LOG};
use thread::jsonl::verify::{Fault, verify};
use thread::jsonl::{self, STATE};
use thread::maintenance::prune::{Old, Request, prune};

use crate::world::{Parts, Place, cases, parts};

#[derive(Debug, Clone)]
enum Step {
    /// Stores events and brings the log up to date, as a push does.
    Push(Vec<Parts>),
    /// Enough events that the next push seals the file.
    PushMany,
    /// Rows inserted by another program, which does not write the log.
    Foreign(Vec<Parts>, bool),
    TearTail(usize),
    Append(&'static [u8]),
    DeleteLine(Index),
    DoubleLine(Index),
    SwapLines(Index, Index),
    EditByte(Index, u8),
    Truncate(Index),
    Delete,
    /// Replaces the file by another one with the same bytes.
    Replace,
    DeleteState,
    SpoilState(Index, u8),
    TruncateState(Index),
    /// Overwrites the log, its state, `thread.log` or the state of that with random bytes.
    Scribble(usize, Vec<u8>),
    Reboot,
    /// Prunes events up to this one.
    Prune(Index),
    DeleteOldestSealed,
    DeleteAllSealed,
    EmptyOnlySealed,
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
        1 => (0..SCRIBBLED.len(), scribble()).prop_map(|(file, bytes)| Step::Scribble(file, bytes)),
    ];
    let sealed = prop_oneof![
        2 => Just(Step::DeleteOldestSealed),
        1 => Just(Step::DeleteAllSealed),
        1 => Just(Step::EmptyOnlySealed),
    ];
    prop_oneof![
        4 => few.clone().prop_map(Step::Push),
        rotations => Just(Step::PushMany),
        2 => (few, any::<bool>()).prop_map(|(events, odd)| Step::Foreign(events, odd)),
        1 => any::<Index>().prop_map(Step::Prune),
        5 => file,
        4 => state,
        1 + rotations => sealed,
    ]
}

const SCRIBBLED: &[&str] = &[JSONL, STATE, LOG, "run/_log"];

fn scribble() -> impl Strategy<Value = Vec<u8>> {
    let state = "\\{\"boot\":\"\",\"end\":\\{\"bytes\":[0-9-]{1,21},\"id\":-?[0-9]{1,20}[}\\n0-9a-f]{0,50}";
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..3000),
        Just(b"[".repeat(200_000)),
        state.prop_map(String::into_bytes),
        "[0-9]{1,20} [0-9]{1,20} -?[0-9]{1,20}\n".prop_map(String::into_bytes),
    ]
}

/// A thread, and the expected content of its JSONL log.
struct Model {
    place: Place,
    /// All lines ever, generated from the table independently of the program.
    lines: Vec<u8>,
    last: i64,
    /// Bytes at the beginning of `lines` that were removed with old sealed files.
    removed: usize,
}

impl Model {
    fn new() -> Model {
        Model { place: Place::new(), lines: Vec::new(), last: 0, removed: 0 }
    }

    fn push(&mut self, events: &[Parts]) {
        self.place.store(events);
        self.place.catch_up().unwrap();
    }

    fn current(&self) -> PathBuf {
        self.place.path(JSONL)
    }

    fn state(&self) -> PathBuf {
        self.place.path(STATE)
    }

    /// Oldest first.
    fn sealed(&self) -> Vec<PathBuf> {
        let names = jsonl::sealed(self.place.queue.files()).unwrap();
        names.into_iter().map(|name| self.place.path(name)).collect()
    }

    fn log(&self) -> Vec<u8> {
        let paths = self.sealed().into_iter().chain([self.current()]);
        paths.flat_map(|path| fs::read(path).unwrap_or_default()).collect()
    }

    fn faults(&mut self) -> Vec<Fault> {
        let files = self.place.queue.files().clone();
        verify(&files, self.place.queue.store()).unwrap()
    }

    /// Adds the lines of new rows.
    fn learn(&mut self) {
        self.last = append_lines(&self.place.plain(), self.last, &mut self.lines);
    }

    /// The lines of all current rows.
    fn table(&self) -> Vec<u8> {
        let mut lines = Vec::new();
        append_lines(&self.place.plain(), 0, &mut lines);
        lines
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let table = self.table();
        self.check_against(table)
    }

    /// `table`: the lines of all rows when the log was last brought up to date.
    fn check_against(&mut self, table: Vec<u8>) -> Result<(), TestCaseError> {
        self.learn();
        let log = self.log();
        if self.removed > 0 && log != self.lines[self.removed..] {
            // After old files were removed, the log is either the rest or everything in the table again.
            (self.lines, self.removed) = (table, 0);
        }
        let left = &self.lines[self.removed..];
        if log != left {
            let agree = log.iter().zip(left).take_while(|(a, b)| a == b).count();
            return Err(TestCaseError::fail(format!(
                "the log has {} bytes, the table makes {} ({} of them removed); they agree for {agree}",
                log.len(),
                self.lines.len(),
                self.removed,
            )));
        }
        prop_assert_eq!(self.faults(), []);
        Ok(())
    }

    /// Records that a sealed file is about to be removed or emptied.
    fn lose(&mut self, path: &Path) {
        self.removed += fs::metadata(path).unwrap().len() as usize;
    }

    fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Push(events) => {
                self.push(events);
                self.check()?;
            }
            Step::PushMany => {
                self.push(&vec![Parts::record("c"); MAX_LINES as usize + 1]);
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
                let other = self.place.path("run/other");
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
            Step::Scribble(file, bytes) => fs::write(self.place.path(SCRIBBLED[*file]), bytes).unwrap(),
            Step::Reboot => reboot(&self.state()),
            Step::Prune(at) => {
                self.learn();
                let before = at.index(self.last as usize + 1) as i64 + 1;
                let request =
                    Request { old: Old::BeforeId(before), subtype: None, force: false, dry_run: false };
                let table = self.table();
                let report = prune(&mut self.place.queue, &request, &mut |_| {}).unwrap();
                prop_assert!(report.failed.is_none(), "{report:?}");
                if report.pruned.events > 0 {
                    // Deleted events must have their lines in the log.
                    self.check_against(table)?;
                }
            }
            Step::DeleteOldestSealed => {
                if let Some(oldest) = self.sealed().first() {
                    self.lose(oldest);
                    fs::remove_file(oldest).unwrap();
                }
            }
            Step::DeleteAllSealed => {
                for path in self.sealed() {
                    self.lose(&path);
                    fs::remove_file(path).unwrap();
                }
            }
            // Emptied rather than removed, which users may do to free space.
            Step::EmptyOnlySealed => {
                if let [only] = &self.sealed()[..] {
                    self.lose(only);
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

/// Appends the lines of the rows past `after`; returns the last id.
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

/// Changes the state as if the machine had been rebooted since the last write.
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

fn the_log_matches_the_table(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut model = Model::new();
    for step in steps {
        model.take(step)?;
    }
    model.learn();
    let (exact, faults) = (model.log() == model.lines[model.removed..], model.faults());
    // If sealed files were removed, both the rest and a complete rewrite are valid.
    if model.removed == 0 {
        prop_assert_eq!(faults.is_empty(), exact, "{:?}", faults);
    }
    prop_assert!(faults.iter().all(Fault::can_be_repaired), "{faults:?}");
    model.push(&[Parts::record("the last")]);
    model.check()
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn the_log_matches_the_table_after_any_damage(steps in prop::collection::vec(step(0), 1..25)) {
        the_log_matches_the_table(&steps)?;
    }
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn the_log_matches_the_table_after_any_damage_and_rotations(steps in prop::collection::vec(step(4), 4..18)) {
        the_log_matches_the_table(&steps)?;
    }
}

#[test]
fn an_edit_before_a_reboot_is_repaired_after_it() {
    let mut model = Model::new();
    // Enough data that part of it is synced, and so considered verified.
    model.push(&vec![Parts::record("x".repeat(200_000)); 12]);
    model.edit(|text| text[100_000] = b'y');
    reboot(&model.state());
    model.push(&[Parts::record("more")]);
    model.check().unwrap();
}

#[test]
fn what_was_not_synced_before_a_reboot_is_written_again() {
    let mut model = Model::new();
    model.push(&vec![Parts::record("x".repeat(200_000)); 12]);
    model.push(&[Parts::record("not synced")]);
    // Simulates that length and time reached the disk, but the bytes did not.
    let about = fs::metadata(model.current()).unwrap();
    model.edit(|text| {
        let end = text.len();
        text[end - 30..].fill(0);
    });
    let file = OpenOptions::new().append(true).open(model.current()).unwrap();
    file.set_modified(about.modified().unwrap()).unwrap();
    reboot(&model.state());
    model.push(&[Parts::record("more")]);
    model.check().unwrap();
}

#[test]
fn an_emptied_sealed_file_duplicates_no_lines() {
    let mut model = Model::new();
    for _ in 0..2 {
        model.push(&vec![Parts::record("c"); MAX_LINES as usize + 1]);
    }
    model.push(&[Parts::record("last")]);
    let sealed = model.sealed();
    assert_eq!(sealed.len(), 2);
    fs::write(&sealed[1], "").unwrap();
    fs::remove_file(model.state()).unwrap();
    model.push(&[Parts::record("more")]);
    let log = String::from_utf8(model.log()).unwrap();
    let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].as_i64().unwrap();
    let all: Vec<_> = (1..=2 * (MAX_LINES as i64 + 1) + 2).collect();
    assert_eq!(log.lines().map(id).collect::<Vec<_>>(), all);
}
