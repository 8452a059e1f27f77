//! The rules of the lease and of waking as small state machines, of which every reachable state is checked. Deliberate
//! errors in the rules must be found.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;

/// All reachable states; the first one that is not `sound`, if there is one.
fn explore<S: Clone + Eq + Hash + Debug>(
    first: S,
    next: impl Fn(&S) -> Vec<S>,
    sound: impl Fn(&S) -> bool,
) -> Result<usize, Box<S>> {
    let (mut known, mut left) = (HashSet::from([first.clone()]), vec![first]);
    while let Some(state) = left.pop() {
        if !sound(&state) {
            return Err(Box::new(state));
        }
        for after in next(&state) {
            if known.insert(after.clone()) {
                left.push(after);
            }
        }
    }
    Ok(known.len())
}

/// Errors in the rule of the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// The holder counts from the answer to its renewal.
    CountsFromAnswer,
    /// Another machine takes the lease a little early.
    TakesEarly,
    /// A crash of the server undoes a renewal.
    RenewalIsNotSynced,
    /// A handler outlives its supervisor.
    OrphanGoesOn,
    /// The lease is taken without a look at whether it was renewed since.
    TakesUnseen,
}

/// The length of a lease, in steps of time. Handlers are gone when a quarter of it is left.
const LENGTH: u8 = 4;
const MARGIN: u8 = 1;

/// How often the lease may be renewed or taken.
const MOST: u8 = 3;

/// A lease as the server has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Row {
    epoch: u8,
    renewal: u8,
    holder: Option<usize>,
}

/// A request that was sent and not answered yet. It may be executed at any time, even after its sender was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Request {
    /// `None` for a renewal; otherwise the row that was seen for a whole lease.
    takes: Option<Row>,
    epoch: u8,
    /// Time since it was sent.
    age: u8,
    /// The epoch that it got, once it was executed.
    done: Option<Option<u8>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Machine {
    is_cut: bool,
    /// The epoch that it has, and the time since the last renewal was sent.
    lease: Option<(u8, u8)>,
    is_running: bool,
    request: Option<Request>,
    /// The lease of another machine that it has seen, and for how long.
    seen: Option<(Row, u8)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    row: Row,
    /// The row before the last renewal, which a crash may restore if the renewal was not synced.
    before: Row,
    machines: [Machine; 2],
    /// A clock may run fast by this much.
    drift: u8,
}

fn steps(world: &World, wrong: Wrong) -> Vec<World> {
    let mut next = vec![time(world, None)];
    if world.drift > 0 {
        next.extend((0..2).map(|fast| World { drift: world.drift - 1, ..time(world, Some(fast)) }));
    }
    if wrong == Wrong::RenewalIsNotSynced {
        next.push(World { row: world.before, ..*world });
    }
    for at in 0..2 {
        let machine = world.machines[at];
        let mut with = |machine: Machine, row: Option<Row>| {
            let mut after = *world;
            after.machines[at] = machine;
            if let Some(row) = row {
                after.before = if wrong == Wrong::RenewalIsNotSynced && row.epoch == world.row.epoch {
                    world.row
                } else {
                    row
                };
                after.row = row;
            }
            next.push(after);
        };
        with(Machine { is_cut: !machine.is_cut, ..machine }, None);
        // Killed; what it saw is in a file.
        let orphan = machine.is_running && wrong == Wrong::OrphanGoesOn;
        with(
            Machine { seen: machine.seen, is_cut: machine.is_cut, is_running: orphan, ..Machine::default() },
            None,
        );
        match machine.request {
            None => {
                // Looks at the row.
                if machine.lease.is_none() && !machine.is_cut {
                    let row = world.row;
                    if row.holder.is_some_and(|holder| holder != at)
                        && machine.seen.map(|(seen, _)| seen) != Some(row)
                    {
                        with(Machine { seen: Some((row, 0)), ..machine }, None);
                    }
                    let patience = if wrong == Wrong::TakesEarly { LENGTH - 1 } else { LENGTH };
                    let is_free = row.holder.is_none_or(|holder| holder == at);
                    let is_over = machine.seen.is_some_and(|(seen, age)| seen == row && age >= patience);
                    if is_free || is_over {
                        let request = Request { takes: Some(row), epoch: 0, age: 0, done: None };
                        with(Machine { request: Some(request), ..machine }, None);
                    }
                }
                if let Some((epoch, _)) = machine.lease {
                    let request = Request { takes: None, epoch, age: 0, done: None };
                    with(Machine { request: Some(request), ..machine }, None);
                    // Gives it back once its handler has ended.
                    if !machine.is_cut {
                        let own = world.row.epoch == epoch;
                        let row = if own { Row { holder: None, ..world.row } } else { world.row };
                        with(Machine { lease: None, is_running: false, ..machine }, Some(row));
                    }
                }
            }
            Some(request) => match request.done {
                None => {
                    let row = world.row;
                    let epoch = match request.takes {
                        Some(seen) if seen == row || wrong == Wrong::TakesUnseen => Some(row.epoch + 1),
                        None if row.epoch == request.epoch => Some(row.epoch),
                        _ => None,
                    };
                    let done = Machine { request: Some(Request { done: Some(epoch), ..request }), ..machine };
                    let row = epoch.map(|epoch| Row { epoch, renewal: row.renewal + 1, holder: Some(at) });
                    if row.is_none_or(|row| row.renewal <= MOST) {
                        with(done, row);
                    }
                }
                Some(epoch) if !machine.is_cut => {
                    let age = if wrong == Wrong::CountsFromAnswer { 0 } else { request.age };
                    let lease = epoch.map(|epoch| (epoch, age));
                    let is_running = lease.is_some() && age < LENGTH - MARGIN && machine.lease.is_none()
                        || lease.is_some() && machine.is_running;
                    with(Machine { request: None, lease, is_running, ..machine }, None);
                }
                // No request waits for its answer for ever.
                Some(_) => with(Machine { request: None, ..machine }, None),
            },
        }
    }
    next
}

/// Time passes, on one machine a little faster. Handlers whose lease is about to be over are killed.
fn time(world: &World, fast: Option<usize>) -> World {
    let mut after = *world;
    for (at, machine) in after.machines.iter_mut().enumerate() {
        let step = if fast == Some(at) { 2 } else { 1 };
        let older = |age: u8| (age + step).min(LENGTH);
        machine.lease = machine.lease.map(|(epoch, age)| (epoch, older(age)));
        machine.request = machine.request.map(|request| Request { age: older(request.age), ..request });
        machine.seen = machine.seen.map(|(row, age)| (row, older(age)));
        if machine.lease.is_some_and(|(_, age)| age >= LENGTH - MARGIN) {
            machine.is_running = false;
        }
    }
    after
}

fn leases(wrong: Wrong) -> Result<usize, Box<World>> {
    let row = Row { epoch: 0, renewal: 0, holder: None };
    let first = World { row, before: row, machines: Default::default(), drift: 1 };
    explore(
        first,
        |world| steps(world, wrong),
        |world| {
            let [one, other] = world.machines;
            let of_one_epoch = one.lease.zip(other.lease).is_some_and(|(one, other)| one.0 == other.0);
            !(one.is_running && other.is_running || of_one_epoch)
        },
    )
}

#[test]
fn no_two_machines_run_a_consumer_at_once() {
    let states = leases(Wrong::Nothing).unwrap();
    println!("leases: {states} states");
    assert!(states > 10_000, "{states}");
}

#[test]
fn errors_in_the_rule_of_the_lease_are_found() {
    for wrong in [
        Wrong::CountsFromAnswer,
        Wrong::TakesEarly,
        Wrong::RenewalIsNotSynced,
        Wrong::OrphanGoesOn,
        Wrong::TakesUnseen,
    ] {
        assert!(leases(wrong).is_err(), "{wrong:?}");
    }
}

/// Errors in the rule of waking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Careless {
    Nobody,
    /// The notice goes out before the commit.
    NoticeFirst,
    /// A supervisor looks again before it gives back the lease, instead of afterwards.
    LooksFirst,
    /// A worker relies on notices, and does not ask once a second.
    NeverAsks,
    /// Nobody takes the lease of a supervisor that was killed.
    NeverOver,
}

/// A process that starts handlers, one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Supervisor {
    /// There is none.
    None,
    /// It knows whether anything is pending, and takes the lease if it is free.
    Looked(bool),
    /// It handles what was there when it began.
    Runs(u8),
    /// The run is over.
    Ends,
    /// It has given back the lease, and looks next.
    GaveBack,
    /// It has looked too early, and gives back the lease next.
    LookedEarly,
}

/// Two workers, which look when there is a notice, and their supervisors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Waking {
    /// What each pusher has done of its two steps.
    pushers: [u8; 2],
    stored: u8,
    handled: u8,
    is_held: bool,
    /// Whether there is a notice for the worker, and what its look has found.
    workers: [(bool, Option<bool>); 2],
    /// Of any machine. One that has given back its lease may still be there when the next one begins.
    supervisors: [Supervisor; 3],
    /// How many processes may still be killed.
    kills: u8,
    /// The lease is held, but its holder was killed.
    is_orphaned: bool,
}

/// Without kills, workers do not query once a second: notices and looks alone must be enough. With kills they do: a
/// pusher may be killed between its commit and its notice, a worker after it got a notice, a supervisor while it holds
/// the lease.
fn waking_steps(now: &Waking, careless: Careless, asks: bool) -> Vec<Waking> {
    let mut next = Vec::new();
    let pending = now.stored > now.handled;
    if now.is_orphaned && careless != Careless::NeverOver {
        next.push(Waking { is_held: false, is_orphaned: false, ..*now });
    }
    for at in 0..2 {
        if asks && pending && careless != Careless::NeverAsks && now.workers[at].1.is_none() {
            let mut after = *now;
            after.workers[at].1 = Some(true);
            next.push(after);
        }
        if now.pushers[at] < 2 {
            let mut after = *now;
            after.pushers[at] += 1;
            if (now.pushers[at] == 0) != (careless == Careless::NoticeFirst) {
                after.stored += 1;
            } else {
                after.workers.iter_mut().for_each(|(noticed, _)| *noticed = true);
            }
            next.push(after);
        }
        let mut after = *now;
        let free = now.supervisors.iter().position(|supervisor| *supervisor == Supervisor::None);
        match (now.workers[at], free) {
            ((true, None), _) => after.workers[at] = (false, Some(pending)),
            ((noticed, Some(true)), Some(free)) if !now.is_held => {
                after.workers[at] = (noticed, None);
                after.supervisors[free] = Supervisor::Looked(true);
            }
            // If it is held, its holder looks again.
            ((noticed, Some(found)), _) if now.is_held || !found => after.workers[at] = (noticed, None),
            _ => {}
        }
        next.extend((after != *now).then_some(after));
    }
    for at in 0..now.supervisors.len() {
        let mut after = *now;
        after.supervisors[at] = match now.supervisors[at] {
            Supervisor::None => continue,
            Supervisor::Looked(true) if !now.is_held => {
                after.is_held = true;
                Supervisor::Runs(now.stored)
            }
            Supervisor::Looked(_) => Supervisor::None,
            Supervisor::Runs(upto) => {
                after.handled = upto;
                Supervisor::Ends
            }
            Supervisor::Ends if careless == Careless::LooksFirst && pending => Supervisor::Runs(now.stored),
            Supervisor::Ends if careless == Careless::LooksFirst => Supervisor::LookedEarly,
            Supervisor::LookedEarly => {
                after.is_held = false;
                Supervisor::None
            }
            Supervisor::Ends => {
                after.is_held = false;
                Supervisor::GaveBack
            }
            Supervisor::GaveBack => Supervisor::Looked(pending),
        };
        next.push(after);
    }
    next
}

/// Kills of any process at any time.
fn kills(now: &Waking) -> Vec<Waking> {
    let mut next = Vec::new();
    if now.kills == 0 {
        return next;
    }
    let fewer = Waking { kills: now.kills - 1, ..*now };
    for at in 0..2 {
        let mut after = fewer;
        after.pushers[at] = 2;
        next.push(after);
        let mut after = fewer;
        after.workers[at] = (false, None);
        next.push(after);
    }
    for at in 0..now.supervisors.len() {
        let mut after = fewer;
        let has_lease =
            matches!(now.supervisors[at], Supervisor::Runs(_) | Supervisor::Ends | Supervisor::LookedEarly);
        after.supervisors[at] = Supervisor::None;
        after.is_orphaned |= has_lease;
        next.push(after);
    }
    next
}

fn waking(careless: Careless, most_kills: u8) -> Result<usize, Box<Waking>> {
    let first = Waking {
        pushers: [0; 2],
        stored: 0,
        handled: 0,
        is_held: false,
        workers: [(false, None); 2],
        supervisors: [Supervisor::None; 3],
        kills: most_kills,
        is_orphaned: false,
    };
    let steps = |now: &Waking| waking_steps(now, careless, most_kills > 0);
    let before: RefCell<HashMap<Waking, Vec<Waking>>> = RefCell::default();
    let known = RefCell::new(Vec::new());
    let states = explore(
        first,
        |now| {
            let after = steps(now);
            after.iter().for_each(|after| before.borrow_mut().entry(*after).or_default().push(*now));
            known.borrow_mut().push(*now);
            after.into_iter().chain(kills(now)).collect()
        },
        |_| true,
    )?;
    // From each state, a state in which nothing is pending can be reached without further kills.
    let (mut before, known) = (before.into_inner(), known.into_inner());
    let mut left: Vec<Waking> = known.iter().filter(|now| now.handled == now.stored).copied().collect();
    let mut good: HashSet<Waking> = left.iter().copied().collect();
    while let Some(one) = left.pop() {
        let earlier = before.remove(&one).unwrap_or_default();
        left.extend(earlier.into_iter().filter(|earlier| good.insert(*earlier)));
    }
    match known.into_iter().find(|now| !good.contains(now)) {
        Some(stuck) => Err(Box::new(stuck)),
        None => Ok(states),
    }
}

#[test]
fn no_stored_event_stays_pending_for_ever() {
    for most_kills in [0, 2] {
        let states = waking(Careless::Nobody, most_kills).unwrap();
        println!("waking, with up to {most_kills} processes killed: {states} states");
        assert!(states > 500, "{states}");
    }
}

#[test]
fn errors_in_the_rule_of_waking_are_found() {
    for (careless, kills) in [
        (Careless::NoticeFirst, 0),
        (Careless::LooksFirst, 0),
        (Careless::NeverAsks, 1),
        (Careless::NeverOver, 1),
    ] {
        assert!(waking(careless, kills).is_err(), "{careless:?}");
    }
}

/// How ids are assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ids {
    /// By a row that is locked until the commit.
    Counter,
    /// By a sequence.
    Sequence,
    /// By a row that is read and locked only when it is written.
    ReadFirst,
}

const WRITERS: usize = 3;

/// Writers of one event each, and a reader that asks for newer ids. Sets of ids are bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Order {
    /// The id that each has and has not committed.
    has: [Option<u8>; WRITERS],
    left: [bool; WRITERS],
    newest: u8,
    committed: u8,
    /// Two events got the same id.
    is_doubled: bool,
    /// The newest id that the reader has seen, and all of them.
    last: u8,
    seen: u8,
}

fn order_steps(now: &Order, ids: Ids) -> Vec<Order> {
    let mut next = Vec::new();
    for at in 0..WRITERS {
        match now.has[at] {
            // Waits for the row.
            None if ids == Ids::Counter && now.has.iter().any(Option::is_some) => {}
            None if now.left[at] => {
                let mut after = *now;
                after.left[at] = false;
                after.has[at] = Some(now.newest + 1);
                if ids == Ids::Sequence {
                    after.newest += 1;
                }
                next.push(after);
            }
            None => {}
            Some(id) => {
                let mut after = *now;
                after.has[at] = None;
                // Killed, or the transaction fails.
                next.push(after);
                after.newest = after.newest.max(id);
                after.is_doubled |= now.committed & (1 << id) != 0;
                after.committed |= 1 << id;
                next.push(after);
            }
        }
    }
    // The reader sees what is committed and newer than what it saw.
    let newer = now.committed & (u8::MAX << (now.last + 1));
    if newer != 0 {
        next.push(Order { last: 7 - newer.leading_zeros() as u8, seen: now.seen | newer, ..*now });
    }
    next
}

fn order(ids: Ids) -> Result<usize, Box<Order>> {
    let first = Order {
        has: [None; WRITERS],
        left: [true; WRITERS],
        newest: 0,
        committed: 0,
        is_doubled: false,
        last: 0,
        seen: 0,
    };
    explore(
        first,
        |now| order_steps(now, ids),
        |now| {
            let passed = now.committed & !now.seen & ((1 << (now.last + 1)) - 1);
            // Without a gap, what is committed are the lowest ids.
            let is_gapless = ids == Ids::Sequence || ((now.committed >> 1) + 1).is_power_of_two();
            passed == 0 && !now.is_doubled && is_gapless
        },
    )
}

#[test]
fn no_reader_passes_an_id_that_is_committed_later() {
    let states = order(Ids::Counter).unwrap();
    println!("ids: {states} states");
    assert!(states > 30, "{states}");
    for wrong in [Ids::Sequence, Ids::ReadFirst] {
        assert!(order(wrong).is_err(), "{wrong:?}");
    }
}
