//! What people do about consumers, with the functions that the command line uses.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use thread::files::log::Level;
use thread::model::event::NewEvent;
use thread::model::exponential_backoff::ExponentialBackoff;
use thread::model::position::Position;
use thread::model::run::StopRequest;
use thread::model::scheduled::ScheduledId;
use thread::model::subscription::ConsumerId;
use thread::model::time;
use thread::run::due::attend_to_scheduled;
use thread::run::stop::{Stopped, Stopping};
use thread::run::{control, steps, wake};
use thread::{Error, Queue};
use thread_sessions::{Kind, RequestError, Result};

use super::dead::Meant;
use super::dto::{Cancelled, Consumer, Discarded, Pushed, Retried};
use super::threads::{Target, ThreadId};
use super::{Inspector, state};

/// How often to look whether a run has ended that is being stopped: at first, and later.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Something that is done to a consumer.
#[derive(Debug, Clone)]
pub enum Verb {
    Pause,
    Resume,
    /// Only end the wait of this event.
    ResumeEvent(i64),
    Seek(Position),
    /// Give this finished event again.
    Redo(i64),
    /// Remove a step of this event, so that it is done again.
    ForgetStep(i64, String),
}

impl Inspector {
    /// Applies an action to a consumer. Returns its state afterwards.
    ///
    /// # Errors
    ///
    /// There is no such consumer; errors of the thread.
    pub fn act(&self, queue: &mut Queue, consumer: &ConsumerId, verb: &Verb) -> Result<Consumer> {
        let subscription = queue.subscription(consumer)?;
        match verb {
            Verb::Pause => {
                control::pause(queue, consumer)?;
                queue.log(Level::Info, format_args!("pause: consumer={consumer}"));
            }
            Verb::Resume => {
                control::resume(queue, consumer)?;
                queue.log(Level::Info, format_args!("resume: consumer={consumer}"));
                self.wake(queue, consumer);
            }
            Verb::ResumeEvent(id) => {
                if !subscription.options.finishes_singly() {
                    let what = format!("'{consumer}' acknowledges everything up to one event");
                    return Err(RequestError::NotNow(format!("{what}; resume the consumer")));
                }
                control::resume_event(queue, consumer, *id)?;
                queue.log(Level::Info, format_args!("resume: consumer={consumer} id={id}"));
                self.wake(queue, consumer);
            }
            Verb::Seek(to) => {
                queue.seek(consumer, *to)?;
                self.wake(queue, consumer);
            }
            Verb::Redo(id) => {
                control::redo(queue, consumer, &[*id])?;
                queue.log(Level::Info, format_args!("redo: consumer={consumer} count=1"));
                self.wake(queue, consumer);
            }
            Verb::ForgetStep(event, name) => {
                steps::forget(queue, steps::Of { consumer, event: *event, claim: None }, name)?;
            }
        }
        state::consumer(queue, consumer)
    }

    /// Ends a consumer's run or wait. Returns its state afterwards. Waiting takes no thread and no turn: it polls.
    ///
    /// # Errors
    ///
    /// There is no such consumer; there is nothing to stop; errors of the thread.
    pub async fn stop(
        self: &Arc<Inspector>,
        id: &str,
        consumer: ConsumerId,
        request: StopRequest,
    ) -> Result<Consumer> {
        let id = self.threads.parse(id)?;
        let stopping = Arc::default();
        let stopped = match self.step(&id, &consumer, request, &stopping).await? {
            Some(stopped) => stopped,
            None => {
                let turn = self.stops.turn((id.clone(), consumer.clone())).await;
                let (inspector, id, consumer) = (self.clone(), id.clone(), consumer.clone());
                // Even if the client leaves: a run that has lost its supervisor is ended from here.
                let waiting = tokio::spawn(async move {
                    let _turn = turn;
                    let mut backoff = ExponentialBackoff::new(FIRST_LOOK, LOOK_EVERY);
                    loop {
                        tokio::time::sleep(backoff.pause()).await;
                        match inspector.step(&id, &consumer, request, &stopping).await {
                            Ok(None) | Err(RequestError::Locked) => {}
                            done => return done,
                        }
                    }
                });
                // It fails only if it panicked, which was reported on stderr.
                let failed = |_| RequestError::Failed("the gateway could not do this".into());
                waiting.await.map_err(failed)??.unwrap_or(Stopped::Done)
            }
        };
        if stopped == Stopped::NothingToStop {
            let what = format!("the consumer '{consumer}' is not running or waiting");
            return Err(RequestError::NotNow(format!("{what}; to keep it from being started, pause it")));
        }
        self.at_thread(&id, Kind::Read, move |_, _, queue| state::consumer(queue, &consumer)).await
    }

    /// Requests a stop, or checks on it.
    async fn step(
        self: &Arc<Inspector>,
        id: &ThreadId,
        consumer: &ConsumerId,
        request: StopRequest,
        stopping: &Arc<Mutex<Option<Stopping>>>,
    ) -> Result<Option<Stopped>> {
        let (consumer, stopping) = (consumer.clone(), stopping.clone());
        let step = move |_: &Inspector, _: &Target, queue: &mut Queue| {
            let mut stopping = stopping.lock().unwrap_or_else(PoisonError::into_inner);
            let stopping = match &mut *stopping {
                Some(known) => known,
                new => {
                    let stopping = Stopping::new(queue, &consumer, request)?;
                    let skip = if request.skip { " skip" } else { "" };
                    queue.log(
                        Level::Info,
                        format_args!("stop: consumer={consumer} signal={}{skip}", request.signal),
                    );
                    new.insert(stopping)
                }
            };
            Ok(stopping.step(queue)?)
        };
        self.at_thread(id, Kind::Write, step).await
    }

    /// Marks dead letters for another delivery, and wakes the consumer.
    ///
    /// # Errors
    ///
    /// There is no such consumer, or no such dead letter; the consumer pops for itself; errors of the thread.
    pub fn retry(&self, queue: &mut Queue, consumer: &ConsumerId, meant: &Meant) -> Result<Retried> {
        if !queue.subscription(consumer)?.options.retries_dead_letters() {
            let what =
                format!("the consumer '{consumer}' pops for itself, so nothing can be delivered to it again");
            let fix = "`thread unsubscribe` it and subscribe it with --deliver stdin";
            return Err(RequestError::NotNow(format!("{what}; {fix}")));
        }
        let events = meant.events(queue, consumer)?;
        let retried = queue.retry_dead_letters(consumer, events.as_deref())?;
        self.wake(queue, consumer);
        Ok(Retried { consumer: consumer.as_str().to_owned(), retried })
    }

    /// Forgets dead letters; the events stay.
    ///
    /// # Errors
    ///
    /// There is no such dead letter; errors of the thread.
    pub fn discard(&self, queue: &mut Queue, consumer: &ConsumerId, meant: &Meant) -> Result<Discarded> {
        let events = meant.events(queue, consumer)?;
        let discarded = queue.discard_dead_letters(consumer, events.as_deref())?;
        // Dead letters outlive their subscription.
        if discarded == 0 && queue.find_subscription(consumer)?.is_none() {
            return Err(RequestError::Thread(Error::UnknownConsumer(consumer.clone())));
        }
        Ok(Discarded { consumer: consumer.as_str().to_owned(), discarded })
    }

    /// Stores an event, and wakes the consumers.
    ///
    /// # Errors
    ///
    /// The key belongs to another event; errors of the thread. Then nothing is stored.
    pub fn push(&self, queue: &mut Queue, event: &NewEvent<'_>) -> Result<Pushed> {
        let pushed = thread::run::push(queue, &self.launcher, event)?;
        let (scheduled, scheduled_at) =
            pushed.scheduled.map(|(id, at)| (id.to_string(), time::format(at))).unzip();
        let (id, created_at, deduplicated) = (pushed.id, pushed.created_at, pushed.repeated);
        Ok(Pushed { id, created_at, deduplicated, scheduled, scheduled_at })
    }

    /// Forgets a scheduled event.
    ///
    /// # Errors
    ///
    /// It is not there; errors of the thread.
    pub fn cancel_scheduled(&self, queue: &mut Queue, id: ScheduledId) -> Result<Cancelled> {
        if !queue.cancel_scheduled(id)? {
            return Err(not_scheduled(id));
        }
        self.attend(queue);
        Ok(Cancelled { scheduled: id.to_string() })
    }

    /// Makes a scheduled event an event now, and wakes the consumers.
    ///
    /// # Errors
    ///
    /// It is not there; errors of the thread.
    pub fn make_scheduled_now(&self, queue: &mut Queue, id: ScheduledId) -> Result<Pushed> {
        let made = queue.make_scheduled_now(id)?;
        let event = made.last_id.ok_or_else(|| not_scheduled(id))?;
        let stored = queue.event(event)?;
        let source = stored.as_ref().map(|event| event.source.clone()).unwrap_or_default();
        thread::run::finish(queue, &self.launcher, &source, &mut |_| {});
        self.attend(queue);
        let created_at = stored.map(|event| event.created_at).unwrap_or_default();
        Ok(Pushed { id: event, created_at, ..Pushed::default() })
    }

    /// Whoever waits for what is due next has to look again. If this fails, the change is kept.
    fn attend(&self, queue: &mut Queue) {
        if let Err(e) = attend_to_scheduled(queue, &self.launcher) {
            queue.log(Level::Warn, format_args!("scheduled: nobody attends to what is scheduled: {e}"));
        }
    }

    /// If this fails, the change is kept: the next push or dispatch starts the consumer.
    fn wake(&self, queue: &mut Queue, consumer: &ConsumerId) {
        if let Err(e) = wake::wake_consumer(queue, &self.launcher, consumer) {
            queue.log(Level::Warn, format_args!("wake: consumer={consumer} not woken: {e}"));
        }
    }
}

fn not_scheduled(id: ScheduledId) -> RequestError {
    RequestError::Unknown(format!("there is no scheduled event {id}; it may have become an event"))
}
