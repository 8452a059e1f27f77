//! Who may come in: by token, by origin, by host, and how often one may be wrong.

pub mod origin;
pub mod peer;
pub mod throttle;
pub mod token;
