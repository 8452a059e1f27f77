//! What the tests of all packages share.
//!
//! It depends on nothing, so that every package can have it as a dev-dependency. Its test target `summary` runs after
//! all others and counts what they skipped.

pub mod clients;
mod skips;

pub use skips::{missing, skipped, summary};

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

/// The target directory that this test was built into.
pub fn target() -> PathBuf {
    // target/debug/deps/name-hash
    let test = std::env::current_exe().expect("this program has a path");
    test.ancestors().nth(3).map(Path::to_owned).expect("cargo built this into a target directory")
}

/// A program of the workspace. Cargo builds them all when it tests all packages; otherwise those that are missing are
/// built now.
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
