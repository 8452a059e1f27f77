//! Is a thread whole, and mending what is not.
//!
//! Each check tells what it finds in a sentence, and what mends it. Mending loses nothing that was
//! stored: a damaged database is never written to, and a file of the copy is replaced only by one
//! that agrees with the table. All of it may happen while others push, read and dispatch: what
//! looks wrong only because somebody is at work is looked at again before it counts.
//!
//! The checks go from the ground up, and end where the next would stand on something broken: first
//! the files, then the database, then the copy, then the consumers.

mod consumers;
mod copy;
mod database;
mod layout;
mod programs;

use std::path::Path;

use serde::Serialize;

use crate::error::{Failure, Result};
use crate::files::{self, Files};
use crate::log::{self, Level};
use crate::thread::{self, Thread};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something does not work, or may go wrong.
    Error,
    /// It does no harm, or heals by itself.
    Warning,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which check found it, in one word.
    pub check: &'static str,
    #[serde(rename = "level")]
    pub severity: Severity,
    pub problem: String,
    /// What mends it; what was done, where it is mended.
    pub suggestion: String,
    pub mended: bool,
}

impl Finding {
    fn error(check: &'static str, problem: impl Into<String>) -> Finding {
        Finding {
            check,
            severity: Severity::Error,
            problem: problem.into(),
            suggestion: "run `thread doctor --fix`".to_owned(),
            mended: false,
        }
    }

    fn warning(check: &'static str, problem: impl Into<String>) -> Finding {
        Finding { severity: Severity::Warning, ..Finding::error(check, problem) }
    }

    /// The same with another remedy than `--fix`.
    fn instead(self, suggestion: impl Into<String>) -> Finding {
        Finding { suggestion: suggestion.into(), ..self }
    }

    /// A check that could not be made.
    fn failed(check: &'static str, failure: Failure) -> Finding {
        Finding::error(check, failure.what).instead(failure.fix)
    }

    /// Whether it is an error, and still there.
    pub fn is_wrong(&self) -> bool {
        self.severity == Severity::Error && !self.mended
    }
}

/// Examines the thread in `dir`, and mends what can be mended if `fix`.
///
/// # Errors
///
/// Only when `dir` is no thread. All other trouble is a finding.
pub fn examine(dir: &Path, fix: bool) -> Result<Vec<Finding>> {
    let dir = files::absolute(dir).map_err(|_| thread::missing(dir))?;
    let files = Files::of(dir.clone()).ok_or_else(|| thread::missing(&dir))?;
    let mut doctor = Doctor { fix, files, findings: Vec::new() };
    layout::check(&mut doctor);
    if let Some(store) = database::check(&mut doctor) {
        let mut thread = Thread { files: doctor.files.clone(), store };
        copy::check(&mut doctor, &mut thread);
        programs::check(&mut doctor, &thread);
        consumers::check(&mut doctor, &mut thread);
    }
    Ok(doctor.findings)
}

/// One examination.
struct Doctor {
    fix: bool,
    files: Files,
    findings: Vec<Finding>,
}

impl Doctor {
    /// Records something that `mend` can mend, and has it mended if that was asked. `mend` answers
    /// with what was done.
    fn found(&mut self, finding: Finding, mend: impl FnOnce() -> Result<String>) {
        if !self.fix {
            self.findings.push(finding);
            return;
        }
        let finding = match mend() {
            Ok(done) => {
                log::write(&self.files, Level::Info, format_args!("doctor: mended: {}", finding.problem));
                Finding { suggestion: done, mended: true, ..finding }
            }
            Err(failure) => {
                let problem = format!("{}; it could not be mended: {}", finding.problem, failure.what);
                Finding { problem, suggestion: failure.fix, ..finding }
            }
        };
        self.findings.push(finding);
    }

    /// Records something that only a person can mend.
    fn tell(&mut self, finding: Finding) {
        self.findings.push(finding);
    }
}
