//! Checking a thread for damage, and repairing it.
//!
//! A repair never loses stored data. Other processes may push, read and dispatch at the same time: a problem
//! that may only be work in progress is checked again before it is reported. The checks run in the order in
//! which they depend on one another (files, database, JSONL log, programs, consumers), and stop if the
//! database cannot be relied on.

mod consumers;
mod database;
mod jsonl;
mod layout;
mod programs;

use crate::error::{Error, Result};
use crate::files::Files;
use crate::files::log::log;
use crate::model::closed::Closed;
use crate::model::location::Location;
use crate::queue::Queue;
use crate::run::Launcher;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Something does not work, or may go wrong.
    Error,
    /// It does no harm, or is repaired automatically later.
    Warning,
}

/// A problem that a check found.
#[derive(Debug)]
pub struct Finding {
    /// The name of the check that found it, one word.
    pub check: &'static str,
    pub level: Level,
    pub problem: String,
    pub remedy: Remedy,
}

/// How to resolve a finding.
#[derive(Debug)]
pub enum Remedy {
    /// Run the examination with `fix`, which repairs it.
    Fix,
    /// Follow this advice.
    Advice(String),
    /// Resolve this error, which made the check or the repair fail.
    Against(Error),
    /// None needed: it was repaired, in this way.
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

    /// A finding for an error that a check returned.
    fn failed(check: &'static str, error: Error) -> Finding {
        let problem = error.to_string();
        Finding { remedy: Remedy::Against(error), ..Finding::error(check, problem) }
    }

    pub fn is_repaired(&self) -> bool {
        matches!(self.remedy, Remedy::Repaired(_))
    }

    /// Whether it is an error that was not repaired.
    pub fn is_wrong(&self) -> bool {
        self.level == Level::Error && !self.is_repaired()
    }
}

/// Examines a thread and, with `fix`, repairs what can be repaired. `launcher` is used to start handlers, and to
/// check the notifier. For a thread that is not in a directory, only the consumers are examined: a program that
/// this machine lacks may be on another.
///
/// # Errors
///
/// Only if `location` cannot be opened as a thread. All other failures are findings.
#[expect(clippy::disallowed_methods, reason = "what it examines is no thread yet")]
pub fn examine(location: &Location, launcher: &Launcher, fix: bool) -> Result<Vec<Finding>> {
    let Some(dir) = location.dir() else {
        let mut queue = Queue::open(location)?;
        let mut doctor = Doctor { fix, launcher, files: queue.files.clone(), findings: Vec::new() };
        closed(&mut doctor, &mut queue);
        programs::check(&mut doctor, &mut queue);
        consumers::check(&mut doctor, &mut queue);
        return Ok(doctor.findings);
    };
    let mut doctor = Doctor { fix, launcher, files: Files::open(dir)?, findings: Vec::new() };
    let sound = layout::check(&mut doctor);
    if let Some(store) = database::check(&mut doctor, sound) {
        let mut queue = Queue::of(doctor.files.clone(), store);
        closed(&mut doctor, &mut queue);
        jsonl::check(&mut doctor, &mut queue, sound);
        programs::check(&mut doctor, &mut queue);
        consumers::check(&mut doctor, &mut queue);
    }
    Ok(doctor.findings)
}

/// Reports that nothing can be written to the thread.
fn closed(doctor: &mut Doctor<'_>, queue: &mut Queue) {
    const CHECK: &str = "closed";
    match queue.closed() {
        Ok(None) => {}
        Ok(Some(closed @ Closed::Moved { .. })) => {
            let problem = Error::from(closed).to_string();
            doctor.report(Finding::warning(CHECK, problem).advise("remove it once nobody reads it any more"));
        }
        Ok(Some(closed)) => doctor.report(Finding::failed(CHECK, closed.into())),
        Err(e) => doctor.report(Finding::failed(CHECK, e)),
    }
}

/// One examination.
struct Doctor<'a> {
    fix: bool,
    launcher: &'a Launcher,
    files: Files,
    findings: Vec<Finding>,
}

impl Doctor<'_> {
    /// Records a finding that `repair` can repair; with `fix`, runs the repair. `repair` returns a
    /// description of what it did.
    fn found(&mut self, finding: Finding, repair: impl FnOnce() -> Result<&'static str>) {
        if !self.fix {
            return self.report(finding);
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

    /// Records that this machine cannot run a handler.
    fn report_lack(&mut self, finding: Finding) {
        let elsewhere = self.files.location().backend().is_shared_by_machines;
        let level = if elsewhere { Level::Warning } else { Level::Error };
        self.findings.push(Finding { level, ..finding });
    }

    /// Records a finding that cannot be repaired automatically.
    fn report(&mut self, finding: Finding) {
        self.findings.push(finding);
    }
}
