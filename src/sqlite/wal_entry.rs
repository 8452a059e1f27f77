//! When the directory entry of a WAL is synced.
//!
//! At the first commit of each connection, SQLite also syncs the directory of the WAL, in case that connection has made
//! the file. That doubles the syncs of a push. Only a WAL without content can have an entry that is not synced: before a
//! store writes into an empty one, it syncs the directory itself and notices if that fails, which SQLite does not. So
//! SQLite is told to leave it out where the WAL had content when it was opened.

use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_int};
use std::mem::transmute;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rusqlite::ffi;

/// The WALs whose entries are synced.
static SYNCED: Mutex<Option<HashSet<Box<[u8]>>>> = Mutex::new(None);

/// How SQLite opens the directory of a file, to sync it.
type OpenDirectory = unsafe extern "C" fn(*const c_char, *mut c_int) -> c_int;

static OPEN_DIRECTORY: OnceLock<Option<OpenDirectory>> = OnceLock::new();

/// Says whether the entry of a WAL is synced. To be called before a connection opens it.
pub fn set_synced(wal: &Path, is_synced: bool) {
    OPEN_DIRECTORY.get_or_init(replace);
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

/// Puts [`open_directory`] in the place of SQLite's own function, which is returned. Without it, nothing is changed.
fn replace() -> Option<OpenDirectory> {
    let name = c"openDirectory".as_ptr();
    // SAFETY: the default VFS stays there as long as the process, and SQLite documents its functions of these names. The
    // one for this name has the type of `OpenDirectory`.
    unsafe {
        let vfs = ffi::sqlite3_vfs_find(ptr::null()).as_mut()?;
        let own = vfs.xGetSystemCall?(vfs, name)?;
        let set = vfs.xSetSystemCall?;
        let ours = transmute::<OpenDirectory, unsafe extern "C" fn()>(open_directory);
        let own = transmute::<unsafe extern "C" fn(), OpenDirectory>(own);
        (set(vfs, name, Some(ours)) == ffi::SQLITE_OK).then_some(own)
    }
}

/// Finds no directory for a WAL whose entry is synced, which SQLite takes for a system that cannot sync directories.
unsafe extern "C" fn open_directory(path: *const c_char, file: *mut c_int) -> c_int {
    // SAFETY: SQLite passes a path that ends with a zero.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    let is_synced = synced().as_ref().is_some_and(|synced| synced.contains(name));
    // Waits for the thread that is replacing it.
    match OPEN_DIRECTORY.wait() {
        // SAFETY: the arguments are SQLite's own.
        Some(own) if !is_synced => unsafe { own(path, file) },
        _ => ffi::SQLITE_CANTOPEN,
    }
}
