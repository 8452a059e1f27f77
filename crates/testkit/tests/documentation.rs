//! Examples in doc comments would run after the summary, so they are files that other tests run and the comments
//! include.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            sources(&entry.path(), found);
        } else if entry.path().extension().is_some_and(|end| end == "rs") {
            found.push(entry.path());
        }
    }
}

#[test]
fn no_example_in_a_doc_comment_is_left_out_of_the_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut packages = vec![root.clone()];
    packages.extend(fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path()));
    let mut found = Vec::new();
    packages.iter().for_each(|package| sources(&package.join("src"), &mut found));
    assert!(found.len() > 200, "{found:?}");
    for file in found {
        let text = fs::read_to_string(&file).unwrap();
        // The language of the code block around a line; without a language it is Rust, and rustdoc would run it.
        let mut block = None;
        for line in text.lines().map(str::trim_start) {
            let comment = line.strip_prefix("//!").or_else(|| line.strip_prefix("///")).map(str::trim_start);
            match (block, comment.and_then(|comment| comment.strip_prefix("```"))) {
                (None, Some(kind)) => block = Some(kind),
                (Some(_), Some(_)) => block = None,
                (Some("" | "rust"), None) => {
                    assert!(line.starts_with("#![doc = include_str!("), "{}: {line}", file.display());
                }
                _ => {}
            }
        }
    }
}
