//! Executes a client's requests one after the other, and forwards its session's events between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;

use crate::actions::Reply;
use crate::client::Client;
use crate::error::RequestError;
use crate::log::log;
use crate::methods;
use crate::protocol::frame::{self, Request};

/// Executes requests and forwards events until the connection ends.
pub async fn serve(
    mut client: Client,
    mut requests: mpsc::UnboundedReceiver<Request>,
    unanswered: Arc<AtomicUsize>,
) {
    loop {
        tokio::select! {
            request = requests.recv() => {
                let Some(request) = request else { return };
                answer(&mut client, request).await;
                unanswered.fetch_sub(1, Ordering::Relaxed);
            }
            update = client.next() => match update {
                Some(update) => client.forward(update),
                // The follower dropped the client: its session is gone, or its backlog too large.
                None => client.leave(),
            },
        }
    }
}

async fn answer(client: &mut Client, request: Request) {
    let Request { id, method, params } = request;
    match methods::call(client, &id, &method, params).await {
        Ok(Reply { payload, then }) => {
            client.send(frame::response(&id, Ok(payload)));
            for frame in then {
                client.send(frame);
            }
        }
        Err(e) => {
            if let RequestError::Thread(_) | RequestError::Failed(_) = e {
                log(format_args!("{method}: {e}"));
            }
            client.send(frame::response(&id, Err(&e)));
        }
    }
}
