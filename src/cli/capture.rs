//! What a command of a session reads and prints, in place of the standard streams of the process.

use std::cell::RefCell;

use serde_json::value::RawValue;

/// What a command has printed.
#[derive(Debug, Default)]
pub struct Printed {
    /// What would be on stdout.
    pub out: Vec<u8>,
    /// What would be on stderr, without the final newline.
    pub notices: Vec<String>,
}

#[derive(Default)]
struct Capture {
    has_input: bool,
    /// Empty once it was taken.
    input: Vec<u8>,
    printed: Printed,
}

thread_local! {
    /// `None` unless a command of a session is run.
    static CAPTURE: RefCell<Option<Capture>> = const { RefCell::new(None) };
}

/// Begins a command that has `input` on stdin. It ends with [`end`].
pub fn begin(input: Option<String>) {
    let has_input = input.is_some();
    let input = input.unwrap_or_default().into_bytes();
    CAPTURE.set(Some(Capture { has_input, input, ..Capture::default() }));
}

/// Ends a command. Returns what it has printed.
pub fn end() -> Printed {
    CAPTURE.take().unwrap_or_default().printed
}

/// Whether this is a command of a session, which has no standard streams.
pub fn is_on() -> bool {
    CAPTURE.with_borrow(Option::is_some)
}

/// Takes the input, if this is a command of a session; it is empty without one.
pub fn take_input() -> Option<Vec<u8>> {
    CAPTURE.with_borrow_mut(|capture| Some(std::mem::take(&mut capture.as_mut()?.input)))
}

/// Whether the command was given an input; `None` if this is not a command of a session.
pub fn has_input() -> Option<bool> {
    CAPTURE.with_borrow(|capture| Some(capture.as_ref()?.has_input))
}

/// Keeps what goes to stdout. Returns false if this is not a command of a session.
pub fn out(data: &[u8]) -> bool {
    keep(|printed| printed.out.extend_from_slice(data))
}

/// Keeps a line for stderr. Returns false if this is not a command of a session.
pub fn notice(line: &str) -> bool {
    keep(|printed| printed.notices.push(line.trim_end().to_owned()))
}

fn keep(what: impl FnOnce(&mut Printed)) -> bool {
    CAPTURE.with_borrow_mut(|capture| capture.as_mut().map(|capture| what(&mut capture.printed)).is_some())
}

impl Printed {
    /// The lines of stdout as the elements of a JSON array. One that is not JSON is a string.
    pub fn elements(&self) -> String {
        let mut elements = String::with_capacity(self.out.len() + 2);
        for line in self.out.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            if !elements.is_empty() {
                elements.push(',');
            }
            match serde_json::from_slice::<&RawValue>(line) {
                Ok(json) => elements.push_str(json.get()),
                Err(_) => {
                    elements.push_str(&serde_json::Value::from(String::from_utf8_lossy(line)).to_string())
                }
            }
        }
        elements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_an_element() {
        let elements = |out: &[u8]| Printed { out: out.to_vec(), notices: Vec::new() }.elements();
        assert_eq!(elements(b""), "");
        assert_eq!(elements(b"{\"a\": 1}\n\n2\n"), "{\"a\": 1},2");
        assert_eq!(elements(b"a \"word\"\n\xff\n"), "\"a \\\"word\\\"\",\"\u{fffd}\"");
    }
}
