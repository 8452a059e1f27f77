//! Enforces the table of modules in `docs/DESIGN.md`: which modules may use which, and which may depend on
//! the terminal, the environment or other processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules, lowest layer first. A module may use those in lower layers, and those in its own
/// layer as long as no cycle results.
const LAYERS: &[&[&str]] = &[
    // Errors mention events, filters and consumers; every module returns errors.
    &["model", "error"],
    &["files", "store"],
    &["sqlite", "jsonl", "pending"],
    &["queue"],
    &["run"],
    &["maintenance", "failure"],
    &["cli"],
];

/// What the library leaves to programs: the terminal, the environment and other processes.
const TERMINAL: &str = "println! print! eprintln! eprint! dbg! io::stdout io::stderr io::stdin stdio::stdout \
                        stdio::stderr stdio::stdin stdout() stderr() stdin() IsTerminal is_terminal isatty \
                        clap anstream anstyle comfy_table terminal_size signal_hook process::exit process::abort";
const ENVIRONMENT: &str = "env::var env::args env::set_var env::remove_var env::home_dir";
/// `std::{` is refused because a grouped import would hide its names from this list.
const PROCESSES: &str = "std::env env:: std::process std::{ kill_process libc::kill libc::fork";

/// Calls that create, rename, remove or change files by path. Inside a thread's directory only
/// `files` does that, through file descriptors; SQLite opens its own files.
const CHANGES: &str = "File::create File::options OpenOptions DirBuilder fs::write fs::copy fs::rename fs::create_dir \
                       fs::remove fs::set_permissions fs::hard_link fs::symlink( chown chmod tempfile:: openat \
                       renameat unlinkat mkdirat mknodat linkat symlinkat utimensat inotify";
/// Calls that read files. Commands may read files that their callers name.
const READS: &str = "File::open fs::read";

/// Where a refused name is allowed after all: file or module, name, reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("run", "env::vars_os", "handlers inherit the dispatcher's environment, except THREAD_*"),
    ("maintenance/doctor", "std::process", "a shell checks whether a handler's program exists"),
    ("queue/init", "DirBuilder", "the directory and its parents are created before it is a thread"),
    ("maintenance/backup", "fs::rename", "a backup is built outside the thread and renamed into place"),
    ("maintenance/backup", "fs::read_dir", "the destination must be empty"),
    (
        "maintenance/backup/root",
        "File::create",
        "a copy of a whole directory is made beside it, with files that are in no thread",
    ),
    (
        "maintenance/backup/root",
        "OpenOptions",
        "a copy of a whole directory is made beside it, with files that are in no thread",
    ),
    (
        "maintenance/backup/root",
        "DirBuilder",
        "a copy of a whole directory is made beside it, with files that are in no thread",
    ),
    (
        "maintenance/backup/root",
        "chown",
        "a copy of a whole directory is made beside it, with files that are in no thread",
    ),
    (
        "maintenance/backup/root",
        "fs::remove",
        "a copy of a whole directory is made beside it, with files that are in no thread",
    ),
    (
        "maintenance/backup/root",
        "fs::set_permissions",
        "a copy of a whole directory is made beside it, with files that are in no thread",
    ),
    ("maintenance/backup", "fs::create_dir", "the destination's parents are created"),
    ("maintenance/backup", "fs::remove_dir_all", "an older backup is deleted whole"),
    ("maintenance/backup", "File::open", "unfinished copies are locked while they are made"),
    ("maintenance/backup", "tempfile::", "it is built next to the destination"),
    ("run/process", "fs::read", "reads /proc"),
    ("run/spawn", "stdio::stdin", "a process of ours may be given its lock as stdin"),
    ("run/spawn", "stdin()", "a process of ours may be given its lock as stdin"),
    ("run/spawn", "File::open", "it has /dev/null as stdin after that"),
    ("cli/external", "scheme(", "the program of a scheme is found by its name"),
    ("cli/backup", "scheme(", "a copy is made in a directory, and nowhere else"),
    ("run/worker", "fs::read", "the directory that is searched for threads"),
];

/// A file's path below `src`, without `.rs`, and its code: no comments, no string contents, no unit
/// tests.
type Source = (String, String);

fn sources() -> Vec<Source> {
    let found = sources_of(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(found.len() > 30, "{}", found.len());
    found
}

fn sources_of(package: &Path) -> Vec<Source> {
    let root = package.join("src");
    let mut found = Vec::new();
    let mut dirs = vec![root.clone()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(&root).unwrap().with_extension("");
                let code = without_tests(&plain_code(&fs::read_to_string(&path).unwrap()));
                found.push((name.to_str().unwrap().to_owned(), code));
            }
        }
    }
    found.sort();
    found
}

/// Source code without comments and with all string and character literals emptied.
fn plain_code(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let hashes = rest[1.min(rest.len())..].bytes().take_while(|byte| *byte == b'#').count();
        let word_before = code.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let taken = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if c == 'r' && !word_before && rest[1 + hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let start = 2 + hashes;
            rest[start..].find(&end).map_or(rest.len(), |at| start + at + end.len())
        } else if c == '"' {
            code.push_str("\"\"");
            quoted(rest, '"')
        } else if c == '\'' && (rest[1..].starts_with('\\') || rest[1..].chars().nth(1) == Some('\'')) {
            code.push_str("' '");
            quoted(rest, '\'')
        } else {
            code.push(c);
            c.len_utf8()
        };
        rest = &rest[taken..];
    }
    code
}

/// The length of a literal that begins with a quote.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Removes unit tests, which stand at the end of a file and may use anything.
fn without_tests(code: &str) -> String {
    code.split("#[cfg(test)]\nmod ").next().unwrap_or_default().to_owned()
}

fn top(file: &str) -> &str {
    file.split('/').next().unwrap_or(file)
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The names that `lib.rs` re-exports at the root, and the module each comes from.
fn names_at_the_root(lib: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for line in lib.split("pub use ").skip(1) {
        let path = line.split(';').next().unwrap_or_default();
        let module = words(path).next().unwrap_or_default();
        let (_, last) = path.rsplit_once("::").unwrap_or(("", path));
        names.extend(words(last).map(|name| (name.to_owned(), module.to_owned())));
    }
    names
}

/// All paths that begin with `crate::` or `super::`, with groups in braces expanded.
fn paths(code: &str) -> Vec<Vec<&str>> {
    let mut found = Vec::new();
    for first in ["crate::", "super::"] {
        for (at, _) in code.match_indices(first) {
            let before = code[..at].chars().next_back();
            if !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                read_path(&code[at..], &[], &mut found);
            }
        }
    }
    found
}

/// Reads a path, or a group of paths that share the prefix `before`. Returns the code after it.
fn read_path<'c>(code: &'c str, before: &[&'c str], found: &mut Vec<Vec<&'c str>>) -> &'c str {
    let mut path = before.to_vec();
    let mut rest = code;
    loop {
        if let Some(mut group) = rest.strip_prefix('{') {
            while !group.starts_with('}') {
                let after = read_path(group, &path, found).trim_start_matches([',', ' ', '\n']);
                assert_ne!(after.len(), group.len(), "not a path: {group}");
                group = after;
            }
            return &group[1..];
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '*').unwrap_or(rest.len());
        path.push(&rest[..end]);
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            // A turbofish.
            Some(types) if types.starts_with('<') => break,
            Some(more) => rest = more,
            None => break,
        }
    }
    found.push(path);
    // `as name`
    &rest[rest.find([',', '}', ';', '\n']).unwrap_or(rest.len())..]
}

/// The first segment of each path that begins with `crate::`, without the `crate::`.
fn used(code: &str) -> BTreeSet<&str> {
    paths(code).into_iter().filter(|path| path[0] == "crate" && path.len() > 1).map(|path| path[1]).collect()
}

/// Which top-level modules use which others, each pair with one file that does.
fn arrows() -> BTreeMap<(String, String), String> {
    let sources = sources();
    let lib = &sources.iter().find(|(file, _)| file == "lib").unwrap().1;
    let names = names_at_the_root(lib);
    let mut arrows = BTreeMap::new();
    for (file, code) in &sources {
        if ["lib", "main"].contains(&file.as_str()) {
            continue;
        }
        assert!(
            !code.contains("super::super"),
            "{file}.rs: write `crate::` for what is outside of the module"
        );
        let at_the_root = !file.contains('/') && code.contains("super::");
        assert!(!at_the_root, "{file}.rs: write `crate::`, not `super::`");
        for name in used(code) {
            let module = names.get(name).map_or(name, String::as_str);
            if module != top(file) {
                arrows.entry((top(file).to_owned(), module.to_owned())).or_insert(file.clone());
            }
        }
    }
    arrows
}

fn layer(module: &str, file: &str) -> usize {
    let found = LAYERS.iter().position(|layer| layer.contains(&module));
    found.unwrap_or_else(|| panic!("{file}.rs uses `crate::{module}`, which is not in LAYERS"))
}

#[test]
fn paths_are_found_in_code_and_nowhere_else() {
    let code = "// crate::a\nuse crate::{b::{c, d}, e::f,\n g};\nfn h<'x>() { (crate::i::j(), '\"', r#\"crate::k\"\"#, \
                \"\\\" crate::l\", b'\\'', crate::M) } /* crate::n */\n#[cfg(test)]\nmod tests { crate::o }";
    assert_eq!(
        used(&without_tests(&plain_code(code))).into_iter().collect::<Vec<_>>(),
        ["M", "b", "e", "g", "i"]
    );
    let arrows = arrows();
    for (user, used) in [("queue", "sqlite"), ("cli", "run"), ("error", "model"), ("store", "model")] {
        assert!(arrows.contains_key(&(user.to_owned(), used.to_owned())), "{user} uses {used}");
    }
}

#[test]
fn arrows_go_one_way() {
    for ((user, module), file) in arrows() {
        assert!(
            layer(&module, &file) <= layer(&user, &file),
            "{file}.rs uses `crate::{module}`, which is above `{user}`"
        );
    }
}

/// The edges of a graph that are part of cycles or lie between them: edges that end or begin at a
/// dead end are removed repeatedly.
fn circles<N: Ord + Clone>(mut arrows: BTreeSet<(N, N)>) -> BTreeSet<(N, N)> {
    loop {
        let (users, used): (BTreeSet<N>, BTreeSet<N>) = arrows.iter().cloned().unzip();
        let before = arrows.len();
        arrows.retain(|(by, of)| used.contains(by) && users.contains(of));
        if arrows.len() == before {
            return arrows;
        }
    }
}

#[test]
fn no_modules_use_each_other_in_a_circle() {
    let circles = circles(arrows().into_keys().collect());
    assert!(circles.is_empty(), "{circles:?}");
}

/// Which files of a package use which others. Uses between a module and its own submodules are left
/// out.
fn arrows_of_files(package: &Path) -> BTreeSet<(String, String)> {
    let sources = sources_of(package);
    let module = |file: &str| file.strip_suffix("/mod").unwrap_or(file).to_owned();
    let files: BTreeSet<String> = sources.iter().map(|(file, _)| module(file)).collect();
    let names = sources.iter().find(|(file, _)| file == "lib");
    let names = names.map(|(_, lib)| names_at_the_root(lib)).unwrap_or_default();
    let mut arrows = BTreeSet::new();
    for (file, code) in &sources {
        let file = module(file);
        for path in paths(code) {
            let (mut place, mut path) = match path[0] {
                "crate" => (Vec::new(), &path[1..]),
                _ => (file.split('/').collect(), &path[..]),
            };
            while let Some(("super", inner)) = path.split_first().map(|(name, inner)| (*name, inner)) {
                place.pop();
                path = inner;
            }
            if place.is_empty()
                && let Some(module) = path.first().and_then(|name| names.get(*name))
            {
                place.push(module);
            }
            let whole: Vec<&str> = place.iter().chain(path).copied().collect();
            let used =
                (1..=whole.len()).rev().map(|n| whole[..n].join("/")).find(|file| files.contains(file));
            let Some(used) = used.filter(|used| *used != file) else { continue };
            if !format!("{used}/").starts_with(&format!("{file}/"))
                && !format!("{file}/").starts_with(&format!("{used}/"))
            {
                arrows.insert((file.clone(), used));
            }
        }
    }
    arrows
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let mut found = 0;
    for package in crates.chain([root.to_owned()]) {
        let arrows = arrows_of_files(&package);
        found += arrows.len();
        let circles = circles(arrows);
        assert!(circles.is_empty(), "{}: {circles:#?}", package.display());
    }
    assert!(found > 200, "{found}");
}

/// Fails if a file of `modules` mentions one of the `refused` words, which belong in `home`,
/// without an exception that allows it.
fn refuse(modules: &[&str], home: &str, refused: &[&str]) {
    for (file, code) in sources().iter().filter(|(file, _)| modules.contains(&top(file))) {
        for word in refused.iter().flat_map(|words| words.split_whitespace()) {
            let allowed: Vec<&str> = EXCEPTIONS
                .iter()
                .filter(|(where_, ..)| file == where_ || file.starts_with(&format!("{where_}/")))
                .map(|(_, what, _)| *what)
                .collect();
            let found = code.match_indices(word).find(|(at, _)| {
                let before = code[..*at].chars().next_back();
                let whole = !before.is_some_and(|c| c.is_alphanumeric() || c == '_');
                whole && !allowed.iter().any(|allowed| code[*at..].starts_with(allowed))
            });
            if let Some((at, _)) = found {
                let line = code[..at].rsplit('\n').next().unwrap_or_default();
                let rest = code[at..].split('\n').next().unwrap_or_default();
                panic!("{file}.rs mentions `{word}`, which belongs in `{home}`: {line}{rest}");
            }
        }
    }
}

#[test]
fn the_library_knows_nothing_of_terminals_environment_and_processes() {
    let below: Vec<&str> = LAYERS
        .iter()
        .flat_map(|layer| layer.iter().copied())
        .filter(|m| !["run", "cli"].contains(m))
        .collect();
    refuse(&below, "cli", &[TERMINAL, ENVIRONMENT, PROCESSES]);
}

#[test]
fn running_handlers_knows_processes_but_neither_terminals_nor_settings() {
    refuse(&["run"], "cli", &[TERMINAL, ENVIRONMENT]);
}

#[test]
fn only_the_table_of_places_knows_which_there_are() {
    refuse(&["run", "cli"], "queue/places", &["Files::open sqlite Sqlite scheme("]);
}

/// Not even in a text: what is true of one kind of place is said by its own programs.
#[test]
fn no_place_but_a_directory_is_known_by_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let (mut found, mut own) = (0, 0);
    for package in crates.chain([root.to_owned()]) {
        for (file, _) in sources_of(&package) {
            let file = package.join("src").join(file).with_added_extension("rs");
            let text = fs::read_to_string(&file).unwrap().to_lowercase();
            let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            let named =
                code.lines().find(|line| !line.trim_start().starts_with("//") && line.contains("postgres"));
            if package.ends_with("crates/postgres") {
                own += usize::from(named.is_some());
            } else {
                assert!(named.is_none(), "{}: {named:?}", file.display());
                found += 1;
            }
        }
    }
    assert!(found > 200 && own > 5, "{found} {own}");
}

#[test]
fn the_files_of_a_thread_are_opened_and_changed_in_one_place() {
    let others: Vec<&str> =
        LAYERS.iter().flat_map(|layer| layer.iter().copied()).filter(|m| *m != "files").collect();
    refuse(&others, "files", &[CHANGES]);
    let library: Vec<&str> = others.into_iter().filter(|m| *m != "cli").collect();
    refuse(&library, "files", &[READS]);
}

#[test]
fn each_exception_is_needed() {
    for (where_, what, why) in EXCEPTIONS {
        let needed = sources().iter().any(|(file, code)| {
            (file == where_ || file.starts_with(&format!("{where_}/"))) && code.contains(what)
        });
        assert!(needed, "nothing in {where_} mentions {what} any more ({why})");
    }
}

#[test]
fn every_module_has_its_place() {
    let sources = sources();
    let lib = &sources.iter().find(|(file, _)| file == "lib").unwrap().1;
    let declared: BTreeSet<&str> =
        lib.split("mod ").skip(1).filter_map(|rest| rest.split(';').next()).map(str::trim).collect();
    assert_eq!(declared, LAYERS.iter().flat_map(|layer| layer.iter().copied()).collect());
}
