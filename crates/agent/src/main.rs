//! The program `thread-agent`.

fn main() -> std::process::ExitCode {
    thread_agent::cli::main(std::env::args_os().collect())
}
