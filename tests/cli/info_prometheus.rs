//! `info` as metrics: parsed by a strict parser of the text format, and checked by `promtool` where
//! it is installed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use thread_testkit::World;

type Labels = BTreeMap<String, String>;

/// A parsed page. Parsing asserts everything the format requires.
#[derive(Debug, Default)]
struct Page {
    types: BTreeMap<String, String>,
    samples: Vec<(String, Labels, f64)>,
}

impl Page {
    fn of(world: &World) -> Page {
        let text = world.thread(["info", "--format", "prometheus"]).quiet();
        check_with_promtool(&text);
        parse(&text)
    }

    /// The value of the only sample with this name and consumer.
    fn value(&self, name: &str, consumer: Option<&str>) -> Option<f64> {
        let of = |labels: &Labels| labels.get("consumer").map(String::as_str) == consumer;
        let found: Vec<f64> =
            self.samples.iter().filter(|(n, l, _)| n == name && of(l)).map(|(_, _, value)| *value).collect();
        assert!(found.len() <= 1, "{name} {consumer:?}: {found:?}");
        found.first().copied()
    }

    /// The states whose sample is 1 for a consumer.
    fn states(&self, consumer: &str) -> Vec<&str> {
        let samples = self.samples.iter().filter(|(name, labels, value)| {
            name == "thread_consumer_state" && labels["consumer"] == consumer && *value == 1.0
        });
        samples.map(|(_, labels, _)| labels["state"].as_str()).collect()
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Each metric has one HELP and one TYPE line, in this order and directly before its samples, which
/// are contiguous; names and labels have the required form; no sample occurs twice.
fn parse(text: &str) -> Page {
    assert!(text.ends_with('\n'));
    let mut page = Page::default();
    let mut seen = BTreeSet::new();
    let mut current = String::new();
    let mut lines = text.strip_suffix('\n').unwrap().split('\n').peekable();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            assert!(is_name(name) && !help.is_empty(), "{line}");
            let kind = lines.next().and_then(|line| line.strip_prefix(&format!("# TYPE {name} "))).unwrap();
            assert!(["gauge", "counter"].contains(&kind), "{kind}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            assert!(page.types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} twice");
            // In OpenMetrics a counter's family has the name without the `_total` suffix.
            let family = |name: &str| name.strip_suffix("_total").unwrap_or(name).to_owned();
            let families: BTreeSet<String> = page.types.keys().map(|name| family(name)).collect();
            assert_eq!(families.len(), page.types.len(), "{name} and another are one family");
            assert!(lines.peek().is_some_and(|next| next.starts_with(&format!("{name}{{"))), "{name}");
            current = name.to_owned();
            continue;
        }
        let (name, rest) = line.split_once('{').unwrap_or_else(|| panic!("no sample: {line:?}"));
        assert_eq!(name, current, "a sample apart from its metric");
        let (labels, value) = parse_labels(rest);
        let value: f64 = value.strip_prefix(' ').unwrap().parse().unwrap();
        assert!(value.is_finite() && seen.insert((name.to_owned(), labels.clone())), "{line}");
        page.samples.push((name.to_owned(), labels, value));
    }
    page
}

/// Parses labels up to the closing brace. Returns them and the text after it.
fn parse_labels(text: &str) -> (Labels, &str) {
    let mut labels = Labels::new();
    let mut rest = text;
    loop {
        let (name, value) = rest.split_once("=\"").unwrap();
        assert!(is_name(name), "{name}");
        let mut parsed = String::new();
        let mut chars = value.char_indices();
        let end = loop {
            match chars.next().expect("a label has an end") {
                (at, '"') => break at,
                (_, '\\') => parsed.push(match chars.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, c @ ('\\' | '"'))) => c,
                    other => panic!("no such escape: {other:?}"),
                }),
                (_, c) => parsed.push(c),
            }
        };
        assert!(labels.insert(name.to_owned(), parsed).is_none(), "{name} twice");
        rest = &value[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => return (labels, rest.strip_prefix('}').unwrap()),
        }
    }
}

fn check_with_promtool(text: &str) {
    let started = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    // Without promtool, the parser above has to be enough.
    let Ok(mut promtool) = started else { return };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn an_empty_thread_has_figures_of_its_own_alone() {
    let world = World::with_thread();
    let page = Page::of(&world);
    assert_eq!(page.value("thread_events", None), Some(0.0));
    assert_eq!(page.value("thread_last_event_id", None), Some(0.0));
    assert_eq!(page.value("thread_events_pushed_total", None), Some(0.0));
    let size = std::fs::metadata(world.inbox().join("events.db")).unwrap().len();
    assert_eq!(page.value("thread_database_bytes", None), Some(size as f64));
    assert!(!page.types.keys().any(|name| name.starts_with("thread_consumer_")), "{page:?}");
    let thread = world.inbox().to_string_lossy().into_owned();
    assert!(page.samples.iter().all(|(_, labels, _)| labels["thread"] == thread), "{page:?}");
}

#[test]
fn each_consumer_has_its_figures() {
    let world = World::with_thread();
    world.push("one");
    world.push("two");
    world.subscribe("failing", "exit 3", &["--backoff", "1h"]);
    world.wait_for_state("failing", "waiting");
    world.idle_consumer("resting", "content = 'two'");
    world.thread(["pause", "--consumer", "resting"]).quiet();
    let page = Page::of(&world);
    assert_eq!((page.states("failing"), page.states("resting")), (vec!["waiting"], vec!["paused"]));
    let states = page.samples.iter().filter(|(name, ..)| name == "thread_consumer_state").count();
    assert_eq!(states, 10);
    for (name, failing, resting) in [
        ("pending", Some(2.0), Some(1.0)),
        ("last_acked_id", Some(0.0), Some(0.0)),
        ("attempts", Some(1.0), Some(0.0)),
        ("dead_letters", Some(0.0), Some(0.0)),
        ("dead_letters_made_total", Some(0.0), Some(0.0)),
        ("filter_errors_total", Some(0.0), Some(0.0)),
        ("paused", Some(0.0), Some(1.0)),
        ("last_run_exit_code", Some(3.0), None),
    ] {
        let name = format!("thread_consumer_{name}");
        let found = (page.value(&name, Some("failing")), page.value(&name, Some("resting")));
        assert_eq!(found, (failing, resting), "{name}");
    }
    let of_failing = |name: &str| page.value(&format!("thread_consumer_{name}"), Some("failing")).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((0.0..600.0).contains(&of_failing("oldest_pending_seconds")), "{page:?}");
    assert!((now - of_failing("last_run_timestamp_seconds")).abs() < 600.0, "{page:?}");
    assert!((0.0..600.0).contains(&of_failing("last_run_duration_seconds")), "{page:?}");
    world.thread(["ack", "--consumer", "failing", "--event-id", "2"]).quiet();
    assert_eq!(Page::of(&world).value("thread_consumer_oldest_pending_seconds", Some("failing")), Some(0.0));
}

#[test]
fn no_name_can_break_the_page_or_colour_a_screen() {
    let world = World::named("a\"b\\c d");
    world.thread(["init", "inbox"]).quiet();
    let names = ["say \"hi\"", "back\\slash", "new\nline 1", "x\"} 1\n# TYPE x", "漢字🚀", "{}", ""];
    let insert = "INSERT INTO subscriptions (consumer_id, handler_cmd) VALUES (?1, 'true')";
    for name in names {
        world.db().execute(insert, [name]).unwrap();
    }
    // These pairs have the same escaped form; only one of each may be printed.
    world.db().execute(insert, ["\x1b[31mred"]).unwrap();
    world.db().execute(insert, ["\\u{1b}[31mred"]).unwrap();
    world.db().execute(insert, [vec![b'n', 0xff]]).unwrap();
    world.db().execute(insert, [vec![b'n', 0xfe]]).unwrap();
    let text = world.thread(["info", "--format", "prometheus"]).quiet();
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    let page = Page::of(&world);
    let of_pending = page.samples.iter().filter(|(name, ..)| name == "thread_consumer_pending");
    let found: BTreeSet<&str> = of_pending.map(|(_, labels, _)| labels["consumer"].as_str()).collect();
    let expected = names.into_iter().chain(["\\u{1b}[31mred", "n\u{fffd}"]);
    assert_eq!(found, expected.collect());
    assert_eq!(page.samples[0].1["thread"], world.inbox().to_str().unwrap());
}
