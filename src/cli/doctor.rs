//! `thread doctor`: printing the findings, and the exit code.

use clap::Args;
use serde_json::json;

use super::output::plain;
use super::root::{RootArg, for_each};
use super::{Globals, environment};
use crate::error::Code;
use crate::failure::{Result, failed, hint};
use crate::maintenance::doctor::{self, Level, Remedy};
use crate::model::location::Location;

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
  thread doctor --thread inbox --fix
  thread doctor --root ~/agents")]
pub struct Doctor {
    /// Repair what can be repaired
    #[arg(long)]
    fix: bool,
    #[command(flatten)]
    pub root: RootArg,
}

impl Doctor {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let Some(threads) = self.root.threads(globals)? else {
            let wrong = self.examine(&globals.location()?, None, globals)?;
            return self.result(wrong, "the thread");
        };
        let mut wrong = 0;
        for_each(&threads, |thread| {
            wrong += self.examine(thread, Some(thread), globals)?;
            Ok(())
        })?;
        self.result(wrong, "the threads")
    }

    /// Examines a thread and prints the findings, with its `name` if that is given. Returns how many things are wrong.
    fn examine(&self, thread: &Location, name: Option<&Location>, globals: &Globals) -> Result<usize> {
        let findings = doctor::examine(thread, &environment::launcher(), self.fix)?;
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
        if lines.is_empty() {
            lines.push("healthy".to_owned());
        }
        let mut facts = json!({ "healthy": wrong == 0, "findings": values });
        if let Some(name) = name {
            let name = name.to_string();
            lines.iter_mut().for_each(|line| *line = format!("{}: {line}", plain(&name)));
            facts["thread"] = name.into();
        }
        globals.print(lines.join("\n"), facts)?;
        Ok(wrong)
    }

    fn result(&self, wrong: usize, with: &str) -> Result<()> {
        let what = match (wrong, self.fix) {
            (0, _) => return Ok(()),
            (1, false) => format!("1 thing is wrong with {with}"),
            (n, false) => format!("{n} things are wrong with {with}"),
            (1, true) => format!("1 thing wrong with {with} cannot be repaired by --fix"),
            (n, true) => format!("{n} things wrong with {with} cannot be repaired by --fix"),
        };
        failed(Code::Unhealthy, what, "follow the advice in each finding")
    }
}
