//! The program's process: its environment, its end, and that of what it has started.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use thread::{Queue, Result};

use super::attempt::Attempt;
use super::{Adapter, newest_matching};
use crate::processes::{KILL_TIMEOUT, Mark};
use crate::program::Program;
use thread_conversation::Run;

/// How long a program has to exit after its stdin is closed, and again after TERM.
const EXIT_GRACE: Duration = Duration::from_secs(2);

/// The environment variable that names the program's protocol.
const PROTOCOL_VARIABLE: &str = "THREAD_AGENT";

/// The program's process and its state, until it has exited and been cleaned up.
pub(super) struct Running {
    pub program: Program,
    /// Its exit code, or 128 plus the signal's number, once it has been reaped.
    pub exited: Option<i32>,
    /// How long the loop has waited for its output since then.
    pub waited: Duration,
    /// How many bytes of output have arrived since then.
    pub late_bytes: usize,
    pub stdout_closed: bool,
    /// See [`ProgramEvent::StderrDone`](crate::program::ProgramEvent::StderrDone).
    pub stderr_done: bool,
    /// It printed something while no answer was due, so its output cannot be trusted to belong to the next message.
    pub strayed: bool,
}

impl Adapter {
    /// The program's command line and environment.
    pub(super) fn command(&self, run: &Run) -> Command {
        let mut command = Command::new(&self.options.program[0]);
        command.args(&self.options.program[1..]);
        command.envs(self.options.environment.iter().map(|(name, value)| (name, value)));
        // The token is the gateway's secret; the cursor is the adapter's and means nothing to the program.
        command.env_remove("THREAD_TOKEN").env_remove("THREAD_LAST_ACKED_ID");
        command.env("THREAD_DIR", self.queue.location().as_os_str());
        command.env("THREAD_CONSUMER", self.options.consumer.as_str());
        command.env("THREAD_RUN_ID", &run.run_id);
        command.env("THREAD_EVENT_ID", run.reply_to.to_string());
        command.env(PROTOCOL_VARIABLE, self.options.protocol.name());
        command
    }

    /// Reaps all children that have exited: the program, and supervisors started to wake consumers.
    pub(super) fn reap(&mut self) {
        #[cfg(all(test, target_os = "linux"))]
        if let Some(system) = crate::simulated::system() {
            while let Some((pid, code)) = system.reap() {
                if let Some(running) = self.running.as_mut().filter(|running| running.program.pid == pid) {
                    running.exited = Some(code);
                }
            }
            return;
        }
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if let Some(running) = self.running.as_mut().filter(|running| running.program.pid == pid) {
                running.exited = Some(code_of(status));
            }
        }
    }

    /// Ends the program, if there is one; of a persistent program also what it started. Blocks until it has
    /// exited, which takes a few seconds at most unless it cannot be killed.
    pub(super) fn end_program(&mut self) {
        let Some(running) = &mut self.running else { return };
        running.program.close_input();
        let mut killed_at = Instant::now() + 2 * EXIT_GRACE;
        let mut term_at = Some(Instant::now() + EXIT_GRACE);
        while let Some(running) = self.running.as_ref().filter(|running| running.exited.is_none()) {
            let now = Instant::now();
            if term_at.is_some_and(|at| now >= at) {
                running.program.signal(Signal::TERM);
                term_at = None;
            }
            if now >= killed_at {
                running.program.signal(Signal::KILL);
                killed_at = now + KILL_TIMEOUT;
            }
            // The program may be blocked writing to a full channel.
            drop(self.receive(Duration::from_millis(10)));
            self.reap();
        }
        self.drop_exited();
    }

    /// Selects the processes of this consumer's agent.
    fn mark(&self) -> Mark {
        Mark::thread(self.queue.location()).with("THREAD_CONSUMER", self.options.consumer.as_str())
    }

    fn kill(&self, mark: Mark) {
        if let Err(e) = mark.kill() {
            self.warn(e);
        }
    }

    /// Kills what a killed adapter left running, persistent programs and processes of an open attempt: they must
    /// not work alongside those of a new attempt.
    pub(super) fn end_leftovers(&mut self) {
        // It takes a look at every process of the machine, which many new conversations at once would each take.
        if matches!(is_new(&mut self.queue), Ok(true)) {
            return;
        }
        for protocol in ["ndjson", "acp", "openai"] {
            self.kill(self.mark().with(PROTOCOL_VARIABLE, protocol));
        }
        if let Some(open) = self.runs.iter().find(|run| run.in_attempt) {
            let mark = self.mark().with("THREAD_RUN_ID", &open.run.run_id);
            self.kill(mark.below(self.supervisor.clone(), BTreeSet::new()));
        }
    }

    /// Drops a program that has exited, and kills what a persistent program started.
    pub(super) fn drop_exited(&mut self) {
        let Some(running) = self.running.take_if(|running| running.exited.is_some()) else { return };
        if self.options.protocol.keeps_process() {
            // Also by ancestry: nothing else of this consumer is running.
            let mark = self.mark().with(PROTOCOL_VARIABLE, self.options.protocol.name());
            let mark = mark.below(self.supervisor.clone(), BTreeSet::new());
            self.kill(mark.session(running.program.pid));
        }
    }

    /// Kills what earlier attempts of a run left running.
    pub(super) fn clean_up_before(&self, id: i64) {
        if let Some(open) = self.runs.get(id).filter(|open| open.last_begun > 0)
            && !self.options.protocol.keeps_process()
        {
            self.kill(self.mark().with("THREAD_RUN_ID", &open.run.run_id));
        }
    }

    /// Kills what an attempt without an answer left running.
    pub(super) fn end_attempt_processes(&self, attempt: &Attempt, program: Option<Pid>) {
        // A persistent program has the run id of the run it was started for, which need not be this one.
        if !self.options.protocol.keeps_process() {
            let mark = self.mark().with("THREAD_RUN_ID", &attempt.run.run_id);
            let mark = mark.below(self.supervisor.clone(), attempt.spared.clone());
            self.kill(program.into_iter().fold(mark, Mark::session));
        }
    }
}

/// Whether no attempt was ever begun in a thread. Where the oldest event was pruned, that is not known.
fn is_new(queue: &mut Queue) -> Result<bool> {
    Ok(queue.event(1)?.is_some() && newest_matching(queue, "subtype = 'run'")?.is_none())
}

fn code_of(status: WaitStatus) -> i32 {
    status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal)).unwrap_or(-1)
}
