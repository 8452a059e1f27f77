//! The programs that ours is compared with. One that is not installed is reported as missing.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use thread_testkit::bench::{figure, run};

use crate::place::Place;

/// The table of events with its indexes, without the columns that the measured events leave empty.
const SCHEMA: &str = "\
    CREATE TABLE events (
        id         INTEGER PRIMARY KEY AUTOINCREMENT,
        created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
        source     TEXT NOT NULL,
        type       TEXT NOT NULL,
        subtype    TEXT,
        content    TEXT NOT NULL
    );
    CREATE INDEX idx_events_source ON events (source);
    CREATE INDEX idx_events_type ON events (type);";

const INSERT: &str = "PRAGMA synchronous = FULL; \
    INSERT INTO events (source, type, content) VALUES ('self', 'message', 'What is new?');";

/// Whether a program is on `PATH`; reports a missing one in the table.
pub fn is_there(program: &str, work: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        figure(work, &format!("{program} is missing"), "", "");
    }
    found.is_ok()
}

/// The sqlite3 program on a database with our schema and durability.
pub struct Sqlite {
    pub db: PathBuf,
}

impl Sqlite {
    pub fn new(place: &Place) -> Sqlite {
        let db = place.path("peer.db");
        let schema = format!("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; {SCHEMA}");
        run(Sqlite { db: db.clone() }.command().arg(schema));
        Sqlite { db }
    }

    fn command(&self) -> Command {
        let mut command = Command::new("sqlite3");
        command.arg(&self.db).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    pub fn insert(&self) -> Command {
        let mut command = self.command();
        command.arg(INSERT);
        command
    }

    /// An insert that waits up to a minute for other writers.
    pub fn insert_patiently(&self) -> Command {
        let mut command = self.command();
        command.args(["-cmd", ".timeout 60000", INSERT]);
        command
    }

    pub fn import(&self, rows: &Path) -> Command {
        let mut command = self.command();
        command.arg("PRAGMA synchronous = FULL").arg(format!(".import --csv '{}' events", rows.display()));
        command
    }

    pub fn read(&self) -> Command {
        let mut command = self.command();
        command.arg(
            "SELECT json_object('id', id, 'created_at', created_at, 'source', source, 'type', type, \
             'subtype', subtype, 'content', content) FROM events ORDER BY id",
        );
        command
    }
}

/// A static program that does nothing but overwrite bytes of a file and sync them.
pub struct Floor {
    program: PathBuf,
    file: PathBuf,
    bytes: String,
}

impl Floor {
    const SOURCE: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    size_t size = atol(words[2]);
    int file = open(words[1], O_WRONLY | O_CLOEXEC);
    char *bytes = malloc(size);
    return !(file >= 0 && bytes && pwrite(file, bytes, size, 0) == (ssize_t)size && fdatasync(file) == 0);
}
"#;

    pub fn new(place: &Place, bytes: u64) -> Floor {
        let (source, program, file) = (place.path("floor.c"), place.path("floor"), place.path("bytes"));
        std::fs::write(&source, Self::SOURCE).expect("the source is written");
        run(Command::new("cc").args(["-O2", "-static", "-o"]).arg(&program).arg(&source));
        let floor = Floor { program, file, bytes: bytes.to_string() };
        // Its blocks are there.
        std::fs::write(&floor.file, vec![1; usize::try_from(bytes).unwrap_or(0)])
            .expect("the file is written");
        run(&mut floor.command());
        floor
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(&self.file).arg(&self.bytes).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

/// A Redis server of our own that syncs every write.
pub struct Redis {
    server: Child,
    socket: PathBuf,
}

impl Redis {
    pub fn start(place: &Place) -> Redis {
        let dir = place.path("redis");
        std::fs::create_dir_all(&dir).expect("a folder for redis");
        let socket = dir.join("socket");
        let server = Command::new("redis-server")
            .args(["--port", "0", "--appendonly", "yes", "--appendfsync", "always", "--save", ""])
            .arg("--unixsocket")
            .arg(&socket)
            .arg("--dir")
            .arg(&dir)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server starts");
        let redis = Redis { server, socket };
        let began = Instant::now();
        while !redis.command(["ping"]).status().expect("redis-cli runs").success() {
            assert!(began.elapsed() < Duration::from_secs(30), "redis-server does not answer");
        }
        redis
    }

    pub fn command<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new("redis-cli");
        command.arg("-s").arg(&self.socket).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
    }
}
