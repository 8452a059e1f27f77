//! Two system calls that SQLite makes in another way here. Both spare a push most of what a sync costs.
//!
//! *The directory of a WAL is synced only where that is needed.* At the first commit of each connection, SQLite syncs it in
//! case that connection has made the file. Only a WAL without content can have an entry that is not synced: before a
//! store writes into an empty one, it syncs the directory itself and notices if that fails, which SQLite does not. So
//! SQLite is told to leave it out where the WAL had content when it was opened.
//!
//! *A short WAL keeps its length when it is truncated.* Syncing bytes that overwrite others costs a fraction of syncing
//! bytes that make a file longer. So, in place of the file, only its header is emptied, which SQLite takes for a WAL
//! without content. It syncs a new header before the first frame that follows, so after a power cut it cannot find an old
//! header with frames of both.

use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_int};
use std::mem::transmute;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rusqlite::ffi;
use rustix::fs::fstat;
use rustix::io::{pread, pwrite};

/// The length of a WAL's header, and how it begins; the last bit says how its checksums are made.
const HEADER_BYTES: usize = 32;
const MAGIC: u32 = 0x377f_0682;

/// A longer WAL, as a batch makes it, is truncated.
const MOST_KEPT: i64 = 512 << 10;

/// The WALs whose entries are synced.
static SYNCED: Mutex<Option<HashSet<Box<[u8]>>>> = Mutex::new(None);

type Function = unsafe extern "C" fn();

/// How SQLite opens the directory of a file, to sync it.
type OpenDirectory = unsafe extern "C" fn(*const c_char, *mut c_int) -> c_int;

/// How it sets the length of a file.
type Truncate = unsafe extern "C" fn(c_int, i64) -> c_int;

/// SQLite's own functions; `None` for one that was not replaced.
struct Own {
    open_directory: Option<OpenDirectory>,
    truncate: Option<Truncate>,
}

static OWN: OnceLock<Own> = OnceLock::new();

/// Says whether the entry of a WAL is synced. To be called before a connection opens it.
pub fn set_synced(wal: &Path, is_synced: bool) {
    OWN.get_or_init(replace_both);
    let wal = wal.as_os_str().as_bytes();
    let mut synced = synced();
    let synced = synced.get_or_insert_default();
    if !is_synced {
        synced.remove(wal);
    } else if !synced.contains(wal) {
        synced.insert(wal.into());
    }
}

fn synced() -> MutexGuard<'static, Option<HashSet<Box<[u8]>>>> {
    SYNCED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn replace_both() -> Own {
    // SAFETY: the functions that SQLite documents under these names have these types.
    unsafe {
        Own {
            open_directory: replace(c"openDirectory", transmute::<OpenDirectory, Function>(open_directory))
                .map(|own| transmute::<Function, OpenDirectory>(own)),
            truncate: replace(c"ftruncate", transmute::<Truncate, Function>(truncate))
                .map(|own| transmute::<Function, Truncate>(own)),
        }
    }
}

/// Puts a function in the place of SQLite's own one, which is returned. If that is not possible, nothing is changed.
///
/// # Safety
///
/// It has the type of the one with this name.
unsafe fn replace(name: &CStr, ours: Function) -> Option<Function> {
    // SAFETY: the default VFS stays there as long as the process.
    unsafe {
        let vfs = ffi::sqlite3_vfs_find(ptr::null()).as_mut()?;
        let own = vfs.xGetSystemCall?(vfs, name.as_ptr())?;
        let set = vfs.xSetSystemCall?;
        (set(vfs, name.as_ptr(), Some(ours)) == ffi::SQLITE_OK).then_some(own)
    }
}

/// Finds no directory for a WAL whose entry is synced, which SQLite takes for a system that cannot sync directories.
unsafe extern "C" fn open_directory(path: *const c_char, file: *mut c_int) -> c_int {
    // SAFETY: SQLite passes a path that ends with a zero.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    let is_synced = synced().as_ref().is_some_and(|synced| synced.contains(name));
    // Waits for the thread that is replacing it.
    match OWN.wait().open_directory {
        // SAFETY: the arguments are SQLite's own.
        Some(own) if !is_synced => unsafe { own(path, file) },
        _ => ffi::SQLITE_CANTOPEN,
    }
}

/// Empties the header of a short WAL that is to have no content, and truncates any other file.
unsafe extern "C" fn truncate(file: c_int, length: i64) -> c_int {
    // SAFETY: SQLite has the file open.
    if length == 0 && empty_header(unsafe { BorrowedFd::borrow_raw(file) }) {
        return 0;
    }
    match OWN.wait().truncate {
        // SAFETY: the arguments are SQLite's own.
        Some(own) => unsafe { own(file, length) },
        None => -1,
    }
}

/// Returns false if the file is no short WAL, or cannot be written.
fn empty_header(file: BorrowedFd<'_>) -> bool {
    let mut magic = [0; size_of::<u32>()];
    let is_wal = pread(file, &mut magic, 0) == Ok(magic.len()) && u32::from_be_bytes(magic) & !1 == MAGIC;
    is_wal
        && fstat(file).is_ok_and(|stat| stat.st_size <= MOST_KEPT)
        && pwrite(file, &[0; HEADER_BYTES], 0) == Ok(HEADER_BYTES)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;
    use crate::sqlite::Sqlite;

    #[test]
    fn only_a_wal_is_emptied() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("other");
        std::fs::write(&path, "SQLite format 3").unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        assert!(!empty_header(file.as_fd()));
        assert_eq!(std::fs::read(&path).unwrap(), b"SQLite format 3");
    }

    /// A process may open very many threads, one after the other.
    #[test]
    fn nothing_is_kept_of_a_database_that_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let is_known = || {
            let known = synced();
            known.iter().flatten().any(|wal| wal.starts_with(dir.as_os_str().as_bytes()))
        };
        let path = dir.join("events.db");
        Sqlite::create(&path, false).unwrap();
        assert!(!is_known());
        let first = Sqlite::open(&path).unwrap();
        first.conn.execute_batch("CREATE TABLE other (n)").unwrap();
        // Its WAL has content.
        let second = Sqlite::open(&path).unwrap();
        assert!(is_known());
        drop((first, second));
        assert!(!is_known());
    }
}
