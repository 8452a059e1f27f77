//! What is remembered about runs, with the subscription they belong to.
//!
//! Every change reads the row again in its own transaction and applies only to the very
//! subscription it was meant for: one that is gone or was made anew is left alone.

use rusqlite::{Connection, TransactionBehavior, params};

use super::subscriptions::{millis, one};
use super::{Moved, Store, dead, move_in};
use crate::error::{Result, database};
use crate::process::Identity;
use crate::rule::{Ended, Exit, Phase, Settled, State, StopRequest, Task, Time, format_time, settle};
use crate::subscription::{ConsumerId, Subscription};

/// Whether a change may be forgotten in a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    Synced,
    Unsynced,
}

impl Store {
    /// Records, synced, that a run of `subscription` with this task begins, as its next attempt.
    /// Answers with the subscription as it then stands; with nothing when it is not as it was seen:
    /// gone, made anew, paused or stopped meanwhile, or its cursor moved.
    pub fn begin_run(
        &mut self,
        subscription: &Subscription,
        task: Task,
        newest: i64,
        now: Time,
    ) -> Result<Option<Subscription>> {
        self.update_unchanged(subscription, Durability::Synced, |current| {
            // A dead letter is tried once; it is no attempt at what comes next.
            let attempts = match task {
                Task::Letter(_) => current.state.attempts,
                _ => current.state.attempts.saturating_add(1),
            };
            State {
                phase: Phase::Running,
                attempts,
                supervisor: Some(Identity::own()),
                handler: None,
                since: Some(now),
                task: Some(task),
                run_cursor: current.last_acked_id,
                run_newest: newest,
                next_try: None,
                reason: None,
                stop: None,
                ..current.state.clone()
            }
        })
    }

    /// Takes back the record of a run that could not be started.
    pub fn abandon_run(&mut self, subscription: &Subscription) -> Result<()> {
        self.update(subscription, Durability::Unsynced, |_, current| {
            let counted = u32::from(!matches!(current.state.task, Some(Task::Letter(_))));
            Ok(State {
                phase: Phase::Idle,
                attempts: current.state.attempts.saturating_sub(counted),
                supervisor: None,
                since: None,
                task: None,
                ..current.state.clone()
            })
        })
        .map(drop)
    }

    /// Records which process the handler is.
    pub fn record_handler(&mut self, subscription: &Subscription, handler: Option<Identity>) -> Result<()> {
        self.update(subscription, Durability::Unsynced, |_, current| {
            Ok(State { handler, ..current.state.clone() })
        })
        .map(drop)
    }

    /// Acknowledges what a run was given, unless the cursor was moved back during it.
    pub fn acknowledge_run(&mut self, subscription: &Subscription, id: i64) -> Result<()> {
        let failed = |e: rusqlite::Error| database(&e, "acknowledging a run");
        let transaction =
            self.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let current = one(&transaction, &subscription.consumer).map_err(failed)?;
        if let Some(current) = current
            && current.is_same(subscription)
            && current.last_acked_id >= subscription.last_acked_id
        {
            let moved = move_in(&transaction, &subscription.consumer, id, false).map_err(failed)?;
            debug_assert_ne!(moved, Moved::UnknownConsumer);
            transaction.commit().map_err(failed)?;
        }
        Ok(())
    }

    /// Applies the rule to a run that ended. `pending` is whether anything is pending past the
    /// cursor; `error` is the end of the handler's output, for a dead letter. Answers with what
    /// then stands.
    pub fn settle_run(
        &mut self,
        subscription: &Subscription,
        exit: Exit,
        pending: bool,
        error: &str,
        now: Time,
    ) -> Result<Option<Subscription>> {
        // What may not be forgotten (an acknowledgement, a dead letter) is synced; a lost wait or
        // rest is found again by looking.
        let letters =
            subscription.state.task.is_some_and(|task| matches!(task, Task::Single(_) | Task::Letter(_)));
        let durability = if letters { Durability::Synced } else { Durability::Unsynced };
        self.update(subscription, durability, |conn, current| {
            let ended = Ended {
                task: current.state.task.unwrap_or(Task::Wake),
                exit,
                stopped: current.state.stop.is_some(),
                cursor: current.last_acked_id,
                pending,
                now,
            };
            let Settled { state, bury } = settle(&current.state, &current.policy, &ended);
            if let Some((id, attempts)) = bury {
                dead::bury(conn, &current.consumer, id, attempts, exit, error, now)?;
                move_in(conn, &current.consumer, id, false)?;
            }
            if ended.stopped {
                return end_of_wishes(conn, &current.consumer, state);
            }
            if let Task::Letter(id) = ended.task {
                match exit {
                    Exit::Code(0) => dead::remove(conn, &current.consumer, id)?,
                    _ => dead::failed_again(conn, &current.consumer, id, exit, error, now)?,
                }
            }
            Ok(state)
        })
    }

    /// Records that this process waits with the consumer's lock until `next_try`. Answers with
    /// nothing when the subscription is not as it was seen.
    pub fn begin_wait(
        &mut self,
        subscription: &Subscription,
        next_try: Time,
        now: Time,
    ) -> Result<Option<Subscription>> {
        self.update_unchanged(subscription, Durability::Unsynced, |current| State {
            phase: Phase::Waiting,
            next_try: Some(next_try),
            supervisor: Some(Identity::own()),
            handler: None,
            since: Some(now),
            ..current.state.clone()
        })
    }

    /// Records that nothing is pending: the consumer rests, attempts forgotten.
    pub fn rest(&mut self, subscription: &Subscription) -> Result<()> {
        self.update(subscription, Durability::Unsynced, |_, current| {
            Ok(State { attempts: 0, ..current.state.at_rest() })
        })
        .map(drop)
    }

    /// Records that this process no longer looks after the consumer.
    pub fn leave(&mut self, subscription: &Subscription) -> Result<()> {
        self.update(subscription, Durability::Unsynced, |_, current| {
            Ok(State { supervisor: None, handler: None, since: None, ..current.state.clone() })
        })
        .map(drop)
    }

    /// Remembers how far a stalled consumer was looked at for newer events.
    pub fn remember_newest(&mut self, subscription: &Subscription, newest: i64) -> Result<()> {
        self.update(subscription, Durability::Unsynced, |_, current| {
            Ok(State { run_newest: newest.max(current.state.run_newest), ..current.state.clone() })
        })
        .map(drop)
    }

    /// Asks the supervisor of a run or a wait to end it. False when the consumer neither runs nor
    /// waits.
    pub fn request_stop(&mut self, subscription: &Subscription, stop: StopRequest) -> Result<bool> {
        let current = self.update(subscription, Durability::Synced, |_, current| {
            let busy = matches!(current.state.phase, Phase::Running | Phase::Waiting);
            Ok(State { stop: busy.then_some(stop), ..current.state.clone() })
        })?;
        Ok(current.is_some_and(|current| current.state.stop.is_some()))
    }

    /// Records that a wait was ended on request, or a run whose supervisor is dead. False when
    /// somebody else looks after the consumer now.
    pub fn stopped(&mut self, subscription: &Subscription, now: Time) -> Result<bool> {
        let current = self.update(subscription, Durability::Synced, |conn, current| {
            if current.state.supervisor != subscription.state.supervisor {
                return Ok(current.state.clone());
            }
            let ended = Ended {
                task: current.state.task.unwrap_or(Task::Wake),
                exit: Exit::Unknown,
                stopped: true,
                cursor: current.last_acked_id,
                pending: true,
                now,
            };
            let was_running = current.state.phase == Phase::Running;
            let settled = settle(&current.state, &current.policy, &ended).state;
            let stopped = if was_running {
                settled
            } else {
                // A wait that was stopped is no run: it costs no attempt, has none to give back, and
                // the run before it stays the last one.
                let State { attempts, began, ended, last_exit, .. } = current.state.clone();
                State { attempts, began, ended, last_exit, ..settled }
            };
            end_of_wishes(conn, &current.consumer, stopped)
        })?;
        // One that is subscribed no more is stopped, too.
        Ok(current.is_none_or(|current| current.state.phase == Phase::Stalled))
    }

    /// Pauses a consumer. A run under way goes on. Nothing when it is not subscribed.
    pub fn pause(&mut self, consumer: &ConsumerId) -> Result<Option<Subscription>> {
        self.change(consumer, |state| State { paused: true, ..state.clone() })
    }

    /// Ends any waiting, stall or pause, so that the consumer starts afresh. A run under way goes
    /// on. Nothing when it is not subscribed.
    pub fn resume(&mut self, consumer: &ConsumerId) -> Result<Option<Subscription>> {
        self.change(consumer, |state| {
            let fresh = State {
                paused: false,
                attempts: 0,
                reason: None,
                next_try: None,
                dead_streak: false,
                ..state.clone()
            };
            match state.phase {
                Phase::Running if under_way(state) => State { attempts: state.attempts.min(1), ..fresh },
                _ => State { phase: Phase::Idle, ..fresh },
            }
        })
    }

    fn change(
        &mut self,
        consumer: &ConsumerId,
        change: impl Fn(&State) -> State,
    ) -> Result<Option<Subscription>> {
        match self.subscription(consumer)? {
            Some(subscription) => {
                self.update(&subscription, Durability::Synced, |_, current| Ok(change(&current.state)))
            }
            None => Ok(None),
        }
    }

    /// Writes the state that `change` makes of the current row. Nothing happens when it is not the
    /// same subscription.
    fn update(
        &mut self,
        subscription: &Subscription,
        durability: Durability,
        change: impl FnOnce(&Connection, &Subscription) -> rusqlite::Result<State>,
    ) -> Result<Option<Subscription>> {
        self.update_if(subscription, durability, |conn, current| change(conn, current).map(Some))
    }

    /// The same, unless anything was changed since `subscription` was read: a decision stands only
    /// on what it was made from.
    fn update_unchanged(
        &mut self,
        subscription: &Subscription,
        durability: Durability,
        change: impl FnOnce(&Subscription) -> State,
    ) -> Result<Option<Subscription>> {
        self.update_if(subscription, durability, |_, current| {
            let seen = (&subscription.state, subscription.last_acked_id, subscription.dead_to_retry);
            let same = seen == (&current.state, current.last_acked_id, current.dead_to_retry);
            Ok(same.then(|| change(current)))
        })
    }

    /// Writes the state that `change` makes of the current row, if any, in one transaction, and
    /// gives a subscription without a token one.
    fn update_if(
        &mut self,
        subscription: &Subscription,
        durability: Durability,
        change: impl FnOnce(&Connection, &Subscription) -> rusqlite::Result<Option<State>>,
    ) -> Result<Option<Subscription>> {
        let failed = |e: rusqlite::Error| database(&e, "recording the state of a consumer");
        if durability == Durability::Unsynced {
            self.conn.execute_batch("PRAGMA synchronous = NORMAL").map_err(failed)?;
        }
        let updated = update_in(&mut self.conn, subscription, change);
        self.conn.execute_batch("PRAGMA synchronous = FULL").map_err(failed)?;
        updated.map_err(failed)
    }
}

/// Whether a run that was recorded goes on, with or without its supervisor.
fn under_way(state: &State) -> bool {
    state.supervisor.iter().chain(&state.handler).any(Identity::is_alive)
}

/// Somebody stopped the consumer: what had come by then, and the dead letters that were to be
/// delivered again, start it no more.
fn end_of_wishes(conn: &Connection, consumer: &ConsumerId, state: State) -> rusqlite::Result<State> {
    dead::retry_none(conn, consumer)?;
    let newest = conn.query_row("SELECT coalesce(max(id), 0) FROM events", [], |row| row.get(0))?;
    Ok(State { run_newest: state.run_newest.max(newest), ..state })
}

fn update_in(
    conn: &mut Connection,
    subscription: &Subscription,
    change: impl FnOnce(&Connection, &Subscription) -> rusqlite::Result<Option<State>>,
) -> rusqlite::Result<Option<Subscription>> {
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let current = one(&transaction, &subscription.consumer)?;
    let Some(mut current) = current.filter(|current| current.token == subscription.token) else {
        return Ok(None);
    };
    // Rows that other programs wrote have no token: then the handler must at least be the same.
    if current.token.is_none() && current.handler_cmd != subscription.handler_cmd {
        return Ok(None);
    }
    match change(&transaction, &current)? {
        Some(state) => current.state = state,
        None => return Ok(None),
    }
    let state = &current.state;
    let time = |time: Option<Time>| time.map(format_time);
    let process = |process: &Option<Identity>| process.as_ref().map(|p| (p.pid, p.start));
    let boot = state.supervisor.as_ref().or(state.handler.as_ref()).map(|process| process.boot.clone());
    let token: String = transaction
        .prepare_cached(
            "UPDATE subscriptions SET token = coalesce(token, lower(hex(randomblob(8)))), phase = ?, paused = ?, \
                    reason = ?, attempts = ?, next_try = ?, run_boot = ?, run_pid = ?, run_start = ?, \
                    handler_pid = ?, handler_start = ?, run_since = ?, run_began = ?, run_ended = ?, run_exit = ?, \
                    run_task = ?, run_last = ?, run_cursor = ?, run_newest = ?, narrow_upto = ?, dead_streak = ?, \
                    stop_signal = ?, stop_kill_ms = ? \
             WHERE consumer_id = ? RETURNING token",
        )?
        .query_row(
            params![
                state.phase.as_str(),
                state.paused,
                state.reason,
                state.attempts,
                time(state.next_try),
                boot,
                process(&state.supervisor).map(|p| p.0),
                process(&state.supervisor).map(|p| p.1),
                process(&state.handler).map(|p| p.0),
                process(&state.handler).map(|p| p.1),
                time(state.since),
                time(state.began),
                time(state.ended),
                state.last_exit,
                state.task.map(|task| task.to_columns().0),
                state.task.map(|task| task.to_columns().1),
                state.run_cursor,
                state.run_newest,
                state.narrow_upto,
                state.dead_streak,
                state.stop.map(|stop| stop.signal),
                state.stop.map(|stop| millis(stop.kill_after)),
                current.consumer.as_str()
            ],
            |row| row.get(0),
        )?;
    transaction.commit()?;
    current.token = Some(token);
    Ok(Some(current))
}
