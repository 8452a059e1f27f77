//! Random runs, translated for clients that lose their connections at any event, and continue runs that wait for them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use thread::NewEvent;
use thread_conversation::runs::Runs;
use thread_conversation::{
    Answer, Choice, ClientInput, Message, ModelTurn, Permission, Status, SubAgent, ToolCall, ToolResult,
    continued, permission_answer, sub_agent,
};
use thread_testkit::simulation::schedules;
use thread_testkit::{Dice, say};

use super::protocol::{Client, OWN_TOOL};
use super::*;

const WEB: &str = "external:web:main:dm:default:ada";
const CALLS: [&str; 3] = ["a", "b", "c"];
const REQUESTS: [&str; 2] = ["p", "q"];

/// A thread with the run of its first message.
struct Session {
    dice: Dice,
    events: Vec<SessionEvent>,
    run: thread_conversation::Run,
    /// What the agent has said in its last turn.
    said: String,
    is_over: bool,
}

/// A client, and what it has got.
struct Follower {
    client: Client,
    start: Start,
    translator: Translator,
    /// What it knew after each event of its stream.
    known: BTreeMap<i64, Client>,
    /// The events of its stream that it has got.
    got: BTreeMap<i64, Vec<Value>>,
    fed: i64,
    after: i64,
}

impl Session {
    fn new(seed: u64) -> Session {
        let run = thread_conversation::Run { run_id: "r".into(), reply_to: 1, attempt: 1, is_own: false };
        let mut session =
            Session { dice: Dice::of(seed), events: Vec::new(), run, said: String::new(), is_over: false };
        let message = Message { run_id: Some("r".into()), ..Message::text("hello") };
        session.store(&message.event(WEB).unwrap());
        session
    }

    fn newest(&self) -> i64 {
        self.events.len() as i64
    }

    fn store(&mut self, event: &NewEvent<'_>) {
        let id = self.newest() + 1;
        say!("event {id}: {:?} {} {:?}", event.subtype, event.content, event.metadata);
        self.events.push(SessionEvent::stored(id, event));
    }

    /// Something whose content is too large to be read.
    fn store_large(&mut self, event: &NewEvent<'_>) {
        let empty = NewEvent { content: "".into(), ..event.clone() };
        self.store(&empty);
        self.events.last_mut().unwrap().large = Some(1 << 30);
    }

    /// Whether a stream may stop at this event. A client that resumes after it counts as one that was stopped there.
    fn may_stop_at(&self, id: i64) -> bool {
        let record = &self.events[(id - 1) as usize].record;
        record.for_client || matches!(record.entry, Entry::Permission(_) | Entry::Continued { .. })
    }

    fn pending(&self) -> PendingInput {
        let mut runs = Runs::default();
        for event in &self.events {
            runs.note(event.noted(event.id() == 1));
        }
        let upto = self.newest();
        let Some(run) = runs.get(1) else { return PendingInput { upto, ..PendingInput::default() } };
        let permissions = run.open_permissions.iter().map(|asked| asked.request_id.clone()).collect();
        PendingInput { upto, permissions, calls: run.open_calls.keys().cloned().collect() }
    }

    fn call(&mut self) -> String {
        (*self.dice.pick(&CALLS)).to_owned()
    }

    /// The id of a request for permission. Another attempt has others.
    fn request(&mut self) -> String {
        format!("{}{}", self.dice.pick(&REQUESTS), self.run.attempt)
    }

    /// The agent, or somebody else, stores something.
    fn step(&mut self) {
        let run = self.run.clone();
        let piece = ["x", "yz", "", "é"][self.dice.below(4) as usize];
        let event = match self.dice.below(28) {
            0 | 1 => {
                self.run.attempt += 1;
                self.said.clear();
                self.run.started()
            }
            2 => run.attempt_failed("killed", None),
            3..7 => {
                self.said += piece;
                run.token("m", piece)
            }
            7 | 8 => run.thinking("m", piece),
            9..12 => run.tool_call(&ToolCall::new(self.call(), "ls", Value::Null)),
            12..15 => {
                let outcome = match self.dice.below(3) {
                    0 => Ok(json!({ "sub_agent": "s", "status": "started" })),
                    1 => Err("no".to_owned()),
                    _ => Ok(json!("done")),
                };
                run.tool_result(&ToolResult::new(self.call(), "ls", outcome))
            }
            15 => run.client_tool_call(&ToolCall::new(self.call(), OWN_TOOL, json!({ "x": 1 }))),
            16 => {
                let result = ToolResult::new(self.call(), OWN_TOOL, Ok(json!("drawn")));
                run.client_tool_result("web", &result, ClientInput::default())
            }
            17 => run.permission(&Permission {
                request_id: self.request(),
                title: "may it?".into(),
                call_id: self.dice.one_in(2).then(|| "a".to_owned()),
                choices: vec![Choice { id: "yes".into(), name: "Yes".into(), kind: "allow_once".into() }],
                ..serde_json::from_value(json!({ "request_id": "", "choices": [] })).unwrap()
            }),
            18 => {
                let choice = *self.dice.pick(&["yes", "perhaps", ""]);
                permission_answer(WEB, &self.request(), choice).unwrap()
            }
            19 => run.status(Status::Thinking),
            20 => match self.dice.below(4) {
                0 => run.state(&json!({ "n": 1 })),
                1 => run.state_delta(&json!([{ "op": "add", "path": "/n", "value": 2 }])),
                2 => run.state_delta(&json!([{ "op": "remove", "path": "/nothing" }])),
                _ => run.state_delta(&json!("no patch")),
            },
            21..24 => {
                let what = [
                    ("tool_call", json!({ "call_id": "a", "name": "ls" })),
                    ("tool_result", json!({ "call_id": "a", "result": "done" })),
                    ("status", json!({ "status": "working" })),
                    ("final", json!({ "content": "done" })),
                    ("error", json!({ "error": "no", "retryable": true })),
                    ("error", json!({ "error": "no" })),
                    ("cancelled", json!({ "message": "why" })),
                ];
                let (event, payload) = self.dice.pick(&what).clone();
                let name = self.dice.pick(&["one-0000000000000001", "two-0000000000000002"]);
                sub_agent(&SubAgent {
                    parent_call_id: self.call(),
                    attempt: run.attempt * self.dice.below(2),
                    sub_agent: (*name).to_owned(),
                    sub_event_id: self.newest(),
                    event: event.into(),
                    payload,
                })
            }
            24 => {
                self.said.clear();
                run.turn_cut("m")
            }
            25 => {
                let calls = [json!([]), json!([{ "id": "a" }])];
                let message = json!({ "message": { "tool_calls": self.dice.pick(&calls) } });
                let turn: ModelTurn = serde_json::from_value(message).unwrap();
                if turn.has_calls() {
                    self.said.clear();
                }
                run.model("m", &turn)
            }
            26 => return self.store_large(&run.token("m", "x")),
            _ => Message { run_id: Some("other".into()), ..Message::text("later") }.event(WEB).unwrap(),
        };
        self.store(&event);
    }

    /// The state that the client and the agent share: that of the last attempt.
    fn state(&self) -> Value {
        let mut state = json!({});
        let own = self.events.iter().filter(|event| event.large.is_none());
        for record in own.map(|event| &event.record).filter(|record| record.run_id.as_deref() == Some("r")) {
            match &record.entry {
                Entry::RunStarted { .. } => state = json!({}),
                Entry::State(new) => state = new.clone(),
                Entry::StateDelta(delta) => {
                    let mut changed = state.clone();
                    let patch = serde_json::from_value::<json_patch::Patch>(delta.clone());
                    if patch.is_ok_and(|patch| json_patch::patch(&mut changed, &patch).is_ok()) {
                        state = changed;
                    }
                }
                _ => {}
            }
        }
        state
    }

    fn end(&mut self) {
        let event = match self.dice.below(4) {
            0 => self.run.failed("no", &self.said),
            1 => self.run.cancelled("by ada", &self.said),
            2 => self.run.answer(&Answer { content: self.said.clone(), ..Answer::default() }),
            _ => self.run.answer(&Answer { content: "something else".into(), ..Answer::default() }),
        };
        self.store(&event);
        self.is_over = true;
    }

    fn translator(&self, version: Version, start: Start, after: i64) -> Translator {
        let run_id = format!("r{}", start.event);
        let url = |id: i64| id.to_string();
        Translator::new(version, "t".into(), run_id, (start, after), self.pending(), url)
    }

    fn follow(&self, client: Client, version: Version, start: Start) -> Follower {
        let translator = self.translator(version, start, start.shown);
        let (known, got) = (BTreeMap::new(), BTreeMap::new());
        Follower { client, start, translator, known, got, fed: 0, after: start.shown }
    }
}

impl Follower {
    /// Takes what its stream makes of the next event, as `stream.rs` does.
    fn take_next(&mut self, session: &Session) {
        let event = &session.events[self.fed as usize];
        self.fed += 1;
        let (output, run) = self.translator.feed(event);
        if self.fed > self.after {
            for event in &output {
                say!("  the client takes {event}");
                self.client.take(event);
            }
            assert_eq!(self.client.is_over, run == Run::Ended, "the stream ends with its last event");
            self.got.insert(self.fed, output);
        } else {
            assert_eq!(run, Run::GoesOn, "a stream ends before what its client has");
        }
        self.known.insert(self.fed, self.client.clone());
    }

    fn can_go_on(&self, session: &Session) -> bool {
        !self.client.is_over && self.fed < session.newest()
    }

    /// It has lost its connection, perhaps with what was sent last, and resumes after what it has.
    fn reconnects(&mut self, session: &Session, version: Version, after: i64) {
        say!("  the client reconnects after event {after}");
        if let Some(known) = self.known.get(&after) {
            self.client = known.clone();
        }
        self.translator = session.translator(version, self.start, after);
        (self.fed, self.after) = (0, after);
    }
}

fn schedule(seed: u64) {
    let mut session = Session::new(seed);
    let version = *session.dice.pick(&[Version::Zero, Version::Early, Version::One]);
    let mut follower = session.follow(Client::new(version), version, Start::of_message(1));
    let started = session.run.started();
    session.store(&started);
    let steps = 1 + session.dice.below(40);
    for step in 0..=steps {
        match step == steps {
            true => session.end(),
            false => session.step(),
        }
        while follower.can_go_on(&session) && !session.dice.one_in(4) {
            follower.take_next(&session);
        }
        let first = follower.start.event.max(follower.after);
        if session.dice.one_in(6) && !follower.client.is_over && follower.fed > first {
            let after = first + session.dice.below((follower.fed - first + 1) as u64) as i64;
            if !session.may_stop_at(after) {
                follower.reconnects(&session, version, after);
            }
        }
        if follower.client.is_over && !session.is_over && session.dice.one_in(2) {
            // It continues the run, which waited for it.
            let (shown, name) = (follower.fed, format!("run{}", session.newest()));
            let key = thread_sessions::cancel::continue_key(&name).unwrap();
            session.store(&continued(WEB, &name, 1, shown, ClientInput::default(), key).unwrap());
            let start = Start { event: session.newest(), message: 1, shown };
            let mut client = follower.client.clone();
            client.continues();
            follower = session.follow(client, version, start);
        }
    }
    while follower.can_go_on(&session) {
        follower.take_next(&session);
    }
    assert!(follower.client.is_over, "a run is over, and its stream is not");
    if follower.fed == session.newest() {
        assert_eq!(follower.client.state, session.state(), "the client has another state");
    }
    if let Some(Ending { outcome: How::Answered, text, .. }) =
        session.events.last().unwrap().record.entry.ending()
        && follower.fed == session.newest()
    {
        let all = &follower.client.text;
        assert!(all.ends_with(text), "the answer is {text:?}, and the client has {all:?}");
    }
    if seed.is_multiple_of(8) {
        is_the_same_for_whoever_resumes(&session, version);
    }
}

/// A client that has lost its connection gets the same as one that has not.
fn is_the_same_for_whoever_resumes(session: &Session, version: Version) {
    let whole = {
        let mut follower = session.follow(Client::new(version), version, Start::of_message(1));
        while follower.can_go_on(session) {
            follower.take_next(session);
        }
        follower
    };
    for after in (1..whole.fed).filter(|after| !session.may_stop_at(*after)) {
        let mut resumed = session.follow(whole.known[&after].clone(), version, Start::of_message(1));
        resumed.reconnects(session, version, after);
        while resumed.can_go_on(session) {
            resumed.take_next(session);
        }
        let rest: Vec<_> = whole.got.range(after + 1..).collect();
        assert_eq!(resumed.got.iter().collect::<Vec<_>>(), rest, "after event {after}");
    }
}

#[test]
fn any_run_is_a_correct_stream_for_clients_that_lose_connections_and_continue() {
    schedules(1000, || (), |(), seed| schedule(seed));
}
