//! Subcommands that this program starts itself as.

use std::path::PathBuf;

use clap::Args;

use crate::error::Result;
use crate::rule::Cause;
use crate::subscription::ConsumerId;
use crate::{supervisor, wake};

#[derive(Args)]
pub struct Supervise {
    #[arg(long)]
    thread: PathBuf,
    #[arg(long, allow_hyphen_values = true)]
    consumer: String,
    #[arg(long)]
    lock_fd: i32,
    #[arg(long)]
    asked: bool,
}

impl Supervise {
    pub fn run(self) -> Result<()> {
        let cause = if self.asked { Cause::Asked } else { Cause::News };
        supervisor::run(&self.thread, &ConsumerId::stored(self.consumer), self.lock_fd, cause)
    }
}

#[derive(Args)]
pub struct AskAgain {
    #[arg(long)]
    thread: PathBuf,
    #[arg(long, allow_hyphen_values = true)]
    source: String,
    #[arg(long)]
    lock_fd: i32,
}

impl AskAgain {
    pub fn run(self) -> Result<()> {
        wake::ask_again(&self.thread, &self.source, self.lock_fd)
    }
}
