//! The JSONL copy against the table.

use super::{Doctor, Finding};
use crate::error::{Failure, OrFix};
use crate::journal::{self, Faults};
use crate::thread::Thread;

const CHECK: &str = "copy";

pub fn check(doctor: &mut Doctor, thread: &mut Thread) {
    let audit = match journal::audit(&thread.files, &mut thread.store) {
        Ok(audit) => audit,
        Err(e) => {
            let problem = format!("the JSONL copy cannot be compared with the table: {e:#}");
            let fix = "check the permissions of events*.jsonl and run/_journal, and who holds the lock of the latter";
            return doctor.tell(Finding::error(CHECK, problem).instead(fix));
        }
    };
    let mut findings: Vec<Finding> = Vec::new();
    for (name, faults) in &audit.faulty {
        findings.push(Finding::error(
            CHECK,
            format!("{name} does not agree with the table: {}", describe(faults)),
        ));
    }
    if audit.spoilt_note {
        findings.push(Finding::error(CHECK, "run/_journal, the note about the copy, is spoilt"));
    }
    if audit.stray_draft {
        findings.push(Finding::warning(CHECK, "a repair of the copy that was killed left its draft in run/"));
    }
    if findings.is_empty() {
        return;
    }
    // All at once: the files of the copy hang together.
    let repaired = doctor.fix.then(|| {
        let done = journal::repair(&thread.files, &mut thread.store);
        done.map_err(|e| format!("{e:#}"))
            .or_fix("cannot write the copy", "check the permissions and the space on the disk")
    });
    let done: Result<String, Failure> = match repaired {
        None => Ok(String::new()),
        Some(Ok(kept)) if kept.is_empty() => Ok("it was written anew from the table".to_owned()),
        Some(Ok(kept)) => {
            let kept: Vec<String> = kept.iter().map(|path| path.display().to_string()).collect();
            Ok(format!(
                "it was written anew from the table; as it was before, it is kept in {}",
                kept.join(", ")
            ))
        }
        Some(Err(failure)) => Err(failure),
    };
    for finding in findings {
        doctor.found(finding, || done.clone());
    }
}

fn describe(faults: &Faults) -> String {
    let mut parts = Vec::new();
    let mut part = |count: u64, one: &str, more: &str| match count {
        0 => {}
        1 => parts.push(format!("1 {one}")),
        n => parts.push(format!("{n} {more}")),
    };
    part(faults.missing, "event has no line", "events have no line");
    part(faults.wrong, "line is not its event", "lines are not their events");
    part(faults.repeated, "line is repeated or out of order", "lines are repeated or out of order");
    part(
        faults.unknown,
        "line is of an event that was never stored here",
        "lines are of events that were never stored here",
    );
    part(u64::from(faults.torn), "line is torn", "lines are torn");
    format!("{} (from line {} on)", parts.join(", "), faults.first)
}
