//! An `LD_PRELOAD` library that can step a program's clock and make its allocations fail; see
//! `preload.c`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::{missing, target};

/// The path of the library, which is built with the C compiler. Prints a skip notice and returns
/// `None` if there is no compiler.
pub fn library() -> Option<&'static Path> {
    static MADE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let place = target().join("tmp");
        fs::create_dir_all(&place).ok()?;
        let (draft, library) =
            (place.join(format!("preload-{}.so", std::process::id())), place.join("preload.so"));
        let source = place.join(format!("preload-{}.c", std::process::id()));
        fs::write(&source, include_str!("preload.c")).ok()?;
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&draft).arg(&source).arg("-ldl");
        let made = cc.output();
        fs::remove_file(&source).ok();
        if !made.is_ok_and(|output| output.status.success()) {
            return None;
        }
        // Renamed into place, because another test process may be building it too.
        fs::rename(draft, &library).ok()?;
        Some(library)
    });
    if made.is_none() {
        missing("a C compiler");
    }
    made.as_deref()
}

/// The variables that make a program load the library. By name and folder, because `LD_PRELOAD` splits a path at
/// blanks.
pub fn variables(library: &Path) -> [(&'static str, String); 2] {
    let text = |part: Option<&OsStr>| part.unwrap().to_str().unwrap().to_owned();
    [
        ("LD_PRELOAD", text(library.file_name())),
        ("LD_LIBRARY_PATH", text(library.parent().map(Path::as_os_str))),
    ]
}

/// A file that holds the clock offset.
pub struct Clock(PathBuf);

impl Clock {
    pub fn new(path: PathBuf) -> Clock {
        let clock = Clock(path);
        clock.step(0);
        clock
    }

    /// Sets the clock offset, in seconds, of all processes that have `STEPPED_CLOCK` set to this file.
    pub fn step(&self, seconds: i64) {
        // Written in place, because processes have the file mapped.
        let mut file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&self.0).unwrap();
        std::io::Write::write_all(&mut file, &seconds.to_ne_bytes()).unwrap();
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}
