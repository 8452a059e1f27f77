//! What all sessions share.

use std::sync::Arc;

use thread_sessions::{ChangeWatcher, Root};

use super::blocking_pool::BlockingPool;
use super::budget::Budget;
use crate::storage::Storage;

/// What all sessions share.
pub struct Context {
    pub root: Arc<Root>,
    pub storage: Arc<Storage>,
    pub watcher: Arc<ChangeWatcher>,
    pub pool: BlockingPool,
    pub budget: Budget,
}
