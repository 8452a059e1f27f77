//! Runs as the last of all tests: prints how many tests were skipped in this run of cargo, and what they need.

fn main() {
    // `--list` runs no tests.
    if !std::env::args().any(|arg| arg == "--list") {
        println!("\n{}", thread_testkit::summary());
    }
}
