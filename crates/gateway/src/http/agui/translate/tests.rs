use super::*;
use thread_conversation::{Answer, Message, ToolCall, ToolResult};

fn types(version: Version, events: &[thread::NewEvent<'_>]) -> (Vec<String>, Run) {
    let point = (Start::of_message(1), 0);
    let url = |id: i64| id.to_string();
    let pending = PendingInput::default();
    let mut translator = Translator::new(version, "t".into(), "r".into(), point, pending, url);
    let (mut types, mut last) = (Vec::new(), Run::GoesOn);
    for (id, event) in (1..).zip(events) {
        let (output, run) = translator.feed(&SessionEvent::stored(id, event));
        types.extend(output.iter().map(|event| event["type"].as_str().unwrap().to_owned()));
        last = run;
    }
    (types, last)
}

fn run() -> thread_conversation::Run {
    thread_conversation::Run { run_id: "r".into(), reply_to: 1, attempt: 1, is_own: false }
}

fn message() -> thread::NewEvent<'static> {
    let message = Message { run_id: Some("r".into()), ..Message::text("hello") };
    message.event("external:web:main:dm:default:ada").unwrap()
}

#[test]
fn each_message_is_begun_and_ended_around_what_comes_between() {
    let call = ToolCall::new("c", "ls", Value::Null);
    let result = ToolResult::new("c", "ls", Ok("a".into()));
    let answer = Answer { content: "abc".into(), ..Answer::default() };
    let events = [
        message(),
        run().started(),
        run().thinking("m", "hm"),
        run().token("m", "a"),
        run().token("m", "b"),
        run().tool_call(&call),
        run().tool_result(&result),
        run().token("m", "c"),
        run().answer(&answer),
    ];
    let (output, last) = types(Version::One, &events);
    let expected = "RUN_STARTED REASONING_START REASONING_MESSAGE_START REASONING_MESSAGE_CONTENT \
        REASONING_MESSAGE_END REASONING_END TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT TEXT_MESSAGE_CONTENT \
        TEXT_MESSAGE_END TOOL_CALL_START TOOL_CALL_ARGS TOOL_CALL_END TOOL_CALL_RESULT TEXT_MESSAGE_START \
        TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END RUN_FINISHED";
    assert_eq!(
        (output.join(" "), last),
        (expected.split_whitespace().collect::<Vec<_>>().join(" "), Run::Ended)
    );
    let (output, _) = types(Version::Zero, &events);
    assert!(
        output.join(" ").contains("THINKING_TEXT_MESSAGE_END THINKING_END") && output.len() == 18,
        "{output:?}"
    );
}

#[test]
fn an_answer_that_did_not_stream_is_sent_whole() {
    let answer = Answer { content: "other".into(), ..Answer::default() };
    let (output, _) =
        types(Version::One, &[message(), run().started(), run().token("m", "a"), run().answer(&answer)]);
    assert_eq!(
        output[1..].join(" "),
        "TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT \
         TEXT_MESSAGE_END RUN_FINISHED"
    );
}

#[test]
fn a_failed_attempt_goes_on_and_a_failed_run_is_an_error() {
    let events = [
        message(),
        run().started(),
        run().token("m", "a"),
        run().attempt_failed("killed", None),
        thread_conversation::Run { attempt: 2, ..run() }.started(),
        run().token("m2", "b"),
        run().failed("no", ""),
    ];
    let (output, last) = types(Version::One, &events);
    assert_eq!(
        output.join(" "),
        "RUN_STARTED TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END CUSTOM CUSTOM TEXT_MESSAGE_START \
         TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END RUN_ERROR"
    );
    assert_eq!(last, Run::Ended);
}

#[test]
fn the_design_shows_the_events_of_a_call() {
    let (point, pending) = ((Start::of_message(1), 0), PendingInput::default());
    let mut translator =
        Translator::new(Version::One, "t".into(), "r".into(), point, pending, |_| String::new());
    let second = thread_conversation::Run { attempt: 2, ..run() };
    let call = ToolCall::new("c", "grep", json!({ "for": "x" }));
    let mut events = Vec::new();
    for (id, event) in (1..).zip([message(), second.started(), second.tool_call(&call)]) {
        events = translator.feed(&SessionEvent::stored(id, &event)).0;
    }
    let events: Vec<String> = events.iter().map(Value::to_string).collect();
    let design = include_str!("../../../../../../docs/DESIGN.md");
    assert!(design.contains(&format!("\n{}\n", events.join("\n"))), "{events:#?}");
}
