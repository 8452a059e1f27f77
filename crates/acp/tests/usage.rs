//! How `thread acp` is started, and what it says where there is no gateway.

use serde_json::{Value, json};
use thread_testkit::{Run, World};

fn acp(world: &World) -> Run {
    // No gateway has published its address here.
    world.run(env!("CARGO_BIN_EXE_thread-acp")).env("XDG_DATA_HOME", world.path("nothing"))
}

#[test]
fn help_shows_how_it_is_used() {
    let help = acp(&World::named("acp")).arg("--help").quiet();
    assert!(help.contains("Examples:\n  thread acp\n") && help.contains("--agent <NAME>"), "{help}");
}

#[test]
fn a_wrong_option_is_an_error_that_leads_to_help() {
    let told = acp(&World::named("acp")).arg("--session").fails(2);
    assert!(told.ends_with("see `thread acp --help`"), "{told}");
}

#[test]
fn without_a_gateway_the_editor_is_told_when_it_asks_for_a_session() {
    let requests = [
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "protocolVersion": 1 } }),
        json!({ "jsonrpc": "2.0", "id": 2, "method": "session/new", "params": { "cwd": "/", "mcpServers": [] } }),
    ];
    let lines = requests.map(|request| format!("{request}\n")).concat();
    let told = acp(&World::named("acp")).stdin(lines).quiet();
    let answers: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [first, second] = &*answers else { panic!("{told}") };
    assert_eq!((&first["id"], &first["result"]["protocolVersion"]), (&json!(1), &json!(1)));
    let error = second["error"]["message"].as_str().unwrap_or_default();
    assert!(second["id"] == json!(2) && error.contains("thread serve"), "{second}");
}
