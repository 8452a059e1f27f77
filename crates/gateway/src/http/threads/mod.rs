//! `/api/v1/threads`: looking at threads, for the page and for other programs.

mod error;
mod read;
mod sse;
mod write;

pub use error::ApiError;

use std::sync::Arc;

use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::gateway::Gateway;

/// The routes, and their description.
pub fn routes() -> OpenApiRouter<Arc<Gateway>> {
    OpenApiRouter::new()
        .routes(routes!(read::list))
        .routes(routes!(read::thread))
        .routes(routes!(read::events))
        .routes(routes!(read::event))
        .routes(routes!(read::trace))
        .routes(routes!(read::content))
        .routes(routes!(read::runs))
        .routes(routes!(read::run))
        .routes(routes!(read::series))
        .routes(routes!(read::dead))
        .routes(routes!(sse::watch_list))
        .routes(routes!(sse::watch))
        .routes(routes!(sse::stream))
        .routes(routes!(write::push))
        .routes(routes!(write::cancel_scheduled))
        .routes(routes!(write::make_scheduled_now))
        .routes(routes!(write::retry))
        .routes(routes!(write::discard))
        .routes(routes!(write::pause))
        .routes(routes!(write::resume))
        .routes(routes!(write::stop))
        .routes(routes!(write::seek))
        .routes(routes!(write::redo))
        .routes(routes!(write::forget_step))
}

/// A thread in the path of a request, for the description.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only described")]
struct ThreadPath {
    /// Its id in the list
    thread: String,
}
