//! A guard on systems without the clock and the descriptors that it needs: there is none, and a handler whose
//! supervisor was killed or is suspended continues.

use std::os::fd::RawFd;
use std::process::Command;
use std::time::Duration;

use rustix::event::PollFd;
use rustix::process::Pid;

use crate::error::{Error, Result};
use crate::model::location::Location;
use crate::model::subscription::ConsumerId;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline;

impl Deadline {
    pub const NEVER: Deadline = Deadline;

    pub fn after(_: impl FnOnce() -> Duration) -> Deadline {
        Deadline
    }
}

#[derive(Debug)]
pub struct Guard;

impl Guard {
    pub fn new(_: &Location, _: &ConsumerId) -> Guard {
        Guard
    }

    pub fn admit(&self, _: &mut Command, _: Option<i64>, _: Deadline) -> Result<()> {
        Ok(())
    }

    pub fn keep(&self, _: Pid, _: Option<i64>, _: Deadline) -> Result<()> {
        Ok(())
    }

    pub fn release(&self) {}

    pub fn watched<T>(&self, wait: impl FnOnce(Option<PollFd<'_>>) -> T) -> T {
        wait(None)
    }
}

/// # Safety
///
/// None is needed.
pub unsafe fn guard(_: &Location, _: &ConsumerId, _: RawFd) -> Result<()> {
    Err(Error::Other("there are no guards on this system".into()))
}
