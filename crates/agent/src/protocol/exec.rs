//! A program that is run once for each message: text in on stdin, text out on stdout. Text in is
//! the message, after the conversation so far if that is wanted.

use super::{Done, Ended, Output, Prompt, Protocol};
use crate::attachments::Attachment;
use crate::transcript::as_text;
use crate::utf8::Utf8Stream;
use thread_conversation::text_of;

#[derive(Debug, Default)]
pub struct Exec {
    stdout: Utf8Stream,
    /// How many earlier messages come before each.
    transcript: usize,
}

impl Exec {
    /// One whose program gets that many earlier messages before each.
    pub fn with_transcript(most: usize) -> Exec {
        Exec { transcript: most, ..Exec::default() }
    }
}

impl Protocol for Exec {
    fn name(&self) -> &'static str {
        "exec"
    }

    fn keeps_process(&self) -> bool {
        false
    }

    fn transcript(&self) -> usize {
        self.transcript
    }

    fn takes(&self, _: &str) -> bool {
        false
    }

    fn started(&mut self) {
        self.stdout = Utf8Stream::default();
    }

    fn prompt(&mut self, prompt: Prompt, out: &mut Vec<u8>) {
        let mut text = text_of(&prompt.content);
        if !prompt.attachments.is_empty() && !text.is_empty() {
            text.push_str(if text.ends_with('\n') { "\n" } else { "\n\n" });
        }
        // Coding agents, for example, read only text, but can open files by path.
        for Attachment { path, mime_type, .. } in prompt.attachments {
            let mime_type = mime_type.map(|name| format!(" ({name})")).unwrap_or_default();
            text.push_str(&format!("Attached: {path}{mime_type}\n"));
        }
        if !prompt.transcript.is_empty() {
            text = format!("{}\n\n{text}", as_text(&prompt.transcript));
        }
        out.extend(text.into_bytes());
    }

    fn read(&mut self, bytes: &[u8], _: &mut Vec<u8>) -> Vec<Output> {
        let text = self.stdout.push(bytes);
        if text.is_empty() { Vec::new() } else { vec![Output::Token(text)] }
    }

    fn ended(&mut self, ended: Ended) -> Vec<Output> {
        let rest = self.stdout.finish();
        let mut output = if rest.is_empty() { Vec::new() } else { vec![Output::Token(rest)] };
        output.push(Output::Done(match ended.0 {
            0 => Done::Answered { content: None, total_tokens: None, stage: None },
            _ => Done::Failed { error: ended.to_string(), retryable: true },
        }));
        output
    }
}
