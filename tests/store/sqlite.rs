//! Guarantees of the SQLite store beyond the common contract: several connections, and durability.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;
use thread::Queue;
use thread::files::DB;
use thread::model::run::{Exit, Options, RunState};
use thread::sqlite::Sqlite;
use thread::store::{DeadLetterUpdate, FilterFailure, Move, RunUpdate, Store, Stored};
use thread_testkit::store::conformance::{
    a_ledger_is_of_one_moment, append, everything, fill, fill_for_filters, message, name, new_subscription,
    noon, put, with_key,
};

/// Creates a thread and returns its database.
fn database() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    Queue::init(dir.path()).unwrap();
    let path = dir.path().join(DB);
    (dir, path)
}

fn open(path: &Path) -> Sqlite {
    Sqlite::open(path).unwrap()
}

fn ids(store: &mut Sqlite) -> Vec<i64> {
    let mut ids = Vec::new();
    store
        .read(0, i64::MAX, usize::MAX, &mut |row| {
            ids.push(row.id);
            ControlFlow::Continue(())
        })
        .unwrap();
    ids
}

#[test]
fn a_ledger_that_is_read_is_of_one_moment() {
    let (_dir, path) = database();
    a_ledger_is_of_one_moment(|| Box::new(open(&path)));
}

#[test]
fn connections_see_each_others_commits_at_once_and_in_order() {
    let (_dir, path) = database();
    let (mut one, mut other) = (open(&path), open(&path));
    for id in 1..=20 {
        let (writer, reader) = if id % 3 == 0 { (&mut one, &mut other) } else { (&mut other, &mut one) };
        assert_eq!(put(writer, &message("x")).unwrap(), Stored::New(id));
        assert_eq!(ids(reader), (1..=id).collect::<Vec<_>>());
        assert_eq!(everything(reader), everything(writer));
    }
}

#[test]
fn a_reader_that_sees_an_id_sees_every_smaller_one() {
    const WRITERS: usize = 4;
    const EACH: usize = 25;
    let (_dir, path) = database();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut store = open(&path);
                    for _ in 0..EACH {
                        append(&mut store, &[message("a"), message("b")]).unwrap();
                    }
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            let mut store = open(&path);
            let mut seen = 0;
            // Reads once more after the last commit.
            for last in
                std::iter::successors(Some(false), |last| (!last).then(|| done.load(Ordering::SeqCst)))
            {
                let now = ids(&mut store);
                assert_eq!(now, (1..=now.len() as i64).collect::<Vec<_>>());
                assert!(now.len() >= seen && now.len().is_multiple_of(2), "{} after {seen}", now.len());
                assert!(!last || now.len() == WRITERS * EACH * 2);
                seen = now.len();
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::SeqCst);
        reader.join().unwrap();
    });
}

#[test]
fn changes_reports_commits_of_other_connections() {
    let (_dir, path) = database();
    let (mut one, mut other) = (open(&path), open(&path));
    one.subscribe(&new_subscription("c")).unwrap();
    let commits: [&dyn Fn(&mut Sqlite); 3] = [
        &|store| fill(store, 1),
        &|store| {
            store.move_cursor(&name("c"), 1, Move::Acknowledge).unwrap();
        },
        &|store| drop(store.unsubscribe(&name("c")).unwrap()),
    ];
    for commit in commits {
        let before = other.changes().unwrap();
        assert_eq!(other.changes().unwrap(), before);
        commit(&mut one);
        assert_ne!(other.changes().unwrap(), before);
    }
}

#[test]
fn of_run_updates_from_the_same_state_only_one_applies() {
    let (_dir, path) = database();
    open(&path).subscribe(&new_subscription("c")).unwrap();
    let update =
        RunUpdate { durable: true, ..RunUpdate::state(RunState { attempts: 1, ..RunState::default() }) };
    for round in 1..=10 {
        let seen = open(&path).subscription(&name("c")).unwrap().unwrap();
        let applied: usize = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| open(&path).update_run(&seen, &update).unwrap().is_some()))
                .collect();
            tries.into_iter().map(|one| usize::from(one.join().unwrap())).sum()
        });
        assert_eq!(applied, 1);
        assert_eq!(open(&path).subscription(&name("c")).unwrap().unwrap().revision, round);
    }
}

#[test]
fn an_append_is_visible_only_when_complete_and_blocks_other_writers() {
    let (_dir, path) = database();
    let (mut writer, mut reader) = (open(&path), open(&path));
    std::thread::scope(|scope| {
        writer
            .append(&mut |put| {
                put(&[message("a")])?;
                let (began, has_begun) = std::sync::mpsc::channel();
                let path = &path;
                scope.spawn(move || {
                    let mut other = open(path);
                    began.send(()).unwrap();
                    fill(&mut other, 1);
                });
                has_begun.recv().unwrap();
                assert_eq!(ids(&mut reader), [0; 0]);
                put(&[message("b")]).map(drop)
            })
            .unwrap();
        // The other writer's event may be stored already.
        assert_eq!(ids(&mut reader)[..2], [1, 2]);
    });
    assert_eq!(ids(&mut reader), [1, 2, 3]);
}

#[test]
fn everything_is_there_after_reopening() {
    use std::os::unix::ffi::OsStrExt;
    let (_dir, path) = database();
    let written = {
        let mut store = open(&path);
        fill_for_filters(&mut store);
        put(&mut store, &with_key(&message("keyed"), "k")).unwrap();
        let cwd = Path::new(std::ffi::OsStr::from_bytes(b"/tmp/\xff")).to_owned();
        let new = thread::model::subscription::NewSubscription {
            filter: Some("content ->> '$.n' = 2".into()),
            cwd: Some(cwd),
            options: Options { batch_size: 7, ..Options::default() },
            from: Some(4),
            ..new_subscription("c")
        };
        store.subscribe(&new).unwrap();
        store.move_cursor(&name("c"), 2, Move::Seek).unwrap();
        let seen = store.subscription(&name("c")).unwrap().unwrap();
        let failures = [FilterFailure { id: 6, message: "malformed JSON".into() }];
        store.remember_scan(&seen, 7, &failures).unwrap();
        let dead = DeadLetterUpdate::Insert {
            event_id: 3,
            attempts: 5,
            exit: Exit::TimedOut,
            error: "no".into(),
            at: noon(),
        };
        let state = RunState { since: Some(noon()), attempts: 3, ..RunState::default() };
        let update = RunUpdate { dead_letters: vec![dead], acknowledge: Some(3), ..RunUpdate::state(state) };
        store.update_run(&seen, &update).unwrap().unwrap();
        store.retry_dead_letters(&name("c"), None).unwrap();
        everything(&mut store)
    };
    assert_eq!((written.2[0].rewinds, written.2[0].dead_to_retry), (1, 1));
    let mut store = open(&path);
    assert_eq!(everything(&mut store), written);
    let again = put(&mut store, &with_key(&message("keyed"), "k")).unwrap();
    assert!(matches!(again, Stored::Repeated { id, .. } if id == written.0));
}
