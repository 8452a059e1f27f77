//! `thread doctor`: printing the findings, and the exit code.

use clap::Args;
use serde_json::json;

use super::output::plain;
use super::{Globals, environment};
use crate::error::Code;
use crate::failure::{Result, failed, hint};
use crate::maintenance::doctor::{self, Level, Remedy};

/// Check a thread for damage, and repair it
///
/// Checks the files and their permissions, the database, the JSONL log against the table, and the
/// consumers: filters that are no longer valid, programs that are gone, and pending events that nothing is
/// working on. Each finding is one line that says how to fix it. Other programs may push and read
/// while it runs.
///
/// Exits 1 if anything is wrong; warnings alone are exit 0. --fix repairs what can be repaired without
/// losing anything; it never writes to a damaged database.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread doctor --thread inbox
  thread doctor --thread inbox --fix")]
pub struct Doctor {
    /// Repair what can be repaired
    #[arg(long)]
    fix: bool,
}

impl Doctor {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let findings = doctor::examine(&globals.location()?, &environment::launcher(), self.fix)?;
        let wrong = findings.iter().filter(|finding| finding.is_wrong()).count();
        let (mut values, mut lines) = (Vec::new(), Vec::new());
        for finding in &findings {
            let suggestion = match &finding.remedy {
                Remedy::Fix => "run `thread doctor --fix`".to_owned(),
                Remedy::Advice(advice) => advice.clone(),
                Remedy::Against(error) => hint(error),
                Remedy::Repaired(done) => (*done).to_owned(),
            };
            let level = match finding.level {
                Level::Error => "error",
                Level::Warning => "warning",
            };
            let label = if finding.is_repaired() { "repaired" } else { level };
            lines.push(format!("{label}: {} - {}", plain(&finding.problem), plain(&suggestion)));
            values.push(json!({
                "check": finding.check,
                "level": level,
                "problem": finding.problem,
                "suggestion": suggestion,
                "repaired": finding.is_repaired(),
            }));
        }
        let text = if lines.is_empty() { "healthy".to_owned() } else { lines.join("\n") };
        globals.print(text, json!({ "healthy": wrong == 0, "findings": values }))?;
        let what = match (wrong, self.fix) {
            (0, _) => return Ok(()),
            (1, false) => "1 thing is wrong with the thread".to_owned(),
            (n, false) => format!("{n} things are wrong with the thread"),
            (1, true) => "1 thing wrong with the thread cannot be repaired by --fix".to_owned(),
            (n, true) => format!("{n} things wrong with the thread cannot be repaired by --fix"),
        };
        failed(Code::Unhealthy, what, "follow the advice in each finding")
    }
}
