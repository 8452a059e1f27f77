//! Checks that files and directories exist, are of the right kind, and have safe permissions.

use std::io;
use std::path::Path;

use rustix::fs::{FileType, RawMode, Stat};

use super::{Doctor, Finding};
use crate::error::IoContext;
use crate::files::{DB, Files, JOURNAL, JSONL, SHM, WAL, refuse_odd};
use crate::jsonl;

const CHECK: &str = "layout";
const PERMISSIONS: &str = "permissions";

/// The directories of a thread below its root. All files in them count as the thread's own.
const DIRS: [&str; 3] = ["run", "logs", "logs/handlers"];

/// Returns whether all files can be used.
#[expect(clippy::disallowed_methods, reason = "opens what it has repaired")]
pub fn check(doctor: &mut Doctor<'_>) -> bool {
    for name in ["run", "logs"] {
        if doctor.files.stat(name).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            let files = doctor.files.clone();
            let make = || files.make_dir(name).at("make", &files.path_of(name));
            let finding = Finding::error(CHECK, format!("the directory {name}/ is missing"));
            doctor.found(finding, || make().map(|()| "it was recreated"));
        }
    }
    for name in ["", DB, WAL, SHM, JOURNAL, JSONL] {
        entry(doctor, Path::new(name));
    }
    for name in jsonl::sealed(&doctor.files).unwrap_or_default() {
        entry(doctor, Path::new(&name));
    }
    for dir in DIRS {
        entry(doctor, Path::new(dir));
        // A directory that cannot be listed is reported already.
        for name in doctor.files.list(dir).unwrap_or_default() {
            let name = Path::new(dir).join(name);
            if !is_own_dir(&name) {
                entry(doctor, &name);
            }
        }
    }
    surroundings(doctor);
    // New files get the mode of the database, which a repair may have changed.
    if let Ok(files) = Files::open(doctor.files.path()) {
        doctor.files = files;
    }
    !doctor.findings.iter().any(Finding::is_wrong)
}

/// Checks one file or directory of the thread; `""` is the root.
fn entry(doctor: &mut Doctor<'_>, name: &Path) {
    // A file that has since disappeared is not a problem; a directory without search permission is reported itself.
    let (Ok(found), Ok(db)) = (doctor.files.stat(name), doctor.files.stat(DB)) else { return };
    let Err(odd) = kind(name, &found) else { return permissions(doctor, name, &found, &db) };
    let path = doctor.files.path_of(name);
    let finding = Finding::error(CHECK, format!("{} cannot be used: {odd}", name.display()));
    doctor.report(finding.advise(format!("move {} away, then run `thread doctor --fix`", path.display())));
}

fn is_own_dir(name: &Path) -> bool {
    name.as_os_str().is_empty() || DIRS.iter().any(|dir| Path::new(dir) == name)
}

fn is_dir(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::Directory
}

/// Returns an error unless the file or directory is of the right kind. Commands never open one that is not,
/// because it may lead to another user's file.
fn kind(name: &Path, found: &Stat) -> io::Result<()> {
    // In run/ and logs/, a foreign directory does no harm unless the program uses its name for a file.
    let is_reserved = || {
        let underscored = name.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"_"));
        underscored || name.extension().is_some_and(|extension| extension == "lock" || extension == "log")
    };
    let may_be_dir = is_own_dir(name) || (name.parent() != Some(Path::new("")) && !is_reserved());
    match is_dir(found) {
        true if may_be_dir => Ok(()),
        false if is_own_dir(name) => Err(io::Error::other("it is not a directory")),
        _ => refuse_odd(found),
    }
}

fn permissions(doctor: &mut Doctor<'_>, name: &Path, found: &Stat, db: &Stat) {
    let files = doctor.files.clone();
    let is_root = name.as_os_str().is_empty();
    let path = if is_root { files.path().to_owned() } else { files.path_of(name) };
    let shown = if is_root { path.display() } else { name.display() };
    let is_shared = is_dir(found) && found.st_mode & 0o1000 != 0;
    if found.st_mode & 0o002 != 0 {
        let problem = format!(
            "every user of this machine may write to {shown}, and could run commands as the thread's owner"
        );
        if is_shared && is_root {
            // A directory like /tmp must stay writable for everyone. Other users cannot replace the thread's
            // files in it, but they can create a missing events.db-wal.
            let advice = "move the thread to a directory of its own";
            return doctor.report(Finding::error(PERMISSIONS, problem).advise(advice));
        }
        doctor.found(Finding::error(PERMISSIONS, problem), || {
            let closed = files.change(name, |found| (found.st_mode & 0o7775, None));
            closed.at("change the permissions of", &path).map(|()| "others can no longer write it")
        });
    }
    if owner_may(found, db, needed(found, db)) {
        return;
    }
    let finding =
        Finding::error(PERMISSIONS, format!("the owner of the thread cannot read and write {shown}"));
    // A user who may write to a directory can move another user's file into it. So the owner is not given
    // access to a file of another user that the owner cannot read already.
    if found.st_uid != db.st_uid && !owner_may(found, db, 0o400) {
        let advice = format!("if it belongs to the thread, `chown {} {}`", db.st_uid, path.display());
        return doctor.report(finding.advise(advice));
    }
    doctor.found(finding, || {
        let opened = files.change(name, |found| {
            let theirs = found.st_uid != db.st_uid && owner_may(found, db, 0o400);
            let kept = if is_dir(found) { 0o3777 } else { 0o777 };
            (found.st_mode & kept | needed(found, db), theirs.then_some((db.st_uid, db.st_gid)))
        });
        opened.at("change the permissions of", &path).map(|()| "now the owner can")
    });
}

/// Warns of directories above the thread that everyone may write to: any user could put another thread in its
/// place. In a sticky directory like /tmp, only the owner could.
fn surroundings(doctor: &mut Doctor<'_>) {
    let Ok(path) = doctor.files.path().canonicalize() else { return };
    for dir in path.ancestors().skip(1) {
        if rustix::fs::stat(dir).is_ok_and(|found| found.st_mode & 0o1002 == 0o002) {
            let problem = format!(
                "every user of this machine may write to {}, and could replace the thread",
                dir.display()
            );
            let advice = "move the thread to a directory that only its users may write to";
            doctor.report(Finding::warning(PERMISSIONS, problem).advise(advice));
        }
    }
}

/// The permission bits that the owner needs: write permission only if the owner has it on the database.
fn needed(found: &Stat, db: &Stat) -> RawMode {
    let write = db.st_mode & 0o200;
    if is_dir(found) { 0o500 | write } else { 0o400 | write }
}

/// Whether the owner of the database has the permissions `bits`, given as those of a file's owner. The file
/// may belong to another user, who shares the thread through its group.
fn owner_may(found: &Stat, db: &Stat, bits: RawMode) -> bool {
    let bits = match () {
        () if db.st_uid == 0 => return true,
        () if found.st_uid == db.st_uid => bits,
        () if found.st_gid == db.st_gid => bits >> 3,
        () => bits >> 6,
    };
    found.st_mode & bits == bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_needs_the_permissions_of_the_database() {
        let stat = |kind: FileType, mode: RawMode, user: u32, group: u32| {
            let mut stat = rustix::fs::stat("/").unwrap();
            (stat.st_mode, stat.st_uid, stat.st_gid) = (kind.as_raw_mode() | mode, user, group);
            stat
        };
        let file = |mode, user, group| stat(FileType::RegularFile, mode, user, group);
        let may = |found: Stat, db: Stat| owner_may(&found, &db, needed(&found, &db));
        let db = file(0o664, 7, 8);
        assert!(may(file(0o600, 7, 1), db) && !may(file(0o400, 7, 1), db));
        assert!(may(file(0o060, 1, 8), db) && !may(file(0o606, 1, 8), db));
        assert!(may(file(0o006, 1, 1), db) && !may(file(0o660, 1, 1), db));
        assert!(may(file(0o400, 7, 1), file(0o444, 7, 8)));
        assert!(may(file(0o000, 1, 1), file(0o664, 0, 0)));
        assert!(!may(stat(FileType::Directory, 0o600, 7, 1), db));
    }
}
