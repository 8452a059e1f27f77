//! A worker asks once a second for the changes of all its threads at once, and misses none.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};
use thread::model::location::Location;
use thread::store::{Changed, Changes};
use thread_postgres::SCHEME;
use thread_testkit::postgres::{Options, Server};
use thread_testkit::{preload, wait_until};

use crate::machine::Machine;

fn connect(server: &Server, user: &str) -> Client {
    let url = format!("host={} port={} user={user} dbname=postgres", server.dir.display(), server.port);
    Client::connect(&url, NoTls).unwrap()
}

/// A schema on a server of its own, as other transactions on it would make a difference.
struct World {
    server: Server,
    machine: Machine,
}

impl World {
    fn new() -> Option<World> {
        let server = Server::start()?;
        let machine = Machine::new(&server.location_of("s", "a"));
        Some(World { server, machine })
    }

    fn with_threads(names: &[&str]) -> Option<World> {
        let world = World::new()?;
        names.iter().for_each(|name| world.init(name));
        Some(world)
    }

    fn location(&self, name: &str) -> String {
        self.server.location_of("s", name)
    }

    fn init(&self, name: &str) {
        self.machine.ok(&["init", &self.location(name)]);
    }

    /// Executes a command about the thread.
    fn ok(&self, name: &str, args: &[&str]) -> String {
        let location = self.location(name);
        self.machine.ok(&[&args[..1], &["-t", &location], &args[1..]].concat())
    }

    /// Asks for the changes of the schema, or of the threads with these names.
    fn changes(&self, names: &[&str]) -> Box<dyn Changes> {
        let whole = self.location("a").replace("#a", "");
        let named = names.iter().map(|name| self.location(name));
        let all: Vec<Location> = match names.is_empty() {
            true => vec![Location::from(whole)],
            false => named.map(Location::from).collect(),
        };
        let mut changes = (SCHEME.changes)(&all);
        assert_eq!((changes.len(), changes[0].0.len()), (1, all.len()));
        changes.remove(0).1
    }
}

/// The names of the threads, and with an asterisk, if they are all.
fn said(Changed { threads, is_everything }: Changed) -> String {
    let name =
        |location: &Location| location.as_os_str().to_str().unwrap().split_once('#').unwrap().1.to_owned();
    let names: BTreeSet<String> = threads.iter().map(name).collect();
    assert_eq!(names.len(), threads.len());
    let names: Vec<String> = names.into_iter().collect();
    names.join(" ") + if is_everything { "*" } else { "" }
}

fn ask(changes: &mut Box<dyn Changes>) -> String {
    said(changes.ask().unwrap())
}

#[test]
fn each_change_that_can_make_something_due_is_said_once() {
    let Some(world) = World::with_threads(&["a", "b", "c"]) else { return };
    let (mut all, mut one) = (world.changes(&[]), world.changes(&["b", "missing"]));
    assert_eq!((ask(&mut all), ask(&mut one)), ("a b c*".to_owned(), "b*".to_owned()));
    let mut finds = |what: &str, name: &str| {
        assert_eq!(ask(&mut all), name, "{what}");
        assert_eq!(ask(&mut one), if name == "b" { name } else { "" }, "{what}");
        assert_eq!((ask(&mut all), ask(&mut one)), (String::new(), String::new()), "{what}");
    };
    finds("nothing", "");
    let steps: [&[&str]; 13] = [
        &["push", "x"],
        &["subscribe", "bot", "exit 1", "--deliver", "stdin", "--max-attempts", "1"],
        &["pause", "bot"],
        &["resume", "bot"],
        &["ack", "bot", "1"],
        &["seek", "bot", "0"],
        &["push", "--in", "1h", "x"],
        &["push", "--in", "1h", "x"],
        &["schedule", "add", "hourly", "--every", "1h", "x"],
        &["config", "retention.events", "5"],
        &["config", "retention.events", "6"],
        &["subscribe", "pool", "cat", "--deliver", "stdin", "--concurrency", "2"],
        &["subscribe", "pool", "cat", "--deliver", "stdin", "--concurrency", "3", "--replace"],
    ];
    for step in steps {
        for name in ["a", "b"] {
            world.ok(name, step);
            finds(&step.join(" "), name);
        }
    }
    world.ok("b", &["unsubscribe", "pool"]);
    world.ok("b", &["dispatch"]);
    let given_back = "SELECT (SELECT count(*) FROM s.dead_letters), (SELECT count(holder) FROM s.leases)";
    wait_until("the dead letter", || world.server.psql(given_back) == "1|0");
    assert_eq!(ask(&mut all), "b");
    world.ok("b", &["dead", "retry", "bot", "--all"]);
    assert_eq!(ask(&mut all), "b");
}

#[test]
fn a_transaction_that_ends_after_a_newer_one_is_not_missed() {
    let Some(world) = World::with_threads(&["a", "b", "c"]) else { return };
    let mut all = world.changes(&[]);
    assert_eq!(ask(&mut all), "a b c*");
    let push = |name: &str| {
        format!(
            "UPDATE s.counters SET newest = newest + 1 WHERE thread = (SELECT thread FROM s.threads WHERE name = '{name}')"
        )
    };
    let (mut first, mut second) = (connect(&world.server, "postgres"), connect(&world.server, "postgres"));
    first.batch_execute("BEGIN; SELECT pg_current_xact_id()").unwrap();
    second.batch_execute(&push("b")).unwrap();
    assert_eq!(ask(&mut all), "b");
    // It is among what is asked for as long as the older transaction is in progress.
    assert_eq!(ask(&mut all), "");
    second.batch_execute(&push("b")).unwrap();
    assert_eq!(ask(&mut all), "b");
    // A transaction within it has a number that no snapshot shows.
    first.batch_execute(&format!("SAVEPOINT x; {}; RELEASE x", push("a"))).unwrap();
    second.batch_execute(&push("c")).unwrap();
    assert_eq!((ask(&mut all), ask(&mut all)), ("c".to_owned(), String::new()));
    first.batch_execute("COMMIT").unwrap();
    assert_eq!((ask(&mut all), ask(&mut all)), ("a".to_owned(), String::new()));
    // What is undone is not reported.
    first.batch_execute(&format!("BEGIN; {}; ROLLBACK", push("a"))).unwrap();
    assert_eq!(ask(&mut all), "");
}

#[test]
fn a_schema_is_made_grows_and_is_dropped_and_a_server_crashes() {
    let Some(world) = World::new() else { return };
    let mut all = world.changes(&[]);
    assert_eq!((ask(&mut all), ask(&mut all)), ("*".to_owned(), String::new()));
    world.init("a");
    assert_eq!((ask(&mut all), ask(&mut all)), ("a".to_owned(), String::new()));
    world.init("b");
    assert_eq!((ask(&mut all), ask(&mut all)), ("b".to_owned(), String::new()));
    world.server.psql("DELETE FROM s.threads WHERE name = 'b'; UPDATE s.counters SET newest = newest");
    assert_eq!((ask(&mut all), ask(&mut all)), ("a".to_owned(), String::new()));
    world.server.order("kill");
    assert!(all.ask().is_err() && all.ask().is_err());
    world.server.order("start");
    assert_eq!((ask(&mut all), ask(&mut all)), ("a*".to_owned(), String::new()));
    // A lost connection is enough: what was not synced may be lost with it.
    let ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                WHERE query LIKE '%pg_current_snapshot%' AND pid <> pg_backend_pid()";
    world.server.psql(ends);
    assert!(all.ask().is_err());
    assert_eq!((ask(&mut all), ask(&mut all)), ("a*".to_owned(), String::new()));
    world.server.psql("DROP SCHEMA s CASCADE");
    assert_eq!(ask_again(&mut all), "*");
    world.init("c");
    assert_eq!(ask(&mut all), "c");
}

/// The tables may be gone while they are asked for.
fn ask_again(changes: &mut Box<dyn Changes>) -> String {
    match changes.ask() {
        Ok(changed) => said(changed),
        Err(_) => ask(changes),
    }
}

#[test]
fn a_role_without_rights_is_refused_and_hears_all_once_it_has_them() {
    let Some(world) = World::with_threads(&["a"]) else { return };
    world.server.psql(
        "CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA s TO reader; GRANT SELECT ON s.threads TO reader",
    );
    let location = world.location("a").replace("user=postgres", "user=reader");
    let mut one = (SCHEME.changes)(&[Location::from(location)]).remove(0).1;
    let refused = one.ask().unwrap_err().to_string();
    assert!(refused.contains("permission denied"), "{refused}");
    world.server.psql("GRANT SELECT ON ALL TABLES IN SCHEMA s TO reader");
    assert_eq!((ask(&mut one), ask(&mut one)), ("a*".to_owned(), String::new()));
    // A table that is not needed.
    world.ok("a", &["config", "retention.events", "5"]);
    assert_eq!(ask(&mut one), "");
    world.ok("a", &["push", "x"]);
    assert_eq!((ask(&mut one), ask(&mut one)), ("a".to_owned(), String::new()));
}

#[test]
fn a_lease_that_is_not_renewed_is_said_when_it_is_over() {
    let Some(world) = World::with_threads(&["a", "b"]) else { return };
    let mut all = world.changes(&[]);
    assert_eq!(ask(&mut all), "a b*");
    let lease = |thread: &str, renewal: u32| {
        world.server.psql(&format!(
            "INSERT INTO s.leases (thread, consumer_id, epoch, renewal, holder, host, length_ms) \
             SELECT thread, 'bot', 1, {renewal}, 'other', 'other', 1500 FROM s.threads WHERE name = '{thread}' \
             ON CONFLICT (thread, consumer_id) DO UPDATE SET renewal = {renewal}, holder = 'other'"
        ));
    };
    let began = Instant::now();
    lease("a", 1);
    lease("b", 1);
    assert_eq!(ask(&mut all), "");
    world.server.psql(
        "UPDATE s.leases SET holder = NULL WHERE thread = (SELECT thread FROM s.threads WHERE name = 'b')",
    );
    assert_eq!(ask(&mut all), "b");
    let renewed = Instant::now();
    lease("a", 2);
    let mut said = String::new();
    wait_until("its end", || {
        said = ask(&mut all);
        std::thread::sleep(Duration::from_millis(20));
        !said.is_empty()
    });
    assert_eq!((said.as_str(), ask(&mut all).as_str()), ("a", ""));
    assert!(renewed.elapsed() >= Duration::from_millis(1500), "{:?}", began.elapsed());
}

#[test]
fn a_lease_is_over_though_an_old_transaction_is_in_progress() {
    let Some(world) = World::with_threads(&["a", "b"]) else { return };
    // As long as it is, what has changed since is among what is asked for.
    let mut old = connect(&world.server, "postgres");
    old.batch_execute("BEGIN; SELECT pg_current_xact_id()").unwrap();
    let mut all = world.changes(&[]);
    assert_eq!(ask(&mut all), "a b*");
    world.server.psql(
        "INSERT INTO s.leases (thread, consumer_id, epoch, renewal, holder, host, length_ms) \
         SELECT thread, 'bot', 1, 1, 'other', 'other', 1500 FROM s.threads WHERE name = 'a'",
    );
    let taken = Instant::now();
    assert_eq!(ask(&mut all), "");
    let mut other = connect(&world.server, "postgres");
    let mut said = String::new();
    wait_until("its end", || {
        other.batch_execute("SELECT pg_current_xact_id()").unwrap();
        said = ask(&mut all);
        std::thread::sleep(Duration::from_millis(20));
        !said.is_empty()
    });
    assert_eq!(said, "a");
    assert!(taken.elapsed() >= Duration::from_millis(1500), "{:?}", taken.elapsed());
}

/// The way to a server on which answers may be delayed.
struct Way {
    dir: tempfile::TempDir,
    delay_ms: Arc<AtomicU64>,
}

impl Way {
    fn to(server: &Server) -> Way {
        // Not in `TMPDIR`, whose path may be longer than a socket's can be.
        let dir = tempfile::Builder::new().prefix("way").tempdir_in("/tmp").unwrap();
        let name = format!(".s.PGSQL.{}", server.port);
        let (listener, own) = (UnixListener::bind(dir.path().join(&name)).unwrap(), server.dir.join(name));
        let delay_ms = Arc::<AtomicU64>::default();
        let delay = Arc::clone(&delay_ms);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = UnixStream::connect(&own) else { continue };
                let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                let delay = Arc::clone(&delay);
                std::thread::spawn(move || pass_late(server, client, &delay));
            }
        });
        Way { dir, delay_ms }
    }

    fn delay_answers(&self, by: Duration) {
        self.delay_ms.store(by.as_millis() as u64, Ordering::SeqCst);
    }
}

fn pass_late(mut from: UnixStream, mut to: UnixStream, delay_ms: &AtomicU64) {
    let mut bytes = [0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        std::thread::sleep(Duration::from_millis(delay_ms.load(Ordering::SeqCst)));
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
}

/// All threads, once. On a busy machine, any answer may be late.
fn all_are_said(changes: &mut Box<dyn Changes>) {
    let mut said = String::new();
    wait_until("all threads", || {
        said = ask(changes);
        !said.is_empty()
    });
    assert_eq!((said.as_str(), ask(changes).as_str()), ("a b*", ""));
}

#[test]
fn all_threads_are_looked_at_if_the_servers_clock_was_set_but_not_if_an_answer_is_late() {
    let Some(library) = preload::library() else { return };
    let Some(server) = Server::start_with(&Options { clock: Some((library, 0)), ..Options::default() })
    else {
        return;
    };
    let clock = preload::Clock::new(server.dir.join("clock"));
    let machine = Machine::new(&server.location_of("s", "a"));
    let world = World { server, machine };
    ["a", "b"].iter().for_each(|name| world.init(name));
    let way = Way::to(&world.server);
    let whole = world.location("a").replace("#a", "");
    let whole = whole.replace(world.server.dir.to_str().unwrap(), way.dir.path().to_str().unwrap());
    let mut all = (SCHEME.changes)(&[Location::from(whole)]).remove(0).1;
    assert_eq!((ask(&mut all), ask(&mut all)), ("a b*".to_owned(), String::new()));
    // A second and more, as of a server that has much to do.
    way.delay_answers(Duration::from_millis(1300));
    assert_eq!(ask(&mut all), "");
    world.ok("b", &["push", "x"]);
    assert_eq!(ask(&mut all), "b");
    way.delay_answers(Duration::ZERO);
    assert_eq!(ask(&mut all), "");
    clock.step(30);
    all_are_said(&mut all);
    // It is noticed with the next answer that is not late.
    way.delay_answers(Duration::from_millis(1300));
    clock.step(0);
    assert_eq!(ask(&mut all), "");
    way.delay_answers(Duration::ZERO);
    all_are_said(&mut all);
}

/// A server that logs its statements.
fn talkative() -> Option<Server> {
    let settings = ["log_min_messages=log", "log_statement=all"];
    Server::start_with(&Options { settings: &settings, ..Options::default() })
}

/// Waits until nothing asks the server more often than twice a second in all, and counts for some seconds.
fn asks_twice_a_second(server: &Server) {
    let logged = || {
        let log = fs::read_to_string(server.dir.join("log")).unwrap();
        log.lines().filter(|line| line.contains(" execute ") || line.contains(" statement: ")).count()
    };
    let mut before = logged();
    wait_until("it to be quiet", || {
        std::thread::sleep(Duration::from_secs(1));
        let now = logged();
        let is_quiet = now - before <= 4;
        before = now;
        is_quiet
    });
    let (began, before) = (Instant::now(), logged());
    std::thread::sleep(Duration::from_secs(5));
    let (count, seconds) = (logged() - before, began.elapsed().as_secs_f64());
    println!("{count} statements in {seconds:.1} s");
    assert!((3.0..=2.0 * seconds + 4.0).contains(&(count as f64)), "{count} statements in {seconds:.1} s");
}

/// Stores an event as another program does, which announces nothing. `of`: a condition for the thread, with the first event.
fn insert_second(server: &Server, of: &str) {
    server.psql(&format!(
        "BEGIN; UPDATE s.counters SET newest = 2 WHERE {of}; INSERT INTO s.events \
         SELECT thread, 2, created_at, source, type, subtype, content, metadata, NULL FROM s.events WHERE {of}; COMMIT"
    ));
}

#[test]
fn a_worker_of_many_threads_asks_once_a_second_for_all() {
    let Some(server) = talkative() else { return };
    let location = server.location_of("s", "inbox");
    let whole = location.replace("#inbox", "");
    let mut machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    machine.ok(&["subscribe", "bot", "cat >>out", "--deliver", "stdin"]);
    server.psql(
        "WITH made AS (INSERT INTO s.threads (name) SELECT 't' || n FROM generate_series(1, 300) AS n RETURNING thread), \
         counted AS (INSERT INTO s.counters (thread) SELECT thread FROM made) \
         INSERT INTO s.consumers (thread, consumer_id, handler_cmd, options, run) \
         SELECT made.thread, c.consumer_id, c.handler_cmd, c.options, c.run FROM made, s.consumers AS c",
    );
    // Without a process that listens, which is not needed for this.
    machine.start_worker(&["--thread", &whole]);
    machine.ok(&["push", "x"]);
    let out = machine.path("out");
    let handled = |count: usize| fs::read_to_string(&out).is_ok_and(|text| text.lines().count() == count);
    wait_until("the first event", || handled(1));
    // Until each thread was looked at, and the last supervisor is gone.
    asks_twice_a_second(&server);
    insert_second(&server, "thread = 1");
    wait_until("the second event", || handled(2));
    machine.ok(&["push", "--in", "1s", "x"]);
    wait_until("the third event", || handled(3));
    machine.ok(&["push", "x", "-t", &location.replace("#inbox", "#t7")]);
    assert_eq!(machine.end_worker(), Some(0));
}

#[test]
fn idle_handlers_that_are_kept_are_asked_for_with_all_others() {
    let Some(server) = talkative() else { return };
    let names: Vec<String> = (1..=8).map(|n| format!("t{n}")).collect();
    let location = |name: &str| server.location_of("s", name);
    let mut machine = Machine::new(&location("t1"));
    let handler = "tee -a out | sed -u 's/.*\"id\":\\([0-9]*\\).*/{\"ack\":\\1}/'";
    for name in &names {
        let location = location(name);
        machine.ok(&["init", &location]);
        let kept = ["--deliver", "ndjson", "--concurrency", "2"];
        machine.ok(&[&["subscribe", "-t", &location, "bot", handler][..], &kept].concat());
    }
    machine.start_worker(&["--thread", &location("").replace('#', "")]);
    names.iter().for_each(|name| drop(machine.ok(&["push", "-t", &location(name), "x"])));
    let out = machine.path("out");
    let handled = |count: usize| fs::read_to_string(&out).is_ok_and(|text| text.lines().count() == count);
    wait_until("the first events", || handled(8));
    asks_twice_a_second(&server);
    // They are kept.
    assert!(names.iter().all(|name| machine.ok(&["info", "-t", &location(name)]).contains("state: running")));
    insert_second(&server, "thread = (SELECT thread FROM s.threads WHERE name = 't5')");
    wait_until("the event that nobody announced", || handled(9));
    machine.ok(&["stop", "-t", &location("t5"), "bot"]);
}
