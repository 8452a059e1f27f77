use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use thread::error::{DatabaseError, DatabaseErrorKind};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::session::fixture::LIMIT;

/// A job that runs until it is told to end.
struct Held {
    job: JoinHandle<Result<()>>,
    end: mpsc::Sender<()>,
}

/// Starts a job. The receiver says that it runs.
fn start(pool: &Arc<BlockingPool>, session: SessionId, kind: Kind) -> (Held, oneshot::Receiver<()>) {
    let (pool, (running, runs), (end, ended)) = (pool.clone(), oneshot::channel(), mpsc::channel());
    let mut running = Some(running);
    let work = move || {
        if let Some(running) = running.take() {
            running.send(()).ok();
        }
        ended.recv().ok();
        Ok(())
    };
    let job = tokio::spawn(async move { pool.run(session, kind, work).await });
    (Held { job, end }, runs)
}

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, what).await.expect("it is done in time")
}

impl Held {
    async fn end(self) {
        self.end.send(()).unwrap();
        in_time(self.job).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_session_has_one_job_of_each_kind_at_a_time() {
    let (pool, session, other) =
        (Arc::new(BlockingPool::new(SESSIONS)), SessionId::random(), SessionId::random());
    let (reading, runs) = start(&pool, session, Kind::Read);
    in_time(runs).await.unwrap();
    let (next, mut next_runs) = start(&pool, session, Kind::Read);
    tokio::task::yield_now().await;
    // Neither its writer nor another session waits for it.
    for (session, kind) in [(session, Kind::Write), (other, Kind::Read), (other, Kind::Write)] {
        let (held, runs) = start(&pool, session, kind);
        in_time(runs).await.unwrap();
        held.end().await;
    }
    assert!(next_runs.try_recv().is_err(), "it waits for its turn");
    reading.end().await;
    in_time(next_runs).await.unwrap();
    next.end().await;
}

#[tokio::test]
async fn a_client_that_leaves_keeps_its_turn_until_its_work_is_done() {
    let (pool, session) = (Arc::new(BlockingPool::new(SESSIONS)), SessionId::random());
    let (left, runs) = start(&pool, session, Kind::Read);
    in_time(runs).await.unwrap();
    left.job.abort();
    let (next, mut next_runs) = start(&pool, session, Kind::Read);
    let (other, other_runs) = start(&pool, SessionId::random(), Kind::Read);
    in_time(other_runs).await.unwrap();
    other.end().await;
    assert!(next_runs.try_recv().is_err(), "there are two at a time");
    left.end.send(()).unwrap();
    in_time(next_runs).await.unwrap();
    next.end().await;
}

#[test]
fn no_other_module_hands_out_blocking_threads() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    let mut dirs = ["gateway", "mcp", "sessions"].map(|name| crates.join(name).join("src")).to_vec();
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                dirs.push(entry);
            } else if std::fs::read_to_string(&entry)
                .is_ok_and(|text| text.contains(concat!("spawn_", "blocking")))
            {
                found.push(entry.strip_prefix(crates).unwrap().to_owned());
            }
        }
    }
    found.sort();
    // The watcher looks at all sessions once a second, whatever clients ask for.
    assert_eq!(found, ["sessions/src/turns.rs", "sessions/src/watch.rs"].map(Path::new));
}

#[tokio::test]
async fn jobs_of_sessions_never_take_the_threads_of_others() {
    let pool = Arc::new(BlockingPool::new(SESSIONS));
    let mut running = Vec::new();
    for _ in 0..SESSIONS {
        let (held, runs) = start(&pool, SessionId::random(), Kind::Read);
        in_time(runs).await.unwrap();
        running.push(held);
    }
    let (waiting, mut waits) = start(&pool, SessionId::random(), Kind::Read);
    let common = Common::default();
    for threads in [&common.lists, &common.searches, &common.figures, &Threads::new(STORAGE)] {
        assert_eq!(
            in_time(blocking(threads, || Ok(5))).await.unwrap(),
            5,
            "there is a thread for everything else"
        );
    }
    in_time(common.copies.run(SessionId::random(), Kind::Read, || Ok(()))).await.unwrap();
    assert!(waits.try_recv().is_err());
    running.pop().unwrap().end().await;
    in_time(waits).await.unwrap();
    for held in running.into_iter().chain([waiting]) {
        held.end().await;
    }
}

fn locked() -> RequestError {
    let kind = DatabaseErrorKind::Locked;
    RequestError::Thread(thread::Error::Database(DatabaseError {
        kind,
        doing: "reading",
        message: "x".into(),
        advice: None,
    }))
}

#[tokio::test]
async fn a_locked_database_is_tried_again_and_others_go_on_meanwhile() {
    let (pool, session) = (Arc::new(BlockingPool::new(SESSIONS)), SessionId::random());
    let (tries, unlocked) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, key) = (tries.clone(), unlocked.clone());
    let work = move || match (counted.fetch_add(1, Ordering::SeqCst), key.load(Ordering::SeqCst)) {
        (_, 0) => Err(locked()),
        (tries, _) => Ok(tries),
    };
    let own = pool.clone();
    let trying = tokio::spawn(async move { own.run(session, Kind::Write, work).await });
    while tries.load(Ordering::SeqCst) < 2 {
        // Its own session's turn is free between two tries.
        in_time(pool.run(session, Kind::Write, || Ok(()))).await.unwrap();
        in_time(pool.run(SessionId::random(), Kind::Write, || Ok(()))).await.unwrap();
    }
    unlocked.store(1, Ordering::SeqCst);
    let done = in_time(trying).await.unwrap().unwrap();
    assert!(done >= 2 && tries.load(Ordering::SeqCst) == done + 1);
}

#[tokio::test]
async fn other_errors_are_told_at_once() {
    let (pool, tries) = (BlockingPool::new(SESSIONS), Arc::new(AtomicUsize::new(0)));
    let counted = tries.clone();
    let work = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        Err::<(), _>(RequestError::NoSession)
    };
    let done = pool.run(SessionId::random(), Kind::Read, work).await;
    assert!(matches!(done, Err(RequestError::NoSession)) && tries.load(Ordering::SeqCst) == 1);
}
