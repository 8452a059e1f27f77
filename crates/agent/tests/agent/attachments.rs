//! Files attached to a message.

use std::path::PathBuf;

use crate::harness::Talk;

/// A conversation, a file stored as by a gateway, and the metadata of a message that it is attached to.
fn talk_with_picture() -> (Talk, PathBuf, String) {
    let talk = Talk::new();
    std::fs::create_dir_all(talk.path("storage/attachments/1")).unwrap();
    let file = talk.path("").canonicalize().unwrap().join("storage/attachments/1/a.png");
    std::fs::write(&file, "picture").unwrap();
    let metadata = serde_json::json!({
        "user_message_attachments": { "bucket": "attachments", "path": "1/a.png", "mime_type": "image/png" },
        "attachment_files": [&file, "/etc/passwd", talk.dir().join("../storage/../../etc/passwd")],
    });
    (talk, file, metadata.to_string())
}

const CONTENT: &str = r#"[{"type":"text","text":"what is this?"},
    {"type":"binary","mimeType":"image/png","url":"http://127.0.0.1/storage/v1/object/sign/attachments/1/a.png"}]"#;

#[test]
fn an_exec_program_gets_the_paths_of_attachments() {
    let (talk, file, metadata) = talk_with_picture();
    talk.install(
        &["--attempts", "1"],
        &["sh", "-c", "cat; echo \"<$THREAD_ATTACHMENTS>\"; cat \"$THREAD_ATTACHMENTS\""],
    );
    let id = talk.say_with(CONTENT, &metadata);
    let path = file.display();
    assert_eq!(talk.answer(id), format!("what is this?\n\nAttached: {path} (image/png)\n<{path}>\npicture"));
    let plain = talk.say("hello");
    assert!(matches!(talk.ending(plain), thread_conversation::Entry::Error { .. }));
    assert_eq!(talk.tokens(&format!("run_{plain}")).concat(), "hello<>\n");
}

#[test]
fn an_ndjson_program_gets_the_paths_of_attachments() {
    let (talk, file, metadata) = talk_with_picture();
    let script = "while IFS= read -r x; do printf '%s\\n' \"$x\" >>got; echo '{\"event\":\"final\"}'; done";
    talk.install(&["--protocol", "ndjson"], &["sh", "-c", script]);
    let ids = [talk.say_with(CONTENT, &metadata), talk.say("hello")];
    ids.iter().for_each(|id| drop(talk.answer(*id)));
    let got = talk.read("got");
    let mut lines = got.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let told = serde_json::json!([{ "path": file, "mime_type": "image/png" }]);
    assert_eq!(lines.next().unwrap()["attachments"], told);
    assert_eq!(lines.next().unwrap().get("attachments"), None);
}

#[test]
fn an_acp_agent_gets_files_that_it_supports_or_links() {
    for (takes, kind) in [("{}", "resource_link"), (r#"{"promptCapabilities":{"image":true}}"#, "image")] {
        let (talk, file, metadata) = talk_with_picture();
        let script = format!(
            r#"for result in '{{"protocolVersion":1,"agentCapabilities":{takes}}}' '{{"sessionId":"s"}}' '{{"stopReason":"end_turn"}}'; do
                 IFS= read -r line; printf '%s\n' "$line" >>got
                 id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\),"method".*/\1/')
                 echo "{{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$result}}"
               done; sleep 1000"#
        );
        talk.install(&["--protocol", "acp"], &["sh", "-c", &script]);
        let id = talk.say_with(CONTENT, &metadata);
        talk.answer(id);
        let got = talk.read("got");
        let prompt: serde_json::Value = serde_json::from_str(got.lines().last().unwrap()).unwrap();
        let blocks = prompt["params"]["prompt"].as_array().unwrap();
        assert_eq!(blocks.len(), 2, "{blocks:?}");
        assert_eq!((&blocks[0]["text"], &blocks[1]["type"]), (&"what is this?".into(), &kind.into()));
        let encoded = |byte: u8| match byte {
            _ if byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte) => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        };
        let path: String = file.to_str().unwrap().bytes().map(encoded).collect();
        assert_eq!(blocks[1]["uri"], format!("file://{path}"));
        assert!(!got.contains("passwd"), "{got}");
    }
}
