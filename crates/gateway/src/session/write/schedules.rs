//! Clients whose gateway is killed before any step of what they ask for, so that they ask again, beside an agent that is
//! killed, too: on a store in memory.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::{Mutex, Once};

use thread::model::location::Location;
use thread::model::subscription::{NO_HANDLER, NewSubscription};
use thread::queue::locations::{Scheme, add};
use thread::run::WakeBy;
use thread::{After, Event};
use thread_agent::store::push_once;
use thread_conversation::runs::{Next, Runs};
use thread_conversation::{Answer, Choice, Permission, Run};
use thread_testkit::store::SharedStore;
use thread_testkit::{Dice, schedules};

use super::*;
use crate::agents::seating::consumer;

/// How a process is killed.
struct Killed;

thread_local! {
    /// After so many operations of the store, the process that does the next one is killed.
    static KILLED_AFTER: Cell<Option<u64>> = const { Cell::new(None) };
}

static STORES: Mutex<BTreeMap<Location, SharedStore>> = Mutex::new(BTreeMap::new());

fn before(_: &str) {
    match KILLED_AFTER.get() {
        Some(0) => {
            KILLED_AFTER.set(None);
            resume_unwind(Box::new(Killed))
        }
        left => KILLED_AFTER.set(left.map(|left| left - 1)),
    }
}

/// A client's request for a message, and what it was told.
struct Request {
    author: Author,
    sent: ClientMessage,
    /// The event and the run.
    told: Option<(i64, String)>,
}

struct World {
    dice: Dice,
    location: Location,
    storage: Storage,
    launcher: Launcher,
    session: SessionId,
    requests: Vec<Request>,
}

impl World {
    fn new(dir: &std::path::Path) -> World {
        static ONCE: Once = Once::new();
        let base = |location: &Location| {
            Ok(PathBuf::from(location.as_os_str().to_str().unwrap().replace("written://", "")))
        };
        ONCE.call_once(|| {
            add(Scheme {
                name: "written",
                base,
                open: |location, _| Ok(Box::new(STORES.lock().unwrap()[location].clone())),
                init: |_| Ok(()),
                threads: |_| None,
                changes: |_| Vec::new(),
                listen: |_| {},
                leave: || {},
                spare: || {},
            });
        });
        World {
            dice: Dice::of(0),
            location: PathBuf::from(format!("written://{}/thread", dir.display())).into(),
            storage: Storage::open(dir, "http://gateway".into(), None, Vec::new()).unwrap(),
            launcher: Launcher { program: "/nowhere".into(), waking: WakeBy::Nobody },
            session: SessionId::random(),
            requests: Vec::new(),
        }
    }

    fn queue(&self) -> Queue {
        Queue::open(self.location.clone()).unwrap()
    }

    /// Lets a process do something, which may be killed while it does. `None` if it was.
    fn process<T>(&mut self, work: impl FnOnce(&World, &mut Queue) -> T) -> Option<T> {
        let after = self.dice.below(30);
        KILLED_AFTER.set(self.dice.one_in(2).then_some(after));
        let done = catch_unwind(AssertUnwindSafe(|| work(self, &mut self.queue())));
        KILLED_AFTER.set(None);
        match done {
            Ok(done) => Some(done),
            Err(how) if how.is::<Killed>() => None,
            Err(failed) => resume_unwind(failed),
        }
    }

    fn schedule(&mut self, seed: u64) {
        self.dice = Dice::of(seed);
        self.requests.clear();
        STORES.lock().unwrap().insert(self.location.clone(), SharedStore::new(before));
        let new = NewSubscription {
            consumer: consumer(),
            handler_cmd: NO_HANDLER.into(),
            filter: None,
            cwd: None,
            options: Default::default(),
            from: None,
            replace: false,
        };
        self.queue().subscribe(&new).unwrap();
        for _ in 0..5 + self.dice.below(30) {
            match self.dice.below(10) {
                0..3 => self.asks(),
                3..6 => self.asks_again(),
                6 => self.cancels(),
                7 => self.permits(),
                _ => self.agent(),
            }
            self.check();
        }
        while self.requests.iter().any(|request| request.told.is_none()) {
            self.asks_again();
        }
        self.check();
    }

    /// A client sends a message.
    fn asks(&mut self) {
        let client = ["a", "b"][self.dice.below(2) as usize].to_owned();
        let number = self.requests.len();
        let priority = *self.dice.pick(&[Priority::Next, Priority::Now, Priority::Later]);
        self.requests.push(Request {
            author: Author { client, client_type: "web".into() },
            sent: ClientMessage {
                content: Content::Text(format!("message {}", number % 3)),
                priority,
                metadata: Map::new(),
                key: Some(format!("key {number}")),
                is_only: false,
                run_id: None,
                message_id: None,
                due: None,
                attachments: Vec::new(),
            },
            told: None,
        });
        self.sends(number);
    }

    fn asks_again(&mut self) {
        if !self.requests.is_empty() {
            let at = self.dice.below(self.requests.len() as u64) as usize;
            self.sends(at);
        }
    }

    fn sends(&mut self, at: usize) {
        let Request { author, sent, .. } = &self.requests[at];
        let (author, sent) = (author.clone(), sent.clone());
        let other = ClientMessage { content: Content::Text("something else".into()), ..sent.clone() };
        let accepted = self.process(|world, queue| world.writer(queue, &author).message(&sent).unwrap());
        let Some(Accepted { event, run_id, position, .. }) = accepted else { return };
        // It is told nothing that is not stored, and the same each time.
        let stored = self.queue().event(event).unwrap().expect("what is told is stored");
        assert_eq!(
            (&*stored.source, Some(&run_id)),
            (&*author.source(self.session), Record::of(stored.clone()).run_id.as_ref())
        );
        assert_eq!(position, open_runs(&mut self.queue()).unwrap().1.position(event));
        let told = self.requests[at].told.replace((event, run_id.clone()));
        assert!(told.is_none_or(|told| told == (event, run_id)), "it is told something else");
        let mut queue = self.queue();
        let refused = self.writer(&mut queue, &author).message(&other);
        assert!(matches!(refused, Err(RequestError::KeyConflict(_))), "the key was given to another message");
    }

    fn writer<'w>(&'w self, queue: &'w mut Queue, author: &'w Author) -> SessionWriter<'w> {
        SessionWriter {
            queue,
            launcher: &self.launcher,
            storage: &self.storage,
            session: self.session,
            author,
        }
    }

    fn runs(&self) -> Runs {
        open_runs(&mut self.queue()).unwrap().1
    }

    fn anybody() -> Author {
        Author { client: "c".into(), client_type: "web".into() }
    }

    /// A client cancels what is under way. If that was done, it is stored.
    fn cancels(&mut self) {
        let author = World::anybody();
        let done = self.process(|world, queue| world.writer(queue, &author).cancel(None).unwrap());
        if let Some(Some(run_id)) = done {
            let is_it = |event: &Event| {
                let record = Record::of(event.clone());
                matches!(record.entry, Entry::Cancel { .. }) && record.run_id.as_ref() == Some(&run_id)
            };
            assert!(self.events().iter().any(is_it), "the request to end {run_id} is not stored");
        }
    }

    /// A client answers what the agent has asked. Only the first answer is taken.
    fn permits(&mut self) {
        let runs = self.runs();
        let Some(asked) = runs.iter().flat_map(|run| &run.open_permissions).next() else { return };
        let (author, id) = (World::anybody(), asked.request_id.clone());
        let answer = |world: &World, queue: &mut Queue| world.writer(queue, &author).permission(&id, "yes");
        match self.process(answer) {
            Some(done) => done.unwrap(),
            None => return,
        }
        let mut queue = self.queue();
        let again = answer(self, &mut queue);
        assert!(matches!(again, Err(RequestError::UnknownPermission(_))), "{id} was answered twice");
    }

    /// The agent does what is next, and is perhaps killed.
    fn agent(&mut self) {
        let (runs, asks, ends) = (self.runs(), self.dice.one_in(2), self.dice.one_in(2));
        let (Next::Run(id) | Next::End(id, _) | Next::GiveUp(id)) = runs.next(3) else { return };
        let Some(open) = runs.get(id) else { return };
        let attempt = Run { attempt: open.run.attempt.max(1), ..open.run.clone() };
        let event = match runs.next(3) {
            Next::Run(_) if !open.in_attempt => Run { attempt: open.run.attempt + 1, ..attempt }.started(),
            Next::Run(_) if asks => attempt.permission(&Permission {
                request_id: format!("asked {}", self.dice.below(1000)),
                choices: vec![Choice { id: "yes".into(), name: "Yes".into(), kind: "allow_once".into() }],
                ..serde_json::from_value(serde_json::json!({ "request_id": "", "choices": [] })).unwrap()
            }),
            Next::Run(_) if !ends => attempt.attempt_failed("killed", None),
            Next::Run(_) => attempt.answer(&Answer { content: "done".into(), ..Answer::default() }),
            Next::GiveUp(_) => attempt.failed("out of attempts", ""),
            _ => attempt.cancelled("by a client", ""),
        };
        let push =
            |world: &World, queue: &mut Queue| push_once(queue, &world.launcher, event.clone()).unwrap();
        if self.process(push).is_none() && event.idempotency_key.is_some() {
            // The next one ends it again.
            self.process(push);
        }
    }

    fn events(&self) -> Vec<Event> {
        self.queue().read(After(0), None).unwrap()
    }

    /// Each message is there once, those of a client that waits for its answers in their order, and each run has one
    /// ending at most.
    fn check(&self) {
        let (mut messages, mut endings) = (BTreeMap::new(), BTreeMap::new());
        for event in self.events() {
            let record = Record::of(event);
            match &record.entry {
                Entry::Message(_) => *messages.entry(record.run_id.clone()).or_insert(0) += 1,
                entry => {
                    if let Some(of) = entry.ends() {
                        *endings.entry(of).or_insert(0) += 1;
                    }
                }
            }
        }
        assert!(messages.values().all(|count| *count == 1), "a message is stored twice: {messages:?}");
        assert!(endings.values().all(|count| *count == 1), "a run has two endings: {endings:?}");
        assert!(messages.len() <= self.requests.len());
        let told: Vec<i64> =
            self.requests.iter().filter_map(|request| Some(request.told.as_ref()?.0)).collect();
        assert_eq!(told.iter().collect::<std::collections::BTreeSet<_>>().len(), told.len(), "{told:?}");
    }
}

#[test]
fn what_clients_are_told_is_stored_and_stored_once_wherever_the_gateway_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path());
    schedules(100, |seed| world.schedule(seed));
}
