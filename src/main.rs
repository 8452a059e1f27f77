use std::process::ExitCode;

fn main() -> ExitCode {
    thread::run(std::env::args_os())
}
