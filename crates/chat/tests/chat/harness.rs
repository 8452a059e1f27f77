//! A gateway and a home directory for each test, and terminals made by tmux.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use thread_testkit::program;

/// A generous limit: the machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);

pub fn eventually(what: &str, limit: Duration, mut check: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !check() {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

/// The program with a home of its own, and without variables that would change what it does.
pub fn chat_in<A: AsRef<OsStr>>(home: &Path, args: impl IntoIterator<Item = A>) -> Command {
    let mut chat = Command::new(env!("CARGO_BIN_EXE_thread-chat"));
    chat.args(args).env("HOME", home).stdin(Stdio::null());
    for variable in ["XDG_DATA_HOME", "XDG_STATE_HOME", "THREAD_TOKEN", "THREAD_DIR", "THREAD_NOTIFIER"] {
        chat.env_remove(variable);
    }
    chat
}

/// The same as a command line for a shell.
pub fn command_line(home: &Path) -> String {
    let home = home.display();
    format!(
        "env -u XDG_DATA_HOME -u XDG_STATE_HOME -u THREAD_TOKEN HOME='{home}' '{}'",
        env!("CARGO_BIN_EXE_thread-chat")
    )
}

/// Waits for a program to end, and kills it if it does not.
pub fn ends(mut child: Child) -> Output {
    let end = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    let in_time = child.try_wait().unwrap().is_some();
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    assert!(in_time, "it does not end: {}", String::from_utf8_lossy(&output.stderr));
    output
}

pub fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

pub struct Gateway {
    home: TempDir,
    agent: String,
    /// For a restart at the same address.
    listen: String,
    process: Child,
}

impl Gateway {
    /// Starts a gateway whose agent is a shell command.
    pub fn start(line: &str) -> Gateway {
        let agent = &format!("sh -c '{}'", line.replace('\'', r"'\''"));
        let home = tempfile::tempdir().unwrap();
        let process = Gateway::spawn(home.path(), agent, "127.0.0.1:0");
        let mut gateway = Gateway { home, agent: agent.to_owned(), listen: String::new(), process };
        gateway.listens();
        gateway.listen = gateway.address().trim_start_matches("http://").to_owned();
        gateway
    }

    fn spawn(home: &Path, agent: &str, listen: &str) -> Child {
        Command::new(program("thread-serve"))
            .args(["--listen", listen, "--agent", agent])
            .env("HOME", home)
            .env("THREAD_NOTIFIER", "embedded")
            .env_remove("XDG_DATA_HOME")
            .env_remove("THREAD_DIR")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    pub fn root(&self) -> PathBuf {
        self.home.path().join(".local/share/thread/sessions")
    }

    /// Host and port.
    pub fn listens_on(&self) -> &str {
        &self.listen
    }

    fn address(&self) -> String {
        std::fs::read_to_string(self.root().join("address")).unwrap_or_default().trim().to_owned()
    }

    fn listens(&self) {
        eventually("the gateway listens", LIMIT, || {
            let address = self.address();
            std::net::TcpStream::connect(address.trim_start_matches("http://").trim_end_matches('/')).is_ok()
        });
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub fn restart(&mut self) {
        self.process = Gateway::spawn(self.home.path(), &self.agent, &self.listen);
        self.listens();
    }

    pub fn chat<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        chat_in(self.home.path(), args)
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // The agents of its sessions survive it by design.
        for session in std::fs::read_dir(self.root()).into_iter().flatten().flatten() {
            if session.path().join("events.db").exists() {
                let mut stop = Command::new(program("thread-agent"));
                stop.arg("stop").arg("--thread").arg(session.path());
                let _ = stop.stdout(Stdio::null()).stderr(Stdio::null()).status();
            }
        }
    }
}

/// The program in a terminal of a given width.
pub struct Terminal {
    socket: PathBuf,
    _dir: TempDir,
}

impl Terminal {
    /// A conversation with a gateway of this home.
    pub fn start(gateway: &Gateway, columns: u16, options: &str) -> Option<Terminal> {
        let terminal = Terminal::run(gateway.home(), columns, options)?;
        terminal.prompts();
        Some(terminal)
    }

    /// `options` are those of the program, and redirections for the shell. `None` if there is no tmux, with a
    /// line on stderr.
    pub fn run(home: &Path, columns: u16, options: &str) -> Option<Terminal> {
        if Command::new("tmux").arg("-V").output().is_err() {
            thread_testkit::skipped("tmux");
            return None;
        }
        // Not in `TMPDIR`, whose path may be longer than a socket's can be.
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let terminal = Terminal { socket: dir.path().join("tmux"), _dir: dir };
        // The shell around it gets Ctrl-C, too.
        let run = format!("trap : INT; {} {options}; echo exit=$?; exec sleep 1000", command_line(home));
        let columns = columns.to_string();
        let started = terminal
            .tmux(["-f", "/dev/null", "new-session", "-d", "-x", &columns, "-y", "40", "sh", "-c", &run])
            .output()
            .unwrap();
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        Some(terminal)
    }

    fn tmux<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut tmux = Command::new("tmux");
        tmux.arg("-u").arg("-S").arg(&self.socket).args(args).env("LC_ALL", "C.UTF-8").env_remove("TMUX");
        tmux
    }

    pub fn screen(&self) -> String {
        let shown = self.tmux(["capture-pane", "-p", "-J", "-S", "-1000"]).output().unwrap();
        String::from_utf8_lossy(&shown.stdout).into_owned()
    }

    pub fn shows(&self, text: &str) {
        let end = Instant::now() + LIMIT;
        while !self.screen().contains(text) {
            assert!(Instant::now() < end, "'{text}' is not shown:\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for the prompt on an empty line: the editor may discard what is typed earlier.
    pub fn prompts(&self) {
        eventually("the prompt comes back", LIMIT, || {
            self.screen().lines().rev().find(|line| !line.trim().is_empty()).map(str::trim) == Some(">")
        });
    }

    /// Types text, then presses keys by their names.
    pub fn types(&self, text: &str, keys: &[&str]) {
        if !text.is_empty() {
            assert!(self.tmux(["send-keys", "-l", text]).status().unwrap().success());
        }
        for key in keys {
            assert!(self.tmux(["send-keys", key]).status().unwrap().success());
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(["kill-server"]).output();
    }
}
