//! Telling a service manager how a service is doing, as sd_notify(3) does.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use super::environment;

/// The variable that names the service manager's socket.
pub const SOCKET: &str = "NOTIFY_SOCKET";

/// Tells `state`, such as `READY=1`, if a service manager wants to know.
///
/// # Errors
///
/// It wants to, and could not be told.
pub fn notify(state: &str) -> io::Result<()> {
    let Some(name) = environment::variable(SOCKET) else { return Ok(()) };
    let address = match name.as_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', abstract_name @ ..] => {
            use std::os::linux::net::SocketAddrExt;
            SocketAddr::from_abstract_name(abstract_name)?
        }
        _ => SocketAddr::from_pathname(&name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}
