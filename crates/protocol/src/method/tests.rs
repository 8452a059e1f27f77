use serde_json::json;

use super::*;
use crate::content::Content;
use crate::event::Priority;
use crate::request::{self, Request};

fn parsed<M: Method>(params: M::Params) -> Call {
    let request = Request::parse(&request::text::<M>("1", &params)).unwrap();
    assert_eq!(request.method, M::NAME);
    let mut params = request.params;
    params.insert("somethingNew".to_owned(), json!({ "a": [1] }));
    Call::parse(&request.method, params).unwrap()
}

#[test]
fn only_what_would_be_done_twice_is_not_sent_again() {
    fn repeatable<M: Method>(params: Value) -> bool {
        M::is_repeatable(&serde_json::from_value(params).unwrap())
    }
    let mut message = json!({ "message": "x", "sessionId": "s" });
    assert!(!repeatable::<Agent>(message.clone()));
    message["idempotencyKey"] = json!("k");
    assert!(repeatable::<Agent>(message));
    assert!(!repeatable::<SessionsNew>(json!({})));
    assert!(!repeatable::<SessionsFork>(json!({ "sessionId": "s" })));
    assert!(repeatable::<Status>(json!({})));
}

#[test]
fn every_call_is_read_as_it_was_written_whatever_else_its_params_have() {
    macro_rules! check {
        ($($method:ident: $params:expr),+ $(,)?) => {{
            let mut names = Vec::new();
            $(
                let (read, written) = (parsed::<$method>($params), Call::$method($params));
                assert_eq!(read, written);
                names.push(read.name());
            )+
            names
        }};
    }
    let id = || "6e0a5f9e-0d2b-4f43-9a53-5c9f6c0f6d0a".to_owned();
    let names = check! {
        Connect: ConnectParams {
            version: "1".into(),
            client_type: "test".into(),
            token: Some("t".into()),
            client_id: None,
        },
        Agent: AgentParams {
            session_id: Some(id()),
            message: Content::Parts(vec![json!({ "type": "text", "text": "x" })]),
            priority: Some(Priority::Later),
            metadata: json!({ "k": null }).as_object().cloned(),
            idempotency_key: Some("k".into()),
            at: Some("2026-01-02T03:04:05Z".into()),
        },
        AgentCancel: CancelParams { run_id: "r".into(), session_id: None },
        SessionsList: ListParams { limit: Some(3), offset: None },
        SessionsNew: NewParams { title: Some("t".into()), agent: Some("a".into()), ..NewParams::default() },
        SessionsSwitch: SwitchParams { session_id: id(), after: Some(3) },
        SessionsWatch: WatchParams {
            session_ids: Some(vec![id()]),
            after: Some([(id(), 3)].into()),
            ..WatchParams::default()
        },
        SessionsUnwatch: UnwatchParams { session_ids: Some(vec![id()]) },
        SessionsFork: ForkParams { session_id: id(), before: Some("m".into()), step: Some(7), title: None },
        SessionsHistory: HistoryParams { before: Some(MessageRef::Seq(3)), ..HistoryParams::default() },
        SessionsSteps: StepsParams { after: Some(3), ..StepsParams::default() },
        SessionsRename: RenameParams { session_id: id(), title: "t".into() },
        SessionsUpdate: UpdateParams { session_id: id(), agent: Some("a".into()), ..UpdateParams::default() },
        SessionsSearch: SearchParams { date_filter: Some(DateFilter::LastWeek), ..SearchParams::default() },
        SessionsDelete: DeleteParams { session_id: id() },
        PermissionAnswer: PermissionAnswerParams {
            session_id: id(),
            request_id: "r".into(),
            choice: "c".into(),
        },
        Status: StatusParams::default(),
    };
    assert_eq!(names, METHODS);
}

/// Payloads as docs/PROTOCOL.md has them.
#[test]
fn every_payload_is_written_as_it_was_read_without_what_is_not_known() {
    fn check<M: Method>(payload: Value) -> &'static str {
        let mut more = payload.clone();
        more["somethingNew"] = json!([{}]);
        let read: M::Payload = serde_json::from_str(&more.to_string()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), payload);
        M::NAME
    }
    let (id, time) = ("6e0a5f9e-0d2b-4f43-9a53-5c9f6c0f6d0a", "2026-01-02T03:04:05.678Z");
    let session = json!({
        "id": id, "title": "t", "lastMessage": null, "lastActivity": time, "messageCount": 2,
        "state": "running", "since": time, "forkedFrom": { "sessionId": id, "title": "t", "before": null, "seq": 1 },
        "agent": "a", "match": "m", "matchSeq": 3,
    });
    let made = json!({ "sessionId": id, "title": "", "createdAt": time, "agent": "a" });
    let entry = json!({
        "id": "m", "seq": 3, "role": "cancelled", "content": [{ "type": "text", "text": "a" }], "timestamp": time,
        "source": "self", "runId": "r", "replyTo": 1, "metadata": { "k": 1 }, "large": { "bytes": 1, "url": "/u" },
    });
    let plain = json!({
        "id": "m", "seq": 4, "role": "user", "content": "a", "timestamp": time, "source": "external:x",
        "runId": null, "replyTo": null, "metadata": null,
    });
    let step =
        json!({ "type": "event", "event": "plan", "payload": { "entries": [] }, "seq": 5, "time": time });
    let names = [
        check::<Connect>(json!({
            "gatewayVersion": "1", "supportedMethods": ["agent"], "clientId": "c",
            "agents": [{ "name": "a", "about": "x", "prompts": ["p"], "allow": ["cwd"] }],
        })),
        check::<Agent>(json!({ "runId": null, "sessionId": id, "status": "queued" })),
        check::<AgentCancel>(json!({ "message": "Cancellation requested" })),
        check::<SessionsList>(json!({ "sessions": [], "total": 0 })),
        check::<SessionsNew>(made.clone()),
        check::<SessionsSwitch>(json!({
            "sessionId": id, "title": "t", "recentMessages": [entry, plain], "lastSeq": 4, "activeRun": "r",
            "forkedFrom": { "sessionId": id, "title": "t", "before": 3, "seq": 3 }, "agent": "a",
        })),
        check::<SessionsWatch>(json!({ "sessions": [{ "sessionId": id, "lastSeq": 3 }], "unknown": ["x"] })),
        check::<SessionsUnwatch>(json!({})),
        check::<SessionsFork>(made),
        check::<SessionsHistory>(json!({ "messages": [plain], "hasMore": true })),
        check::<SessionsSteps>(json!({ "events": [step], "hasMore": false })),
        check::<SessionsRename>(json!({ "sessionId": id, "title": "t" })),
        check::<SessionsUpdate>(json!({ "sessionId": id, "agent": "a", "model": "m", "cwd": "/x" })),
        check::<SessionsSearch>(json!({ "sessions": [session], "total": 1, "truncated": true })),
        check::<SessionsDelete>(json!({ "sessionId": id })),
        check::<PermissionAnswer>(json!({})),
        check::<Status>(json!({
            "gateway": { "version": "1", "uptime": 2, "activeConnections": 3, "activeSessions": 4 },
            "session": { "id": id, "messageCount": 5, "queuedRequests": 6, "activeRun": null, "clients": 7, "agent": "a",
                "usage": { "inputTokens": 1, "outputTokens": 2, "cachedTokens": 0, "reasoningTokens": 0 },
                "cost": { "amount": "0.25", "currency": "USD" },
            },
        })),
    ];
    assert_eq!(names, METHODS);
    let requested = serde_json::to_value(CancelRequested::default()).unwrap();
    assert_eq!(requested, json!({ "message": "Cancellation requested" }));
}

#[test]
fn a_call_that_cannot_be_read_says_why() {
    let error = |method: &str, params: Value| {
        Call::parse(method, params.as_object().unwrap().clone()).unwrap_err().to_string()
    };
    assert_eq!(error("nonsense", json!({})), "unknown method 'nonsense'");
    assert_eq!(error(&"x".repeat(200), json!({})), format!("unknown method '{}'", "x".repeat(100)));
    for (method, params, why) in [
        ("agent", json!({}), "missing field `message`"),
        ("agent", json!({ "message": [] }), "the content has no parts, or a part without a 'type'"),
        ("agent", json!({ "message": 1 }), "the content is neither a text nor an array of parts"),
        ("agent", json!({ "message": "x", "metadata": 1 }), "invalid type: integer `1`, expected a map"),
        (
            "sessions.switch",
            json!({ "sessionId": "s", "after": -1 }),
            "invalid value: integer `-1`, expected u64",
        ),
        (
            "sessions.history",
            json!({ "before": i64::MIN }),
            "'before' is neither the seq nor the id of a message",
        ),
        ("sessions.list", json!({ "limit": "x" }), "invalid type: string \"x\", expected u64"),
    ] {
        assert_eq!(error(method, params), format!("bad params: {why}"));
    }
}

/// Older gateways send less about a message.
#[test]
fn a_history_without_its_newer_keys_is_read() {
    let entry = json!({ "id": "m", "seq": 1, "role": "user", "content": "x", "timestamp": "t" });
    let entry: HistoryEntry = serde_json::from_value(entry).unwrap();
    assert_eq!((entry.source.as_str(), entry.run_id, entry.reply_to), ("", None, None));
}
