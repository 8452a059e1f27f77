//! Reading with any filter returns exactly the events that plain SQLite matches one by one.

use std::ops::ControlFlow;

use proptest::prelude::*;
use rusqlite::Connection;
use thread::After;
use thread::model::filter::{Filter, Scope};
use thread::queue::{Remaining, Selection};

use crate::world::{CONTENTS, Parts, Place, SOURCES, SUBTYPES, cases, matching, parts};

fn pick(from: &'static [&'static str]) -> impl Strategy<Value = String> + Clone {
    prop::sample::select(from).prop_map(str::to_owned)
}

fn column() -> impl Strategy<Value = String> {
    pick(&["id", "created_at", "source", "type", "subtype", "content", "events.source", "events.id"])
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\0', "").replace('\'', "''"))
}

fn literal() -> impl Strategy<Value = String> {
    prop_oneof![
        (-2..60i64).prop_map(|n| n.to_string()),
        pick(&["NULL", "1.5", "x'6162'", "9223372036854775807", "'message'", "'record'", "'2026-03-18'"]),
        prop::sample::select(SOURCES).prop_map(quoted),
        prop::sample::select(SUBTYPES).prop_map(quoted),
        prop::sample::select(CONTENTS).prop_map(quoted),
    ]
}

/// An expression with a value.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => column(),
        2 => literal(),
        1 => (2..7i64, column()).prop_map(|(n, c)| format!("{c} % {n}")),
        1 => column().prop_map(|c| format!("length({c})")),
        1 => column().prop_map(|c| format!("upper(substr({c}, 1, 3))")),
        1 => (column(), literal()).prop_map(|(a, b)| format!("coalesce({a}, {b})")),
        1 => (column(), literal(), column()).prop_map(|(a, b, c)| format!("({a} || {b} || {c})")),
        1 => (column(), column()).prop_map(|(a, b)| format!("instr({a}, {b})")),
        1 => pick(&["'$.n'", "'$.k'", "'$'"]).prop_map(|p| format!("content ->> {p}")),
        1 => pick(&["'$.n'", "'$.k'", "'$.k[0]'"]).prop_map(|p| format!("json_extract(content, {p})")),
        1 => Just("json_type(content)".to_owned()),
    ]
}

/// One condition.
fn condition() -> impl Strategy<Value = String> {
    let compare = pick(&["=", "<>", "!=", "<", "<=", ">", ">=", "IS", "IS NOT", "=="]);
    let like = pick(&["'%'", "'s%'", "'S_lf'", "'%a%'", "'50!%!_%' ESCAPE '!'", "NULL", "'%☃'", "''"]);
    let glob = pick(&["'*'", "'s*'", "'[Ss]elf'", "'?????'", "'internal:*:warden'", "'*[[]a]*'"]);
    let not = pick(&["", "NOT "]);
    prop_oneof![
        6 => (value(), compare, value()).prop_map(|(a, op, b)| format!("{a} {op} {b}")),
        3 => (column(), not.clone(), like).prop_map(|(c, not, p)| format!("{c} {not}LIKE {p}")),
        2 => (column(), not.clone(), glob).prop_map(|(c, not, p)| format!("{c} {not}GLOB {p}")),
        2 => (value(), not.clone(), prop::collection::vec(literal(), 0..4))
            .prop_map(|(v, not, list)| format!("{v} {not}IN ({})", list.join(", "))),
        2 => (value(), not.clone(), literal(), literal())
            .prop_map(|(v, not, a, b)| format!("{v} {not}BETWEEN {a} AND {b}")),
        2 => (value(), not).prop_map(|(v, not)| format!("{v} IS {not}NULL")),
        1 => Just("json_valid(content)".to_owned()),
        2 => (0..9i64).prop_map(|n| format!("json_valid(content) AND json_extract(content, '$.n') > {n}")),
        1 => (0..9i64)
            .prop_map(|n| format!("CASE WHEN json_valid(content) THEN json_extract(content, '$.n') = {n} ELSE 0 END")),
        2 => (0..9i64).prop_map(|n| format!("json_extract(content, '$.n') = {n}")),
        // Fails on exactly one event: for its id the sum is the smallest integer, whose absolute value
        // overflows.
        1 => (1..40i64).prop_map(|n| format!("abs(-9223372036854775807 + {} - id) > 0", n - 1)),
        1 => pick(&["1", "0", "NULL", "'1 apple'", "content", "id"]),
    ]
}

/// A random filter that is not too complex.
pub fn filter() -> impl Strategy<Value = Filter> {
    any_filter().prop_filter_map("too complex", |text| match Filter::new(&text, Scope::Subscription) {
        Err(refusal) if refusal.to_string().contains("too complex") => None,
        checked => Some(checked.unwrap_or_else(|e| panic!("{text}: the filter {e}")).unwrap()),
    })
}

fn any_filter() -> impl Strategy<Value = String> {
    let tree = condition().prop_recursive(4, 12, 3, |inner| {
        let inner = inner.boxed();
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) AND ({b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) OR ({b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a} AND {b}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a} OR {b}")),
            inner.clone().prop_map(|a| format!("NOT ({a})")),
            (inner.clone(), inner.clone(), inner)
                .prop_map(|(a, b, c)| format!("CASE WHEN {a} THEN ({b}) ELSE ({c}) END")),
        ]
    });
    (tree, pick(&["", " -- only these", "\n", " /* these */ "])).prop_map(|(tree, end)| tree + &end)
}

/// Pieces of SQL in any order, most of which are not filters.
fn scraps() -> impl Strategy<Value = String> {
    let scrap = pick(&[
        "id",
        "1",
        "(",
        ")",
        ",",
        ";",
        "SELECT",
        "FROM",
        "events",
        "subscriptions",
        "sqlite_schema",
        "UNION",
        "AND",
        "OR",
        "NOT",
        "=",
        "?1",
        ":x",
        "'a",
        "'",
        "\"id\"",
        "[id]",
        "`id`",
        "--",
        "/*",
        "*/",
        "\n",
        "ORDER BY",
        "LIMIT",
        "GROUP BY",
        "HAVING",
        "EXISTS",
        "IN",
        "json_each(content)",
        "random()",
        "max(id)",
        "OVER ()",
        "WITH x AS",
        "VALUES",
        "rowid",
        "main.events.id",
        "RAISE(IGNORE)",
        "COLLATE NOCASE",
        "CAST(",
        "AS TEXT",
        "x'00'",
        "0x7f",
        "INDEXED BY",
        "JOIN consumer_progress",
        "ON",
        "RETURNING",
        "*",
        "count(*)",
        "MATCH",
        "REGEXP",
        "->>",
        "NULL",
        "CASE WHEN",
        "THEN",
        "END",
        "PRAGMA",
        "ATTACH",
        "load_extension('x')",
        "FILTER (WHERE",
        "WINDOW w AS",
    ]);
    prop::collection::vec(scrap, 1..8).prop_map(|scraps| scraps.join(" "))
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn a_read_returns_what_sqlite_matches_event_by_event(
        events in prop::collection::vec(parts(), 1..40),
        filters in prop::collection::vec(filter(), 8),
        after in -1..45i64,
        limit in prop::option::of(1..20u64),
        patience in 1..6usize,
    ) {
        let mut place = Place::new();
        place.store(&events);
        let plain = place.plain();
        for filter in filters.into_iter().map(Some).chain([None]) {
            let text = filter.as_ref().map(Filter::text);
            let mut expected = matching(&plain, text);
            expected.retain(|&id| id > after);
            prop_assert_eq!(&place.read(after, filter.as_ref()), &expected, "{:?}", text);
            expected.truncate(limit.unwrap_or(u64::MAX) as usize);
            // Also in short pages.
            let mut selection = Selection { limit, filter: filter.clone(), ..After(after).into() };
            let mut paged = Vec::new();
            loop {
                let page_began = paged.len();
                let remaining = place.queue.read_page(&mut selection, &mut |row| {
                    paged.push(row.id);
                    if paged.len() - page_began < patience { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                });
                prop_assert!(paged.len() - page_began <= patience, "more was handed over than was taken");
                if remaining.unwrap() == Remaining::None {
                    break;
                }
            }
            prop_assert_eq!(&paged, &expected, "in pages: {:?}", text);
        }
    }
}

proptest! {
    #![proptest_config(cases(3000))]

    #[test]
    fn the_check_never_panics_and_accepted_text_accesses_only_the_event(
        text in prop_oneof![3 => scraps(), 1 => ".{0,40}", 1 => "[()'\"a-z ;=-]{0,30}"]
    ) {
        let Ok(Some(_)) = Filter::new(&text, Scope::Reading) else { return Ok(()) };
        let conn = two_events();
        // After a false condition it must not return rows: it did not leave its parentheses.
        let behind = format!("SELECT id FROM events WHERE id = 1 AND 0 AND (\n{text}\n)");
        let statement = conn.prepare(&behind).unwrap();
        prop_assert!(statement.readonly());
        prop_assert_eq!(statement.parameter_count(), 0);
        drop(statement);
        prop_assert_eq!(ids(&conn, &behind), [0i64; 0], "{}", text);
        // Its result must depend only on the event: the rest of the database can be deleted.
        let answer = format!("SELECT id FROM events WHERE id = 1 AND (\n{text}\n)");
        let before = ids(&conn, &answer);
        conn.execute_batch(
            "DELETE FROM events WHERE id <> 1; DROP TABLE subscriptions; DROP TABLE consumer_progress; \
             DROP TABLE consumers",
        ).unwrap();
        prop_assert_eq!(ids(&conn, &answer), before, "{}", text);
    }
}

fn ids(conn: &Connection, sql: &str) -> Vec<i64> {
    let mut statement = conn.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.map_while(Result::ok).collect()
}

fn two_events() -> Connection {
    let conn = Connection::open_in_memory().unwrap();
    conn.execute_batch(include_str!("../../src/sqlite/schema.sql")).unwrap();
    conn.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_DQS_DML, false).unwrap();
    conn.execute_batch(
        "INSERT INTO events (source, type, content) VALUES ('self', 'record', '[1]'), ('b', 'message', 'x'); \
         INSERT INTO subscriptions VALUES ('a', 'true', NULL); INSERT INTO consumer_progress VALUES ('a', 1, '')",
    )
    .unwrap();
    conn
}

#[test]
fn an_event_on_which_a_filter_fails_hides_no_other() {
    let mut place = Place::new();
    let content = |n| if n % 3000 == 5 { "broken".into() } else { format!("{{\"n\":{}}}", n % 7) };
    let events: Vec<_> = (1..=9500).map(|n| Parts::record(content(n))).collect();
    place.store(&events);
    for text in ["json_extract(content, '$.n') = 3", "json_extract(content, '$.n') = 3 AND id > 8000"] {
        let filter = Filter::new(text, Scope::Subscription).unwrap();
        let expected = matching(&place.plain(), Some(text));
        assert!(expected.len() > 200);
        assert_eq!(place.read(0, filter.as_ref()), expected, "{text}");
    }
}
