//! The access token, and where a request may carry it.
//!
//! It is created once for each root, so that all gateways of the root share it, in a file that only its owner may
//! read. The file is checked for each request: a new token applies at once, and while there is none, no client is
//! admitted. Tokens are compared in constant time, so that timing reveals nothing about the right one.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{HeaderMap, header};
use rustix::fs::OFlags;
use subtle::ConstantTimeEq;
use thread::failure::Failure;

/// The name of the file in the root.
pub const FILE: &str = "token";

pub struct Token {
    path: PathBuf,
    /// The file's directory, and its identity.
    root: (PathBuf, Option<(u64, u64)>),
    known: Mutex<Known>,
}

/// The content read from the file.
struct Known {
    stamp: Option<Stamp>,
    /// `None` if there is no token.
    text: Option<Arc<str>>,
}

/// By which another file, or another content, is noticed: device, inode, size, times of content and of state.
type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

/// Device and inode; `None` if there is nothing.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|about| (about.dev(), about.ino()))
}

/// `None` if there is nothing.
pub fn stamp(path: &Path) -> Option<Stamp> {
    let about = fs::metadata(path).ok()?;
    let times = ((about.mtime(), about.mtime_nsec()), (about.ctime(), about.ctime_nsec()));
    Some((about.dev(), about.ino(), about.len(), times.0, times.1))
}

impl Token {
    /// The token of a root, created if there is none.
    ///
    /// # Errors
    ///
    /// The file cannot be read or created; others may read it; it holds no token.
    pub fn of(root: &Path) -> Result<Token, Failure> {
        let path = root.join(FILE);
        // Before it is read, so that a later write is noticed.
        let stamp = stamp(&path);
        let text = read_or_create_secret(&path)?;
        let root = (root.to_owned(), identity(root));
        Ok(Token { path, root, known: Mutex::new(Known { stamp, text: Some(text.into()) }) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The token as it is now; `None` if there is none, or its file cannot be used. If the whole root has vanished,
    /// for instance because it is not mounted, the last token stays valid.
    pub fn text(&self) -> Option<Arc<str>> {
        let now = stamp(&self.path);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let vanished = now.is_none() && identity(&self.root.0) != self.root.1;
        if known.stamp != now && !vanished {
            let read = read_secret(&self.path);
            if let Err(e) = &read {
                tracing::error!("no client is admitted: {e}");
            }
            *known = Known { stamp: now, text: read.ok().map(Into::into) };
        }
        known.text.clone()
    }

    pub fn matches(&self, offered: &str) -> bool {
        self.text().is_some_and(|text| text.as_bytes().ct_eq(offered.as_bytes()).into())
    }
}

/// Reads a secret from a file that only its owner may read. Creates it if there is none.
///
/// # Errors
///
/// The file cannot be read or created; others may access it; it holds no secret.
pub fn read_or_create_secret(path: &Path) -> Result<String, Failure> {
    if matches!(open(path), Err(e) if e.kind() == io::ErrorKind::NotFound) {
        create(path).map_err(|e| {
            Failure::failed(
                format!("cannot make {}: {e}", path.display()),
                "check that directory, its permissions and its disk",
            )
        })?;
    }
    read_secret(path)
}

/// Reads a secret from a file that only its owner may read.
///
/// # Errors
///
/// The file cannot be read; others may access it; it holds no secret.
fn read_secret(path: &Path) -> Result<String, Failure> {
    let unusable = |e: io::Error| {
        Failure::failed(
            format!("the secret in {} cannot be used: {e}", path.display()),
            "check the file, or remove it to get another",
        )
    };
    let file = open(path).map_err(unusable)?;
    let about = file.metadata().map_err(unusable)?;
    let wrong = |what: &str, fix: String| {
        Err(Failure::failed(format!("{} {what}", path.display()), format!("{fix} to get another")))
    };
    if !about.is_file() {
        return wrong("is not a file", "remove it".into());
    }
    if about.uid() != rustix::process::geteuid().as_raw() {
        return wrong("belongs to another user", "run the gateway as that user, or remove the file".into());
    }
    if about.mode() & 0o077 != 0 {
        return wrong("may be read by others", format!("run chmod 600 {}, or remove it", path.display()));
    }
    let mut text = String::new();
    file.take(4096).read_to_string(&mut text).map_err(unusable)?;
    let text = text.trim();
    if text.len() < 16 || !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)) {
        return wrong("holds no secret", "put at least 16 letters and digits there, or remove it".into());
    }
    Ok(text.to_owned())
}

/// Opens a file without blocking, even if it is a FIFO.
fn open(path: &Path) -> io::Result<fs::File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    fs::OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Writes 32 random bytes in hexadecimal. The file appears complete: if two gateways start at once, one
/// creates the secret and both use it.
fn create(path: &Path) -> io::Result<()> {
    let temporary = path.with_extension(format!("draft-{}", std::process::id()));
    let secret = random_hex(32)?;
    let write = || {
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(format!("{secret}\n").as_bytes())?;
        file.sync_all()?;
        fs::hard_link(&temporary, path)
    };
    let placed = write();
    fs::remove_file(&temporary).ok();
    match placed {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Random bytes from the system, in hexadecimal.
pub fn random_hex(bytes: usize) -> io::Result<String> {
    let mut random = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        filled += rustix::rand::getrandom(&mut random[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Why a client was admitted. It stays valid until the gateway revokes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// No token is required.
    NotNeeded,
    Token(String),
    /// The value of a cookie.
    Login(String),
}

/// Result of checking a request's token or cookie. If none is required and none was sent, it is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenCheck {
    Valid(Proof),
    Invalid,
    /// No token was sent, but one is required.
    Missing,
}

/// The token of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Offered<'r> {
    Nothing,
    /// In `Authorization: Bearer`.
    Bearer(&'r str),
    /// The value of the cookie that a login sets.
    Cookie(&'r str),
}

/// The name of the cookie. A browser sends a host's cookies to all its ports, so the port is in the name.
pub fn cookie_name(port: u16) -> String {
    format!("thread_{port}")
}

/// Extracts the token or cookie of a request. An `Authorization` header without a bearer token counts as an empty one.
pub fn offered<'r>(headers: &'r HeaderMap, cookie: &str) -> Offered<'r> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let bearer = value.to_str().ok().and_then(|text| text.split_once(' '));
        let token = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, t)| t.trim());
        return Offered::Bearer(token.unwrap_or_default());
    }
    cookie_of(headers, cookie).map_or(Offered::Nothing, Offered::Cookie)
}

/// The value of a cookie.
pub fn cookie_of<'r>(headers: &'r HeaderMap, cookie: &str) -> Option<&'r str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == cookie).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_goes_before_a_cookie() {
        let mut headers = HeaderMap::new();
        assert_eq!(offered(&headers, "thread_1"), Offered::Nothing);
        headers.insert(header::COOKIE, "a=b; thread_12=x; thread_1=y".parse().unwrap());
        assert_eq!(offered(&headers, "thread_1"), Offered::Cookie("y"));
        headers.insert(header::AUTHORIZATION, "bearer z".parse().unwrap());
        assert_eq!(offered(&headers, "thread_1"), Offered::Bearer("z"));
        headers.insert(header::AUTHORIZATION, "Basic z".parse().unwrap());
        assert_eq!(offered(&headers, "thread_1"), Offered::Bearer(""));
    }

    #[test]
    fn a_token_is_made_once_and_nobody_else_may_read_it() {
        let root = tempfile::tempdir().unwrap();
        let first = Token::of(root.path()).unwrap();
        let text = first.text().unwrap();
        assert_eq!(text.len(), 64);
        assert!(Token::of(root.path()).unwrap().matches(&text));
        assert!(!first.matches(""));
        let file = root.path().join(FILE);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        assert!(Token::of(root.path()).is_err());
    }

    #[test]
    fn the_token_is_the_one_that_is_in_the_file_now() {
        let root = tempfile::tempdir().unwrap();
        let token = Token::of(root.path()).unwrap();
        let first = token.text().unwrap();
        let put = |text: &str| {
            let draft = root.path().join("draft");
            fs::write(&draft, text).unwrap();
            fs::set_permissions(&draft, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            fs::rename(draft, token.path()).unwrap();
        };
        let second = "a".repeat(64);
        put(&second);
        assert!(token.matches(&second) && !token.matches(&first));
        put("short");
        assert!(!token.matches(&second) && !token.matches("short") && !token.matches(""));
        fs::remove_file(token.path()).unwrap();
        assert!(token.text().is_none() && !token.matches(&first) && !token.matches(""));
        put(&first);
        assert!(token.matches(&first));
        // A root that has vanished has taken the file with it.
        let moved = root.path().with_extension("moved");
        fs::rename(root.path(), &moved).unwrap();
        assert!(token.matches(&first) && !token.matches(&second));
        fs::rename(moved, root.path()).unwrap();
    }

    #[test]
    fn what_cannot_be_a_secret_is_told_and_kept() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(FILE);
        let why = || Token::of(root.path()).map(|_| ()).unwrap_err().to_string();
        for (text, mode, error) in [
            ("", 0o600, "holds no secret"),
            ("short", 0o600, "holds no secret"),
            ("sixteen letters and blanks", 0o600, "holds no secret"),
            ("abcdefghijklmnopqrstuvwxyz", 0o644, "may be read by others"),
        ] {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            assert!(why().contains(error) && why().contains(" - "), "{text}: {}", why());
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(12345), None).unwrap();
            assert!(why().contains("another user"), "{}", why());
        }
        fs::remove_file(&file).unwrap();
        // Opening it in blocking mode would wait for a writer.
        rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(why().contains("is not a file"), "{}", why());
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("nowhere", &file).unwrap();
        assert!(why().contains("cannot be used"), "{}", why());
    }

    #[test]
    fn a_secret_has_at_least_sixteen_letters_and_its_folder_has_to_be_there() {
        let root = tempfile::tempdir().unwrap();
        for (text, is_secret) in [("abcdefghijklmno", false), ("abcdefghijklmnop", true)] {
            let file = root.path().join(text);
            let mut options = fs::OpenOptions::new();
            options
                .write(true)
                .create(true)
                .mode(0o600)
                .open(&file)
                .unwrap()
                .write_all(text.as_bytes())
                .unwrap();
            assert_eq!(read_or_create_secret(&file).is_ok(), is_secret, "{text}");
        }
        let error = read_or_create_secret(&root.path().join("missing/token")).unwrap_err().to_string();
        assert!(error.starts_with("cannot make "), "{error}");
    }

    #[test]
    fn the_token_of_a_root_in_the_place_of_another_is_its_own() {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("root");
        fs::create_dir(&root).unwrap();
        let token = Token::of(&root).unwrap();
        let first = token.text().unwrap();
        fs::rename(&root, parent.path().join("former")).unwrap();
        fs::create_dir(&root).unwrap();
        let second = Token::of(&root).unwrap().text().unwrap();
        assert!(token.matches(&second) && !token.matches(&first));
    }

    #[test]
    fn the_cookie_of_a_port_has_its_number() {
        assert_eq!(cookie_name(3336), "thread_3336");
    }
}
