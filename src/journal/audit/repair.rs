//! Writing files of the copy anew where they are wrong.
//!
//! A file is mended by writing it once more under another name, synced, and renaming it into
//! place, so that a crash leaves the old one or the new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};

use super::walk::{Line, PAGE, Walk};
use super::{Faults, take};
use crate::files::{self, Files};
use crate::journal::{Place, State, known_base, modified, open_jsonl, read_state, write_state};
use crate::process;
use crate::rotation;
use crate::store::Store;

/// Writes those files anew that do not agree with the table, and the note about them. A file that
/// tells of events in a way that the table does not (that may be an older one that was put back) is
/// kept under another name as well; the answer is these names.
///
/// # Errors
///
/// Something cannot be read or written. What was not mended is as it was.
pub fn repair(files: &Files, store: &mut Store) -> anyhow::Result<Vec<PathBuf>> {
    let path = files.run("_journal");
    let file = files.open_lock(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let lock = take(file)?;
    let done = repair_locked(files, store, lock.file());
    lock.release();
    done
}

fn repair_locked(files: &Files, store: &mut Store, memory: &File) -> anyhow::Result<Vec<PathBuf>> {
    let state = read_state(memory);
    let mut kept = Vec::new();
    let names = rotation::names(files.dir(), "events-", "jsonl")?;
    let base = known_base(&state, &names.last().cloned());
    let upto = store.newest_ever()?;
    let mut walk = Walk::new(store, upto)?;
    for (at, name) in names.iter().enumerate() {
        let path = files.dir().join(name);
        let file = File::open(&path).with_context(|| format!("cannot open {name}"))?;
        let length = file.metadata()?.len();
        let start = walk.after;
        let mut walked = walk.file(&file, length, None)?;
        let next = walk.start_of_next(files, &names[at + 1..], base)?;
        walk.end_of_rotated(&mut walked, next, None)?;
        if walked.faults == Faults::default() {
            continue;
        }
        walk.restart(start);
        let mut draft = Draft::make(files, &path, &file)?;
        let mut again = walk.file(&file, length, Some(&mut draft))?;
        walk.end_of_rotated(&mut again, next, Some(&mut draft))?;
        kept.extend(draft.put_in_place(files, &path, walked.has_more)?);
    }
    let current = open_jsonl(files).context("cannot open events.jsonl")?;
    let length = current.metadata()?.len();
    walk.enter_current(base);
    let start = walk.after;
    let mut walked = walk.file(&current, length, None)?;
    walk.rest(&mut walked, i64::MAX, None)?;
    let path = files.jsonl();
    if walked.faults != Faults::default() {
        let keep = walked.has_more;
        walk.restart(start);
        let mut draft = Draft::make(files, &path, &current)?;
        walked = walk.file(&current, length, Some(&mut draft))?;
        walk.rest(&mut walked, i64::MAX, Some(&mut draft))?;
        walked.end = draft.end;
        kept.extend(draft.put_in_place(files, &path, keep)?);
    } else {
        current.sync_all()?;
        drop(fs::remove_file(draft_beside(files, &path)));
    }
    let about = fs::metadata(&path)?;
    let (end, rotated) = (walked.end, names.last().cloned());
    let state = State {
        boot: process::boot_id(),
        inode: about.ino(),
        modified: modified(&about),
        base: walked.base,
        rotated,
        end,
        synced: end,
    };
    write_state(memory, &state)?;
    Ok(kept)
}

/// A file that is written anew.
pub struct Draft {
    path: PathBuf,
    to: BufWriter<File>,
    /// The file it is to replace.
    old: File,
    end: Place,
}

impl Draft {
    fn make(files: &Files, target: &Path, old: &File) -> anyhow::Result<Draft> {
        let path = draft_beside(files, target);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
        let to = files
            .open(&path, OpenOptions::new().write(true))
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Draft {
            path,
            to: BufWriter::with_capacity(PAGE, to),
            old: old.try_clone()?,
            end: Place::default(),
        })
    }

    pub fn row(&mut self, id: i64, line: &[u8]) -> io::Result<()> {
        self.wrote(id, line.len() as u64);
        self.to.write_all(line)
    }

    /// A line of the old file as it stands there.
    pub fn line(&mut self, id: i64, text: &[u8], line: &Line) -> io::Result<()> {
        self.wrote(id, line.length);
        self.to.write_all(text)?;
        let mut at = line.offset + text.len() as u64;
        let end = line.offset + line.length;
        let mut part = vec![0; 64 * 1024];
        while at < end {
            let most = part.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
            // At an offset: the descriptor's own place is that of the reader of lines.
            let read = std::os::unix::fs::FileExt::read_at(&self.old, &mut part[..most], at)?;
            if read == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.to.write_all(&part[..read])?;
            at += read as u64;
        }
        Ok(())
    }

    fn wrote(&mut self, id: i64, length: u64) {
        self.end = Place { bytes: self.end.bytes + length, lines: self.end.lines + 1, id };
    }

    /// Puts the draft in the place of the old file, which is kept under another name if `keep`.
    fn put_in_place(self, files: &Files, target: &Path, keep: bool) -> anyhow::Result<Option<PathBuf>> {
        let to = self.to.into_inner().map_err(io::IntoInnerError::into_error)?;
        to.sync_all()?;
        let target = fs::canonicalize(target)?;
        let kept = if keep { Some(keep_old(files, &target)?) } else { None };
        fs::rename(&self.path, &target).with_context(|| format!("cannot replace {}", target.display()))?;
        files::sync(target.parent().unwrap_or(files.dir()))?;
        Ok(kept)
    }
}

/// Gives the old file a second name in `run/` that nothing else uses.
fn keep_old(files: &Files, target: &Path) -> anyhow::Result<PathBuf> {
    for number in 1.. {
        let path = files.run(&format!("_unknown-{number}.jsonl"));
        match fs::hard_link(target, &path) {
            Ok(()) => {
                files::sync(&files.run(""))?;
                return Ok(path);
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => {
                return Err(e).with_context(|| format!("cannot keep the old file as {}", path.display()));
            }
        }
    }
    Err(anyhow!("no name is free in run/"))
}

/// Where a file of the copy is written anew: in `run/`, or, where the copy is a link to elsewhere,
/// there, because files are renamed only within one file system.
pub fn draft_beside(files: &Files, target: &Path) -> PathBuf {
    let elsewhere = fs::canonicalize(target).ok().filter(|real| {
        let home = fs::canonicalize(files.dir()).ok();
        fs::symlink_metadata(target).is_ok_and(|file| file.is_symlink()) && real.parent() != home.as_deref()
    });
    match elsewhere {
        Some(real) => real.with_extension("jsonl-draft"),
        None => files.run("_draft.jsonl"),
    }
}
