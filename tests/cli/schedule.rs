//! `thread schedule`: events that come again and again.

use std::process::Command;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use thread_testkit::{World, clients, kill_and_wait, missing, take_all, wait_until};

fn add(world: &World, words: &[&str]) -> String {
    world.thread(["schedule", "add"].iter().chain(words)).quiet()
}

fn list(world: &World) -> Vec<Value> {
    let printed = world.thread(["schedule", "list", "--json"]).quiet();
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The times for which events were made, oldest first.
fn made(world: &World) -> Vec<String> {
    let printed = world.thread(["peek", "--last-event-id", "0", "--limit", "100000"]).quiet();
    let event = |line: &str| serde_json::from_str::<Value>(line).unwrap();
    let events = printed.lines().map(event);
    events.map(|event| event["metadata"]["scheduled_for"].as_str().unwrap().to_owned()).collect()
}

fn time(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

/// Sets a field of a schedule, as if it had been so since long ago.
fn set(world: &World, name: &str, field: &str, to: DateTime<Utc>) {
    let to = to.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
    let sql = format!("UPDATE schedules SET schedule = json_set(schedule, '$.{field}', ?2) WHERE name = ?1");
    assert_eq!(world.db().execute(&sql, [name, &to]).unwrap(), 1);
}

#[test]
fn an_interval_makes_an_event_each_time_and_wakes_consumers() {
    let world = World::with_thread();
    take_all(&world, "bot");
    let words = ["tick", "--every", "300ms", "--source", "self", "--type", "record", "--meta", "a=b", "x"];
    assert!(add(&world, &words).starts_with("tick  next=20"));
    world.wait_until("three of them", || world.lines("seen.bot").len() >= 3);
    world.thread(["schedule", "remove", "tick"]).quiet();
    world.wait_until_quiet();
    let event: Value = serde_json::from_str(&world.jsonl()[0]).unwrap();
    assert_eq!(
        (&event["source"], &event["type"], &event["content"]),
        (&"self".into(), &"record".into(), &"x".into())
    );
    assert_eq!((&event["metadata"]["a"], &event["metadata"]["schedule"]), (&"b".into(), &"tick".into()));
    let times: Vec<_> = made(&world).iter().map(|text| time(text)).collect();
    for pair in times.windows(2) {
        let millis = (pair[1] - pair[0]).num_milliseconds();
        assert!(millis > 0 && millis % 300 == 0, "{times:?}");
    }
    assert_eq!(list(&world), Vec::<Value>::new());
    assert!(world.timer().is_none());
    world.assert_log_is_exact();
}

#[test]
fn schedules_are_listed_with_their_next_times() {
    let world = World::with_thread();
    let cron = ["morning", "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin", "Good morning"];
    add(&world, &cron);
    add(&world, &["poll", "--every", "15m", "--catch-up", "none", ""]);
    let all = list(&world);
    assert_eq!((&all[0]["name"], &all[0]["cron"]), (&"morning".into(), &"0 9 * * 1-5".into()));
    assert_eq!((&all[0]["tz"], &all[0]["catch_up"]), (&"Europe/Berlin".into(), &"one".into()));
    assert_eq!((&all[1]["every"], &all[1]["catch_up"]), (&"15m".into(), &"none".into()));
    let text = world.thread(["schedule", "list"]).quiet();
    assert!(text.contains("morning  0 9 * * 1-5 Europe/Berlin  next=20"), "{text}");
    assert!(text.contains("poll  every 15m  next=20"), "{text}");
    let next = world.thread(["schedule", "next", "morning", "-n", "12"]).quiet();
    assert_eq!(next.lines().count(), 12);
    for line in next.lines() {
        let local = DateTime::parse_from_rfc3339(line).unwrap();
        let (day, hour) = (local.format("%a").to_string(), local.format("%H:%M:%S").to_string());
        assert!(hour == "09:00:00" && !["Sat", "Sun"].contains(&&*day), "{line}");
    }
    let json = world.thread(["schedule", "next", "morning", "--json", "-n", "1"]).quiet();
    let first: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(first["next"], all[0]["next"]);
    assert!(world.thread(["info"]).quiet().contains("Scheduled: 0, and 2 schedules, the next due 20"));
}

#[test]
fn what_is_no_schedule_is_refused() {
    let world = World::with_thread();
    let fails = |words: &[&str], exit: i32, says: &str| {
        let error = world.thread(["schedule"].iter().chain(words)).fails(exit);
        assert!(error.contains(says), "{words:?}: {error}");
    };
    fails(&["add", "a", "--cron", "0 25 * * *", "x"], 2, "has wrong fields '0 25 * * *'");
    fails(&["add", "a", "--cron", "* * * * * *", "x"], 2, "has wrong fields");
    fails(&["add", "a", "--cron", "0 0 30 2 *", "x"], 2, "has no time");
    fails(&["add", "a", "--cron", "0 0 * * *", "--tz", "Mars/Base", "x"], 2, "time zone 'Mars/Base'");
    fails(&["add", "a", "--cron", "0 0 * * *", "--tz", "berlin", "x"], 2, "did you mean 'Europe/Berlin'?");
    fails(&["add", "a", "--every", "0", "x"], 2, "zero");
    fails(&["add", "a", "x"], 2, "--cron");
    fails(&["add", "a", "--every", "1m", "--cron", "0 0 * * *", "x"], 2, "--every");
    fails(&["add", "a", "--every", "1m", "--idempotency-key", "k", "x"], 2, "idempotency key");
    fails(
        &["add", "a", "--every", "1m", "--meta", "schedule=x", "x"],
        2,
        "has schedule in its metadata already",
    );
    fails(&["add", "", "--every", "1m", "x"], 2, "1 to 200 bytes");
    for word in ["remove", "pause", "resume", "next"] {
        fails(&[word, "a"], 1, "there is no schedule 'a'");
    }
    assert_eq!(world.query("SELECT user_version FROM pragma_user_version"), 0, "nothing was stored");
    add(&world, &["a", "--every", "1h", "x"]);
    fails(&["add", "a", "--every", "2h", "x"], 1, "there is a schedule 'a' already");
    assert_eq!(list(&world)[0]["every"], "1h");
    add(&world, &["a", "--every", "3h", "--replace", "y"]);
    add(&world, &["b", "--every", "4h", "--replace", "z"]);
    let all = list(&world);
    let facts: Vec<_> = all.iter().map(|one| (one["every"].as_str(), one["content"].as_str())).collect();
    assert_eq!(facts, [(Some("3h"), Some("y")), (Some("4h"), Some("z"))]);
    // The same again keeps its next time: a program may add its schedules each time it starts.
    let first = time(all[0]["next"].as_str().unwrap()) - TimeDelta::hours(1);
    set(&world, "a", "next", first);
    add(&world, &["a", "--every", "3h", "--replace", "y"]);
    assert_eq!(time(list(&world)[0]["next"].as_str().unwrap()), first);
    world.thread(["schedule", "pause", "a"]).quiet();
    add(&world, &["a", "--every", "3h", "--replace", "y"]);
    let (_, note) = world.thread(["schedule", "next", "a"]).ends_with(0);
    assert!(note.contains("'a' is paused"), "{note}");
}

/// After a night in which nothing ran.
#[test]
fn a_night_is_made_up_for_once_hour_by_hour_or_not() {
    for (catch_up, expected) in [("one", 1), ("all", 9), ("none", 0)] {
        let world = World::with_thread();
        world.off(["schedule", "add", "hourly", "--cron", "30 * * * *", "--catch-up", catch_up, "x"]).quiet();
        let next = time(list(&world)[0]["next"].as_str().unwrap());
        set(&world, "hourly", "next", next - TimeDelta::hours(9));
        world.thread(["dispatch"]).quiet();
        let made = made(&world);
        assert_eq!(made.len(), expected, "{catch_up}: {made:?}");
        // The newest comes last, and what comes next is what would have come.
        if let Some(last) = made.last() {
            assert_eq!(time(last), next - TimeDelta::hours(1));
        }
        assert_eq!(time(list(&world)[0]["next"].as_str().unwrap()), next);
        world.thread(["dispatch"]).quiet();
        world.thread(["prune", "--before-id", "1000", "--force"]).ends_with(0);
        world.thread(["dispatch"]).quiet();
        assert_eq!(world.query("SELECT count(*) FROM events"), 0, "nothing comes twice");
    }
}

#[test]
fn a_paused_schedule_rests_and_goes_on_without_what_was_due_in_between() {
    let world = World::with_thread();
    world.off(["schedule", "add", "a", "--every", "1h", "--catch-up", "all", "x"]).quiet();
    world.off(["schedule", "pause", "a"]).quiet();
    assert!(world.thread(["schedule", "list"]).quiet().contains("a  every 1h  paused"));
    set(&world, "a", "next", Utc::now() - TimeDelta::hours(5));
    world.thread(["dispatch"]).quiet();
    world.off(["schedule", "resume", "a"]).quiet();
    world.thread(["dispatch"]).quiet();
    assert_eq!(made(&world), Vec::<String>::new());
    let left = time(list(&world)[0]["next"].as_str().unwrap()) - Utc::now();
    assert!(left > TimeDelta::minutes(59) && left <= TimeDelta::hours(1), "{left}");
    // Resuming one that goes on changes nothing.
    let before = list(&world);
    world.off(["schedule", "resume", "a"]).quiet();
    assert_eq!(list(&world), before);
}

#[test]
fn each_time_comes_once_though_two_dispatch_and_timers_are_killed() {
    let world = World::with_thread();
    let added = add(&world, &["tick", "--every", "40ms", "--catch-up", "all", "x"]);
    let first = time(added.trim().strip_prefix("tick  next=").unwrap());
    wait_until("enough events", || {
        if let Some(pid) = world.timer() {
            kill_and_wait(pid);
        }
        let two: Vec<_> = (0..2).map(|_| world.thread(["dispatch"]).spawn()).collect();
        two.into_iter().for_each(|one| assert!(one.wait_with_output().unwrap().status.success()));
        made(&world).len() > 50
    });
    world.thread(["schedule", "remove", "tick"]).quiet();
    let made = made(&world);
    for (at, text) in made.iter().enumerate() {
        assert_eq!(time(text), first + TimeDelta::milliseconds(40) * i32::try_from(at).unwrap());
    }
    // A timer may have been killed before it wrote the log, which the next push does.
    world.off(["push", "last"]).quiet();
    world.assert_log_is_exact();
}

#[test]
fn a_schedule_whose_zone_is_gone_is_paused_and_doctor_says_so() {
    let world = World::with_thread();
    world.off(["schedule", "add", "a", "--cron", "* * * * *", "--tz", "UTC", "x"]).quiet();
    set(&world, "a", "next", Utc::now() - TimeDelta::hours(1));
    world
        .db()
        .execute("UPDATE schedules SET schedule = json_set(schedule, '$.timing.cron.zone', 'Mars/Base')", [])
        .unwrap();
    let (found, _) = world.thread(["doctor"]).ends_with(1);
    assert!(
        found.contains("the schedule 'a' makes no events: it is in the time zone 'Mars/Base'"),
        "{found}"
    );
    world.thread(["dispatch"]).quiet();
    assert_eq!((made(&world).len(), &list(&world)[0]["paused"]), (0, &true.into()));
    assert!(world.log().iter().any(|line| line.contains("[ERROR] schedule: 'a' is paused")));
    world.thread(["schedule", "next", "a"]).fails(1);
}

/// Prints, for each case, the times by croniter, in ten years.
const BY_CRONITER: &str = r"
import sys
from datetime import datetime, timezone
from zoneinfo import ZoneInfo
from croniter import croniter
for line in sys.stdin:
    zone, count, fields = line.rstrip('\n').split('\t')
    times = croniter(fields, datetime.now(ZoneInfo(zone)))
    for _ in range(int(count)):
        print(times.get_next(datetime).astimezone(timezone.utc).strftime('%Y-%m-%dT%H:%M:%SZ'))
    print()
";

/// Ten years of times in three zones are those of croniter. At the hours in which the clocks are changed, the two differ
/// on purpose, so none of the cases is there.
#[test]
fn ten_years_are_those_of_croniter() {
    let python = match clients::python() {
        Ok(python) => python,
        Err(needs) => return missing(&needs),
    };
    let cases: Vec<(&str, u32, &str)> = ["Europe/Berlin", "America/New_York", "Asia/Kolkata"]
        .into_iter()
        .flat_map(|zone| {
            [
                (zone, 2600, "0 9 * * 1-5"),
                (zone, 3650, "30 12 * * *"),
                (zone, 120, "15 6 1 * *"),
                (zone, 40, "0 0 31 1,3,5,7 *"),
                (zone, 500, "5 4 13 * 5"),
                (zone, 2, "0 12 29 2 *"),
                (zone, 4000, "*/20 8-10 * jan,jun mon"),
                (zone, 500, "7,9 23 1-7 */3 sun"),
            ]
        })
        .collect();
    let input: String =
        cases.iter().map(|(zone, count, fields)| format!("{zone}\t{count}\t{fields}\n")).collect();
    let world = World::with_thread();
    world.write("cases", &input);
    let theirs = Command::new(python)
        .args(["-c", BY_CRONITER])
        .stdin(std::fs::File::open(world.path("cases")).unwrap())
        .output()
        .unwrap();
    assert!(theirs.status.success(), "{}", String::from_utf8_lossy(&theirs.stderr));
    let theirs = String::from_utf8(theirs.stdout).unwrap();
    for (at, ((zone, count, fields), theirs)) in cases.iter().zip(theirs.split("\n\n")).enumerate() {
        let name = at.to_string();
        world.off(["schedule", "add", &name, "--cron", fields, "--tz", zone, "x"]).quiet();
        let ours = world.thread(["schedule", "next", &name, "-n", &count.to_string()]).quiet();
        let ours = ours.lines().map(|line| time(line).to_rfc3339_opts(chrono::SecondsFormat::Secs, true));
        assert!(ours.eq(theirs.trim_start().lines()), "{fields} in {zone}");
    }
}
