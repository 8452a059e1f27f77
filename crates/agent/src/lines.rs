//! Splitting a stream of bytes into lines.

/// The longest line of an agent program, in bytes: far more than an answer that may be stored.
const LONGEST: usize = 64 * 1024 * 1024;

/// Collects bytes, and returns whole lines.
#[derive(Debug)]
pub struct Lines {
    /// The beginning of an incomplete line.
    line: Vec<u8>,
    longest: usize,
}

/// A line is longer than it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

impl Default for Lines {
    fn default() -> Lines {
        Lines::of_at_most(LONGEST)
    }
}

impl std::fmt::Display for TooLong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the agent program printed a line of more than {} MiB", LONGEST >> 20)
    }
}

impl Lines {
    /// Lines of at most so many bytes.
    pub fn of_at_most(longest: usize) -> Lines {
        Lines { line: Vec::new(), longest }
    }

    /// Takes in bytes, and returns the lines that they complete, with their newlines. What has become of a line that
    /// is too long is dropped, and what follows counts as a new one.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Result<Vec<u8>, TooLong>> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.len() > self.longest {
                self.line = Vec::new();
                lines.push(Err(TooLong));
            } else if self.line.ends_with(b"\n") {
                lines.push(Ok(std::mem::take(&mut self.line)));
            }
        }
        lines
    }

    /// Returns what follows the last newline.
    pub fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_pieces_and_are_not_too_long() {
        let mut lines = Lines::of_at_most(4);
        let mut push = |bytes: &str| {
            let lines = lines.push(bytes.as_bytes());
            lines
                .into_iter()
                .map(|line| line.map(|line| String::from_utf8(line).unwrap()))
                .collect::<Vec<_>>()
        };
        assert_eq!(push("ab"), []);
        assert_eq!(push("c\n\nd"), [Ok("abc\n".into()), Ok("\n".into())]);
        assert_eq!(push("efgh"), [Err(TooLong)]);
        assert_eq!(push("i\n"), [Ok("i\n".into())]);
        assert_eq!(push("z"), []);
        assert_eq!(lines.rest(), b"z");
    }
}
