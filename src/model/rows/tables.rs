//! Every kind of row that a thread has.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Column, Is, MAX_ID, Table, Value};
use crate::model::event::{NewEvent, Type};
use crate::model::run::{Options, Run, RunState};
use crate::model::schedule::Schedule;
use crate::model::step::Step;
use crate::model::time;

const fn column(name: &'static str, is: Is) -> Column {
    Column { name, is, may_be_null: false }
}

const fn nullable(name: &'static str, is: Is) -> Column {
    Column { name, is, may_be_null: true }
}

/// A table of which everything is moved as it is.
const PLAIN: Table =
    Table { kind: "", name: "", columns: &[], key: 1, check: |_| Ok(()), leave: None, arrive: None };

/// All of them, in the order of an export: the events first, because they are copied while the thread is in use, and the
/// rest then in one step.
pub static TABLES: &[Table] = &[
    Table {
        kind: "event",
        name: "events",
        columns: &[
            column("id", Is::Number),
            column("created_at", Is::Text),
            column("source", Is::Text),
            column("type", Is::Text),
            nullable("subtype", Is::Text),
            column("content", Is::Bytes),
            nullable("metadata", Is::Json),
            nullable("idempotency_key", Is::Text),
        ],
        check: |row| {
            id(&row[0])?;
            event(&row[2], &row[3], &row[6])
        },
        ..PLAIN
    },
    // The numbers last assigned, even if what had them is gone.
    Table {
        kind: "thread",
        columns: &[column("newest", Is::Number), column("scheduled", Is::Number)],
        key: 0,
        check: |row| row.iter().try_for_each(|number| in_range(number, 0, MAX_ID)),
        ..PLAIN
    },
    // Names that begin with `_` are private to the store.
    Table {
        kind: "setting",
        name: "config",
        columns: &[column("name", Is::Text), column("value", Is::Text)],
        check: |row| match row[0].text().starts_with('_') {
            true => Err("is a setting with the name of a private one".to_owned()),
            false => Ok(()),
        },
        ..PLAIN
    },
    Table {
        kind: "consumer",
        name: "consumers",
        columns: &[
            column("consumer_id", Is::Text),
            column("handler_cmd", Is::Text),
            nullable("filter", Is::Text),
            nullable("cwd", Is::Bytes),
            column("options", Is::Json),
            column("run", Is::Json),
            column("rewinds", Is::Number),
            column("filter_errors", Is::Number),
            column("filter_error_id", Is::Number),
        ],
        check: |row| {
            named(&row[0])?;
            parsed::<Options>(&row[4], "options")?;
            parsed::<RunState>(&row[5], "run")?;
            row[6..].iter().try_for_each(|number| in_range(number, 0, MAX_ID))
        },
        leave: Some(|row| {
            change(&mut row[4], |options: Options| options);
            change(&mut row[5], |state: RunState| RunState { paused: state.paused, ..state.of_copy() });
        }),
        // Nothing may run in both threads at once.
        arrive: Some(|row| change(&mut row[5], |state: RunState| RunState { paused: true, ..state })),
        ..PLAIN
    },
    // Cursors, and what follows, outlive their subscriptions.
    Table {
        kind: "cursor",
        name: "cursors",
        columns: &[
            column("consumer_id", Is::Text),
            column("last_acked_id", Is::Number),
            column("updated_at", Is::Text),
        ],
        check: |row| {
            named(&row[0])?;
            in_range(&row[1], 0, MAX_ID)
        },
        ..PLAIN
    },
    Table {
        kind: "finished",
        name: "finished",
        columns: &[
            column("consumer_id", Is::Text),
            column("first_id", Is::Number),
            column("last_id", Is::Number),
        ],
        key: 2,
        check: |row| {
            named(&row[0])?;
            id(&row[1])?;
            in_range(&row[2], row[1].number(), MAX_ID)
        },
        ..PLAIN
    },
    Table {
        kind: "wait",
        name: "waits",
        columns: &[
            column("consumer_id", Is::Text),
            column("event_id", Is::Number),
            column("attempts", Is::Number),
            column("deferred", Is::Number),
            column("since", Is::Text),
            column("until", Is::Text),
            column("asleep", Is::Number),
        ],
        key: 2,
        check: |row| {
            named(&row[0])?;
            id(&row[1])?;
            row[2..4].iter().try_for_each(|number| in_range(number, 0, u32::MAX.into()))?;
            row[4..6].iter().try_for_each(a_time)?;
            in_range(&row[6], 0, 2)
        },
        ..PLAIN
    },
    Table {
        kind: "dead_letter",
        name: "dead_letters",
        columns: &[
            column("consumer_id", Is::Text),
            column("event_id", Is::Number),
            column("attempts", Is::Number),
            nullable("last_exit", Is::Number),
            column("last_error", Is::Text),
            column("parked_at", Is::Text),
            column("retry", Is::Flag),
        ],
        key: 2,
        check: |row| {
            named(&row[0])?;
            id(&row[1])?;
            in_range(&row[2], 0, MAX_ID)
        },
        ..PLAIN
    },
    Table {
        kind: "step",
        name: "steps",
        columns: &[
            column("consumer_id", Is::Text),
            column("event_id", Is::Number),
            column("name", Is::Text),
            column("revision", Is::Number),
            column("step", Is::Json),
            nullable("result", Is::Blob),
            column("awaits", Is::Flag),
            nullable("over", Is::Text),
        ],
        key: 3,
        check: |row| {
            named(&row[0])?;
            id(&row[1])?;
            Step::check_name(&row[2].text())?;
            in_range(&row[3], 1, MAX_ID)?;
            parsed::<Step>(&row[4], "step")?;
            if row[7] == Value::Null { Ok(()) } else { a_time(&row[7]) }
        },
        ..PLAIN
    },
    Table {
        kind: "run",
        name: "runs",
        columns: &[column("consumer_id", Is::Text), column("number", Is::Number), column("run", Is::Json)],
        key: 2,
        check: |row| {
            named(&row[0])?;
            id(&row[1])?;
            parsed::<Run>(&row[2], "run")
        },
        // Where its output is concerns a file that is not moved.
        leave: Some(|row| change(&mut row[2], |run: Run| Run { output: None, ..run })),
        ..PLAIN
    },
    Table {
        kind: "scheduled",
        name: "scheduled",
        columns: &[
            column("id", Is::Number),
            column("due", Is::Text),
            nullable("delay_ms", Is::Number),
            column("source", Is::Text),
            column("type", Is::Text),
            nullable("subtype", Is::Text),
            column("content", Is::Bytes),
            column("metadata", Is::Json),
            nullable("idempotency_key", Is::Text),
        ],
        check: |row| {
            id(&row[0])?;
            a_time(&row[1])?;
            in_range(&row[2], 0, MAX_ID)?;
            event(&row[3], &row[4], &row[7])
        },
        ..PLAIN
    },
    Table {
        kind: "schedule",
        name: "schedules",
        columns: &[column("name", Is::Text), column("schedule", Is::Json), column("revision", Is::Number)],
        check: |row| {
            Schedule::check_name(&row[0].text())?;
            parsed::<Schedule>(&row[1], "schedule")?;
            in_range(&row[2], 0, MAX_ID)
        },
        ..PLAIN
    },
];

fn id(value: &Value) -> Result<(), String> {
    in_range(value, 1, MAX_ID)
}

fn in_range(value: &Value, least: i64, most: i64) -> Result<(), String> {
    match value.number() {
        number if number < least || number > most => {
            Err(format!("has the number {number}, which is not from {least} to {most}"))
        }
        _ => Ok(()),
    }
}

fn named(consumer: &Value) -> Result<(), String> {
    if consumer.text().is_empty() { Err("has an empty consumer_id".to_owned()) } else { Ok(()) }
}

fn a_time(value: &Value) -> Result<(), String> {
    match time::parse(&value.text()) {
        Some(_) => Ok(()),
        None => Err(format!("has '{}', which is not a time", value.text().escape_debug())),
    }
}

/// Checks the parts of an event that every reader relies on.
fn event(source: &Value, kind: &Value, metadata: &Value) -> Result<(), String> {
    if source.text().is_empty() {
        return Err("has an empty source".to_owned());
    }
    if Type::parse(&kind.text()).is_none() {
        let kind = kind.text();
        return Err(format!(
            "has the type '{}', which is neither 'message' nor 'record'",
            kind.escape_debug()
        ));
    }
    if *metadata == Value::Null {
        return Ok(());
    }
    let event = NewEvent::message("self", "").and_then(|event| event.with_metadata(&metadata.text()));
    event.map(drop).map_err(|e| e.0)
}

/// Checks that a value is the JSON of what this program stores.
fn parsed<T: DeserializeOwned>(value: &Value, what: &str) -> Result<(), String> {
    serde_json::from_str::<T>(&value.text()).map(drop).map_err(|e| format!("has a wrong {what}: {e}"))
}

/// Changes what is stored as JSON. What another program has stored in another form counts as nothing.
fn change<T: DeserializeOwned + Serialize + Optional>(value: &mut Value, change: impl FnOnce(T) -> T) {
    let stored = serde_json::from_str(&value.text()).ok().or_else(T::without);
    let changed = stored.and_then(|stored| serde_json::to_string(&change(stored)).ok());
    if let Some(changed) = changed {
        *value = Value::Text(changed);
    }
}

/// What counts if nothing is stored.
trait Optional: Sized {
    fn without() -> Option<Self> {
        None
    }
}

impl Optional for Run {}

impl Optional for Options {
    fn without() -> Option<Options> {
        Some(Options::default())
    }
}

impl Optional for RunState {
    fn without() -> Option<RunState> {
        Some(RunState::default())
    }
}
