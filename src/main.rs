//! The program `thread`; all of it is in the library.

// Unwinds a panic without `libgcc_s`: to load one more library takes a tenth of the time that a short
// command takes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[link(name = "gcc_eh", kind = "static", modifiers = "-bundle")]
unsafe extern "C" {}

fn main() -> std::process::ExitCode {
    thread::cli::main(std::env::args_os().collect())
}
