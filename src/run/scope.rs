//! Which threads a [`Starter`](super::starter::Starter) or a worker follows.

#![expect(clippy::disallowed_methods, reason = "looks for threads")]

use std::path::PathBuf;
use std::time::Instant;

use crate::error::{IoContext, Result};
use crate::files::stamp::Stamp;
use crate::files::watch::LOOK_EVERY;
use crate::files::{absolute, absolute_location};
use crate::model::exponential_backoff::ExponentialBackoff;
use crate::model::location::Location;
use crate::queue::locations;

/// The threads to follow. Of every thread, those of its agent's sub-agents are followed as well.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// Individual threads, or locations that name all threads of a server. If one is moved away, it is waited for.
    pub threads: Vec<Location>,
    /// Directories whose threads are all followed, including ones created later.
    pub roots: Vec<PathBuf>,
}

/// Lists the threads of a scope.
pub(super) struct Listing<'a> {
    /// The individual threads.
    pub named: Vec<Location>,
    servers: Vec<Server>,
    roots: &'a [PathBuf],
}

/// A location that names all threads of a server.
struct Server {
    location: Location,
    /// As they were listed last; `None` before that.
    threads: Option<Vec<Location>>,
    /// When to list them again.
    due: Instant,
    /// The pauses before that if it fails.
    backoff: ExponentialBackoff,
}

impl<'a> Listing<'a> {
    /// # Errors
    ///
    /// A location or a root cannot be used.
    pub fn new(scope: &'a Scope) -> Result<Listing<'a>> {
        let (mut named, mut servers) = (Vec::new(), Vec::new());
        for location in &scope.threads {
            match locations::threads(location) {
                Some(Err(error)) if !error.may_pass() => return Err(error),
                Some(_) => {
                    let backoff = ExponentialBackoff::new(LOOK_EVERY, location.backend().longest_pause);
                    let (location, due) = (location.clone(), Instant::now());
                    servers.push(Server { location, threads: None, due, backoff });
                }
                None => named.push(absolute_location(location)?),
            }
        }
        for root in &scope.roots {
            std::fs::read_dir(root).at("read", root)?;
        }
        Ok(Listing { named, servers, roots: &scope.roots })
    }

    /// Lists the threads of the servers, of which some may be new. Returns each that was asked, and its error if it
    /// failed.
    pub fn ask_servers(&mut self) -> Vec<(Location, Option<crate::Error>)> {
        let due = self.servers.iter_mut().filter(|server| server.due <= Instant::now());
        let ask = |server: &mut Server| {
            let listed = locations::threads(&server.location).unwrap_or(Ok(Vec::new()));
            server.due = Instant::now();
            let error = match listed {
                Ok(threads) => {
                    server.threads = Some(threads);
                    server.backoff.reset();
                    None
                }
                Err(error) => {
                    server.due += server.backoff.pause();
                    Some(error)
                }
            };
            (server.location.clone(), error)
        };
        due.map(ask).collect()
    }

    /// The locations that name all threads of a server.
    pub fn servers(&self) -> impl Iterator<Item = &Location> {
        self.servers.iter().map(|server| &server.location)
    }

    /// Leaves these servers to somebody else, who asks them.
    pub fn leave_out(&mut self, servers: &[Location]) {
        self.servers.retain(|server| !servers.contains(&server.location));
    }

    /// Whether the threads of all servers have been listed.
    pub fn is_complete(&self) -> bool {
        self.servers.iter().all(|server| server.threads.is_some())
    }

    /// All threads that can be listed now. `is_known`: whether this is a thread for certain.
    pub fn all(&self, is_known: impl Fn(&Location) -> bool) -> Vec<Location> {
        let mut all = self.named.clone();
        all.extend(self.servers.iter().filter_map(|server| server.threads.clone()).flatten());
        for root in self.roots {
            let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
            let root = absolute(root).unwrap_or_else(|_| root.clone());
            for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
                // A name under which a thread is being made or removed.
                if entry.file_name().as_encoded_bytes().starts_with(b".") {
                    continue;
                }
                let path = root.join(entry.file_name());
                let location = Location::from(&path);
                if is_known(&location) || Stamp::of(&location, &path).is_some() {
                    all.push(location);
                }
            }
        }
        all
    }
}

/// The threads of a scope that exist now.
///
/// # Errors
///
/// A location or a root cannot be used, or a server not be asked.
pub fn threads_of(scope: &Scope) -> Result<Vec<Location>> {
    let mut listing = Listing::new(scope)?;
    if let Some(error) = listing.ask_servers().into_iter().find_map(|(_, error)| error) {
        return Err(error);
    }
    Ok(listing.all(|_| false))
}

/// The folder in a thread's directory with the threads of its agent's sub-agents.
const SUB_AGENTS: &str = "agents";

/// The threads of the sub-agents of a thread's agent.
pub(super) fn threads_below(location: &Location) -> Vec<PathBuf> {
    let Some(dir) = location.dir() else { return Vec::new() };
    let entries = std::fs::read_dir(dir.join(SUB_AGENTS)).into_iter().flatten().flatten();
    // A link may lead anywhere, also back to here.
    let entries = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| Stamp::of(&Location::from(path), path).is_some()).collect()
}
