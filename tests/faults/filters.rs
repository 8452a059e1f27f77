//! The cost of the largest filter of each kind on worst-case events.

use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use thread::model::filter::{Filter, Scope};
use thread_testkit::{World, long};

/// Limits for one filter on one event: processor time, and the process's memory. The short form allows three times the
/// time, because it runs alongside other tests and may use a debug build.
const TIME: Duration = Duration::from_secs(2);
const MEMORY: u64 = 100_000_000;

/// Kinds of filters: the text before, the part to repeat, and two texts after it.
const KINDS: &[(&str, &str, &str, &str)] = &[
    ("content", " -> '$'", "", " = 1"),
    ("content", " ->> '$'", "", " = 1"),
    ("content", "->'$.a'", "", " = 1"),
    ("content", "||content", "", " = ''"),
    ("content", "||''", "", " = ''"),
    ("(content||'')", "||(content||'')", "", " = ''"),
    ("(\"content\"", "||[content]", ")", " = ''"),
    ("\"events\".\"content\"", "||`events`.`content`", "", " = ''"),
    ("id IN (\"content\"", ",\"content\"", ")", ""),
    ("content IN (upper(content)", ",upper(content)", ")", ""),
    ("concat(content", ",content", ")", " = ''"),
    ("max(content", ",content", ")", " = ''"),
    ("min(content", ",lower(content)", ")", " = ''"),
    ("coalesce(NULL", ",nullif(content,content)", ")", " = ''"),
    ("json_extract(content", ",'$.a'", ")", " = 1"),
    ("json_extract(content", ",'$[#-1]'", ")", " = 1"),
    ("json_extract(content", ",'$'", ")", " = 1"),
    ("concat(content->>'$'", ",content->>'$'", ")", " = ''"),
    ("max(json_quote(content)", ",json(content||' ')", ")", " = ''"),
    ("0", " OR json(CAST(content AS BLOB))=''", "", ""),
    ("0", " OR json_valid(content,15)+0>9", "", ""),
    ("0", " OR json_extract(content,'$.'||content)=1", "", ""),
    ("0", " OR content -> '$.z'", "", ""),
    ("0", " OR json_valid(content)+0>9", "", ""),
    ("0", " OR json_type(content,'$.z')=''", "", ""),
    ("0", " OR json_array_length(content)<0", "", ""),
    ("0", " OR json_error_position(content)<0", "", ""),
    ("0", " OR json(content)=''", "", ""),
    ("0", " OR json_quote(content)=''", "", ""),
    ("0", " OR json_quote(json_quote(content))=''", "", ""),
    ("0", " OR content LIKE '%a%a%a%a%a%a%a%b'", "", ""),
    ("0", " OR content LIKE '%_a_a_a_a_a_a_a_a_a_a_a_a_a_a_a_a_a_a_a_ab'", "", ""),
    ("0", " OR content GLOB '*a*a*a*a*a*a*b'", "", ""),
    ("0", " OR content GLOB '*[!b][!b][!b][!b][!b][!b][!b][!b][!b]b'", "", ""),
    ("0", " OR lower(content) LIKE '%a%b'", "", ""),
    // Patterns that almost match at each character.
    ("0", " OR content LIKE source", "", ""),
    ("0", " OR content GLOB subtype", "", ""),
    ("0", " OR content LIKE source ESCAPE '!'", "", ""),
    ("0", " OR lower(content) LIKE source AND 1", "", ""),
    ("instr(content,'", "a", "", "b')"),
    ("0", " OR instr(content,'aaaaaaaaaaaaaaaaaaaaaab')", "", ""),
    ("0", " OR instr(content,'aaaaaaaaaaab')+instr(content,'ab')", "", ""),
    ("0", " OR upper(content)=lower(content)", "", ""),
    ("0", " OR content+0=1", "", ""),
    ("0", " OR CAST(content AS REAL)=-1", "", ""),
    ("0", " OR length(content)<0", "", ""),
    ("0", " OR substr(content,2)=substr(content,3)", "", ""),
    ("0", " OR substr(content,-1,-999999)=''", "", ""),
    ("0", " OR trim(content)=''", "", ""),
    ("0", " OR hex(substr(content,1,500000))=''", "", ""),
    ("0", " OR unicode(content)<0", "", ""),
    ("0", " OR content COLLATE NOCASE=lower(content)||'b'", "", ""),
    ("0", " OR (content,content)=(metadata,content)", "", ""),
    (
        "content BETWEEN content AND content||'b'",
        " AND content BETWEEN content AND content||'b'",
        "",
        " AND 0",
    ),
];

/// Functions that are nested in themselves.
const NESTED: &[&str] = &[
    "upper",
    "lower",
    "trim",
    "hex",
    "json",
    "json_quote",
    "ltrim",
    "concat",
    "typeof",
    "abs",
    "likely",
    "ifnull(1,",
    "iif(1,",
    "max(1,",
    "max(content||'',content||'',content||'',content||'',content||'',content||'',content||'',content||'',",
    "substr(1||",
    "length(1||",
    "instr(content,1||",
    "json_extract(content,",
    "json_valid(1||",
];

/// The largest accepted filter of each kind.
fn largest_of_each() -> Vec<String> {
    let is_accepted = |text: &str| matches!(Filter::new(text, Scope::Subscription), Ok(Some(_)));
    let largest = |make: &dyn Fn(usize) -> String| {
        let (mut low, mut high) = (0, 2000);
        while low + 1 < high {
            let middle = (low + high) / 2;
            if is_accepted(&make(middle)) { low = middle } else { high = middle }
        }
        (low > 0).then(|| make(low))
    };
    let repeated = KINDS.iter().map(|(before, part, after, end)| {
        let make = |count: usize| format!("{before}{}{after}{end}", part.repeat(count));
        largest(&make).unwrap_or_else(|| panic!("not once accepted: {}", make(1)))
    });
    let nested = NESTED.iter().filter_map(|name| {
        let open = if name.contains('(') { (*name).to_owned() } else { format!("{name}(") };
        largest(&|count| format!("{}content{} = ''", open.repeat(count), ")".repeat(count)))
    });
    let mut all: Vec<String> = repeated.chain(nested).collect();
    // Patterns of the maximum length that almost match at each character, few and many of them.
    for count in [1, 2, 5, 16, 32] {
        let length = 1024 / count - 3;
        for pattern in
            [format!("LIKE '%a{}b'", "_".repeat(length)), format!("GLOB '*a{}b'", "?".repeat(length))]
        {
            let text = vec![format!("content {pattern}"); count].join(" OR ");
            assert!(is_accepted(&text), "{text}");
            all.push(text);
        }
    }
    // Three kinds combined, each a third as long.
    for kinds in KINDS[16..].chunks(3).filter(|kinds| kinds.len() == 3) {
        all.extend(largest(&|count| {
            kinds
                .iter()
                .map(|(_, part, _, _)| part.repeat(count))
                .fold("0".to_owned(), |all, part| all + &part)
        }));
    }
    all
}

/// Contents of the maximum size that a filter reads, and larger ones.
fn contents() -> Vec<(&'static str, String)> {
    const MOST: usize = (1 << 20) - 600;
    let filled = |open: &str, part: &str, close: &str| {
        let times = (MOST - open.len() - close.len()) / part.len();
        format!("{open}{}{close}", part.repeat(times))
    };
    vec![
        ("letters", filled("", "a", "")),
        ("digits", filled("", "1", "")),
        ("an array", filled("[", "{\"a\":1},", "1]")),
        ("an array of numbers", filled("[", "1,", "1]")),
        ("an object", filled("{", "\"a\":1,", "\"b\":1}")),
        ("a string of escapes", filled("\"", "\\u0061", "\"")),
        ("nested arrays", format!("{}1{}", "[".repeat(900), "]".repeat(900)) + &" ".repeat(MOST - 2000)),
        ("letters of two bytes", filled("", "é", "")),
        ("many nested arrays", filled("[", &format!("{}{},", "[".repeat(998), "]".repeat(998)), "1]")),
        ("a string of JSON5", filled("{a:'", "\\x41", "'}")),
        ("four megabytes of letters", "a".repeat(4_000_000)),
        ("four megabytes of JSON", format!("[{}1]", "1,".repeat(2_000_000))),
    ]
}

/// The cost of a process: processor time, and peak memory in bytes; 0 if it cannot be measured.
#[allow(clippy::zombie_processes, reason = "wait4 reaps it")]
fn cost(world: &World, filter: &str) -> (Duration, u64) {
    let mut run = world.thread(["peek", "--last-event-id", "0", "--filter", filter]);
    let command = run.command();
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let mut status = 0;
    // SAFETY: the structs are plain data that the calls fill in; the child is ours and is not
    // waited for elsewhere.
    let (usage, own) = unsafe {
        let [mut usage, mut own]: [libc::rusage; 2] = std::mem::zeroed();
        assert_eq!(libc::wait4(child.id() as i32, &raw mut status, 0, &raw mut usage), child.id() as i32);
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut own), 0);
        (usage, own)
    };
    assert_eq!(libc::WEXITSTATUS(status), 0, "{filter}: {stderr}");
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    // Before `exec`, the child shares this process's memory, which counts towards its peak.
    let memory = if usage.ru_maxrss > own.ru_maxrss { usage.ru_maxrss } else { 0 };
    (time(usage.ru_utime) + time(usage.ru_stime), memory as u64 * 1024)
}

#[test]
fn the_largest_filter_of_each_kind_is_cheap_on_the_worst_events() {
    let filters = largest_of_each();
    let contents = contents();
    let worlds: Vec<(&str, World)> = contents
        .iter()
        .map(|(name, content)| {
            let world = World::with_thread();
            // As long as 39 of them may be.
            let (like, glob) = (format!("%a{}b", "_".repeat(23)), format!("*a{}b", "?".repeat(23)));
            let push = ["push", "--source", &like, "--type", "message", "--subtype", &glob];
            world.off(push).stdin(content.as_str()).arg("--content-file").arg("-").quiet();
            (*name, world)
        })
        .collect();
    let mut costs = Vec::new();
    for (number, filter) in filters.iter().enumerate() {
        for (at, (content, world)) in worlds.iter().enumerate() {
            // In the short form each filter is tried on two of the contents.
            if !long() && (number + at) % (worlds.len() / 2) != 0 {
                continue;
            }
            let (time, memory) = cost(world, filter);
            let shown: String = filter.chars().take(90).collect();
            costs.push((time, memory, format!("{shown}… ({} bytes) on {content}", filter.len())));
        }
    }
    let slowest = costs.iter().max_by_key(|(time, ..)| *time).unwrap();
    let largest = costs.iter().max_by_key(|(_, memory, _)| *memory).unwrap();
    eprintln!(
        "{} filters on {} contents: the slowest took {:.2} s: {}; the largest {:.0} MB: {}",
        filters.len(),
        contents.len(),
        slowest.0.as_secs_f64(),
        slowest.2,
        largest.1 as f64 / 1e6,
        largest.2
    );
    let share = if long() { 1 } else { 3 };
    for (time, memory, what) in &costs {
        assert!(*time <= TIME * share, "{time:?}: {what}");
        assert!(*memory <= MEMORY, "{memory} bytes: {what}");
    }
}
