//! The program `thread`; all of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    thread::run(std::env::args_os())
}

/// A panic is unwound by what is linked in, and nothing but `pow` comes from the mathematical
/// library: to load and bind two more libraries takes a fifth of the time that a short command takes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod without_libraries {
    #[link(name = "gcc_eh", kind = "static", modifiers = "-bundle")]
    unsafe extern "C" {}

    /// Asked for by the estimate of the time left.
    #[unsafe(no_mangle)]
    extern "C" fn pow(base: f64, exponent: f64) -> f64 {
        libm::pow(base, exponent)
    }
}
