//! A command to be run in a world, and what is expected of it.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::processes::limit;

/// A command to be run. One that takes far too long is killed, with all processes of its world, so that no test hangs.
#[must_use = "it does not run before something is expected of it"]
pub struct Run {
    command: Command,
    stdin: Vec<u8>,
    /// The world's folder.
    root: PathBuf,
}

impl Run {
    pub(crate) fn new(command: Command, root: &Path) -> Run {
        Run { command, stdin: Vec::new(), root: root.to_owned() }
    }

    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Run {
        self.command.args(args);
        self
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Run {
        self.command.arg(arg);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Run {
        self.command.env(name, value);
        self
    }

    pub fn envs<'v>(self, variables: impl IntoIterator<Item = (&'v str, String)>) -> Run {
        variables.into_iter().fold(self, |run, (name, value)| run.env(name, value))
    }

    pub fn env_remove(mut self, name: &str) -> Run {
        self.command.env_remove(name);
        self
    }

    pub fn dir(mut self, dir: impl AsRef<Path>) -> Run {
        self.command.current_dir(dir);
        self
    }

    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Run {
        self.stdin = bytes.into();
        self
    }

    /// The command itself, for settings this builder does not offer.
    pub fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    /// The plain command, with nothing on stdin, for processes that keep running: it is killed only when its world
    /// ends.
    pub fn into_command(mut self) -> Command {
        self.command.stdin(Stdio::null());
        self.command
    }

    /// Runs the command to its end.
    pub fn output(mut self) -> Output {
        let mut child = self.spawn_piped();
        let mut pipe = child.stdin.take().unwrap();
        let stdin = std::mem::take(&mut self.stdin);
        // Written while the output is read; otherwise full pipes would block both processes.
        let writer = std::thread::spawn(move || pipe.write_all(&stdin).ok());
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        output
    }

    fn spawn_piped(&mut self) -> Child {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.command.spawn().unwrap();
        limit(child.id(), &self.root.to_string_lossy());
        child
    }

    /// Starts the command and leaves it running, with stdin, stdout and stderr as pipes.
    pub fn spawn(mut self) -> Child {
        self.spawn_piped()
    }

    /// Runs the command, and returns whether it ended with exit 0.
    pub fn succeeds(self) -> bool {
        self.output().status.success()
    }

    /// Runs the command, expects exit 0, and returns stdout.
    #[track_caller]
    pub fn ok(self) -> String {
        let (stdout, stderr) = self.ends_with(0);
        assert!(!stderr.contains("Error"), "{stderr}");
        stdout
    }

    /// Runs the command, expects exit 0 and nothing on stderr but [`POPS`], and returns stdout.
    #[track_caller]
    pub fn quiet(self) -> String {
        let (stdout, stderr) = self.ends_with(0);
        assert_eq!(stderr.replace(POPS, ""), "");
        stdout
    }

    /// Runs the command, expects exit 0 with a warning, and returns the warning.
    #[track_caller]
    pub fn warns(self) -> String {
        let (_, stderr) = self.ends_with(0);
        assert!(stderr.starts_with("Warning: "), "no warning in {stderr:?}");
        stderr
    }

    /// Runs the command and expects this exit code, nothing on stdout, and one line of the form
    /// `Error: <what> - <how to fix>` on stderr, which it returns.
    #[track_caller]
    pub fn fails(self, code: i32) -> String {
        let (stdout, stderr) = self.ends_with(code);
        assert_eq!(stdout, "", "a failure prints no data");
        let line = stderr.strip_suffix('\n').unwrap_or_else(|| panic!("no whole line in {stderr:?}"));
        assert!(!line.contains('\n'), "more than one line: {stderr}");
        assert!(line.starts_with("Error: ") && line.contains(" - "), "not of the form: {stderr}");
        line.to_owned()
    }

    /// Runs the command, expects this exit code, and returns stdout and stderr.
    #[track_caller]
    pub fn ends_with(self, code: i32) -> (String, String) {
        let shown = format!("{:?}", self.command);
        let output = self.output();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(
            output.status.code(),
            Some(code),
            "{shown}\n--- {}\n--- stdout\n{stdout}\n--- stderr\n{stderr}",
            output.status
        );
        (stdout, stderr)
    }
}

/// What `subscribe` notes about a handler such as `true`, which many tests use.
pub const POPS: &str = "Note: the handler gets no events on stdin: it has to take them with `thread pop`, and \
     acknowledge them with `thread ack`; give --deliver stdin for events on stdin, where exit 0 acknowledges\n";
