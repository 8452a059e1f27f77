//! The files and folders: are they there, who may write them, and what was left behind.

use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::{Doctor, Finding};
use crate::error::{Failure, OrFix, Result};
use crate::files::Files;
use crate::journal;
use crate::lock::Lock;

const CHECK: &str = "layout";

/// A folder that is listed to its end.
const FOLDERS: [&str; 3] = ["run", "logs", "logs/handlers"];

pub fn check(doctor: &mut Doctor) {
    folders(doctor);
    copy(doctor);
    for path in all(&doctor.files) {
        permissions(doctor, &path);
    }
    remains_of_init(doctor);
    // They may have been changed.
    if let Some(files) = Files::of(doctor.files.dir().to_owned()) {
        doctor.files = files;
    }
}

fn folders(doctor: &mut Doctor) {
    for name in ["run", "logs"] {
        let path = doctor.files.dir().join(name);
        match fs::metadata(&path) {
            Ok(about) if about.is_dir() => {}
            Ok(_) => doctor.tell(
                Finding::error(CHECK, format!("{name} is no folder"))
                    .instead(format!("move {} away, then run `thread doctor --fix`", path.display())),
            ),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let files = doctor.files.clone();
                doctor.found(Finding::error(CHECK, format!("the folder {name}/ is missing")), || {
                    let made = files.make_dir(&path);
                    made.or_fix(format_args!("cannot make {}", path.display()), PERMISSIONS)?;
                    Ok("it was made again".to_owned())
                });
            }
            Err(e) => doctor.tell(unreadable(&path, &e)),
        }
    }
}

/// A copy that is missing is noticed when it is compared; here, one that cannot be read.
fn copy(doctor: &mut Doctor) {
    let path = doctor.files.jsonl();
    if fs::metadata(&path).is_ok_and(|about| !about.is_file()) {
        let finding = Finding::error(CHECK, "events.jsonl is no file");
        let fix = format!("move {} away, then run `thread doctor --fix`", path.display());
        doctor.tell(finding.instead(fix));
    }
}

/// The thread's own files and folders. Symbolic links are left alone: what they lead to may be
/// anybody's.
fn all(files: &Files) -> Vec<PathBuf> {
    let dir = files.dir();
    let mut all = vec![dir.to_owned(), files.db(), files.wal(), dir.join("events.db-shm"), files.jsonl()];
    // A name that cannot be read is no file of ours, and a folder that cannot be is found anyway.
    all.extend(journal::rotated(dir).unwrap_or_default());
    for name in FOLDERS {
        all.push(dir.join(name));
        let entries = fs::read_dir(dir.join(name)).into_iter().flatten().flatten();
        all.extend(
            entries.map(|entry| entry.path()).filter(|path| !FOLDERS.iter().any(|f| dir.join(f) == *path)),
        );
    }
    all.retain(|path| fs::symlink_metadata(path).is_ok_and(|about| about.is_file() || about.is_dir()));
    all
}

fn permissions(doctor: &mut Doctor, path: &Path) {
    let (Ok(about), Ok(db)) = (fs::symlink_metadata(path), fs::metadata(doctor.files.db())) else { return };
    let name = match path.strip_prefix(doctor.files.dir()) {
        Ok(name) if !name.as_os_str().is_empty() => name.display().to_string(),
        _ => path.display().to_string(),
    };
    // In a folder like /tmp others may make files, but not replace those of the thread.
    let is_shared = about.is_dir() && about.mode() & 0o1000 != 0;
    if about.mode() & 0o002 != 0 && !is_shared {
        let problem = format!(
            "anybody on this machine may write {name}, and so have commands run as the thread's owner"
        );
        doctor.found(Finding::error("permissions", problem), || {
            change(path, |about| (about.mode() & 0o7775, None))?;
            Ok("others may not write it any more".to_owned())
        });
    }
    if !owner_may_use(&about, &db) {
        let problem = format!("the owner of the thread may not read and write {name}");
        doctor.found(Finding::error("permissions", problem), || {
            let (owner, group) = (db.uid(), db.gid());
            change(path, |about| {
                let theirs = about.uid() != owner;
                (about.mode() & 0o7777 | needed(about, &db), theirs.then_some((owner, group)))
            })?;
            Ok("the owner may do so now".to_owned())
        });
    }
}

/// The bits an owner needs: as many as he has on the database itself, which may be for reading only.
fn needed(about: &Metadata, db: &Metadata) -> u32 {
    let write = db.mode() & 0o200;
    if about.is_dir() { 0o500 | write } else { 0o400 | write }
}

/// Whether the owner of the database may use this file, too. It may be another user's, who shares
/// the thread by its group.
fn owner_may_use(about: &Metadata, db: &Metadata) -> bool {
    let needed = needed(about, db);
    let needed = match () {
        () if db.uid() == 0 || about.uid() == db.uid() => needed,
        () if about.gid() == db.gid() => needed >> 3,
        () => needed >> 6,
    };
    db.uid() == 0 || about.mode() & needed == needed
}

/// Gives a file other permission bits and, if need be, another owner.
fn change(path: &Path, new: impl Fn(&Metadata) -> (u32, Option<(u32, u32)>)) -> Result<()> {
    let failed = format!("cannot change the permissions of {}", path.display());
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        // One's own file that one may not read. By its name, which is safe for anybody but root,
        // who may read everything.
        Err(rustix::io::Errno::ACCESS) => {
            let about = fs::symlink_metadata(path).or_fix(&failed, PERMISSIONS)?;
            let mode = fs::Permissions::from_mode(new(&about).0);
            return fs::set_permissions(path, mode).or_fix(failed, PERMISSIONS);
        }
        Err(e) => return Err(e).or_fix(failed, PERMISSIONS),
    };
    let about = file.metadata().or_fix(&failed, PERMISSIONS)?;
    let (mode, owner) = new(&about);
    if let Some((user, group)) = owner {
        // Whoever may write the thread could have linked somebody else's file into it.
        if about.is_file() && about.nlink() > 1 {
            return Err(Failure::could_not(
                format_args!("{} has another name elsewhere", path.display()),
                "remove it if it does not belong here, or change its owner yourself",
            ));
        }
        fchown(&file, Some(user), Some(group)).or_fix(&failed, "run this as root")?;
    }
    file.set_permissions(fs::Permissions::from_mode(mode)).or_fix(failed, PERMISSIONS)
}

const PERMISSIONS: &str = "check who owns the thread's directory, and run this as that user";

fn unreadable(path: &Path, e: &std::io::Error) -> Finding {
    Finding::error(CHECK, format!("cannot look at {}: {e}", path.display())).instead(PERMISSIONS)
}

/// What an `init` that was killed leaves. One that is at work holds the lock.
fn remains_of_init(doctor: &mut Doctor) {
    let files = doctor.files.clone();
    let names = ["_init.lock", "_init.db", "_init.db-wal", "_init.db-shm", "_init.db-journal"];
    let left: Vec<&str> =
        names.into_iter().filter(|name| fs::symlink_metadata(files.run(name)).is_ok()).collect();
    if left.is_empty() {
        return;
    }
    let path = files.run("_init.lock");
    // Another init waits for its turn, so that trying the lock turns nobody away.
    let lock = File::open(&path).and_then(Lock::try_take);
    if let Ok(None) = lock {
        return;
    }
    let still_there = left.iter().any(|name| fs::symlink_metadata(files.run(name)).is_ok());
    if still_there {
        let problem = format!("an init that was killed left run/{}", left.join(", run/"));
        doctor.found(Finding::warning(CHECK, problem), || {
            for name in left {
                match fs::remove_file(files.run(name)) {
                    Err(e) if e.kind() != ErrorKind::NotFound => {
                        return Err(e).or_fix(format_args!("cannot remove run/{name}"), PERMISSIONS);
                    }
                    _ => {}
                }
            }
            Ok("it was removed".to_owned())
        });
    }
    if let Ok(Some(lock)) = lock {
        lock.release();
    }
}
