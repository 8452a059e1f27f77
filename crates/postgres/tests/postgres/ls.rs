//! `ls`, and `--root` of `info`, `prune` and `doctor`: all threads of a schema.

use thread_testkit::postgres::server;

use crate::machine::Machine;

#[test]
fn all_threads_of_a_schema_are_listed_and_kept_in_order() {
    let Some(server) = server() else { return };
    let location = |thread: &str| server.location_of("listed", thread);
    let whole = location("a").replace("#a", "");
    let machine = Machine::new(&location("a"));
    for thread in ["b", "in%20box", "a"] {
        machine.ok(&["init", &location(thread)]);
    }
    machine.ok(&["subscribe", "bot", "cat", "--deliver", "stdin"]);
    machine.ok(&["pause", "bot"]);
    machine.ok(&["push", "x"]);
    let names = |json: &str| -> Vec<String> {
        let threads = json.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        threads.map(|one| one["thread"].as_str().unwrap().to_owned()).collect()
    };
    let expected = ["a", "b", "in%20box"].map(location);
    let table = machine.ok(&["ls", &whole]);
    assert!(table.lines().nth(1).unwrap().ends_with(" 1          1  bot: paused"), "{table}");
    assert_eq!(table.lines().count(), 4, "{table}");
    // Whoever names it in the other spelling names the same threads.
    for other in [whole.clone(), whole.replace("postgres://", "postgresql://")] {
        assert_eq!(names(&machine.ok(&["ls", "--json", &other])), expected);
        assert_eq!(names(&machine.ok(&["info", "--json", "--root", &other])), expected);
        assert_eq!(
            names(&machine.ok(&["prune", "--json", "--older-than", "1d", "--root", &other])),
            expected
        );
        assert_eq!(names(&machine.ok(&["doctor", "--json", "--root", &other])), expected);
    }
    let checked = machine.command(&["info", "--check", "--root", &whole]).output().unwrap();
    let printed = String::from_utf8(checked.stdout).unwrap();
    assert_eq!((checked.status.code(), printed), (Some(1), format!("{}: bot: paused\n", expected[0])));
}
