//! `thread doctor`: telling what was found, and the exit code that follows.

use clap::Args;
use serde_json::json;

use crate::cmd::ThreadArg;
use crate::doctor::{self, Finding, Severity};
use crate::error::{Failure, Result};
use crate::output::{self, plain};

/// Check whether a thread is whole, and mend it
///
/// Checks the files and their permissions, the database, the JSONL copy against the table, and the
/// consumers: filters that no longer hold, programs that are gone, and events that nobody is
/// handling. Each finding is one line, with what mends it. Others may push and read meanwhile.
///
/// Exit code 1 says that something is wrong; warnings alone do not count. With --fix it mends what
/// can be mended without losing anything; a damaged database is never written to.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread doctor --thread inbox
  thread doctor --thread inbox --fix")]
pub struct Doctor {
    #[command(flatten)]
    thread: ThreadArg,
    /// Mend what can be mended
    #[arg(long)]
    fix: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub fn run(self) -> Result<()> {
        let findings = doctor::examine(&self.thread.path()?, self.fix)?;
        let wrong = findings.iter().filter(|finding| finding.is_wrong()).count();
        if self.json {
            output::json(&json!({ "healthy": wrong == 0, "findings": findings }))?;
        } else if findings.is_empty() {
            output::line("healthy")?;
        } else {
            let text: String = findings.iter().map(line).collect();
            output::bytes(text.as_bytes())?;
        }
        if wrong == 0 {
            return Ok(());
        }
        let what = match (wrong, self.fix) {
            (1, false) => "1 thing is wrong with the thread".to_owned(),
            (n, false) => format!("{n} things are wrong with the thread"),
            (1, true) => "1 thing wrong with the thread cannot be mended by --fix".to_owned(),
            (n, true) => format!("{n} things wrong with the thread cannot be mended by --fix"),
        };
        Err(Failure::could_not(what, "do what is said beside each finding"))
    }
}

fn line(finding: &Finding) -> String {
    let word = match (finding.mended, finding.severity) {
        (true, _) => "mended",
        (false, Severity::Error) => "error",
        (false, Severity::Warning) => "warning",
    };
    format!("{word}: {} - {}\n", plain(&finding.problem), plain(&finding.suggestion))
}
