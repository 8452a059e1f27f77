//! Records every state that is stored, as it is committed, without touching anything: from the database's write-ahead
//! log.
//!
//! As long as a reader has an old state open, SQLite neither overwrites nor removes what is in the log, so at the end it
//! has all commits since then, in their order. Each is applied to a copy of the database, and read.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// A reader that keeps the log, and what was stored when it began.
pub struct Recorder {
    db: PathBuf,
    base: Vec<u8>,
    salt: Vec<u8>,
    /// The length of the log at the beginning.
    known: usize,
    _reader: Connection,
}

impl Recorder {
    /// Nobody may write to the database meanwhile.
    pub fn begin(db: &Path) -> Recorder {
        let reader = Connection::open(db).unwrap();
        // The log must not be empty, or it could be begun again.
        let version: i64 = reader.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
        reader.pragma_update(None, "user_version", version).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema").unwrap();
        let log = fs::read(log_of(db)).unwrap();
        assert!(log.len() > HEADER);
        Recorder {
            db: db.to_owned(),
            base: fs::read(db).unwrap(),
            salt: log[16..24].to_vec(),
            known: log.len(),
            _reader: reader,
        }
    }

    /// Calls `read` with each state, in the order of the commits: first that of the beginning.
    pub fn replay(self, read: &mut dyn FnMut(&Connection)) {
        let log = fs::read(log_of(&self.db)).unwrap();
        assert!(log.len() > self.known && log[16..24] == self.salt, "the log was begun again");
        let copy = self.db.with_extension("replayed");
        let file = File::create(&copy).unwrap();
        file.write_all_at(&self.base, 0).unwrap();
        let mut conn = None;
        for (number, commit) in (1_u32..).zip(Commits::new(&log)) {
            for (page, bytes) in &commit.pages {
                let at = (*page - 1) * bytes.len();
                file.write_all_at(bytes, at as u64).unwrap();
            }
            // Without a log; and so that the reader notices the change.
            file.write_all_at(&[1, 1], 18).unwrap();
            for at in [24, 92] {
                file.write_all_at(&number.to_be_bytes(), at).unwrap();
            }
            if commit.end >= self.known {
                let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
                let conn = conn.get_or_insert_with(|| Connection::open_with_flags(&copy, flags).unwrap());
                read(conn);
            }
        }
        drop(conn);
        fs::remove_file(copy).unwrap();
    }
}

fn log_of(db: &Path) -> PathBuf {
    db.with_extension("db-wal")
}

/// The pages that a transaction has changed, with their numbers, and where it ends in the log.
struct Commit<'l> {
    pages: Vec<(usize, &'l [u8])>,
    end: usize,
}

/// The transactions of a log. What was not committed in the end is left out: SQLite overwrites that, unless it is at the
/// end, where the sums do not fit together.
struct Commits<'l> {
    log: &'l [u8],
    at: usize,
    sums: (u32, u32),
    page_size: usize,
    big_endian: bool,
}

impl Commits<'_> {
    fn new(log: &[u8]) -> Commits<'_> {
        let mut commits = Commits {
            log,
            at: HEADER,
            sums: (0, 0),
            page_size: number(log, 8) as usize,
            big_endian: log[3] & 1 == 1,
        };
        commits.add(&log[..24]);
        assert_eq!(commits.sums, (number(log, 24), number(log, 28)), "the header of the log");
        commits
    }

    /// Adds to the running sums of the log.
    fn add(&mut self, bytes: &[u8]) {
        let word = |bytes: [u8; 4]| match self.big_endian {
            true => u32::from_be_bytes(bytes),
            false => u32::from_le_bytes(bytes),
        };
        let (mut first, mut second) = self.sums;
        for pair in bytes.chunks_exact(8) {
            first = first.wrapping_add(word([pair[0], pair[1], pair[2], pair[3]])).wrapping_add(second);
            second = second.wrapping_add(word([pair[4], pair[5], pair[6], pair[7]])).wrapping_add(first);
        }
        self.sums = (first, second);
    }
}

impl<'l> Iterator for Commits<'l> {
    type Item = Commit<'l>;

    fn next(&mut self) -> Option<Commit<'l>> {
        let mut pages = Vec::new();
        loop {
            let header = self.log.get(self.at..self.at + FRAME_HEADER)?;
            let body = self.log.get(self.at + FRAME_HEADER..self.at + FRAME_HEADER + self.page_size)?;
            self.add(&header[..8]);
            self.add(body);
            if header[8..16] != self.log[16..24] || self.sums != (number(header, 16), number(header, 20)) {
                return None;
            }
            self.at += FRAME_HEADER + self.page_size;
            pages.push((number(header, 0) as usize, body));
            if number(header, 4) > 0 {
                return Some(Commit { pages, end: self.at });
            }
        }
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
