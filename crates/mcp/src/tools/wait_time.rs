//! The tool that estimates how long a run will wait for its turn.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use thread::model::filter::Scope as FilterScope;
use thread::{Filter, Queue};
use thread_conversation::{Entry, Priority};
use thread_sessions::RequestError;
use thread_sessions::runs::open_runs;

use super::processes::elapsed;
use crate::problem::Result;
use crate::scope::{Scope, open};

/// How many of the last durations a wait is estimated by.
const DURATIONS: usize = 20;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    pub session: Option<String>,
    /// Id of a run that waits; without it, a message pushed now
    process: Option<String>,
}

/// How long a run will wait for its turn, and what that is made of.
#[skip_serializing_none]
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub struct WaitTime {
    /// Absent if nothing is known: no run has ended here yet.
    wait_ms: Option<u64>,
    /// How many runs are before it, the one under way among them.
    runs_ahead: usize,
    /// How long the one under way has run.
    running_ms: Option<u64>,
    /// What it will still take, by the last durations.
    remaining_ms: Option<u64>,
    /// The median of the last durations, which each of the others counts as.
    typical_ms: Option<u64>,
    /// How long the last runs took, the newest first.
    last_durations_ms: Vec<u64>,
}

pub fn wait_time(_: &Scope, path: &Path, args: Args) -> Result<WaitTime> {
    let mut queue = open(path)?;
    let (_, runs, _) = open_runs(&mut queue)?;
    let ahead = match &args.process {
        Some(id) => {
            let run = runs.with_run_id(id).next();
            let shown = || id.chars().take(80).collect();
            let run = run.ok_or_else(|| RequestError::UnknownRun(shown()))?;
            runs.position(run.id()).unwrap_or(0)
        }
        // A message pushed now comes after all others but those that are for later.
        None => runs.iter().filter(|run| run.since.is_some() || run.priority != Priority::Later).count(),
    };
    let running = runs.active().and_then(|run| run.since.as_deref()).map(elapsed);
    Ok(WaitTime::of(ahead, running, last_durations(&mut queue)?))
}

/// How long the last runs that were answered took, the newest first.
fn last_durations(queue: &mut Queue) -> Result<Vec<u64>> {
    let answers = "type = 'message' AND source = 'self' AND metadata ->> 'latency_ms' IS NOT NULL";
    let filter = Filter::new(answers, FilterScope::Reading).map_err(thread::Error::from)?;
    let mut durations = Vec::new();
    for id in queue.newest_matching(filter.as_ref(), i64::MAX, DURATIONS)? {
        let Some(event) = crate::text::without_long_content(queue, id)? else { continue };
        if let Entry::Answer { answer, .. } = Entry::of(&event) {
            durations.extend(answer.latency_ms);
        }
    }
    Ok(durations)
}

impl WaitTime {
    /// By what is known: how many runs are before it, for how long the first of them has run (`None` if it has
    /// not begun), and how long the last ones took.
    fn of(runs_ahead: usize, running_ms: Option<u64>, last_durations_ms: Vec<u64>) -> WaitTime {
        let mut sorted = last_durations_ms.clone();
        sorted.sort_unstable();
        let typical_ms = median(&sorted);
        let running_ms = running_ms.filter(|_| runs_ahead > 0);
        // Half of the runs that took longer than it has so far take longer than this. If none did, nothing is known
        // about it, and it counts as one that begins.
        let remaining_ms = running_ms.and_then(|running| {
            let longer = &sorted[sorted.partition_point(|took| *took <= running)..];
            median(longer).map(|took| took - running).or(typical_ms)
        });
        let others = (runs_ahead - usize::from(running_ms.is_some())) as u64;
        let wait_ms = match runs_ahead {
            0 => Some(0),
            _ => typical_ms.map(|typical| remaining_ms.unwrap_or(0) + others * typical),
        };
        WaitTime { wait_ms, runs_ahead, running_ms, remaining_ms, typical_ms, last_durations_ms }
    }
}

fn median(sorted: &[u64]) -> Option<u64> {
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(ahead: usize, running: Option<u64>, durations: &[u64]) -> (Option<u64>, Option<u64>) {
        let time = WaitTime::of(ahead, running, durations.to_vec());
        (time.wait_ms, time.remaining_ms)
    }

    #[test]
    fn a_wait_is_what_is_left_of_the_run_under_way_and_the_others_before() {
        assert_eq!(wait(0, None, &[]), (Some(0), None));
        assert_eq!(wait(0, Some(5), &[9]), (Some(0), None));
        assert_eq!(wait(2, None, &[]), (None, None));
        assert_eq!(wait(1, Some(400), &[1000, 900, 1100]), (Some(600), Some(600)));
        assert_eq!(wait(3, Some(400), &[1000, 900, 1100]), (Some(2600), Some(600)));
        assert_eq!(wait(2, None, &[1000, 900, 1100]), (Some(2000), None));
        // Most are short, but it is one of the long ones.
        assert_eq!(wait(1, Some(500), &[10, 10, 10, 2000]), (Some(1500), Some(1500)));
        // It takes longer than any before.
        assert_eq!(wait(1, Some(5000), &[1000, 900, 1100]), (Some(1000), Some(1000)));
    }
}
