//! The server of models in `fixtures/model.py`.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A server of models, which runs until this is dropped.
pub struct Models {
    process: Child,
    /// What `--url` takes.
    pub url: String,
}

impl Models {
    /// Starts it with these further arguments, on a free port. If the machine has no Python, reports that the test is
    /// skipped.
    pub fn start<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Option<Models> {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/model.py");
        let mut command = Command::new("python3");
        command.args([program, "0"]).args(arguments).stdout(Stdio::piped());
        let Ok(mut process) = command.spawn() else {
            crate::skipped("python3");
            return None;
        };
        let mut url = String::new();
        let stdout = process.stdout.take().expect("it has a pipe");
        BufReader::new(stdout).read_line(&mut url).expect("it prints its URL");
        Some(Models { process, url: url.trim().to_owned() })
    }
}

impl Drop for Models {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
