//! Real processes use a thread while some are killed, and a checker that shares no code with `thread` judges what they
//! did and saw; see tests/FAULTS.md.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// Runs a script of this folder, which prints what is wrong.
fn python(script: &str, arguments: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/history").join(script);
    let output = Command::new("python3").arg("-B").arg(&script).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {}\n{text}\n{errors}", script.display(), output.status);
}

#[test]
fn a_history_with_kills_is_legal_and_every_planted_violation_is_found() {
    if Command::new("python3").arg("--version").output().is_err() {
        return thread_testkit::missing("python3");
    }
    // It finds its processes in /proc.
    if !cfg!(target_os = "linux") {
        return thread_testkit::skipped("Linux");
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("history-{}", std::process::id()));
    let log = folder.join("log.ndjson");
    let seconds = if env::var_os("THREAD_FAULTS").is_some_and(|form| form == "long") { "300" } else { "4" };
    python("chaos.py", &[env!("CARGO_BIN_EXE_thread"), folder.to_str().unwrap(), seconds]);
    python("planted.py", &[log.to_str().unwrap()]);
    fs::remove_dir_all(folder).unwrap();
}
