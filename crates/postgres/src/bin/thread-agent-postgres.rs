//! The program `thread-agent-postgres`: `thread agent` for threads in locations that begin with `postgres://`.
//! `thread-agent` executes it when it is given such a location.

// Links the unwinder statically, as `thread` does.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[link(name = "gcc_eh", kind = "static", modifiers = "-bundle")]
unsafe extern "C" {}

fn main() -> std::process::ExitCode {
    thread::queue::locations::add(thread_postgres::SCHEME);
    thread_agent::cli::main(std::env::args_os().collect())
}
