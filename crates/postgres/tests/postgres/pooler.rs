//! Behind a pooler that gives each transaction another connection, such as PgBouncer: there is no LISTEN.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use thread_testkit::postgres::{Server, server, unprivileged};
use thread_testkit::wait_until;

use crate::machine::Machine;

struct Pooler {
    port: u16,
    child: Child,
    _dir: TempDir,
}

impl Pooler {
    fn start(server: &Server) -> Option<Pooler> {
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"];
        let Some(program) = program.iter().map(PathBuf::from).find(|program| program.exists()) else {
            thread_testkit::missing("PgBouncer");
            return None;
        };
        // Not in `TMPDIR`, which the pooler's user may have no right to enter.
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = dir.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\npostgres = host={} port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
             default_pool_size = 10\nmax_client_conn = 100\nlogfile = {}/log\n",
            server.dir.display(),
            server.port,
            dir.path().display()
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new(program);
        if let Some(user) = unprivileged() {
            for path in [dir.path(), &config] {
                chown(path, Some(user), Some(user)).unwrap();
            }
            command.uid(user).gid(user);
        }
        let child = command.arg("-q").arg(&config).current_dir("/").stdin(Stdio::null()).spawn().unwrap();
        let pooler = Pooler { port, child, _dir: dir };
        wait_until("PgBouncer", || pooler.ask(server, "postgres", "SELECT 1").is_some());
        Some(pooler)
    }

    fn ask(&self, server: &Server, database: &str, sql: &str) -> Option<String> {
        let mut psql = Command::new(server.bin.join("psql"));
        psql.args(["-XqAt", "-h", "127.0.0.1", "-U", "postgres", "-d", database, "-c", sql, "-p"]);
        let output = psql.arg(self.port.to_string()).stderr(Stdio::null()).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    /// How many clients of the pooler have this name.
    fn clients(&self, server: &Server, name: &str) -> usize {
        let all = self.ask(server, "pgbouncer", "SHOW CLIENTS").unwrap();
        all.lines().filter(|line| line.contains(name)).count()
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn behind_a_pooler_nothing_is_lost_and_the_lack_of_listen_is_detected() {
    let Some(server) = server() else { return };
    let Some(pooler) = Pooler::start(server) else { return };
    let location = format!(
        "postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable&schema=pooled&application_name=pooled#inbox",
        pooler.port
    );
    let (mut one, mut other) = (Machine::new(&location), Machine::new(&location));
    one.ok(&["init", &location]);
    other.start_worker(&["--lease", "4s"]);
    // The connection that listens is given up, because its own notice does not come. One asks for changes, and another is
    // kept for the next look.
    wait_until("the worker to listen", || pooler.clients(server, "pooled") >= 3);
    wait_until("the worker to give that up", || pooler.clients(server, "pooled") == 2);
    let handler = "mkdir busy || echo overlap >>out; cat >>out; rmdir busy";
    one.ok(&["subscribe", "bot", handler, "--deliver", "stdin"]);
    one.start_worker(&["--lease", "4s"]);
    let follow = ["peek", "--follow", "--last-event-id", "0"];
    let out = fs::File::create(one.path("followed")).unwrap();
    let mut follower = one.command(&follow).stdout(out).spawn().unwrap();
    for n in 0..10 {
        if n % 2 == 0 { &one } else { &other }.ok(&["push", &n.to_string()]);
    }
    let mut batch = one.command(&["push", "--batch"]).stdin(Stdio::piped()).spawn().unwrap();
    let lines: String = (0..500)
        .map(|n| format!("{{\"source\":\"self\",\"type\":\"message\",\"content\":\"b{n}\",\"idempotency_key\":\"k{n}\"}}\n"))
        .collect();
    std::io::Write::write_all(&mut batch.stdin.take().unwrap(), lines.as_bytes()).unwrap();
    assert!(batch.wait().unwrap().success());
    wait_until("all to be handled", || one.bot("pending") == 0 && one.bot("state") == "idle");
    let handled = fs::read_to_string(one.path("out")).unwrap();
    assert!(!handled.contains("overlap"), "{handled}");
    assert_eq!(handled.matches("{\"id\":").count(), 510);
    let followed = || fs::read_to_string(one.path("followed")).unwrap();
    wait_until("the follower", || followed().lines().count() >= 510);
    follower.kill().unwrap();
    follower.wait().unwrap();
    let ids = followed()
        .lines()
        .filter_map(|line| line.split_once("{\"id\":")?.1.split_once(',')?.0.parse().ok())
        .collect::<Vec<i64>>();
    assert!(ids.into_iter().eq(1..=510));
}
