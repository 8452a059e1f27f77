//! Prints, as the last of all tests, how many tests were skipped in this run of cargo, and what they need.

fn main() {
    // A list of the tests is no run.
    if !std::env::args().any(|arg| arg == "--list") {
        println!("\n{}", thread_testkit::summary());
    }
}
