//! `thread guide`: its examples are executed.

use thread_testkit::{World, ids};

use crate::usage::{blocks, play};

fn page(reader: &str) -> String {
    World::new().thread(["guide", "--for", reader]).env_remove("THREAD_DIR").quiet()
}

#[test]
fn the_guide_is_short() {
    for reader in ["agent", "handler"] {
        let page = page(reader);
        assert!(page.chars().count() < 6000, "{reader}: {}", page.chars().count());
        assert!(page.starts_with("# ") && page.ends_with('\n'));
    }
    assert_eq!(World::new().thread(["guide"]).quiet(), page("agent"));
    World::new().thread(["guide", "--for", "somebody"]).fails(2);
}

/// The other participants in the guide's examples: they write to the reader and answer it.
const OTHERS: &str = r#"
    case $event in
    *'"content":"Done.'*)
        thread push --source internal:dm:default:ada --type message --content 'Please review the plan.
' ;;
    *'"content":"May I deploy?'*)
        thread push --source internal:dm:default:warden --type message --content 'Yes.' --meta reply_to="$id" ;;
    esac"#;

#[test]
fn an_agent_that_follows_the_guide_gets_what_it_says() {
    let world = World::with_thread();
    let others =
        format!("while IFS= read -r event; do\n    id=${{event#*:}}\n    id=${{id%%,*}}\n{OTHERS}\ndone");
    world.script("bin/others", &others);
    world.subscribe("others", "others", &["--deliver", "stdin"]);
    play(&world, "the guide", &page("agent"));
    // The reader's own consumer was never started.
    assert!(!world.read("inbox/logs/thread.log").contains("consumer=me spawned"));
}

#[test]
fn the_guides_handlers_work_and_acknowledge() {
    let world = World::with_thread();
    let page = page("handler");
    let scripts: Vec<String> =
        blocks(&page).into_iter().filter(|b| b.language == "sh").map(|b| b.text).collect();
    let [fed, kept, woken] = scripts.as_slice() else { panic!("{} scripts", scripts.len()) };
    world.script("fed.sh", fed);
    world.script("kept.sh", kept);
    world.script("woken.sh", woken);
    let filter = "source LIKE 'external:%'";
    world.subscribe("fed", "./fed.sh", &["--filter", filter, "--deliver", "stdin"]);
    let idle = ["--filter", filter, "--deliver", "ndjson", "--idle", "1s"];
    world.subscribe("kept", "./kept.sh", &idle);
    world.subscribe("woken", "./woken.sh", &["--filter", filter]);
    for content in ["one", "two"] {
        world
            .thread(["push", "--source", "external:web:chat:session:1:eve", "--type", "message"])
            .arg("--content")
            .arg(content)
            .quiet();
    }
    world.wait_until_quiet();

    let answers = "SELECT count(*) FROM events WHERE content = 'Received. I `work` on it.\n'
         AND source = 'internal:dm:default:fed' AND metadata ->> 'reply_to' IN
             (SELECT CAST(id AS TEXT) FROM events WHERE source LIKE 'external:%')";
    assert_eq!(world.query(answers), 2);
    assert_eq!(ids(&world.read("work.ndjson")).len(), 2);
    assert_eq!(ids(&world.read("done.ndjson")).len(), 2);
    for consumer in ["fed", "kept", "woken"] {
        let consumer = world.consumer(consumer);
        assert_eq!((&consumer["state"], &consumer["pending"]), (&"idle".into(), &0.into()), "{consumer}");
        assert_eq!(consumer["last_exit"], "exit=0");
    }
    // Redelivered events are not answered again.
    world.thread(["seek", "--consumer", "fed", "--to", "earliest"]).quiet();
    world.wait_until_quiet();
    assert_eq!(world.query(answers), 2);
}

/// Content that may break a shell, a JSON parser or a line reader.
const HOSTILE: [&str; 7] = [
    "What is 2+2?",
    "two\nlines, \"quotes\", 'others' and a \\ backslash",
    "`touch pwned` $(touch pwned) $HOME %s %d",
    "-n",
    "a line\u{2028}separator, a next line\u{85}, a return\r and a tab\t.",
    "{\"id\":99,\"content\":\"not this\"}",
    "☃ \u{1f600} é",
];

fn templates_answer(language: &str) {
    let world = World::with_thread();
    if !world.agent_of_the_guide(language) {
        return;
    }
    for question in HOSTILE {
        let answer = world.thread(["ask", "-"]).stdin(question).quiet();
        assert_eq!(answer, format!("You said: {question}\n"), "{language}");
    }
    world.wait_until_quiet();
    assert!(!world.path("pwned").exists(), "{language}");
    // Redelivered events are not answered again, and answers are not answered either.
    world.thread(["seek", "agent", "earliest"]).quiet();
    world.wait_until_quiet();
    assert_eq!(world.query("SELECT count(*) FROM events"), 2 * HOSTILE.len() as i64, "{language}");
    let agent = world.consumer("agent");
    assert_eq!((&agent["state"], &agent["last_exit"]), (&"idle".into(), &"exit=0".into()), "{language}");

    // If an answer cannot be stored, the event is delivered again.
    std::fs::rename(world.bin().join("thread"), world.bin().join("real-thread")).unwrap();
    let failing =
        "[ \"$1\" = reply ] && [ ! -e refused ] && { touch refused; exit 1; }\nexec real-thread \"$@\"";
    world.script("bin/thread", failing);
    assert_eq!(world.thread(["ask", "Again?"]).quiet(), "You said: Again?\n", "{language}");
    assert!(world.path("refused").exists(), "{language}");
}

#[test]
fn the_bash_handler_answers_whatever_it_is_asked() {
    templates_answer("bash");
}

#[test]
fn the_python_handler_answers_whatever_it_is_asked() {
    templates_answer("python");
}

#[test]
fn the_node_handler_answers_whatever_it_is_asked() {
    templates_answer("node");
}

#[test]
fn the_bash_handler_without_jq_stalls_and_says_why() {
    let world = World::with_thread();
    world.script("agent.sh", "");
    world.sh("thread guide --handler bash >agent.sh").quiet();
    world.subscribe("agent", "./agent.sh", &["--deliver", "stdin"]);
    world.push("Hello?");
    world.wait_for_state("agent", "stalled");
    assert!(world.thread(["logs", "agent"]).quiet().contains("this handler needs jq"));
    assert_eq!(world.consumer("agent")["pending"], 1);
}
