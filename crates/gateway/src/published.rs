//! The file `address` in the root, by which local clients find a gateway.
//!
//! It names one of the gateways on the root. Each has a file with its own URL in the folder `.gateways`, locked for as
//! long as it lives, so that one that stops leaves the address of another, and the address of one that was killed is
//! replaced.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a gateway looks whether the address is that of a living one.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);

pub struct Published {
    path: PathBuf,
    url: String,
    /// Among the gateways.
    own: PathBuf,
    _lock: File,
}

impl Published {
    /// Publishes this gateway's URL: the newest one is the one that clients find.
    ///
    /// # Errors
    ///
    /// The root cannot be written.
    pub fn new(root: &Path, url: &str) -> io::Result<Published> {
        let dir = root.join(".gateways");
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let name = uuid::Uuid::new_v4().to_string();
        // Locked before it gets its name: other processes remove files that are not locked.
        let new = dir.join(format!(".{name}"));
        let mut lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        lock.try_lock().map_err(io::Error::from)?;
        writeln!(lock, "{url}")?;
        let own = dir.join(name);
        std::fs::rename(new, &own)?;
        let published = Published { path: root.join("address"), url: url.to_owned(), own, _lock: lock };
        published.write(url)?;
        Ok(published)
    }

    /// Writes this gateway's URL, unless the file has that of a running gateway.
    pub fn keep(&self) {
        let named = self.named();
        if named.as_ref() == Some(&self.url) || named.is_some_and(|url| self.living().contains(&url)) {
            return;
        }
        if let Err(e) = self.write(&self.url) {
            tracing::debug!("the address cannot be written: {e}");
        }
    }

    /// Leaves the address of another gateway, if there is one.
    pub fn withdraw(&self) {
        std::fs::remove_file(&self.own).ok();
        if self.named().as_ref() != Some(&self.url) {
            return;
        }
        match self.living().first() {
            Some(other) => drop(self.write(other)),
            None => drop(std::fs::remove_file(&self.path)),
        }
    }

    fn named(&self) -> Option<String> {
        std::fs::read_to_string(&self.path).ok().map(|text| text.trim().to_owned())
    }

    fn write(&self, url: &str) -> io::Result<()> {
        let temporary = self.own.with_extension("address");
        let placed = std::fs::write(&temporary, format!("{url}\n"));
        placed.and_then(|()| std::fs::rename(&temporary, &self.path)).inspect_err(|_| {
            std::fs::remove_file(&temporary).ok();
        })
    }

    /// The URLs of the gateways that live.
    fn living(&self) -> Vec<String> {
        let entries =
            self.own.parent().and_then(|dir| std::fs::read_dir(dir).ok()).into_iter().flatten().flatten();
        let url_of = |path: PathBuf| {
            let is_named =
                path.extension().is_none() && !path.file_name()?.as_encoded_bytes().starts_with(b".");
            let file = File::open(&path).ok().filter(|_| is_named)?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
                }
                // It was killed.
                Ok(()) => std::fs::remove_file(path).map_or(None, |()| None),
                Err(TryLockError::Error(_)) => None,
            }
        };
        entries.filter_map(|entry| url_of(entry.path())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_always_that_of_a_gateway_that_lives() {
        let root = tempfile::tempdir().unwrap();
        let address = || std::fs::read_to_string(root.path().join("address")).ok();
        let first = Published::new(root.path(), "http://a").unwrap();
        let second = Published::new(root.path(), "http://b").unwrap();
        first.keep();
        assert_eq!(address().as_deref(), Some("http://b\n"), "the newest one");
        second.withdraw();
        assert_eq!(address().as_deref(), Some("http://a\n"));
        // One that is killed withdraws nothing.
        drop(Published::new(root.path(), "http://c").unwrap());
        assert_eq!(address().as_deref(), Some("http://c\n"));
        first.keep();
        assert_eq!(address().as_deref(), Some("http://a\n"));
        first.withdraw();
        assert_eq!(address(), None);
    }
}
