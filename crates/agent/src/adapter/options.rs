//! What can be chosen at the agent program, such as its mode. It is stored for clients when it has changed, and what
//! people choose is given to the program: at once if it runs, and to each new process before its first prompt.

use thread::Result;
use thread::model::filter::{Filter, Scope};
use thread_conversation::{AgentOptions, Entry, OptionChosen, options};

use super::Adapter;

/// How many choices are looked back at.
const CHOICES: usize = 200;

impl Adapter {
    /// The program has these options now.
    pub(super) fn says_options(&mut self, now: AgentOptions) {
        let before = match self.options_said.take() {
            Some(before) => before,
            None => self.recorded_options().map(|(recorded, _)| recorded).unwrap_or_else(|e| {
                self.warn(format_args!("cannot look for the options of the agent: {e}"));
                AgentOptions::default()
            }),
        };
        // What was chosen is confirmed, or taken back.
        let has_choice = std::mem::take(&mut self.has_choice);
        if has_choice || now.refused.is_some() || before.options != now.options {
            self.outbox.event(options(&now));
        }
        self.options_said = Some(now);
    }

    /// Somebody has chosen something.
    pub(super) fn option_chosen(&mut self, chosen: &OptionChosen) {
        self.has_choice = true;
        let mut out = Vec::new();
        // A new process is told before its first prompt.
        if let Some(running) = self.running.as_ref().filter(|running| running.exited.is_none()) {
            self.options.protocol.choose(chosen, &mut out);
            running.program.send(out);
        }
    }

    /// What people have chosen, as far as it still is what the program has: it may have changed that itself.
    pub(super) fn chosen(&mut self) -> Result<Vec<OptionChosen>> {
        let (recorded, chosen) = self.recorded_options()?;
        let of_people = recorded.options.into_iter().filter(|option| chosen.contains(&option.id));
        Ok(of_people.map(|option| OptionChosen { id: option.id, value: option.current }).collect())
    }

    /// The options of this agent with what was chosen since it has said them, and the ids of those for which somebody has
    /// chosen something.
    fn recorded_options(&mut self) -> Result<(AgentOptions, Vec<String>)> {
        let mut found = Vec::new();
        for (condition, most) in
            [("source = 'self' AND subtype = 'options'", 1), ("subtype = 'option'", CHOICES)]
        {
            let filter = Filter::new(condition, Scope::Reading)?;
            found.extend(self.queue.newest_matching(filter.as_ref(), i64::MAX, most)?);
        }
        found.retain(|id| *id > self.joined);
        found.sort_unstable();
        let (mut recorded, mut chosen) = (AgentOptions::default(), Vec::new());
        for id in found {
            match self.queue.event(id)?.as_ref().map(Entry::of) {
                Some(Entry::Options(said)) => recorded = said,
                Some(Entry::OptionChosen(choice)) => {
                    recorded.choose(&choice);
                    chosen.push(choice.id);
                }
                _ => {}
            }
        }
        Ok((recorded, chosen))
    }
}
