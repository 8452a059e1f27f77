//! Malicious filters: rejected up front, or cut off in bounded time and memory.

use std::io::Read;
use std::time::{Duration, Instant};

use thread_testkit::{PATIENCE, World, ids, wait_until};

/// Maximum processor time of any of these. Wall-clock time would depend on other processes.
const LONG: Duration = Duration::from_secs(20);

/// Maximum memory of any of these, in KiB.
const MUCH: i64 = 300 * 1024;

/// Runs `peek` with a filter to its end. Returns its exit code and its output.
#[track_caller]
#[allow(clippy::zombie_processes, reason = "wait4 reaps it")]
fn peek(world: &World, filter: &str) -> (i32, String, String) {
    let began = Instant::now();
    let mut child = world.thread(["peek", "--last-event-id", "0", "--filter", filter]).spawn();
    drop(child.stdin.take());
    let mut stderr = child.stderr.take().unwrap();
    let stderr = std::thread::spawn(move || {
        let mut text = Vec::new();
        stderr.read_to_end(&mut text).unwrap();
        text
    });
    let mut stdout = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    let stderr = stderr.join().unwrap();
    // Reaped here rather than by the standard library, because `wait4` also reports peak memory.
    let mut status = 0;
    // SAFETY: the struct is plain data that the call fills in.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        assert_eq!(libc::wait4(child.id() as i32, &raw mut status, 0, &raw mut usage), child.id() as i32);
        usage
    };
    let shown: String = filter.chars().take(100).collect();
    assert!(libc::WIFEXITED(status), "{shown}: did not exit ({status})");
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    let computed = time(usage.ru_utime) + time(usage.ru_stime);
    assert!(computed < LONG && began.elapsed() < PATIENCE, "{shown}: took {computed:?}");
    assert!(usage.ru_maxrss < MUCH, "{shown}: took {} KiB", usage.ru_maxrss);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (libc::WEXITSTATUS(status), text(stdout), text(stderr))
}

#[track_caller]
fn refused(world: &World, filter: &str) {
    let shown: String = filter.chars().take(100).collect();
    let (code, stdout, stderr) = peek(world, filter);
    assert_eq!((code, stdout.as_str()), (2, ""), "{shown}: {stderr}");
    assert!(stderr.starts_with("Error: the filter ") && stderr.contains(" - "), "{shown}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{shown}: {stderr}");
}

/// Filters that must be rejected, whatever is stored.
fn forbidden() -> Vec<String> {
    let mut all: Vec<String> = [
        // Breaking out of the parentheses.
        "1) OR (1", "1) --", "1 /*", "1)) OR ((1", ")", "(", "1) UNION SELECT (1", "1 --\n) OR (1", "1 /* ) */ ) OR (1",
        "1;", "1; DROP TABLE events", "1; SELECT 1", "1\n;\n--", "; 1", "1 ORDER BY id", "1 LIMIT 1", "1 LIMIT 1 OFFSET 1",
        "1 GROUP BY id", "1 GROUP BY id HAVING 1", "1 WINDOW w AS ()", "1 UNION SELECT 1", "1 EXCEPT SELECT 1",
        "1 INTERSECT SELECT id FROM events", "1 RETURNING id", "1 ON CONFLICT DO NOTHING", "1 AS x", "1 FROM events",
        "id = 1, id = 2", "(1, 2)", "--", "/* */", "-- 1", "/* 1", "*", "events.*", "x'", "'", "\"", "[", "`",
        "1)); CREATE TABLE x (y INT, CHECK ((1", "1), CHECK (1", "1) CHECK (1", "1), UNIQUE (id", "1) STRICT --",
        "1) WITHOUT ROWID --", "1 COLLATE", "CHECK (1)", "CONSTRAINT c CHECK (1)", "GENERATED ALWAYS AS (1)",
        // Subqueries of every kind.
        "(SELECT 1)", "id IN (SELECT 1)", "EXISTS (SELECT 1)", "NOT EXISTS (SELECT 1 FROM events e WHERE e.id > events.id)",
        "id = (SELECT max(id) FROM events)", "(VALUES (1))", "id IN (VALUES (1), (2))", "(SELECT content FROM events LIMIT 1) = 'x'",
        "id IN (WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n FROM r)",
        "EXISTS (WITH RECURSIVE r(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM r) SELECT 1 FROM r WHERE n < 0)",
        "(WITH x AS (SELECT 1) SELECT * FROM x)", "CASE WHEN 0 THEN (SELECT 1) END", "1 OR (SELECT 1)",
        "coalesce(1, (SELECT 1))", "(id, type) IN (SELECT id, type FROM events)", "(id, 1) = (SELECT 1, 1)",
        // Other tables.
        "id IN subscriptions", "id IN main.subscriptions", "id IN sqlite_schema", "id IN sqlite_master", "id IN events",
        "id IN temp.events", "subscriptions.handler_cmd = ''", "sqlite_schema.name = 'x'", "main.subscriptions.filter = ''",
        "id IN dbstat", "id IN pragma_table_list", "0 IN pragma_user_version", "1 IN json_each('[1]')", "1 IN json_tree(content)",
        "1 IN pragma_table_info('events')", "1 IN fts5vocab", "1 IN generate_series(1, 9)", "new.id = 1", "old.id = 1",
        "excluded.id = 1", "temp.events.id = 1", "sender = 'alice'", "consumer_id = 'x'", "main.events.nothing = 1",
        "events.consumer_id = 'x'",
        // Statements.
        "PRAGMA writable_schema = 1", "ATTACH 'x' AS y", "DETACH main", "VACUUM", "BEGIN", "DELETE FROM events",
        "UPDATE events SET content = ''", "INSERT INTO events DEFAULT VALUES", "SELECT 1", "DROP TABLE events", "EXPLAIN 1",
        "REINDEX", "ANALYZE", "CREATE TABLE x (y)", "ALTER TABLE events ADD COLUMN x",
        // Functions that build large values, access other data, change state or load code.
        "load_extension('x')", "load_extension('x', 'y')", "readfile('/etc/passwd') IS NULL", "writefile('x', 'y')", "edit('x')",
        "randomblob(1) IS NULL", "random() > 0", "zeroblob(1000000000) IS NULL", "length(zeroblob(1000000000)) > 0",
        "length(randomblob(1000000000)) > 0", "printf('%1000000000s', 'x') = ''", "format('%.1000000000f', 1.0) = ''",
        "printf('%*d', 1000000000, 1) = ''", "replace(content, 'a', content) = ''", "group_concat(content) = ''",
        "string_agg(content, '') = ''", "quote(content) = ''", "unhex('00') = x'00'", "soundex('x') = ''", "char(0) MATCH 'x'",
        "json_group_array(content) = ''", "json_set(content, '$.x', 1) = ''", "json_insert('[]', '$[#]', 1) = ''",
        "json_patch(content, content) = ''", "json_object('a', 1) = ''", "json_array(1) = ''", "jsonb(content) IS NULL",
        "json_pretty(content) = ''", "json_each(content) = 1", "json_remove(content, '$') = ''", "sqlite_version() = ''",
        "sqlite_source_id() = ''", "changes() = 0", "total_changes() = 0", "last_insert_rowid() = 0",
        "sqlite_compileoption_get(1) = ''", "sqlite_compileoption_used('X')", "sqlite_log(1, 'x')", "sqlite_offset(content) = 0",
        "fts5(content) = 1", "fts3_tokenizer('x') IS NULL", "rtreecheck('x') = ''", "matchinfo(content) IS NULL", "snippet(content) = ''",
        "highlight(content, 1, 2, 3) = ''", "bm25(content) > 0", "optimize(content) = ''", "offsets(content) = ''",
        "exp(1) > 0", "pow(2, 2) = 4", "nosuchfunction(1)", "\"load_extension\"('x')", "[random]() > 0", "RANDOM() > 0",
        "subtype(content) = 1", "current_user = 'x'", "strftime() IS NULL AND datedebug('now') = ''", "decimal('1') = 1",
        // Aggregates and windows.
        "count(*) > 1", "count(id)", "max(id) = 1", "min(id) = 1", "sum(id) > 0", "total(id)", "avg(id) > 0", "count(*) FILTER (WHERE 1)",
        "row_number() OVER () = 1", "rank() OVER (ORDER BY id) = 1", "lag(id) OVER (ORDER BY id) = 1", "sum(id) OVER () > 1",
        "max(id) OVER (PARTITION BY type) = id", "ntile(2) OVER w", "count(DISTINCT id) > 1",
        "lower(type ORDER BY id) = ''", "lower(type) FILTER (WHERE 1)", "lower(type) OVER ()", "lower(*) = ''",
        // Parameters.
        "id = ?", "id = ?1", "id = ?32766", "id = ?99999999", "id = :x", "id = @x", "id = $x", "id = $x::y(z)", "?1 IS NULL", "id IN (?, ?)",
        "coalesce(:a, 1)", "id = ?0", "id = #1",
        // Unknown names, operators and collations.
        "source = \"message\"", "\"id\" = \"self\"", "content MATCH 'x'", "content NOT MATCH 'x'", "content REGEXP '.*'",
        "regexp('.*', content)", "source = 'x' COLLATE nosuch", "source COLLATE \"; DROP\" = 'x'", "RAISE(IGNORE)", "RAISE(ABORT, 'x')",
        "RAISE(ROLLBACK, 'x')", "id = id = = id", "id === 1", "id <=> 1", "id && 1", "!id", "id := 1", "events = 1", "rowid.id = 1",
        "type ILIKE 'x'", "CASE END", "CASE id WHEN END", "BETWEEN 1 AND 2", "IN (1)", "id IN (1", "LIKE 'x'",
        "content LIKE 'x' ESCAPE", "(id, type) = 1", "(id, type) > (1)", "(1, 2) IN ((1, 2))", "id ISNULL NULL", "id IS DISTINCT 1",
        "lower() = ''", "lower(type, type) = ''", "abs() = 1", "substr(type) = ''", "instr(type) = 1", "iif() = 1",
        "true.id", "x'0' = content", "0x = 1", "0x11111111111111111 = 1", "1e = 1", "1__0 = 1", "1_ = 1",
        // Look-alike characters.
        "type ＝ 'message'", "type = ‘message’", "ｔｙｐｅ = 'message'", "\u{202e}type", "type\u{a0}= 'message'",
        "tуpe = 'message'", "İd = 1", "ıd = 1", "'a' = 'a'\u{2028}", "id = ١", "\u{1}", "\u{7f}",
    ]
    .map(str::to_owned)
    .to_vec();
    all.push("(".repeat(30_000) + "1" + &")".repeat(30_000));
    all.push("(".repeat(60_000));
    all.push(")".repeat(60_000));
    all.push("NOT ".repeat(15_000) + "1");
    all.push("-".to_owned() + &" -".repeat(20_000) + "1");
    all.push("~".repeat(60_000) + "1");
    all.push("1".to_owned() + &" OR 1".repeat(12_000));
    all.push("id = 1".to_owned() + &" OR id = 1".repeat(6_000));
    all.push("'a'".to_owned() + &" || 'a'".repeat(9_000));
    all.push("abs(".repeat(10_000) + "1" + &")".repeat(10_000));
    all.push("CASE WHEN 1 THEN ".repeat(3_000) + "1" + &" END".repeat(3_000));
    all.push("id IN (".repeat(5_000) + "1" + &")".repeat(5_000));
    all.push("(SELECT ".repeat(5_000) + "1" + &")".repeat(5_000));
    all.push("[".repeat(65_536));
    all.push("'".repeat(65_535));
    all.push("x".repeat(65_536));
    all.push("1".repeat(65_537));
    all.push(format!("content = '{}'", "x".repeat(70_000)));
    all.push(format!("json_extract(content{}) = 1", ", '$.a'".repeat(5_000)));
    all.push(format!("coalesce({}) = 1", vec!["id"; 2_000].join(",")));
    // A pattern that is too long is rejected up front, provided the check evaluates it.
    all.push(format!("content LIKE '%{}b'", "a".repeat(1100)));
    all.push(format!("content NOT GLOB '*{}b'", "a".repeat(1100)));
    all.push(format!("like('%{}b', content)", "a".repeat(1100)));
    all.push(format!("content LIKE '{}' || '{}'", "a".repeat(600), "a".repeat(600)));
    all.push(
        format!("trim(content, '{}') = ''", "é".repeat(200))
            .replace("trim(content", "load_extension(content"),
    );
    all
}

#[test]
fn malicious_filters_are_refused_and_change_nothing() {
    let world = World::with_thread();
    for content in ["{}", "a", "null"] {
        world.push(content);
    }
    let before = world.table_as_jsonl();
    let all = forbidden();
    for filter in &all {
        refused(&world, filter);
    }
    // Rejected for subscriptions too, and then no consumer is subscribed.
    for filter in all.iter().step_by(7).filter(|filter| !filter.starts_with('-')) {
        let args = ["subscribe", "--consumer", "c", "--handler", "true", "--filter", filter];
        world.off(args).fails(2);
    }
    assert_eq!(world.query("SELECT count(*) FROM subscriptions"), 0);
    assert_eq!(world.table_as_jsonl(), before);
    eprintln!("{} hostile filters refused", all.len());
}

#[test]
fn a_subscription_never_asks_the_clock_or_the_time_zone() {
    let world = World::with_thread();
    for filter in [
        "created_at > CURRENT_TIMESTAMP",
        "date(created_at) = '2026-03-18'",
        "date(content) IS NOT NULL",
        "created_at < current_date",
        "time = CURRENT_TIME",
        "date('now') = date(created_at)",
        "datetime() > created_at",
        "strftime('%s') > '5'",
        "julianday(('now')) > 1",
        "unixepoch('now', '-1 day') > 1",
        "date(created_at, 'localtime') = '2026-03-18'",
        "time(created_at, '+1 day', 'utc') = ''",
        "timediff('now', created_at) = ''",
        "date('subsec') = ''",
        "date(lower('NOW')) = ''",
        "date('n' || 'ow') = ''",
        "date(x'6e6f77') = ''",
        "type = 'x' AND date('now') > ''",
        "CASE WHEN 0 THEN time('subsecond') = '' END",
        "\"date\"('now') = ''",
    ] {
        let args = ["subscribe", "--consumer", "c", "--handler", "true", "--filter", filter];
        world.off(args).fails(2);
        if !filter.starts_with("time = ") {
            assert_eq!(peek(&world, filter).0, 0, "a reading may: {filter}");
        }
    }
}

/// Filters that are accepted and then try to use unbounded time or memory on a large event.
fn heavy() -> Vec<String> {
    let a = |count: usize| "a".repeat(count);
    vec![
        "instr(content, substr(content, 2) || 'b')".into(),
        "instr(content, substr(content, 2000000) || 'b')".into(),
        "instr(substr(content, 2), substr(content, 1, 2000000) || 'b') OR instr(content, content || 'b')"
            .into(),
        "trim(content, content) = 'x'".into(),
        "ltrim(content, substr(content, 1, 250)) = 'x'".into(),
        "rtrim(content, 'bcdefghijklmnopqrstuvwxyz' || substr(content, 1, 200)) = 'x'".into(),
        format!("content LIKE '%{}b'", a(250)),
        format!("content LIKE '%{}b%{}b'", a(120), a(120)),
        format!("content LIKE '{}b'", "%a".repeat(120)),
        format!("content LIKE '{}b'", "%_a".repeat(80)),
        format!("content LIKE '{}b'", "_%".repeat(120)),
        format!("content GLOB '*{}b'", a(250)),
        format!("content GLOB '{}b'", "*a".repeat(120)),
        format!("content GLOB '{}b'", "*?".repeat(120)),
        format!("content GLOB '{}b'", "*[a-z]".repeat(40)),
        format!("content GLOB '*[{}][{}]b'", a(120), a(120)),
        "content LIKE substr(content, 1, 300)".into(),
        "content GLOB content".into(),
        format!("content LIKE '%{}b' ESCAPE 'a'", a(250)),
        format!("content LIKE '' || '{}b'", "%a".repeat(120)),
        format!("content LIKE ('' || '{}b')", "%a".repeat(120)),
        format!("id IN ({})", vec!["content"; 3000].join(",")),
        format!("{} = 1", vec!["content"; 900].join("+")),
        format!("{} = 1", vec!["(content+content)"; 450].join("*")),
        format!("id BETWEEN {} AND content", vec!["content"; 300].join(" AND content OR id BETWEEN ")),
        "hex(hex(hex(hex(content)))) = ''".into(),
        "content || content || content = ''".into(),
        "json_quote(json_quote(json_quote(content))) = ''".into(),
        format!("concat({}) = ''", vec!["content"; 60].join(", ")),
        format!("{} = ''", vec!["content"; 900].join(" || ")),
        format!("{}content{} = ''", "upper(".repeat(800), ")".repeat(800)),
        format!("{}content{} = ''", "hex(".repeat(500), ")".repeat(500)),
        format!("{}", vec!["length(upper(content)) = 1"; 900].join(" OR ")),
        format!("{}", (0..900).map(|n| format!("content LIKE '%a{n}b'")).collect::<Vec<_>>().join(" OR ")),
        format!("json_extract(content{}) = 1", ", '$.a'".repeat(60)),
        "json_extract(content, '$' || replace) = 1".replace(" || replace", ".a"),
        format!("content ->> '$.{}' = 1", a(60_000)),
        format!("content ->> '${}' = 1", "[0]".repeat(20_000)),
        format!("json_valid('{}')", "[".repeat(60_000)),
        format!("json_valid('{}{}')", "[".repeat(30_000), "]".repeat(30_000)),
        format!("json('{}') = ''", "{\"a\":".repeat(10_000)),
        format!("content IN ({})", vec!["upper(content)"; 3000].join(",")),
        format!("source IN ({})", (0..8000).map(|n| format!("'{n}'")).collect::<Vec<_>>().join(",")),
        format!(
            "({}) AND ({})",
            vec!["type = 'x'"; 900].join(" OR "),
            vec!["source = 'x'"; 900].join(" OR ")
        ),
        format!("{}", vec!["(type = 'x' OR source = 'y')"; 900].join(" AND ")),
        vec!["(type = 'x' OR source = 'y')"; 36].join(" AND "),
        vec!["(type='x'AND source='y')"; 36].join("OR"),
        format!("({})AND({})", vec!["type='x'"; 50].join(" OR "), vec!["source='x'"; 40].join("OR ")),
        format!("({})AND({})", vec!["type=1"; 60].join(" OR "), vec!["id=1"; 50].join(" OR ")),
        "substr(content, -9223372036854775808, 9223372036854775807) = ''".into(),
        "round(1e308, 9223372036854775807) = 1".into(),
        "CAST(content AS INTEGER) = 1 OR CAST(content AS REAL) = 1 OR CAST(content AS NUMERIC) = 1".into(),
        "strftime(content, created_at) = ''".into(),
        format!("strftime('{}', created_at) = ''", "%c%Y".repeat(10_000)),
        "date(created_at, content) = ''".into(),
    ]
}

#[test]
fn expensive_filters_are_cut_off() {
    let world = World::with_thread();
    let push = ["push", "--source", "self", "--type", "message", "--content-file", "-"];
    world.off(push).stdin("a".repeat(1_000_000)).quiet();
    world.off(push).stdin(format!("[{}1]", "{\"a\":1},".repeat(120_000))).quiet();
    world.off(push).stdin("1".repeat(1_000_000)).quiet();
    world.off(push).stdin("a".repeat(4_000_000)).quiet();
    let (mut slowest, mut largest) = (Duration::ZERO, String::new());
    let all = heavy();
    for filter in &all {
        let began = Instant::now();
        let (code, stdout, stderr) = peek(&world, filter);
        let shown: String = filter.chars().take(100).collect();
        assert!(code == 0 || code == 2, "{shown}: exit {code}, {stderr}");
        assert_eq!(stdout, "", "{shown}");
        if began.elapsed() > slowest {
            (slowest, largest) = (began.elapsed(), shown);
        }
    }
    eprintln!("{} heavy filters over three large events; the slowest took {slowest:?}: {largest}", all.len());
}

#[test]
fn a_large_content_is_no_matter_to_a_filter_that_does_not_read_it() {
    let world = World::with_thread();
    let push = ["push", "--source", "self", "--type", "message", "--content-file", "-"];
    world.off(push).stdin("a".repeat(10_000_000)).quiet();
    world.off(push).stdin("small").quiet();
    let matching = |filter: &str| {
        let run = world.thread(["peek", "--last-event-id", "0", "--filter", filter]);
        thread_testkit::ids(&run.ok())
    };
    for filter in [
        "type = 'message'",
        "source = 'self'",
        "subtype IS NULL",
        "id < 9 AND type <> 'record'",
        "created_at > '2020'",
        "octet_length(content) > 0",
        "typeof(content) = 'text'",
        "content IS NOT NULL",
        "type = 'message' OR content = 'a'",
    ] {
        assert_eq!(matching(filter), [1, 2], "{filter}");
    }
    // A filter that reads the content fails on that event, which then does not match even under
    // NOT; the next event is still reached.
    for filter in [
        "content > ''",
        "NOT content = ''",
        "length(content) > 1",
        "substr(content, 1, 1) <> ''",
        "instr(content, 'm') >= 0",
    ] {
        assert_eq!(matching(filter), [2], "{filter}");
    }
}

#[test]
fn comparing_two_forms_of_time_is_warned_of() {
    let world = World::with_thread();
    world.push("x");
    let peek = |filter: &str| world.thread(["peek", "--filter", filter]);
    for misleading in [
        "created_at > datetime('now', '-1 hour')",
        "DATETIME('now') <= created_at",
        "created_at between datetime('now', '-1 day') and datetime('now')",
        "type = 'message' AND created_at<current_timestamp",
    ] {
        let warning = peek(misleading).warns();
        assert!(warning.contains("--since"), "{warning}");
    }
    for fine in [
        "datetime(created_at) > datetime('now', '-1 hour')",
        "created_at > '2026-03-18'",
        "date(created_at) = date('now')",
        "created_at >= strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 hour')",
    ] {
        assert_eq!(thread_testkit::ids(&peek(fine).quiet()), [1], "{fine}");
    }
}

#[test]
fn an_error_in_a_filter_is_about_the_text_that_was_given() {
    let world = World::with_thread();
    for (filter, says) in [
        ("source =", "it ends too early, where a value or a closing bracket is missing"),
        ("type IN ('a', ", "it ends too early, where a value or a closing bracket is missing"),
        ("(source = 'x' ", "it ends too early, where a value or a closing bracket is missing"),
        ("source = 'x", "the quote that begins with 'x is not closed"),
        ("source == == 'x'", "near \"==\": syntax error"),
    ] {
        let error = world.thread(["peek", "--filter", filter]).fails(2);
        let expected = format!("Error: the filter does not compile: {says} - ");
        assert!(error.starts_with(&expected), "{filter}: {error}");
    }
}

#[test]
fn what_is_no_json_gives_null_in_every_way_of_reading() {
    let world = World::with_thread();
    let order = "content ->> '$.event' = 'order'";
    world.subscribe("orders", "cat >>got", &["--deliver", "stdin", "--filter", order]);
    for content in ["words", "{\"event\":\"order\"}", "{\"event\":", "{\"event\":\"other\"}"] {
        world.push(content);
    }
    wait_until("the order", || ids(&world.read("got")) == [2]);
    world.wait_until_quiet();
    let consumer = world.consumer("orders");
    assert_eq!((&consumer["filter_errors"], &consumer["pending"]), (&0.into(), &0.into()));
    assert!(world.log().iter().all(|line| !line.contains("filter:")), "{:?}", world.log());
    let matching =
        |filter: &str| ids(&world.thread(["peek", "--since", "beginning", "--filter", filter]).quiet());
    assert_eq!(matching(order), [2]);
    assert_eq!(matching("content ->> '$.event' IS NULL"), [1, 3]);
    assert_eq!(matching("content ->> '$.event' = 'order' OR content LIKE 'w%'"), [1, 2]);
    assert_eq!(matching("json_type(content) IS NULL OR content -> '$.event' = '\"other\"'"), [1, 3, 4]);
    assert_eq!(ids(&world.thread(["pop", "orders", "--last-event-id", "0"]).quiet()), [2]);
}

#[test]
fn a_filter_that_can_fail_is_noted_when_it_is_subscribed() {
    let world = World::with_thread();
    let note = |filter: &str| {
        world.off(["subscribe", "c", "--replace", "--no-handler", "--filter", filter]).ends_with(0).1
    };
    assert_eq!(note("content ->> '$.event' = 'order'"), "");
    for (filter, why) in [
        ("json_extract(content, 'event') = 'order'", "bad JSON path: 'event'"),
        ("json_extract('{}', content) = 1", "bad JSON path: 'words'"),
        ("abs(-9223372036854775807 - id) > 0", "integer overflow"),
    ] {
        let said = note(filter);
        let begins = "Note: the filter can fail, and an event on which it fails does not match: ";
        assert!(said.lines().any(|line| line.starts_with(begins) && line.contains(why)), "{filter}: {said}");
    }
}
