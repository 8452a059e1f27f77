//! The event that a client names.

use thread::model::filter::Scope;
use thread::{Filter, Queue};
use thread_protocol::method::MessageRef;
use thread_sessions::excerpt::echoed;
use thread_sessions::{RequestError, Result};

/// The id of the event for a `seq` or the id of a message.
///
/// # Errors
///
/// There is no such message.
pub fn seq_of(queue: &mut Queue, message: &MessageRef) -> Result<i64> {
    let unknown = |id: &str| RequestError::BadParams(format!("there is no message '{}'", echoed(id)));
    match message {
        MessageRef::Seq(seq) => Ok(i64::try_from(*seq).unwrap_or(i64::MAX)),
        MessageRef::Id(id) => {
            if let Some(seq) = id.strip_prefix("event_").and_then(|seq| seq.parse().ok()) {
                return Ok(seq);
            }
            let quoted = id.replace('\'', "''");
            let condition = format!("type = 'message' AND metadata ->> 'message_id' = '{quoted}'");
            let filter = Filter::new(&condition, Scope::Reading).map_err(|_| unknown(id))?;
            let found = queue.newest_matching(filter.as_ref(), i64::MAX, 1)?;
            found.first().copied().ok_or_else(|| unknown(id))
        }
    }
}
