//! The rights that SPEC.md lists for roles: each role can do its own job, and no other.

use std::collections::BTreeMap;
use std::fs;

use thread_testkit::postgres::{Server, server};
use thread_testkit::wait_until;

use crate::machine::Machine;

/// The statements that grant the rights in SPEC.md's table, by what they allow.
fn grants(schema: &str, role: &str) -> BTreeMap<&'static str, String> {
    let table = |name: &str| format!("{schema}.{name}");
    let usage = format!("GRANT USAGE ON SCHEMA {schema} TO {role};");
    let push = format!(
        "{usage} GRANT SELECT ON {}, {}, {} TO {role}; GRANT UPDATE ON {} TO {role}; GRANT INSERT ON {} TO {role};",
        table("versions"),
        table("threads"),
        table("counters"),
        table("counters"),
        table("events")
    );
    BTreeMap::from([
        ("push with keys", format!("{push} GRANT SELECT ON {} TO {role}", table("events"))),
        ("push", push),
        ("read", format!("{usage} GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")),
        (
            "consume",
            format!(
                "{usage} GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"
            ),
        ),
    ])
}

/// The commands of each job.
const JOBS: [(&str, &[&str]); 5] = [
    ("push", &["push x", "push --batch"]),
    ("push with keys", &["push x --idempotency-key k"]),
    ("peek", &["peek --last-event-id 0"]),
    ("read", &["info", "dead list", "pop bot --resume"]),
    ("consume", &["ack bot 1", "seek bot 2", "pause bot", "resume bot", "unsubscribe bot"]),
];

struct Role<'s> {
    name: &'s str,
    machine: &'s Machine,
    location: String,
}

impl Role<'_> {
    /// Runs a line of [`JOBS`]. A refusal must be for lack of rights, and say where they are listed.
    fn can(&self, line: &str) -> bool {
        let mut command = self.machine.command(&[]);
        let words: Vec<&str> = line.split(' ').collect();
        command.args(words).env("THREAD_DIR", &self.location);
        if line.contains("--batch") {
            command.stdin(fs::File::open(self.machine.path("lines")).unwrap());
        }
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        match output.status.code() {
            Some(0) => true,
            Some(1) => {
                let is_right = said.contains("permission denied") && said.contains("SPEC.md");
                assert!(is_right, "{}: {line}: {said}", self.name);
                false
            }
            code => panic!("{}: {line}: {code:?} {said}", self.name),
        }
    }
}

fn role<'s>(server: &Server, machine: &'s Machine, name: &'s str, rights: &str) -> Role<'s> {
    server.psql(&format!("CREATE ROLE {name} LOGIN; {rights}"));
    let location = machine.location.replace("user=postgres", &format!("user={name}"));
    Role { name, machine, location }
}

#[test]
fn a_role_that_may_consume_runs_handlers() {
    let Some(server) = server() else { return };
    let machine = Machine::new(&server.location_of("handling", "inbox"));
    machine.ok(&["init", &machine.location]);
    machine.ok(&["push", "first"]);
    let role = role(server, &machine, "handler_role", &grants("handling", "handler_role")["consume"]);
    assert!(role.can("subscribe bot true --deliver stdin") && role.can("dispatch"));
    wait_until("the handler", || machine.bot("pending") == 0 && machine.bot("state") == "idle");
}

#[test]
fn each_role_can_do_its_own_job_and_no_other() {
    let Some(server) = server() else { return };
    let machine = Machine::new(&server.location_of("jobs", "inbox"));
    machine.ok(&["init", &machine.location]);
    machine.ok(&["subscribe", "bot", "true", "--filter", "type = 'message'"]);
    machine.ok(&["push", "first"]);
    fs::write(machine.path("lines"), "{\"content\":\"x\"}\n").unwrap();
    for (name, job, others) in [
        ("jobs_push", "push", &[][..]),
        ("jobs_keys", "push with keys", &["push", "peek"][..]),
        ("jobs_read", "read", &["peek"][..]),
        ("jobs_consume", "consume", &["push", "push with keys", "peek", "read"][..]),
    ] {
        let role = role(server, &machine, name, &grants("jobs", name)[job]);
        for (what, lines) in JOBS {
            let may = what == job || others.contains(&what);
            for line in lines {
                assert_eq!(role.can(line), may, "{name}: {line}");
            }
        }
        // Not even a consumer may change the schema, or make threads in others.
        let elsewhere = role.location.replace("schema=jobs", &format!("schema={name}"));
        let said = machine.fails(1, &["init", &elsewhere]);
        assert!(said.contains("permission denied") && said.contains("SPEC.md"), "{said}");
    }
}
