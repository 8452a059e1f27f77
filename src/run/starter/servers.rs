//! The servers of the threads that are followed: each is asked for the changes of all its threads at once.

use std::time::Instant;

use crate::error::Error;
use crate::files::watch::LOOK_EVERY;
use crate::model::exponential_backoff::ExponentialBackoff;
use crate::model::location::Location;
use crate::queue::locations;
use crate::run::scope::Listing;
use crate::store::{Changed, Changes};

pub(super) struct Servers {
    all: Vec<Server>,
}

struct Server {
    /// The locations for which it is asked: of threads, or of all threads.
    of: Vec<Location>,
    changes: Box<dyn Changes>,
    /// Which threads it has is known.
    is_known: bool,
    /// When to ask again.
    due: Instant,
    /// The pauses before that if it fails.
    backoff: ExponentialBackoff,
}

impl Servers {
    /// Those of the threads in a listing that can be asked so. It asks the others itself.
    pub fn of(listing: &mut Listing<'_>) -> Servers {
        let covered: Vec<Location> = listing.named.iter().chain(listing.servers()).cloned().collect();
        let server = |(of, changes): (Vec<Location>, _)| {
            let longest = of.first().map_or(LOOK_EVERY, |location| location.backend().longest_pause);
            let backoff = ExponentialBackoff::new(LOOK_EVERY, longest);
            let is_known = of.iter().all(|location| listing.named.contains(location));
            Server { of, changes, is_known, due: Instant::now(), backoff }
        };
        let all: Vec<Server> = locations::changes(&covered).into_iter().map(server).collect();
        all.iter().for_each(|server| listing.leave_out(&server.of));
        Servers { all }
    }

    /// Whether a server is asked for the changes of this thread, which was named.
    pub fn cover(&self, thread: &Location) -> bool {
        self.all.iter().any(|server| server.of.contains(thread))
    }

    /// Whether all threads of all servers are known.
    pub fn are_known(&self) -> bool {
        self.all.iter().all(|server| server.is_known)
    }

    /// Asks those that are due. Returns each answer with the locations that it is about.
    pub fn ask(&mut self) -> Vec<(Vec<Location>, Result<Changed, Error>)> {
        let due = self.all.iter_mut().filter(|server| server.due <= Instant::now());
        let ask = |server: &mut Server| {
            let answer = server.changes.ask();
            server.due = Instant::now();
            match &answer {
                Ok(_) => {
                    server.is_known = true;
                    server.backoff.reset();
                }
                Err(_) => server.due += server.backoff.pause(),
            }
            (server.of.clone(), answer)
        };
        due.map(ask).collect()
    }
}
