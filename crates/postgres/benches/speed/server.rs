//! A PostgreSQL server for the benchmarks, in a temporary folder, with its default settings but for room for the log and
//! an autovacuum that looks once a second. It syncs, unlike that of the tests.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct Server {
    /// The folder of the socket.
    pub dir: PathBuf,
    pub bin: PathBuf,
    pub port: u16,
    child: Child,
}

/// Ends with this process, whose pipe it reads.
const GUARD: &str = r#"
trap '' INT TERM HUP
"$1/initdb" -D "$0/data" -U postgres -A trust -E UTF8 --locale=C >"$0/log" 2>&1 || exit 1
"$1/postgres" -D "$0/data" -k "$0" -p "$2" -c listen_addresses= -c max_wal_size=8GB -c autovacuum_naptime=1s \
  >>"$0/log" 2>&1 </dev/null &
read -r _
kill -QUIT $!
wait
rm -rf "$0/data"
"#;

impl Server {
    /// `None` if PostgreSQL is not installed.
    pub fn start() -> Option<Server> {
        let found = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let bin =
            found.map(|entry| entry.path().join("bin")).filter(|bin| bin.join("pgbench").exists()).max()?;
        let dir = tempfile::Builder::new().prefix("thread-bench").tempdir().unwrap().keep();
        let port = 5432;
        let mut command = match rustix::process::getuid().is_root() {
            false => Command::new("sh"),
            true => {
                let user = std::fs::read_to_string("/etc/passwd").unwrap();
                let id =
                    user.lines().find_map(|line| line.strip_prefix("postgres:")?.split(':').nth(1)).unwrap();
                let id: u32 = id.parse().unwrap();
                std::os::unix::fs::chown(&dir, Some(id), Some(id)).unwrap();
                let mut command = Command::new("setpriv");
                command.args([
                    format!("--reuid={id}"),
                    format!("--regid={id}"),
                    "--clear-groups".into(),
                    "sh".into(),
                ]);
                command
            }
        };
        command.arg("-c").arg(GUARD).arg(&dir).arg(&bin).arg(port.to_string()).current_dir("/");
        let child = command.stdin(Stdio::piped()).spawn().unwrap();
        let server = Server { dir, bin, port, child };
        let end = Instant::now() + Duration::from_secs(60);
        while !server.psql_of("postgres").args(["-c", "SELECT 1"]).output().unwrap().status.success() {
            let log = std::fs::read_to_string(server.dir.join("log")).unwrap_or_default();
            assert!(Instant::now() < end, "the server does not start: {log}");
            std::thread::sleep(Duration::from_millis(50));
        }
        for sql in ["CREATE DATABASE bench", "CREATE ROLE other LOGIN"] {
            assert!(server.psql_of("postgres").args(["-c", sql]).status().unwrap().success());
        }
        Some(server)
    }

    fn psql_of(&self, database: &str) -> Command {
        let mut psql = Command::new(self.bin.join("psql"));
        psql.args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database, "-p"]);
        psql.arg(self.port.to_string()).arg("-h").arg(&self.dir).stdin(Stdio::null());
        psql
    }

    pub fn psql(&self) -> Command {
        self.psql_of("bench")
    }

    pub fn sql(&self, sql: &str) -> String {
        let output = self.psql().args(["-c", sql]).output().unwrap();
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
        drop(remove(&self.dir));
    }
}

fn remove(dir: &Path) -> std::io::Result<()> {
    std::fs::remove_dir_all(dir)
}
