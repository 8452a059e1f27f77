//! How a browser logs in: it exchanges the token for a cookie with a random value.
//!
//! A browser sends the cookies of a host to all its ports, so a server on another port of this machine may see the
//! value. It is valid only for this gateway's root, for [`LIFETIME`], and until logout.
//!
//! For each login there is an empty file in the folder [`FOLDER`] in the root, so that it survives a restart and is
//! valid for all gateways on the root. The file's name is a keyed hash of the value, and the token is the key:
//! reading the names does not let anyone log in, and a new token ends all logins. The file's modification time is
//! when the login began.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jsonwebtoken::{Algorithm, EncodingKey, crypto};

use super::token::random_hex;

/// The name of the folder in the root.
pub const FOLDER: &str = "logins";

/// How long a login lasts.
pub const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// How many logins are kept. With one more, the oldest ends.
const MOST: usize = 1000;

/// The length of a value, in characters.
const LENGTH: usize = 64;

pub struct Logins(PathBuf);

impl Logins {
    pub fn of(root: &Path) -> Logins {
        Logins(root.join(FOLDER))
    }

    /// The folder, which changes with each login that begins or is logged out.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Begins a login. Returns its value.
    ///
    /// # Errors
    ///
    /// The folder or the file cannot be made.
    pub fn begin(&self, token: &str) -> io::Result<String> {
        match fs::DirBuilder::new().mode(0o700).create(&self.0) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        self.make_room();
        let value = random_hex(LENGTH / 2)?;
        let name = name_of(&value, token).ok_or(io::ErrorKind::InvalidData)?;
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.0.join(name))?;
        fs::File::open(&self.0)?.sync_all()?;
        Ok(value)
    }

    /// Whether a login was begun with this token, less than [`LIFETIME`] ago, and has not ended.
    pub fn is_valid(&self, value: &str, token: &str) -> bool {
        let file = name_of(value, token).map(|name| self.0.join(name));
        file.and_then(|file| fs::symlink_metadata(file).ok()).is_some_and(|about| !is_over(&about))
    }

    /// Lets a login last from now on. Returns whether it is one.
    pub fn renew(&self, value: &str, token: &str) -> bool {
        let Some(name) = name_of(value, token).filter(|_| self.is_valid(value, token)) else { return false };
        let file = fs::OpenOptions::new().write(true).open(self.0.join(name));
        file.and_then(|file| file.set_modified(SystemTime::now())).is_ok()
    }

    /// Ends a login.
    ///
    /// # Errors
    ///
    /// The file cannot be removed.
    pub fn end(&self, value: &str, token: &str) -> io::Result<()> {
        let Some(name) = name_of(value, token) else { return Ok(()) };
        match fs::remove_file(self.0.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Removes the logins that have expired, and the oldest ones if there are too many.
    fn make_room(&self) {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let files = entries.filter_map(|entry| Some((entry.metadata().ok()?, entry.path())));
        let (over, mut lasting): (Vec<_>, Vec<_>) = files.partition(|(about, _)| is_over(about));
        lasting.sort_by_key(|(about, _)| about.modified().ok());
        let surplus = (lasting.len() + 1).saturating_sub(MOST);
        for (_, file) in over.iter().chain(lasting.iter().take(surplus)) {
            fs::remove_file(file).ok();
        }
    }
}

fn is_over(about: &fs::Metadata) -> bool {
    let age = about.modified().map(|began| began.elapsed());
    // One that began in the future: the clock was set back.
    matches!(age, Ok(Ok(age)) if age >= LIFETIME)
}

/// The name of a login's file; `None` if it is no value of a login.
fn name_of(value: &str, token: &str) -> Option<String> {
    let key = EncodingKey::from_secret(token.as_bytes());
    let fits = value.len() == LENGTH;
    fits.then(|| crypto::sign(value.as_bytes(), &key, Algorithm::HS256).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_ends_with_its_time_its_token_and_by_logging_out() {
        let root = tempfile::tempdir().unwrap();
        let logins = Logins::of(root.path());
        assert!(!logins.is_valid(&"0".repeat(LENGTH), "token"));
        let [first, second] = [(); 2].map(|()| logins.begin("token").unwrap());
        assert!(first != second && [&first, &second].iter().all(|value| logins.is_valid(value, "token")));
        assert!(!logins.is_valid(&first, "another"));
        for bad in ["", "..", "token", &first[1..], &first.to_uppercase()] {
            assert!(!logins.is_valid(bad, "token"), "{bad}");
        }
        logins.end(&second, "another").unwrap();
        assert!(logins.is_valid(&second, "token"));
        logins.end(&second, "token").unwrap();
        logins.end(&second, "token").unwrap();
        assert!(!logins.is_valid(&second, "token") && logins.is_valid(&first, "token"));

        let file = || fs::read_dir(logins.folder()).unwrap().next().unwrap().unwrap();
        let name = file().file_name().into_string().unwrap();
        assert!(!name.contains(&first) && file().metadata().unwrap().len() == 0);
        let set = |age: Duration| {
            let file = fs::OpenOptions::new().write(true).open(file().path()).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        };
        set(LIFETIME - Duration::from_secs(60));
        assert!(logins.is_valid(&first, "token") && logins.renew(&first, "token"));
        assert!(file().metadata().unwrap().modified().unwrap().elapsed().unwrap() < LIFETIME / 2);
        set(LIFETIME);
        assert!(!logins.is_valid(&first, "token") && !logins.renew(&first, "token"));
        // The next one takes its place.
        logins.begin("token").unwrap();
        assert_eq!(fs::read_dir(logins.folder()).unwrap().count(), 1);
    }

    #[test]
    fn the_oldest_login_makes_room() {
        let root = tempfile::tempdir().unwrap();
        let logins = Logins::of(root.path());
        let first = logins.begin("token").unwrap();
        let file = fs::read_dir(logins.folder()).unwrap().next().unwrap().unwrap().path();
        let file = fs::OpenOptions::new().write(true).open(file).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
        for n in 1..MOST {
            fs::write(logins.folder().join(n.to_string()), "").unwrap();
        }
        assert!(logins.is_valid(&first, "token"));
        let second = logins.begin("token").unwrap();
        assert!(!logins.is_valid(&first, "token") && logins.is_valid(&second, "token"));
        assert_eq!(fs::read_dir(logins.folder()).unwrap().count(), MOST);
    }

    #[test]
    fn a_login_that_cannot_be_removed_has_not_ended() {
        let root = tempfile::tempdir().unwrap();
        let logins = Logins::of(root.path());
        let value = logins.begin("token").unwrap();
        let file = logins.folder().join(name_of(&value, "token").unwrap());
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(logins.end(&value, "token").is_err());
        assert!(Logins::of(&root.path().join("missing")).begin("token").is_err());
    }
}
