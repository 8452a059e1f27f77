//! How many connections there may be: few without a token, the rest for those that have shown one.
//!
//! Every connection starts unauthenticated. There may be [`UNAUTHENTICATED`] of these in all and [`PER_ADDRESS`]
//! from one address; one more closes the oldest. So a client that opens connections and sends nothing competes
//! only with others that do the same. A connection with the right token counts against a limit of its own.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::proxy::Client;
use crate::log::refused;

/// How many connections without a token there may be, in all and from one address.
const UNAUTHENTICATED: usize = 256;
const PER_ADDRESS: usize = 32;

/// How many unauthenticated connections may be closing while others are opened.
const LEAVING: usize = 32;

/// The limits of a gateway.
pub struct ConnectionLimits {
    max_authenticated: u32,
    authenticated: Arc<Semaphore>,
    max_unauthenticated: usize,
    /// One for each unauthenticated connection that is open or closing.
    arrivals: Arc<Semaphore>,
    unauthenticated: Mutex<VecDeque<Arc<Connection>>>,
}

/// Admits one more unauthenticated connection, until it is dropped.
pub type Arrival = OwnedSemaphorePermit;

/// Counts one connection, until it is dropped.
pub struct Permit {
    limits: Arc<ConnectionLimits>,
    connection: Arc<Connection>,
}

struct Connection {
    peer: IpAddr,
    client: Mutex<Client>,
    /// Set once the connection has shown a token.
    authenticated: Mutex<Option<OwnedSemaphorePermit>>,
    arrival: Mutex<Option<Arrival>>,
    /// Set to dismiss the connection and make room for another.
    leave: watch::Sender<bool>,
}

impl ConnectionLimits {
    /// At most so many connections that have shown a token, and so many that have not.
    pub fn new(max_authenticated: u32, unauthenticated: usize) -> ConnectionLimits {
        let max_unauthenticated = unauthenticated.clamp(1, UNAUTHENTICATED);
        ConnectionLimits {
            max_authenticated,
            authenticated: Arc::new(Semaphore::new(max_authenticated as usize)),
            max_unauthenticated,
            arrivals: Arc::new(Semaphore::new(max_unauthenticated + LEAVING)),
            unauthenticated: Mutex::default(),
        }
    }

    /// Waits until dismissed connections are closed, so that unauthenticated ones never hold more files than they
    /// may. `None` would mean that no more can come.
    pub async fn arrival(&self) -> Option<Arrival> {
        self.arrivals.clone().acquire_owned().await.ok()
    }

    /// Counts a new connection, which is unauthenticated.
    pub fn arrive(self: &Arc<ConnectionLimits>, client: Client, arrival: Option<Arrival>) -> Permit {
        let (authenticated, arrival) = (Mutex::default(), Mutex::new(arrival));
        let leave = watch::Sender::new(false);
        let connection = Arc::new(Connection {
            peer: client.address,
            client: Mutex::new(client),
            authenticated,
            arrival,
            leave,
        });
        let mut unauthenticated = self.unauthenticated();
        if !make_room_for(client, &connection, &mut unauthenticated)
            && unauthenticated.len() >= self.max_unauthenticated
        {
            dismiss(unauthenticated.pop_front());
        }
        unauthenticated.push_back(connection.clone());
        drop(unauthenticated);
        Permit { limits: self.clone(), connection }
    }

    /// Waits until all connections that have shown a token have ended.
    pub async fn all_left(&self) {
        drop(self.authenticated.acquire_many(self.max_authenticated).await);
    }

    fn unauthenticated(&self) -> MutexGuard<'_, VecDeque<Arc<Connection>>> {
        self.unauthenticated.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Dismisses the oldest unauthenticated connection from a client's address if there are as many, without
/// `connection`, as one address may have. Returns whether there were.
fn make_room_for(
    client: Client,
    connection: &Arc<Connection>,
    unauthenticated: &mut VecDeque<Arc<Connection>>,
) -> bool {
    let same =
        |other: &Arc<Connection>| !Arc::ptr_eq(other, connection) && other.client().address == client.address;
    let is_full =
        !client.is_shared && unauthenticated.iter().filter(|other| same(other)).count() >= PER_ADDRESS;
    if is_full {
        dismiss(unauthenticated.iter().position(same).and_then(|first| unauthenticated.remove(first)));
    }
    is_full
}

fn dismiss(connection: Option<Arc<Connection>>) {
    if let Some(connection) = connection {
        refused(connection.client().address, "", "another connection without a token took its place");
        connection.leave.send_replace(true);
    }
}

impl Connection {
    fn client(&self) -> Client {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// The address that opened the connection.
    pub fn peer(&self) -> IpAddr {
        self.connection.peer
    }

    /// The client behind the connection, as far as it is known.
    pub fn client(&self) -> Client {
        self.connection.client()
    }

    /// Notes which client sent the request that came over the connection: a proxy uses one for many clients.
    pub fn is_for(&self, client: Client) {
        if self.client() == client {
            return;
        }
        let mut unauthenticated = self.limits.unauthenticated();
        *self.connection.client.lock().unwrap_or_else(PoisonError::into_inner) = client;
        if unauthenticated.iter().any(|other| Arc::ptr_eq(other, &self.connection)) {
            make_room_for(client, &self.connection, &mut unauthenticated);
        }
    }

    /// Counts a connection that has shown a token among those. Returns false if there are too many.
    pub fn admit(&self) -> bool {
        let mut authenticated = self.connection.authenticated.lock().unwrap_or_else(PoisonError::into_inner);
        if authenticated.is_none() {
            let Ok(taken) = self.limits.authenticated.clone().try_acquire_owned() else { return false };
            *authenticated = Some(taken);
            self.leave_unauthenticated();
            drop(self.connection.arrival.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
        true
    }

    /// Waits until the connection is dismissed to make room for another.
    pub async fn dismissed(&self) {
        // The sender lives as long as `self`.
        drop(self.connection.leave.subscribe().wait_for(|leave| *leave).await.map(|leave| *leave));
    }

    fn leave_unauthenticated(&self) {
        self.limits.unauthenticated().retain(|other| !Arc::ptr_eq(other, &self.connection));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.leave_unauthenticated();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use super::*;

    fn leaves(permit: &Permit) -> bool {
        let mut dismissed = std::pin::pin!(permit.dismissed());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        dismissed.as_mut().poll(&mut cx).is_ready()
    }

    #[test]
    fn unauthenticated_connections_compete_with_each_other_only() {
        let limits = Arc::new(ConnectionLimits::new(1, 1000));
        let local = Client { address: [127, 0, 0, 1].into(), is_shared: true };
        let far = Client { address: [10, 0, 0, 1].into(), is_shared: false };
        let known = limits.arrive(far, None);
        assert!(known.admit() && known.admit());
        let permits: Vec<Permit> = (0..PER_ADDRESS).map(|_| limits.arrive(far, None)).collect();
        assert!(!permits[1].admit(), "there may be only one");
        let mut others: Vec<Permit> =
            (1..UNAUTHENTICATED - PER_ADDRESS).map(|_| limits.arrive(local, None)).collect();
        assert!(!permits.iter().chain(&others).any(leaves));
        // One more from an address that has as many as it may.
        let another = limits.arrive(far, None);
        assert!(leaves(&permits[0]) && !leaves(&permits[1]));
        // There are as many as there may be: the oldest is dismissed.
        others.push(limits.arrive(local, None));
        others.push(limits.arrive(local, None));
        assert!(leaves(&permits[1]) && !leaves(&permits[2]) && !leaves(&others[0]) && !leaves(&known));
        drop(known);
        assert!(another.admit());
    }

    #[test]
    fn who_comes_by_a_proxy_has_the_limit_of_one_address() {
        let limits = Arc::new(ConnectionLimits::new(1, 1000));
        let proxy = Client { address: [127, 0, 0, 1].into(), is_shared: true };
        let client = |n| Client { address: [10, 0, 0, n].into(), is_shared: false };
        let permits: Vec<Permit> = (0..=PER_ADDRESS).map(|_| limits.arrive(proxy, None)).collect();
        let other = limits.arrive(proxy, None);
        other.is_for(client(2));
        permits.iter().for_each(|permit| permit.is_for(client(1)));
        assert!(leaves(&permits[0]) && !permits[1..].iter().any(leaves) && !leaves(&other));
        // A connection that the proxy reuses for another client.
        other.is_for(client(1));
        other.is_for(client(1));
        assert!(leaves(&permits[1]) && !permits[2..].iter().any(leaves) && !leaves(&other));
        assert!(other.admit());
        other.is_for(client(2));
        assert_eq!(other.client(), client(2));
    }

    #[test]
    fn a_connection_that_has_ended_takes_no_place() {
        let limits = Arc::new(ConnectionLimits::new(1, 1000));
        let far = Client { address: [10, 0, 0, 1].into(), is_shared: false };
        let first = limits.arrive(far, None);
        (0..PER_ADDRESS).for_each(|_| drop(limits.arrive(far, None)));
        assert!(!leaves(&first));
    }

    #[test]
    fn a_stop_waits_for_those_that_have_shown_a_token_and_arrivals_for_those_that_leave() {
        fn is_ready<T>(future: impl Future<Output = T>) -> Option<T> {
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            match std::pin::pin!(future).poll(&mut cx) {
                std::task::Poll::Ready(value) => Some(value),
                std::task::Poll::Pending => None,
            }
        }
        let limits = Arc::new(ConnectionLimits::new(2, 1));
        let far = Client { address: [10, 0, 0, 1].into(), is_shared: false };
        let arrivals: Vec<Arrival> =
            (0..=LEAVING).map(|_| is_ready(limits.arrival()).unwrap().unwrap()).collect();
        assert!(is_ready(limits.arrival()).is_none());
        drop(arrivals);
        let known = limits.arrive(far, is_ready(limits.arrival()).unwrap());
        assert!(is_ready(limits.all_left()).is_some() && known.admit());
        assert!(is_ready(limits.all_left()).is_none());
        drop(known);
        assert!(is_ready(limits.all_left()).is_some());
    }
}
