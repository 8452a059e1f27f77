//! A gateway in a world of its own for each test, and terminals made by tmux.

use std::ffi::OsStr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use thread_testkit::{PATIENCE, World, program, quoted, wait_until};

/// The program in a world.
pub fn chat_in<A: AsRef<OsStr>>(world: &World, args: impl IntoIterator<Item = A>) -> Command {
    world.run(env!("CARGO_BIN_EXE_thread-chat")).args(args).into_command()
}

/// Waits for a program to end.
pub fn ends(mut child: Child) -> Output {
    wait_until("a program to end", || child.try_wait().unwrap().is_some());
    child.wait_with_output().unwrap()
}

pub struct Gateway {
    world: World,
    agent: String,
    /// The address, for a restart.
    listen: String,
    process: Child,
}

impl Deref for Gateway {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl Gateway {
    /// Starts a gateway whose agent is a shell command.
    pub fn start(line: &str) -> Gateway {
        let agent = &format!("sh -c {}", quoted(line));
        let world = World::named("chat").with_system_path();
        let process = Gateway::spawn(&world, agent, "127.0.0.1:0");
        let mut gateway = Gateway { world, agent: agent.to_owned(), listen: String::new(), process };
        gateway.listens();
        gateway.listen = gateway.address().trim_start_matches("http://").to_owned();
        gateway
    }

    fn spawn(world: &World, agent: &str, listen: &str) -> Child {
        let serve = world.run(program("thread-serve")).args(["--listen", listen, "--agent", agent]);
        let mut serve = serve.env("THREAD_NOTIFIER", "embedded").into_command();
        serve.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    pub fn root(&self) -> PathBuf {
        self.path(".local/share/thread/sessions")
    }

    /// Host and port.
    pub fn listens_on(&self) -> &str {
        &self.listen
    }

    fn address(&self) -> String {
        std::fs::read_to_string(self.root().join("address")).unwrap_or_default().trim().to_owned()
    }

    fn listens(&self) {
        wait_until("the gateway to listen", || {
            let address = self.address();
            std::net::TcpStream::connect(address.trim_start_matches("http://").trim_end_matches('/')).is_ok()
        });
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub fn restart(&mut self) {
        self.process = Gateway::spawn(&self.world, &self.agent, &self.listen);
        self.listens();
    }

    pub fn chat<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        chat_in(self, args)
    }

    pub fn home(&self) -> &Path {
        self.world.root()
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
        let terminal = Terminal::run(gateway, columns, options)?;
        terminal.prompts();
        Some(terminal)
    }

    /// `options` are those of the program, and redirections for the shell. `None` if there is no tmux, with a
    /// line on stderr.
    pub fn run(world: &World, columns: u16, options: &str) -> Option<Terminal> {
        if Command::new("tmux").arg("-V").output().is_err() {
            thread_testkit::skipped("tmux");
            return None;
        }
        // Not in `TMPDIR`, whose path may be longer than a socket's can be.
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let terminal = Terminal { socket: dir.path().join("tmux"), _dir: dir };
        let chat = quoted(env!("CARGO_BIN_EXE_thread-chat"));
        // The shell around it gets Ctrl-C too.
        let run = format!("trap : INT; {chat} {options}; echo exit=$?; exec sleep 1000");
        let columns = columns.to_string();
        let words = ["new-session", "-d", "-x", &columns, "-y", "40", "sh", "-c", &run];
        let tmux = world.run("tmux").arg("-u").arg("-S").arg(&terminal.socket).args(["-f", "/dev/null"]);
        tmux.args(words).quiet();
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
        let end = Instant::now() + PATIENCE;
        while !self.screen().contains(text) {
            assert!(Instant::now() < end, "'{text}' is not shown:\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for the prompt on an empty line: the editor may discard what is typed earlier.
    pub fn prompts(&self) {
        wait_until("the prompt", || {
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
