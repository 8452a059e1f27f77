//! Clients whose gateway is killed before any step of what they ask for, so that they ask again, beside an agent that is
//! killed, too: on a store in memory.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use tempfile::TempDir;
use thread::model::subscription::{NO_HANDLER, NewSubscription};
use thread::run::WakeBy;
use thread::{After, Event};
use thread_agent::store::push_once;
use thread_conversation::runs::{Next, Noted, Runs};
use thread_conversation::{Answer, Choice, Permission, Run};
use thread_testkit::simulation::{Killed, clear, directory, leave, left, schedules};
use thread_testkit::store::SharedStore;
use thread_testkit::{Dice, say};

use super::*;
use crate::agents::seating::consumer;

thread_local! {
    /// After so many operations of the store, the process that does the next one is killed.
    static KILLED_AFTER: Cell<Option<u64>> = const { Cell::new(None) };
}

fn before(_: &str) {
    match KILLED_AFTER.get() {
        Some(0) => {
            KILLED_AFTER.set(None);
            leave(Killed)
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
    /// Where the files of the thread are.
    dir: PathBuf,
    storage: Storage,
    launcher: Launcher,
    session: SessionId,
    requests: Vec<Request>,
    /// Always there, but while it is used.
    queue: Option<Queue>,
    /// What is known from the events up to `seen`: how often each message and ending is there.
    seen: i64,
    runs: Runs,
    messages: BTreeMap<Option<String>, u32>,
    endings: BTreeMap<i64, u32>,
    /// The agent moves its cursor.
    acknowledges: bool,
    _root: TempDir,
}

impl World {
    fn new() -> World {
        let root = directory();
        World {
            dice: Dice::of(0),
            dir: root.path().join("thread"),
            storage: Storage::open(root.path(), "http://gateway".into(), None, Vec::new()).unwrap(),
            launcher: Launcher { program: "/nowhere".into(), waking: WakeBy::Nobody },
            session: SessionId::named("simulated"),
            requests: Vec::new(),
            queue: None,
            seen: 0,
            runs: Runs::default(),
            messages: BTreeMap::new(),
            endings: BTreeMap::new(),
            acknowledges: false,
            _root: root,
        }
    }

    /// Uses the thread.
    fn with<T>(&mut self, work: impl FnOnce(&mut World, &mut Queue) -> T) -> T {
        let mut queue = self.queue.take().unwrap();
        let done = left::<Killed, _>(|| work(self, &mut queue));
        self.queue = Some(queue);
        done.unwrap_or_else(|killed| leave(killed))
    }

    /// Lets a process do something, which may be killed while it does. `None` if it was.
    fn process<T>(&mut self, work: impl FnOnce(&World, &mut Queue) -> T) -> Option<T> {
        let after = self.dice.below(30);
        KILLED_AFTER.set(self.dice.one_in(2).then_some(after));
        let done = left::<Killed, _>(|| self.with(|world, queue| work(world, queue)));
        KILLED_AFTER.set(None);
        done.inspect_err(|Killed| say!("  is killed")).ok()
    }

    fn schedule(&mut self, seed: u64) {
        self.dice = Dice::of(seed);
        self.requests.clear();
        let location = SharedStore::new(before).put_at(&self.dir);
        clear(&self.dir, "");
        clear(&self.dir.join("run"), "");
        let new = NewSubscription {
            consumer: consumer(),
            handler_cmd: NO_HANDLER.into(),
            filter: None,
            cwd: None,
            options: Default::default(),
            from: None,
            replace: false,
        };
        let mut queue = Queue::open(location).unwrap();
        queue.subscribe(&new).unwrap();
        self.queue = Some(queue);
        (self.seen, self.runs, self.acknowledges) = (0, Runs::default(), self.dice.one_in(2));
        self.messages.clear();
        self.endings.clear();
        for _ in 0..self.dice.length(35) {
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
        say!("request {at}");
        let Request { author, sent, .. } = &self.requests[at];
        let (author, sent) = (author.clone(), sent.clone());
        let other = ClientMessage { content: Content::Text("something else".into()), ..sent.clone() };
        let accepted = self.process(|world, queue| world.writer(queue, &author).message(&sent).unwrap());
        let Some(Accepted { event, run_id, position, .. }) = accepted else { return };
        // It is told nothing that is not stored, and the same each time.
        self.catch_up();
        let stored = self.with(|_, queue| queue.event(event)).unwrap().expect("what is told is stored");
        assert_eq!(
            (&*stored.source, Some(&run_id)),
            (&*author.source(self.session), Record::of(stored.clone()).run_id.as_ref())
        );
        assert_eq!(position, self.runs.position(event));
        let told = self.requests[at].told.replace((event, run_id.clone()));
        assert!(told.is_none_or(|told| told == (event, run_id)), "it is told something else");
        let refused = self.with(|world, queue| world.writer(queue, &author).message(&other));
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

    /// Reads what was stored since the last time.
    fn catch_up(&mut self) {
        self.with(|world, queue| {
            for event in queue.read(After(world.seen), None).unwrap() {
                let id = event.id;
                say!("  event {id}: {:?} of {}", event.subtype, event.source);
                let record = Record::of(event);
                let is_ending = keys::is_ending(queue, id, &record.entry).unwrap();
                world.runs.note(Noted { record: &record, is_pending: true, is_ending });
                world.seen = id;
                match &record.entry {
                    Entry::Message(_) => *world.messages.entry(record.run_id.clone()).or_default() += 1,
                    entry => {
                        if let Some(of) = entry.ends() {
                            *world.endings.entry(of).or_default() += 1;
                        }
                    }
                }
            }
            if world.acknowledges
                && let Some(upto) = world.runs.acknowledge()
            {
                queue.acknowledge(&consumer(), upto).unwrap();
                world.runs.acknowledged(upto);
            }
        });
    }

    fn anybody() -> Author {
        Author { client: "c".into(), client_type: "web".into() }
    }

    /// A client cancels what is under way. If that was done, it is stored.
    fn cancels(&mut self) {
        say!("somebody cancels what is under way");
        let author = World::anybody();
        let done = self.process(|world, queue| world.writer(queue, &author).cancel(None).unwrap());
        if let Some(Some(run_id)) = done {
            let is_it = |event: &Event| {
                let record = Record::of(event.clone());
                matches!(record.entry, Entry::Cancel { .. }) && record.run_id.as_ref() == Some(&run_id)
            };
            let events = self.with(|_, queue| queue.read(After(0), None)).unwrap();
            assert!(events.iter().any(is_it), "the request to end {run_id} is not stored");
        }
    }

    /// A client answers what the agent has asked. Only the first answer is taken.
    fn permits(&mut self) {
        self.catch_up();
        let Some(asked) = self.runs.iter().flat_map(|run| &run.open_permissions).next() else { return };
        let (author, id) = (World::anybody(), asked.request_id.clone());
        say!("somebody answers {id}");
        let answer = |world: &World, queue: &mut Queue| world.writer(queue, &author).permission(&id, "yes");
        match self.process(answer) {
            Some(done) => done.unwrap(),
            None => return,
        }
        let again = self.with(|world, queue| answer(world, queue));
        assert!(matches!(again, Err(RequestError::UnknownPermission(_))), "{id} was answered twice");
    }

    /// The agent does what is next, and is perhaps killed.
    fn agent(&mut self) {
        self.catch_up();
        let (runs, asks, ends) = (self.runs.clone(), self.dice.one_in(2), self.dice.one_in(2));
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
        say!("the agent stores {:?} of {id}", event.subtype);
        let push =
            |world: &World, queue: &mut Queue| push_once(queue, &world.launcher, event.clone()).unwrap();
        if self.process(push).is_none() && event.idempotency_key.is_some() {
            // The next one ends it again.
            self.process(push);
        }
    }

    /// Each message is there once, those of a client that waits for its answers in their order, and each run has one
    /// ending at most.
    fn check(&mut self) {
        self.catch_up();
        let (messages, endings) = (&self.messages, &self.endings);
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
    schedules(300, World::new, World::schedule);
}
