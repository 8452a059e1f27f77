//! Copies a thread that may be in use. The copy is a thread itself.
//!
//! It is made in a directory next to its destination, synced, and renamed as the last step. Lines of pruned events
//! are only in the original's sealed JSONL files, so the sealed files that do not go past the newest event of the
//! copy are copied. These include every file with a line that the copy's table lacks: prune seals the log before it
//! deletes, so such a file was sealed before the database was copied. All other lines are written from the copy's
//! table.

#![expect(
    clippy::disallowed_methods,
    reason = "a copy is made outside of the thread, and renamed into its place"
)]

pub mod root;

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, OFlags};
use tempfile::TempDir;

use crate::error::{Error, IoContext, Result};
use crate::files::log::{Quoted, log};
use crate::files::{self, Access, DB, Files};
use crate::jsonl;
use crate::model::time;
use crate::queue::Queue;
use crate::sqlite::{BUSY_LIMIT, Sqlite};
use crate::store::{RunUpdate, Store};

/// A completed backup.
#[derive(Debug)]
pub struct Backup {
    /// Its absolute path.
    pub path: PathBuf,
    /// The number of events in it.
    pub count: u64,
    /// The newest id ever assigned, even if its event was deleted; 0 if there was none.
    pub newest: i64,
}

/// Copies a thread to `location`, which must not exist or be an empty directory, outside the thread. Everything
/// is synced when this returns. `progress` is called with the number of lines written to the JSONL log since
/// the last call.
///
/// # Errors
///
/// [`Error::Occupied`], [`Error::InsideThread`]; database and file system errors. Nothing was created at
/// `location` then, unless the message says otherwise.
pub fn backup(queue: &mut Queue, location: &Path, progress: &mut dyn FnMut(u64)) -> Result<Backup> {
    queue.directory("backup")?;
    let location = files::absolute(location).at("find", location)?;
    refuse_occupied(&location)?;
    refuse_inside(queue.path(), &location)?;
    let parents = files::parents_to_sync(&location);
    // This comes first, because they may occupy the space that this copy needs.
    for path in delete_abandoned(location.parent().unwrap_or(&location), is_remains) {
        log!(queue, Info, "backup: deleted unfinished path={}", Quoted(&path.to_string_lossy()));
    }
    let (draft, _lock) = draft_beside(&location)?;
    let (count, newest) = copy_to(queue, draft.path(), progress)?;
    put_in_place(draft, &location, &parents)?;
    let shown = location.to_string_lossy();
    log!(queue, Info, "backup: path={} count={count}", Quoted(&shown));
    Ok(Backup { path: location, count, newest })
}

/// Copies a thread into an empty directory, and syncs it. Returns the number of events, and the newest id.
fn copy_to(queue: &mut Queue, draft: &Path, progress: &mut dyn FnMut(u64)) -> Result<(u64, i64)> {
    let dir = files::open_dir(CWD, draft, OFlags::NOFOLLOW).at("open", draft)?;
    let copy = queue.files.of_copy(draft.to_owned(), dir);

    let db = copy.path_of(DB);
    // Created before SQLite writes it, so that it has the right mode from the start.
    copy.make_dir("run")
        .and_then(|()| copy.make_dir("logs"))
        .and_then(|()| copy.open_file(DB, Access::Write))
        .at("make files in", copy.path())?;
    queue.store.copy_to(&db)?;
    let mut store = Sqlite::open(&db)?;
    // Creates missing consumer rows; without its row, a consumer could not be paused.
    store.migrate()?;
    // Nothing can be written to the copy of a closed thread either, and nothing runs there.
    let to_pause = if store.closed()?.is_none() { store.subscriptions()? } else { Vec::new() };
    for subscription in to_pause {
        store.update_run(&subscription, &RunUpdate::state(subscription.state.of_copy()))?;
    }
    let (count, newest) = (store.count(0, i64::MAX)?, store.newest()?);
    copy_sealed(&queue.files, &copy, &mut store)?;
    jsonl::catch_up(&copy, &mut store, BUSY_LIMIT, progress)?;
    let note = Note { thread: ascii_path(queue.path()), made: time::now(), newest };
    write_note(&copy, &note).at("write", &copy.path_of(NOTE))?;
    store.close_whole()?;

    copy_access(&queue.files, &copy).and_then(|()| sync(&copy)).at("sync", copy.path())?;
    Ok((count, newest))
}

/// Deletes the backups of this thread in the directory of `made`, all but the newest `keep`. Directories
/// without a note that they are a backup of this thread are left alone, and so are backups that were used:
/// something was pushed to them, or a consumer resumed. Returns the paths that were deleted.
///
/// # Errors
///
/// File system errors; some backups may be deleted already.
pub fn delete_old(queue: &Queue, made: &Backup, keep: u64) -> Result<Vec<PathBuf>> {
    let dir = made.path.parent().unwrap_or(&made.path);
    let thread = ascii_path(queue.path());
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).at("list", dir)? {
        let entry = entry.at("list", dir)?;
        // Links are skipped, and what backups that were killed left behind: it may be incomplete.
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let is_whole = !entry.file_name().to_string_lossy().contains(PARTIAL);
        if is_dir
            && is_whole
            && let Some(note) = note_of(&entry.path()).filter(|note| note.thread == thread)
        {
            found.push((note, entry.path()));
        }
    }
    found.sort_by(|(one, _), (other, _)| (&other.made, other.newest).cmp(&(&one.made, one.newest)));
    let mut deleted = Vec::new();
    for (note, path) in found.into_iter().skip(usize::try_from(keep).unwrap_or(usize::MAX)) {
        if path == made.path || path == queue.path() || is_used(&path, &note) {
            continue;
        }
        fs::remove_dir_all(&path).at("delete", &path)?;
        log!(queue, Info, "backup: deleted path={}", Quoted(&path.to_string_lossy()));
        deleted.push(path);
    }
    Ok(deleted)
}

/// A backup's description of itself, stored as [`NOTE`].
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Note {
    /// The path of the original, as [`ascii_path`].
    thread: String,
    made: String,
    /// The newest id ever assigned.
    newest: i64,
}

/// A path in ASCII, with other bytes escaped: JSON cannot hold every path, and different paths must remain
/// different.
fn ascii_path(path: &Path) -> String {
    path.as_os_str().as_bytes().escape_ascii().to_string()
}

const NOTE: &str = "run/_backup";

/// Part of the name of an unfinished copy, after that of the destination.
const PARTIAL: &str = ".partial-";

fn write_note(copy: &Files, note: &Note) -> io::Result<()> {
    copy.open_file(NOTE, Access::Write)?.write_all(serde_json::to_string(note)?.as_bytes())
}

fn note_of(path: &Path) -> Option<Note> {
    let file = Files::open(path).ok()?.open_file(NOTE, Access::Read).ok()?;
    serde_json::from_reader(file).ok()
}

/// Whether a backup was written to since it was made; true if it cannot be read.
fn is_used(path: &Path, note: &Note) -> bool {
    let unused = || -> Result<bool> {
        let mut copy = Queue::open(path)?;
        let paused = copy.store.subscriptions()?.iter().all(|consumer| consumer.state.paused);
        Ok(paused && copy.store.newest()? == note.newest)
    };
    !unused().unwrap_or(false)
}

/// Returns an error unless `location` does not exist or is an empty directory.
fn refuse_occupied(location: &Path) -> Result<()> {
    match fs::symlink_metadata(location).if_there().at("look at", location)? {
        None => Ok(()),
        Some(about) if about.is_dir() && fs::read_dir(location).at("list", location)?.next().is_none() => {
            Ok(())
        }
        Some(_) => Err(Error::Occupied(location.to_owned())),
    }
}

/// Returns an error if `location` is inside the thread, whose directory must contain only its own files.
pub(super) fn refuse_inside(thread: &Path, location: &Path) -> Result<()> {
    let thread = thread.canonicalize().at("find", thread)?;
    let above = location.ancestors().skip(1).find_map(|above| above.canonicalize().ok());
    match above {
        Some(above) if above.starts_with(&thread) => Err(Error::InsideThread(location.to_owned())),
        _ => Ok(()),
    }
}

/// Creates the directory for the unfinished copy, and the parents of its destination. Only this user may access it
/// until the copy is complete. It is removed when the first return value is dropped. The second one holds a lock on
/// it, which marks it as in use.
fn draft_beside(location: &Path) -> Result<(TempDir, File)> {
    let parent = location.parent().unwrap_or(location);
    fs::create_dir_all(parent).at("make", parent)?;
    let mut prefix = location.file_name().unwrap_or_default().to_owned();
    prefix.push(PARTIAL);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).permissions(Permissions::from_mode(0o700));
    loop {
        let draft = builder.tempdir_in(parent).at("make a directory in", parent)?;
        // Otherwise, another backup has just taken it for one that was left unfinished.
        let dir = File::open(draft.path()).if_there().at("open", draft.path())?;
        let Some(dir) = dir else { continue };
        // Some file systems have no locks; there, copies that others left are not deleted.
        dir.lock().ok();
        // Another backup may have deleted it before the lock was taken.
        if fs::symlink_metadata(draft.path()).is_ok() {
            return Ok((draft, dir));
        }
    }
}

/// Renames a complete copy to its destination, and syncs the directories that got an entry with it.
fn put_in_place(draft: TempDir, location: &Path, parents: &[PathBuf]) -> Result<()> {
    // rename replaces an empty directory, and nothing else.
    if let Err(e) = fs::rename(draft.path(), location) {
        refuse_occupied(location)?;
        return Err(e).at("put the backup in place at", location);
    }
    drop(draft.keep());
    files::sync_parents(parents, location)
}

/// Deletes the copies in `dir` that this user's earlier backups left unfinished because they were killed, and that
/// `is_remains` knows. What cannot be deleted stays. Returns what was deleted.
fn delete_abandoned(dir: &Path, is_remains: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().filter(|entry| {
        let is_own = entry.metadata().is_ok_and(|about| about.is_dir() && about.uid() == user);
        // Six letters or digits follow.
        let name = entry.file_name();
        let suffix =
            name.to_str().and_then(|name| name.rsplit_once(PARTIAL)).map_or("", |(_, suffix)| suffix);
        is_own && suffix.len() == 6 && suffix.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    let abandoned = entries.map(|entry| entry.path()).filter(|path| {
        // The process that makes a copy holds this lock; its end releases it. Held until the copy is gone.
        let delete = |dir: File| dir.try_lock().is_ok() && fs::remove_dir_all(path).is_ok();
        is_remains(path) && File::open(path).is_ok_and(delete)
    });
    abandoned.collect()
}

/// Whether there is nothing in a directory but files of a thread.
fn is_remains(path: &Path) -> bool {
    let known =
        |name: &str| ["run", "logs"].contains(&name) || name.starts_with(DB) || name.ends_with(".jsonl");
    fs::read_dir(path).is_ok_and(|mut entries| {
        entries.all(|entry| entry.is_ok_and(|entry| entry.file_name().to_str().is_some_and(known)))
    })
}

/// Copies the sealed JSONL files that do not go past the newest event of `store`, the copy's. More files may
/// be sealed, and old ones deleted, at the same time.
fn copy_sealed(original: &Files, copy: &Files, store: &mut dyn Store) -> Result<()> {
    for name in jsonl::sealed(original).at("list", original.path())? {
        let path = original.path_of(&name);
        let file = original.open_file(&name, Access::Read).if_there().at("open", &path)?;
        let Some(mut file) = file else { continue };
        // A user may have emptied it instead of deleting it.
        let Some(last) = jsonl::last_event(&file).at("read", &path)? else { continue };
        if jsonl::was_replaced(store, last.id, &last.time)? {
            continue;
        }
        let mut to = copy.open_file(&name, Access::Write).at("make", &copy.path_of(&name))?;
        io::copy(&mut file, &mut to).at("copy", &path)?;
    }
    Ok(())
}

/// Makes the copy accessible to the same users as the original.
fn copy_access(original: &Files, copy: &Files) -> io::Result<()> {
    let mode = original.stat("")?.st_mode & 0o775 | 0o700;
    copy.adopt(copy.open_dir("")?, mode);
    Ok(())
}

/// Syncs all files of a thread, then their directories.
fn sync(files: &Files) -> io::Result<()> {
    for dir in ["run", "logs", ""] {
        for name in files.list(dir)? {
            let name = Path::new(dir).join(name);
            if FileType::from_raw_mode(files.stat(&name)?.st_mode) == FileType::RegularFile {
                files.open_file(&name, Access::Read)?.sync_all()?;
            }
        }
        files.sync_dir(dir)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintenance::prune::{Old, Request, prune};
    use crate::model::event::NewEvent;

    #[test]
    fn sealed_files_are_copied_up_to_the_newest_event() {
        let dir = tempfile::tempdir().unwrap();
        let mut queue = Queue::open(Queue::init(dir.path().join("t")).unwrap()).unwrap();
        let mut log = String::new();
        let earlier = dir.path().join("earlier.db");
        for round in 0..3 {
            for _ in 0..2 {
                queue.push(&NewEvent::message("self", "x").unwrap()).unwrap();
            }
            log += &fs::read_to_string(queue.path().join("events.jsonl")).unwrap();
            if round == 0 {
                queue.store.copy_to(&earlier).unwrap();
            }
            if round < 2 {
                let old = Old::BeforeId(round * 2 + 2);
                let request = Request { old, subtype: None, force: true, dry_run: false };
                prune(&mut queue, &request, &mut |_| {}).unwrap();
            }
        }
        let read = |dir: &Path| {
            let files = Files::open(dir).unwrap();
            let names = jsonl::sealed(&files).unwrap().into_iter().chain(["events.jsonl".to_owned()]);
            names.map(|name| fs::read_to_string(dir.join(name)).unwrap()).collect::<String>()
        };
        assert_eq!(read(queue.path()), log);
        let made = backup(&mut queue, &dir.path().join("copy"), &mut |_| {}).unwrap();
        assert_eq!((made.count, made.newest, read(&made.path)), (3, 6, log));

        // The second sealed file goes past the newest event of an earlier copy of the database.
        let empty = Files::open(&Queue::init(dir.path().join("empty")).unwrap()).unwrap();
        let mut store = Sqlite::open(&earlier).unwrap();
        copy_sealed(&queue.files, &empty, &mut store).unwrap();
        assert_eq!(jsonl::sealed(&empty).unwrap(), jsonl::sealed(&queue.files).unwrap()[..1]);
    }
}
