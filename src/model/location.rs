//! Where a thread is: a directory, or a location with a scheme, such as `postgres://host/db#inbox`.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use super::backend::{Backend, DIRECTORY, SERVER};

/// Where a thread is. Two locations are equal if their texts are; those of open threads in directories are
/// absolute.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location(PathBuf);

impl<P: AsRef<Path>> From<P> for Location {
    fn from(text: P) -> Location {
        let text = text.as_ref();
        // Two spellings, as psql has them, must not be two threads.
        let rest = text.to_str().and_then(|text| text.strip_prefix("postgresql://"));
        Location(rest.map_or_else(|| text.to_owned(), |rest| format!("postgres://{rest}").into()))
    }
}

impl From<&Location> for Location {
    fn from(location: &Location) -> Location {
        location.clone()
    }
}

impl Location {
    /// The part before `://`; `None` for a directory.
    pub fn scheme(&self) -> Option<&str> {
        let (scheme, _) = self.0.to_str()?.split_once("://")?;
        let is_name = scheme.starts_with(|c: char| c.is_ascii_lowercase())
            && scheme.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+.-".contains(&b));
        is_name.then_some(scheme)
    }

    /// The directory, if the thread is in one.
    #[expect(clippy::disallowed_methods, reason = "all that most modules may ask is whether there is one")]
    pub fn dir(&self) -> Option<&Path> {
        self.scheme().is_none().then_some(&self.0)
    }

    /// How to treat a thread there.
    pub fn backend(&self) -> &'static Backend {
        if self.dir().is_some() { &DIRECTORY } else { &SERVER }
    }

    /// As `--thread` takes it.
    pub fn as_os_str(&self) -> &OsStr {
        self.0.as_os_str()
    }

    /// A short name for people: that of the directory, or what follows the last `/` or `#`.
    pub fn name(&self) -> String {
        let name = self.0.file_name().unwrap_or_default().to_string_lossy();
        match self.dir() {
            None => name.rsplit('#').next().unwrap_or_default().to_owned(),
            Some(_) => name.into_owned(),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_directory_unless_it_has_a_scheme() {
        for dir in ["inbox", "/a/b", "a:/b", "://x", "Ab://x", "./a://b", "a b://c"] {
            assert_eq!(
                (Location::from(dir).scheme(), Location::from(dir).dir()),
                (None, Some(Path::new(dir)))
            );
        }
        let far = Location::from("postgres://queue@db.example/agents#inbox");
        assert_eq!((far.scheme(), far.dir(), far.name().as_str()), (Some("postgres"), None, "inbox"));
        assert_eq!(Location::from("postgresql://queue@db.example/agents#inbox"), far);
        assert_eq!(Location::from("/a/in#box").name(), "in#box");
    }
}
