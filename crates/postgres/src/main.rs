//! The program `thread-postgres`: the command line of `thread`, which then also knows locations that begin with
//! `postgres://`. `thread` executes it when it is given such a location.

// Links the unwinder statically, as `thread` does.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[link(name = "gcc_eh", kind = "static", modifiers = "-bundle")]
unsafe extern "C" {}

fn main() -> std::process::ExitCode {
    thread::queue::locations::add(thread_postgres::SCHEME);
    thread::cli::main(std::env::args_os().collect())
}
