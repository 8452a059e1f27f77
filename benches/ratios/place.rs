//! The working directory, and creating threads, databases and input in it.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use thread_testkit::bench::run;

pub struct Place {
    dir: PathBuf,
    program: PathBuf,
    made: Cell<u32>,
}

impl Place {
    /// A directory in the target directory, so that it is on the same disk as the build.
    pub fn new(program: &Path) -> Place {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("ratios-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder to measure in");
        Place { dir, program: program.to_owned(), made: Cell::new(0) }
    }

    /// A new path that ends in `name`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.made.set(self.made.get() + 1);
        self.dir.join(format!("{}-{name}", self.made.get()))
    }

    /// The measured program with these arguments; its output is discarded.
    pub fn thread<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).env("THREAD_NOTIFIER", "embedded").env_remove("THREAD_DIR");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// As [`Place::thread`], with `THREAD_DIR` set.
    pub fn in_thread<'a>(&self, thread: &Path, words: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = self.thread(words);
        command.env("THREAD_DIR", thread);
        command
    }

    pub fn push(&self, thread: &Path) -> Command {
        let words = ["push", "--source", "self", "--type", "message", "--content", "What is new?"];
        self.in_thread(thread, words)
    }

    /// Makes a thread with this many events.
    pub fn new_thread(&self, events: u32) -> PathBuf {
        let path = self.path("thread");
        run(self.thread(["init"]).arg(&path));
        if events > 0 {
            let input = self.events(events);
            run(&mut self.batch(&path, &input));
            fs::remove_file(input).expect("the input is removed");
        }
        path
    }

    pub fn batch(&self, thread: &Path, input: &Path) -> Command {
        let mut command = self.in_thread(thread, ["push", "--batch"]);
        command.stdin(File::open(input).expect("the input is there"));
        command
    }

    /// Writes an NDJSON file of `count` events of about 200 bytes each.
    pub fn events(&self, count: u32) -> PathBuf {
        let path = self.path("events.ndjson");
        let mut file = BufWriter::new(File::create(&path).expect("a file for events"));
        for number in 0..count {
            let (kind, source, content) = event(number);
            writeln!(
                file,
                r#"{{"source":"{source}","type":"{kind}","subtype":"chat","content":"{content}"}}"#
            )
            .expect("events are written");
        }
        file.flush().expect("events are written");
        path
    }

    /// Writes a CSV file with the table rows of the same events.
    pub fn rows(&self, count: u32) -> PathBuf {
        let path = self.path("events.csv");
        let mut file = BufWriter::new(File::create(&path).expect("a file for rows"));
        for number in 0..count {
            let (kind, source, content) = event(number);
            writeln!(file, "{},2026-03-18T10:30:00.123Z,{source},{kind},chat,\"{content}\"", number + 1)
                .expect("rows are written");
        }
        file.flush().expect("rows are written");
        path
    }

    /// The program and its version.
    pub fn version(&self) -> String {
        let version = Command::new(&self.program).arg("--version").output().expect("the program runs");
        String::from_utf8_lossy(&version.stdout).trim().to_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.dir).ok();
    }
}

fn event(number: u32) -> (&'static str, String, String) {
    let kind = if number.is_multiple_of(3) { "message" } else { "record" };
    let content = format!(
        "event {number}: the quick brown fox jumps over the lazy dog; {}",
        "x".repeat(70 + number as usize % 40)
    );
    (kind, format!("agent-{}", number % 7), content)
}
