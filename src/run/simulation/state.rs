//! What there is in a schedule.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use thread_testkit::Dice;

use super::handlers::Handler;
use super::others::May;
use super::rules::Rules;
use super::watches::Watches;
use crate::model::run::{Deliver, Options, UNLIMITED};

/// The pids of simulated processes begin here, where no real one is.
const FIRST_PID: i32 = 1 << 23;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Supervisor,
    Timer,
}

pub struct State {
    pub dice: Dice,
    pub may: May,
    pub options: Options,
    /// So many things happen before it is calm.
    pub steps: u32,
    pub is_calm: bool,
    pub calm_since: u64,
    pub waits: u32,
    /// How often a process has used the store since it waited.
    pub operations: u32,
    pub handlers: Vec<Handler>,
    pub next_pid: i32,
    /// The process under way, and its number.
    pub role: Option<(Role, i64)>,
    /// The numbers of the processes that are there.
    pub alive: Vec<i64>,
    pub processes: i64,
    /// The locks of a supervisor and a timer that were started, and have not begun.
    pub supervisor: Option<File>,
    pub timer: Option<File>,
    /// To ask the supervisor under way to end.
    pub shutdown: Option<UnixStream>,
    pub was_asked: bool,
    /// Something was killed, for which only another dispatch makes up.
    pub needs_dispatch: bool,
    /// Somebody else does something, during which nothing else happens.
    pub is_busy: bool,
    /// The store was changed since it was looked at.
    pub is_changed: bool,
    pub watches: Watches,
    pub rules: Rules,
}

impl State {
    pub fn new(seed: u64) -> State {
        let mut dice = Dice::of(seed);
        let (may, options) = (May::any(&mut dice), options(&mut dice));
        State {
            steps: dice.length(40) as u32,
            dice,
            may,
            rules: Rules::new(&options),
            options,
            is_calm: false,
            calm_since: 0,
            waits: 0,
            operations: 0,
            handlers: Vec::new(),
            next_pid: FIRST_PID + (seed % 1_000_000) as i32 * 100,
            role: None,
            alive: Vec::new(),
            processes: 0,
            supervisor: None,
            timer: None,
            shutdown: None,
            was_asked: false,
            needs_dispatch: false,
            is_busy: false,
            is_changed: false,
            watches: Watches::default(),
        }
    }
}

/// Of any kind whose events are answered.
fn options(dice: &mut Dice) -> Options {
    let deliver = *dice.pick(&[Deliver::Stdin, Deliver::Ndjson]);
    let concurrency = (dice.below(3) > 0).then(|| 1 + dice.below(3) as u32);
    let may_key = concurrency.is_some() || deliver == Deliver::Ndjson;
    Options {
        deliver,
        batch_size: 1 + dice.below(3),
        max_attempts: *dice.pick(&[1, 2, 3, UNLIMITED]),
        stall_after: Some(3),
        probe: Some(Duration::from_secs(10)),
        backoff: vec![Duration::from_secs(1), Duration::from_secs(4)],
        idle: Duration::from_secs(1 + dice.below(3)),
        timeout: dice.one_in(3).then(|| Duration::from_secs(2)),
        concurrency,
        key: (may_key && dice.one_in(2)).then(|| "subtype".to_owned()),
        ..Options::default()
    }
}
