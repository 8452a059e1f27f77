//! Records what programs do to a thread's files, from the output of `strace`.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use thread::files::JSONL;
use thread::jsonl::STATE;
use thread_testkit::World;

use crate::inject::strace;

/// The calls that change files, and those that show which file a descriptor refers to. With a
/// question mark, strace ignores a call that this processor does not have.
const CALLS: &str = "trace=?open,openat,?openat2,?creat,write,writev,pwrite64,pwritev,?pwritev2,lseek,\
    ?truncate,ftruncate,fallocate,fsync,fdatasync,?rename,?renameat,renameat2,?link,linkat,?symlink,symlinkat,\
    ?unlink,unlinkat,?mkdir,mkdirat,?rmdir,copy_file_range,sendfile,mmap,msync,sync_file_range";

#[derive(Debug, Clone)]
pub enum Op {
    Write {
        file: usize,
        at: usize,
        bytes: Vec<u8>,
    },
    Truncate {
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
    /// A result was reported to the caller.
    Answer(Value),
}

#[derive(Debug, Clone)]
pub enum NameOp {
    Create { path: PathBuf, file: usize },
    Rename { from: PathBuf, to: PathBuf },
    Unlink { path: PathBuf },
}

impl NameOp {
    pub fn names(&self) -> Vec<&PathBuf> {
        match self {
            NameOp::Create { path, .. } | NameOp::Unlink { path } => vec![path],
            NameOp::Rename { from, to } => vec![from, to],
        }
    }

    pub fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
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

/// A recorded series: the disk's contents before it, and the operations.
pub struct Recording {
    pub before: BTreeMap<PathBuf, Vec<u8>>,
    pub ops: Vec<Op>,
    /// The file number of each `events.jsonl`, by its inode during the recording.
    pub inodes: HashMap<u64, usize>,
}

/// Whether a path is the shared index of the WAL, whose contents do not outlive a boot.
fn is_index(path: &Path) -> bool {
    path.to_string_lossy().ends_with("-shm")
}

/// All files below a folder, by relative path.
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

/// Records what `command` does to the thread at `inbox`.
pub fn record(world: &World, inbox: &Path, command: &[&str], env: &[(&str, String)]) -> Recording {
    let before = files_in(inbox);
    let mut reader = Reader::new(inbox, &before);
    let log = world.path("calls");
    let mut strace = Command::new(strace().unwrap());
    strace.args(["-f", "-y", "-xx", "-s", "4194304", "-e", CALLS, "-o"]).arg(&log).args(command);
    strace.env_clear().env("PATH", world.bin()).env("THREAD_DIR", inbox).env("THREAD_NOTIFIER", "off");
    strace.envs(env.iter().map(|(name, value)| (name, value))).current_dir(world.root());
    let output = strace.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read_to_string(&log).unwrap().lines().for_each(|line| reader.line(line));
    // The parsed operations must reproduce the real files.
    let there = files_in(inbox);
    let understood: BTreeMap<PathBuf, &Vec<u8>> =
        reader.names.iter().map(|(path, &file)| (path.clone(), &reader.contents[file])).collect();
    assert_eq!(understood.keys().collect::<Vec<_>>(), there.keys().collect::<Vec<_>>());
    for (path, bytes) in &there {
        assert!(understood[path] == bytes, "the record of {} is not what is there", path.display());
    }
    Recording { before, ops: reader.ops, inodes: reader.inodes }
}

/// Parses the output of strace.
struct Reader {
    inbox: PathBuf,
    ops: Vec<Op>,
    /// The files as the programs saw them.
    names: BTreeMap<PathBuf, usize>,
    contents: Vec<Vec<u8>>,
    /// Position and append mode, by process and descriptor.
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
        // A resumed call has a space before the parenthesis.
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
                    let answer = serde_json::from_slice(bytes).ok().filter(Value::is_object);
                    self.ops.extend(answer.map(Op::Answer));
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
                    self.push(Op::Truncate { file, length: number(1) });
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
                let renamed = paths(&args);
                let (from, to) = (self.inside(&renamed[0]), self.inside(&renamed[1]));
                match (from, to) {
                    (Some(from), Some(to)) => self.push(Op::Name(NameOp::Rename { from, to })),
                    (None, None) => {}
                    _ => panic!("not modelled: {call}"),
                }
            }
            "unlink" | "unlinkat" => {
                if let Some(path) = paths(&args).first().and_then(|path| self.inside(path))
                    && !is_index(&path)
                {
                    self.push(Op::Name(NameOp::Unlink { path }));
                }
            }
            "mmap" => {
                // Only a shared writable mapping could change files; only the WAL index has one.
                let shared = args[3].contains("MAP_SHARED") && args[2].contains("PROT_WRITE");
                assert!(!shared || self.file(args[4]).is_none(), "not modelled: {call}");
            }
            _ => {
                let named = paths(&args).into_iter().chain(args.iter().map(|arg| path_of(arg)));
                let ours = named.filter_map(|path| self.inside(&path)).any(|path| !is_index(&path));
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
            Some(&file) if flags.contains("O_TRUNC") => self.push(Op::Truncate { file, length: 0 }),
            _ => {}
        }
    }

    /// Records an operation and applies it to the files here.
    fn push(&mut self, op: Op) {
        match &op {
            Op::Write { file, at, bytes } => write(&mut self.contents[*file], *at, bytes),
            Op::Truncate { file, length } => self.contents[*file].resize(*length, 0),
            Op::Name(op) => op.apply(&mut self.names),
            Op::Sync { .. } | Op::SyncDir { .. } | Op::Answer(_) => {}
        }
        self.ops.push(op);
    }

    /// The saved state of the JSONL log's writer contains the log's inode.
    fn learn_inode(&mut self, file: usize, bytes: &[u8]) {
        if self.names.get(Path::new(STATE)) == Some(&file)
            && let Some(state) = std::str::from_utf8(bytes).ok().and_then(|text| text.lines().next())
        {
            let state: Value = serde_json::from_str(state).unwrap();
            self.inodes.insert(state["inode"].as_u64().unwrap(), self.names[Path::new(JSONL)]);
        }
    }

    /// The path relative to the thread; `None` if it is outside.
    fn inside(&self, path: &Path) -> Option<PathBuf> {
        path.strip_prefix(&self.inbox).ok().map(Path::to_owned)
    }

    /// The number of the thread's file that a descriptor refers to.
    fn file(&self, arg: &str) -> Option<usize> {
        self.names.get(&self.inside(&path_of(arg))?).copied()
    }
}

/// The descriptor `4` in `4</the/path>`.
fn descriptor(arg: &str) -> String {
    arg.split('<').next().unwrap().to_owned()
}

/// The path in `4</the/path>`; empty if there is none.
fn path_of(arg: &str) -> PathBuf {
    let path = arg.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map_or("", |(path, _)| path);
    PathBuf::from(String::from_utf8_lossy(&unhex(path)).into_owned())
}

/// The paths among the arguments. A relative one belongs to the directory argument before it.
fn paths(args: &[&str]) -> Vec<PathBuf> {
    let quoted = args.iter().enumerate().filter(|(_, arg)| arg.starts_with('"'));
    quoted
        .map(|(at, arg)| {
            let base = at.checked_sub(1).map_or_else(PathBuf::new, |before| path_of(args[before]));
            base.join(String::from_utf8_lossy(&text(arg)).as_ref())
        })
        .collect()
}

fn text(arg: &str) -> Vec<u8> {
    unhex(arg.strip_prefix('"').and_then(|arg| arg.strip_suffix('"')).expect("a whole string"))
}

/// Decodes `\x41\x42`.
fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or_default() as u8;
    text.as_bytes().chunks_exact(4).map(|four| digit(four[2]) << 4 | digit(four[3])).collect()
}

pub fn write(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[at..end].copy_from_slice(bytes);
}
