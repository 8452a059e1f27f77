//! `thread info CONSUMER --runs`: how its last runs went.

use serde_json::{Value, json};

use crate::cli::output;
use crate::error::Error;
use crate::failure::Result;
use crate::model::run::{RUNS_KEPT, Run};
use crate::model::step::Step;
use crate::model::subscription::ConsumerId;
use crate::model::time;
use crate::queue::Queue;
use crate::store::StepsOf;

/// Prints the runs, the oldest first; those of a consumer that was unsubscribed too.
pub fn print(queue: &mut Queue, consumer: &ConsumerId, as_json: bool) -> Result<()> {
    let runs = queue.runs(consumer, RUNS_KEPT)?;
    if runs.is_empty() && queue.find_subscription(consumer)?.is_none() {
        return Err(Error::UnknownConsumer(consumer.clone()).into());
    }
    let of = StepsOf { consumer: Some(consumer), ..StepsOf::default() };
    let steps = queue.store.steps(of)?;
    let all: Vec<Value> = runs.iter().map(|run| as_json_object(run, &steps)).collect();
    if as_json {
        return output::line(json!({ "consumer_id": consumer.as_str(), "runs": all }));
    }
    let lines: String = all.iter().map(as_line).collect();
    output::bytes(lines.as_bytes()).map(drop)
}

fn as_json_object(run: &Run, steps: &[Step]) -> Value {
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
    // By the clocks of the machines that have recorded them.
    let is_in_run = |step: &&Step| step.ended.is_some_and(|ended| (run.began..=run.ended).contains(&ended));
    if run.events == Some(1) {
        let own = steps.iter().filter(|step| step.event_id == run.upto).filter(is_in_run);
        let names: Vec<&str> = own.map(|step| step.name.as_str()).collect();
        if !names.is_empty() {
            object["steps"] = json!(names);
        }
    }
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
            ("steps", Value::Array(names)) => {
                let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
                format!(" steps={}", output::plain(&names.join(",")))
            }
            ("seconds", seconds) => format!(" after={:.1}s", seconds.as_f64().unwrap_or_default()),
            (_, value) => format!(" {name}={value}"),
        });
    }
    line + "\n"
}
