//! The table of locations: how a thread is found by the scheme of its [`Location`]. Nothing else knows which schemes
//! there are.
//!
//! A thread in a directory has no scheme, and keeps everything in that directory. For any other thread, this
//! machine has only a folder, the *base*, for locks, logs and the record of runs here. While a process waits, the
//! location's [`listen`](Scheme::listen) touches [`COMMIT`](crate::files::COMMIT) and
//! [`CONTROL`](crate::files::CONTROL) in the base on what other machines [announce](Store::announce); without
//! that, waiters and workers notice within a second.

#![expect(clippy::disallowed_methods, reason = "the table of locations")]

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use super::init::{self, NewThread};
use crate::error::{Error, Result};
use crate::files::{DB, Files};
use crate::model::location::Location;
use crate::sqlite::Sqlite;
use crate::store::{ChangesOf, Store};

/// One kind of location other than directories.
#[derive(Debug, Clone, Copy)]
pub struct Scheme {
    /// The part before `://`: lower-case letters, digits, `+`, `.` and `-`.
    pub name: &'static str,
    /// The base of a thread, always the same one; it is created when the thread is opened.
    pub base: fn(&Location) -> Result<PathBuf>,
    /// Opens a thread; its operations wait for other writers for at most this long.
    pub open: fn(&Location, Duration) -> Result<Box<dyn Store>>,
    /// Creates a thread.
    pub init: fn(&Location) -> Result<()>,
    /// The threads that exist now, if the location names all of them instead of one.
    pub threads: fn(&Location) -> Option<Result<Vec<Location>>>,
    /// What asks for the changes of these threads, or where a location names all threads of a server, of all of those: each
    /// with the locations that it covers. The others are looked at one by one.
    pub changes: fn(&[Location]) -> Vec<ChangesOf>,
    /// Passes announcements on to the base, from now on and as long as this process lives. Called repeatedly.
    pub listen: fn(&Location),
    /// Takes back what this process has [recorded](Store::record_worker) of itself, without a long wait.
    pub leave: fn(),
    /// From now on, this process shares what the server has few of with others like it, and keeps nothing open that it does
    /// not use.
    pub spare: fn(),
}

static SCHEMES: RwLock<Vec<Scheme>> = RwLock::new(Vec::new());

/// Makes the threads of a scheme known to this process, for all that it does from now on.
pub fn add(scheme: Scheme) {
    SCHEMES.write().unwrap_or_else(PoisonError::into_inner).push(scheme);
}

/// Whether this process can open threads in such a location.
pub fn is_known(location: &Location) -> bool {
    scheme_of(location).is_ok()
}

/// `None` for a directory.
fn scheme_of(location: &Location) -> Result<Option<Scheme>> {
    let Some(name) = location.scheme() else { return Ok(None) };
    let schemes = SCHEMES.read().unwrap_or_else(PoisonError::into_inner);
    let found = schemes.iter().find(|scheme| scheme.name == name).copied();
    found.map(Some).ok_or_else(|| Error::UnknownScheme(name.to_owned()))
}

/// The files of a thread on this machine, without opening its store.
///
/// # Errors
///
/// [`Error::NotAThread`], [`Error::UnknownScheme`]; those of the file system.
pub fn files_of(location: &Location) -> Result<Files> {
    #[cfg(all(test, target_os = "linux"))]
    if let Some(files) = crate::files::simulated::system().and_then(|system| system.files(location)) {
        return Ok(files);
    }
    match scheme_of(location)? {
        None => Files::open(Path::new(location.as_os_str())),
        Some(scheme) => Files::at_base(location, &(scheme.base)(location)?),
    }
}

/// The threads that exist now in a location that names all of them; `None` if it names one.
pub fn threads(location: &Location) -> Option<Result<Vec<Location>>> {
    (scheme_of(location).ok()??.threads)(location)
}

/// What asks for the changes of many threads at once, each with the locations that it covers.
pub fn changes(all: &[Location]) -> Vec<ChangesOf> {
    let schemes = SCHEMES.read().unwrap_or_else(PoisonError::into_inner).clone();
    let ask = |scheme: &Scheme| {
        let own = all.iter().filter(|location| location.scheme() == Some(scheme.name));
        (scheme.changes)(&own.cloned().collect::<Vec<_>>())
    };
    schemes.iter().flat_map(ask).collect()
}

/// Called before a process waits for something to happen to a thread.
pub fn listen(location: &Location) {
    if let Ok(Some(scheme)) = scheme_of(location) {
        (scheme.listen)(location);
    }
}

/// Called when a worker ends.
pub fn leave() {
    let schemes = SCHEMES.read().unwrap_or_else(PoisonError::into_inner).clone();
    schemes.iter().for_each(|scheme| (scheme.leave)());
}

/// Called by a process of which there may be one for each handler.
pub fn spare() {
    let schemes = SCHEMES.read().unwrap_or_else(PoisonError::into_inner).clone();
    schemes.iter().for_each(|scheme| (scheme.spare)());
}

pub(super) fn open(location: &Location, busy_limit: Duration) -> Result<(Files, Box<dyn Store>)> {
    let files = files_of(location)?;
    #[cfg(all(test, target_os = "linux"))]
    if let Some(store) = crate::files::simulated::system().and_then(|system| system.store(location)) {
        return Ok((files, store?));
    }
    if let Some(scheme) = scheme_of(location)? {
        return Ok((files, (scheme.open)(location, busy_limit)?));
    }
    files.prepare_database()?;
    let store = Sqlite::open_waiting(&files.path_of(DB), busy_limit)?;
    Ok((files, Box::new(store)))
}

/// Creates a thread, and returns its location: for a directory the absolute path. Of what kind it is means nothing to
/// other locations.
pub fn create(location: &Location, new: NewThread) -> Result<Location> {
    match scheme_of(location)? {
        None => init::init(Path::new(location.as_os_str()), new).map(Location::from),
        Some(scheme) => (scheme.init)(location).map(|()| location.clone()),
    }
}
