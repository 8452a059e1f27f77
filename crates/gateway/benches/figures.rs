//! What the gateway costs, compared with a bare echo and Redis in the same rounds: `cargo bench -p thread-gateway`.
//!
//! Measured by `figures.py`, a client that shares no code with the gateway; this program is the echo
//! that it compares with. It takes a Python with `websockets` and `jsonschema` (`GATEWAY_PYTHON` names
//! it), `redis-server`, and all programs of the workspace built in the same profile: `cargo build --release
//! --workspace`. `cargo bench -p thread-gateway -- one list` measures these alone, of `one`, `hundred`, `list`
//! and `idle`.

use std::path::Path;
use std::process::{Command, ExitCode};

use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::routing::get;
use tokio::sync::broadcast;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("echo") {
        return echo();
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let serve = Path::new(env!("CARGO_BIN_EXE_thread-serve"));
    let python = std::env::var("GATEWAY_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let measured = std::env::current_exe().and_then(|own| {
        Command::new(python)
            .arg(here.join("benches/figures.py"))
            .args(std::env::args().skip(1).filter(|arg| !arg.starts_with('-')))
            .env("THREAD_SERVE", serve)
            .env("THREAD_PROGRAM", serve.with_file_name("thread"))
            .env("DOCS", here.join("../../docs"))
            .env("ECHO", own)
            .status()
    });
    match measured {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("figures.py cannot be run: {e}");
            ExitCode::FAILURE
        }
    }
}

/// A server that sends each frame to all clients, its sender included. Prints its port first.
fn echo() -> ExitCode {
    let serve = async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?.port());
        let (everybody, _) = broadcast::channel(1024);
        let answer = move |upgrade: WebSocketUpgrade| {
            let everybody = everybody.clone();
            async { upgrade.on_upgrade(|socket| tell_everybody(socket, everybody)) }
        };
        axum::serve(listener, Router::new().route("/ws", get(answer))).await
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(serve)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("the echo cannot be served: {e}");
            ExitCode::FAILURE
        }
    }
}

async fn tell_everybody(mut socket: WebSocket, everybody: broadcast::Sender<Message>) {
    let mut told = everybody.subscribe();
    loop {
        let done = tokio::select! {
            Some(Ok(frame)) = socket.recv() => everybody.send(frame).is_ok(),
            Ok(frame) = told.recv() => socket.send(frame).await.is_ok(),
            else => false,
        };
        if !done {
            return;
        }
    }
}
