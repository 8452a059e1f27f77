//! What the gateway costs, compared with a bare echo and Redis in the same rounds: `cargo bench -p thread-gateway`.
//!
//! Measured by `figures.py`, a client that shares no code with the gateway. This program is what takes the times, since
//! Python is too slow for that: it pushes tokens and says when each was committed (`push`), and it is all clients
//! together and says when each token was read (`read`). It is also the echo that the gateway is compared with (`echo`).
//! All take a Python with `websockets` and `jsonschema_rs`, `redis-server`, and all programs of
//! the workspace built in the same profile: `cargo build --release --workspace`. `cargo bench -p thread-gateway -- one
//! list` measures these alone, of `one`, `hundred`, `sessions`, `list`, `idle`,
//! `conversations`, `unwatched`, `silent` and `disk`.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::routing::get;
use thread::{NewEvent, Queue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::broadcast;

type Done<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(|arg| &**arg).collect();
    let done = match &args[..] {
        ["echo"] => echo(),
        ["push", count, pause, threads @ ..] => push(count, pause, threads),
        ["say", port, count, pause] => say(port, count, pause),
        ["read", port, count, first @ ..] => read(port, count, first),
        _ => measure(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("Error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn measure(wanted: &[&str]) -> Done {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let serve = Path::new(env!("CARGO_BIN_EXE_thread-serve"));
    let python = thread_testkit::clients::python().map_err(|needs| format!("needs {needs}"))?;
    let status = Command::new(python)
        .arg(here.join("benches/figures.py"))
        .args(wanted.iter().filter(|arg| !arg.starts_with('-')))
        .env("THREAD_SERVE", serve)
        .env("THREAD_PROGRAM", serve.with_file_name("thread"))
        .env("DOCS", here.join("../../docs"))
        .env("FIGURES", std::env::current_exe()?)
        .status()?;
    if status.success() { Ok(()) } else { Err("figures.py has failed".into()) }
}

/// Nanoseconds since 1970, by the clock that all processes of a machine share.
fn now() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos()
}

/// The number at the beginning of a text.
fn number(text: &str) -> u64 {
    text.split(|c: char| !c.is_ascii_digit())
        .next()
        .and_then(|digits| digits.parse().ok())
        .unwrap_or_default()
}

/// Pushes `count` tokens to these threads in turn, `pause` milliseconds apart. Prints for each the thread's number, its
/// id, when its commit began, when the push was done, and how many nanoseconds the disk then took to sync a page.
fn push(count: &str, pause: &str, threads: &[&str]) -> Done {
    let mut queues = threads.iter().map(Queue::open).collect::<Result<Vec<_>, _>>()?;
    let beside = Path::new(threads[0]).join("run/_sync");
    let mut page = std::fs::File::create(&beside)?;
    let mut out = std::io::stdout().lock();
    for n in 0..number(count) as usize {
        let at = n % queues.len();
        let token = NewEvent::new("self", "record", Some("token".into()), format!("token {n}"))?
            .with_metadata(r#"{"run_id":"r","message_id":"m"}"#)?;
        let mut committing = 0;
        let pushed = queues[at].push_all(&mut |put| {
            put(std::slice::from_ref(&token))?;
            committing = now();
            Ok(())
        })?;
        let done = now();
        page.write_all(&[0; 4096])?;
        let began = Instant::now();
        page.sync_data()?;
        let sync = began.elapsed().as_nanos();
        writeln!(out, "{at} {} {committing} {done} {sync}", pushed.appended.last_id.unwrap_or_default())?;
        std::thread::sleep(Duration::from_millis(number(pause)));
    }
    Ok(std::fs::remove_file(beside)?)
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// A WebSocket with nothing around it, whose frames from here are masked with zeros.
struct Socket {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Socket {
    async fn open(port: &str) -> Done<Socket> {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).await?;
        stream.set_nodelay(true)?;
        let head = format!(
            "GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n\r\n") {
            read.push(stream.read_u8().await?);
        }
        read.clear();
        Ok(Socket { stream, read })
    }

    async fn send(&mut self, text: &str) -> Done {
        let length = u16::try_from(text.len())?;
        let frame = [&[0x81, 0x80 | 126], &length.to_be_bytes()[..], &[0; 4], text.as_bytes()].concat();
        Ok(self.stream.write_all(&frame).await?)
    }

    /// The next text frame, and when it was read.
    async fn next(&mut self) -> Done<(u128, String)> {
        let mut at = now();
        loop {
            if let Some((kind, from, to)) = self.frame() {
                let text = String::from_utf8_lossy(&self.read[from..to]).into_owned();
                self.read.drain(..to);
                match kind {
                    1 => return Ok((at, text)),
                    8 => return Err(format!("closed: {text}").into()),
                    _ => continue,
                }
            }
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err("the connection has ended".into());
            }
            at = now();
        }
    }

    /// The kind of the first frame that was read, and where its content is.
    fn frame(&self) -> Option<(u8, usize, usize)> {
        let read = &self.read;
        let (length, from) = match read.get(1)? & 0x7f {
            126 => (u16::from_be_bytes(read.get(2..4)?.try_into().ok()?) as usize, 4),
            127 => (u64::from_be_bytes(read.get(2..10)?.try_into().ok()?) as usize, 10),
            short => (short as usize, 2),
        };
        (read.len() >= from + length).then_some((read[0] & 0x0f, from, from + length))
    }
}

/// Is one client for each line of `first`, a line being the frames that it sends first, each of which is answered. Prints
/// `ready`, then waits until each has read `count` tokens, and prints for each of these the client's number, the id, and
/// when it was read.
fn read(port: &str, count: &str, first: &[&str]) -> Done {
    runtime()?.block_on(async {
        let mut sockets = Vec::new();
        for lines in first {
            let mut socket = Socket::open(port).await?;
            for line in lines.lines() {
                socket.send(line).await?;
                while !socket.next().await?.1.contains(r#""type":"res""#) {}
            }
            sockets.push(socket);
        }
        println!("ready");
        let count = number(count);
        let listening = sockets.into_iter().enumerate().map(|(n, mut socket)| {
            tokio::spawn(async move {
                let mut seen = Vec::new();
                while seen.len() < count as usize {
                    let (at, text) = socket.next().await?;
                    if let (true, Some((_, seq))) = (text.contains("token"), text.rsplit_once("\"seq\":")) {
                        seen.push((n, number(seq), at));
                    }
                }
                Done::Ok(seen)
            })
        });
        for seen in listening.collect::<Vec<_>>() {
            for (n, seq, at) in seen.await?? {
                println!("{n} {seq} {at}");
            }
        }
        Ok(())
    })
}

/// Sends `count` frames like tokens to the echo, `pause` milliseconds apart. Prints for each its id, and when it was sent.
fn say(port: &str, count: &str, pause: &str) -> Done {
    runtime()?.block_on(async {
        let mut socket = Socket::open(port).await?;
        for seq in 1..=number(count) {
            let sent = now();
            // About as long as the frame of a token.
            socket
                .send(&format!(r#"{{"event":"token","content":"{}","seq":{seq}}}"#, "x".repeat(150)))
                .await?;
            println!("0 {seq} {sent} {sent} 0");
            tokio::time::sleep(Duration::from_millis(number(pause))).await;
        }
        Ok(())
    })
}

/// A server that sends each frame to all clients, its sender included. Prints its port first.
fn echo() -> Done {
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
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(serve)?)
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
