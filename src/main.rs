//! The program `thread`; all of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    thread::run(std::env::args_os())
}
