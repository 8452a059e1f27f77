//! An in-memory implementation of [`Store`], without durability.
//!
//! It has a single user and stores each fact once, so it is a short specification of what the SQLite store
//! must do; the conformance tests compare the two. Filters are evaluated row by row.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::time::Instant;

use chrono::Utc;
use thread::model::event::{CappedRow, Row};
use thread::model::figures::{Counted, Deleted, Figures, oldest_hour};
use thread::model::filter::Filter;
use thread::model::ledger::Ledger;
use thread::model::run::{RUNS_KEPT, Run, RunState};
use thread::model::schedule::Schedule;
use thread::model::scheduled::{Due, NextDue, ScheduledEvent, ScheduledId, Which};
use thread::model::step::Step;
use thread::model::subscription::{ConsumerId, DeadLetter, NewSubscription, ScanWatermark, Subscription};
use thread::model::time::{self, Time};
use thread::store::{
    Appended, DeadLetterUpdate, FilterFailure, GIVEN_AGAIN, Move, Moved, PruneRange, PruneStep, Pruned, Put,
    RunUpdate, Scan, ScanRange, StepChange, StepsOf, Store, Stored, count_passed,
};
use thread::{Error, Event, NewEvent, Result};

/// Events, subscriptions and cursors in memory.
#[derive(Debug, Default)]
pub struct MemoryStore {
    events: BTreeMap<i64, Event>,
    /// Which events each filter matches: simulations ask for that again and again.
    matches: BTreeMap<String, BTreeMap<i64, bool>>,
    /// Event id by idempotency key.
    keys: BTreeMap<String, i64>,
    newest: i64,
    /// Without cursors and dead letters, which outlive them.
    subscriptions: BTreeMap<ConsumerId, Subscription>,
    /// Position of each cursor, and when it last changed.
    cursors: BTreeMap<ConsumerId, (i64, String)>,
    dead_letters: BTreeMap<(ConsumerId, i64), DeadLetter>,
    runs: BTreeMap<ConsumerId, Vec<Run>>,
    ledgers: BTreeMap<ConsumerId, Ledger>,
    /// In the order in which they were begun, each with the time since when its event has been finished.
    steps: Vec<(Step, Option<Time>)>,
    /// Each time that something was counted.
    figures: Vec<Counted>,
    config: BTreeMap<String, String>,
    /// By when they are due.
    scheduled: BTreeMap<(Time, ScheduledId), ScheduledEvent>,
    schedules: BTreeMap<String, Schedule>,
    /// The newest number of a scheduled event.
    newest_scheduled: i64,
    /// Number of subscriptions ever made; the source of tokens.
    tokens: u64,
}

impl MemoryStore {
    fn put(&mut self, event: &NewEvent<'_>, created_at: &str) -> Result<Stored> {
        if let Some(key) = event.idempotency_key.as_deref()
            && let Some(stored) = self.keys.get(key).and_then(|id| self.events.get(id))
        {
            return match event.is_same(stored) {
                true => Ok(Stored::Repeated { id: stored.id, created_at: stored.created_at.clone() }),
                false => Err(Error::KeyConflict { key: key.to_owned(), id: stored.id }),
            };
        }
        if let Some(key) = event.idempotency_key.as_deref()
            && let Some(found) = self.scheduled.values().find(|one| one.key.as_deref() == Some(key))
        {
            return match event.is_same(&found.event.row(0, "").to_event()) {
                true => Ok(Stored::Scheduled { id: found.id, due: found.due, repeated: true }),
                false => Err(Error::ScheduledKeyConflict { key: key.to_owned(), id: found.id }),
            };
        }
        if let Some(due) = event.due_at(time::parse(created_at).unwrap()) {
            self.newest_scheduled += 1;
            let id = ScheduledId(self.newest_scheduled);
            let plain = event.row(0, "").to_event();
            let stored =
                NewEvent::new(plain.source, &plain.kind, plain.subtype.map(Into::into), plain.content)?;
            let stored = stored.with_metadata(&event.metadata_scheduled(created_at))?;
            let delay = if let Some(Due::After(delay)) = event.due { Some(delay) } else { None };
            let key = event.idempotency_key.as_deref().map(str::to_owned);
            self.scheduled.insert((due, id), ScheduledEvent { id, due, delay, event: stored, key });
            return Ok(Stored::Scheduled { id, due, repeated: false });
        }
        self.newest += 1;
        let created_at = event.created_at.as_deref().unwrap_or(created_at);
        self.events.insert(self.newest, event.row(self.newest, created_at).to_event());
        if let Some(key) = event.idempotency_key.as_deref() {
            self.keys.insert(key.to_owned(), self.newest);
        }
        Ok(Stored::New(self.newest))
    }

    /// The events with an id above `after`, up to and including `upto`.
    fn between(&self, after: i64, upto: i64) -> impl Iterator<Item = &Event> {
        let range = (Bound::Excluded(after), Bound::Included(upto));
        let events = (after < upto).then(|| self.events.range(range));
        events.into_iter().flatten().map(|(_, event)| event)
    }

    /// Drops the keys of deleted events.
    fn drop_keys(&mut self) {
        self.keys.retain(|_, id| self.events.contains_key(id));
    }

    fn find(&self, consumer: &ConsumerId) -> Option<Subscription> {
        let found = self.subscriptions.get(consumer)?;
        let (cursor, updated_at) = self.cursors.get(consumer).cloned().unzip();
        let count = |counts: fn(&DeadLetter) -> bool| {
            self.dead_letters.values().filter(|dead| dead.consumer == *consumer && counts(dead)).count()
                as i64
        };
        Some(Subscription {
            last_acked_id: cursor.unwrap_or(0),
            updated_at,
            dead: count(|_| true),
            dead_to_retry: count(|dead| dead.retry),
            ..found.clone()
        })
    }

    fn update_dead_letter(&mut self, consumer: &ConsumerId, change: &DeadLetterUpdate) {
        let key = |event_id: i64| (consumer.clone(), event_id);
        match change.clone() {
            DeadLetterUpdate::Insert { event_id, attempts, exit, error, at } => {
                if self.events.contains_key(&event_id) {
                    let dead = DeadLetter {
                        consumer: consumer.clone(),
                        event_id,
                        attempts: attempts.into(),
                        last_exit: exit.code().map(i64::from),
                        last_error: error,
                        parked_at: time::format(at),
                        retry: false,
                    };
                    self.dead_letters.insert(key(event_id), dead);
                }
            }
            DeadLetterUpdate::FailedAgain { event_id, exit, error, at } => {
                if let Some(dead) = self.dead_letters.get_mut(&key(event_id)) {
                    dead.attempts += 1;
                    dead.last_exit = exit.code().map(i64::from);
                    dead.last_error = error;
                    dead.parked_at = time::format(at);
                    dead.retry = false;
                }
            }
            DeadLetterUpdate::Remove { event_id } => drop(self.dead_letters.remove(&key(event_id))),
            DeadLetterUpdate::Redo { event_id, at } if self.events.contains_key(&event_id) => {
                let new = DeadLetter {
                    consumer: consumer.clone(),
                    event_id,
                    attempts: 0,
                    last_exit: None,
                    last_error: GIVEN_AGAIN.to_owned(),
                    parked_at: time::format(at),
                    retry: false,
                };
                self.dead_letters.entry(key(event_id)).or_insert(new).retry = true;
            }
            DeadLetterUpdate::Redo { .. } => {}
        }
    }
}

impl Store for MemoryStore {
    fn append(&mut self, feed: &mut dyn FnMut(&mut Put<'_>) -> Result<()>) -> Result<Appended> {
        let (before, scheduled) = (self.newest, self.scheduled.clone());
        let mut appended = Appended { created_at: time::now(), ..Appended::default() };
        let mut put = |event: &NewEvent<'_>| {
            let stored = self.put(event, &appended.created_at)?;
            if let Stored::New(id) = stored {
                appended.count += 1;
                appended.first_id.get_or_insert(id);
                appended.last_id = Some(id);
            }
            appended.scheduled += u64::from(matches!(stored, Stored::Scheduled { repeated: false, .. }));
            Ok(stored)
        };
        let fed = feed(&mut |events| events.iter().map(&mut put).collect());
        if fed.is_err() {
            self.newest = before;
            self.scheduled = scheduled;
            self.events.split_off(&(before + 1));
            self.matches.clear();
            self.drop_keys();
        }
        fed.map(|()| appended)
    }

    fn read_capped(
        &mut self,
        after: i64,
        upto: i64,
        limit: usize,
        cap: u64,
        take: &mut dyn FnMut(CappedRow<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        fn capped(text: &[u8], cap: u64) -> &[u8] {
            if text.len() as u64 <= cap { text } else { b"" }
        }
        for event in self.between(after, upto).take(limit) {
            let row = event.row();
            let (content_len, metadata_len) = (row.content.len(), row.metadata.map_or(0, <[u8]>::len));
            let row = Row {
                id: row.id,
                created_at: capped(row.created_at, cap),
                source: capped(row.source, cap),
                kind: capped(row.kind, cap),
                subtype: row.subtype.filter(|text| text.len() as u64 <= cap),
                content: capped(row.content, cap),
                metadata: row.metadata.map(|text| capped(text, cap)),
            };
            let (content_len, metadata_len) = (content_len as u64, metadata_len as u64);
            if take(CappedRow { row, content_len, metadata_len }).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn read_content(&mut self, id: i64, offset: u64, most: usize) -> Result<Option<Vec<u8>>> {
        Ok(self.events.get(&id).map(|event| {
            let bytes = event.content.bytes().skip(offset.try_into().unwrap_or(usize::MAX));
            bytes.take(most).collect()
        }))
    }

    fn scan(&mut self, filter: &Filter, range: ScanRange) -> Result<Scan> {
        let mut scan = Scan { upto: range.after, ..Scan::default() };
        if range.most == 0 {
            return Ok(scan);
        }
        let mut cut_short = false;
        let mut known = self.matches.remove(filter.text()).unwrap_or_default();
        self.read(range.after, range.upto, usize::MAX, &mut |row| {
            match known.get(&row.id).map_or_else(|| filter.matches(&row), |known| Ok(*known)) {
                Ok(matches) => {
                    known.insert(row.id, matches);
                    scan.ids.extend(matches.then_some(row.id));
                }
                Err(e) => scan.failures.push(FilterFailure { id: row.id, message: e.0 }),
            }
            scan.upto = row.id;
            cut_short = scan.ids.len() == range.most || range.until.is_some_and(|end| Instant::now() >= end);
            if cut_short { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        self.matches.insert(filter.text().to_owned(), known);
        if !cut_short {
            scan.upto = range.upto.max(range.after);
        }
        Ok(scan)
    }

    fn newest(&mut self) -> Result<i64> {
        Ok(self.newest)
    }

    fn first_after(&mut self, id: i64) -> Result<Option<i64>> {
        Ok(self.between(id, i64::MAX).next().map(|event| event.id))
    }

    fn last_upto(&mut self, id: i64) -> Result<Option<i64>> {
        Ok(self.events.range(..=id).next_back().map(|(id, _)| *id))
    }

    fn first_since(&mut self, time: &str) -> Result<Option<i64>> {
        Ok(self.events.values().find(|event| event.created_at.as_str() >= time).map(|event| event.id))
    }

    fn stored_at(&mut self, id: i64) -> Result<Option<String>> {
        Ok(self.events.get(&id).map(|event| event.created_at.clone()))
    }

    fn id_of_key(&mut self, key: &str) -> Result<Option<i64>> {
        Ok(self.keys.get(key).copied())
    }

    fn count(&mut self, after: i64, upto: i64) -> Result<u64> {
        Ok(self.between(after, upto).count() as u64)
    }

    fn subscriptions(&mut self) -> Result<Vec<Subscription>> {
        Ok(self.subscriptions.keys().filter_map(|consumer| self.find(consumer)).collect())
    }

    fn subscription(&mut self, consumer: &ConsumerId) -> Result<Option<Subscription>> {
        Ok(self.find(consumer))
    }

    fn subscribe(&mut self, new: &NewSubscription) -> Result<Option<Moved>> {
        let NewSubscription { consumer, handler_cmd, filter, cwd, options, from, replace } = new.clone();
        let state = match self.subscriptions.get(&consumer) {
            None => RunState::default(),
            Some(before) if replace && new.is_like(before) => {
                return from.map(|id| self.move_cursor(&consumer, id, Move::Seek)).transpose();
            }
            Some(before) if replace && new.adjusts(before) => {
                if let Some(ledger) = self.ledgers.get_mut(&consumer) {
                    let claims = ledger.claims().clone();
                    *ledger = Ledger::new(ledger.cursor(), ledger.finished(), None, claims);
                }
                if let Some(subscription) = self.subscriptions.get_mut(&consumer) {
                    subscription.options = options;
                    subscription.state = subscription.state.adjusted();
                    subscription.revision += 1;
                }
                return from.map(|id| self.move_cursor(&consumer, id, Move::Seek)).transpose();
            }
            Some(before) if replace => {
                if let Some(ledger) = self.ledgers.get_mut(&consumer) {
                    *ledger = Ledger::new(ledger.cursor(), ledger.finished(), None, None);
                }
                before.state.replaced()
            }
            Some(_) => return Err(Error::AlreadySubscribed(consumer)),
        };
        self.tokens += 1;
        let subscription = Subscription {
            consumer: consumer.clone(),
            handler_cmd,
            filter,
            cwd,
            token: self.tokens.to_string(),
            revision: 0,
            watermark: None,
            filter_errors: 0,
            filter_error_id: 0,
            options,
            state,
            dead: 0,
            dead_to_retry: 0,
            last_acked_id: 0,
            rewinds: 0,
            updated_at: None,
            held_by: None,
            ran_on: None,
            elsewhere: Vec::new(),
            leases: Vec::new(),
        };
        self.subscriptions.insert(consumer.clone(), subscription);
        from.map(|id| self.move_cursor(&consumer, id, Move::Seek)).transpose()
    }

    fn unsubscribe(&mut self, consumer: &ConsumerId) -> Result<Subscription> {
        let removed = self.find(consumer).ok_or_else(|| Error::UnknownConsumer(consumer.clone()))?;
        self.subscriptions.remove(consumer);
        if let Some(ledger) = self.ledgers.get_mut(consumer) {
            *ledger = Ledger::new(ledger.cursor(), ledger.finished(), None, None);
        }
        Ok(removed)
    }

    fn move_cursor(&mut self, consumer: &ConsumerId, id: i64, how: Move) -> Result<Moved> {
        let Some(subscription) = self.subscriptions.get_mut(consumer) else {
            return Err(Error::UnknownConsumer(consumer.clone()));
        };
        let at = self.cursors.get(consumer).map_or(0, |(at, _)| *at);
        let target = id.max(0).min(self.newest);
        if target < at && how == Move::Acknowledge {
            return Ok(Moved::Ahead(at));
        }
        if target < at {
            subscription.rewinds += 1;
        }
        if target != at {
            self.cursors.insert(consumer.clone(), (target, time::now()));
        }
        if how == Move::Seek {
            self.ledgers.remove(consumer);
        }
        if how == Move::Seek && subscription.options.finishes_singly() {
            subscription.rewinds += 1;
            subscription.revision += 1;
        }
        Ok(if target < id { Moved::Clamped(target) } else { Moved::To(target) })
    }

    fn acknowledge(&mut self, consumer: &ConsumerId, id: i64, matching: Option<&[i64]>) -> Result<Moved> {
        let before = self.cursors.get(consumer).map_or(0, |(at, _)| *at);
        let moved = self.move_cursor(consumer, id, Move::Acknowledge)?;
        let mut figures = Figures::default();
        figures.handled(count_passed(before, moved, matching), None);
        self.figures.push(Counted::now(consumer, figures));
        Ok(moved)
    }

    fn update_run(&mut self, seen: &Subscription, update: &RunUpdate) -> Result<Option<Subscription>> {
        let consumer = &seen.consumer;
        let facts = |s: &Subscription| (s.revision, s.last_acked_id, s.rewinds, s.dead_to_retry);
        let current = self.find(consumer);
        if !current.is_some_and(|current| current.is_same(seen) && facts(&current) == facts(seen)) {
            return Ok(None);
        }
        if let Some(change) = &update.step
            && !self.change_step(change)?
        {
            return Ok(None);
        }
        if let Some(subscription) = self.subscriptions.get_mut(consumer) {
            subscription.state = update.state.clone();
            subscription.revision += 1;
        }
        for change in &update.dead_letters {
            self.update_dead_letter(consumer, change);
        }
        for run in &update.runs {
            let runs = self.runs.entry(consumer.clone()).or_default();
            let number = runs.last().map_or(1, |last| last.number + 1);
            runs.push(Run { number, ..run.clone() });
            runs.drain(..runs.len().saturating_sub(RUNS_KEPT));
        }
        if let Some((at, figures)) = &update.figures {
            self.figures.push(Counted::of(consumer, *at, figures.clone()));
        }
        if update.cancel_retries {
            let own = self.dead_letters.values_mut().filter(|dead| dead.consumer == *consumer);
            own.for_each(|dead| dead.retry = false);
        }
        if let Some(id) = update.acknowledge {
            self.move_cursor(consumer, id, Move::Acknowledge)?;
        }
        if seen.options.finishes_singly() {
            let mut ledger = self.ledger(consumer)?;
            update.ledger.iter().for_each(|change| ledger.apply(change));
            self.move_cursor(consumer, ledger.cursor(), Move::Acknowledge)?;
            self.ledgers.insert(consumer.clone(), ledger);
        }
        Ok(self.find(consumer))
    }

    fn ledger(&mut self, consumer: &ConsumerId) -> Result<Ledger> {
        let cursor = self.cursors.get(consumer).map_or(0, |(at, _)| *at);
        let kept = self.ledgers.get(consumer).cloned().unwrap_or_default();
        Ok(Ledger::new(cursor, kept.finished(), kept.waits().clone(), kept.claims().clone()))
    }

    fn runs(&mut self, consumer: &ConsumerId, most: usize) -> Result<Vec<Run>> {
        let runs = self.runs.get(consumer).map_or(&[][..], Vec::as_slice);
        let newest = &runs[runs.len().saturating_sub(most)..];
        Ok(newest.iter().map(|run| Run { tail: None, ..run.clone() }).collect())
    }

    fn run(&mut self, consumer: &ConsumerId, number: i64) -> Result<Option<Run>> {
        Ok(self.runs.get(consumer).and_then(|runs| runs.iter().find(|run| run.number == number)).cloned())
    }

    fn remember_scan(&mut self, seen: &Subscription, upto: i64, failures: &[FilterFailure]) -> Result<usize> {
        let cursor = seen.last_acked_id;
        let current = self.subscriptions.get_mut(&seen.consumer).filter(|now| now.token == seen.token);
        let Some(current) = current else { return Ok(failures.len()) };
        if let Some(text) = seen.filter_text() {
            // Extends the known watermark if there is no gap.
            let known = seen
                .watermark
                .as_ref()
                .filter(|mark| mark.filter == text && mark.from <= cursor && mark.upto >= cursor);
            let from = known.map_or(cursor, |mark| mark.from);
            current.watermark = Some(ScanWatermark { filter: text.to_owned(), from, upto });
        }
        let count = failures.iter().filter(|failure| failure.id > current.filter_error_id).count();
        current.filter_errors += count as i64;
        let newest = failures.last().map_or(0, |failure| failure.id);
        current.filter_error_id = current.filter_error_id.max(newest);
        Ok(count)
    }

    fn read_dead_letters(
        &mut self,
        consumer: Option<&ConsumerId>,
        take: &mut dyn FnMut(DeadLetter) -> ControlFlow<()>,
    ) -> Result<()> {
        let wanted = |dead: &&DeadLetter| consumer.is_none_or(|consumer| dead.consumer == *consumer);
        let _ = self.dead_letters.values().filter(wanted).cloned().try_for_each(take);
        Ok(())
    }

    fn retry_dead_letters(&mut self, consumer: &ConsumerId, events: Option<&[i64]>) -> Result<usize> {
        let mut marked = 0;
        for dead in self.dead_letters.values_mut().filter(|dead| dead.consumer == *consumer) {
            if events.is_none_or(|events| events.contains(&dead.event_id)) {
                dead.retry = true;
                marked += 1;
            }
        }
        Ok(marked)
    }

    fn discard_dead_letters(&mut self, consumer: &ConsumerId, events: Option<&[i64]>) -> Result<usize> {
        let before = self.dead_letters.len();
        self.dead_letters
            .retain(|(of, id), _| of != consumer || events.is_some_and(|events| !events.contains(id)));
        Ok(before - self.dead_letters.len())
    }

    fn has_steps(&mut self) -> Result<bool> {
        Ok(!self.steps.is_empty())
    }

    fn read_steps(&mut self, of: StepsOf<'_>, take: &mut dyn FnMut(Step) -> ControlFlow<()>) -> Result<()> {
        let is_wanted = |(step, _): &&(Step, Option<Time>)| {
            of.consumer.is_none_or(|consumer| step.consumer == *consumer)
                && of.event.is_none_or(|event| step.event_id == event)
                && of.name.is_none_or(|name| step.name == name)
                && (!of.only_awaits || step.awaits())
        };
        let mut wanted: Vec<Step> =
            self.steps.iter().filter(is_wanted).map(|(step, _)| step.clone()).collect();
        wanted.sort_by(|a, b| (&a.consumer, a.event_id).cmp(&(&b.consumer, b.event_id)));
        let without =
            |step: Step| Step { result: if of.with_results { step.result } else { Vec::new() }, ..step };
        let _ = wanted.into_iter().map(without).try_for_each(take);
        Ok(())
    }

    fn change_step(&mut self, change: &StepChange) -> Result<bool> {
        let id = change.event_id;
        if let Some(token) = &change.claim {
            let ledger = self.ledger(&change.consumer)?;
            let taken = ledger.claims().get(&id).and_then(|claim| claim.taken.as_ref());
            if taken.is_none_or(|taken| taken.token != *token) {
                return Err(Error::ClaimOver { id });
            }
        }
        let is_it = |(step, _): &(Step, Option<Time>)| {
            step.consumer == change.consumer && step.event_id == id && step.name == change.name
        };
        let at = self.steps.iter().position(is_it);
        if at.map(|at| self.steps[at].0.revision) != change.seen {
            return Ok(false);
        }
        let revision = change.seen.unwrap_or(0) + 1;
        match (at, change.to.clone()) {
            (Some(at), Some(to)) => self.steps[at] = (Step { revision, ..to }, None),
            (None, Some(to)) => self.steps.push((Step { revision, ..to }, None)),
            (Some(at), None) => drop(self.steps.remove(at)),
            (None, None) => {}
        }
        Ok(true)
    }

    fn forget_steps(&mut self, now: Time, before: Time, _most: usize) -> Result<(u64, bool)> {
        let (ledgers, mut kept) = (&self.ledgers, Vec::new());
        let count = self.steps.len();
        for (step, over) in std::mem::take(&mut self.steps) {
            let cursor = self.cursors.get(&step.consumer).map_or(0, |(at, _)| *at);
            let ledger = ledgers.get(&step.consumer).cloned().unwrap_or_default();
            let is_done = step.event_id <= cursor || ledger.finished_upto(step.event_id).is_some();
            let is_dead = self.dead_letters.contains_key(&(step.consumer.clone(), step.event_id));
            let is_finished = !self.subscriptions.contains_key(&step.consumer) || (is_done && !is_dead);
            let over = is_finished.then(|| over.unwrap_or(now));
            if over.is_none_or(|over| over >= before) {
                kept.push((step, over));
            }
        }
        self.steps = kept;
        Ok(((count - self.steps.len()) as u64, false))
    }

    fn has_figures(&mut self) -> Result<bool> {
        Ok(!self.figures.is_empty())
    }

    fn figures(&mut self, from: i64) -> Result<Vec<Counted>> {
        Ok(self.figures.iter().filter(|one| one.at >= from).cloned().collect())
    }

    /// Minutes may stay as they are.
    fn merge_figures(&mut self, now: Time, _most: usize) -> Result<bool> {
        self.figures.retain(|one| one.at >= oldest_hour(now).timestamp());
        Ok(false)
    }

    fn config(&mut self) -> Result<BTreeMap<String, String>> {
        Ok(self.config.clone())
    }

    fn set_config(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        let before = match value {
            Some(value) => self.config.insert(name.to_owned(), value.to_owned()),
            None => self.config.remove(name),
        };
        Ok(before.is_some())
    }

    fn prune(&mut self, range: &PruneRange<'_>) -> Result<PruneStep> {
        let (after, upto) = (range.after, range.upto);
        if let (false, Some(seen)) = (range.dry_run, range.seen) {
            let wants_no_more = |now: &Subscription, then: &Subscription| {
                then.consumer == now.consumer
                    && then.filter == now.filter
                    && then.last_acked_id <= now.last_acked_id
            };
            let overtaken = self
                .subscriptions()?
                .iter()
                .any(|now| now.last_acked_id < upto && !seen.iter().any(|then| wants_no_more(now, then)));
            if overtaken {
                return Ok(PruneStep::Overtaken);
            }
        }
        let (mut pruned, mut deleted) = (Pruned::default(), Deleted::default());
        let dead: Vec<i64> = self.dead_letters.keys().map(|(_, id)| *id).collect();
        self.events.retain(|&id, event| {
            let subtype = range.subtype.is_none_or(|wanted| event.subtype.as_deref() == Some(wanted));
            if id <= after || id > upto || !subtype {
                return true;
            }
            pruned.dead_letters += u64::from(dead.contains(&id));
            if dead.contains(&id) && !range.dead_letters {
                return true;
            }
            pruned.events += 1;
            pruned.bytes += (event.content.len() + event.metadata.as_ref().map_or(0, String::len)) as u64;
            if !range.dry_run {
                deleted.add(id, &event.created_at);
            }
            range.dry_run
        });
        self.figures.extend(deleted.counted());
        self.dead_letters.retain(|(_, id), _| self.events.contains_key(id));
        self.drop_keys();
        Ok(PruneStep::Upto(upto.max(after), pruned))
    }

    fn scheduled(&mut self, after: Option<(Time, ScheduledId)>, most: usize) -> Result<Vec<ScheduledEvent>> {
        let later = self.scheduled.iter().filter(|(at, _)| after.is_none_or(|after| **at > after));
        Ok(later.take(most).map(|(_, one)| one.clone()).collect())
    }

    fn count_scheduled(&mut self) -> Result<u64> {
        Ok(self.scheduled.len() as u64)
    }

    fn cancel_scheduled(&mut self, id: ScheduledId) -> Result<bool> {
        let before = self.scheduled.len();
        self.scheduled.retain(|_, one| one.id != id);
        Ok(self.scheduled.len() < before)
    }

    fn next_scheduled(&mut self) -> Result<Option<NextDue>> {
        if self.newest_scheduled == 0 && self.schedules.is_empty() {
            return Ok(None);
        }
        let next = NextDue { now: Utc::now(), at: None, delayed: None };
        Ok(Some(self.scheduled.values().fold(next, |next, one| next.and(one.due, one.delay))))
    }

    fn make_scheduled(&mut self, which: Which, most: usize) -> Result<Appended> {
        let is_wanted = |one: &ScheduledEvent| match which {
            Which::Upto(time) => one.due <= time,
            Which::Delayed(time) => one.due <= time && one.delay.is_some(),
            Which::One(id) => one.id == id,
        };
        let wanted: Vec<_> =
            self.scheduled.values().filter(|one| is_wanted(one)).take(most).cloned().collect();
        let mut appended = Appended { created_at: time::now(), ..Appended::default() };
        for one in wanted {
            self.scheduled.remove(&(one.due, one.id));
            self.put(&one.event, &appended.created_at)?;
            if let Some(key) = one.key {
                self.keys.insert(key, self.newest);
            }
            appended.count += 1;
            appended.first_id.get_or_insert(self.newest);
            appended.last_id = Some(self.newest);
        }
        Ok(appended)
    }

    fn schedules(&mut self) -> Result<Vec<Schedule>> {
        Ok(self.schedules.values().cloned().collect())
    }

    fn change_schedule(
        &mut self,
        name: &str,
        seen: Option<&Schedule>,
        to: Option<&Schedule>,
        events: &[NewEvent<'_>],
    ) -> Result<Option<Appended>> {
        let revision = self.schedules.get(name).map(|now| now.revision);
        if revision != seen.map(|seen| seen.revision) {
            return Ok(None);
        }
        self.schedules.remove(name);
        if let Some(to) = to {
            let revision = revision.unwrap_or(0) + 1;
            self.schedules
                .insert(name.to_owned(), Schedule { name: name.to_owned(), revision, ..to.clone() });
        }
        self.append(&mut |put| put(events).map(drop)).map(Some)
    }

    /// Constant, because there is no other connection.
    fn changes(&mut self) -> Result<i64> {
        Ok(0)
    }
}
