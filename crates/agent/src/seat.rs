//! Which of several agents the agent of a thread is, and how it came there.
//!
//! A gateway may have several agents with names, and a session may be moved from one to another. What it needs to know
//! of a session's agent stands in the command line of the subscription, so that it changes in one step with it.

use clap::{Args, ValueEnum};
use thread::Queue;
use thread_conversation::{Moved, SELF, moved, moved_key};

use crate::sub_agent::is_sub_agent;

/// The longest name, in characters.
const LONGEST_NAME: usize = 64;

/// Options of `thread agent` that say which agent it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Seat {
    /// What the agent is called in the metadata of its answers, and in figures
    #[arg(long = "name", id = "agent_name", value_name = "NAME", requires = "who", value_parser = name)]
    #[arg(hide_short_help = true)]
    pub name: Option<String>,
    /// The id of the move with which the thread came to this agent; absent if it has been the only one
    #[arg(long, value_name = "ID", hide = true)]
    pub moved: Option<String>,
    /// What was chosen for this thread alone
    #[arg(long, value_name = "WHAT", hide = true, value_delimiter = ',')]
    pub chose: Vec<Setting>,
}

/// What may be chosen for one conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Setting {
    Model,
    Cwd,
    /// The MCP servers of an editor. They are in a file of the thread, not in the command line.
    #[value(name = "mcp_servers")]
    McpServers,
}

impl Setting {
    pub fn as_str(self) -> &'static str {
        match self {
            Setting::Model => "model",
            Setting::Cwd => "cwd",
            Setting::McpServers => "mcp_servers",
        }
    }
}

/// A name of an agent.
///
/// # Errors
///
/// It cannot be one; a sentence.
pub fn name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let begins_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    match begins_well && text.len() <= LONGEST_NAME && text.chars().all(fits) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "a name is 1 to {LONGEST_NAME} of A-Z a-z 0-9 . _ -, and begins with a letter or digit"
        )),
    }
}

/// What the command line of a subscription says about its agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seated {
    pub seat: Seat,
    pub model: Option<String>,
}

impl Seat {
    /// Returns this as arguments of a command line.
    pub fn words(&self) -> Vec<String> {
        let given = [("--name", self.name.clone()), ("--moved", self.moved.clone())];
        let given =
            given.into_iter().filter_map(|(option, value)| Some([option.to_owned(), value?])).flatten();
        let chose = self.chose.iter().flat_map(|what| ["--chose".to_owned(), what.as_str().to_owned()]);
        given.chain(chose).collect()
    }

    /// The event with which the thread came to this agent; `None` if it has been the only one.
    ///
    /// # Errors
    ///
    /// The id of the move is not one of the program's own.
    pub fn event(
        &self,
        source: &str,
        model: Option<&str>,
        cwd: &str,
    ) -> thread::Result<Option<thread::NewEvent<'static>>> {
        let Some((id, name)) = self.moved.as_ref().zip(self.name.as_ref()) else { return Ok(None) };
        let chosen =
            |what, value: Option<&str>| value.filter(|_| self.chose.contains(&what)).map(str::to_owned);
        let about = Moved {
            name: name.clone(),
            model: chosen(Setting::Model, model),
            cwd: chosen(Setting::Cwd, Some(cwd)),
        };
        Ok(Some(moved(source, id, &about)?))
    }

    /// The event with which the thread came to this agent, in case that the one who moved it was killed before it was
    /// stored; `None` if there is none to be stored.
    pub(crate) fn missing(
        &self,
        queue: &mut Queue,
        model: Option<&str>,
        cwd: &str,
    ) -> thread::Result<Option<thread::NewEvent<'static>>> {
        // A sub-agent has its parent's command line, but nobody has moved it.
        if is_sub_agent(queue.path()) || self.joined(queue)? > 0 {
            return Ok(None);
        }
        self.event(SELF, model, cwd)
    }

    /// The id of the event with which the thread came to this agent; 0 if there is none.
    pub(crate) fn joined(&self, queue: &mut Queue) -> thread::Result<i64> {
        let key = self.moved.as_deref().map(moved_key).transpose()?;
        Ok(key.map(|key| queue.id_of_key(&key)).transpose()?.flatten().unwrap_or(0))
    }
}

impl Seated {
    /// Reads the command line of a subscription. What it does not say is `None`, also where it is that of another
    /// program.
    pub fn of(handler: &str) -> Seated {
        let words = shlex::split(handler).unwrap_or_default();
        let mut options = words.iter().take_while(|word| *word != "--");
        let mut seated = Seated::default();
        while let Some(word) = options.next() {
            match &**word {
                "--name" => seated.seat.name = options.next().cloned(),
                "--moved" => seated.seat.moved = options.next().cloned(),
                "--model" => seated.model = options.next().cloned(),
                "--chose" => {
                    let what = options.next().and_then(|word| Setting::from_str(word, false).ok());
                    seated.seat.chose.extend(what);
                }
                _ => {}
            }
        }
        seated
    }

    /// The model, if it was chosen for this thread alone.
    pub fn chosen_model(&self) -> Option<&str> {
        self.model.as_deref().filter(|_| self.seat.chose.contains(&Setting::Model))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_line_says_about_its_agent_is_read_back() {
        let seat = Seat {
            name: Some("helper".into()),
            moved: Some("m1".into()),
            chose: vec![Setting::Model, Setting::Cwd],
        };
        let line = format!(
            "PATH='/a b' exec '/x y/thread-agent' {} --model qwen3 -- sh -c 'a --name b'",
            seat.words().join(" ")
        );
        let seated = Seated::of(&line);
        assert_eq!((&seated.seat, seated.chosen_model()), (&seat, Some("qwen3")));
        assert_eq!(Seated::of("sleep 1 -- --name x"), Seated::default());
        assert_eq!(Seated::of("thread-agent --model m --url u").chosen_model(), None);
        assert_eq!(Seated::of("'"), Seated::default());
    }

    #[test]
    fn names_are_plain() {
        for good in ["a", "Claude-4.5", "7", &"x".repeat(64)] {
            assert_eq!(name(good).as_deref(), Ok(good));
        }
        for bad in ["", "-a", ".a", "a b", "é", "@a", &"x".repeat(65)] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
