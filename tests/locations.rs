//! A thread that is not in a directory works like any other: the store in memory under its own scheme, with
//! supervisors, a worker and `stop`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use thread::maintenance::prune::{Held, HeldBy};
use thread::maintenance::{backup, doctor, prune};
use thread::model::location::Location;
use thread::model::run::{Deliver, Options, Phase, StopRequest};
use thread::model::subscription::{ConsumerId, NewSubscription};
use thread::queue::NewThread;
use thread::queue::locations::{self, Scheme};
use thread::run::launcher::LEASE;
use thread::run::scope::Scope;
use thread::run::shutdown::Shutdown;
use thread::run::starter::News;
use thread::run::stop::{Stopped, stop};
use thread::run::worker::follow;
use thread::run::{Launcher, WakeBy, dispatch, supervisor};
use thread::store::Store;
use thread::{Error, NewEvent, Queue, Result};
use thread_testkit::store::SharedStore;
use thread_testkit::{PATIENCE, quoted, wait_until};

/// All threads of the scheme.
static STORES: Mutex<BTreeMap<Location, SharedStore>> = Mutex::new(BTreeMap::new());

fn base(location: &Location) -> Result<PathBuf> {
    // `memory://<base>#<name>`
    let text = location.as_os_str().to_str().unwrap().strip_prefix("memory://").unwrap();
    Ok(PathBuf::from(text.replace('#', "/")))
}

fn open(location: &Location, _: Duration) -> Result<Box<dyn Store>> {
    let stores = STORES.lock().unwrap();
    let found = stores.get(location).ok_or_else(|| Error::NotAThread(location.as_os_str().into()))?;
    Ok(Box::new(found.clone()))
}

fn init(location: &Location) -> Result<()> {
    STORES.lock().unwrap().insert(location.clone(), SharedStore::new(before));
    Ok(())
}

/// What happens once, before the next operation of that name.
type Happens = (&'static str, Box<dyn FnOnce()>);

thread_local! {
    static HAPPENS: RefCell<Option<Happens>> = const { RefCell::new(None) };
}

fn before(operation: &'static str) {
    let due = HAPPENS.with(|happens| happens.borrow_mut().take_if(|(name, _)| *name == operation));
    if let Some((_, happens)) = due {
        happens();
    }
}

/// A new thread in memory. A supervisor reaps all children of its process, so there is one test at a time.
struct World {
    dir: TempDir,
    location: Location,
    queue: Queue,
    _alone: MutexGuard<'static, ()>,
}

impl World {
    fn new() -> World {
        static ALONE: Mutex<()> = Mutex::new(());
        static ONCE: Once = Once::new();
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        ONCE.call_once(|| {
            locations::add(Scheme {
                name: "memory",
                base,
                open,
                init,
                threads: |_| None,
                changes: |_| Vec::new(),
                listen: |_| {},
                leave: || {},
                spare: || {},
            })
        });
        let dir = tempfile::tempdir().unwrap();
        let location = Location::from(format!("memory://{}#inbox", dir.path().display()));
        assert_eq!(locations::create(&location, NewThread::default()).unwrap(), location);
        let queue = Queue::open(&location).unwrap();
        World { dir, location, queue, _alone: alone }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    fn subscribe(&mut self, handler: &str) -> ConsumerId {
        let consumer = ConsumerId::new("bot").unwrap();
        let env = [("OUT".to_owned(), self.out().to_str().unwrap().to_owned())].into();
        let backoff = vec![Duration::from_millis(10)];
        self.queue
            .subscribe(&NewSubscription {
                consumer: consumer.clone(),
                handler_cmd: handler.to_owned(),
                filter: None,
                cwd: None,
                options: Options { deliver: Deliver::Stdin, env, backoff, ..Options::default() },
                from: None,
                replace: false,
            })
            .unwrap();
        consumer
    }

    fn push(&mut self, content: &str) -> i64 {
        self.queue.push(&NewEvent::message("self", content).unwrap()).unwrap().id
    }

    fn wait_for(&self, what: &str, done: impl Fn(&Path) -> bool) {
        wait_until(what, || done(&self.out()));
    }

    /// A launcher whose supervisors only record how they were started.
    fn noting_launcher(&self) -> Launcher {
        let program = self.dir.path().join("program");
        fs::write(&program, format!("#!/bin/sh\necho \"$*\" >>{}\n", quoted(self.out()))).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Launcher { program, waking: WakeBy::Dispatch }
    }
}

/// Runs a consumer's supervisor in this process, until nothing is due.
fn supervise(location: &Location, consumer: &ConsumerId) {
    let files = locations::files_of(location).unwrap();
    let lock = dispatch::try_lock(&files, consumer).unwrap().unwrap();
    let fd = lock.file().try_clone().unwrap().into_raw_fd();
    drop(lock);
    let shutdown = Shutdown::new().unwrap();
    // SAFETY: the descriptor was made for this call.
    unsafe { supervisor::supervise(location, consumer, fd, None, LEASE, &shutdown) }.unwrap();
}

#[test]
fn a_supervisor_runs_the_handlers_of_a_thread_elsewhere() {
    let mut world = World::new();
    // The first run fails, so there is a wait too.
    let handler = r#"[ -e "$OUT" ] || { : >"$OUT"; exit 1; }; cat >>"$OUT"; echo "$THREAD_DIR" >>"$OUT""#;
    let bot = world.subscribe(handler);
    let last = world.push("hello");
    supervise(&world.location, &bot);
    let seen = fs::read_to_string(world.out()).unwrap();
    let (event, dir) = seen.trim_end().rsplit_once('\n').unwrap();
    assert!(event.contains(r#""content":"hello""#), "{seen}");
    assert_eq!(dir, world.location.to_string());
    let subscription = world.queue.subscription(&bot).unwrap();
    assert_eq!((subscription.last_acked_id, subscription.state.phase), (last, Phase::Idle));
    assert_eq!((subscription.state.succeeded, subscription.state.failed), (1, 1));
    // The base has only the files that belong to this machine.
    let base = world.dir.path().join("inbox");
    let mut names: Vec<_> = fs::read_dir(&base).unwrap().map(|one| one.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["logs", "run"]);
    let log = fs::read_to_string(base.join("logs/handlers/bot.log")).unwrap();
    assert_eq!(log.matches("begins attempt").count(), 2, "{log}");
    assert_eq!(world.queue.path(), base);
}

#[test]
fn a_run_of_a_thread_elsewhere_is_stopped() {
    let mut world = World::new();
    let bot = world.subscribe(r#": >"$OUT"; sleep 60"#);
    world.push("hello");
    let location = world.location.clone();
    let consumer = bot.clone();
    let supervisor = std::thread::spawn(move || supervise(&location, &consumer));
    world.wait_for("the handler to run", Path::exists);
    assert_eq!(stop(&mut world.queue, &bot, StopRequest::default()).unwrap(), Stopped::Done);
    supervisor.join().unwrap();
    let state = world.queue.subscription(&bot).unwrap().state;
    assert_eq!((state.phase, state.reason.as_deref()), (Phase::Stalled, Some("stopped")));
}

#[test]
fn background_processes_get_the_location() {
    let mut world = World::new();
    world.subscribe("cat");
    world.push("hello");
    let launcher = world.noting_launcher();
    dispatch(&mut world.queue, &launcher).unwrap();
    let wanted = format!("_supervise --thread {} --consumer bot --lock-fd ", world.location);
    let is_noted = |out: &Path| fs::read_to_string(out).is_ok_and(|text| text.starts_with(&wanted));
    world.wait_for("a supervisor to be started", is_noted);
}

#[test]
fn a_worker_notices_what_is_stored_elsewhere() {
    let mut world = World::new();
    world.subscribe("cat");
    let launcher = world.noting_launcher();
    let scope = Scope { threads: vec![world.location.clone()], ..Scope::default() };
    let shutdown = Shutdown::new().unwrap();
    let sender = shutdown.sender().try_clone().unwrap();
    let mut store = STORES.lock().unwrap()[&world.location].clone();
    std::thread::scope(|threads| {
        let out = world.out();
        threads.spawn(move || {
            // As another machine does it: no file is touched here.
            let event = NewEvent::message("self", "hello").unwrap();
            store.append(&mut |put| put(std::slice::from_ref(&event)).map(drop)).unwrap();
            let end = Instant::now() + PATIENCE;
            while !out.exists() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::io::Write::write_all(&mut &sender, b"x").unwrap();
        });
        let mut tell = |news: News<'_>| assert!(!matches!(news, News::Trouble { .. }), "{news:?}");
        follow(&scope, None, &launcher, &shutdown, Duration::ZERO, &mut tell).unwrap();
    });
    assert!(world.out().exists(), "no supervisor was started");
}

#[test]
fn operations_that_need_a_directory_are_refused() {
    let mut world = World::new();
    world.push("hello");
    let refused = |error: Error| assert!(matches!(error, Error::OnlyInDirectory(_)), "{error}");
    refused(backup::backup(&mut world.queue, &world.dir.path().join("copy"), &mut |_| {}).unwrap_err());
    refused(prune::compact(&mut world.queue).unwrap_err());
    // `doctor` checks the rest.
    assert!(doctor::examine(&world.location, &world.noting_launcher(), false).unwrap().is_empty());
    let request =
        prune::Request { old: prune::Old::BeforeId(2), subtype: None, force: false, dry_run: false };
    assert_eq!(prune::prune(&mut world.queue, &request, &mut |_| {}).unwrap().pruned.events, 1);
    let unknown = Queue::open("nowhere://x").err();
    assert!(matches!(unknown, Some(Error::UnknownScheme(scheme)) if scheme == "nowhere"));
}

#[test]
fn a_program_makes_threads_only_under_schemes_that_it_knows() {
    let world = World::new();
    let location = format!("memory://{}#outbox", world.dir.path().display());
    assert_eq!(Queue::init(&location).unwrap(), PathBuf::from(&location));
    Queue::open(&location).unwrap();
    for init in [Queue::init, |path| Queue::init_as(path, NewThread::default())] {
        let unknown = init(Path::new("nowhere://x#y")).err();
        assert!(matches!(unknown, Some(Error::UnknownScheme(scheme)) if scheme == "nowhere"));
    }
    assert!(!Path::new("nowhere:").exists(), "no folder with that name");
}

#[test]
fn a_hold_that_is_set_while_events_are_deleted_counts_and_none_lets_more_be_deleted() {
    // The holds before and after the events were counted, the oldest that is left, and who held it.
    for (then, now, left, holder) in [
        ([None, None], [None, None], 9, None),
        ([None, None], [Some("4"), None], 4, Some("a")),
        ([Some("6"), None], [Some("3"), None], 3, Some("a")),
        ([Some("6"), None], [Some("6"), Some("2")], 2, Some("b")),
        ([Some("6"), None], [Some("7"), Some("6")], 6, None),
        ([Some("6"), None], [None, None], 6, None),
        ([Some("6"), None], [Some("8"), None], 6, None),
    ] {
        let mut world = World::new();
        (1..=10).for_each(|_| _ = world.push("x"));
        let location = world.location.clone();
        let set = move |holds: [Option<&str>; 2]| {
            let mut store = open(&location, Duration::ZERO).unwrap();
            for (name, hold) in ["hold.a", "hold.b"].into_iter().zip(holds) {
                store.set_config(name, hold).unwrap();
            }
        };
        set(then);
        HAPPENS.set(Some(("prune", Box::new(move || set(now)))));
        let old =
            prune::Request { old: prune::Old::BeforeId(9), subtype: None, force: false, dry_run: false };
        let mut deleted = 0;
        let report = prune::prune(&mut world.queue, &old, &mut |more| deleted += more).unwrap();
        assert!(report.failed.is_none() && HAPPENS.take().is_none());
        assert_eq!((deleted, report.pruned.events), (left - 1, left - 1), "{then:?} {now:?}");
        let mut store = open(&world.location, Duration::ZERO).unwrap();
        assert_eq!(store.first_after(0).unwrap(), Some(left as i64), "{then:?} {now:?}");
        if let Some(holder) = holder {
            let held = Held { at: left as i64, by: HeldBy::Hold(holder.to_owned()) };
            assert_eq!(report.held, Some(held), "{then:?} {now:?}");
        }
    }
}
