//! A copy of a thread that is in use, which is a thread itself.
//!
//! It is made in a folder beside its place, `<place>.partial`, synced, and renamed as the last
//! step: what stands under the final name is whole. Whoever makes one holds a lock on the file
//! `run/_backup` in that folder. A folder where nobody holds it was left by one that was killed,
//! and is cleared.
//!
//! The copy's `events.jsonl` is made from the copy's own table, and so is exactly that. What the
//! table lacks because it was pruned is taken from the original's files: nobody else has it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::error::{Failure, OrFix, Result};
use crate::files::{self, Files};
use crate::journal;
use crate::lock::Lock;
use crate::rotation;
use crate::store::{Extent, Reading, Store};
use crate::thread::Thread;

/// In `run/` of an unfinished copy: its lock, and the sign that it is one and may be cleared.
const MARK: &str = "_backup";

/// What can be done where a copy could not be written.
const FIX: &str = "check the directory's permissions and the space on the disk, then try again";

/// A backup that was made.
#[derive(Debug)]
pub struct Made {
    /// Where it is, absolute.
    pub path: PathBuf,
    pub events: Extent,
}

/// Makes a copy of `thread` in `target`, which must be new or an empty directory outside the
/// thread. Everything is synced when this is done.
///
/// # Errors
///
/// There is then nothing new at `target`, unless the message says otherwise.
pub fn make(thread: &mut Thread, target: &Path) -> Result<Made> {
    let path = files::absolute(target)
        .or_fix("the current directory cannot be found", "change to one that exists")?;
    refuse_occupied(&path)?;
    refuse_inside(thread.dir(), &path)?;
    let draft = Draft::begin(&path, &thread.files)?;
    let db = draft.files.db();
    draft.new_file(&db).or_fix(cannot("make", &db), FIX)?;
    thread.store.copy_to(&db)?;
    let events = draft.complete(thread.dir())?;
    draft.put_in_place(thread.dir(), &path)?;
    Ok(Made { path, events })
}

/// Refuses a place where something is already.
fn refuse_occupied(place: &Path) -> Result<()> {
    let what = match fs::symlink_metadata(place) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e).or_fix(cannot("look at", place), FIX),
        Ok(about) if !about.is_dir() => "is there already",
        Ok(_) => match fs::read_dir(place).or_fix(cannot("read", place), FIX)?.next() {
            None => return Ok(()),
            Some(_) => "is there already and is not empty",
        },
    };
    Err(Failure::could_not(format_args!("{} {what}", place.display()), "name a new directory"))
}

/// Refuses a place inside the thread itself: its root holds nothing but what belongs to it.
fn refuse_inside(thread: &Path, place: &Path) -> Result<()> {
    let thread = thread.canonicalize().or_fix(cannot("look at", thread), FIX)?;
    let above = place.ancestors().skip(1).find_map(|above| above.canonicalize().ok());
    if !above.is_some_and(|above| above.starts_with(&thread)) {
        return Ok(());
    }
    Err(Failure::could_not(
        format_args!("{} is inside the thread", place.display()),
        "name a directory elsewhere, best on another disk",
    ))
}

fn cannot(what: &str, path: &Path) -> String {
    format!("cannot {what} {}", path.display())
}

/// An unfinished copy, removed when it is dropped.
struct Draft {
    files: Files,
    /// On the mark, until the copy is in its place.
    lock: Option<Lock>,
    /// Where an entry was made that is not synced yet: from the place's parent upwards.
    parents: Vec<PathBuf>,
}

impl Draft {
    /// Makes the folder, or takes over one that was left.
    fn begin(place: &Path, original: &Files) -> Result<Draft> {
        let parent = place.parent().unwrap_or(place);
        let parents = files::parents_to_sync(place);
        files::make_dir(parent).or_fix(cannot("make", parent), FIX)?;
        let mut name = place.file_name().unwrap_or_default().to_owned();
        name.push(".partial");
        let files = original.of_copy(parent.join(name));
        let dir = files.dir().to_owned();
        // Open to nobody else before it is whole.
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => refuse_foreign(&dir)?,
            made => made.or_fix(cannot("make", &dir), FIX)?,
        }
        let mark = files.run(MARK);
        let file = files
            .make_dir(&dir.join("run"))
            .and_then(|()| files.open_lock(&mark))
            .or_fix(cannot("make", &dir), FIX)?;
        let lock = Lock::try_take(file).or_fix(cannot("lock", &mark), FIX)?;
        // Whoever had it may have given the folder its final name, or removed it.
        let lock = lock.filter(|lock| is_at(lock.file(), &mark)).ok_or_else(|| {
            Failure::could_not(
                format_args!("another backup is being made in {}", dir.display()),
                "wait for it, or name another directory",
            )
        })?;
        let draft = Draft { files, lock: Some(lock), parents };
        clear(&dir)
            .and_then(|()| draft.files.make_dir(&dir.join("logs")))
            .or_fix(cannot("clear", &dir), FIX)?;
        Ok(draft)
    }

    fn new_file(&self, path: &Path) -> io::Result<File> {
        self.files.open(path, OpenOptions::new().read(true).write(true))
    }

    /// Makes a thread of the copied database: its schema brought up to date, its consumers at rest,
    /// and its lines written. Answers with its events.
    fn complete(&self, original: &Path) -> Result<Extent> {
        let mut store = Store::open(&self.files.db())?;
        store.pause_all()?;
        let events = store.extent()?;
        keep_pruned(original, &self.files, &mut store)
            .and_then(|()| journal::catch_up_and_sync(&self.files, &mut store))
            .map_err(|e| Failure::could_not(format_args!("{e:#}"), FIX))?;
        store.close_whole()?;
        Ok(events)
    }

    /// Syncs everything, opens it to whom the original is open to, and gives it its name.
    fn put_in_place(mut self, original: &Path, place: &Path) -> Result<()> {
        let dir = self.files.dir();
        open_like(original, dir).or_fix(cannot("change the permissions of", dir), FIX)?;
        sync_all(dir).or_fix(cannot("sync", dir), "check the disk, then try again")?;
        // Onto an empty directory too, but onto nothing else.
        fs::rename(dir, place).or_fix(cannot("put the copy at", place), FIX)?;
        let lock = self.lock.take();
        // A mark that stays does no harm under the final name.
        drop(fs::remove_file(place.join("run").join(MARK)));
        drop(lock);
        self.parents.iter().try_for_each(|parent| files::sync_if_possible(parent)).or_fix(
            format_args!(
                "{} was made, but the disk failed to sync its directory, so whether it lasts is unknown",
                place.display()
            ),
            "check the disk, then look at the copy, or remove it and try again",
        )
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.lock.is_some() {
            // The mark goes last. What cannot be removed is cleared by the next backup to this place.
            let dir = self.files.dir();
            drop(clear(dir).and_then(|()| fs::remove_dir_all(dir)));
        }
    }
}

/// Refuses a folder of that name that no backup of this user made. In one of somebody else's, links
/// could lead the clearing anywhere.
fn refuse_foreign(dir: &Path) -> Result<()> {
    let is_ours = || -> io::Result<bool> {
        let about = fs::symlink_metadata(dir)?;
        if !about.is_dir() || about.uid() != rustix::process::geteuid().as_raw() {
            return Ok(false);
        }
        let run = dir.join("run");
        if run.join(MARK).is_file() {
            return Ok(true);
        }
        // Killed, or still at work, before it came to the mark.
        let all = entries(dir)?;
        Ok(all.is_empty() || (all == [run.clone()] && entries(&run)?.is_empty()))
    };
    if is_ours().or_fix(cannot("look at", dir), FIX)? {
        return Ok(());
    }
    Err(Failure::could_not(
        format_args!("{} is in the way, and is no unfinished backup of yours", dir.display()),
        "move it away, or name another directory",
    ))
}

fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path())).collect()
}

/// Whether this open file is the one at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |about: fs::Metadata| (about.dev(), about.ino());
    file.metadata()
        .is_ok_and(|ours| fs::symlink_metadata(path).is_ok_and(|at| identity(at) == identity(ours)))
}

/// Removes all that is in the folder but the mark, by which it is known for what it is.
fn clear(dir: &Path) -> io::Result<()> {
    let run = dir.join("run");
    for path in entries(dir)?.into_iter().chain(entries(&run)?) {
        if path == run || path.ends_with(MARK) {
            continue;
        }
        if fs::symlink_metadata(&path)?.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
    }
    Ok(())
}

/// Gives a folder the permission bits of the original, and the owner where root made it.
fn open_like(original: &Path, dir: &Path) -> io::Result<()> {
    let about = fs::metadata(original)?;
    if rustix::process::geteuid().is_root() && about.uid() != 0 {
        chown(dir, Some(about.uid()), Some(about.gid()))?;
    }
    fs::set_permissions(dir, Permissions::from_mode(about.mode() & 0o775 | 0o700))
}

/// Syncs a directory, after all that is in it.
fn sync_all(dir: &Path) -> io::Result<()> {
    for path in entries(dir)? {
        if path.is_dir() { sync_all(&path)? } else { files::sync(&path)? }
    }
    files::sync(dir)
}

/// Writes a rotated file with the lines of pruned events, which only the original's files still
/// have, and of the events between them. Makes none where there is nothing to keep.
fn keep_pruned(original: &Path, files: &Files, store: &mut Store) -> anyhow::Result<()> {
    let Some(end) = store.end_of_gaps()? else { return Ok(()) };
    let path = files.jsonl();
    let mut out = BufWriter::new(files.open(&path, OpenOptions::new().write(true))?);
    let mut lines = Lines::of(original);
    let mut line = Vec::new();
    let mut reading = Reading { after: 0, left: None, filter: None };
    loop {
        let mut written = Ok(());
        let more = store.read_rows(&mut reading, |row| {
            if row.id >= end {
                return false;
            }
            line.clear();
            row.write_line(&mut line);
            written = lines.copy_before(row.id, &mut out).and_then(|()| out.write_all(&line));
            written.is_ok()
        })?;
        written?;
        if !more || reading.after >= end {
            break;
        }
    }
    lines.copy_before(end, &mut out)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?;
    if lines.copied == 0 {
        fs::remove_file(&path)?;
    } else {
        rotation::set_aside(&path, "events-", "jsonl")?;
    }
    Ok(())
}

/// The lines of a thread's copy, oldest first, while others go on writing and rotating it.
struct Lines {
    dir: PathBuf,
    /// The rotated file that was opened last.
    rotated: Option<PathBuf>,
    file: Option<journal::Lines>,
    /// The current file, behind which nothing comes, was opened.
    at_end: bool,
    /// Lines up to this id are done with.
    upto: i64,
    copied: u64,
}

impl Lines {
    fn of(dir: &Path) -> Lines {
        Lines { dir: dir.to_owned(), rotated: None, file: None, at_end: false, upto: 0, copied: 0 }
    }

    /// Copies the lines of the ids before `id` that are not done with. Then `id` itself is, too.
    fn copy_before(&mut self, id: i64, out: &mut impl Write) -> io::Result<()> {
        // Without a gap nothing need be read.
        while self.upto + 1 < id {
            if self.file.is_none() {
                self.file = self.open_next()?.map(|file| journal::Lines::after(file, 0)).transpose()?;
            }
            let Some(lines) = &mut self.file else { break };
            if lines.peek()?.is_empty() {
                self.file = None;
                continue;
            }
            match lines.id() {
                Some(at) if at >= id => break,
                Some(at) if at > self.upto => {
                    out.write_all(lines.peek()?)?;
                    self.copied += 1;
                    self.upto = at;
                }
                _ => {}
            }
            lines.next();
        }
        self.upto = id;
        Ok(())
    }

    fn open_next(&mut self) -> io::Result<Option<File>> {
        let open = |path: &Path| match File::open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        };
        while !self.at_end {
            // Opened before the look: one that is rotated in between is met under its new name.
            let current = open(&self.dir.join("events.jsonl"))?;
            let rotated = journal::rotated(&self.dir)?;
            let Some(path) = rotated.into_iter().find(|path| self.rotated.as_ref().is_none_or(|r| path > r))
            else {
                self.at_end = true;
                return Ok(current);
            };
            let file = open(&path)?;
            self.rotated = Some(path);
            if file.is_some() {
                return Ok(file);
            }
        }
        Ok(None)
    }
}
