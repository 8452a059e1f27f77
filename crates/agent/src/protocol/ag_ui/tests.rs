use super::*;
use thread_conversation::{Run, ToolCall};

/// An agent that was given a message, with this input of its client; and the first request.
fn asked(input: Value) -> (AgUi, Value) {
    let endpoint = Endpoint { url: "http://a/".into(), key: None, is_agent: true };
    let mut agent = AgUi::new(endpoint, None);
    let metadata = json!({ "run_input": input });
    let prompt = Prompt {
        chosen: Vec::new(),
        run: Run { run_id: "run_5".into(), reply_to: 5, attempt: 1, is_own: false },
        event: String::new(),
        content: "hello".into(),
        attachments: Vec::new(),
        transcript: Vec::new(),
        session: Some("t".into()),
        input: ClientInput::of(metadata.as_object().unwrap()),
        messages: vec![json!({ "id": "msg_5", "role": "user", "content": "hello" })],
        state: json!({ "n": 1 }),
    };
    let mut out = Vec::new();
    agent.started();
    agent.prompt(prompt, &mut out);
    (agent, input_of(&out).unwrap())
}

/// The `RunAgentInput` in an order.
fn input_of(out: &[u8]) -> Option<Value> {
    let Order { what: What::Run { input, .. }, .. } = serde_json::from_slice(out).ok()? else { return None };
    Some(input)
}

/// What comes of these events, and the next request.
fn hear(agent: &mut AgUi, events: &[Value]) -> (Vec<Output>, Option<Value>) {
    let reply = |event: &Value| Reply { id: agent.last_id, heard: Heard::Event(event.clone()) };
    let lines: Vec<String> = events.iter().map(|event| json!(reply(event)).to_string() + "\n").collect();
    let mut out = Vec::new();
    let output = agent.read(lines.concat().as_bytes(), &mut out);
    (output, input_of(&out))
}

fn answered(content: Option<&str>) -> Output {
    Output::Done(Done::Answered { content: content.map(str::to_owned), total_tokens: None, stage: None })
}

#[test]
fn chunks_and_the_older_names_are_understood() {
    let (mut agent, input) = asked(json!({}));
    assert_eq!(
        (&input["threadId"], &input["state"], &input["tools"]),
        (&json!("t"), &json!({ "n": 1 }), &json!([]))
    );
    assert_eq!(input.get("resume"), None);
    let (output, next) = hear(
        &mut agent,
        &[
            json!({ "type": "RUN_STARTED" }),
            json!({ "type": "THINKING_TEXT_MESSAGE_CONTENT", "delta": "hm" }),
            json!({ "type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "role": "assistant", "delta": "a" }),
            json!({ "type": "TEXT_MESSAGE_CHUNK", "delta": "b" }),
            json!({ "type": "TOOL_CALL_CHUNK", "toolCallId": "c", "toolCallName": "look", "delta": "{\"x\"" }),
            json!({ "type": "TOOL_CALL_CHUNK", "delta": ":1}" }),
            json!({ "type": "TOOL_CALL_RESULT", "messageId": "r", "toolCallId": "c", "content": "seen" }),
            json!({ "type": "RUN_FINISHED" }),
        ],
    );
    let token = |text: &str| Output::Token(text.to_owned());
    let call = Output::Call(ToolCall::new("c", "look", json!({ "x": 1 })));
    let result = Output::Result(ToolResult::new("c", "look", Ok(json!("seen"))));
    let Output::Messages(said) = &output[5] else { panic!("{output:?}") };
    assert_eq!(said.len(), 3);
    assert_eq!(said[1]["toolCalls"][0]["function"]["arguments"], "{\"x\":1}");
    let expected = [
        Output::Thinking("hm".into()),
        token("a"),
        token("b"),
        call,
        result,
        output[5].clone(),
        answered(None),
    ];
    assert_eq!(output, expected);
    assert_eq!(next, None);
}

#[test]
fn a_snapshot_takes_the_place_of_the_messages_of_the_run() {
    let (mut agent, input) = asked(json!({}));
    let mut all = input["messages"].as_array().unwrap().clone();
    all.push(json!({ "id": "m", "role": "assistant", "content": "only here" }));
    let (output, _) = hear(
        &mut agent,
        &[
            json!({ "type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "look" }),
            json!({ "type": "MESSAGES_SNAPSHOT", "messages": all.clone() }),
            json!({ "type": "RUN_FINISHED", "outcome": { "type": "success" } }),
        ],
    );
    assert_eq!(output[1..], [Output::Messages(all[1..].to_vec()), answered(Some("only here"))]);
}

#[test]
fn the_state_goes_on_from_request_to_request() {
    let tools = json!([{ "name": "confirm", "description": "", "parameters": {} }]);
    let (mut agent, input) = asked(json!({ "tools": tools, "state": { "n": 2 } }));
    assert_eq!(input["state"], json!({ "n": 2 }));
    let delta = json!([{ "op": "replace", "path": "/n", "value": 3 }]);
    let (output, next) = hear(
        &mut agent,
        &[
            json!({ "type": "STATE_DELTA", "delta": delta.clone() }),
            json!({ "type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "confirm" }),
            json!({ "type": "TOOL_CALL_END", "toolCallId": "c" }),
        ],
    );
    assert_eq!(output, [Output::StateDelta(delta), Output::Call(ToolCall::new("c", "confirm", json!({})))]);
    assert_eq!(next, None);
    // The client is faster than the agent is at ending its run.
    let mut out = Vec::new();
    let result = ToolResult::new("c", "confirm", Err("no".into()));
    agent.tool_result(&result, &ClientInput::default(), &mut out);
    assert!(out.is_empty());
    let (output, next) = hear(&mut agent, &[json!({ "type": "RUN_FINISHED" })]);
    let next = next.unwrap();
    assert_eq!((output, &next["state"]), (Vec::new(), &json!({ "n": 3 })));
    let last = next["messages"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["role"], &last["content"], &last["error"]),
        (&json!("tool"), &json!("no"), &json!("no"))
    );
    let wrong = json!([{ "op": "remove", "path": "/missing" }]);
    let (output, _) = hear(&mut agent, &[json!({ "type": "STATE_DELTA", "delta": wrong })]);
    assert!(matches!(&output[..], [Output::Done(Done::Failed { retryable: true, .. })]), "{output:?}");
}

#[test]
fn a_run_goes_on_once_all_interrupts_are_answered() {
    let (mut agent, _) = asked(json!({}));
    let interrupts = json!([{ "id": "a", "reason": "x" }, { "id": "b", "reason": "y" }]);
    let outcome = json!({ "type": "interrupt", "interrupts": interrupts });
    let (output, next) = hear(&mut agent, &[json!({ "type": "RUN_FINISHED", "outcome": outcome })]);
    assert!(matches!(&output[..], [Output::Asks(_), Output::Asks(_)]), "{output:?}");
    assert_eq!(next, None);
    let mut out = Vec::new();
    agent.permit("a", Some("allow"), &mut out);
    assert!(out.is_empty());
    agent.permit("b", None, &mut out);
    let resume = input_of(&out).unwrap()["resume"].take();
    let expected = json!([
        { "interruptId": "a", "status": "resolved", "payload": { "approved": true } },
        { "interruptId": "b", "status": "cancelled" }
    ]);
    assert_eq!(resume, expected);
}

#[test]
fn a_call_of_the_clients_tool_may_stand_in_a_snapshot_alone() {
    let (mut agent, _) = asked(json!({ "tools": [{ "name": "confirm" }] }));
    let calls = json!([
        { "id": "c", "type": "function", "function": { "name": "confirm", "arguments": "{\"x\":1}" } },
        { "id": "d", "type": "function", "function": { "name": "other", "arguments": "{}" } },
    ]);
    let snapshot = json!([
        { "id": "msg_5", "role": "user", "content": "hello" },
        { "id": "m", "role": "assistant", "content": "", "toolCalls": calls },
    ]);
    let snapshot = json!({ "type": "MESSAGES_SNAPSHOT", "messages": snapshot });
    let (output, next) = hear(&mut agent, &[snapshot, json!({ "type": "RUN_FINISHED" })]);
    assert_eq!(output, [Output::Call(ToolCall::new("c", "confirm", json!({ "x": 1 })))]);
    assert_eq!(next, None);
    let mut out = Vec::new();
    let result = ToolResult::new("c", "confirm", Ok("yes".into()));
    agent.tool_result(&result, &ClientInput::default(), &mut out);
    let messages = input_of(&out).unwrap()["messages"].take();
    assert_eq!(messages.as_array().unwrap().last().unwrap()["content"], "yes");
    // With its result it is no call any more.
    let said = [
        messages.as_array().unwrap().clone(),
        vec![json!({ "id": "n", "role": "assistant", "content": "good" })],
    ];
    let snapshot = json!({ "type": "MESSAGES_SNAPSHOT", "messages": said.concat() });
    let (output, _) = hear(&mut agent, &[snapshot, json!({ "type": "RUN_FINISHED" })]);
    assert_eq!(output[1..], [answered(Some("good"))]);
}

#[test]
fn interrupts_of_lang_graph_are_answered_in_its_own_way() {
    let (mut agent, _) = asked(json!({ "forwarded_props": { "a": 1 } }));
    let interrupt = json!({ "type": "CUSTOM", "name": "on_interrupt", "value": "sure?" });
    let (output, _) = hear(&mut agent, &[interrupt, json!({ "type": "RUN_FINISHED" })]);
    let [Output::Asks(asked)] = &output[..] else { panic!("{output:?}") };
    assert_eq!(asked.title, "sure?");
    let mut out = Vec::new();
    agent.permit(&asked.request_id, Some("allow"), &mut out);
    let input = input_of(&out).unwrap();
    let expected = json!({ "a": 1, "command": { "resume": { "approved": true } } });
    assert_eq!((&input["forwardedProps"], input.get("resume")), (&expected, None));
}

#[test]
fn what_comes_after_a_cancel_counts_for_nothing() {
    let (mut agent, _) = asked(json!({}));
    let late = json!(Reply { id: agent.last_id, heard: Heard::Event(json!({ "type": "RUN_FINISHED" })) });
    let mut out = Vec::new();
    assert!(agent.cancel(&mut out));
    let stopped = json!(Reply { id: agent.last_id, heard: Heard::Stopped });
    let output = agent.read(format!("{late}\n{stopped}\n").as_bytes(), &mut out);
    assert_eq!(output, [Output::Done(Done::Cancelled)]);
}
