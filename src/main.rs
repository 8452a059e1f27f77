//! The program `thread`; all of it is in the library.

// Links the unwinder statically instead of loading `libgcc_s`: loading one more library takes a tenth of
// the run time of a short command.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[link(name = "gcc_eh", kind = "static", modifiers = "-bundle")]
unsafe extern "C" {}

fn main() -> std::process::ExitCode {
    thread::cli::main(std::env::args_os().collect())
}
