//! Whether a thread is whole, and repairing what is not.
//!
//! A repair loses nothing that was stored. Others may push, read and dispatch meanwhile: what looks wrong only
//! because somebody is at work is looked at again before it counts. The checks go from the ground up, and end
//! where the next would stand on something broken: files, database, JSONL log, consumers.

mod consumers;
mod database;
mod jsonl;
mod layout;
mod programs;

use std::path::Path;

use crate::error::{Error, Result};
use crate::files::Files;
use crate::files::log::log;
use crate::queue::Queue;
use crate::run::Launcher;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Something does not work, or may go wrong.
    Error,
    /// It does no harm, or heals by itself.
    Warning,
}

/// Something that is not as it should be.
#[derive(Debug)]
pub struct Finding {
    /// Which check found it, in one word.
    pub check: &'static str,
    pub level: Level,
    pub problem: String,
    pub remedy: Remedy,
}

/// What to do about a finding.
#[derive(Debug)]
pub enum Remedy {
    /// Examine the thread with `fix`, which repairs it.
    Fix,
    /// This, by hand.
    Advice(String),
    /// Whatever helps against this error, which kept the check or the repair from being done.
    Against(Error),
    /// Nothing more: it was repaired, in this way.
    Repaired(&'static str),
}

impl Finding {
    fn error(check: &'static str, problem: impl Into<String>) -> Finding {
        Finding { check, level: Level::Error, problem: problem.into(), remedy: Remedy::Fix }
    }

    fn warning(check: &'static str, problem: impl Into<String>) -> Finding {
        Finding { level: Level::Warning, ..Finding::error(check, problem) }
    }

    fn advise(self, advice: impl Into<String>) -> Finding {
        Finding { remedy: Remedy::Advice(advice.into()), ..self }
    }

    /// What a check found as an error, or why it failed.
    fn failed(check: &'static str, error: Error) -> Finding {
        let problem = error.to_string();
        Finding { remedy: Remedy::Against(error), ..Finding::error(check, problem) }
    }

    pub fn is_repaired(&self) -> bool {
        matches!(self.remedy, Remedy::Repaired(_))
    }

    /// Whether it is an error, and still there.
    pub fn is_wrong(&self) -> bool {
        self.level == Level::Error && !self.is_repaired()
    }
}

/// Examines the thread in `dir`, and repairs what can be repaired if `fix`. `launcher` is how handlers
/// would be started.
///
/// # Errors
///
/// Only when `dir` is not a thread. All other trouble is a finding.
pub fn examine(dir: &Path, launcher: &Launcher, fix: bool) -> Result<Vec<Finding>> {
    let mut doctor = Doctor { fix, launcher, files: Files::open(dir)?, findings: Vec::new() };
    let sound = layout::check(&mut doctor);
    if let Some(store) = database::check(&mut doctor, sound) {
        let mut queue = Queue { files: doctor.files.clone(), store };
        jsonl::check(&mut doctor, &mut queue, sound);
        programs::check(&mut doctor, &mut queue);
        consumers::check(&mut doctor, &mut queue);
    }
    Ok(doctor.findings)
}

/// One examination.
struct Doctor<'a> {
    fix: bool,
    launcher: &'a Launcher,
    files: Files,
    findings: Vec<Finding>,
}

impl Doctor<'_> {
    /// Records something that `repair` can repair, and has it repaired if that was requested. `repair`
    /// returns what was done.
    fn found(&mut self, finding: Finding, repair: impl FnOnce() -> Result<&'static str>) {
        if !self.fix {
            self.findings.push(finding);
            return;
        }
        self.findings.push(match repair() {
            Ok(done) => {
                log!(self.files, Info, "doctor: repaired: {}", finding.problem);
                Finding { remedy: Remedy::Repaired(done), ..finding }
            }
            Err(error) => {
                let problem = format!("{}; it could not be repaired: {error}", finding.problem);
                Finding { problem, remedy: Remedy::Against(error), ..finding }
            }
        });
    }

    /// Records something that only a person can repair.
    fn tell(&mut self, finding: Finding) {
        self.findings.push(finding);
    }
}
