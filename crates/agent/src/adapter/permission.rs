//! Requests of the program for permission, and their answers.

use std::time::Instant;

use super::Adapter;
use super::attempt::{Asked, Attempt};
use crate::settings::Permit;
use thread_conversation::{Choice, Permission};

impl Attempt {
    /// Removes the requests for permission that got no answer in time. Until then the program had to be silent, so only
    /// from now on does that count.
    pub fn take_overdue(&mut self, now: Instant) -> Vec<Asked> {
        let overdue: Vec<Asked> =
            self.asked.extract_if(.., |asked| asked.until.is_some_and(|until| until <= now)).collect();
        if !overdue.is_empty() {
            self.last_output = now;
        }
        overdue
    }
}

impl Adapter {
    /// Handles a request: pushes it, or answers it at once.
    pub(super) fn permission_asked(&mut self, asked: Permission) {
        let Some(attempt) = &mut self.attempt else { return };
        let of_kind = |word: &str| {
            asked.choices.iter().find(|choice: &&Choice| choice.kind.starts_with(word)).map(|c| c.id.clone())
        };
        match self.options.settings.permit {
            Permit::Ask => {
                attempt.requests += 1;
                let wait = self.options.settings.permit_wait.0;
                let wait_ms = wait.and_then(|wait| u64::try_from(wait.as_millis()).ok());
                let request_id = format!("perm_{}_{}", &attempt.message_id, attempt.requests);
                attempt.asked.push(Asked {
                    request_id: request_id.clone(),
                    program_id: asked.request_id.clone(),
                    choices: asked.choices.clone(),
                    until: wait.map(|wait| Instant::now() + wait),
                });
                let event = attempt.run.permission(&Permission { request_id, wait_ms, ..asked });
                self.outbox.event(event);
            }
            Permit::Allow => self.permit(&asked.request_id, of_kind("allow").as_deref()),
            Permit::Reject => self.permit(&asked.request_id, of_kind("reject").as_deref()),
        }
    }

    /// Handles an answer to a request for permission.
    pub(super) fn permission_answered(&mut self, request_id: &str, choice: &str) {
        let Some(attempt) = &mut self.attempt else { return };
        let known = |asked: &Asked| {
            asked.request_id == request_id && asked.choices.iter().any(|one| one.id == choice)
        };
        let Some(at) = attempt.asked.iter().position(known) else { return };
        let asked = attempt.asked.remove(at);
        attempt.last_output = Instant::now();
        self.permit(&asked.program_id, Some(choice));
    }

    /// Closes a request that the program has taken back.
    pub(super) fn permission_withdrawn(&mut self, program_id: &str) {
        let Some(attempt) = &mut self.attempt else { return };
        let Some(at) = attempt.asked.iter().position(|asked| asked.program_id == program_id) else { return };
        let asked = attempt.asked.remove(at);
        self.outbox.event(attempt.run.permission_withdrawn(&asked.request_id));
    }

    /// Rejects requests that were not answered in time.
    pub(super) fn reject_overdue(&mut self) {
        let Some(attempt) = &mut self.attempt else { return };
        for asked in attempt.take_overdue(Instant::now()) {
            let reject = asked.choices.iter().find(|choice| choice.is_rejection());
            self.permit(&asked.program_id, reject.map(|choice| choice.id.as_str()));
        }
    }

    pub(super) fn permit(&mut self, program_id: &str, choice: Option<&str>) {
        if self.options.protocol.model().is_some() {
            return self.call_permitted(program_id, choice);
        }
        let mut out = Vec::new();
        self.options.protocol.permit(program_id, choice, &mut out);
        if let Some(running) = &self.running {
            running.program.send(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use thread_conversation::Run;

    use super::*;

    #[test]
    fn a_program_is_not_quiet_for_the_time_in_which_nobody_answered_it() {
        let run = Run { run_id: "r".into(), reply_to: 1, attempt: 1, is_own: false };
        let mut attempt = Attempt::new(run, 0);
        let (began, minute) = (attempt.last_output, Duration::from_secs(60));
        let asked = |id: &str, minutes| Asked {
            request_id: id.into(),
            program_id: id.into(),
            choices: Vec::new(),
            until: Some(began + minutes * minute),
        };
        attempt.asked = vec![asked("a", 5), asked("b", 7)];
        assert!(attempt.take_overdue(began + 4 * minute).is_empty());
        assert_eq!(attempt.last_output, began);
        assert_eq!(attempt.take_overdue(began + 6 * minute).len(), 1);
        assert_eq!(attempt.last_output, began + 6 * minute);
        assert!(attempt.waits_for_somebody());
    }
}
