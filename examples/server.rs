//! A hundred clients on one OS thread, each waiting for an event of its own: `server <thread>`.
//!
//! One watcher serves them all and publishes the newest id. It uses no CPU time while the thread is quiet,
//! apart from one query every [`LOOK_EVERY`].

use thread::Queue;
use thread::files::watch::LOOK_EVERY;
use tokio::io::{Interest, unix::AsyncFd};
use tokio::{sync::watch, task::JoinSet, time::timeout};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: server <thread>")?;
    let mut queue = Queue::open(path)?;
    let start = queue.newest()?.0;
    let (newest, seen) = watch::channel(start);
    let mut clients = JoinSet::new();
    for id in start + 1..=start + 100 {
        let mut seen = seen.clone();
        clients.spawn(async move { seen.wait_for(|newest| *newest >= id).await.map(|_| println!("{id}")) });
    }
    println!("{} clients wait for the events after {start}", clients.len());
    tokio::select! {
        failed = feed(queue, newest) => failed,
        _ = clients.join_all() => Ok(()),
    }
}

/// Publishes the newest id after every commit. Returns only on failure.
async fn feed(mut queue: Queue, newest: watch::Sender<i64>) -> Result<(), Box<dyn std::error::Error>> {
    let watcher = queue.watcher();
    // SAFETY: the watcher keeps its descriptor open for longer than this borrows it.
    let register = |fd| unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    let notices = watcher.notices().map(register).transpose().map_err(std::io::Error::from)?;
    loop {
        newest.send_replace(queue.newest()?.0);
        // The timeout finds commits by programs that send no notice.
        if let Some(notices) = &notices
            && let Ok(ready) = timeout(LOOK_EVERY, notices.readable()).await
        {
            ready?.clear_ready();
            watcher.clear();
        } else if notices.is_none() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
