//! A real kernel loses power: `rig.py` runs a guest whose disk logs what is written and flushed, and looks at the disks
//! that a power cut may leave; see tests/FAULTS.md.

use std::fs;
use std::path::Path;
use std::process::Command;

use thread_testkit::{long, missing, program, skipped};

#[test]
fn what_was_promised_survives_a_power_cut_of_a_guest_and_every_planted_fault_is_found() {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return skipped("Linux on x86-64");
    }
    if Command::new("python3").arg("--version").output().is_err() {
        return missing("python3");
    }
    if long() {
        // So that all programs are built.
        program("thread-serve");
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("power-{}", std::process::id()));
    let rig = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/power/rig.py");
    let mut command = Command::new("python3");
    command.arg("-B").arg(rig).arg(env!("CARGO_BIN_EXE_thread")).arg(&folder);
    let output = command.arg(if long() { "long" } else { "short" }).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    // It says what it lacks.
    match output.status.code() {
        Some(77) => return skipped(text.trim()),
        Some(78) => return missing(text.trim()),
        _ => {}
    }
    print!("{text}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    fs::remove_dir_all(folder).unwrap();
}
