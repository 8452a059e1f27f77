//! `thread info CONSUMER --runs`: how its last runs went.

use serde_json::{Value, json};

use crate::cli::output;
use crate::error::Error;
use crate::failure::Result;
use crate::model::run::{RUNS_KEPT, Run};
use crate::model::subscription::ConsumerId;
use crate::model::time;
use crate::queue::Queue;

/// Prints the runs, the oldest first; those of a consumer that was unsubscribed too.
pub fn print(queue: &mut Queue, consumer: &ConsumerId, as_json: bool) -> Result<()> {
    let runs = queue.runs(consumer, RUNS_KEPT)?;
    if runs.is_empty() && queue.find_subscription(consumer)?.is_none() {
        return Err(Error::UnknownConsumer(consumer.clone()).into());
    }
    let all: Vec<Value> = runs.iter().map(as_json_object).collect();
    if as_json {
        return output::line(json!({ "consumer_id": consumer.as_str(), "runs": all }));
    }
    let lines: String = all.iter().map(as_line).collect();
    output::bytes(lines.as_bytes()).map(drop)
}

fn as_json_object(run: &Run) -> Value {
    let mut object = json!({
        "began": time::format(run.began),
        "ended": time::format(run.ended),
        "seconds": run.duration().as_secs_f64(),
        "result": run.result,
        "exit": run.exit,
        "attempt": run.attempt,
        "events": run.events,
        "upto": run.upto,
        "log_offset": run.output.map(|span| span.offset),
        "log_length": run.output.map(|span| span.length),
        "run": run.number,
    });
    if let Some(host) = &run.host {
        object["host"] = json!(host);
    }
    object
}

/// The values that are set, each with its name; of the result, only the word.
fn as_line(run: &Value) -> String {
    let mut line = String::new();
    for (name, value) in run.as_object().into_iter().flatten() {
        line.push_str(&match (name.as_str(), value) {
            (_, Value::Null) | ("ended", _) => continue,
            ("began", Value::String(at)) => at.clone(),
            ("result", Value::String(word)) => format!(" {word}"),
            ("host", Value::String(host)) => format!(" host={}", output::plain(host)),
            ("seconds", seconds) => format!(" after={:.1}s", seconds.as_f64().unwrap_or_default()),
            (_, value) => format!(" {name}={value}"),
        });
    }
    line + "\n"
}
