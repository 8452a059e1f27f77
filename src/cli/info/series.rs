//! `thread info --series SPAN`: how much was done when.

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::cli::output::{self, plain};
use crate::failure::Result;
use crate::model::figures::Figures;
use crate::model::subscription::ConsumerId;
use crate::model::time::{self, Time};
use crate::queue::Queue;
use crate::queue::figures::{Series, Span};

/// How far back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Back {
    #[value(name = "15m")]
    Quarter,
    #[value(name = "1h")]
    Hour,
    #[value(name = "1d")]
    Day,
    #[value(name = "7d")]
    Week,
    #[value(name = "30d")]
    Month,
}

impl Back {
    fn span(self) -> Span {
        match self {
            Back::Quarter => Span::QUARTER,
            Back::Hour => Span::HOUR,
            Back::Day => Span::DAY,
            Back::Week => Span::WEEK,
            Back::Month => Span::MONTH,
        }
    }
}

/// Prints the figures of all consumers, or of one.
pub fn print(
    queue: &mut Queue,
    only: Option<&ConsumerId>,
    back: Back,
    as_json: bool,
    now: Time,
) -> Result<()> {
    let series = queue.series(only, back.span(), now)?;
    if as_json {
        let consumers: Vec<Value> =
            series.consumers.iter().map(|(one, all)| as_json_object(&one.consumer, all)).collect();
        return output::line(json!({
            "thread": queue.location().as_os_str().to_string_lossy(),
            "from": time::format(series.from),
            "step_seconds": series.step.as_secs(),
            "arrived": series.arrived,
            "consumers": consumers,
        }));
    }
    output::bytes(lines(&series).as_bytes()).map(drop)
}

fn as_json_object(consumer: &ConsumerId, all: &[Figures]) -> Value {
    let each = |value: fn(&Figures) -> Option<u64>| all.iter().map(value).collect::<Vec<_>>();
    json!({
        "consumer_id": consumer,
        "handled": each(|one| Some(one.handled)),
        "failed": each(|one| Some(one.failed)),
        "dead": each(|one| Some(one.dead)),
        "p50_ms": each(|one| one.took.percentile(50)),
        "p95_ms": each(|one| one.took.percentile(95)),
    })
}

/// A line for each period and consumer for which something is known, the oldest first.
fn lines(series: &Series) -> String {
    let mut text = String::new();
    let mut from = series.from;
    for (n, arrived) in series.arrived.iter().enumerate() {
        let at = time::format(from);
        from += series.step;
        if *arrived > 0 {
            text.push_str(&format!("{at} arrived={arrived}\n"));
        }
        for (one, all) in series.consumers.iter().filter(|(_, all)| !all[n].is_empty()) {
            let Figures { handled, failed, dead, took } = &all[n];
            let ms = |name: &str, percent| {
                took.percentile(percent).map(|ms| format!(" {name}={ms}")).unwrap_or_default()
            };
            let (name, p50, p95) = (plain(one.consumer.as_str()), ms("p50_ms", 50), ms("p95_ms", 95));
            text.push_str(&format!("{at} {name} handled={handled} failed={failed} dead={dead}{p50}{p95}\n"));
        }
    }
    text
}
