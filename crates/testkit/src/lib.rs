//! What the tests of all packages share.
//!
//! A test makes a [`World`], a folder with programs and perhaps a thread in it, and runs commands there:
//! `world.thread(["push", "--content", "x"]).ok()`. The methods of [`Run`] state the expected result: success, a
//! warning, or an exit code with an error. Packages extend this for their own programs.
//!
//! Its test target `summary` runs after all others and counts what they skipped.

#![allow(clippy::new_without_default, reason = "making a world or rolling dice has effects")]

pub mod bench;
pub mod clients;
mod dice;
pub mod everything;
mod files;
mod inbox;
mod models;
pub mod postgres;
pub mod preload;
mod processes;
mod run;
pub mod simulation;
mod skips;
pub mod store;
pub mod users;
mod world;

pub use dice::Dice;
pub use files::{names, snapshot};
pub use inbox::{ids, take_all, take_all_script};
pub use models::Models;
pub use processes::{is_running, kill, kill_and_wait, processes_in, reset_signals, send};
pub use run::{POPS, Run};
pub use rustix::process::Signal;
pub use skips::{missing, skipped, summary};
pub use world::{World, copy_program, quoted};

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::{Duration, Instant};

/// How long a test waits for anything before it fails. Generous, because machines may be busy.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits for a condition; panics with its description after [`PATIENCE`].
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// Waits until there is something, and returns it; panics with its description after [`PATIENCE`].
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the long form of the tests is selected, with `THREAD_FAULTS=long`.
pub fn long() -> bool {
    std::env::var_os("THREAD_FAULTS").is_some_and(|form| form == "long")
}

/// The target directory that this test was built into.
pub fn target() -> PathBuf {
    // target/debug/deps/name-hash
    let test = std::env::current_exe().expect("this program has a path");
    test.ancestors().nth(3).map(Path::to_owned).expect("cargo built this into a target directory")
}

/// The path of a program of the workspace. Cargo builds them all when it tests all packages; otherwise all are built
/// now if this one is missing.
///
/// # Panics
///
/// If they cannot be built.
pub fn program(name: &str) -> PathBuf {
    static BUILT: Once = Once::new();
    let test = std::env::current_exe().expect("this program has a path");
    // target/debug/deps/name-hash
    let dir = test.ancestors().nth(2).expect("cargo built this into a folder of its profile");
    if !dir.join(name).is_file() {
        BUILT.call_once(|| {
            let mut cargo = Command::new(env!("CARGO"));
            cargo
                .args(["build", "--workspace", "--bins", "--locked", "--quiet", "--target-dir"])
                .arg(target());
            cargo.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml")]);
            if !dir.ends_with("debug") {
                cargo.arg("--profile").arg(dir.file_name().unwrap_or_default());
            }
            assert!(
                cargo.status().is_ok_and(|status| status.success()),
                "the other programs cannot be built"
            );
        });
    }
    dir.join(name)
}
