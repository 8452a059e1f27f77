//! What is left of a run whose `sh` or supervisor is gone: the processes that certainly belong to it.

use std::os::unix::ffi::OsStrExt;

use super::process::{self, handler_here};
use crate::files::Files;
use crate::model::location::Location;
use crate::model::run::ProcessId;
use crate::model::subscription::{ConsumerId, Subscription};

/// The variables in the environment of each handler of a consumer, `NAME=value`. A push from a handler does not pass
/// them on to the supervisors that it starts.
pub fn variables(location: &Location, consumer: &ConsumerId) -> Vec<Vec<u8>> {
    let variable = |name: &str, value: &[u8]| [name.as_bytes(), b"=", value].concat();
    vec![
        variable("THREAD_DIR", location.as_os_str().as_bytes()),
        variable("THREAD_CONSUMER", consumer.as_str().as_bytes()),
    ]
}

/// The running members of the recorded handler's process group. If its first process is gone, the group is certainly
/// the handler's as long as a member was given the variables of its consumer's handlers, or `holds` its lock.
pub fn of_handler(files: &Files, subscription: &Subscription, holds: impl Fn(u32) -> bool) -> Vec<ProcessId> {
    let Some(handler) = handler_here(files, subscription) else { return Vec::new() };
    let given = variables(files.location(), &subscription.consumer);
    let is_certain = |pid| holds(pid) || process::was_given(pid, &given);
    process::members_of_leader(handler.pid, handler.start..=handler.start, is_certain)
}
