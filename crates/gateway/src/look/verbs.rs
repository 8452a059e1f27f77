//! What people do about consumers, with the functions that the command line uses.

use thread::files::log::Level;
use thread::model::event::NewEvent;
use thread::model::position::Position;
use thread::model::run::{Deliver, StopRequest};
use thread::model::subscription::ConsumerId;
use thread::run::stop::{Stopped, stop};
use thread::run::{control, wake};
use thread::{Error, Queue};

use super::Look;
use super::dead::Meant;
use super::form::{Consumer, Discarded, Pushed, Retried};
use super::state;
use crate::error::{RequestError, Result};

/// Something that is done to a consumer.
#[derive(Debug, Clone, Copy)]
pub enum Verb {
    Pause,
    Resume,
    Stop(StopRequest),
    Seek(Position),
}

impl Look {
    /// Does something to a consumer. Returns where it stands then.
    ///
    /// # Errors
    ///
    /// There is no such consumer; there is nothing to stop; errors of the thread.
    pub fn act(&self, queue: &mut Queue, consumer: &ConsumerId, verb: Verb) -> Result<Consumer> {
        queue.subscription(consumer)?;
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
            Verb::Stop(request) => {
                let skip = if request.skip { " skip" } else { "" };
                queue.log(
                    Level::Info,
                    format_args!("stop: consumer={consumer} signal={}{skip}", request.signal),
                );
                if stop(queue, consumer, request)? == Stopped::NothingToStop {
                    let what = format!("the consumer '{consumer}' is not running or waiting");
                    return Err(RequestError::NotNow(format!(
                        "{what}; to keep it from being started, pause it"
                    )));
                }
            }
            Verb::Seek(to) => {
                queue.seek(consumer, to)?;
                self.wake(queue, consumer);
            }
        }
        state::consumer(queue, consumer)
    }

    /// Marks dead letters for another delivery, and wakes the consumer.
    ///
    /// # Errors
    ///
    /// There is no such consumer, or no such dead letter; the consumer pops for itself; errors of the thread.
    pub fn retry(&self, queue: &mut Queue, consumer: &ConsumerId, meant: &Meant) -> Result<Retried> {
        if queue.subscription(consumer)?.options.deliver != Deliver::Stdin {
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
        Ok(Pushed { id: pushed.id, created_at: pushed.created_at, deduplicated: pushed.repeated })
    }

    /// What was done stays done if this fails: the next push or dispatch starts the consumer.
    fn wake(&self, queue: &mut Queue, consumer: &ConsumerId) {
        if let Err(e) = wake::wake_consumer(queue, &self.launcher, consumer) {
            queue.log(Level::Warn, format_args!("wake: consumer={consumer} not woken: {e}"));
        }
    }
}
