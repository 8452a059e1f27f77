//! Runs the tests of the clients in `clients/`, each by the test runner of its language, with the programs of this
//! workspace; on a thread in PostgreSQL, too.

use std::path::Path;

use thread_testkit::postgres::server;
use thread_testkit::{World, missing, program};

/// Runs the tests of a client, with its threads in `location`, if that is given.
fn run(language: &str, command: &[&str], location: Option<&str>) {
    let world = World::new().with_system_path();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(language);
    let run = world.run(command[0]).args(&command[1..]).dir(folder);
    let run = run.env("THREAD_PROGRAM", program("thread")).env("PYTHONDONTWRITEBYTECODE", "1");
    let run = location.into_iter().fold(run, |run, location| run.env("THREAD_TEST_LOCATION", location));
    let done = run.output();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&done.stdout), text(&done.stderr));
    assert!(done.status.success(), "{command:?} {}\n{stdout}\n{stderr}", done.status);
    // Its runner has found them.
    let ran = stderr.lines().any(|line| line.starts_with("Ran ") && !line.starts_with("Ran 0 "))
        || stdout.contains("\n# pass ");
    assert!(ran && !stdout.contains("\n# pass 0"), "{command:?}\n{stdout}\n{stderr}");
}

/// Whether the interpreter is there, in a version that the client supports.
fn has(interpreter: &str, check: &[&str], needs: &str) -> bool {
    let found = World::new().with_system_path().run("env").arg(interpreter).args(check).succeeds();
    if !found {
        missing(needs);
    }
    found
}

fn python(location: Option<&str>) {
    let version = "import sys; sys.exit(sys.version_info < (3, 11))";
    if has("python3", &["-c", version], "python 3.11 or newer") {
        run("python", &["python3", "-m", "unittest", "discover", "-s", "tests"], location);
    }
}

fn javascript(location: Option<&str>) {
    let version = "process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)";
    if has("node", &["-e", version], "node 18 or newer") {
        run("javascript", &["node", "--test", "--test-reporter=tap"], location);
    }
}

/// A schema in which threads can be made.
fn schema() -> Option<String> {
    program("thread-postgres");
    let location = server()?.location();
    location.split_once('#').map(|(schema, _)| schema.to_owned())
}

#[test]
fn of_python() {
    python(None);
}

#[test]
fn of_javascript() {
    javascript(None);
}

#[test]
fn of_python_on_postgres() {
    if let Some(schema) = schema() {
        python(Some(&schema));
    }
}

#[test]
fn of_javascript_on_postgres() {
    if let Some(schema) = schema() {
        javascript(Some(&schema));
    }
}
