//! The process that asks a model.

use std::io::{BufRead, Write};

use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::ask::ask;
use super::{Heard, Order, Reply};

/// Handles orders from stdin until it is closed.
///
/// # Errors
///
/// There is no runtime, or stdout is closed.
pub fn serve() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (send, mut orders) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let Ok(order) = serde_json::from_str::<Order>(&line) else { continue };
            if send.send(order).is_err() {
                return;
            }
        }
    });
    runtime.block_on(async {
        let mut next = orders.recv().await;
        while let Some(order) = next {
            next = follow(order, &mut orders).await?;
        }
        Ok(())
    })
}

/// Follows an order, and returns the next one.
async fn follow(order: Order, orders: &mut UnboundedReceiver<Order>) -> std::io::Result<Option<Order>> {
    let Order::Ask { id, endpoint, model, messages } = order else { return Ok(orders.recv().await) };
    let say = |heard| write(&Reply { id, heard });
    let mut written = Ok(());
    let mut hear = |heard| {
        if written.is_ok() {
            written = say(heard);
        }
    };
    let next = tokio::select! {
        turn = ask(&endpoint, &model, &messages, &Value::Null, &mut hear) => {
            say(turn.map_or_else(Heard::Failed, Heard::Turn))?;
            None
        }
        next = orders.recv() => {
            // Without one the adapter is gone.
            if next.is_some() {
                say(Heard::Stopped)?;
            }
            Some(next)
        }
    };
    written?;
    match next {
        Some(next) => Ok(next),
        None => Ok(orders.recv().await),
    }
}

fn write(reply: &Reply) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}
