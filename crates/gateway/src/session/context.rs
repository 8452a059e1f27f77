//! What all sessions share.

use std::sync::Arc;

use thread_sessions::ChangeWatcher;

use super::blocking_pool::BlockingPool;
use super::budget::Budget;
use super::root::Root;
use crate::storage::Storage;

/// What all sessions share.
pub struct Context {
    pub root: Arc<Root>,
    pub storage: Arc<Storage>,
    pub watcher: Arc<ChangeWatcher>,
    pub pool: BlockingPool,
    pub budget: Budget,
}
