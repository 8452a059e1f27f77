//! Conversations for clients of OpenAI's interfaces: chat programs, editors, libraries.
//!
//! The sessions are the same as everywhere, and their threads the only truth. [`begin`] finds out which session a
//! request continues, and stores its message; [`pieces`] says what clients get of a run, and the printers give that the
//! form of chat completions or of responses.

mod asked;
mod attempt;
mod begin;
mod calls;
mod chat;
mod conversation;
mod error;
mod follow;
mod ids;
pub mod known;
mod matching;
mod models;
mod new_session;
mod path;
mod pieces;
mod responses;
mod text;

pub use chat::SESSION;
pub use error::{Body as ErrorBody, translated};

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::gateway::Gateway;

/// The largest request, in bytes: it has the whole conversation, with its files in base64.
const MAX: usize = 40 * 1024 * 1024;

/// The paths, with their descriptions.
pub fn routes() -> OpenApiRouter<Arc<Gateway>> {
    OpenApiRouter::new()
        .routes(routes!(models::list))
        .routes(routes!(models::one))
        .routes(routes!(chat::complete))
        .routes(routes!(responses::create))
        .routes(routes!(responses::get, responses::delete))
        .routes(routes!(responses::cancel))
        .layer(DefaultBodyLimit::max(MAX))
}
