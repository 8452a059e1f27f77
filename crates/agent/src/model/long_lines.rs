//! Lines of a server of tools that are too long to be kept in memory.
//!
//! A result of 100 MB is a line of 100 MB. It is read to its end, but only its beginning is kept, and becomes a result
//! that can be read: without one the call would never end.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use serde_json::{Value, json};
use tokio::io::{AsyncRead, ReadBuf};

/// The longest line that is passed on as it is, in bytes.
const LONGEST: usize = 8 * 1024 * 1024;

/// How much is kept of the beginning and of the end of a longer one. The beginning has what is kept of a result.
const BEGINNING: usize = 2 * 1024 * 1024;
const END: usize = 256;

/// A stream of lines in which none is too long.
pub struct ShortLines<R> {
    from: R,
    /// The line that is being read; of one that is too long, the beginning.
    line: Vec<u8>,
    /// The end of a line that is too long.
    end: Vec<u8>,
    /// The length of the line so far.
    length: usize,
    /// What can be read.
    ready: Vec<u8>,
    /// How much of it has been.
    taken: usize,
    chunk: Box<[u8]>,
}

impl<R> ShortLines<R> {
    pub fn new(from: R) -> ShortLines<R> {
        let chunk = vec![0; 64 * 1024].into_boxed_slice();
        ShortLines { from, line: Vec::new(), end: Vec::new(), length: 0, ready: Vec::new(), taken: 0, chunk }
    }

    fn push(&mut self, bytes: usize) {
        for at in 0..bytes {
            if self.chunk[at] == b'\n' {
                self.finish();
                continue;
            }
            let byte = self.chunk[at];
            self.length += 1;
            if self.length <= LONGEST {
                self.line.push(byte);
                continue;
            }
            if self.line.len() > BEGINNING {
                self.end = self.line.split_off(self.line.len() - END);
                self.line.truncate(BEGINNING);
                self.line.shrink_to_fit();
            }
            self.end.push(byte);
            if self.end.len() > 2 * END {
                self.end.drain(..END);
            }
        }
    }

    fn finish(&mut self) {
        let (line, end, length) =
            (std::mem::take(&mut self.line), std::mem::take(&mut self.end), std::mem::take(&mut self.length));
        let line = if length > LONGEST { shortened(&line, &end, length) } else { line };
        self.ready.extend(line);
        self.ready.push(b'\n');
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for ShortLines<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        while self.taken == self.ready.len() {
            (self.ready, self.taken) = (Vec::new(), 0);
            let this = &mut *self;
            let mut chunk = ReadBuf::new(&mut this.chunk);
            ready!(Pin::new(&mut this.from).poll_read(context, &mut chunk))?;
            match chunk.filled().len() {
                // What follows the last newline is no message.
                0 => return Poll::Ready(Ok(())),
                bytes => this.push(bytes),
            }
        }
        let some = (self.ready.len() - self.taken).min(into.remaining());
        into.put_slice(&self.ready[self.taken..self.taken + some]);
        self.taken += some;
        Poll::Ready(Ok(()))
    }
}

/// A result in place of a line that is too long; an empty line if it is no response.
fn shortened(beginning: &[u8], end: &[u8], length: usize) -> Vec<u8> {
    let Some(id) = id_in(&beginning[..beginning.len().min(END)]).or_else(|| id_in(end)) else {
        return Vec::new();
    };
    let text = match text_in(beginning) {
        Some(text) => format!("{text}\n[cut: the whole result has {length} bytes]"),
        None => format!("[the result has {length} bytes, which is too much]"),
    };
    let result = json!({ "content": [{ "type": "text", "text": text }] });
    json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string().into_bytes()
}

/// The id of a response, which is a number, as we give them.
fn id_in(text: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(text);
    let rest = text.rsplit_once("\"id\"")?.1.trim_start().strip_prefix(':')?.trim_start();
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest[..digits].parse().ok()
}

/// The beginning of the first text in a result.
fn text_in(beginning: &[u8]) -> Option<String> {
    const KEY: &[u8] = b"\"text\"";
    let find =
        |from: usize| beginning[from..].windows(KEY.len()).position(|bytes| bytes == KEY).map(|at| from + at);
    let mut from = 0;
    // The first may be the value of `type`.
    while let Some(at) = find(from) {
        from = at + KEY.len();
        let rest = beginning[from..].trim_ascii_start();
        let Some(rest) = rest.strip_prefix(b":").map(<[u8]>::trim_ascii_start) else { continue };
        let Some(rest) = rest.strip_prefix(b"\"") else { continue };
        // A character or an escape may have been cut in two: 12 bytes are more than the longest.
        return (0..12).find_map(|less| {
            let bytes = &rest[..rest.len().checked_sub(less)?];
            let quoted = [b"\"".as_slice(), bytes, b"\""].concat();
            serde_json::from_slice::<Value>(&quoted).ok()?.as_str().map(str::to_owned)
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    fn read(lines: &[u8]) -> Vec<Value> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut text = String::new();
        runtime.block_on(ShortLines::new(lines).read_to_string(&mut text)).unwrap();
        text.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_line_that_is_too_long_becomes_a_result_that_is_cut() {
        let long = "é\\n\\ud83d\\ude00".repeat(1_000_000);
        let first = format!(
            r#"{{"jsonrpc":"2.0","id":7,"result":{{"content":[{{"type":"text","text":"{long}"}}]}}}}"#
        );
        let last = format!(
            r#"{{"result":{{"content":[{{"type": "text", "text": "{long}"}}]}},"jsonrpc":"2.0","id":8}}"#
        );
        let other = format!(r#"{{"jsonrpc":"2.0","method":"x","params":"{long}"}}"#);
        let lines = [first.as_str(), &other, r#"{"n":1}"#, &last, r#"{"n":2}"#, ""].join("\n");
        let read = read(lines.as_bytes());
        assert_eq!(read.len(), 4);
        assert_eq!((&read[1]["n"], &read[3]["n"]), (&1.into(), &2.into()));
        for (message, id) in [(&read[0], 7), (&read[2], 8)] {
            assert_eq!(message["id"], id);
            let text = message["result"]["content"][0]["text"].as_str().unwrap();
            assert!(text.starts_with("é\n😀é"), "{}", &text[..20]);
            assert!(
                text.ends_with(" bytes]") && text.len() > 500_000 && text.len() < BEGINNING,
                "{}",
                text.len()
            );
        }
    }

    #[test]
    fn a_long_result_without_text_is_named() {
        let line = format!(r#"{{"id":3,"result":{{"data":"{}"}}}}{}"#, "x".repeat(LONGEST), "\n");
        let text = read(line.as_bytes())[0]["result"]["content"][0]["text"].clone();
        assert!(text.as_str().unwrap().ends_with("bytes, which is too much]"), "{text}");
    }
}
