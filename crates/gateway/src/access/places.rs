//! Places for connections: few for strangers, the others for those who have shown a token.
//!
//! Every connection begins as a stranger. Strangers have [`STRANGERS`] places, and [`PER_ADDRESS`] for each
//! address; when these are taken, the one who came first has to leave. So whoever opens connections and says
//! nothing only ever competes with others who do. With the right token a connection gets one of the places
//! that strangers cannot take.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::proxy::Client;
use crate::log::refused;

/// How many connections without a token there may be, in all and from one address.
const STRANGERS: usize = 256;
const PER_ADDRESS: usize = 32;

/// How many strangers may be on their way out while others come.
const LEAVING: usize = 32;

/// The places of a gateway.
pub struct Places {
    /// How many places there are for those who have shown a token.
    places: u32,
    known: Arc<Semaphore>,
    most_strangers: usize,
    /// One for each stranger that is here or on its way out.
    doors: Arc<Semaphore>,
    strangers: Mutex<VecDeque<Arc<Place>>>,
}

/// Lets one more stranger in, until it is dropped.
pub type Door = OwnedSemaphorePermit;

/// A connection's place, until it is dropped.
pub struct Seat {
    places: Arc<Places>,
    place: Arc<Place>,
}

struct Place {
    peer: IpAddr,
    client: Mutex<Client>,
    /// Set once the connection has shown a token.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    door: Mutex<Option<Door>>,
    /// Set once the connection has to make room for another.
    leave: watch::Sender<bool>,
}

impl Places {
    /// With so many places for connections that have shown a token, and at most so many for strangers.
    pub fn new(places: u32, strangers: usize) -> Places {
        let most_strangers = strangers.clamp(1, STRANGERS);
        Places {
            places,
            known: Arc::new(Semaphore::new(places as usize)),
            most_strangers,
            doors: Arc::new(Semaphore::new(most_strangers + LEAVING)),
            strangers: Mutex::default(),
        }
    }

    /// Waits until those who had to leave are gone, so that strangers never take more files than they may.
    /// `None` would mean that no more can come.
    pub async fn door(&self) -> Option<Door> {
        self.doors.clone().acquire_owned().await.ok()
    }

    /// Gives a new connection a place among the strangers.
    pub fn arrive(self: &Arc<Places>, client: Client, door: Option<Door>) -> Seat {
        let (permit, door, leave) = (Mutex::default(), Mutex::new(door), watch::Sender::new(false));
        let place = Arc::new(Place { peer: client.address, client: Mutex::new(client), permit, door, leave });
        let mut strangers = self.strangers();
        if !make_room_for(client, &place, &mut strangers) && strangers.len() >= self.most_strangers {
            dismiss(strangers.pop_front());
        }
        strangers.push_back(place.clone());
        drop(strangers);
        Seat { places: self.clone(), place }
    }

    /// Waits until all connections that were let in have ended.
    pub async fn all_left(&self) {
        drop(self.known.acquire_many(self.places).await);
    }

    fn strangers(&self) -> MutexGuard<'_, VecDeque<Arc<Place>>> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets the stranger leave who came first of a client's address, if this has all its places but that of
/// `place`. Returns whether it had.
fn make_room_for(client: Client, place: &Arc<Place>, strangers: &mut VecDeque<Arc<Place>>) -> bool {
    let same = |other: &Arc<Place>| !Arc::ptr_eq(other, place) && other.client().address == client.address;
    let is_full = !client.is_shared && strangers.iter().filter(|other| same(other)).count() >= PER_ADDRESS;
    if is_full {
        dismiss(strangers.iter().position(same).and_then(|first| strangers.remove(first)));
    }
    is_full
}

fn dismiss(place: Option<Arc<Place>>) {
    if let Some(place) = place {
        refused(place.client().address, "", "another connection without a token took its place");
        place.leave.send_replace(true);
    }
}

impl Place {
    fn client(&self) -> Client {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Who has opened the connection.
    pub fn peer(&self) -> IpAddr {
        self.place.peer
    }

    /// Whose connection it is, as far as that is known.
    pub fn client(&self) -> Client {
        self.place.client()
    }

    /// Says whose request it is that came over the connection: a proxy has one for many clients.
    pub fn is_for(&self, client: Client) {
        if self.client() == client {
            return;
        }
        let mut strangers = self.places.strangers();
        *self.place.client.lock().unwrap_or_else(PoisonError::into_inner) = client;
        if strangers.iter().any(|other| Arc::ptr_eq(other, &self.place)) {
            make_room_for(client, &self.place, &mut strangers);
        }
    }

    /// Moves a connection that has shown a token to one of the places for those. Returns false if all are
    /// taken.
    pub fn admit(&self) -> bool {
        let mut permit = self.place.permit.lock().unwrap_or_else(PoisonError::into_inner);
        if permit.is_none() {
            let Ok(taken) = self.places.known.clone().try_acquire_owned() else { return false };
            *permit = Some(taken);
            self.leave_strangers();
            drop(self.place.door.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
        true
    }

    /// Waits until the connection has to make room for another.
    pub async fn dismissed(&self) {
        // The sender lives as long as `self`.
        drop(self.place.leave.subscribe().wait_for(|leave| *leave).await.map(|leave| *leave));
    }

    fn leave_strangers(&self) {
        self.places.strangers().retain(|other| !Arc::ptr_eq(other, &self.place));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave_strangers();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use super::*;

    fn leaves(seat: &Seat) -> bool {
        let mut dismissed = std::pin::pin!(seat.dismissed());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        dismissed.as_mut().poll(&mut cx).is_ready()
    }

    #[test]
    fn strangers_compete_with_strangers_only() {
        let places = Arc::new(Places::new(1, 1000));
        let local = Client { address: [127, 0, 0, 1].into(), is_shared: true };
        let far = Client { address: [10, 0, 0, 1].into(), is_shared: false };
        let known = places.arrive(far, None);
        assert!(known.admit() && known.admit());
        let seats: Vec<Seat> = (0..PER_ADDRESS).map(|_| places.arrive(far, None)).collect();
        assert!(!seats[1].admit(), "there is one place only");
        let mut others: Vec<Seat> =
            (1..STRANGERS - PER_ADDRESS).map(|_| places.arrive(local, None)).collect();
        assert!(!seats.iter().chain(&others).any(leaves));
        // One more of an address that has all its places.
        let another = places.arrive(far, None);
        assert!(leaves(&seats[0]) && !leaves(&seats[1]));
        // All places are taken: the first of all has to leave.
        others.push(places.arrive(local, None));
        others.push(places.arrive(local, None));
        assert!(leaves(&seats[1]) && !leaves(&seats[2]) && !leaves(&others[0]) && !leaves(&known));
        drop(known);
        assert!(another.admit());
    }

    #[test]
    fn who_comes_by_a_proxy_has_the_places_of_one_address() {
        let places = Arc::new(Places::new(1, 1000));
        let proxy = Client { address: [127, 0, 0, 1].into(), is_shared: true };
        let client = |n| Client { address: [10, 0, 0, n].into(), is_shared: false };
        let seats: Vec<Seat> = (0..=PER_ADDRESS).map(|_| places.arrive(proxy, None)).collect();
        let other = places.arrive(proxy, None);
        other.is_for(client(2));
        seats.iter().for_each(|seat| seat.is_for(client(1)));
        assert!(leaves(&seats[0]) && !seats[1..].iter().any(leaves) && !leaves(&other));
        // A connection that the proxy uses again for somebody else.
        other.is_for(client(1));
        other.is_for(client(1));
        assert!(leaves(&seats[1]) && !seats[2..].iter().any(leaves) && !leaves(&other));
        assert!(other.admit());
        other.is_for(client(2));
        assert_eq!(other.client(), client(2));
    }
}
