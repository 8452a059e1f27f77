//! Enforces the layers of modules in the table of `docs/DESIGN.md`, and that modules have no circular dependencies.
//! Which functions they may call is in `clippy.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules, lowest layer first. Each may use those in lower layers, and those in its own without a circle.
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

/// Pairs of a module and a module that it uses, each as its path below `src`: `queue/dead`.
type Arrows = BTreeSet<(String, String)>;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The folders of all packages.
fn packages() -> impl Iterator<Item = PathBuf> {
    let crates = fs::read_dir(Path::new(ROOT).join("crates")).unwrap();
    crates.map(|entry| entry.unwrap().path()).chain([ROOT.into()])
}

/// The modules of a package with their code, without comments and without unit tests, which are at the end or in modules of
/// their own.
fn modules(package: &Path) -> BTreeMap<String, String> {
    let (src, mut found, mut dirs) = (package.join("src"), BTreeMap::new(), vec![package.join("src")]);
    let mut tests = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod ").next().unwrap().lines();
                let code = code.filter(|line| !line.trim_start().starts_with("//"));
                let name = path.strip_prefix(&src).unwrap().with_extension("");
                let name = name.to_str().unwrap().trim_end_matches("/mod").to_owned();
                let within = if name == "lib" || name == "main" { String::new() } else { format!("{name}/") };
                let lines: Vec<&str> = text.lines().collect();
                let of_tests =
                    lines.windows(2).filter(|two| two[0].starts_with("#[cfg(") && two[0].contains("test"));
                let modules = of_tests.filter_map(|two| two[1].strip_suffix(';')?.split("mod ").nth(1));
                tests.extend(modules.map(|module| format!("{within}{module}")));
                found.insert(name, code.flat_map(|line| [line, "\n"]).collect());
            }
        }
    }
    let is_of = |name: &str, test: &String| name == test || name.starts_with(&format!("{test}/"));
    found.retain(|name, _| !tests.iter().any(|test| is_of(name, test)));
    found
}

/// All paths that begin with `crate` or `super`, by their segments.
fn paths(code: &str) -> Vec<Vec<&str>> {
    let is_path = |c: char| c.is_alphanumeric() || "_:*".contains(c);
    let until = |text: &str| text.find(|c| !is_path(c)).unwrap_or(text.len());
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        if code[..at].ends_with(is_path) {
            continue;
        }
        let (path, rest) = code[at..].split_at(until(&code[at..]));
        let group = rest.strip_prefix('{').and_then(|rest| rest.split('}').next()).unwrap_or_default();
        assert!(!group.contains('{'), "write a `use` for each module: {path}{{{group}");
        for last in group.split(',').map(str::trim) {
            let last = &last[..until(last)];
            found.push(path.split("::").chain(last.split("::")).filter(|name| !name.is_empty()).collect());
        }
    }
    found
}

/// Which modules of a package use which others, except a module and its submodules.
fn arrows(modules: &BTreeMap<String, String>) -> Arrows {
    // `pub use error::Error` in lib.rs: `crate::Error` is in `error`.
    let lib = modules.get("lib").map_or("", |lib| lib).replace("pub use ", "crate::");
    let names: BTreeMap<&str, Vec<&str>> = paths(&lib).into_iter().map(|p| (p[p.len() - 1], p)).collect();
    let mut arrows = Arrows::new();
    for (user, code) in modules {
        for path in paths(code) {
            let ups = path.iter().take_while(|name| **name == "super").count();
            let mut place: Vec<&str> = user.split('/').collect();
            place.truncate(if ups == 0 { 0 } else { place.len().saturating_sub(ups) });
            place.extend(&path[ups.max(1)..]);
            if let Some(name) = place.first().and_then(|first| names.get(first)) {
                place.splice(..1, name[1..].iter().copied());
            }
            let used = (1..=place.len()).rev().map(|n| place[..n].join("/"));
            let Some(used) = used.into_iter().find(|used| modules.contains_key(used)) else { continue };
            let [outer, inner] = [&used, user].map(|name| format!("{name}/"));
            if !outer.starts_with(&inner) && !inner.starts_with(&outer) {
                arrows.insert((user.clone(), used));
            }
        }
    }
    arrows
}

/// The arrows that are part of circles or lie between them: arrows that begin or end at a dead end are removed.
fn circles(mut arrows: Arrows) -> Arrows {
    loop {
        let (users, used): (BTreeSet<_>, BTreeSet<_>) = arrows.iter().cloned().unzip();
        let before = arrows.len();
        arrows.retain(|(user, of)| used.contains(user) && users.contains(of));
        if arrows.len() == before {
            return arrows;
        }
    }
}

#[test]
fn modules_use_only_the_layers_below_them() {
    let modules = modules(Path::new(ROOT));
    let top = |name: &str| name.split('/').next().unwrap().to_owned();
    let tops: BTreeSet<String> = modules.keys().map(|name| top(name)).collect();
    let listed = LAYERS.iter().copied().flatten().chain(&["lib", "main"]).map(|name| (*name).to_owned());
    assert_eq!(tops, listed.collect(), "LAYERS has all modules");
    let layer = |name: &str| LAYERS.iter().position(|layer| layer.contains(&top(name).as_str()));
    let arrows = arrows(&modules);
    for (user, used) in arrows.iter().filter(|(user, _)| layer(user).is_some()) {
        assert!(layer(used) <= layer(user), "{user}.rs uses `{used}`, which is in a layer above it");
        let through_queue = ["run", "cli"].contains(&top(user).as_str());
        assert!(!through_queue || top(used) != "sqlite", "{user}.rs uses `{used}`, which only `queue` knows");
    }
    let tops: Arrows =
        arrows.iter().map(|(user, used)| (top(user), top(used))).filter(|(a, b)| a != b).collect();
    assert!(tops.contains(&("queue".to_owned(), "sqlite".to_owned())), "{tops:?}");
    assert_eq!(circles(tops), Arrows::new());
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let all: Vec<_> = packages().map(|package| (arrows(&modules(&package)), package)).collect();
    assert!(all.iter().map(|(arrows, _)| arrows.len()).sum::<usize>() > 200);
    for (arrows, package) in all {
        assert_eq!(circles(arrows), Arrows::new(), "{}", package.display());
    }
}

/// Code that needs a directory takes its path or calls `Queue::directory`.
#[test]
fn no_code_asks_whether_a_thread_is_in_a_directory() {
    for package in packages() {
        for (file, code) in modules(&package) {
            let code: String = code.split_whitespace().collect();
            for asked in ["dir().is_some()", "dir().is_none()", "scheme().is_some()", "scheme().is_none()"] {
                let home = package == Path::new(ROOT) && file == "model/location";
                assert!(home || !code.contains(asked), "{}/{file}.rs: {asked}", package.display());
            }
        }
    }
}

/// Not even in a message: what is specific to one kind of location is in its own programs. Only that the name of a scheme
/// has two spellings must be known before its program is looked for.
#[test]
fn no_kind_of_location_but_a_directory_is_named() {
    // The tests' server is in testkit.
    for package in packages().filter(|package| !package.ends_with("testkit")) {
        let modules = modules(&package);
        let spells = |file: &str| package == Path::new(ROOT) && file == "model/location";
        let named =
            modules.iter().find(|(file, code)| !spells(file) && code.to_lowercase().contains("postgres"));
        let is_own = package.ends_with("crates/postgres");
        assert_eq!(named.is_some(), is_own, "{}: {:?}", package.display(), named.map(|(name, _)| name));
    }
}
