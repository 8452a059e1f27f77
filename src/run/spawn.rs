//! Starting processes that are independent of the one that started them.
//!
//! A detached process has its own session, default signal handling, `/dev/null` on its standard descriptors,
//! and no other descriptor except the lock it should hold. Otherwise a notifier that waits for its pipe to
//! close would wait for the handler, Ctrl-C in the pusher's terminal would reach the handler, and a handler
//! that pushes would pass its consumer's lock on to the handler of another consumer.

use std::collections::BTreeMap;
use std::ffi::OsString;
#[cfg(target_os = "linux")]
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
#[cfg(target_os = "linux")]
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[cfg(target_os = "linux")]
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::files::lock::Lock;
use crate::model::run::Options;

/// The soft limit on open files of detached processes; 0: the same as this process's.
static OPEN_FILES: AtomicU64 = AtomicU64::new(0);

/// Sets the soft limit on open files of processes started detached from now on, for a server that raises
/// its own limit. Programs that use `select` break with descriptors above 1023.
pub fn limit_open_files(soft: u64) {
    OPEN_FILES.store(soft, Ordering::Relaxed);
}

/// Allows this process so many open files, if it may have them. Processes that it starts have the limit that it had.
pub fn need_open_files(count: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(soft) = current.filter(|soft| *soft < count) else { return };
    let most = maximum.map_or(count, |hard| hard.min(count));
    if setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum }).is_ok()
        && OPEN_FILES.load(Ordering::Relaxed) == 0
    {
        limit_open_files(soft);
    }
}

/// Whether processes are started with another limit on open files than this one has.
pub fn passes_other_limit() -> bool {
    OPEN_FILES.load(Ordering::Relaxed) != 0
}

/// Whether supervisors are started without copying this process.
static WITHOUT_COPY: AtomicBool = AtomicBool::new(false);

/// Starts supervisors without copying this process first. Fork does, and takes longer the more memory a process
/// has, which matters for a server. Until the new process reaches [`settle`], signals to this one's group reach it
/// too.
pub fn without_copy() {
    WITHOUT_COPY.store(true, Ordering::Relaxed);
}

/// What a process that inherits a lock gets from its parent: the lock's descriptor, and its soft limit on open
/// files, if that differs.
#[derive(Debug, Clone, Copy)]
pub struct Inherited {
    pub lock_fd: RawFd,
    pub open_files: Option<u64>,
}

/// Makes a program of ours start detached, with a copy of `lock`. It calls [`settle`] with what this returns.
pub fn detached_with_lock(command: &mut Command, lock: &Lock) -> io::Result<Inherited> {
    if !WITHOUT_COPY.load(Ordering::Relaxed) {
        detached(command, Some(lock));
        return Ok(Inherited { lock_fd: lock.file().as_raw_fd(), open_files: None });
    }
    // The standard library uses posix_spawn if no function has to run in between, so the lock is passed on as
    // stdin.
    command.stdin(lock.file().try_clone()?).stdout(Stdio::null()).stderr(Stdio::null());
    let open_files = Some(OPEN_FILES.load(Ordering::Relaxed)).filter(|soft| *soft != 0);
    Ok(Inherited { lock_fd: 0, open_files })
}

/// Completes the start of this process, and returns the lock's descriptor.
///
/// # Safety
///
/// Nothing else in this process may own a descriptor above 2.
#[expect(
    clippy::disallowed_methods,
    reason = "it was given its lock as stdin, and has /dev/null there from then on"
)]
pub unsafe fn settle(inherited: Inherited) -> io::Result<RawFd> {
    if inherited.lock_fd != 0 {
        return Ok(inherited.lock_fd);
    }
    let lock = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?.into_raw_fd();
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    rustix::process::setsid()?;
    // SAFETY: guaranteed by the caller.
    unsafe { close_fds::close_open_fds(3, &[lock]) };
    inherited.open_files.into_iter().for_each(limit_open_files);
    lower_open_files();
    Ok(lock)
}

/// Sets the soft limit on open files, if this process's is not the one to pass on.
fn lower_open_files() {
    let soft = OPEN_FILES.load(Ordering::Relaxed);
    if soft != 0 {
        let maximum = getrlimit(Resource::Nofile).maximum;
        // If the hard limit is lower now, the inherited limit stays.
        setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum }).ok();
    }
}

/// Makes `command` start detached, with a copy of `lock` as its only inherited descriptor, if one is given.
pub fn detached<'c>(command: &'c mut Command, lock: Option<&Lock>) -> &'c mut Command {
    let lock = lock.map(|lock| lock.file().as_raw_fd());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec, the closure only makes system calls that are safe there
    // (setsid, sigaction, sigprocmask, prlimit, fcntl, close_range) and allocates nothing.
    unsafe { command.pre_exec(move || prepare_child(lock)) }
}

fn prepare_child(lock: Option<RawFd>) -> io::Result<()> {
    rustix::process::setsid()?;
    // SAFETY: these calls take plain values or a set that lives on this stack.
    unsafe {
        for signal in 1..=64 {
            // A signal that is pending, because it was blocked when this process was started, was not meant
            // for this session; SIG_IGN discards it. Fails for KILL, STOP and the C library's own signals,
            // whose handling cannot be changed anyway.
            libc::signal(signal, libc::SIG_IGN);
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
    lower_open_files();
    // Marked close-on-exec rather than closed: one of them is the standard library's own pipe, on which it
    // reports a failed exec.
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

/// What a command started by [`without_fork`] gets in addition to its lock.
#[cfg(target_os = "linux")]
pub struct Given<'g> {
    /// `/dev/null` if there is none.
    pub stdin: Option<&'g File>,
    /// For standard output and error; `/dev/null` if there is none.
    pub output: Option<&'g File>,
    pub errors: Option<&'g File>,
}

/// Starts a command detached, with a copy of `lock`, without copying this process first. Of the command, this takes
/// the program, which must be a path, the arguments, the working directory, and as the whole environment the
/// variables that were set. For a process in its own session, whose limit on open files is passed on. Returns the
/// pid.
#[cfg(target_os = "linux")]
#[expect(clippy::disallowed_methods, reason = "the handler's working directory is no file of the thread")]
pub fn without_fork(command: &Command, lock: &Lock, given: Given<'_>) -> io::Result<rustix::process::Pid> {
    let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(io::Error::from);
    let program = text(command.get_program())?;
    let mut args = vec![program.clone()];
    for arg in command.get_args() {
        args.push(text(arg)?);
    }
    let mut variables = Vec::new();
    for (name, value) in command.get_envs() {
        let variable = [name.as_bytes(), b"=", value.unwrap_or_default().as_bytes()].concat();
        variables.push(CString::new(variable)?);
    }
    // By a descriptor: the standard library refers weakly to the function that takes a path, which is therefore missing in a
    // static program, and calling it is a crash.
    let reach = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = command.get_current_dir();
    let folder = folder.map(|folder| rustix::fs::open(folder, reach, Mode::empty())).transpose()?;
    let pointers = |all: &[CString]| -> Vec<*mut libc::c_char> {
        all.iter().map(|one| one.as_ptr().cast_mut()).chain([std::ptr::null_mut()]).collect()
    };
    let (args, variables) = (pointers(&args), pointers(&variables));
    let lock = lock.file().as_raw_fd();
    // A library may have opened descriptors without close-on-exec.
    close_fds::set_fds_cloexec(3, &[]);
    let done = |code: libc::c_int| if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) };
    // SAFETY: the pointers are to texts that live until the end of this function, in arrays that end with null; what
    // is initialised here is destroyed here.
    unsafe {
        let mut actions: libc::posix_spawn_file_actions_t = std::mem::zeroed();
        done(libc::posix_spawn_file_actions_init(&raw mut actions))?;
        let mut attributes: libc::posix_spawnattr_t = std::mem::zeroed();
        let made = done(libc::posix_spawnattr_init(&raw mut attributes));
        let mut pid = 0;
        let spawned = made.and_then(|()| {
            // The copy has another number, since the C library need not clear close-on-exec for the same one. All
            // other descriptors are closed by the exec.
            let copy = if lock == 3 { 4 } else { 3 };
            // First, before the copy might take its number.
            if let Some(folder) = &folder {
                done(libc::posix_spawn_file_actions_addfchdir_np(&raw mut actions, folder.as_raw_fd()))?;
            }
            let (input, outputs) = (libc::O_RDONLY, libc::O_WRONLY);
            let all = [(given.stdin, input, 0), (given.output, outputs, 1), (given.errors, outputs, 2)];
            for (file, access, to) in all {
                let (actions, null) = (&raw mut actions, c"/dev/null".as_ptr());
                done(match file {
                    Some(file) => libc::posix_spawn_file_actions_adddup2(actions, file.as_raw_fd(), to),
                    None => libc::posix_spawn_file_actions_addopen(actions, to, null, access, 0),
                })?;
            }
            done(libc::posix_spawn_file_actions_adddup2(&raw mut actions, lock, copy))?;
            let mut signals: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut signals);
            done(libc::posix_spawnattr_setsigmask(&raw mut attributes, &raw const signals))?;
            libc::sigfillset(&raw mut signals);
            done(libc::posix_spawnattr_setsigdefault(&raw mut attributes, &raw const signals))?;
            let flags = libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
            let flags = libc::POSIX_SPAWN_SETSID | flags as libc::c_short;
            done(libc::posix_spawnattr_setflags(&raw mut attributes, flags))?;
            let (args, variables) = (args.as_ptr(), variables.as_ptr());
            let (actions, attributes) = (&raw const actions, &raw const attributes);
            done(libc::posix_spawn(&raw mut pid, program.as_ptr(), actions, attributes, args, variables))
        });
        libc::posix_spawnattr_destroy(&raw mut attributes);
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
        spawned?;
        rustix::process::Pid::from_raw(pid).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// The variables of this process that a handler inherits with [`Options::clear_env`], in addition to `LC_*`.
const KEPT_VARIABLES: [&str; 9] =
    ["HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "THREAD_NOTIFIER", "TMPDIR", "TZ", "USER"];

/// A handler's `PATH` if no other is set.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The environment of a handler, without the variables that describe its thread. The directory of this
/// program is appended to `PATH` if it is missing, so that a handler can call it, whichever process
/// dispatched.
#[expect(clippy::disallowed_methods, reason = "handlers inherit the environment")]
pub fn handler_environment(options: &Options) -> BTreeMap<OsString, OsString> {
    let is_kept = |name: &OsString| {
        KEPT_VARIABLES.iter().any(|kept| name == kept) || name.as_encoded_bytes().starts_with(b"LC_")
    };
    let mut environment: BTreeMap<OsString, OsString> = std::env::vars_os()
        .filter(|(name, _)| !is_ours(name) && (!options.clear_env || is_kept(name)))
        .chain(options.env.iter().map(|(name, value)| (name.into(), value.into())))
        .collect();
    let path = environment.entry("PATH".into()).or_insert_with(|| DEFAULT_PATH.into());
    if let Some(folder) = std::env::current_exe().ok().as_deref().and_then(Path::parent)
        && !std::env::split_paths(path).any(|dir| dir == folder)
    {
        path.push(":");
        path.push(folder);
    }
    environment
}

/// Whether this is a `THREAD_*` variable that a handler must not inherit: all but `THREAD_NOTIFIER`.
pub fn is_ours(name: &OsString) -> bool {
    name.as_encoded_bytes().starts_with(b"THREAD_") && name != "THREAD_NOTIFIER"
}
