//! Starting processes that owe nothing to whoever started them.
//!
//! A detached process has a session of its own, the default signal handling, `/dev/null` for its
//! three standard descriptors, and no other descriptor but one lock, if it is to hold one. Without
//! that a notifier that waits for its pipe to close would wait for the handler, Ctrl-C in the
//! pusher's terminal would reach it, and handler B would inherit the lock of consumer A whenever
//! A's handler pushes.

use std::ffi::OsString;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::lock::Lock;

/// Makes `command` start detached, holding on to `lock` (and nothing else) if there is one.
pub fn detached(command: &mut Command, lock: Option<RawFd>) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec the closure makes only system calls that are safe there
    // (setsid, sigaction, sigprocmask, fcntl, close_range) and allocates nothing.
    unsafe { command.pre_exec(move || prepare_child(lock)) }
}

/// Begins a session with the default signal handling.
fn begin_session() -> io::Result<()> {
    rustix::process::setsid()?;
    // SAFETY: these calls take plain values or a set that lives on this stack.
    unsafe {
        for signal in 1..=64 {
            // One that waits, because whoever started this one had it blocked, was not meant for this
            // session; to ignore it forgets it. Fails for KILL, STOP and the C library's own, which
            // have no other handling anyway.
            libc::signal(signal, libc::SIG_IGN);
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
    Ok(())
}

fn prepare_child(lock: Option<RawFd>) -> io::Result<()> {
    begin_session()?;
    // Marked rather than closed: the standard library's own pipe, on which it reports a failed
    // exec, is among them and is marked already.
    match lock {
        Some(fd) => {
            close_fds::set_fds_cloexec(3, &[fd]);
            // SAFETY: plain system call on a descriptor the parent holds open.
            if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } == -1 {
                return Err(io::Error::last_os_error());
            }
        }
        None => close_fds::set_fds_cloexec(3, &[]),
    }
    Ok(())
}

/// Lets this process hear that its children have ended, even when whoever started it ignored or
/// blocked the signal that says so. Only the first call does anything.
pub fn hear_of_children() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: these calls take plain values or a set that lives on this stack.
    ONCE.call_once(|| unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    });
}

/// This very program, even when its file has been replaced meanwhile, as one of its hidden
/// subcommands for the thread in `dir`. Nobody waits for it: it is to outlive this process, and init
/// reaps it.
pub fn hidden(word: &str, dir: &Path) -> io::Result<Command> {
    let program =
        if cfg!(target_os = "linux") { PathBuf::from("/proc/self/exe") } else { std::env::current_exe()? };
    let mut command = Command::new(program);
    command.arg0("thread").arg(word).arg("--thread").arg(dir);
    Ok(command)
}

/// Makes a hidden subcommand start detached, as the new holder of `lock`.
pub fn holding<'c>(command: &'c mut Command, lock: &Lock) -> &'c mut Command {
    command.arg("--lock-fd").arg(lock.as_raw_fd().to_string());
    detached(command, Some(lock.as_raw_fd()))
}

/// Detaches this process, but for its standard descriptors, before it opens anything. A process that
/// detaches itself is started more quickly, because nothing is copied for it; until it has, it is no
/// more than a child.
pub fn detach() -> io::Result<()> {
    // SAFETY: nothing in this process owns a descriptor yet, and no other thread runs.
    unsafe { close_fds::close_open_fds(3, &[]) };
    begin_session()?;
    // As Rust programs have it: a pipe that nobody reads is an error, not the end.
    // SAFETY: plain system call.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    Ok(())
}

/// The variables of this environment that a handler must not see: whatever is ours, but for the
/// choice of the notifier.
pub fn own_variables() -> impl Iterator<Item = OsString> {
    std::env::vars_os()
        .map(|(name, _)| name)
        .filter(|name| name.as_encoded_bytes().starts_with(b"THREAD_") && name != "THREAD_NOTIFIER")
}

/// The first executable file of that name on `PATH`.
pub fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .filter(|dir| !dir.as_os_str().is_empty())
        .map(|dir| dir.join(name))
        .find(|path| is_executable(path))
}

/// Whether this user may run the file.
pub fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// A path as a shell would take it.
pub fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    shlex::try_quote(&text).map_or_else(|_| text.clone().into_owned(), |quoted| quoted.into_owned())
}
