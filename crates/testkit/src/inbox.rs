//! The thread of a world.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;

use rusqlite::Connection;
use serde_json::Value;

use crate::postgres::server;
use crate::processes::{is_running, kill_and_wait};
use crate::{PATIENCE, Run, World, program, wait_until};

impl World {
    /// A world that contains a thread. With `THREAD_TEST_STORE=postgres` it is in PostgreSQL, for the tests
    /// that `tests/cli/on_postgres.txt` lists: those that are not about files and start no handlers.
    pub fn with_thread() -> World {
        let mut world = World::new();
        if std::env::var("THREAD_TEST_STORE").is_ok_and(|store| store == "postgres") {
            let server = server().expect("PostgreSQL is installed");
            program("thread-postgres");
            world.location = Some(server.location());
        }
        let location = world.location.clone().unwrap_or_else(|| "inbox".to_owned());
        world.thread(["init", &location]).ok();
        world
    }

    /// What `THREAD_DIR` is set to.
    pub(crate) fn location(&self) -> OsString {
        self.location.clone().map_or_else(|| self.inbox().into(), OsString::from)
    }

    /// The thread's directory.
    pub fn inbox(&self) -> PathBuf {
        self.root().join("inbox")
    }

    /// The binary with these arguments, in the world's folder, with `THREAD_DIR` set to the inbox.
    pub fn thread<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Run {
        self.run(program("thread")).args(args).env("THREAD_DIR", self.location())
    }

    /// Like [`World::thread`], but with the notifier off, so no handler is started.
    pub fn off<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Run {
        self.thread(args).env("THREAD_NOTIFIER", "off")
    }

    /// Subscribes a consumer `agent` with the handler that `thread guide` prints for `language`, by
    /// running the commands at the top of that page. Prints a skip notice and returns false if the
    /// machine lacks the language.
    pub fn agent_of_the_guide(&self, language: &str) -> bool {
        let needed = match language {
            "bash" => "jq",
            "python" => "python3",
            other => other,
        };
        if !self.tool(needed) {
            return false;
        }
        let page = self.thread(["guide", "--handler", language]).quiet();
        let lines = page.lines().map(|line| line.trim_start_matches(['#', '/', ' ']));
        let commands: Vec<&str> = lines.skip_while(|line| !line.starts_with("thread ")).take(3).collect();
        let script = commands.join("\n");
        assert_eq!(self.sh(&script).quiet(), "agent\n", "{script}");
        true
    }

    /// Pushes one message from `self` and returns its id.
    pub fn push(&self, content: &str) -> i64 {
        self.thread(["push", "--source", "self", "--type", "message", "--content", content])
            .ok()
            .trim()
            .parse()
            .unwrap()
    }

    /// Subscribes a consumer whose handler is never started: the test itself reads for it.
    pub fn idle_consumer(&self, name: &str, filter: &str) {
        self.off(["subscribe", "--consumer", name, "--handler", "true", "--filter", filter]).quiet();
    }

    /// Subscribes a consumer with these additional options. If it stalls, it does not try again by itself, unless they
    /// say so: a test sees that nothing is running any more.
    #[track_caller]
    pub fn subscribe(&self, consumer: &str, handler: &str, options: &[&str]) {
        let base = ["subscribe", "--consumer", consumer, "--handler", handler];
        let probe: &[&str] = if options.contains(&"--probe") { &[] } else { &["--probe", "never"] };
        self.thread(base.iter().chain(options).chain(probe)).ok();
    }

    /// The thread's database, opened directly and not through the binary.
    pub fn db(&self) -> Connection {
        let conn = Connection::open(self.inbox().join("events.db")).unwrap();
        conn.busy_timeout(PATIENCE).unwrap();
        conn
    }

    /// One number from the database.
    pub fn query(&self, sql: &str) -> i64 {
        if let Some(location) = &self.location {
            // Its schema has no other thread.
            let schema = location.split_once("schema=").and_then(|(_, rest)| rest.split_once('#')).unwrap().0;
            let sql = sql.replace("consumer_progress", "cursors").replace("subscriptions", "consumers");
            return server().unwrap().psql(&format!("SET search_path = {schema}; {sql}")).parse().unwrap();
        }
        self.db().query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// The entry of one consumer in `info --json`.
    pub fn consumer(&self, name: &str) -> Value {
        let info: Value = serde_json::from_str(&self.thread(["info", "--json"]).ok()).unwrap();
        let all = info["subscriptions"].as_array().unwrap().iter();
        all.clone()
            .find(|s| s["consumer_id"] == name)
            .unwrap_or_else(|| panic!("no {name} in {info}"))
            .clone()
    }

    /// The consumer's state as reported by `info`.
    pub fn state(&self, consumer: &str) -> String {
        self.consumer(consumer)["state"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub fn wait_for_state(&self, consumer: &str, state: &str) {
        self.wait_until(&format!("{consumer} to be {state}"), || self.state(consumer) == state);
    }

    /// A field of a consumer's recorded run state, as a JSON path into `model::run::RunState`, such
    /// as `$.supervisor.pid`. Null if it is not set.
    pub fn run_state(&self, consumer: &str, field: &str) -> Value {
        let sql = "SELECT coalesce(run, '{}') -> ?2 FROM consumers WHERE consumer_id = ?1";
        let json: Option<String> =
            self.db().query_row(sql, [consumer, field], |row| row.get(0)).unwrap_or_default();
        json.map_or(Value::Null, |json| serde_json::from_str(&json).unwrap())
    }

    /// Overwrites such a field; no process is notified.
    pub fn set_run_state(&self, consumer: &str, field: &str, value: impl Into<Value>) {
        let sql =
            "UPDATE consumers SET run = json_set(coalesce(run, '{}'), ?2, json(?3)) WHERE consumer_id = ?1";
        let changed = self.db().execute(sql, [consumer, field, &value.into().to_string()]).unwrap();
        assert_eq!(changed, 1, "no consumer {consumer}");
    }

    /// The process that attends to the waits of the thread, if there is one.
    pub fn timer(&self) -> Option<u32> {
        let signed = fs::read_to_string(self.inbox().join("run/_timer.lock")).ok()?;
        let pid = serde_json::from_str::<Value>(&signed).ok()?["pid"].as_u64()?;
        u32::try_from(pid).ok().filter(|pid| is_running(*pid))
    }

    /// Kills the supervisor of a consumer, or what attends to its wait, as a crash would, and waits until it is gone.
    #[track_caller]
    pub fn kill_supervisor(&self, consumer: &str) {
        let mut pid = 0;
        // Between a run and the wait after it, there is none for a moment.
        wait_until(&format!("{consumer} to have a supervisor"), || {
            let supervisor = self.run_state(consumer, "$.supervisor.pid").as_u64();
            pid = supervisor.map(|pid| pid as u32).or_else(|| self.timer()).unwrap_or(0);
            pid != 0
        });
        kill_and_wait(pid);
    }

    /// All lines of the JSONL log: the sealed files by name, then the current one. For a thread that is not in a
    /// directory, the events.
    pub fn jsonl(&self) -> Vec<String> {
        if self.location.is_some() {
            return self.table_as_jsonl();
        }
        let mut rotated: Vec<PathBuf> = fs::read_dir(self.inbox())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("events-"))
            .collect();
        rotated.sort();
        rotated.push(self.inbox().join("events.jsonl"));
        let text: String = rotated.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        assert!(text.is_empty() || text.ends_with('\n'), "the log ends in a torn line");
        text.lines().map(str::to_owned).collect()
    }

    /// The expected JSONL log: the table's rows, converted to JSON independently of the binary.
    pub fn table_as_jsonl(&self) -> Vec<String> {
        if self.location.is_some() {
            // No other command prints all events there.
            let all = self.thread(["peek", "--last-event-id", "0", "--limit", "1000000"]).ok();
            return all.lines().map(str::to_owned).collect();
        }
        let conn = self.db();
        // The earlier implementation's schema has no such column until a command upgrades it.
        let metadata = if conn.prepare("SELECT metadata FROM events").is_ok() { "metadata" } else { "NULL" };
        let sql = format!(
            "SELECT id, created_at, source, type, subtype, content, {metadata} FROM events ORDER BY id"
        );
        let mut statement = conn.prepare(&sql).unwrap();
        let rows = statement.query_map([], |row| {
            let text = |column| row.get::<_, Option<String>>(column);
            let json = |text: Option<String>| serde_json::to_string(&text).unwrap();
            let metadata = text(6)?.map_or(String::new(), |object| format!(",\"metadata\":{object}"));
            Ok(format!(
                "{{\"id\":{},\"created_at\":{},\"source\":{},\"type\":{},\"subtype\":{},\"content\":{}{metadata}}}",
                row.get::<_, i64>(0)?,
                json(text(1)?),
                json(text(2)?),
                json(text(3)?),
                json(text(4)?),
                json(text(5)?)
            ))
        });
        rows.unwrap().map(Result::unwrap).collect()
    }

    /// Fails unless the log matches the table exactly.
    pub fn assert_log_is_exact(&self) {
        if self.location.is_some() {
            return;
        }
        let (copy, table) = (self.jsonl(), self.table_as_jsonl());
        if copy != table {
            let at = copy.iter().zip(&table).position(|(a, b)| a != b).unwrap_or(copy.len().min(table.len()));
            panic!(
                "the log ({} lines) is not the table ({} rows); first difference at line {}:\nlog:   {:?}\ntable: {:?}",
                copy.len(),
                table.len(),
                at + 1,
                copy.get(at),
                table.get(at)
            );
        }
    }

    /// The lines of `thread.log` without their timestamps.
    pub fn log(&self) -> Vec<String> {
        let text = self.read("inbox/logs/thread.log");
        text.lines().map(|line| line.split_once("] ").map_or(line, |(_, rest)| rest).to_owned()).collect()
    }
}

/// The ids of NDJSON lines.
pub fn ids(ndjson: &str) -> Vec<i64> {
    ndjson.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].as_i64().unwrap()).collect()
}

/// Puts a handler `take` on `PATH`. It pops until nothing is left, acknowledges what it popped, and
/// appends the ids to `seen.<consumer>`.
pub fn take_all_script(world: &World) {
    world.script(
        "bin/take",
        "last=$THREAD_LAST_ACKED_ID\n\
         while events=$(thread pop --consumer \"$THREAD_CONSUMER\" --last-event-id \"$last\") && [ -n \"$events\" ]; do\n\
             ids=$(printf '%s\\n' \"$events\" | sed 's/^{\"id\":\\([0-9]*\\),.*/\\1/')\n\
             printf '%s\\n' \"$ids\" >>\"seen.$THREAD_CONSUMER\"\n\
             last=${ids##*[!0-9]}\n\
         done",
    );
}

/// Subscribes a consumer that handles every event; see [`take_all_script`].
pub fn take_all(world: &World, consumer: &str) {
    take_all_script(world);
    world.thread(["subscribe", "--handler", "take", "--consumer", consumer]).quiet();
}
