//! The program `thread-agent-postgres`: `thread agent` for threads in places that begin with `postgres://`.
//! `thread-agent` executes it when it is given such a place.

// Links the unwinder statically, as `thread` does.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[link(name = "gcc_eh", kind = "static", modifiers = "-bundle")]
unsafe extern "C" {}

fn main() -> std::process::ExitCode {
    thread::queue::places::add(thread_postgres::SCHEME);
    thread_agent::cli::main(std::env::args_os().collect())
}
