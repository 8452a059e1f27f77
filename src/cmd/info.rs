use clap::Args;
use serde_json::{Map, Value, json};

use crate::cmd::ThreadArg;
use crate::dispatch;
use crate::error::Result;
use crate::output::{self, plain};
use crate::process::{self, Identity};
use crate::rule::{Phase, format_time};
use crate::subscription::Subscription;
use crate::thread::Thread;

/// Show what a thread holds and how far its consumers are
///
/// For each consumer: its state (idle, running, waiting, stalled or paused), how many matching
/// events are pending past its cursor, and its dead letters.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread info --thread inbox
  thread info --thread inbox --json | jq '.subscriptions[].pending'")]
pub struct Info {
    #[command(flatten)]
    thread: ThreadArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is shown of a consumer's runs: one word, and what goes with it.
#[derive(Debug, Default)]
struct Situation {
    state: &'static str,
    /// Named facts, in the order they are shown.
    facts: Vec<(&'static str, Value)>,
    pending: u64,
}

impl Info {
    pub fn run(self) -> Result<()> {
        let mut thread = self.thread.open()?;
        let count = thread.store.count()?;
        let mut consumers = Vec::new();
        for subscription in thread.store.subscriptions()? {
            let situation = situation(&mut thread, &subscription)?;
            consumers.push((subscription, situation));
        }
        if self.json {
            let consumers: Vec<Value> =
                consumers.iter().map(|(s, situation)| as_json(s, situation)).collect();
            return output::json(&json!({ "event_count": count, "subscriptions": consumers }));
        }
        let mut text = format!(
            "Thread: {}\nEvents: {count}\nSubscriptions: {}\n",
            plain(&thread.dir().to_string_lossy()),
            consumers.len()
        );
        for (subscription, situation) in &consumers {
            write_text(&mut text, subscription, situation);
        }
        output::bytes(text.as_bytes()).map(drop)
    }
}

fn situation(thread: &mut Thread, subscription: &Subscription) -> Result<Situation> {
    let state = &subscription.state;
    let time = |time: Option<_>| time.map(format_time).map_or(Value::Null, Value::from);
    let alive = |process: &Option<Identity>| process.as_ref().is_some_and(Identity::is_alive);
    let broken = match dispatch::checked_filter(thread, subscription) {
        Err(failure) => Some(failure.what),
        Ok(_) => dispatch::defect(subscription).map(|failure| failure.what),
    };
    let pending = if broken.is_some() { 0 } else { thread.store.count_pending(subscription)? };
    let waiting = |next_try: Value| vec![("attempt", json!(state.attempts)), ("next_try", next_try)];
    // The run's first process, or its supervisor; where both are gone or were never recorded, the
    // run lasts as long as somebody of it holds the lock.
    let at_work = || {
        let recorded = [&state.handler, &state.supervisor].into_iter().find(|process| alive(process));
        let lock = thread.files.consumer_lock(&subscription.consumer);
        recorded.cloned().flatten().or_else(|| process::holders_of(&lock).next()).map(|process| process.pid)
    };
    let running = if state.phase == Phase::Running { at_work() } else { None };
    let (word, mut facts) = match state.phase {
        Phase::Running if running.is_some() => (
            "running",
            vec![("pid", json!(running)), ("since", time(state.since)), ("attempt", json!(state.attempts))],
        ),
        _ if state.paused => ("paused", Vec::new()),
        _ if broken.is_some() => ("stalled", vec![("reason", json!(broken))]),
        Phase::Stalled => {
            ("stalled", vec![("reason", json!(state.reason)), ("attempt", json!(state.attempts))])
        }
        Phase::Waiting => ("waiting", waiting(time(state.next_try))),
        // Its supervisor was killed: the next dispatch goes on from there.
        Phase::Running if pending > 0 => {
            let due = state.since.map(|since| since + subscription.policy.wait_after(state.attempts));
            let mut facts = waiting(time(due));
            facts.push(("reason", json!("interrupted")));
            ("waiting", facts)
        }
        Phase::Running | Phase::Idle => ("idle", Vec::new()),
    };
    facts.retain(|(_, value)| !value.is_null());
    Ok(Situation { state: word, facts, pending })
}

fn as_json(s: &Subscription, situation: &Situation) -> Value {
    let mut object = Map::new();
    let base = [
        ("consumer_id", json!(s.consumer.as_str())),
        ("handler_cmd", json!(s.handler_cmd)),
        ("filter", json!(s.filter)),
        ("last_acked_id", json!(s.last_acked_id)),
        ("updated_at", json!(s.updated_at)),
        ("deliver", json!(s.policy.deliver.as_str())),
        ("state", json!(situation.state)),
    ];
    let counts = [
        ("pending", json!(situation.pending)),
        ("dead", json!(s.dead)),
        ("filter_errors", json!(s.filter_errors)),
        ("last_exit", json!(s.state.last_exit)),
    ];
    for (name, value) in base.into_iter().chain(situation.facts.clone()).chain(counts) {
        object.insert(name.to_owned(), value);
    }
    Value::Object(object)
}

fn write_text(text: &mut String, s: &Subscription, situation: &Situation) {
    text.push_str(&format!("  - {}\n", plain(s.consumer.as_str())));
    let mut line = |name: &str, value: &str| text.push_str(&format!("    {name} {}\n", plain(value)));
    let mut state = situation.state.to_owned();
    for (name, value) in &situation.facts {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        state.push_str(&format!(" {name}={value}"));
    }
    line("handler:", &s.handler_cmd);
    line("filter: ", s.filter_text().unwrap_or("(none)"));
    line("last_acked_id:", &s.last_acked_id.to_string());
    line("updated_at:", s.updated_at.as_deref().unwrap_or("(never)"));
    line("state:", &state);
    line("pending:", &situation.pending.to_string());
    if s.dead > 0 {
        line("dead:", &s.dead.to_string());
    }
    if s.filter_errors > 0 {
        line("filter_errors:", &s.filter_errors.to_string());
    }
}
