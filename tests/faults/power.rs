//! The power is cut while somebody pushes.
//!
//! What a series of pushes writes, cuts, syncs, creates, renames and unlinks is recorded with
//! `strace`. Each prefix of that is then played into a fresh folder in the ways in which a disk may
//! be found after the cut: a sync makes one file's bytes last, a sync of a directory makes its names
//! last, and whatever was not synced may be there or not. What the real binary finds in such a
//! folder is compared with what the pushers had been told until then.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use serde_json::Value;
use sha1::{Digest, Sha1};

use crate::harness::World;

/// Where a disk that is written to keeps its sectors.
const SECTOR: usize = 512;

/// The calls that change files, and those that tell which file a descriptor is. A question mark
/// lets strace pass over a call that this processor does not have.
const CALLS: &str = "trace=?open,openat,?openat2,?creat,write,writev,pwrite64,pwritev,?pwritev2,lseek,\
    ?truncate,ftruncate,fallocate,fsync,fdatasync,?rename,?renameat,renameat2,?link,linkat,?symlink,symlinkat,\
    ?unlink,unlinkat,?mkdir,mkdirat,?rmdir,copy_file_range,sendfile,mmap,msync,sync_file_range";

/// Set for the process that makes a series with the library; names the thread and the sync mode.
const SERIES: &str = "THREAD_FAULTS_SERIES";

pub fn long() -> bool {
    std::env::var_os("THREAD_FAULTS").is_some_and(|form| form == "long")
}

/// Prints past the capture of the test runner.
pub fn say(text: &str) {
    use std::io::Write;
    drop(std::io::stderr().write_all(format!("{text}\n").as_bytes()));
}

/// Small and repeatable: a failure names what it needs to come again.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end.max(1)
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }
}

// --- What was recorded ---------------------------------------------------------------------------

#[derive(Debug, Clone)]
enum Op {
    Write {
        file: usize,
        at: usize,
        bytes: Vec<u8>,
    },
    Cut {
        file: usize,
        length: usize,
    },
    Sync {
        file: usize,
    },
    SyncDir {
        dir: PathBuf,
    },
    Name(NameOp),
    /// Somebody was told that this is done.
    Answer(Value),
}

#[derive(Debug, Clone)]
enum NameOp {
    Create { path: PathBuf, file: usize },
    Rename { from: PathBuf, to: PathBuf },
    Unlink { path: PathBuf },
}

impl NameOp {
    fn names(&self) -> Vec<&PathBuf> {
        match self {
            NameOp::Create { path, .. } | NameOp::Unlink { path } => vec![path],
            NameOp::Rename { from, to } => vec![from, to],
        }
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            NameOp::Create { path, file } => drop(names.insert(path.clone(), *file)),
            NameOp::Unlink { path } => drop(names.remove(path)),
            NameOp::Rename { from, to } => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
        }
    }
}

/// A series: what was on the disk before it, and what was done.
struct Recording {
    before: BTreeMap<PathBuf, Vec<u8>>,
    ops: Vec<Op>,
    /// The recorded inode of each `events.jsonl`, and which file of the recording that was.
    inodes: HashMap<u64, usize>,
}

/// Whether a path is the shared index of the WAL. Its contents do not outlive a boot.
fn is_index(path: &Path) -> bool {
    path.to_string_lossy().ends_with("-shm")
}

/// All files below a folder, by their path in it.
fn files_in(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if !is_index(&path) {
                found.insert(path.strip_prefix(dir).unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// Whether a process can be watched here; says so when it cannot.
fn can_record(what: &str) -> bool {
    let tried = Command::new("strace")
        .args(["-f", "-y", "-xx", "-o", "/dev/null", "-e", CALLS, "true"])
        .stdin(Stdio::null())
        .output();
    match tried {
        Ok(output) if output.status.success() => return true,
        Ok(output) => {
            say(&format!("SKIPPED {what}: strace: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Err(e) => say(&format!("SKIPPED {what}: strace: {e}")),
    }
    false
}

/// Records what `command` does to the thread at `inbox`.
fn record(world: &World, inbox: &Path, command: &[&str], env: &[(&str, String)]) -> Recording {
    let before = files_in(inbox);
    let mut reader = Reader::new(inbox, &before);
    let log = world.path("calls");
    // By its path: it is not among the programs of this world.
    let path = std::env::var_os("PATH").unwrap();
    let strace = std::env::split_paths(&path).map(|dir| dir.join("strace")).find(|path| path.exists());
    let mut strace = Command::new(strace.unwrap());
    strace.args(["-f", "-y", "-xx", "-s", "4194304", "-e", CALLS, "-o"]).arg(&log).args(command);
    strace.env_clear().env("PATH", world.bin()).env("THREAD_DIR", inbox).env("THREAD_NOTIFIER", "off");
    strace.envs(env.iter().map(|(name, value)| (name, value))).current_dir(world.root());
    let output = strace.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read_to_string(&log).unwrap().lines().for_each(|line| reader.line(line));
    // What was understood must come to what is there.
    let there = files_in(inbox);
    let understood: BTreeMap<PathBuf, &Vec<u8>> =
        reader.names.iter().map(|(path, &file)| (path.clone(), &reader.contents[file])).collect();
    assert_eq!(understood.keys().collect::<Vec<_>>(), there.keys().collect::<Vec<_>>());
    for (path, bytes) in &there {
        assert!(understood[path] == bytes, "the record of {} is not what is there", path.display());
    }
    Recording { before, ops: reader.ops, inodes: reader.inodes }
}

/// Understands the lines of strace.
struct Reader {
    inbox: PathBuf,
    ops: Vec<Op>,
    /// The files as the programs saw them.
    names: BTreeMap<PathBuf, usize>,
    contents: Vec<Vec<u8>>,
    /// Position and whether it appends, by process and descriptor.
    opened: HashMap<(String, String), (usize, bool)>,
    unfinished: HashMap<String, String>,
    inodes: HashMap<u64, usize>,
}

impl Reader {
    fn new(inbox: &Path, before: &BTreeMap<PathBuf, Vec<u8>>) -> Reader {
        Reader {
            inbox: inbox.to_owned(),
            ops: Vec::new(),
            names: before.keys().cloned().zip(0..).collect(),
            contents: before.values().cloned().collect(),
            opened: HashMap::new(),
            unfinished: HashMap::new(),
            inodes: HashMap::new(),
        }
    }

    fn line(&mut self, line: &str) {
        let (pid, call) = line.split_once(char::is_whitespace).unwrap();
        let call = call.trim_start();
        if let Some(begun) = call.strip_suffix("<unfinished ...>") {
            self.unfinished.insert(pid.to_owned(), begun.to_owned());
        } else if call.starts_with("<... ") {
            let rest = call.split_once(" resumed>").unwrap().1;
            let whole = self.unfinished.remove(pid).unwrap_or_default() + rest;
            self.call(pid, &whole);
        } else if !call.starts_with("---") && !call.starts_with("+++") {
            self.call(pid, call);
        }
    }

    fn call(&mut self, pid: &str, call: &str) {
        let (name, rest) = call.split_once('(').unwrap();
        let (args, result) = rest.rsplit_once(" = ").unwrap();
        // One that was resumed has a blank before the bracket.
        let args: Vec<&str> = args.trim_end().trim_end_matches(')').trim_end().split(", ").collect();
        let returned: i64 = result.split(['<', ' ']).next().unwrap().parse().unwrap_or(0);
        if returned < 0 {
            return;
        }
        let number = |at: usize| -> usize { args[at].parse().unwrap() };
        match name {
            "open" | "openat" | "openat2" | "creat" => self.open(pid, &args, result),
            "write" | "pwrite64" => {
                let bytes = text(args[1]);
                assert_eq!(bytes.len(), number(2), "strace cut a write short: {name}");
                let bytes = &bytes[..returned as usize];
                if args[0].split('<').next() == Some("1") {
                    if let Ok(answer) = serde_json::from_slice(bytes) {
                        self.ops.push(Op::Answer(answer));
                    }
                    return;
                }
                let Some(file) = self.file(args[0]) else { return };
                let length = self.contents[file].len();
                let at = if name == "pwrite64" {
                    number(3)
                } else {
                    let key = (pid.to_owned(), descriptor(args[0]));
                    let (position, appends) = self.opened.get_mut(&key).expect("an opened file");
                    let at = if *appends { length } else { *position };
                    *position = at + bytes.len();
                    at
                };
                self.learn_inode(file, bytes);
                self.push(Op::Write { file, at, bytes: bytes.to_vec() });
            }
            "lseek" => {
                if let Some((position, _)) = self.opened.get_mut(&(pid.to_owned(), descriptor(args[0]))) {
                    *position = returned as usize;
                }
            }
            "ftruncate" => {
                if let Some(file) = self.file(args[0]) {
                    self.push(Op::Cut { file, length: number(1) });
                }
            }
            "fsync" | "fdatasync" => {
                if let Some(file) = self.file(args[0]) {
                    self.push(Op::Sync { file });
                } else if let Some(dir) = self.inside(&path_of(args[0]))
                    && self.inbox.join(&dir).is_dir()
                {
                    self.push(Op::SyncDir { dir });
                }
            }
            "rename" | "renameat" | "renameat2" => {
                let paths = strings(&args);
                let (from, to) = (self.inside(&paths[0]), self.inside(&paths[1]));
                match (from, to) {
                    (Some(from), Some(to)) => self.push(Op::Name(NameOp::Rename { from, to })),
                    (None, None) => {}
                    _ => panic!("not modelled: {call}"),
                }
            }
            "unlink" | "unlinkat" => {
                if let Some(path) = strings(&args).first().and_then(|path| self.inside(path))
                    && !is_index(&path)
                {
                    self.push(Op::Name(NameOp::Unlink { path }));
                }
            }
            "mmap" => {
                // Only a shared mapping that may be written changes files; the index alone has one.
                let shared = args[3].contains("MAP_SHARED") && args[2].contains("PROT_WRITE");
                assert!(!shared || self.file(args[4]).is_none(), "not modelled: {call}");
            }
            _ => {
                let paths = strings(&args).into_iter().chain(args.iter().map(|arg| path_of(arg)));
                let ours = paths.filter_map(|path| self.inside(&path)).any(|path| !is_index(&path));
                assert!(!ours, "not modelled: {call}");
            }
        }
    }

    fn open(&mut self, pid: &str, args: &[&str], result: &str) {
        let flags = args.iter().find(|arg| arg.starts_with("O_")).expect("flags").to_string();
        let Some(path) = self.inside(&path_of(result)) else { return };
        if is_index(&path) || flags.contains("O_DIRECTORY") || flags.contains("O_TMPFILE") {
            return;
        }
        let key = (pid.to_owned(), descriptor(result));
        self.opened.insert(key, (0, flags.contains("O_APPEND")));
        match self.names.get(&path) {
            None if flags.contains("O_CREAT") => {
                self.contents.push(Vec::new());
                let file = self.contents.len() - 1;
                self.push(Op::Name(NameOp::Create { path, file }));
            }
            Some(&file) if flags.contains("O_TRUNC") => self.push(Op::Cut { file, length: 0 }),
            _ => {}
        }
    }

    /// Does it here, too.
    fn push(&mut self, op: Op) {
        match &op {
            Op::Write { file, at, bytes } => write(&mut self.contents[*file], *at, bytes),
            Op::Cut { file, length } => self.contents[*file].resize(*length, 0),
            Op::Name(op) => op.apply(&mut self.names),
            Op::Sync { .. } | Op::SyncDir { .. } | Op::Answer(_) => {}
        }
        self.ops.push(op);
    }

    /// What the writer of the copy remembers names the inode of the copy.
    fn learn_inode(&mut self, file: usize, bytes: &[u8]) {
        if self.names.get(Path::new("run/_journal")) == Some(&file)
            && let Some(state) = std::str::from_utf8(bytes).ok().and_then(|text| text.lines().next())
        {
            let state: Value = serde_json::from_str(state).unwrap();
            self.inodes.insert(state["inode"].as_u64().unwrap(), self.names[Path::new("events.jsonl")]);
        }
    }

    /// The path inside the thread, if it is inside.
    fn inside(&self, path: &Path) -> Option<PathBuf> {
        path.strip_prefix(&self.inbox).ok().map(Path::to_owned)
    }

    /// The file that a descriptor of the thread stands for.
    fn file(&self, arg: &str) -> Option<usize> {
        self.names.get(&self.inside(&path_of(arg))?).copied()
    }
}

/// `4` of `4</the/path>`.
fn descriptor(arg: &str) -> String {
    arg.split('<').next().unwrap().to_owned()
}

/// The path of `4</the/path>`; empty when there is none.
fn path_of(arg: &str) -> PathBuf {
    let path = arg.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map_or("", |(path, _)| path);
    PathBuf::from(String::from_utf8_lossy(&unhex(path)).into_owned())
}

/// The strings among the arguments.
fn strings(args: &[&str]) -> Vec<PathBuf> {
    let quoted = args.iter().filter(|arg| arg.starts_with('"'));
    quoted.map(|arg| PathBuf::from(String::from_utf8_lossy(&text(arg)).into_owned())).collect()
}

fn text(arg: &str) -> Vec<u8> {
    unhex(arg.strip_prefix('"').and_then(|arg| arg.strip_suffix('"')).expect("a whole string"))
}

/// The bytes of `\x41\x42`.
fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or_default() as u8;
    text.as_bytes().chunks_exact(4).map(|four| digit(four[2]) << 4 | digit(four[3])).collect()
}

fn write(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[at..end].copy_from_slice(bytes);
}

// --- What a disk may hold after the cut ----------------------------------------------------------

/// What becomes of what was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Dropped,
    Kept,
    /// Any of it is there, or not.
    Some,
    /// All is there, but of the last write only some sectors.
    Torn,
    /// What was written last is there, what was written before it is not.
    Reordered,
}

const FATES: [Fate; 5] = [Fate::Dropped, Fate::Some, Fate::Torn, Fate::Reordered, Fate::Kept];

/// A file on the disk: what lasts, and what was done since.
#[derive(Default, Clone)]
struct OnDisk {
    lasting: Vec<u8>,
    since: Vec<(usize, Op)>,
}

struct Disk {
    files: Vec<OnDisk>,
    names: BTreeMap<PathBuf, usize>,
    since: Vec<NameOp>,
    count: usize,
}

/// Files as they are found after the cut: which file of the recording, and its bytes.
type Found = BTreeMap<PathBuf, (usize, Vec<u8>)>;

impl Disk {
    fn new(recording: &Recording) -> Disk {
        let lasting = recording.before.values().cloned();
        Disk {
            files: lasting.map(|lasting| OnDisk { lasting, since: Vec::new() }).collect(),
            names: recording.before.keys().cloned().zip(0..).collect(),
            since: Vec::new(),
            count: 0,
        }
    }

    fn apply(&mut self, op: &Op) {
        self.count += 1;
        match op {
            Op::Write { file, .. } | Op::Cut { file, .. } => {
                self.files[*file].since.push((self.count, op.clone()));
            }
            Op::Sync { file } => {
                let OnDisk { lasting, since } = &mut self.files[*file];
                since.drain(..).for_each(|(_, op)| change(lasting, &op));
            }
            Op::SyncDir { dir } => {
                let names = &mut self.names;
                self.since.retain(|op| {
                    let here = op.names().iter().all(|name| name.parent() == Some(dir));
                    if here {
                        op.apply(names);
                    }
                    !here
                });
            }
            Op::Name(op) => {
                if let NameOp::Create { file, .. } = op {
                    self.files.resize_with(*file + 1, OnDisk::default);
                }
                self.since.push(op.clone());
            }
            Op::Answer(_) => {}
        }
    }

    /// What is found after a cut at this moment.
    fn after_cut(&self, fate: Fate, dice: &mut Dice) -> Found {
        let mut names = self.names.clone();
        // A journalling file system keeps the order of what was done to one name.
        let mut lost = BTreeSet::new();
        for op in &self.since {
            let gone = match fate {
                Fate::Dropped => true,
                Fate::Kept | Fate::Torn => false,
                Fate::Some | Fate::Reordered => dice.coin(),
            };
            if gone || op.names().iter().any(|name| lost.contains(*name)) {
                lost.extend(op.names().into_iter().cloned());
            } else {
                op.apply(&mut names);
            }
        }
        let unsynced = self.files.iter().flat_map(|file| &file.since);
        let mut times: Vec<usize> = unsynced.map(|(time, _)| *time).collect();
        times.sort_unstable();
        let last = times.last().copied();
        let turn = times.get(dice.below(times.len())).copied().unwrap_or_default();
        let mut found = Found::new();
        for (path, file) in names {
            let mut bytes = self.files[file].lasting.clone();
            for (time, op) in &self.files[file].since {
                let kept = match fate {
                    Fate::Dropped => false,
                    Fate::Kept => true,
                    Fate::Some => dice.coin(),
                    Fate::Reordered => *time >= turn,
                    Fate::Torn if Some(*time) == last => {
                        tear(&mut bytes, op, dice);
                        continue;
                    }
                    Fate::Torn => true,
                };
                if kept {
                    change(&mut bytes, op);
                } else if let (Fate::Some, Op::Write { at, bytes: new, .. }) = (fate, op)
                    && bytes.len() < at + new.len()
                    && dice.below(4) == 0
                {
                    // The new length reached the disk, what belongs there did not.
                    bytes.resize(at + new.len(), 0);
                }
            }
            found.insert(path, (file, bytes));
        }
        found
    }
}

fn change(content: &mut Vec<u8>, op: &Op) {
    match op {
        Op::Write { at, bytes, .. } => write(content, *at, bytes),
        Op::Cut { length, .. } => content.resize(*length, 0),
        _ => {}
    }
}

/// Writes only some of the sectors.
fn tear(content: &mut Vec<u8>, op: &Op, dice: &mut Dice) {
    let Op::Write { at, bytes, .. } = op else { return };
    let mut from = 0;
    while from < bytes.len() {
        let upto = (SECTOR - (at + from) % SECTOR + from).min(bytes.len());
        if dice.coin() {
            write(content, at + from, &bytes[from..upto]);
        }
        from = upto;
    }
}

// --- What must be found --------------------------------------------------------------------------

/// What the pushers had been told.
#[derive(Default, Clone)]
struct Told {
    events: Vec<Value>,
    batches: Vec<(i64, i64)>,
    cursor: i64,
}

impl Told {
    fn hear(&mut self, answer: &Value) {
        let number = |name: &str| answer[name].as_i64();
        if number("id").is_some() {
            self.events.push(answer.clone());
        } else if let (Some(first), Some(last)) = (number("first_id"), number("last_id")) {
            self.batches.push((first, last));
        } else {
            self.cursor = number("last_acked_id").expect("an answer that is understood");
        }
    }
}

/// A folder for one check, in memory where there is such a place: the disk is not what is tested.
fn fresh_folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = tempfile::Builder::new().prefix("thread-cut").tempdir_in(memory);
    made.unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// What is wrong with what was found, in the eyes of the real binary and of a plain reader.
fn check(found: &Found, told: &Told, inodes: &HashMap<u64, usize>, dice: &mut Dice) -> Vec<String> {
    let folder = fresh_folder();
    let dir = folder.path();
    for made in ["run", "logs"] {
        fs::create_dir(dir.join(made)).unwrap();
    }
    for (path, (_, bytes)) in found {
        fs::write(dir.join(path), bytes).unwrap();
    }
    if dice.coin() {
        // The index of the WAL may be there, with anything in it.
        fs::write(dir.join("events.db-shm"), vec![dice.below(256) as u8; 32768]).unwrap();
    }
    reboot(dir, found, inodes);
    let mut wrong = Vec::new();
    let thread = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thread"));
        command.env_clear().env("THREAD_DIR", dir).env("THREAD_NOTIFIER", "off").args(args);
        command.stdin(Stdio::null()).output().unwrap()
    };
    if dice.below(4) == 0 {
        let output = thread(&["info", "--json"]);
        if !output.status.success() {
            wrong.push(format!("info: {}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    let output = thread(&["push", "--source", "self", "--type", "message", "--content", "after the cut"]);
    if !output.status.success() || !output.stderr.is_empty() {
        wrong.push(format!("the next push: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let read = || -> rusqlite::Result<Vec<String>> {
        let conn = Connection::open(dir.join("events.db"))?;
        let mut wrong = Vec::new();
        let integrity: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
        if integrity != "ok" {
            wrong.push(format!("integrity: {integrity}"));
        }
        for event in &told.events {
            let sql = "SELECT count(*) FROM events WHERE id = ? AND created_at = ? AND content = ?";
            let field = |name: &str| event[name].as_str().unwrap_or_default();
            let id = event["id"].as_i64().unwrap();
            let there: i64 =
                conn.query_row(sql, (id, field("created_at"), field("content")), |row| row.get(0))?;
            if there != 1 {
                wrong.push(format!("missing: event {id}, which was acknowledged"));
            }
        }
        for (first, last) in &told.batches {
            let sql = "SELECT count(*) FROM events WHERE id BETWEEN ? AND ? AND content GLOB 'batch *'";
            let there: i64 = conn.query_row(sql, (first, last), |row| row.get(0))?;
            if there != last - first + 1 {
                wrong.push(format!("missing: of the batch {first} to {last}, {there} events are there"));
            }
        }
        // Each line of a batch says how many there are.
        let sql = "SELECT substr(content, 1, instr(content, ':')), count(*) FROM events \
                   WHERE content GLOB 'batch *' GROUP BY 1";
        let mut statement = conn.prepare(sql)?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
        for row in rows {
            let (name, there) = row?;
            let size = name.trim_end_matches(':').rsplit(' ').next().and_then(|n| n.parse().ok());
            if size != Some(there) {
                wrong.push(format!("a part of a batch: {name} has {there} events"));
            }
        }
        let sql = "SELECT coalesce(max(last_acked_id), 0) FROM consumer_progress";
        let cursor: i64 = conn.query_row(sql, [], |row| row.get(0))?;
        if cursor < told.cursor {
            wrong.push(format!("missing: the cursor {}, it stands at {cursor}", told.cursor));
        }
        wrong.extend(copy_differs(dir, &conn)?);
        Ok(wrong)
    };
    wrong.extend(read().unwrap_or_else(|e| vec![format!("unreadable: {e}")]));
    wrong
}

/// Makes what the writer of the copy remembers that of an earlier boot of this machine, with the
/// copy's new inode. The worst case is assumed: the copy's length and time look as they should.
fn reboot(dir: &Path, found: &Found, inodes: &HashMap<u64, usize>) {
    let path = dir.join("run/_journal");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let mut lines = text.lines();
    let (Some(json), Some(sum)) = (lines.next(), lines.next()) else { return };
    if checksum(json) != sum {
        return;
    }
    let mut state: Value = serde_json::from_str(json).unwrap();
    let known = inodes.get(&state["inode"].as_u64().unwrap());
    if let Some((file, _)) = found.get(Path::new("events.jsonl"))
        && known == Some(file)
    {
        let about = fs::metadata(dir.join("events.jsonl")).unwrap();
        state["inode"] = about.ino().into();
        state["modified"] = (about.mtime() * 1_000_000_000 + about.mtime_nsec()).into();
    } else {
        state["inode"] = 0.into();
    }
    state["boot"] = "00000000-0000-0000-0000-000000000000".into();
    let json = state.to_string();
    fs::write(path, format!("{json}\n{}\n", checksum(&json))).unwrap();
}

fn checksum(text: &str) -> String {
    Sha1::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The first difference between the copy and the table, if there is one.
fn copy_differs(dir: &Path, conn: &Connection) -> rusqlite::Result<Option<String>> {
    let mut names: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("events-"));
    names.sort();
    names.push(dir.join("events.jsonl"));
    let copy: Vec<Vec<u8>> = names.iter().map(|path| fs::read(path).unwrap_or_default()).collect();
    let copy = copy.concat();
    let mut table = String::new();
    let sql = "SELECT id, created_at, source, type, subtype, content FROM events ORDER BY id";
    let mut statement = conn.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        table.push_str(&format!("{{\"id\":{}", row.get::<_, i64>(0)?));
        for (at, name) in ["created_at", "source", "type", "subtype", "content"].iter().enumerate() {
            let value: Option<String> = row.get(at + 1)?;
            table.push_str(&format!(",\"{name}\":{}", serde_json::to_string(&value).unwrap()));
        }
        table.push_str("}\n");
    }
    if copy == table.as_bytes() {
        return Ok(None);
    }
    let same = copy.iter().zip(table.as_bytes()).take_while(|(a, b)| a == b).count();
    Ok(Some(format!(
        "the copy ({} bytes) is not the table ({} bytes), they part after {same} bytes",
        copy.len(),
        table.len()
    )))
}

/// How closely a recording is looked at.
enum Depth {
    /// Each prefix in each way.
    Every,
    /// The prefixes around each sync and each answer, and that many others.
    Sample(usize),
}

/// Plays the recording; answers with the number of checks and with what was wrong.
fn play(recording: &Recording, depth: &Depth) -> (usize, Vec<String>) {
    let ops = &recording.ops;
    let mut chosen: BTreeMap<usize, Vec<Fate>> = BTreeMap::new();
    let mut dice = Dice(1);
    for upto in 0..=ops.len() {
        let rotating = FATES[upto % FATES.len()];
        let fates = match (depth, upto.checked_sub(1).map(|last| &ops[last]), ops.get(upto)) {
            (Depth::Every, ..) => FATES.to_vec(),
            (_, Some(Op::Answer(_)), _) => vec![Fate::Dropped, Fate::Some, Fate::Torn],
            (_, Some(Op::Sync { .. } | Op::SyncDir { .. }), _) => vec![Fate::Dropped],
            (_, _, Some(Op::Sync { .. } | Op::SyncDir { .. })) => vec![Fate::Some, rotating],
            (Depth::Sample(others), ..) if dice.below(ops.len()) < *others => vec![rotating],
            _ => Vec::new(),
        };
        chosen.insert(upto, fates);
    }
    let (send, receive) = mpsc::sync_channel::<(usize, Fate, Found, Told)>(4);
    let receive = Mutex::new(receive);
    let wrong = Mutex::new(Vec::new());
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let next = receive.lock().unwrap().recv();
                    let Ok((upto, fate, found, told)) = next else { return };
                    let mut dice = Dice(upto as u64);
                    let problems = check(&found, &told, &recording.inodes, &mut dice);
                    count.fetch_add(1, Ordering::Relaxed);
                    let problems = problems.iter().map(|p| format!("cut after {upto}, {fate:?}: {p}"));
                    wrong.lock().unwrap().extend(problems);
                }
            });
        }
        let mut disk = Disk::new(recording);
        let mut told = Told::default();
        for (upto, fates) in &chosen {
            for (turn, fate) in fates.iter().enumerate() {
                let mut dice = Dice((upto * FATES.len() + turn) as u64);
                send.send((*upto, *fate, disk.after_cut(*fate, &mut dice), told.clone())).unwrap();
            }
            if let Some(op) = ops.get(*upto) {
                disk.apply(op);
                if let Op::Answer(answer) = op {
                    told.hear(answer);
                }
            }
        }
        drop(send);
    });
    (count.into_inner(), wrong.into_inner().unwrap())
}

// --- The tests -----------------------------------------------------------------------------------

/// A thread whose path is the one the system itself uses.
fn inbox(world: &World) -> PathBuf {
    world.inbox().canonicalize().unwrap()
}

fn assert_sound(what: &str, recording: &Recording, depth: &Depth) {
    let syncs = recording.ops.iter().filter(|op| matches!(op, Op::Sync { .. } | Op::SyncDir { .. })).count();
    let answers = recording.ops.iter().filter(|op| matches!(op, Op::Answer(_))).count();
    let (count, wrong) = play(recording, depth);
    say(&format!(
        "power cut, {what}: {} steps, {syncs} syncs, {answers} answers; {count} cuts looked at",
        recording.ops.len()
    ));
    let shown: Vec<&String> = wrong.iter().take(20).collect();
    assert!(wrong.is_empty(), "{} faults in {count} checks: {shown:#?}", wrong.len());
}

fn batch(world: &World, number: usize, size: usize, padding: usize) {
    let padding = "x".repeat(padding);
    let line = |at| {
        format!(r#"{{"source":"self","type":"record","content":"batch {number} of {size}: {at} {padding}"}}"#)
    };
    let lines: Vec<String> = (0..size).map(line).collect();
    world.write(format!("batch-{number}"), lines.join("\n"));
}

fn push_off(world: &World) -> i64 {
    let words = ["push", "--source", "self", "--type", "message", "--content", "before"];
    world.off(words).quiet().trim().parse().unwrap()
}

const PUSH: &str = "thread push --source self --type message --json --content";

#[test]
fn what_a_push_acknowledged_survives_a_power_cut_at_any_moment() {
    if !can_record("the power cut") {
        return;
    }
    let world = World::with_thread();
    world.idle_consumer("bot", "");
    batch(&world, 1, 7, 10);
    batch(&world, 2, 40, 300);
    let long_text = "y".repeat(20_000);
    // It begins when the WAL is nearly full.
    let (mut stored, wal) = (0, world.inbox().join("events.db-wal"));
    while fs::metadata(&wal).map_or(0, |wal| wal.len()) < 200_000 {
        stored = push_off(&world);
    }
    for number in 3..=6 {
        batch(&world, number, 4, 1000);
    }
    let script = format!(
        "set -e\n\
         for i in 1 2 3; do {PUSH} \"event $i\"; done\n\
         thread push --batch --json <batch-1\n\
         thread ack --consumer bot --event-id {} --json\n\
         {PUSH} {long_text}\n\
         for i in 3 4 5 6; do thread push --batch --json <batch-$i; {PUSH} \"between $i\"; done\n\
         thread ack --consumer bot --event-id {} --json\n\
         for i in 1 2 3; do {PUSH} \"after $i\"; done\n\
         thread push --batch --json <batch-2\n\
         {PUSH} last",
        stored + 5,
        stored + 20,
    );
    world.write("series", script);
    let recording = record(&world, &inbox(&world), &["sh", "series"], &[]);
    let emptied = |op: &Op| matches!(op, Op::Cut { length: 0, .. });
    assert!(recording.ops.iter().any(emptied), "no checkpoint emptied the WAL");
    assert_sound(
        "pushes and batches over a checkpoint",
        &recording,
        &if long() { Depth::Every } else { Depth::Sample(150) },
    );
}

#[test]
fn a_log_that_a_subscription_began_survives_a_power_cut_at_any_moment() {
    if !can_record("the power cut after a subscription") {
        return;
    }
    let world = World::with_thread();
    assert!(!world.inbox().join("events.db-wal").exists(), "the recording is to see the log being made");
    let script = format!(
        "set -e\nthread subscribe --consumer bot --handler true >subscribed\n\
         for i in 1 2 3; do {PUSH} \"event $i\"; done"
    );
    world.write("series", script);
    let recording = record(&world, &inbox(&world), &["sh", "series"], &[]);
    assert_sound("pushes after a subscription", &recording, &Depth::Every);
}

#[test]
fn a_rotation_of_the_copy_survives_a_power_cut_at_any_moment() {
    if !long() || !can_record("the power cut during a rotation") {
        return;
    }
    let world = World::with_thread();
    batch(&world, 1, 10_000, 1);
    world.off(["push", "--batch"]).stdin(fs::read(world.path("batch-1")).unwrap()).quiet();
    let script = format!("set -e\nfor i in 1 2 3 4; do {PUSH} \"event $i\"; done");
    world.write("series", script);
    let recording = record(&world, &inbox(&world), &["sh", "series"], &[]);
    let renamed = |op: &Op| matches!(op, Op::Name(NameOp::Rename { .. }));
    assert!(recording.ops.iter().any(renamed), "the copy was not rotated");
    assert_sound("a rotation", &recording, &Depth::Every);
}

/// Records a series made with the library itself, in that sync mode.
fn series_by_the_library(mode: &str) -> Recording {
    let world = World::with_thread();
    let own = std::env::current_exe().unwrap();
    let words = [own.to_str().unwrap(), "--exact", "power::series", "--ignored", "--nocapture"];
    record(&world, &inbox(&world), &words, &[(SERIES, mode.to_owned())])
}

/// No test, but the process that the next one watches.
#[test]
#[ignore = "started by the test of the checker"]
fn series() {
    let Ok(mode) = std::env::var(SERIES) else { return };
    let path = Path::new(&std::env::var_os("THREAD_DIR").unwrap()).join("events.db");
    for i in 1..=12 {
        let conn = Connection::open(&path).unwrap();
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
        conn.execute_batch(&format!("PRAGMA synchronous = {mode}")).unwrap();
        let sql = "INSERT INTO events (source, type, content) VALUES ('self', 'message', ?) \
                   RETURNING json_object('id', id, 'created_at', created_at, 'content', content)";
        let mut statement = conn.prepare(sql).unwrap();
        let mut rows = statement.query([format!("event {i}")]).unwrap();
        let answer: String = rows.next().unwrap().unwrap().get(0).unwrap();
        assert!(rows.next().unwrap().is_none());
        drop(rows);
        drop(statement);
        conn.close().unwrap();
        rustix::io::write(rustix::stdio::stdout(), format!("{answer}\n").as_bytes()).unwrap();
    }
}

#[test]
fn the_checker_of_power_cuts_sees_what_a_weaker_sync_loses() {
    if !can_record("the test of the power cut's checker") {
        return;
    }
    let full = series_by_the_library("FULL");
    let (count, wrong) = play(&full, &Depth::Sample(20));
    assert!(wrong.is_empty() && count > 0, "{wrong:#?}");
    assert_eq!(full.ops.iter().filter(|op| matches!(op, Op::Answer(_))).count(), 12);

    let normal = series_by_the_library("NORMAL");
    let (count, wrong) = play(&normal, &Depth::Sample(20));
    let missing = wrong.iter().filter(|problem| problem.contains("missing: event")).count();
    say(&format!("power cut, synchronous=NORMAL: {missing} losses seen in {count} cuts, as they should be"));
    assert!(missing >= 12, "a weaker sync went unnoticed: {wrong:#?}");
    // It may lose, but it must not damage: what is reported is the loss alone.
    assert!(wrong.iter().all(|problem| problem.contains("missing: event")), "{wrong:#?}");
}
