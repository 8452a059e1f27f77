//! A folder for one test, and the programs that run in it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::processes::{kill, one_is_ending, processes_in, reset_signals};
use crate::{PATIENCE, Run, program, skipped, wait_until};

/// How long to wait for something when no process is left in the world that could cause it.
const HOPELESS: Duration = Duration::from_secs(10);

/// The programs a handler may use. By default nothing else is on `PATH`, in particular no notifier.
const TOOLS: &[&str] = &[
    "awk", "basename", "bash", "cat", "chmod", "cp", "cut", "date", "dd", "echo", "env", "false", "fish",
    "flock", "grep", "head", "kill", "ln", "ls", "mkdir", "mkfifo", "mktemp", "mv", "nohup", "paste",
    "printf", "ps", "readlink", "rm", "rmdir", "script", "sed", "seq", "setpriv", "setsid", "sh", "sleep",
    "sort", "stat", "stty", "tail", "tee", "test", "tmux", "touch", "tr", "true", "truncate", "uniq", "wc",
    "xargs", "zsh",
];

/// A temporary folder with a `bin`, and the programs that run there.
///
/// Programs get a clean environment: `PATH` is `bin`, which has `thread` and common tools; `HOME` and `TMPDIR` are the
/// folder. When the world is dropped, even by a failed test, all processes that still run there are killed and the
/// folder is deleted. It can have one thread called `inbox`, which [`World::with_thread`] creates and methods such as
/// [`World::thread`] use.
pub struct World {
    root: TempDir,
    /// The location of the thread, if it is not the directory `inbox`.
    pub(crate) location: Option<String>,
    /// `PATH`.
    path: OsString,
}

impl Default for World {
    fn default() -> World {
        World::new()
    }
}

impl World {
    /// An empty world.
    pub fn new() -> World {
        World::named("world")
    }

    /// An empty world whose folder name starts with `name`, for paths with awkward characters.
    pub fn named(name: &str) -> World {
        World::named_in(&std::env::temp_dir(), name)
    }

    /// An empty world in the folder `location`.
    pub fn named_in(location: &Path, name: &str) -> World {
        let root = tempfile::Builder::new().prefix(name).tempdir_in(location).unwrap();
        let path = root.path().join("bin").into();
        let world = World { root, location: None, path };
        fs::create_dir(world.bin()).unwrap();
        symlink(program("thread"), world.bin().join("thread")).unwrap();
        for tool in TOOLS {
            if let Some(path) = installed(tool) {
                symlink(path, world.bin().join(tool)).unwrap();
            }
        }
        world
    }

    /// The same world, with a `PATH` of the programs of the workspace, then `bin`, then the system's `PATH`.
    pub fn with_system_path(mut self) -> World {
        let programs = program("thread-agent").parent().unwrap().to_owned();
        let own = std::env::var_os("PATH").unwrap_or_default();
        let folders = [programs, self.bin()].into_iter().chain(std::env::split_paths(&own));
        self.path = std::env::join_paths(folders).unwrap();
        self
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn bin(&self) -> PathBuf {
        self.root().join("bin")
    }

    /// Links one more program into `PATH`. Prints a skip notice and returns false if the machine
    /// lacks it.
    pub fn tool(&self, name: &str) -> bool {
        let Some(path) = installed(name) else {
            skipped(name);
            return false;
        };
        symlink(path, self.bin().join(name)).unwrap();
        true
    }

    /// The path of a file in the world's folder.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root().join(name)
    }

    /// The text of a file in the world's folder; empty if it does not exist.
    pub fn read(&self, name: impl AsRef<Path>) -> String {
        fs::read(self.path(name))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    pub fn lines(&self, name: impl AsRef<Path>) -> Vec<String> {
        self.read(name).lines().map(str::to_owned).collect()
    }

    pub fn write(&self, name: impl AsRef<Path>, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Creates an executable shell script.
    pub fn script(&self, name: impl AsRef<Path>, text: &str) -> PathBuf {
        let path = self.path(name);
        let write = self.sh("cat >\"$0\" && chmod 755 \"$0\"").arg(&path);
        // Written by another process: a child that a test in another thread forks while this
        // process has the file open for writing would keep it open, and running it would fail with
        // "text file busy".
        write.stdin(format!("#!/bin/sh\n{text}\n")).quiet();
        path
    }

    /// A shell command in the world's folder.
    pub fn sh(&self, script: &str) -> Run {
        self.run("/bin/sh").arg("-c").arg(script).env("THREAD_DIR", self.location())
    }

    /// A shell command whose stdout and stderr are a terminal with this many columns. Prints a skip
    /// notice and returns `None` if the system has no `script` or `stty`.
    pub fn terminal(&self, columns: u32, command: &str) -> Option<Run> {
        if !self.bin().join("script").exists() || !self.bin().join("stty").exists() {
            skipped("script and stty");
            return None;
        }
        // No CR before LF, so that the output is exactly what the command wrote.
        let command = format!("stty rows 24 cols {columns} -onlcr; {command}");
        let run = self.sh("exec script -qe -E never -c \"$0\" /dev/null").arg(command);
        Some(run.env("TERM", "xterm").env("SHELL", "/bin/sh"))
    }

    /// A program, by its path or by its name on the world's `PATH`, in the world's folder.
    pub fn run(&self, program: impl AsRef<OsStr>) -> Run {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", &self.path).env("HOME", self.root()).env("TMPDIR", self.root());
        command.env("LC_ALL", "C.UTF-8").current_dir(self.root());
        reset_signals(&mut command);
        Run::new(command, self.root())
    }

    /// Processes that belong to this world: their command line, working directory or environment
    /// contains its folder's path.
    pub fn processes(&self) -> Vec<u32> {
        processes_in(&self.root().to_string_lossy())
    }

    /// Waits until no process of this world runs or holds a lock.
    pub fn wait_until_quiet(&self) {
        // Twice in a row: when process ids wrap around, a process that ends during a scan of /proc can leave a child
        // with a smaller id, which the scan has already passed.
        let mut quiet = 0;
        wait_until("all processes to end", || {
            quiet = if self.processes().is_empty() && !one_is_ending() { quiet + 1 } else { 0 };
            quiet == 2
        });
    }

    /// Waits until a file exists; handlers create files to report their progress.
    #[track_caller]
    pub fn wait_for_file(&self, name: &str) {
        self.wait_until(&format!("the file {name}"), || self.path(name).exists());
    }

    /// Like [`wait_until`], for something that processes of this world cause: gives up sooner if there are none.
    #[track_caller]
    pub fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let began = Instant::now();
        let (mut looked, mut lived) = (began, began);
        while !condition() {
            if looked.elapsed() > Duration::from_secs(1) {
                looked = Instant::now();
                if !self.processes().is_empty() {
                    lived = looked;
                }
            }
            assert!(lived.elapsed() < HOPELESS, "waited for {what}, and no process is left");
            assert!(began.elapsed() < PATIENCE, "timed out waiting for {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let left = self.processes();
            if left.is_empty() || Instant::now() > end {
                return;
            }
            left.into_iter().for_each(kill);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The path of a program on this machine.
fn installed(name: &str) -> Option<PathBuf> {
    ["/bin", "/usr/bin", "/usr/local/bin"]
        .map(|dir| Path::new(dir).join(name))
        .into_iter()
        .find(|path| path.exists())
}

/// Copies the binary to `path`. Done by another process, for the reason given in [`World::script`].
pub fn copy_program(world: &World, path: &Path) {
    world.sh("exec cp \"$0\" \"$1\"").arg(program("thread")).arg(path).quiet();
}

/// A path or a text, quoted as one word for a shell.
pub fn quoted(text: impl AsRef<std::ffi::OsStr>) -> String {
    shlex::try_quote(text.as_ref().to_str().unwrap()).unwrap().into_owned()
}
