//! Access control: tokens, origins, host names, and throttling after wrong tokens.

pub mod origin;
pub mod peer;
pub mod throttle;
pub mod token;
