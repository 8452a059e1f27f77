//! Machines that share a thread: each has its own folders, and so its own locks and logs.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thread_testkit::{Run, Signal, World, kill, send, wait_for, wait_until};

/// The schema that a location names.
pub fn schema_of(location: &str) -> &str {
    let (_, rest) = location.split_once("schema=").unwrap();
    rest.split(['&', '#']).next().unwrap()
}

/// A [`World`] whose `thread` is `thread-postgres`.
pub struct Machine {
    world: World,
    pub location: String,
    /// Environment variables that its users have set.
    pub variables: Vec<(&'static str, String)>,
    workers: Vec<Child>,
}

impl Machine {
    pub fn new(location: &str) -> Machine {
        let world = World::named("machine");
        // `thread` executes `thread-postgres` for such a location.
        fs::remove_file(world.bin().join("thread")).unwrap();
        symlink(env!("CARGO_BIN_EXE_thread-postgres"), world.bin().join("thread")).unwrap();
        Machine { world, location: location.to_owned(), variables: Vec::new(), workers: Vec::new() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.world.path(name)
    }

    /// The folder of its only thread that has events, once it is there. Others were only looked for.
    pub fn base(&self) -> PathBuf {
        let find = || {
            let entries = fs::read_dir(self.path("state/thread")).ok()?.flatten();
            entries.map(|entry| entry.path()).find(|path| path.join("logs/thread.log").exists())
        };
        wait_for("the folder of the thread", find)
    }

    /// Its log, for people.
    pub fn log(&self) -> String {
        fs::read_to_string(self.base().join("logs/thread.log")).unwrap_or_default()
    }

    pub fn thread(&self, args: &[&str]) -> Run {
        self.in_thread(&self.path("bin/thread")).args(args)
    }

    /// Another program, for which the thread is the one of its environment.
    pub fn program(&self, path: &Path) -> Command {
        self.in_thread(path).into_command()
    }

    fn in_thread(&self, program: &Path) -> Run {
        let run = self.world.run(program).env("XDG_STATE_HOME", self.path("state"));
        self.variables
            .iter()
            .fold(run.env("THREAD_DIR", &self.location), |run, (name, value)| run.env(name, value))
    }

    pub fn command(&self, args: &[&str]) -> Command {
        self.thread(args).into_command()
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.thread(args).output()
    }

    /// Expects exit 0, and returns what is printed.
    #[track_caller]
    pub fn ok(&self, args: &[&str]) -> String {
        self.thread(args).ends_with(0).0
    }

    /// The same, with this input.
    pub fn ok_with_stdin(&self, args: &[&str], input: &str) {
        self.thread(args).stdin(input).ok();
    }

    /// Expects this exit code and one line of the form `Error: <what> - <how to fix it>`, and returns it.
    #[track_caller]
    pub fn fails(&self, code: i32, args: &[&str]) -> String {
        self.thread(args).fails(code)
    }

    pub fn start_worker(&mut self, options: &[&str]) {
        let args = match options.contains(&"--grace") {
            true => [&["dispatch", "--follow"], options].concat(),
            false => [&["dispatch", "--follow", "--grace", "1s"], options].concat(),
        };
        self.workers.push(self.command(&args).spawn().unwrap());
    }

    /// Asks its worker to end, and waits until it has.
    pub fn end_worker(&mut self) -> Option<i32> {
        let mut worker = self.workers.pop().unwrap();
        send(worker.id(), Signal::TERM);
        wait_until("the worker to end", || worker.try_wait().unwrap().is_some());
        worker.wait().unwrap().code()
    }

    /// Subscribes `bot`, which writes what it gets to `out`, and `overlap` if two of its runs on this machine overlap.
    pub fn subscribe_bot(&self) {
        // Child processes of the handler inherit the lock. `flock` may be killed, too.
        let handler = "exec 9>lock; flock -n 9; [ $? = 1 ] && echo overlap >>out; cat >>out; sleep 0.02";
        let options = ["--deliver", "stdin", "--max-attempts", "1000", "--backoff", "10ms"];
        self.ok(&[&["subscribe", "bot", handler][..], &options].concat());
    }

    /// A number of the consumer `bot`.
    pub fn bot(&self, key: &str) -> serde_json::Value {
        let info: serde_json::Value = serde_json::from_str(&self.ok(&["info", "--json", "bot"])).unwrap();
        info["subscriptions"][0][key].clone()
    }

    /// Starts its worker again if it is gone.
    pub fn revive_worker(&mut self, options: &[&str]) {
        self.workers.retain_mut(|worker| worker.try_wait().unwrap().is_none());
        if self.workers.is_empty() {
            self.start_worker(options);
        }
    }

    pub fn processes(&self) -> Vec<u32> {
        self.world.processes()
    }

    /// Kills all processes of the machine, as a power cut would.
    pub fn kill(&mut self) {
        wait_until("the processes of a machine to end", || {
            let left = self.processes();
            left.iter().copied().for_each(kill);
            for worker in &mut self.workers {
                worker.try_wait().ok();
            }
            left.is_empty()
        });
    }
}

/// A proxy of TCP connections to a port of this machine, which can be cut and healed.
pub struct Proxy {
    pub port: u16,
    is_cut: Arc<AtomicBool>,
    /// How many milliseconds whatever passes takes.
    delay: Arc<AtomicU64>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub fn to(port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        let (is_cut, delay, open) = (Arc::default(), Arc::default(), Arc::default());
        let proxy = Proxy { port: own, is_cut, delay, open };
        let Proxy { is_cut, delay, open, .. } = &proxy;
        let (is_cut, delay, open) = (Arc::clone(is_cut), Arc::clone(delay), Arc::clone(open));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let mut open = open.lock().unwrap();
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    open.push(from.try_clone().unwrap());
                    let (is_cut, delay) = (Arc::clone(&is_cut), Arc::clone(&delay));
                    std::thread::spawn(move || pass(from, to, &is_cut, &delay));
                }
            }
        });
        proxy
    }

    /// From now on, the link is slow.
    pub fn delay(&self, by: Duration) {
        self.delay.store(by.as_millis().try_into().unwrap(), Ordering::SeqCst);
    }

    /// From now on, nothing gets through, and no connection is closed: as if a cable had been pulled.
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
    }

    /// Data sent while it was cut is lost, with its connections.
    pub fn heal(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            stream.shutdown(std::net::Shutdown::Both).ok();
        }
        self.is_cut.store(false, Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool, delay: &AtomicU64) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(read) = from.read(&mut bytes) {
        if is_cut.load(Ordering::SeqCst) {
            // Until it is healed, which ends this connection.
            continue;
        }
        std::thread::sleep(Duration::from_millis(delay.load(Ordering::SeqCst)));
        if read == 0 || to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    to.shutdown(std::net::Shutdown::Both).ok();
}
