//! `thread config`: the settings of a thread.

use clap::Args;
use serde_json::{Map, Value};

use super::output::{self, plain};
use super::{Globals, signals};
use crate::error::Code;
use crate::failure::{Failure, Result, failed};
use crate::files::log::{Quoted, log};
use crate::model::config::Key;

/// Show or change the settings of a thread
///
/// Without a key it lists those that are set, as key=value. With a key it prints its value (exit 1 if it is not set),
/// and with a value it sets it. The settings are stored in the thread, so they apply to everyone who uses it, and are
/// in its backups.
///
/// Keys:
///   retention.age     delete events older than this: 7d, 12h
///   retention.events  keep at most so many of the newest events
///   retention.logs    delete logs of handlers and of the thread that were last written to longer ago than this, and
///                     parts of the JSONL log that were sealed longer ago; if it is not set, the latter go with
///                     their events
///   retention.steps   keep steps so long after their events are finished (7d if it is not set)
///   hold.NAME         the id of the first event that NAME needs: it and all after it are kept. Agents whose memory is
///                     the thread set it themselves; `thread unsubscribe NAME` removes it
///
/// What is too old is deleted on the side, about once an hour, by the processes that work in the thread. Events that
/// are pending for a consumer or held, and dead letters, always stay. To delete at once, use `thread prune`.
#[derive(Args)]
#[command(verbatim_doc_comment)]
#[command(after_help = "\
Examples:
  thread config -t inbox retention.age 7d
  thread config -t inbox retention.events
  thread config -t inbox --unset retention.age")]
pub struct Config {
    /// The setting: retention.age, retention.events, retention.logs, retention.steps or hold.NAME
    #[arg(value_name = "KEY")]
    key: Option<String>,
    /// Its new value
    #[arg(value_name = "VALUE", allow_negative_numbers = true)]
    value: Option<String>,
    /// Remove the setting
    #[arg(long, requires = "key", conflicts_with = "value")]
    unset: bool,
}

impl Config {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let key = self.key.as_deref().map(key).transpose()?;
        let value = key.zip(self.value).map(|(key, value)| checked(key, &value)).transpose()?;
        let mut queue = globals.open()?;
        let Some(key) = key else {
            let all = queue.store.config()?;
            if globals.json {
                return output::line(as_json(all.iter()));
            }
            let lines = all.iter().map(|(name, value)| format!("{}={}\n", plain(name), plain(value)));
            return output::bytes(lines.collect::<String>().as_bytes()).map(drop);
        };
        let name = key.name();
        if let Some(value) = value {
            signals::defer();
            queue.store.set_config(&name, Some(&value))?;
            log!(queue, Info, "config: {name}={}", Quoted(&value));
            return if globals.json { output::line(as_json([(name, &value)])) } else { Ok(()) };
        }
        if self.unset {
            signals::defer();
            if !queue.store.set_config(&name, None)? {
                return not_set(&name);
            }
            log!(queue, Info, "config: {name} unset");
            return if globals.json { output::line(Value::Object(Map::new())) } else { Ok(()) };
        }
        match queue.store.config()?.get(&*name) {
            Some(value) => globals.print(plain(value), as_json([(name, value)])),
            None => not_set(&name),
        }
    }
}

fn key(name: &str) -> Result<Key<'_>> {
    Key::parse(name).map_err(|similar| {
        let meant = similar.map(|key| format!("did you mean '{}'? ", key.name())).unwrap_or_default();
        let all = Key::ALL.map(Key::name).join(", ");
        Failure::usage(
            format_args!("there is no setting '{}'", plain(name)),
            format_args!("{meant}The settings are {all}, hold.NAME"),
        )
    })
}

fn checked(key: Key<'_>, value: &str) -> Result<String> {
    key.check(value).map_err(|problem| {
        let hint = "see `thread config --help`; nothing was changed";
        Failure::usage(format_args!("invalid value for {}: {}", key.name(), plain(&problem)), hint)
    })
}

fn not_set(name: &str) -> Result<()> {
    failed(
        Code::NotSet,
        format_args!("{name} is not set"),
        format_args!("set it with `thread config {name} <value>`"),
    )
}

/// As an object. Counts are numbers.
fn as_json<'a, N: ToString>(settings: impl IntoIterator<Item = (N, &'a String)>) -> Value {
    let value = |name: &str, text: &String| match text.parse::<u64>() {
        Ok(count) if matches!(Key::parse(name), Ok(Key::RetentionEvents | Key::Hold(_))) => count.into(),
        _ => Value::from(text.as_str()),
    };
    let pairs = settings.into_iter().map(|(name, text)| (name.to_string(), value(&name.to_string(), text)));
    Value::Object(pairs.collect())
}
