//! A catalogue of common filters, compared with plain SQLite.

use thread::model::filter::{Filter, Scope};

use crate::world::{CONTENTS, Parts, Place, SOURCES, SUBTYPES, matching};

const USEFUL: &[&str] = &[
    "type = 'message'",
    "type <> 'record' AND source LIKE 'internal:%:warden'",
    "source LIKE 'external:telegram:%' OR source = 'self'",
    "source GLOB 'external:*:alice' OR source GLOB '[sS]elf'",
    "source NOT LIKE '%\\_off' ESCAPE '\\'",
    "source = 'SELF' COLLATE NOCASE",
    "source IN ('self', 'Self') AND subtype IN ('toolcall', 'decision')",
    "subtype IS NULL",
    "subtype IS NOT NULL AND subtype <> ''",
    "subtype IS NOT DISTINCT FROM 'toolcall'",
    "coalesce(subtype, 'none') = 'none'",
    "ifnull(nullif(subtype, ''), 'none') = 'none'",
    "iif(type = 'record', subtype = 'decision', 1)",
    "CASE type WHEN 'record' THEN subtype = 'decision' ELSE id > 3 END",
    "(type, subtype) = ('record', 'toolcall')",
    "(id, type) > (10, 'message')",
    "id BETWEEN 5 AND 9 OR id % 7 = 0",
    "id & 1 = 0 AND NOT (id >> 2) = 1",
    "content ->> '$.n' = 7",
    "content -> '$.k' = '\"a\"'",
    "json_valid(content) AND content ->> '$.n' IN (1, '7')",
    "json_valid(content) AND json_extract(content, '$.k[0]') = 'a'",
    "json_valid(content) AND json_type(content, '$.n') = 'null'",
    "json_valid(content) AND json_array_length(content) = 2",
    "json_extract(content, '$.n') > 5",
    "content ->> 0 = 1",
    "content ->> -1 = 2",
    "content ->> 'k' = 'b'",
    "content ->> '$.\"n\"' = 7",
    "content ->> '$[#-1]' = 2",
    "content ->> '$.' = 1",
    "content ->> '' IS NULL",
    "json_error_position(content) = 0",
    "instr(content, 'text') > 0",
    "instr(content, 'ï') = 3",
    "instr(lower(content), 'plain') = 1",
    "instr(content, 1)",
    "instr(content, NULL) IS NULL",
    "instr(content, '') = 1",
    "length(content) > 9 AND octet_length(content) > 10",
    "upper(substr(content, 1, 5)) = 'PLAIN'",
    "round(id / 3.0) = 2 OR abs(id - 20) < 3 OR sign(id - 10) = 0",
    "typeof(subtype) = 'null' OR typeof(id) = 'text'",
    "max(id, 10) = 10 AND min(id, 3) = 3",
    "unicode(content) = 123 OR char(65, 66) = 'AB' AND 0",
    "hex(source) = '73656C66' OR concat(type, subtype) = 'recorddecision'",
    "CAST(content AS INTEGER) = 10",
    "content = 10 OR content < '2'",
    "content = x'3130' OR CAST(content AS BLOB) = x'3130'",
    "likely(id > 3) AND unlikely(id < 9) AND likelihood(1, 0.5)",
    "content LIKE '%text%' AND content NOT LIKE 'P%' OR content GLOB 'P*'",
    "created_at >= '2026-03-18' AND length(created_at) = 24",
    "events.type = 'message' AND [events].\"source\" = `events`.source",
    "main.events.id > 3",
    "rowid > 3",
    "1 -- everything",
    "/* all */ 1 /* of them */",
    "'0'",
    "NULL",
    "id ISNULL OR id NOTNULL",
    "TRUE AND NOT FALSE",
    "type = 'message' IS TRUE",
    "1e1 = id OR 0x0b = id OR 1_2 = id",
    "id\n=\r\n3\t",
];

/// Only for a single read: these may use the clock or the time zone.
const WITH_TIME: &[&str] = &[
    "date(created_at) = '2026-03-18'",
    "date(created_at) BETWEEN '2026-03-18' AND '2026-03-19'",
    "strftime('%H', created_at) < '12'",
    "strftime('%w', created_at) NOT IN ('0', '6')",
    "time(created_at) >= '09:00' AND time(created_at) < '17:30:00'",
    "datetime(created_at, '+1 hour') > '2026-03-18 12:00:00'",
    "julianday(created_at) - julianday('2026-03-18') < 1.5",
    "unixepoch(created_at) % 3600 < 1800",
    "timediff(created_at, '2026-03-18') LIKE '+0000-00-00%'",
    "date(content) IS NULL",
    "date(id, 'unixepoch') = '1970-01-01'",
    "datetime(created_at, 'start of month', '+1 month', '-1 day', 'weekday 1') > created_at",
    "strftime('%s', created_at, 'subsec') > '1'",
];

#[test]
fn common_filters_mean_what_they_mean_in_sqlite() {
    let mut place = Place::new();
    let mut all = Vec::new();
    for (n, content) in CONTENTS.iter().enumerate() {
        for (m, source) in SOURCES.iter().enumerate() {
            let kind = if (n + m) % 2 == 0 { "message" } else { "record" };
            let subtype = SUBTYPES.get((n * 3 + m) % 6).map(|text| (*text).to_owned());
            all.push(Parts { source: (*source).to_owned(), kind, subtype, content: (*content).to_owned() });
        }
    }
    place.store(&all);
    let plain = place.plain();
    let times = "UPDATE events SET created_at = strftime('%Y-%m-%dT%H:%M:%fZ', 1773792000 + id * 2345.678, 'unixepoch')";
    plain.execute(times, []).unwrap();
    let mut kept = 0;
    for (text, scope) in USEFUL
        .iter()
        .map(|text| (text, Scope::Subscription))
        .chain(USEFUL.iter().chain(WITH_TIME).map(|text| (text, Scope::Reading)))
    {
        let filter = Filter::new(text, scope).unwrap_or_else(|refusal| panic!("{text}: {refusal}"));
        let expected = matching(&plain, Some(text));
        assert_eq!(place.read(0, filter.as_ref()), expected, "{text}, {scope:?}");
        kept += usize::from(!expected.is_empty() && expected.len() < all.len());
    }
    assert!(kept > USEFUL.len(), "too many choose all or nothing: {kept}");
    for text in WITH_TIME {
        let refusal = Filter::new(text, Scope::Subscription).unwrap_err().to_string();
        assert!(refusal.contains("may use the clock"), "{text}: {refusal}");
    }
}
