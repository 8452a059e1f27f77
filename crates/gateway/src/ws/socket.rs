//! A WebSocket below the protocol: text in, text out, and an end that the client can read.
//!
//! The library allocates as much as a frame's header claims, and copies everything written. So a client that has
//! not shown a token yet may send little, and long texts are written in fragments: a connection that is not read
//! holds one fragment, and shares the text with all others.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{CloseFrame, Frame};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as WsError, Message, Utf8Bytes};

use thread_protocol::{Close, MAX_FRAME, MAX_FRAME_BEFORE_CONNECT, Malformed};

/// The longest frame that is written, in bytes.
const FRAGMENT: usize = 32 * 1024;

/// The longest head of a frame, in bytes.
const MAX_HEAD: usize = 14;

/// How long to wait for the client in each step of closing a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How many bytes still sent by the client are read and dropped when a connection is closed: a client reads the
/// reason only once it has sent its frame.
const MOST_DROPPED: usize = 64 * 1024 * 1024;

type Stream = WebSocketStream<Metered<TokioIo<Upgraded>>>;

/// How many bytes may still be read from a connection.
#[derive(Clone)]
pub struct Allowance(Arc<AtomicUsize>);

/// The reading half.
pub struct Reader {
    stream: SplitStream<Stream>,
    allowance: Allowance,
}

/// The writing half.
pub struct Writer {
    sink: SplitSink<Stream, Message>,
    /// Whether the last text was not written to its end.
    in_text: bool,
}

/// Why a connection ends.
#[derive(Debug)]
pub enum End {
    /// It is gone.
    Gone,
    Close(Close),
    /// A frame is not a request.
    Malformed(Malformed),
}

/// Takes over a connection that was upgraded to a WebSocket.
pub async fn open(upgraded: Upgraded) -> (Reader, Writer) {
    let allowance = Allowance(Arc::new(AtomicUsize::new(MAX_FRAME_BEFORE_CONNECT + MAX_HEAD)));
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_FRAME))
        .max_frame_size(Some(MAX_FRAME))
        // Allocated for the lifetime of each connection, and most connections are idle.
        .read_buffer_size(4 * 1024)
        .write_buffer_size(8 * 1024);
    let metered = Metered { stream: TokioIo::new(upgraded), left: allowance.clone() };
    let stream = WebSocketStream::from_raw_socket(metered, Role::Server, Some(config)).await;
    let (sink, stream) = stream.split();
    (Reader { stream, allowance }, Writer { sink, in_text: false })
}

impl Reader {
    /// Waits for the next frame: a text, or `None` for a ping or a pong. May be dropped at any time: nothing is lost.
    ///
    /// # Errors
    ///
    /// The connection is gone, or must be closed.
    pub async fn next(&mut self) -> Result<Option<Utf8Bytes>, End> {
        match self.stream.next().await {
            Some(Ok(Message::Text(text))) => Ok(Some(text)),
            Some(Ok(Message::Binary(_))) => Err(End::Close(Close::NotText)),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => Ok(None),
            Some(Ok(Message::Close(_))) => {
                // The library has an answer ready, which goes out with the next read.
                timeout(CLOSE_TIMEOUT, self.stream.next()).await.ok();
                Err(End::Gone)
            }
            None => Err(End::Gone),
            Some(Err(WsError::Capacity(_))) => Err(End::Close(Close::FrameTooBig)),
            Some(Err(WsError::Protocol(ProtocolError::ResetWithoutClosingHandshake))) => Err(End::Gone),
            Some(Err(WsError::Utf8(_) | WsError::Protocol(_))) => Err(End::Close(Close::Malformed)),
            Some(Err(WsError::Io(e))) if e.get_ref().is_some_and(|e| e.is::<OverAllowance>()) => {
                Err(End::Close(Close::FrameTooBig))
            }
            Some(Err(_)) => Err(End::Gone),
        }
    }

    /// Lets the client send frames of the full size.
    pub fn trust(&self) {
        self.allowance.0.store(usize::MAX, Ordering::Relaxed);
    }
}

impl Writer {
    /// Writes a text, but does not flush it. If it is dropped, the rest of the text is lost, and the
    /// connection can only be closed.
    pub async fn feed(&mut self, text: &Utf8Bytes) -> Result<(), WsError> {
        if text.len() <= FRAGMENT {
            return self.sink.feed(Message::Text(text.clone())).await;
        }
        let bytes: &tokio_tungstenite::tungstenite::Bytes = text.as_ref();
        let mut from = 0;
        self.in_text = true;
        while from < bytes.len() {
            let to = bytes.len().min(from + FRAGMENT);
            let code = OpCode::Data(if from == 0 { Data::Text } else { Data::Continue });
            let frame = Frame::message(bytes.slice(from..to), code, to == bytes.len());
            self.sink.feed(Message::Frame(frame)).await?;
            from = to;
        }
        self.in_text = false;
        Ok(())
    }

    pub async fn flush(&mut self) -> Result<(), WsError> {
        self.sink.flush().await
    }

    pub async fn ping(&mut self) -> Result<(), WsError> {
        self.sink.send(Message::Ping(Default::default())).await
    }
}

/// Closes a connection: writes the reason, after a last answer if there is one, then reads until the client
/// has closed it, too, in bounded time.
pub async fn close(reader: Reader, mut writer: Writer, answer: Option<Utf8Bytes>, why: Close) {
    let frame = CloseFrame { code: why.code().into(), reason: why.reason().into() };
    let closing = async {
        // Within a text that was not written to its end, only a close frame may follow.
        if let Some(answer) = answer.filter(|_| !writer.in_text) {
            writer.feed(&answer).await.ok();
        }
        writer.sink.send(Message::Close(Some(frame))).await.ok();
        reader.trust();
        // Below the protocol, because the rest of a refused frame is not a frame.
        let Ok(stream) = reader.stream.reunite(writer.sink) else { return };
        let mut stream = stream.into_inner();
        let (mut dropped, mut room) = (0, vec![0; 16 * 1024]);
        while dropped < MOST_DROPPED {
            match timeout(CLOSE_TIMEOUT, stream.read(&mut room)).await {
                Ok(Ok(n)) if n > 0 => dropped += n,
                _ => break,
            }
        }
        stream.shutdown().await.ok();
    };
    timeout(2 * CLOSE_TIMEOUT, closing).await.ok();
}

/// A stream with a limit on what is read.
struct Metered<S> {
    stream: S,
    left: Allowance,
}

/// More was sent than may be read.
#[derive(Debug, thiserror::Error)]
#[error("more was sent than is allowed")]
struct OverAllowance;

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = self.left.0.load(Ordering::Relaxed);
        if left == usize::MAX {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        if left == 0 {
            return Poll::Ready(Err(io::Error::other(OverAllowance)));
        }
        let mut part = buf.take(left);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut part))?;
        let read = part.filled().len();
        // SAFETY: `poll_read` has initialized the part that it reports as filled.
        unsafe { buf.assume_init(read) };
        buf.advance(read);
        // Unless the client has been trusted since.
        self.left.0.compare_exchange(left, left - read, Ordering::Relaxed, Ordering::Relaxed).ok();
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
