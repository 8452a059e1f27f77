//! Against a gateway that is written by the test: permission requests, rare events, broken frames.

use std::process::Stdio;
use std::sync::mpsc;

use serde_json::{Value, json};
use thread_protocol::response;
use thread_testkit::wait_until;

use crate::fake::{Fake, accepted, answer, frame, run};
use crate::harness::{Terminal, chat_in, ends};

fn chat(fake: &Fake, args: &[&str]) -> std::process::Output {
    let mut chat = chat_in(fake, args.iter().copied().chain(["--url", &fake.url()]));
    ends(chat.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// A permission request with the choices `yes` and `no`.
fn permission(id: &str, title: &str) -> (&'static str, Value) {
    let choices = json!([
        { "id": "yes", "name": "Yes\nno", "kind": "allow_once" },
        { "id": "no", "name": "No", "kind": "reject_once" },
    ]);
    ("permission", json!({ "requestId": id, "title": title, "callId": "c", "choices": choices }))
}

/// Requests permission for each title, and answers with what was chosen.
fn asking(titles: &'static [&'static str]) -> Fake {
    let mut chosen = Vec::new();
    Fake::start(move |request| {
        let next = |n: usize| frame_of(permission(&n.to_string(), titles[n]), n as i64 + 2);
        let mut frames = match request.method.as_str() {
            "agent" => {
                let call = json!({ "callId": "c", "toolName": "shell", "arguments": { "command": "x  y" } });
                [accepted(request), vec![frame("tool_call", call, 1)]].concat()
            }
            "permission.answer" => {
                chosen.push(request.params["choice"].as_str().unwrap().to_owned());
                vec![response::ok(&request.id, &json!({}))]
            }
            other => panic!("{other}"),
        };
        match chosen.len() {
            n if n < titles.len() => frames.push(next(n)),
            _ => frames.push(frame_of(answer(&format!("chosen: {}", chosen.join(" "))), 100)),
        }
        Some(Box::new(frames.into_iter()))
    })
}

fn frame_of((event, payload): (&'static str, Value), seq: i64) -> String {
    frame(event, payload, seq)
}

#[test]
fn a_permission_request_is_seen_whole_before_it_is_granted() {
    const HIDDEN: &str = "ls -l                                                                                 \
                          ; rm -rf ~";
    const LONG: &str = "one two three four five six seven eight nine ten eleven\ntwelve\u{202e}thirteen";
    let fake = asking(&[HIDDEN, LONG]);
    let options = format!("go --url {}", fake.url());
    let Some(terminal) = Terminal::run(&fake, 40, &options) else { return };
    terminal.shows("type a number, then Enter");
    let blanks = HIDDEN.matches(' ').count() - 4;
    let seen = format!(
        "  | ls -l[{blanks} blanks]; rm -rf ~\nfor this tool call:\n  | shell {{\"command\":\"x␣␣y\"}}\n  | 1 \
         Yes\\nno (allow_once)\n  | 2 No (reject_once)\ntype a number, then Enter\n"
    );
    assert!(terminal.screen().contains(&seen), "{}", terminal.screen());
    terminal.types("2", &["Enter"]);
    wait_until("it to ask again", || terminal.screen().matches("type a number, then Enter").count() == 2);
    let seen =
        "  | one two three four five six seven ei\n  | ght nine ten eleven\n  | twelve\\u{202e}thirteen\n";
    assert!(terminal.screen().contains(seen), "{}", terminal.screen());
    terminal.types("1", &["Enter"]);
    terminal.shows("chosen: no yes\nexit=0");
}

#[test]
fn an_answer_that_is_none_of_the_choices_is_asked_for_again() {
    let fake = asking(&["rm x"]);
    let options = format!("go --url {}", fake.url());
    let Some(terminal) = Terminal::run(&fake, 80, &options) else { return };
    terminal.shows("type a number, then Enter");
    for (n, wrong) in (1..).zip(["y", "0", "3", ""]) {
        terminal.types(wrong, &["Enter"]);
        wait_until("it to be asked for again", || {
            terminal.screen().matches("type a number from 1 to 2").count() == n
        });
    }
    terminal.types("1", &["Enter"]);
    terminal.shows("chosen: yes\nexit=0");
    assert_eq!(fake.requests("permission.answer").len(), 1);
}

#[test]
fn in_a_conversation_the_editor_continues_after_a_question() {
    let fake = asking(&["rm x"]);
    let Some(terminal) = Terminal::run(&fake, 80, &format!("--url {}", fake.url())) else { return };
    terminal.prompts();
    terminal.types("go", &["Enter"]);
    terminal.shows("type a number, then Enter");
    terminal.types("1", &["Enter"]);
    terminal.shows("chosen: yes");
    terminal.prompts();
    terminal.types("never sent", &["C-u", "C-d"]);
    terminal.shows("exit=0");
    assert_eq!(fake.requests("agent").len(), 1);
}

#[test]
fn text_typed_before_a_question_is_not_its_answer() {
    let (go, gate) = mpsc::channel();
    let mut gate = Some(gate);
    let fake = Fake::start(move |request| {
        let accepted = accepted(request);
        if request.method != "agent" {
            let done = [response::ok(&request.id, &json!({})), frame_of(answer("done"), 9)];
            return Some(Box::new(done.into_iter()));
        }
        let gate = gate.take().unwrap();
        let token = frame("token", json!({ "content": "working", "delta": true, "messageId": null }), 1);
        let later = std::iter::once_with(move || {
            gate.recv().unwrap();
            frame_of(permission("p", "rm x"), 2)
        });
        Some(Box::new(accepted.into_iter().chain([token]).chain(later)))
    });
    let options = format!("go --url {}", fake.url());
    let Some(terminal) = Terminal::run(&fake, 80, &options) else { return };
    terminal.shows("working");
    terminal.types("1", &["Enter"]);
    terminal.shows("working1");
    go.send(()).unwrap();
    terminal.shows("type a number, then Enter");
    terminal.types("2", &["Enter"]);
    terminal.shows("done\nexit=0");
    let answers = fake.requests("permission.answer");
    assert_eq!(answers.iter().map(|answer| &answer.params["choice"]).collect::<Vec<_>>(), ["no"]);
}

#[test]
fn a_question_that_is_answered_elsewhere_is_over_and_ctrl_c_cancels_during_one() {
    let (go, gate) = mpsc::channel();
    let mut gate = Some(gate);
    let fake = Fake::start(move |request| match request.method.as_str() {
        "agent" => {
            let gate = gate.take().unwrap();
            let first = frame_of(permission("p", "rm x"), 1);
            let later = std::iter::once_with(move || {
                gate.recv().unwrap();
                frame("permission", json!({ "requestId": "p", "choice": "yes" }), 2)
            });
            let second = frame_of(permission("q", "rm y"), 3);
            Some(Box::new(accepted(request).into_iter().chain([first]).chain(later).chain([second])))
        }
        "agent.cancel" => {
            let done = response::ok(&request.id, &json!({ "message": "Cancellation requested" }));
            let cancelled = frame("cancelled", json!({ "message": "by you" }), 4);
            Some(Box::new([done, cancelled].into_iter()))
        }
        other => panic!("{other}"),
    });
    let options = format!("go --url {}", fake.url());
    let Some(terminal) = Terminal::run(&fake, 80, &options) else { return };
    terminal.shows("type a number, then Enter");
    go.send(()).unwrap();
    terminal.shows("it was answered: yes");
    terminal.shows("  | rm y");
    terminal.types("", &["C-c"]);
    terminal.shows("cancelled: by you\nexit=130");
    assert_eq!(fake.requests("permission.answer").len(), 0);
}

#[test]
fn without_a_terminal_a_permission_request_is_shown_and_left_to_others() {
    let fake = Fake::saying(|| {
        let answered = json!({ "requestId": "p", "choice": "yes" });
        vec![permission("p", "rm x"), ("permission", answered), answer("done")]
    });
    let said = chat(&fake, &["go"]);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "done\n");
    assert_eq!(
        String::from_utf8_lossy(&said.stderr),
        "the agent asks for permission:\n  | rm x\n  | 1 Yes\\nno (allow_once)\n  | 2 No (reject_once)\n\
         it was answered: yes\n"
    );
}

#[test]
fn a_message_that_ends_every_connection_is_given_up() {
    let fake = Fake::start(|_| None);
    let said = chat(&fake, &["go"]);
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(said.status.code(), Some(1), "{errors}");
    assert!(errors.contains("Error: agent got no response, though it was sent 5 times: "), "{errors}");
    let sent = fake.requests("agent");
    assert_eq!(sent.len(), 5);
    assert!(sent.iter().all(|request| *request == sent[0]), "{sent:?}");
}

#[test]
fn a_frame_that_cannot_be_read_is_an_error_that_is_shown() {
    let deep = || serde_json::from_str(&format!("{}{}", "[".repeat(120), "]".repeat(120))).unwrap();
    let fake = Fake::saying(move || {
        let part: Value = json!([{ "type": "x", "y": Value::clone(&deep()) }]);
        let broken = ("token", json!({ "content": 7 }));
        vec![broken, ("novelty", json!({ "x": 1 })), ("final", json!({ "content": part }))]
    });
    let said = chat(&fake, &["go"]);
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    let lines: Vec<&str> = errors.lines().collect();
    assert_eq!((said.status.code(), lines.len()), (Some(1), 2), "{errors}");
    assert!(lines[0].starts_with("Error: the event 'token' (seq 1) cannot be read: "), "{errors}");
    assert!(
        lines[1].starts_with("Error: the event 'final' (seq 3) cannot be read: missing field"),
        "{errors}"
    );
}

#[test]
fn a_deeply_nested_answer_arrives() {
    let deep = format!("{}{}", "[".repeat(125), "]".repeat(125));
    let text = format!(r#"[{{"type":"x","y":{deep}}}]"#);
    let content = text.clone();
    let fake = Fake::start(move |request| {
        let frames = accepted(request).into_iter().chain(run(vec![answer("CONTENT")]));
        let frames: Vec<String> = frames.map(|frame| frame.replace("\"CONTENT\"", &content)).collect();
        Some(Box::new(frames.into_iter()))
    });
    let said = chat(&fake, &["go"]);
    assert_eq!((String::from_utf8_lossy(&said.stderr).as_ref(), said.status.code()), ("", Some(0)));
    assert!(["[x]\n", &format!("{text}\n")].contains(&&*String::from_utf8_lossy(&said.stdout)));
}

#[test]
fn plans_and_large_events_are_notes_and_json_has_every_frame_as_it_came() {
    let events = || {
        let entry =
            |content: &str, status: &str| json!({ "content": content, "priority": "high", "status": status });
        let entries =
            [entry("look", "completed"), entry("write\u{9b}", "in_progress"), entry("test", "pending")];
        vec![
            ("clients", json!({ "clients": 2 })),
            ("plan", json!({ "entries": entries })),
            (
                "large",
                json!({ "source": "self", "type": "record", "subtype": "toolresult", "bytes": 2000000, "url": "/u" }),
            ),
            ("novelty", json!({ "x": 1 })),
            answer("done"),
        ]
    };
    let fake = Fake::saying(events);
    let said = chat(&fake, &["go"]);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "done\n");
    assert_eq!(
        String::from_utf8_lossy(&said.stderr),
        "plan: 1 of 3 done; now: write\\u{9b}\ntoolresult of 2000000 bytes, at /u\n"
    );
    let said = chat(&fake, &["go", "--json", "--new"]);
    let lines = String::from_utf8(said.stdout).unwrap();
    assert_eq!(lines.lines().collect::<Vec<_>>(), run(events()));
}

#[test]
fn a_history_has_the_runs_that_failed_or_were_cancelled() {
    let fake = Fake::start(|request| {
        let entry = |seq: i64, role: &str, content: &str| {
            json!({
                "id": seq.to_string(), "seq": seq, "role": role, "content": content, "source": "self", "runId": "r",
                "timestamp": "2026-01-02T03:04:05.678Z", "replyTo": null, "metadata": null,
            })
        };
        let mut large = entry(4, "user", "3 MB of text");
        large["large"] = json!({ "bytes": 3000000, "url": "/u" });
        let messages =
            [entry(1, "user", "go"), entry(2, "error", "half an"), entry(3, "cancelled", "ha"), large];
        let page = json!({ "messages": messages, "hasMore": false });
        Some(Box::new(std::iter::once(response::ok(&request.id, &page))))
    });
    let said = chat(&fake, &["--history", "5"]);
    assert_eq!(
        (String::from_utf8_lossy(&said.stdout).as_ref(), said.status.code()),
        ("user: go\nerror: half an\ncancelled: ha\nuser: 3 MB of text [3000000 bytes: /u]\n", Some(0))
    );
}
