//! Runs `.ci/test` on a small package: how it reports tests that always fail, sometimes fail, crash their program, or
//! hang.

use std::fs;
use std::path::Path;
use std::process::Command;

const TESTS: &str = r#"
#[test]
fn passes() {}
#[test]
fn always_fails() {
    panic!("as ever");
}
#[test]
fn fails_once() {
    assert!(std::fs::File::create_new("was_here").is_err(), "the first time");
}
"#;

const CRASHES: &str = r#"
#[test]
fn takes_the_program_along_once() {
    if std::fs::File::create_new("crashed").is_ok() {
        std::process::abort();
    }
}
"#;

const HANGS: &str = r#"
#[test]
fn hangs_once() {
    while std::fs::File::create_new("hung").is_ok() {
        std::thread::sleep(std::time::Duration::MAX);
    }
}
"#;

/// Runs `.ci/test`, and returns its exit code, its last lines, and the list of flaky tests.
fn again(package: &Path, only: &[&str]) -> (Option<i32>, Vec<String>, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/test").canonicalize().unwrap();
    let flaky = package.join("flaky.txt");
    let mut test = Command::new(script);
    test.args([env!("CARGO"), "test", "--offline", "--no-fail-fast"]).args(only);
    // Longer than it takes to compile the package.
    test.current_dir(package).env("FLAKY", &flaky).env("CARGO_TARGET_DIR", "target").env("SILENCE", "30");
    let output = test.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let verdict = |line: &&str| line.starts_with("FLAKY: ") || line.starts_with("FAILED: ");
    let lines = text.lines().filter(verdict).map(str::to_owned).collect();
    (output.status.code(), lines, fs::read_to_string(flaky).unwrap_or_default())
}

#[test]
fn a_test_that_fails_is_repeated_and_is_flaky_if_it_then_passes() {
    if Command::new("python3").arg("--version").output().is_err() {
        return thread_testkit::missing("python3");
    }
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("again-{}", std::process::id()));
    fs::create_dir_all(package.join("tests")).unwrap();
    // Without this, cargo would look for it in the workspace around it.
    let manifest = "[workspace]\n[package]\nname = \"sometimes\"\nversion = \"1.0.0\"\nedition = \"2024\"\n";
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    fs::write(package.join("tests/crashes.rs"), CRASHES).unwrap();
    fs::write(package.join("tests/fails.rs"), TESTS).unwrap();
    fs::write(package.join("tests/hangs.rs"), HANGS).unwrap();

    let (code, lines, flaky) = again(&package, &[]);
    let about =
        |line: &str| line.split_once(", ").map(|(about, log)| (about.to_owned(), log.to_owned())).unwrap();
    let (said, logs): (Vec<_>, Vec<_>) = lines.iter().map(|line| about(line)).unzip();
    assert_eq!(
        said,
        [
            "FLAKY: --test crashes takes_the_program_along_once",
            "FLAKY: --test fails fails_once",
            "FLAKY: --test hangs hangs_once",
            "FAILED: --test fails always_fails",
        ]
    );
    assert_eq!(code, Some(101));
    assert_eq!(flaky.lines().collect::<Vec<_>>(), lines[..3]);
    let log = |n: usize| fs::read_to_string(package.join(&logs[n])).unwrap();
    assert!(log(1).contains("the first time") && log(1).contains("1 passed"), "{}", log(1));
    assert_eq!(log(3).matches("as ever").count(), 3, "{}", log(3));

    // Exit 0, because no test failed three times.
    fs::remove_file(package.join("was_here")).unwrap();
    let (code, lines, _) = again(&package, &["--test", "fails", "--", "--skip", "always"]);
    assert_eq!((code, lines.len()), (Some(0), 1), "{lines:?}");
    assert!(lines[0].starts_with("FLAKY: --test fails fails_once, "), "{lines:?}");
    fs::remove_dir_all(package).unwrap();
}
