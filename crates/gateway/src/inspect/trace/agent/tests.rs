use chrono::TimeDelta;
use thread::Event;
use thread::model::time;

use super::*;
use crate::inspect::dto::Bar;

const BEGAN: &str = "2026-03-18T10:30:00.000Z";

/// A conversation in which each event says when it was stored, in milliseconds.
struct Told {
    events: Vec<Event>,
    source: &'static str,
}

impl Told {
    fn new(message: &str) -> Told {
        let mut told = Told { events: Vec::new(), source: "me" };
        told.put(0, "message", "", message, "{}");
        told.source = SELF;
        told
    }

    fn put(&mut self, ms: i64, kind: &str, subtype: &str, content: &str, metadata: &str) {
        let at = time::parse(BEGAN).unwrap() + TimeDelta::milliseconds(ms);
        self.events.push(Event {
            id: self.events.len() as i64 + 1,
            created_at: time::format(at),
            source: self.source.into(),
            kind: kind.into(),
            subtype: Some(subtype.to_owned()).filter(|subtype| !subtype.is_empty()),
            content: content.into(),
            metadata: Some(metadata.into()),
        });
    }

    /// A record of the run of the first message.
    fn record(&mut self, ms: i64, subtype: &str, content: &str) {
        self.put(ms, "record", subtype, content, r#"{"run_id":"run_1","attempt":1,"reply_to":1}"#);
    }

    fn bars(&self, ending: Option<i64>) -> Vec<Bar> {
        let mut tree = Tree::since(time::parse(BEGAN).unwrap());
        let mut agent = Agent::new(&mut tree, (1, ending), Some("s"));
        let is_last = |event: &Event| agent.take(&Record::of(event.clone()));
        assert_eq!(self.events.iter().any(is_last), ending.is_some());
        tree.flattened()
    }
}

/// The kind, depth, beginning and duration of each, with its label.
fn seen(bars: &[Bar]) -> Vec<(BarKind, u32, i64, Option<u64>, &str)> {
    bars.iter().map(|bar| (bar.kind, bar.depth, bar.at_ms, bar.duration_ms, &*bar.label)).collect()
}

#[test]
fn the_design_shows_the_bar_of_a_call() {
    let run = thread_conversation::Run { run_id: "r".into(), reply_to: 1, attempt: 2, is_own: false };
    let call = ToolCall::new("c", "grep", serde_json::json!({ "for": "x" }));
    let mut tree = Tree::since(time::parse(BEGAN).unwrap());
    let mut agent = Agent::new(&mut tree, (1, None), None);
    let message = Event { metadata: Some(r#"{"run_id":"r"}"#.into()), ..Told::new("x").events[0].clone() };
    agent.take(&Record::of(message));
    for (id, event) in [(2, run.started()), (3, run.tool_call(&call))] {
        agent.take(&Record::of(event.row(id, "2026-03-18T10:30:00.123Z").to_event()));
    }
    let bars = tree.flattened();
    let bar = serde_json::to_string(bars.iter().find(|bar| bar.kind == BarKind::Tool).unwrap()).unwrap();
    assert!(include_str!("../../../../../../docs/DESIGN.md").contains(&format!("\n{bar}\n")), "{bar}");
}

#[test]
fn the_turns_of_a_model_contain_what_it_said_and_tools_what_they_waited_for() {
    let mut told = Told::new("Mend it.");
    told.record(50, "run", r#"{"status":"started","attempt":1}"#);
    told.record(100, "thinking", "hm");
    told.record(120, "thinking", "m");
    told.record(150, "token", "I look.");
    let usage = r#"{"message":{},"model":"qwen3","usage":{"prompt_tokens":200,"completion_tokens":30}}"#;
    told.record(200, "model", usage);
    told.record(
        201,
        "toolcall",
        r#"{"call_id":"c","name":"list","arguments":{"of":"ls\n-l","n":2,"all":true}}"#,
    );
    told.record(
        210,
        "permission",
        r#"{"request_id":"p","title":"rm","call_id":"c","choices":[{"id":"no","name":"No","kind":"reject_once"}]}"#,
    );
    told.source = "me";
    told.record(260, "permission_answer", r#"{"request_id":"p","choice":"no"}"#);
    told.source = SELF;
    told.record(270, "toolresult", r#"{"call_id":"c","error":"it was not permitted"}"#);
    told.record(280, "toolcall", r#"{"call_id":"d","name":"rm"}"#);
    told.record(300, "error", r#"{"error":"the program has ended","retryable":true}"#);
    let second = r#"{"run_id":"run_1","attempt":2,"reply_to":1}"#;
    told.put(1300, "record", "run", r#"{"status":"started","attempt":2}"#, second);
    told.put(1310, "record", "token", "Do", second);
    told.put(1320, "record", "turn_cut", "", second);
    told.put(1400, "message", "", "Done.", second);
    let bars = told.bars(Some(16));
    use BarKind::*;
    assert_eq!(
        seen(&bars),
        [
            (Consumer, 0, 0, Some(1400), "agent"),
            (Waiting, 1, 0, Some(50), ""),
            (Attempt, 1, 50, Some(250), "attempt 1"),
            (Model, 2, 50, Some(150), "qwen3"),
            (Thinking, 3, 100, Some(20), "hmm"),
            (Text, 3, 150, Some(0), "I look."),
            (Tool, 2, 201, Some(69), "list"),
            (Permission, 3, 210, Some(50), "rm"),
            (Tool, 2, 280, Some(20), "rm"),
            (Waiting, 1, 300, Some(1000), ""),
            (Attempt, 1, 1300, Some(100), "attempt 2"),
            (Model, 2, 1300, Some(20), "model"),
            (Text, 3, 1310, Some(0), "Do"),
            (Answer, 1, 1400, None, "Done."),
        ]
    );
    let given: Vec<_> = bars.iter().filter_map(|bar| bar.given.as_deref()).collect();
    assert_eq!(given, ["the program has ended", "200 tokens read, 30 written", "ls -l 2", "No"]);
    let ended: Vec<_> = bars.iter().filter_map(|bar| Some((bar.at_ms, bar.ended?))).collect();
    use BarEnd::*;
    assert_eq!(ended, [(50, Failed), (201, Rejected), (210, Rejected), (280, NoResult), (1300, Cut)]);
    assert_eq!((bars[6].event, bars[6].end_event, bars[7].call), (Some(7), Some(10), Some(7)));
}

#[test]
fn a_sub_agent_works_inside_of_the_call_that_it_works_for() {
    let mut told = Told::new("Ask another.");
    told.record(10, "run", r#"{"status":"started","attempt":1}"#);
    told.record(20, "toolcall", r#"{"call_id":"c","name":"reader"}"#);
    let about =
        r#"{"parent_call_id":"c","attempt":1,"sub_agent":"reader-0123456789abcdef","sub_event_id":1}"#;
    for (ms, content) in [
        (30, r#"{"event":"tool_call","payload":{"call_id":"x","name":"cat"}}"#),
        (40, r#"{"event":"tool_result","payload":{"call_id":"x","name":"cat","error":"no"}}"#),
        (50, r#"{"event":"final","payload":{"content":"root"}}"#),
    ] {
        told.put(ms, "record", "sub_agent", content, about);
    }
    // Others say what they like, and nothing of another run is shown.
    told.source = "external:me";
    told.record(55, "toolcall", r#"{"call_id":"c","name":"forged"}"#);
    told.source = SELF;
    told.put(
        56,
        "record",
        "toolcall",
        r#"{"call_id":"y","name":"other"}"#,
        r#"{"run_id":"run_9","attempt":1}"#,
    );
    told.record(60, "toolresult", r#"{"call_id":"c","name":"reader","result":"root"}"#);
    let bars = told.bars(None);
    use BarKind::*;
    assert_eq!(
        seen(&bars),
        [
            (Consumer, 0, 0, None, "agent"),
            (Waiting, 1, 0, Some(10), ""),
            (Attempt, 1, 10, None, "attempt 1"),
            (Tool, 2, 20, Some(40), "reader"),
            (SubAgent, 3, 30, Some(20), "reader"),
            (Tool, 4, 30, Some(10), "cat"),
        ]
    );
    assert_eq!(bars[4].thread.as_deref(), Some("s~reader-0123456789abcdef"));
    assert_eq!(bars[5].ended, Some(BarEnd::Failed));
    assert!(bars[0].is_open && bars[2].is_open && !bars[3].is_open);
}
