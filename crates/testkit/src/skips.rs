//! Tests that are skipped because the machine lacks something: each prints a line at once, and the last target of a run
//! counts them.
//!
//! The test programs of one `cargo test` have cargo as their parent, and share a file that is named after it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Reports that this test, or a part of it, is skipped, and what it needs: a program or a permission.
pub fn skipped(needs: impl Display) {
    let test = std::thread::current().name().filter(|name| *name != "main").unwrap_or_default().to_owned();
    let needs = needs.to_string().replace(['\n', '\t'], " ");
    // Written directly, because the test runner captures what passing tests print.
    drop(writeln!(std::io::stderr(), "SKIPPED {test}: needs {needs}"));
    if let Err(e) = note(&test, &needs) {
        panic!("a skipped test could not be counted: {e}");
    }
}

/// Like [`skipped`], for programs that `.ci/run` installs: with `CI` set, none of them may be missing.
///
/// # Panics
///
/// With `CI` set.
pub fn missing(needs: impl Display) {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "needs {needs}");
    skipped(needs);
}

fn note(test: &str, needs: &str) -> std::io::Result<()> {
    let file = file();
    fs::create_dir_all(file.parent().expect("it is in a folder"))?;
    let program = std::env::current_exe()?;
    let program = program.file_name().unwrap_or_default().display();
    // In one write, because other tests append to the file too.
    File::options()
        .create(true)
        .append(true)
        .open(file)?
        .write_all(format!("{program}\t{test}\t{needs}\n").as_bytes())
}

/// The file in which the tests of this run of cargo record skips.
fn file() -> PathBuf {
    folder().join(run())
}

fn folder() -> PathBuf {
    crate::target().join("skipped")
}

/// The name of this run of cargo: its process id and its start time, because process ids are reused.
pub(crate) fn run() -> String {
    let cargo = std::os::unix::process::parent_id();
    let stat = fs::read_to_string(format!("/proc/{cargo}/stat")).unwrap_or_default();
    let began = stat.rsplit(") ").next().and_then(|fields| fields.split(' ').nth(19)).unwrap_or_default();
    format!("{cargo}-{began}")
}

/// One line that counts the tests skipped so far in this run of cargo. Deletes the file.
pub fn summary() -> String {
    let lines = fs::read_to_string(file()).unwrap_or_default();
    forget(&folder());
    count(&lines)
}

/// Deletes the file of this run, and those of earlier runs that did not include the summary.
fn forget(folder: &Path) {
    drop(fs::remove_file(file()));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let cargo = name.to_str().and_then(|name| name.split('-').next()).unwrap_or_default();
        if Path::new("/proc/self").exists() && !Path::new("/proc").join(cargo).exists() {
            drop(fs::remove_file(entry.path()));
        }
    }
}

fn count(lines: &str) -> String {
    let mut tests = BTreeSet::new();
    let mut needs: BTreeMap<&str, BTreeSet<(&str, &str, usize)>> = BTreeMap::new();
    for (n, line) in lines.lines().enumerate() {
        let mut fields = line.splitn(3, '\t');
        let [program, test, what] = [(); 3].map(|()| fields.next().unwrap_or_default());
        // With one test thread, tests have no names; then each line counts as a test.
        let test = (program, test, if test.is_empty() { n } else { 0 });
        tests.insert(test);
        needs.entry(what).or_default().insert(test);
    }
    if tests.is_empty() {
        return "skipped: none".to_owned();
    }
    let mut needs: Vec<_> = needs.iter().map(|(what, tests)| (tests.len(), what)).collect();
    needs.sort_by_key(|(tests, _)| std::cmp::Reverse(*tests));
    let plural = |n: usize, one, more| if n == 1 { one } else { more };
    let needs = needs.iter().map(|(n, what)| format!("{n} {} {what}", plural(*n, "needs", "need")));
    let needs: Vec<_> = needs.collect();
    format!("skipped: {} {}: {}", tests.len(), plural(tests.len(), "test", "tests"), needs.join(", "))
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn each_test_counts_once_and_once_for_everything_it_needs() {
        assert_eq!(count(""), "skipped: none");
        assert_eq!(count("cli-1\ta\ttmux\n"), "skipped: 1 test: 1 needs tmux");
        let lines = "cli-1\ta\ttmux\ncli-1\ta\ttmux\ncli-1\ta\tnode\ncli-1\tb\tnode\nchat-2\ta\tnode\n";
        assert_eq!(count(lines), "skipped: 3 tests: 3 need node, 1 needs tmux");
    }

    #[test]
    fn tests_without_names_count_by_their_lines() {
        assert_eq!(count("cli-1\t\ttmux\ncli-1\t\ttmux\n"), "skipped: 2 tests: 2 need tmux");
    }
}
