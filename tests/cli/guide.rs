//! `thread guide`: what it shows is run.

use crate::harness::{World, ids};
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

/// The other side of the guide's examples: whoever writes to the reader, and answers.
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
    assert_eq!(world.state("me"), "paused");
    assert!(!world.read("inbox/logs/thread.log").contains("consumer=me spawned"));
}

#[test]
fn the_guides_handlers_work_and_acknowledge() {
    let world = World::with_thread();
    let page = page("handler");
    let scripts: Vec<String> =
        blocks(&page).into_iter().filter(|b| b.language == "sh").map(|b| b.text).collect();
    let [fed, woken] = scripts.as_slice() else { panic!("{} scripts", scripts.len()) };
    world.script("fed.sh", fed);
    world.script("woken.sh", woken);
    let filter = "source LIKE 'external:%'";
    world.subscribe("fed", "./fed.sh", &["--filter", filter, "--deliver", "stdin"]);
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
    for consumer in ["fed", "woken"] {
        let consumer = world.consumer(consumer);
        assert_eq!((&consumer["state"], &consumer["pending"]), (&"idle".into(), &0.into()), "{consumer}");
        assert_eq!(consumer["last_exit"], "exit=0");
    }
    // Given once more, the events are answered once all the same.
    world.thread(["seek", "--consumer", "fed", "--to", "earliest"]).quiet();
    world.wait_until_quiet();
    assert_eq!(world.query(answers), 2);
}
