//! Compares the JSONL log with the table.

use std::time::{Duration, Instant};

use super::{Doctor, Finding};
use crate::error::Result;
use crate::jsonl;
use crate::jsonl::verify::{Fault, verify};
use crate::queue::Queue;

const CHECK: &str = "jsonl";

/// How long a push may take from storing its event to writing its line.
const GRACE: Duration = Duration::from_secs(5);

/// `sound`: all files can be used.
pub fn check(doctor: &mut Doctor<'_>, queue: &mut Queue, sound: bool) {
    let faults = match lasting_faults(queue) {
        Ok(faults) => faults,
        // Unusable files are reported already.
        Err(_) if !sound => return,
        Err(e) => return doctor.report(Finding::failed(CHECK, e)),
    };
    for fault in faults {
        let finding = Finding::error(CHECK, fault.to_string());
        if fault.can_be_repaired() {
            doctor.found(finding, || {
                jsonl::repair(&queue.files, &mut *queue.store).map(|()| "it was rewritten from the table")
            });
        } else {
            let advice = "inspect that file, and edit or delete it by hand; sealed files are never rewritten";
            doctor.report(finding.advise(advice));
        }
    }
}

/// The faults of the log. A push that has stored an event may be about to write its line, so only events that
/// existed at the start count as not written, and only after [`GRACE`].
fn lasting_faults(queue: &mut Queue) -> Result<Vec<Fault>> {
    let end = Instant::now() + GRACE;
    let newest = queue.store.newest()?;
    loop {
        let mut faults = verify(&queue.files, &mut *queue.store)?;
        let newer = queue.store.count(newest, i64::MAX)?;
        faults.retain(|fault| !matches!(fault, Fault::Behind { events } if *events <= newer));
        if Instant::now() >= end || !faults.iter().any(|fault| matches!(fault, Fault::Behind { .. })) {
            return Ok(faults);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
