use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::*;

/// A generous limit.
const LIMIT: Duration = Duration::from_secs(60);

/// Work that runs until `end` is dropped, and says that it has begun.
fn held() -> (impl FnOnce() + Send + 'static, oneshot::Receiver<()>, mpsc::Sender<()>) {
    let ((begins, begun), (end, ended)) = (oneshot::channel(), mpsc::channel::<()>());
    let work = move || {
        begins.send(()).ok();
        ended.recv().ok();
    };
    (work, begun, end)
}

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    timeout(LIMIT, what).await.expect("it is done in time")
}

/// Begins work, and leaves it.
async fn abandon<T>(doing: impl Future<Output = T>, begun: oneshot::Receiver<()>) {
    tokio::select! {
        _ = doing => panic!("it was done"),
        begun = in_time(begun) => begun.unwrap(),
    }
}

#[tokio::test]
async fn work_that_nobody_waits_for_keeps_its_turn_and_its_thread_until_it_is_done() {
    let turns = Turns::new(2);
    let (work, begun, end) = held();
    abandon(turns.run("a", work), begun).await;
    let mut same = Box::pin(turns.run("a", || 1));
    assert!(timeout(Duration::from_millis(50), &mut same).await.is_err(), "it took the turn");
    // Another key has its own turn, until all threads are taken.
    assert_eq!(in_time(turns.run("b", || 2)).await, Some(2));
    let (more, begun, end_more) = held();
    abandon(turns.run("c", more), begun).await;
    let mut third = Box::pin(turns.run("d", || 3));
    assert!(timeout(Duration::from_millis(50), &mut third).await.is_err(), "there was a third thread");
    drop((end, end_more));
    assert_eq!(in_time(same).await, Some(1));
    assert_eq!(in_time(third).await, Some(3));
}

#[tokio::test]
async fn what_is_no_longer_waited_for_before_its_turn_is_not_begun() {
    let turns = Arc::new(Turns::new(1));
    let (work, begun, end) = held();
    abandon(turns.run("a", work), begun).await;
    for _ in 0..100 {
        let waiting = turns.run("a", || panic!("it was begun"));
        assert!(timeout(Duration::ZERO, waiting).await.is_err());
    }
    drop(end);
    assert_eq!(in_time(turns.run("a", || 1)).await, Some(1));
}

#[tokio::test]
async fn work_that_panics_gives_its_turn_back() {
    let turns = Turns::new(1);
    assert_eq!(in_time(turns.run("a", || panic!("on purpose"))).await, None::<()>);
    assert_eq!(in_time(turns.run("a", || 1)).await, Some(1));
}

#[test]
fn turns_that_nobody_waits_for_are_forgotten() {
    let keyed = Keyed::default();
    let turns = keyed.of(0);
    for key in 1..3000 {
        keyed.of(key);
    }
    assert!(keyed.0.lock().unwrap().len() <= REMEMBERED);
    assert!(Arc::ptr_eq(&turns, &keyed.of(0)));
}
