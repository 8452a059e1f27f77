//! A real PostgreSQL server for the tests: one for each test program, in a temporary folder, as an unprivileged user.
//! It is stopped and removed when the test program ends, even by a crash: its guardian, a shell, reads from a pipe
//! whose other end only this process has.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

/// Where Debian and others install the programs of the server.
const FOLDERS: [&str; 7] = [
    "/usr/lib/postgresql/18/bin",
    "/usr/lib/postgresql/17/bin",
    "/usr/lib/postgresql/16/bin",
    "/usr/lib/postgresql/15/bin",
    "/usr/pgsql-15/bin",
    "/usr/local/pgsql/bin",
    "/usr/bin",
];

/// The guardian: `sh -c GUARD <folder> <bin> <port> <primary> <settings>…`. With a primary, the server is a standby
/// of that. Each line that it reads is an order, which it confirms by a line.
const GUARD: &str = r#"
trap '' INT TERM HUP
dir=$0 bin=$1 port=$2 primary=$3
shift 3
settings=$*
if [ "$primary" ]; then
  "$bin/pg_basebackup" -d "$primary" -D "$dir/data" -R -X stream -c fast --no-sync >"$dir/log" 2>&1
else
  "$bin/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --locale=C --no-sync >"$dir/log" 2>&1
fi || { cat "$dir/log"; exit 1; }
cat >"$dir/data/pg_hba.conf" <<'END'
local   replication all         trust
local   all guest           scram-sha-256
local   all all             trust
hostssl all secure 127.0.0.1/32 scram-sha-256
hostssl all secure ::1/128  scram-sha-256
host    all secure 127.0.0.1/32 reject
host    all all 127.0.0.1/32 scram-sha-256
END
start() {
  # The server may have a clock of its own.
  [ -e "$dir/clock" ] && export LD_PRELOAD="$dir/clock.so" STEPPED_CLOCK="$dir/clock"
  "$bin/postgres" -D "$dir/data" -k "$dir" -p "$port" -c listen_addresses=127.0.0.1 -c fsync=off \
    -c full_page_writes=off -c max_connections=200 -c log_min_messages=fatal $settings >>"$dir/log" 2>&1 </dev/null &
  pid=$!
  unset LD_PRELOAD
  until "$bin/pg_isready" -q -h "$dir" -p "$port"; do
    kill -0 $pid 2>/dev/null || { cat "$dir/log"; exit 1; }
    sleep 0.05
  done
}
stop() { kill -"$1" $pid; wait $pid; }
start
echo ready
while read -r order; do
  case $order in
    kill) stop QUIT ;;
    start) start ;;
    reload) kill -HUP $pid ;;
    promote) "$bin/pg_ctl" promote -w -D "$dir/data" >>"$dir/log" 2>&1 ;;
  esac
  echo "$order"
done
stop QUIT 2>/dev/null
rm -rf "$dir"
"#;

pub struct Server {
    /// The folder of the socket.
    pub dir: PathBuf,
    pub bin: PathBuf,
    pub port: u16,
    guardian: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    _child: Child,
}

/// How a server differs from others.
#[derive(Default)]
pub struct Options<'o> {
    /// As `name=value`.
    pub settings: &'o [&'o str],
    /// The primary, if it is a standby.
    pub primary: Option<&'o Server>,
    /// The library that steps its clock, and by how many seconds.
    pub clock: Option<(&'o Path, i64)>,
}

/// The server of this test program; `None`, with a notice, if PostgreSQL is not installed.
///
/// # Panics
///
/// Under `CI=1` if it is not installed.
pub fn server() -> Option<&'static Server> {
    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
    SERVER.get_or_init(Server::start).as_ref()
}

impl Server {
    /// A server of its own, for a test that stops it.
    ///
    /// # Panics
    ///
    /// As [`server`].
    pub fn start() -> Option<Server> {
        Server::start_with(&Options::default())
    }

    /// # Panics
    ///
    /// As [`server`].
    pub fn start_with(options: &Options<'_>) -> Option<Server> {
        let server = Server::try_start(options);
        if server.is_none() {
            crate::missing("PostgreSQL");
        }
        server
    }

    fn try_start(options: &Options<'_>) -> Option<Server> {
        let bin = FOLDERS.iter().map(Path::new).find(|bin| bin.join("initdb").exists())?.to_owned();
        // Not in `TMPDIR`, whose path may be longer than a socket's can be.
        let dir = tempfile::Builder::new().prefix("thread-pg").tempdir_in("/tmp").unwrap().keep();
        // Another process could take the port before the server does.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if let Some((library, seconds)) = options.clock {
            std::fs::copy(library, dir.join("clock.so")).unwrap();
            std::fs::write(dir.join("clock"), seconds.to_ne_bytes()).unwrap();
        }
        let mut command = match unprivileged() {
            None => Command::new("sh"),
            Some(user) => {
                std::os::unix::fs::chown(&dir, Some(user), Some(user)).unwrap();
                let mut command = Command::new("setpriv");
                let (uid, gid) = (format!("--reuid={user}"), format!("--regid={user}"));
                command.args([&uid, &gid, "--clear-groups", "sh"]);
                command
            }
        };
        command.arg("-c").arg(GUARD).arg(&dir).arg(&bin).arg(port.to_string()).current_dir("/");
        command.arg(options.primary.map_or_else(String::new, |primary| {
            format!("host={} port={} user=postgres", primary.dir.display(), primary.port)
        }));
        command.args(options.settings.iter().flat_map(|setting| ["-c", setting]));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // A process group of its own, so that Ctrl-C in the terminal of the tests does not reach it.
        let mut child = command.process_group(0).spawn().unwrap();
        let guardian = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let server = Server { dir, bin, port, guardian: Mutex::new(guardian), _child: child };
        server.expect("ready");
        Some(server)
    }

    fn expect(&self, word: &str) {
        let mut guardian = self.guardian.lock().unwrap();
        let mut line = String::new();
        guardian.1.read_line(&mut line).unwrap();
        if line.trim_end() != word {
            guardian.1.read_to_string(&mut line).unwrap();
            panic!("the server did not start: {line}");
        }
    }

    /// Orders the guardian to `kill` the server, as a crash would, to `start` it again, to `reload` its settings, or
    /// to `promote` a standby.
    pub fn order(&self, word: &str) {
        writeln!(self.guardian.lock().unwrap().0, "{word}").unwrap();
        self.expect(word);
    }

    /// A location on this server in which there is no thread yet, in a schema that no other test uses.
    pub fn location(&self) -> String {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        self.location_of(&format!("test{number}"), "inbox")
    }

    pub fn location_of(&self, schema: &str, thread: &str) -> String {
        let dir = self.dir.display();
        format!("postgres:///postgres?host={dir}&port={}&user=postgres&schema={schema}#{thread}", self.port)
    }

    /// The program `psql`, which connects to a database as the superuser.
    pub fn client(&self, database: &str) -> Command {
        let mut psql = Command::new(self.bin.join("psql"));
        psql.args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database, "-p"]);
        psql.arg(self.port.to_string()).arg("-h").arg(&self.dir).stdin(Stdio::null());
        psql
    }

    /// Runs this as the superuser, and returns what is printed.
    pub fn psql(&self, sql: &str) -> String {
        let output = self.client("postgres").args(["-c", sql]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{sql}: {said}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }
}

/// The user that the server runs as if this is root, who may not run one.
pub fn unprivileged() -> Option<u32> {
    let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    let id_of = |name: &str| {
        let id = Command::new("id").args(["-u", name]).output().ok()?;
        String::from_utf8(id.stdout).ok()?.trim().parse().ok()
    };
    root.then(|| id_of("postgres").or_else(|| id_of("nobody")).unwrap_or(65534))
}
