//! `--protocol openai`: a model behind HTTP, played by `fixtures/model.py`.

use std::time::{Duration, Instant};

use serde_json::Value;
use thread_conversation::{Entry, Record};
use thread_testkit::{Models, Run, processes_in, wait_until};

use crate::harness::{ADA, Talk};

/// The server of models; its requests are in the file `requests` of the world.
fn start(talk: &Talk, more: &[&str]) -> Option<Models> {
    let log = talk.path("requests");
    Models::start([&["--log", log.to_str().unwrap()], more].concat())
}

/// The options for a model.
fn options<'o>(models: &'o Models, model: &'o str, more: &[&'o str]) -> Vec<&'o str> {
    [&["--protocol", "openai", "--url", &models.url, "--model", model], more].concat()
}

/// A conversation with a model.
fn talk_with(model: &str, more: &[&str]) -> Option<(Talk, Models)> {
    let talk = Talk::new();
    let models = start(&talk, &[])?;
    install(&talk, &options(&models, model, more));
    Some((talk, models))
}

fn install(talk: &Talk, options: &[&str]) {
    talk.thread(&[&["agent", "install"], options].concat()).ok();
}

/// The bodies of the requests to the model so far.
fn requests(talk: &Talk) -> Vec<Value> {
    let line = |line: String| serde_json::from_str::<Value>(&line).unwrap()["body"].take();
    talk.lines("requests").into_iter().map(line).collect()
}

/// The messages of a request as `role: content`.
fn prompt(request: &Value) -> Vec<String> {
    let text = |message: &Value| {
        format!("{}: {}", message["role"].as_str().unwrap(), message["content"].as_str().unwrap())
    };
    request["messages"].as_array().unwrap().iter().map(text).collect()
}

fn error_of(talk: &Talk, of: i64) -> String {
    match talk.ending(of) {
        Entry::Error { error, .. } => error,
        other => panic!("{other:?}"),
    }
}

/// A command that fails with this exit code, and says that.
fn refuses(run: Run, code: i32, text: &str) {
    let error = run.fails(code);
    assert!(error.contains(text), "{error}");
}

/// The subtypes of a run's events.
fn kinds(talk: &Talk, run_id: &str) -> Vec<String> {
    let of_run = |event: thread::Event| {
        let record = Record::of(event);
        let subtype = record.event.subtype.clone().unwrap_or_else(|| record.event.kind.clone());
        (record.run_id.as_deref() == Some(run_id)).then_some(subtype)
    };
    talk.events().into_iter().filter_map(of_run).collect()
}

#[test]
fn a_model_answers_and_its_turn_is_stored_first() {
    let Some((talk, _models)) = talk_with("think", &[]) else { return };
    let first = talk.say("how are you");
    assert_eq!(talk.answer(first), "how are you");
    let second = talk.say("and now");
    assert_eq!(talk.answer(second), "and now");
    let run = format!("run_{second}");
    let mut kinds = kinds(&talk, &run);
    kinds.dedup();
    let expected = ["message", "run", "status", "thinking", "status", "token", "model", "status", "message"];
    assert_eq!(kinds, expected, "{}", talk.log());
    let requests = requests(&talk);
    assert_eq!(prompt(&requests[1]), ["user: how are you", "assistant: how are you", "user: and now"]);
    assert_eq!(requests[1]["messages"][1]["reasoning_content"], "let me see");
    assert_eq!(requests[1]["stream"], true);
    let turn = talk.entries().into_iter().find_map(|(.., entry)| match entry {
        Entry::Model { turn, .. } => Some(turn),
        _ => None,
    });
    let turn = turn.unwrap();
    assert_eq!(
        (turn.model.as_str(), turn.finish_reason.as_str(), turn.total_tokens()),
        ("think", "stop", Some(7))
    );
    assert_eq!(turn.message["reasoning_content"], "let me see");
    let Entry::Answer { answer, .. } = talk.ending(second) else { panic!() };
    assert_eq!((answer.total_tokens, answer.stage), (Some(7), None));
    assert_eq!(taken(&talk), [7, 7]);
}

/// How many tokens each ending says that its attempt has taken.
fn taken(talk: &Talk) -> Vec<u64> {
    let records = talk.events().into_iter().map(Record::of);
    records.filter(|record| record.entry.ends().is_some()).map(|record| record.spent.usage.total()).collect()
}

#[test]
fn a_model_over_its_budget_is_not_asked() {
    let Some((talk, models)) = talk_with("count", &["--budget", "14tokens", "--name", "counter"]) else {
        return;
    };
    let asked = ["a", "b", "c"].map(|text| talk.say(text));
    assert_eq!((talk.answer(asked[0]), talk.answer(asked[1])), ("1: a".to_owned(), "3: b".to_owned()));
    let error = error_of(&talk, asked[2]);
    assert!(error.contains("14 of 14 tokens") && error.contains("--budget"), "{error}");
    assert_eq!((taken(&talk), requests(&talk).len()), (vec![7, 7, 0], 2));
    // Another adapter knows it, too.
    talk.thread(&["agent", "stop"]).ok();
    assert!(error_of(&talk, talk.say("d")).contains("14 of 14 tokens"));
    install(&talk, &options(&models, "count", &["--replace", "--budget", "20tokens"]));
    let last = talk.say("e");
    assert_eq!(talk.answer(last).split(' ').next_back(), Some("e"));
    let names: Vec<_> = talk.events().into_iter().map(|event| Record::of(event).spent.agent).collect();
    assert!(names.contains(&Some("counter".to_owned())), "{names:?}");
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn the_system_text_comes_first_and_its_digest_is_kept() {
    let talk = Talk::new();
    let Some(models) = start(&talk, &[]) else { return };
    let file = talk.write("system", "Be brief.");
    install(&talk, &options(&models, "count", &["--system", &file]));
    let first = talk.say("hello");
    assert_eq!(talk.answer(first), "1: hello");
    assert_eq!(prompt(&requests(&talk)[0]), ["system: Be brief.", "user: hello"]);
    let digest = talk.entries().into_iter().find_map(|(.., entry)| match entry {
        Entry::Model { turn, .. } => Some(turn.system),
        _ => None,
    });
    // printf 'Be brief.' | sha256sum
    assert_eq!(digest.as_deref(), Some("213c22ed7234eb11116e1e88f314c73cb3a019b5c87fe224b6ce5665bd9ec50e"));
    std::fs::remove_file(&file).unwrap();
    let second = talk.say("again");
    assert!(error_of(&talk, second).starts_with("cannot read the system text in "));
}

#[test]
fn a_whole_response_is_an_answer_too() {
    let Some((talk, _models)) = talk_with("whole", &[]) else { return };
    let first = talk.say("not streamed");
    assert_eq!(talk.answer(first), "not streamed");
    assert_eq!(talk.tokens(&format!("run_{first}")), ["not streamed"]);
}

#[test]
fn an_empty_answer_is_one_and_the_conversation_goes_on() {
    let Some((talk, _models)) = talk_with("empty", &[]) else { return };
    for _ in 0..2 {
        let id = talk.say("say nothing");
        assert_eq!(talk.answer(id), "");
    }
}

#[test]
fn clearing_and_cancelling_change_what_the_model_gets() {
    let Some((talk, _models)) = talk_with("slow", &[]) else { return };
    let first = talk.say("one");
    talk.answer(first);
    let words = ["push", "--source", ADA, "--type", "record", "--subtype", "clear", "--content", ""];
    talk.thread(&words).ok();
    let second = talk.say("two and three and four and five and six and seven and eight");
    let run = format!("run_{second}");
    talk.until("a piece of the answer", |_| (talk.tokens(&run).len() > 1).then_some(()));
    talk.cancel(&run);
    let Entry::Cancelled { partial, .. } = talk.ending(second) else { panic!() };
    let partial = partial.unwrap();
    assert!(partial.starts_with("two and ") && !partial.ends_with("eight"), "{partial}");
    let third = talk.say("nine");
    assert_eq!(talk.answer(third), "nine");
    let last = requests(&talk).pop().unwrap();
    let said = "user: two and three and four and five and six and seven and eight";
    assert_eq!(prompt(&last), [said, &format!("assistant: {partial}"), "user: nine"]);
    // The process that was asked to stop has continued.
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn a_server_that_asks_to_wait_is_waited_for() {
    let Some((talk, _models)) = talk_with("busy", &[]) else { return };
    let began = Instant::now();
    let id = talk.say("patience");
    assert_eq!(talk.answer(id), "patience");
    // The second wait is 5 s by itself.
    assert!(began.elapsed() >= Duration::from_secs(6), "{:?}", began.elapsed());
    let failed = talk.entries().into_iter().filter_map(|(.., entry)| match entry {
        Entry::Error { error, retryable: true, .. } => Some(error),
        _ => None,
    });
    let failed: Vec<String> = failed.collect();
    assert_eq!(failed.len(), 2);
    assert!(
        failed[0].contains("too many requests (429: too many requests)") || failed[0].contains("429"),
        "{failed:?}"
    );
}

#[test]
fn what_goes_wrong_is_told_in_plain_words() {
    let talk = Talk::new();
    let Some(models) = start(&talk, &[]) else { return };
    for (model, options, expected) in [
        (
            "nobody",
            &[][..],
            "has no model 'nobody' or no chat completions (404: the model 'nobody' does not exist)",
        ),
        (
            "redirect",
            &[],
            "redirects to http://127.0.0.1:9/v1/elsewhere, which is not followed: give the right URL",
        ),
        ("down", &["--attempts", "1"], "failed (500: out of memory)"),
        ("sorry", &["--attempts", "1"], "failed: overloaded"),
        ("cut", &["--attempts", "1"], "was lost"),
        ("broken", &["--attempts", "1"], "does not send chat completions"),
        ("page", &["--attempts", "1"], "broke off"),
        ("endless", &[], "sends more than is accepted for one answer"),
        ("line", &[], "sends more than is accepted for one answer"),
        ("drip", &["--attempts", "1", "--quiet", "1s"], "the model sent nothing for 1s"),
    ] {
        let talk = talk.beside(model);
        install(&talk, &self::options(&models, model, options));
        let id = talk.say("hello");
        let error = error_of(&talk, id);
        assert!(error.contains(expected), "{model}: {error}");
        assert!(!error.contains("hidden") && error.len() < 1100, "{error}");
        talk.thread(&["agent", "stop"]).ok();
    }
}

#[test]
fn a_server_that_is_not_there_is_named_with_advice() {
    let talk = Talk::new();
    let url = "http://127.0.0.1:9/v1";
    install(&talk, &["--protocol", "openai", "--url", url, "--model", "m", "--attempts", "1"]);
    let id = talk.say("hello");
    let error = error_of(&talk, id);
    let expected = format!(
        "the model at {url} cannot be reached (Connection refused (os error 111)): start it, or check the URL"
    );
    assert_eq!(error, expected);
}

#[test]
fn a_model_without_servers_of_tools_is_offered_those_for_notes() {
    let Some((talk, _models)) = talk_with("tools", &[]) else { return };
    let id = talk.say("hello");
    assert_eq!(talk.answer(id), "it says Error: `key` must be a text of 1 to 256 bytes on one line");
    let request = requests(&talk).remove(0);
    let names: Vec<_> =
        request["tools"].as_array().unwrap().iter().map(|tool| &tool["function"]["name"]).collect();
    assert_eq!(names, ["memory_get", "memory_set", "memory_list", "memory_delete"]);
}

#[test]
fn a_model_is_a_sub_agent_with_one_attempt() {
    let Some((talk, models)) = talk_with("think", &[]) else { return };
    // That of the parent is the default.
    let run = |options: &[&str], task: &str| {
        talk.thread(&[&["agent", "run", "--parent", talk.dir().to_str().unwrap()], options].concat())
            .stdin(task)
    };
    assert_eq!(run(&[], "a task").ok(), "a task\n");
    assert_eq!(run(&options(&models, "count", &[]), "a task").ok(), "1: a task\n");
    let error = run(&options(&models, "down", &[]), "a task").fails(1);
    assert!(error.contains("failed (500: out of memory)"), "{error}");
    assert_eq!(requests(&talk).len(), 3);
}

#[test]
fn a_key_is_in_no_event_log_or_environment() {
    const KEY: &str = "sk-5e1f-never-seen";
    let talk = Talk::new();
    let Some(models) = start(&talk, &["--key", KEY]) else { return };
    let file = talk.write("keys.env", &format!("MY_KEY={KEY}\nOTHER=1\n"));
    let keyed = ["--key-env", "MY_KEY", "--env-file", &file];
    install(&talk, &options(&models, "echo", &keyed));
    let first = talk.say("hello");
    assert_eq!(talk.answer(first), "hello");
    let log = talk.lines("requests");
    assert!(log[0].contains(KEY), "the model got it");
    let leaks = |talk: &Talk| {
        let found = talk.sh(&format!("grep -raF '{KEY}' \"$THREAD_DIR\" || true")).ok();
        assert_eq!(found, "");
        let processes = processes_in(&talk.dir().to_string_lossy());
        assert!(!processes.is_empty());
        for pid in processes {
            for file in ["environ", "cmdline"] {
                let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
                assert!(!String::from_utf8_lossy(&bytes).contains(KEY), "{pid} {file}");
            }
        }
    };
    leaks(&talk);
    // A server that repeats it.
    let other = talk.beside("other");
    install(&other, &options(&models, "leak", &keyed));
    let id = other.say("hello");
    assert!(error_of(&other, id).ends_with("refuses the request (400: Bearer [key] may not do this)"));
    leaks(&other);
    // The wrong one, and none.
    let wrong = talk.write("wrong.env", "MY_KEY=sk-other\n");
    let third = talk.beside("third");
    install(&third, &options(&models, "echo", &["--key-env", "MY_KEY", "--env-file", &wrong]));
    let id = third.say("hello");
    assert!(error_of(&third, id).contains("refuses the key (401: the key is wrong)"));
    let none = talk.beside("none");
    install(&none, &options(&models, "echo", &[]));
    let id = none.say("hello");
    assert!(error_of(&none, id).contains("asks for a key (401: the key is wrong)"));
    let missing = options(&models, "echo", &["--key-env", "NO_SUCH_KEY"]);
    let missing = none.thread(&[&["agent", "install", "--consumer", "x"], &missing[..]].concat());
    refuses(missing, 2, "the variable NO_SUCH_KEY of --key-env is not set");
}

#[test]
fn a_key_of_the_environment_reaches_no_child() {
    const KEY: &str = "sk-77aa-of-the-environment";
    let talk = Talk::new();
    let Some(models) = start(&talk, &["--key", KEY]) else { return };
    let keyed = options(&models, "echo", &["--key-env", "MY_KEY"]);
    talk.thread(&[&["agent", "install"], &keyed[..]].concat()).env("MY_KEY", KEY).ok();
    let words = ["push", "--source", ADA, "--type", "message", "--content", "hello"];
    let id = talk.thread(&words).env("MY_KEY", KEY).ok().trim().parse().unwrap();
    assert_eq!(talk.answer(id), "hello");
    let everything = talk.everything();
    let children: Vec<_> = everything.iter().filter(|(_, line)| line.contains("\0_model\0")).collect();
    assert_eq!(children.len(), 1, "{everything:?}");
    let environment = std::fs::read(format!("/proc/{}/environ", children[0].0)).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    assert!(environment.contains("THREAD_RUN_ID=") && !environment.contains(KEY), "{environment}");
    assert_eq!(talk.sh(&format!("grep -raF '{KEY}' \"$THREAD_DIR\" || true")).ok(), "");
}

#[test]
fn a_kill_at_any_event_ends_no_attempt_and_changes_no_prompt() {
    let Some((talk, _models)) = talk_with("slow", &["--attempts", "1"]) else { return };
    let mut said: Vec<String> = Vec::new();
    // In the n-th run the adapter and its process are killed once there are n events of it.
    for kill_at in 1..=9 {
        let text = format!("turn {kill_at} of nine");
        let id = talk.say(&text);
        let run = format!("run_{id}");
        talk.until("the event to kill at", |_| (kinds(&talk, &run).len() >= kill_at).then_some(()));
        kill_adapter(&talk);
        wait_until("the run to end", || {
            // As cron does. Without it, the supervisor waits before it starts another adapter.
            talk.thread(&["dispatch"]).ok();
            talk.entries().iter().any(|(.., entry)| entry.ends() == Some(id))
        });
        assert_eq!(talk.answer(id), text);
        let kinds = kinds(&talk, &run);
        assert_eq!(kinds.iter().filter(|kind| *kind == "run").count(), 1, "{kinds:?}");
        assert_eq!(kinds.iter().filter(|kind| *kind == "model").count(), 1, "{kinds:?}");
        let last = requests(&talk).pop().unwrap();
        let mut expected = said.clone();
        expected.push(format!("user: {text}"));
        assert_eq!(prompt(&last), expected);
        said.extend([format!("user: {text}"), format!("assistant: {text}")]);
    }
    let cut = talk.entries().into_iter().filter(|(.., entry)| matches!(entry, Entry::TurnCut { .. })).count();
    assert!(cut > 2, "{cut} turns were cut off");
    assert_eq!(talk.is_settled(), Ok(()));
}

/// Kills the adapter and the process that asks the model.
fn kill_adapter(talk: &Talk) {
    let is_one = |line: &str| line.contains("/thread-agent\0");
    let everything = talk.everything();
    for (pid, _) in everything.iter().filter(|(_, line)| is_one(line)) {
        thread_testkit::kill(*pid);
    }
}

#[test]
fn a_model_is_checked() {
    let talk = Talk::new();
    let Some(models) = start(&talk, &[]) else { return };
    let check = |model: &str| talk.thread(&["agent", "check", &format!("{}{model}", models.url)]);
    let lines = check("#tools").ok();
    let lines: Vec<&str> = lines.lines().collect();
    assert!(lines[0].starts_with("answers  yes  echo, think, count, tools, "), "{lines:?}");
    assert!(lines[1].starts_with("streams  yes  tools, the first of "), "{lines:?}");
    assert_eq!(lines[2], "tools    yes  tools called one");
    assert!(check("").ok().contains("\nstreams  yes  echo, "));
    assert!(check("#whole").ok().contains("\nstreams  no   whole answers all at once\n"));
    let (lines, error) = check("#nobody").ends_with(1);
    assert!(lines.contains("\nstreams  no   "), "{lines}");
    assert!(error.contains("has no model 'nobody'"), "{error}");
    let json = talk.thread(&["agent", "check", "--json", &format!("{}#echo", models.url)]).ok();
    let first: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!((&first["check"], &first["ok"]), (&"answers".into(), &true.into()));
    let (lines, error) = talk.thread(&["agent", "check", "http://127.0.0.1:9/v1"]).ends_with(1);
    assert!(lines.starts_with("answers  no   ") && error.contains("cannot be reached"), "{lines}{error}");
    refuses(talk.thread(&["agent", "check", "127.0.0.1:9"]), 2, "give URL or URL#MODEL");
    refuses(talk.thread(&["agent", "check", "http://me:secret@host/v1"]), 2, "a key is given by --key-env");
}

#[test]
fn options_that_do_not_fit_together_are_refused() {
    let talk = Talk::new();
    let install = |words: &[&str]| talk.thread(&[&["agent", "install"], words].concat());
    let url = ["--url", "http://localhost:1/v1", "--model", "m"];
    refuses(install(&url), 2, "--protocol openai and --url belong together");
    refuses(
        install(&["--protocol", "openai", "--", "cat"]),
        2,
        "--protocol openai and --url belong together",
    );
    refuses(install(&["--protocol", "openai"]), 2, "");
    refuses(
        install(&[&["--protocol", "openai"], &url[..], &["--", "cat"]].concat()),
        2,
        "cannot be used with",
    );
    refuses(install(&["--protocol", "openai", "--url", "http://localhost:1/v1"]), 2, "--model");
    refuses(install(&["--key-env", "K", "--", "cat"]), 2, "only a server at --url has a key");
    refuses(
        install(&[&["--protocol", "openai", "--key-env", "sk-secret"], &url[..]].concat()),
        2,
        "not the key itself",
    );
    let system = ["--protocol", "openai", "--system", "no-such-file"];
    refuses(install(&[&system[..], &url].concat()), 1, "check the file of --system");
}
