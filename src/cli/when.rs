//! Points in time on the command line.

use chrono::Utc;

use crate::model::duration;
use crate::model::time::{self, Time};

/// Parses a time, or a duration as the time so long ago.
pub fn when(text: &str) -> Result<Time, String> {
    let wrong = || {
        format!(
            "'{text}' is neither a time like 2026-03-18T10:30:00Z or 2026-03-18 nor a duration like 90s, 1h or 2d"
        )
    };
    if let Some(time) = time::parse(text).or_else(|| time::parse(&format!("{text}T00:00:00Z"))) {
        return Ok(time);
    }
    let ago = duration::parse(text).map_err(|_| wrong())?;
    Ok(Utc::now() - ago)
}
