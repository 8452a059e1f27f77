//! Finding all threads below a place: a directory, or a location that names all threads of a server.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::path::Path;

use crate::error::{Error, IoContext, Result};
use crate::files::DB;
use crate::model::location::Location;
use crate::queue::locations;

/// The threads below a place.
#[derive(Debug, Default)]
pub struct Below {
    /// Sorted.
    pub threads: Vec<Location>,
    /// Why there may be more: directories that could not be read.
    pub unread: Vec<Error>,
}

/// Finds the threads below `place`, however deep, and `place` itself if it is one. Names directly in a directory that
/// begin with a dot, and links, are left out. The threads' paths begin with that of the directory as it is given.
///
/// # Errors
///
/// The directory cannot be read, or the server cannot be asked; [`Error::UnknownScheme`].
#[expect(clippy::disallowed_methods, reason = "looks for threads")]
pub fn threads_below(place: &Location) -> Result<Below> {
    let Some(dir) = place.dir() else {
        let mut threads = match locations::threads(place) {
            Some(threads) => threads?,
            // Not one that this program can list.
            None => {
                locations::files_of(place)?;
                vec![place.clone()]
            }
        };
        threads.sort();
        return Ok(Below { threads, unread: Vec::new() });
    };
    fs::read_dir(dir).at("read", dir)?;
    let mut below = Below::default();
    walk(dir, true, &mut below);
    below.threads.sort();
    Ok(below)
}

fn walk(dir: &Path, is_root: bool, below: &mut Below) {
    if dir.join(DB).exists() {
        below.threads.push(dir.into());
    }
    match entries(dir, is_root) {
        Ok(entries) => {
            for (name, about) in entries {
                if about.is_dir() {
                    // Paths in the current directory look as `ls` prints them.
                    let path = if dir == Path::new(".") { name.into() } else { dir.join(name) };
                    walk(&path, false, below);
                }
            }
        }
        Err(e) => below.unread.push(e),
    }
}

/// The entries of a directory, without following links. None if it has disappeared.
#[expect(clippy::disallowed_methods, reason = "looks for threads")]
pub(super) fn entries(dir: &Path, is_root: bool) -> Result<Vec<(OsString, Metadata)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).if_there().at("list", dir)?.into_iter().flatten() {
        let entry = entry.at("list", dir)?;
        // A name under which a thread is being made or removed.
        if is_root && entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let about = entry.metadata().if_there().at("look at", &entry.path())?;
        found.extend(about.map(|about| (entry.file_name(), about)));
    }
    Ok(found)
}
