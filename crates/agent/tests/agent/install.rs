//! `thread agent install`, and how failures are reported.

use thread_testkit::quoted;

use crate::harness::Talk;

#[test]
fn install_subscribes_the_adapter() {
    let talk = Talk::new();
    let printed =
        talk.thread(&["agent", "install", "--json", "--protocol", "ndjson", "--", "my agent", "-x"]).ok();
    let printed: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(printed["consumer_id"], "agent");
    let handler = printed["handler_cmd"].as_str().unwrap();
    assert!(handler.starts_with("PATH="), "{handler}");
    // As a shell takes it apart: paths are quoted if they need it.
    let words = talk.sh(&format!("printf '%s\\n' {handler}")).ok();
    assert!(words.starts_with("PATH="), "{handler}");
    assert!(
        words.ends_with(
            "/thread-agent\n--protocol\nndjson\n--quiet\n10m\n--max-output\n67108864\n--permit\nask\n--permit-wait\n5m\n--attempts\n3\n--idle\n10m\n--\nmy agent\n-x\n"
        ),
        "{handler}"
    );
    let info = talk.thread(&["info", "--json"]).ok();
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    let subscription = &info["subscriptions"][0];
    assert_eq!(subscription["handler_cmd"], handler);
    assert_eq!(subscription["filter"], "type = 'message' AND source <> 'self' OR subtype = 'cancel'");
}

#[test]
fn cron_starts_the_agent_with_the_path_of_the_installation() {
    let talk = Talk::new();
    talk.script("bin/my-agent", "printf 'mine: '; cat");
    talk.sh("PATH=$PWD/bin:$PATH thread agent install -- my-agent").ok();
    // A minimal environment, as from cron.
    let thread = talk.sh("command -v thread").ok();
    let push = format!(
        "env -i PATH=/usr/bin:/bin {} push -t talk --source internal:dm:default:cron --type message \
         --meta priority=later --content '<PULSE/>'",
        quoted(thread.trim())
    );
    let id = talk.sh(&push).ok().trim().parse().unwrap();
    assert_eq!(talk.answer(id), "mine: <PULSE/>");
}

#[test]
fn an_agent_can_be_subscribed_by_hand() {
    let talk = Talk::new();
    talk.script("bin/my-agent", crate::usage::ACP);
    let subscribe = r#"PATH=$PWD/bin:$PATH; thread subscribe --consumer agent \
        --filter "type = 'message' AND source <> 'self' OR subtype = 'cancel'" \
        --handler 'thread agent --protocol acp -- my-agent'"#;
    talk.sh(subscribe).ok();
    assert_eq!(talk.sh("PATH=$PWD/bin:$PATH; thread ask hello").ok(), "a stand-in\n");
    assert_eq!(talk.processes().len(), 1, "it is kept");
    talk.thread(&["agent", "stop"]).ok();
    assert_eq!(talk.everything(), Vec::new());
}

#[test]
fn a_sub_agent_runs_its_parents_program_by_default_also_if_subscribed_by_hand() {
    let talk = Talk::new();
    let handler =
        r#"thread agent -- sh -c 'case $THREAD_DIR in */agents/*) tr a-z A-Z;; *) thread agent run;; esac'"#;
    talk.thread(&["subscribe", "--consumer", "bot", "--filter", "source <> 'self'", "--handler", handler])
        .ok();
    assert_eq!(talk.thread(&["ask", "hello"]).ok(), "HELLO\n");
    talk.thread(&["agent", "stop"]).ok();
    assert_eq!(talk.everything(), Vec::new());
    talk.thread(&["unsubscribe", "--consumer", "bot"]).ok();
}

#[test]
fn a_sub_agent_has_the_variables_of_its_parent_however_it_is_woken() {
    let talk = Talk::new();
    talk.write("keys.env", "API_KEY=secret");
    // A sub-agent with its own program, started by a process without the key, such as a dispatch from cron.
    let script = "echo x | env -u API_KEY thread agent run -- sh -c 'echo key: $API_KEY'";
    talk.install(&["--env-file", "keys.env"], &["sh", "-c", script]);
    let id = talk.say("hello");
    assert_eq!(talk.answer(id), "key: secret\n");
}

#[test]
fn the_thread_is_the_named_one_or_the_one_around() {
    let talk = Talk::new();
    let inside = "unset THREAD_DIR; cd talk/logs;";
    talk.sh(&format!("{inside} thread agent install -- cat")).ok();
    talk.sh("unset THREAD_DIR; thread agent stop").fails(2);
    for named in ["-t ../talk", "--thread ../talk", "--parent ../talk"] {
        let run = format!("unset THREAD_DIR; mkdir -p sub; cd sub; echo hello | thread agent run {named}");
        assert_eq!(talk.sh(&run).ok(), "hello\n", "{named}");
    }
    assert_eq!(talk.sh(&format!("{inside} echo hello | thread agent run")).ok(), "hello\n");
    let here = talk.dir().canonicalize().unwrap().display().to_string();
    assert_eq!(talk.sh(&format!("{inside} thread agent stop")).ok().trim(), here);
    assert_eq!(talk.everything(), Vec::new(), "a sub-agent that is done is gone");
}

#[test]
fn thread_ask_prints_the_answer_of_the_agent() {
    let script =
        "read x; case $x in bad) echo broken >&2; exit 3;; long) sleep 1000;; *) echo \"you said $x\";; esac";
    let talk = Talk::with(&["--attempts", "1"], &["sh", "-c", script]);
    let asked: Vec<_> = ["one", "two", "three"]
        .map(|question| {
            let mut ask = talk.command("thread");
            (question, ask.args(["ask", question]).stdout(std::process::Stdio::piped()).spawn().unwrap())
        })
        .into_iter()
        .map(|(question, ask)| (question, String::from_utf8(ask.wait_with_output().unwrap().stdout).unwrap()))
        .collect();
    for (question, answer) in asked {
        assert_eq!(answer, format!("you said {question}\n"));
    }
    let failed = talk.thread(&["ask", "bad"]).fails(3);
    assert!(failed.contains("exit code 3") && !failed.contains("broken"), "{failed}");
    let ask = "thread ask long --meta run_id=mine & thread peek --last-event-id 0 --wait 1m --filter \"subtype = 'run' \
               AND metadata ->> 'run_id' = 'mine'\" >/dev/null; thread push --type record --subtype cancel \
               --meta run_id=mine --content 'never mind' >/dev/null; wait $!";
    let cancelled = talk.sh(ask).fails(3);
    assert!(cancelled.contains("never mind"), "{cancelled}");
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn errors_say_what_to_do() {
    let talk = Talk::with(&[], &["cat"]);
    let again = talk.thread(&["agent", "install", "--", "cat"]).fails(1);
    assert!(again.contains("--replace") && again.contains("--consumer"), "{again}");
    // What is refused holds nothing.
    let model = ["--protocol", "openai", "--url", "http://127.0.0.1:9/v1", "--model", "m"];
    talk.thread(&[&["agent", "install"], &model[..]].concat()).fails(1);
    talk.thread(&["config", "hold.agent"]).fails(1);
    talk.thread(&["agent", "install"]).fails(2);
    talk.thread(&["agent", "--protocol", "telepathy", "--", "x"]).fails(2);
    talk.thread(&["agent", "--attempts", "0", "--", "x"]).fails(2);
    talk.thread(&["agent", "install", "--consumer", "a/b", "--", "x"]).fails(2);
    talk.thread(&["agent", "install", "--env-file", "nowhere", "--consumer", "b", "--", "x"]).fails(1);
    let alone = talk.thread(&["agent", "--", "cat"]).fails(2);
    assert!(alone.contains("`thread agent install`"), "{alone}");
    talk.thread(&["-t", "nowhere", "agent", "install", "--", "cat"]).fails(1);
    talk.thread(&["agent", "run", "--protocol", "acp"]).fails(2);
    let other = talk.thread(&["agent", "run", "--parent", "none"]).fails(1);
    assert!(other.contains("/none is not a thread"), "{other}");
    talk.thread(&["unsubscribe", "--consumer", "agent"]).ok();
    let nobody = talk.sh("echo hello | thread agent run").fails(1);
    assert!(nobody.contains("`thread agent run -- PROGRAM`"), "{nobody}");
    let help = talk.thread(&["agent", "--help"]).ok();
    assert!(help.contains("--quiet"));
    assert_eq!(talk.thread(&["agent", "help", "--help"]).ok(), help);
    let run = talk.thread(&["agent", "help", "run"]).ok();
    assert!(run.contains("-t, --parent <PATH>") && !run.contains("-t, --thread"), "{run}");
}

#[test]
fn an_agent_takes_the_place_of_another() {
    let talk = Talk::with(&[], &["sh", "-c", "until [ -e go ]; do sleep 0.05; done; echo one"]);
    let first = talk.say("a");
    talk.begun(first);
    talk.install(&["--replace"], &["echo", "two"]);
    let second = talk.say("b");
    talk.write("go", "");
    // What the first had begun is its own.
    assert_eq!((talk.answer(first), talk.answer(second)), ("one\n".to_owned(), "two\n".to_owned()));
    // Without one before it, it is an ordinary installation.
    talk.thread(&["unsubscribe", "--consumer", "agent"]).ok();
    talk.install(&["--replace"], &["echo", "three"]);
    let third = talk.say("c");
    assert_eq!(talk.answer(third), "three\n");
    assert_eq!(talk.is_settled(), Ok(()));
}

#[test]
fn it_says_its_version() {
    let said =
        std::process::Command::new(env!("CARGO_BIN_EXE_thread-agent")).arg("--version").output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&said.stdout),
        format!("thread agent {}\n", env!("CARGO_PKG_VERSION"))
    );
}
