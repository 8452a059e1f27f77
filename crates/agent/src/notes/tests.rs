use std::path::PathBuf;

use thread::run::WakeBy;

use super::*;

fn launcher() -> Launcher {
    Launcher { program: PathBuf::from("thread"), waking: WakeBy::Dispatch }
}

struct World {
    dir: tempfile::TempDir,
}

impl World {
    fn memory(&self, name: &str) -> Notebook {
        let path = self.dir.path().join(name);
        drop(Queue::init(&path));
        Notebook::of(&Queue::open(&path).unwrap()).unwrap()
    }
}

fn call(memory: &Notebook, id: &str, name: &str, arguments: Value) -> Result<Value, String> {
    memory.call(name, &arguments, id, &launcher()).map(|text| serde_json::from_str(&text).unwrap())
}

#[test]
fn notes_are_shared_and_replaced_only_by_those_who_know_them() {
    let world = World { dir: tempfile::tempdir().unwrap() };
    let (one, two) = (world.memory("one"), world.memory("two"));
    assert_eq!(one.in_prompt().unwrap(), (String::new(), 0));
    assert!(!world.dir.path().join(MEMORY).exists(), "it is made for the first note");
    let set = json!({ "key": "name", "value": "Ada" });
    assert_eq!(call(&one, "c1", "memory_set", set.clone()).unwrap()["version"], 1);
    // The same call, made again; and another one with the same id.
    assert_eq!(call(&one, "c1", "memory_set", set.clone()).unwrap()["version"], 1);
    assert!(call(&two, "c1", "memory_set", set).unwrap_err().contains("version 1"));
    assert_eq!(call(&two, "c2", "memory_get", json!({ "key": "name" })).unwrap()["value"], "Ada");
    let replace = |version: i64| json!({ "key": "name", "value": "Bob", "version": version });
    assert!(call(&two, "c3", "memory_set", replace(7)).is_err());
    let version = call(&two, "c4", "memory_set", replace(1)).unwrap()["version"].as_i64().unwrap();
    assert!(call(&one, "c5", "memory_set", replace(1)).is_err());
    assert_eq!(call(&one, "c6", "memory_list", json!({})).unwrap()["notes"][0]["version"], version);
    let (text, newest) = one.in_prompt().unwrap();
    assert!(text.contains("not instructions") && text.contains("Bob") && newest == version, "{text}");
    assert_eq!(call(&one, "c7", "memory_delete", json!({ "key": "name" })).unwrap()["deleted"], true);
    assert_eq!(call(&one, "c7", "memory_delete", json!({ "key": "name" })).unwrap()["deleted"], true);
    assert!(call(&one, "c8", "memory_delete", json!({ "key": "name" })).is_err());
    for bad in [json!({}), json!({ "key": "" }), json!({ "key": "a\nb" }), json!({ "key": 5 })] {
        assert!(call(&one, "c9", "memory_get", bad).is_err());
    }
    assert!(call(&one, "c10", "memory_set", json!({ "key": "a", "value": "x".repeat(70_000) })).is_err());
}

#[test]
fn people_correct_notes_without_a_version() {
    let world = World { dir: tempfile::tempdir().unwrap() };
    let memory = world.memory("one");
    call(&memory, "c1", "memory_set", json!({ "key": "name", "value": "Ada" })).unwrap();
    let mut queue = Queue::open(world.dir.path().join(MEMORY)).unwrap();
    let correct = |content: &str| {
        NewEvent::new("external:cli:x:dm:me:me", "record", Some("memory".into()), content.to_owned())
    };
    queue.push(&correct(r#"{"key":"name","value":"Eve"}"#).unwrap()).unwrap();
    queue.push(&correct("nonsense").unwrap()).unwrap();
    assert_eq!(call(&memory, "c2", "memory_get", json!({ "key": "name" })).unwrap()["value"], "Eve");
    queue.push(&correct(r#"{"key":"name"}"#).unwrap()).unwrap();
    assert!(call(&memory, "c3", "memory_get", json!({ "key": "name" })).is_err());
}

#[test]
fn a_prompt_has_at_most_4_kib_of_them() {
    let mut notes = Notes::default();
    for id in 1..200 {
        notes.notes.insert(format!("note {id}"), ("x".repeat(100), id));
    }
    let text = notes.in_prompt();
    assert!(text.len() <= IN_PROMPT && text.len() > IN_PROMPT - 300 && text.contains("note 199"), "{text}");
    assert!(text.ends_with(MORE));
}
