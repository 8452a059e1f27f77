//! Reading the events of a session, the large ones without their content.

use std::ops::ControlFlow;

use thread::model::event::CappedRow;
use thread::model::filter::Scope;
use thread::queue::{Remaining, Selection};
use thread::{Event, Filter, Queue};

use crate::error::Result;

/// An event whose content is longer is not read, unless it ends a run: it is shown with its size. In bytes.
pub const LARGE: u64 = 1024 * 1024;

/// Whether an event matches a filter (`None` matches all); `None` if the whole event is needed to decide.
pub fn matches_capped(filter: Option<&Filter>, capped: &CappedRow<'_>) -> Option<bool> {
    let Some(filter) = filter else { return Some(true) };
    capped.is_whole().then(|| filter.matches(&capped.row).unwrap_or(false))
}

/// Whether a stored event matches a filter, as the adapter finds it; `capped` is what [`matches_capped`] says.
///
/// # Errors
///
/// Errors of the thread.
pub fn matches(queue: &mut Queue, filter: Option<&Filter>, id: i64, capped: Option<bool>) -> Result<bool> {
    match (capped, filter) {
        (Some(matches), _) => Ok(matches),
        (None, Some(filter)) => Ok(queue.matches(id, filter)?),
        (None, None) => Ok(true),
    }
}

/// Reads all events after an id that match a condition, the long ones without their content, and for each
/// whether it matches a filter (`None` matches all). Returns the id up to which it has read.
///
/// # Errors
///
/// Errors of the thread; a condition that is no filter; errors of `note`.
pub fn for_each(
    queue: &mut Queue,
    after: i64,
    condition: &str,
    filter: Option<&Filter>,
    note: &mut dyn FnMut(&mut Queue, Event, bool) -> Result<()>,
) -> Result<i64> {
    let condition = Filter::new(condition, Scope::Reading)?;
    let mut selection = Selection { after, limit: None, filter: condition };
    loop {
        let mut page = Vec::new();
        let remaining = queue.read_page_capped(&mut selection, LARGE, &mut |capped| {
            page.push((capped.row.to_event(), matches_capped(filter, &capped)));
            ControlFlow::Continue(())
        })?;
        for (event, is_pending) in page {
            let is_pending = matches(queue, filter, event.id, is_pending)?;
            note(queue, event, is_pending)?;
        }
        if remaining == Remaining::None {
            return Ok(selection.after);
        }
    }
}
