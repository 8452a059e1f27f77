//! Errors about a thread that cannot be used: the reason, the fix, exit 1, and nothing lost.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};

use thread_testkit::postgres::{Server, server};
use thread_testkit::wait_until;

use crate::machine::Machine;

/// A machine, and a thread with one event in a schema of this name.
fn with_an_event(server: &Server, schema: &str) -> Machine {
    let machine = Machine::new(&server.location_of(schema, "inbox"));
    machine.ok(&["init", &machine.location]);
    assert_eq!(machine.ok(&["push", "first"]), "1\n");
    machine
}

/// Every command on the thread is refused with these words, and after `repair` no event is missing.
#[track_caller]
fn refused_until_repaired(machine: &Machine, location: &str, [what, how]: [&str; 2], repair: impl FnOnce()) {
    let refused = |args: &[&str]| {
        let said = machine.fails(1, args);
        assert!(said.contains(what) && said.contains(how) && !said.contains("hunter2"), "{args:?}: {said}");
    };
    refused(&["push", "-t", location, "lost"]);
    refused(&["peek", "-t", location, "--last-event-id", "0"]);
    refused(&["info", "-t", location]);
    refused(&["subscribe", "-t", location, "bot", "true"]);
    repair();
    assert_eq!(machine.ok(&["push", "second"]), "2\n");
    assert_eq!(machine.ok(&["peek", "--last-event-id", "0"]).lines().count(), 2);
}

#[test]
fn an_unreachable_server() {
    let Some(server) = Server::start() else { return };
    let machine = with_an_event(&server, "away");
    server.order("kill");
    let how = ["cannot be reached", "check that the server runs"];
    refused_until_repaired(&machine, &machine.location, how, || server.order("start"));
}

#[test]
fn a_wrong_password() {
    let Some(server) = server() else { return };
    let machine = with_an_event(server, "secret");
    // The server requires a password for this user.
    server.psql("CREATE ROLE keeper SUPERUSER LOGIN PASSWORD 'hunter2'");
    let own =
        format!("postgres://keeper@127.0.0.1:{}/postgres?schema=secret&sslmode=disable#inbox", server.port);
    for (password, what) in
        [(None, "asks for a password"), (Some("hunter2no"), "password authentication failed")]
    {
        let mut push = machine.command(&["push", "-t", &own, "lost"]);
        push.envs(password.map(|password| ("PGPASSWORD", password)));
        let output = push.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.contains(what)), (Some(1), true), "{said}");
        assert!(said.contains(" - ") && said.contains(".pgpass") && !said.contains("hunter2"), "{said}");
    }
    let mut push = machine.command(&["push", "-t", &own, "second"]);
    assert_eq!(push.env("PGPASSWORD", "hunter2").output().unwrap().stdout, b"2\n");
}

/// The server is a current one that only claims to be old: a function hides that of the system.
#[test]
fn a_server_that_is_too_old() {
    let Some(server) = server() else { return };
    let machine = with_an_event(server, "old");
    server.psql(
        "CREATE ROLE elder SUPERUSER LOGIN; CREATE SCHEMA elder; \
         CREATE FUNCTION elder.current_setting(text) RETURNS text LANGUAGE sql AS $$SELECT '140011'$$; \
         ALTER ROLE elder SET search_path = elder, pg_catalog",
    );
    let elder = machine.location.replace("user=postgres", "user=elder");
    refused_until_repaired(
        &machine,
        &elder,
        ["PostgreSQL 14.11, which is too old", "PostgreSQL 15 or later"],
        || (),
    );
    let said = machine.fails(1, &["init", &elder.replace("schema=old", "schema=none")]);
    assert!(said.contains("PostgreSQL 14.11"), "{said}");
}

#[test]
fn a_schema_that_is_newer() {
    let Some(server) = server() else { return };
    let machine = with_an_event(server, "future");
    server.psql("INSERT INTO future.versions VALUES (99)");
    refused_until_repaired(&machine, &machine.location, ["version 99", "use a newer version"], || {
        server.psql("DELETE FROM future.versions WHERE version = 99");
    });
}

/// Commands that only read work there, and all others work after a promotion.
#[test]
fn a_standby_that_is_read_only() {
    let Some(server) = Server::start() else { return };
    let machine = with_an_event(&server, "standby");
    machine.ok(&["subscribe", "bot", "cat >/dev/null", "--deliver", "stdin"]);
    server.order("kill");
    let data = server.dir.join("data");
    let signal = data.join("standby.signal");
    fs::write(&signal, "").unwrap();
    let owner = data.metadata().unwrap();
    chown(&signal, Some(owner.uid()), Some(owner.gid())).unwrap();
    server.order("start");
    assert_eq!(server.psql("SELECT pg_is_in_recovery()"), "t");
    for args in [
        &["push", "lost"][..],
        &["push", "lost", "--idempotency-key", "k"],
        &["ack", "bot", "1"],
        &["subscribe", "other", "true"],
        &["unsubscribe", "bot"],
        &["pause", "bot"],
        &["seek", "bot", "1"],
        &["dispatch"],
        &["init", &server.location_of("standby", "another")],
        &["init", &server.location_of("elsewhere", "another")],
    ] {
        let said = machine.fails(1, args);
        let is_right = said.contains("nothing was changed") && said.contains("name the primary");
        assert!(is_right, "{args:?}: {said}");
    }
    // A worker says so once, and waits for the promotion.
    let warned = machine.path("warned");
    let mut worker = machine.command(&["dispatch", "--follow"]);
    let mut worker = worker.stderr(fs::File::create(&warned).unwrap()).spawn().unwrap();
    let warnings = || fs::read_to_string(&warned).unwrap();
    wait_until("the worker's warning", || warnings().contains("this server is a standby"));
    assert_eq!(machine.ok(&["peek", "--last-event-id", "0"]).lines().count(), 1);
    assert_eq!(machine.ok(&["pop", "bot", "--resume"]).lines().count(), 1);
    assert!(machine.ok(&["info"]).contains("pending: 1"));
    assert!(machine.ok(&["peek", "--last-event-id", "1", "--wait", "300ms"]).is_empty());
    // Asked for a server that takes writes, it says that there is none.
    let writable = machine.location.replace('#', "&target_session_attrs=read-write#");
    machine.fails(1, &["push", "-t", &writable, "lost"]);
    server.psql("SELECT pg_promote()");
    wait_until("the promotion", || server.psql("SELECT pg_is_in_recovery()") == "f");
    assert_eq!(machine.ok(&["push", "-t", &writable, "second"]), "2\n");
    wait_until("the worker to go on", || machine.bot("pending") == 0);
    assert_eq!(warnings().lines().count(), 1, "{}", warnings());
    worker.kill().unwrap();
    worker.wait().unwrap();
}

#[test]
fn a_database_whose_encoding_is_another() {
    let Some(server) = server() else { return };
    server.psql("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
    let location = server.location_of("thread", "inbox").replace("///postgres?", "///latin?");
    let machine = Machine::new(&location);
    let said = machine.fails(1, &["init", &location]);
    assert!(said.contains("LATIN1") && said.contains("createdb --encoding UTF8"), "{said}");
    let said = machine.fails(1, &["push", "x"]);
    assert!(said.contains("is not a thread"), "{said}");
}
