//! `thread agent install`, and how failures are told.

use crate::harness::Talk;

#[test]
fn the_subscription_is_one_for_agents() {
    let talk = Talk::new();
    let printed =
        talk.thread(&["agent", "install", "--json", "--protocol", "ndjson", "--", "my agent", "-x"]).ok();
    let printed: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(printed["consumer_id"], "agent");
    let handler = printed["handler_cmd"].as_str().unwrap();
    assert!(handler.starts_with("PATH="), "{handler}");
    assert!(
        handler.ends_with(
            "/thread-agent --protocol ndjson --attempts 3 --idle 10m --quiet 10m --permit ask -- 'my agent' -x"
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
    std::fs::create_dir(talk.path("bin")).unwrap();
    let agent = talk.write("bin/my-agent", "#!/bin/sh\nprintf 'mine: '; cat\n");
    talk.sh(&format!("chmod 755 {agent}")).ok();
    talk.sh("PATH=$PWD/bin:$PATH thread agent install -- my-agent").ok();
    // As cron would: hardly any environment.
    let thread = talk.sh("command -v thread").ok();
    let push = format!(
        "env -i PATH=/usr/bin:/bin {} push -t talk --source internal:dm:default:cron --type message \
         --meta priority=later --content '<PULSE/>'",
        thread.trim()
    );
    let id = talk.sh(&push).ok().trim().parse().unwrap();
    assert_eq!(talk.answer(id), "mine: <PULSE/>");
}

#[test]
fn errors_say_what_to_do() {
    let talk = Talk::with(&[], &["cat"]);
    let again = talk.thread(&["agent", "install", "--", "cat"]).fails(1);
    assert!(again.contains("`thread unsubscribe --consumer agent`"), "{again}");
    talk.thread(&["agent", "install"]).fails(2);
    talk.thread(&["agent", "--protocol", "telepathy", "--", "x"]).fails(2);
    talk.thread(&["agent", "--attempts", "0", "--", "x"]).fails(2);
    talk.thread(&["agent", "install", "--consumer", "a/b", "--", "x"]).fails(2);
    talk.thread(&["agent", "install", "--env-file", "nowhere", "--consumer", "b", "--", "x"]).fails(1);
    let alone = talk.thread(&["agent", "--", "cat"]).fails(2);
    assert!(alone.contains("`thread agent install`"), "{alone}");
    talk.thread(&["-t", "nowhere", "agent", "install", "--", "cat"]).fails(1);
    assert!(talk.thread(&["agent", "--help"]).ok().contains("--quiet"));
}
