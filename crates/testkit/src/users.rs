//! Running the program as other users.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::{Run, World, copy_program, skipped};

/// A user by uid, with a group of the same number and optionally one more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct User {
    pub id: u32,
    pub also: Option<u32>,
}

/// A user who has nothing to do with any thread.
pub const NOBODY: User = User { id: 65534, also: None };

/// A world that other users can access, with a copy of the binary on its `PATH`: both the built
/// binary and the temporary folder may be accessible to root only. Prints a skip notice and returns
/// `None` if that is not possible.
pub fn shared_world() -> Option<World> {
    let found = if rustix::process::geteuid().is_root() { enterable_world() } else { None };
    if found.is_none() {
        skipped("root, setpriv, and a folder that other users may enter");
    }
    found
}

fn enterable_world() -> Option<World> {
    let may_be_entered = |dir: &PathBuf| {
        dir.ancestors().all(|dir| fs::metadata(dir).is_ok_and(|about| about.mode() & 0o001 != 0))
    };
    let places = [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into(), "/dev/shm".into()];
    places.into_iter().filter(may_be_entered).find_map(|place| {
        let world = World::named_in(&place, "world");
        for dir in [world.root(), &world.bin()] {
            fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
        }
        fs::remove_file(world.bin().join("thread")).unwrap();
        copy_program(&world, &world.bin().join("thread"));
        // Some file systems do not allow programs to run.
        let runs = try_as_user(&world, NOBODY, "thread --version")?.output();
        runs.status.success().then_some(world)
    })
}

/// A shell command run as another user, in a [`shared_world`].
pub fn as_user(world: &World, user: User, script: &str) -> Run {
    try_as_user(world, user, script).unwrap()
}

fn try_as_user(world: &World, user: User, script: &str) -> Option<Run> {
    let setpriv = ["/usr/bin/setpriv", "/bin/setpriv"].into_iter().find(|path| Path::new(path).exists())?;
    let groups = user.also.map_or("--clear-groups".to_owned(), |group| format!("--groups={group}"));
    let run = world.sh("exec \"$0\" \"$@\"").arg(setpriv);
    let run = run.arg(format!("--reuid={}", user.id)).arg(format!("--regid={}", user.id)).arg(groups);
    Some(run.arg("/bin/sh").arg("-c").arg(script))
}

/// Gives a directory and everything in it to a group, with write permission.
pub fn share_with(dir: &Path, group: u32) {
    chown(dir, None, Some(group)).unwrap();
    let mode = fs::metadata(dir).unwrap().mode();
    fs::set_permissions(dir, Permissions::from_mode(mode & 0o777 | 0o660)).unwrap();
    if dir.is_dir() {
        fs::read_dir(dir).unwrap().for_each(|entry| share_with(&entry.unwrap().path(), group));
    }
}
