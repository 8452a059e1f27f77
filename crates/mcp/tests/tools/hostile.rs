//! Arguments that are meant to do harm, and sessions that are locked or damaged.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use thread_testkit::PATIENCE;

use crate::harness::Root;

#[test]
fn no_name_leads_out_of_the_root() {
    let root = Root::new();
    let session = root.session(1);
    // A thread next to the root, and another root.
    let outside = root.path("outside");
    thread::Queue::init(&outside).unwrap();
    let other = Root::new();
    let theirs = other.session(2);
    theirs.message("external:a", "secret");
    let mut client = root.serve(&[]);
    let long = "x".repeat(100_000);
    let names = [
        "../outside",
        "..",
        ".",
        "",
        "/etc",
        outside.to_str().unwrap(),
        theirs.path.to_str().unwrap(),
        &theirs.id,
        "00000000000040008000000000000001",
        "{00000000-0000-4000-8000-000000000001}",
        "00000000-0000-4000-8000-000000000001/agents",
        "00000000-0000-4000-8000-000000000001\0",
        &long,
    ];
    for name in names {
        for tool in ["push", "peek", "wait", "info", "sessions_get", "process_list", "process_wait_time"] {
            let mut arguments = json!({ "session": name });
            if tool == "push" {
                arguments["content"] = json!("x");
            }
            let said = client.refusal(tool, arguments);
            assert!(said.contains("sessions_list") && said.len() < 300, "{tool} {name}: {said}");
            assert!(!said.contains("secret"), "{said}");
        }
        // Nor does a sub-agent's.
        for tool in ["process_status", "process_cancel"] {
            client.refusal(tool, json!({ "session": session.id, "process": name }));
        }
    }
    assert_eq!(theirs.queue().newest().unwrap().0, 1);
    let mut one = session.serve(&[]);
    assert!(one.refusal("info", json!({ "session": theirs.id })).contains("leave out"));
}

#[test]
fn arguments_of_the_wrong_type_or_far_too_long_are_refused() {
    let root = Root::new();
    let session = root.session(1);
    let mut client = session.serve(&[]);
    for (tool, arguments) in [
        ("peek", json!({ "after": "first" })),
        ("peek", json!({ "after": 1.5 })),
        ("peek", json!({ "id": null, "limit": -1 })),
        ("peek", json!({ "id": u64::MAX })),
        ("peek", json!({ "id": i64::MAX })),
        ("peek", json!({ "id": -1 })),
        ("peek", json!({ "id": i64::MIN })),
        ("wait", json!({ "timeout_seconds": -5 })),
        ("ack", json!({ "consumer": "x", "id": "1" })),
        ("ack", json!({ "consumer": "\u{0}", "id": 1 })),
        ("push", json!({})),
        ("push", json!({ "content": { "a": 1 } })),
        ("push", json!({ "content": "x", "idempotency_key": "" })),
        ("push", json!({ "content": "x", "idempotency_key": "k".repeat(10_000) })),
        ("push", json!({ "content": "x".repeat(10 * 1024 * 1024) })),
    ] {
        let said = client.refusal(tool, arguments);
        assert!(said.len() < 500, "{said}");
    }
    for id in [i64::MIN, -1, i64::MAX] {
        client.call("peek", json!({ "after": id }));
        client.call("wait", json!({ "after": id, "timeout_seconds": 0 }));
    }
    assert_eq!(session.queue().newest().unwrap().0, 0);
    client.call("push", json!({ "content": "x".repeat(1024 * 1024) }));
    client.call("push", json!({ "content": "" }));
    let id = client.begin("no_such_tool", json!({}));
    assert_eq!(client.response(id)["error"]["code"], -32602);
}

#[test]
fn filters_read_nothing_else_and_are_limited_in_time() {
    let root = Root::new();
    let session = root.session(1);
    for _ in 0..200 {
        session.message("external:a", &"a".repeat(5000));
    }
    let mut client = session.serve(&[]);
    for filter in [
        "1; DROP TABLE events",
        "id IN (SELECT id FROM subscriptions)",
        "(SELECT count(*) FROM sqlite_master)",
        "load_extension('x')",
        "readfile('/etc/passwd')",
        "randomblob(1000000000)",
        "'",
        "",
        "\0",
        "id = ?",
    ] {
        let id = client.begin("peek", json!({ "filter": filter }));
        let response = client.response(id);
        let result = &response["result"];
        assert!(result["isError"] == true || filter.is_empty(), "{filter:?}: {response}");
    }
    let slow = "content LIKE '%a%a%a%a%a%a%a%a%b%' OR content LIKE '%a%a%a%a%a%a%a%a%c%'";
    for tool in ["peek", "wait"] {
        let began = Instant::now();
        let id = client.begin(tool, json!({ "filter": slow, "after": 0, "timeout_seconds": 1 }));
        let arguments = json!({ "filter": slow, "after": 0 });
        let id = if tool == "peek" { client.begin(tool, arguments) } else { id };
        client.response(id);
        assert!(began.elapsed() < Duration::from_secs(20), "{tool}: {:?}", began.elapsed());
    }
}

#[test]
fn a_slow_wait_that_is_cancelled_ends() {
    let root = Root::new();
    let session = root.session(1);
    let events = "WITH RECURSIVE n(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < 5000)
                  INSERT INTO events(source, type, content)
                  SELECT 'external:a', 'message', replace(hex(zeroblob(500)), '0', 'a') FROM n";
    rusqlite::Connection::open(session.path.join("events.db")).unwrap().execute(events, []).unwrap();
    let mut client = root.serve(&[]);
    // Each event takes milliseconds; all of them take longer than any test waits.
    let slow = format!("{} LIKE '%{}b%'", ["content"; 20].join(" || "), "a".repeat(500));
    let arguments = json!({ "session": session.id, "filter": slow, "after": 0 });
    let id = client.begin("wait", arguments);
    let (end, before) = (Instant::now() + PATIENCE, client.cpu());
    while client.cpu() < before + Duration::from_millis(300) {
        assert!(Instant::now() < end, "it does not look");
        std::thread::sleep(Duration::from_millis(10));
    }
    client.notify("notifications/cancelled", json!({ "requestId": id }));
    let cancelled = Instant::now();
    while client.watched() > 0 {
        assert!(Instant::now() < end, "it still looks");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Time for one page of its work, on a busy machine.
    assert!(cancelled.elapsed() < Duration::from_secs(20), "{:?}", cancelled.elapsed());
    assert!(!client.has_response(id, Duration::from_millis(100)));
}

#[test]
fn a_locked_session_is_reported_and_others_still_work() {
    let root = Root::new();
    let (session, other) = (root.session(1), root.session(2));
    session.message("external:a", "hello");
    let held = rusqlite::Connection::open(session.path.join("events.db")).unwrap();
    held.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut client = root.serve(&[]);
    let began = Instant::now();
    let said = client.refusal("push", json!({ "session": session.id, "content": "x" }));
    assert!(said.contains("try again") && began.elapsed() < Duration::from_secs(30), "{said}");
    // Readers do not wait for the lock.
    let read = client.call("peek", json!({ "session": session.id }));
    assert_eq!(read["events"][0]["content"], "hello");
    client.call("push", json!({ "session": other.id, "content": "x" }));
    held.execute_batch("ROLLBACK").unwrap();
    client.call("push", json!({ "session": session.id, "content": "x" }));
}

#[test]
fn a_damaged_session_is_reported_and_left_out_of_lists() {
    let root = Root::new();
    let (session, other) = (root.session(1), root.session(2));
    other.message("external:a", "hello");
    std::fs::write(session.path.join("events.db"), vec![b'x'; 100_000]).unwrap();
    drop(std::fs::remove_file(session.path.join("events.db-wal")));
    let mut client = root.serve(&[]);
    for tool in ["peek", "info", "sessions_get", "process_list", "process_wait_time", "wait"] {
        let said = client.refusal(tool, json!({ "session": session.id }));
        assert!(said.len() < 500, "{said}");
    }
    client.refusal("push", json!({ "session": session.id, "content": "x" }));
    let found = client.call("sessions_search", json!({ "query": "hello" }));
    assert_eq!(found["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(client.call("sessions_list", json!({}))["total"], 2);
    assert_eq!(client.call("process_list", json!({}))["processes"], json!([]));
}

#[test]
fn a_session_that_goes_away_ends_a_wait() {
    let root = Root::new();
    let session = root.session(1);
    let mut client = root.serve(&[]);
    let id = client.begin("wait", json!({ "session": session.id }));
    client.call("info", json!({ "session": session.id }));
    std::fs::rename(&session.path, root.path("gone")).unwrap();
    let response: Value = client.response(id);
    assert_eq!(response["result"]["isError"], true, "{response}");
}

/// Pseudorandom numbers, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn text(&mut self) -> String {
        let chars = ['a', '\'', '"', '\0', '\n', '%', '€', '\u{202e}', '𝄞', ';', '/', '.', '1'];
        (0..self.below(40)).map(|_| chars[self.below(chars.len())]).collect()
    }

    fn value(&mut self, session: &str, depth: usize) -> Value {
        match self.below(if depth == 0 { 9 } else { 11 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.below(5)),
            3 => json!([i64::MIN, -1, i64::MAX][self.below(3)]),
            4 => json!(1.5e300),
            5 => json!(self.text()),
            6 => json!(session),
            7 => json!(self.pick(&["type = 'message'", "run_1", "today", "later", "agent", "id > 1"])),
            8 => json!("x".repeat(self.below(100_000))),
            9 => (0..self.below(4)).map(|_| self.value(session, depth - 1)).collect(),
            _ => self.object(session, depth - 1),
        }
    }

    /// Random arguments of a tool, most of the right type.
    fn arguments(&mut self, tool: &Value, session: &str) -> Value {
        let mut given = serde_json::Map::new();
        for (name, schema) in tool["inputSchema"]["properties"].as_object().unwrap() {
            let required = tool["inputSchema"]["required"].as_array();
            if !required.is_some_and(|names| names.contains(&json!(name))) && self.below(3) > 0 {
                continue;
            }
            let right = match schema["type"].as_str() {
                _ if name == "session" => json!(session),
                _ if schema["enum"].is_array() => schema["enum"][0].clone(),
                Some("integer") => json!(self.below(5)),
                Some("boolean") => json!(true),
                _ => json!(self.pick(&["message", "type = 'message'", "agent", "run_1"])),
            };
            given.insert(name.clone(), if self.below(4) == 0 { self.value(session, 2) } else { right });
        }
        Value::Object(given)
    }

    fn object(&mut self, session: &str, depth: usize) -> Value {
        let keys = [
            "session",
            "content",
            "priority",
            "reply_to",
            "idempotency_key",
            "after",
            "filter",
            "limit",
            "id",
            "offset",
            "consumer",
            "query",
            "day",
            "before",
            "process",
            "task",
            "name",
            "background",
            "type",
        ];
        let pairs = (0..self.below(6)).map(|_| (self.pick(&keys).to_owned(), self.value(session, depth)));
        Value::Object(pairs.collect())
    }
}

#[test]
fn a_thousand_calls_at_random_are_all_answered() {
    let root = Root::new();
    let session = root.session(1);
    session.message("external:a", "hello");
    let mut client = root.serve(&[]);
    let tools = client.tools();
    let mut random = Random(29);
    let (mut done, mut early) = (0, 0);
    for n in 0..1000 {
        let tool = &tools[random.below(tools.len())];
        let name = tool["name"].as_str().unwrap();
        let mut arguments = random.arguments(tool, &session.id);
        if name == "wait" {
            arguments["timeout_seconds"] = json!(0);
        }
        let id = client.begin(name, arguments.clone());
        let response = client.response(id);
        let result = &response["result"];
        if result["isError"] == true {
            let said = result["content"][0]["text"].as_str().unwrap();
            assert!(said.contains(" - ") && said.len() < 1000, "{name} {arguments}: {said}");
        } else {
            assert!(result["structuredContent"].is_object(), "{name} {arguments}: {response}");
            assert!(response.to_string().len() < 100_000, "{name}: {}", response.to_string().len());
            done += 1;
        }
        if n == 300 {
            early = client.resident();
        }
    }
    println!("{done} of 1000 did something; memory grew from {early} to {} kB", client.resident());
    assert!(done > 250 && client.resident() < early + 30_000, "{done}, {early}, {}", client.resident());
    // Lines that are not requests do not end the server either.
    for line in ["", "{", "[]", "null", "{\"jsonrpc\":\"2.0\"}", "\u{feff}{}", "{\"id\":{}}"] {
        client.line(line);
    }
    client.call("info", json!({ "session": session.id }));
}
