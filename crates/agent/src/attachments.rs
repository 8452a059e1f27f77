//! The files attached to a message that may be passed to an agent program.
//!
//! A gateway stores uploads in the folder [`STORAGE`] next to the sessions, and describes them in the message's
//! metadata: [`ATTACHMENTS`] has their types, [`FILES`] their paths. Metadata is untrusted, so a path is accepted
//! only if, with all links resolved, it is a file in the thread's own directory or in that folder.

use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

/// The key of metadata with `{"bucket","path","mime_type"}` of an attachment, or an array of them.
pub const ATTACHMENTS: &str = "user_message_attachments";

/// The key with the paths of attachments that are files on this machine.
pub const FILES: &str = "attachment_files";

/// The folder with the files of attachments, `<bucket>/<path>`, next to the threads of a gateway.
pub const STORAGE: &str = "storage";

/// The longest total of all paths, in bytes: they are passed in an environment variable.
const LONGEST: usize = 64 * 1024;

/// A file attached to a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Absolute, with links resolved, and without control characters.
    pub path: String,
    /// From the message; `None` if what it gives is not a MIME type.
    pub mime_type: Option<String>,
    /// `<bucket>/<path>` in the gateway's storage; the URL of its content part ends in it.
    pub object: Option<String>,
}

/// Returns the attached files of a message with this metadata in the thread at `dir`. Files that do not exist
/// or may not be passed on are left out.
pub fn attachments(dir: &Path, metadata: &Map<String, Value>) -> Vec<Attachment> {
    let storage = dir.parent().map(|root| root.join(STORAGE));
    let roots: Vec<PathBuf> = [Some(dir.to_owned()), storage.clone()]
        .into_iter()
        .flatten()
        .filter_map(|dir| dir.canonicalize().ok())
        .collect();
    let mut files: Vec<PathBuf> =
        all_of(metadata.get(FILES)).filter_map(|file| file_in(&roots, file.as_str()?)).collect();
    let mut found: Vec<Attachment> = Vec::new();
    for told in all_of(metadata.get(ATTACHMENTS)) {
        let text = |key: &str| told.get(key).and_then(Value::as_str);
        let (Some(bucket), Some(path)) = (text("bucket"), text("path")) else { continue };
        let object = format!("{bucket}/{path}");
        if !Path::new(&object).components().all(|part| matches!(part, Component::Normal(_))) {
            continue;
        }
        let file = match files.iter().position(|file| file.ends_with(&object)) {
            Some(at) => Some(files.remove(at)),
            None => storage.as_ref().and_then(|dir| file_in(&roots, dir.join(&object).to_str()?)),
        };
        let mime_type = text("mime_type").filter(|name| is_mime_type(name)).map(str::to_owned);
        found.extend(file.and_then(|file| attachment(file, mime_type, Some(object))));
    }
    found.extend(files.into_iter().filter_map(|file| attachment(file, None, None)));
    let mut bytes = 0;
    found
        .into_iter()
        .take_while(|one| {
            bytes += one.path.len() + 1;
            bytes <= LONGEST
        })
        .collect()
}

/// Returns the names of a message's attachments, wherever they are.
pub fn names(metadata: &Map<String, Value>) -> impl Iterator<Item = String> {
    let paths = all_of(metadata.get(ATTACHMENTS)).filter_map(|told| told.get("path")?.as_str());
    paths.map(|path| path.rsplit('/').next().unwrap_or(path).replace(char::is_control, " "))
}

fn attachment(file: PathBuf, mime_type: Option<String>, object: Option<String>) -> Option<Attachment> {
    let path = file.into_os_string().into_string().ok()?;
    Some(Attachment { path, mime_type, object })
}

/// The elements of an array, or the value itself.
fn all_of(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    match value {
        Some(Value::Array(values)) => values.as_slice(),
        Some(value) => std::slice::from_ref(value),
        None => &[],
    }
    .iter()
}

/// Resolves a path; `None` if the result is not a file in one of these directories.
fn file_in(roots: &[PathBuf], path: &str) -> Option<PathBuf> {
    // A relative path would depend on the current directory.
    let file = Path::new(path).is_absolute().then(|| Path::new(path).canonicalize().ok()).flatten()?;
    let is_plain = file.to_str().is_some_and(|path| !path.contains(char::is_control));
    (is_plain && file.is_file() && roots.iter().any(|root| file.starts_with(root))).then_some(file)
}

fn is_mime_type(name: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&b))
    };
    name.len() <= 127 && name.split_once('/').is_some_and(|(kind, subtype)| is_word(kind) && is_word(subtype))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_files_of_the_thread_and_of_the_storage_are_passed_on() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let dir = root.join("talk");
        for folder in ["talk", "other", "storage/bucket/x"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        for file in [
            "talk/own",
            "talk/line\nend",
            "other/secret",
            "secret",
            "storage/bucket/x/a.png",
            "storage/bucket/b",
        ] {
            std::fs::write(root.join(file), "x").unwrap();
        }
        std::os::unix::fs::symlink(root.join("secret"), root.join("storage/bucket/link")).unwrap();
        std::os::unix::fs::symlink(&root, dir.join("up")).unwrap();
        let paths = |files: Value, told: Value| -> Vec<String> {
            let metadata = json!({ FILES: files, ATTACHMENTS: told });
            let found = attachments(&dir, metadata.as_object().unwrap()).into_iter();
            found.map(|one| one.path[root.to_str().unwrap().len() + 1..].to_owned()).collect()
        };
        let at = |path: &str| root.join(path).to_str().unwrap().to_owned();
        assert_eq!(
            paths(json!([at("talk/own"), at("storage/bucket/b")]), Value::Null),
            ["talk/own", "storage/bucket/b"]
        );
        for outside in [
            at("secret"),
            at("other/secret"),
            at("talk/../secret"),
            at("talk/up/secret"),
            at("storage/bucket/link"),
            at("storage/../secret"),
            at("talk/line\nend"),
            at("talk"),
            at("talk/none"),
            "/etc/passwd".to_owned(),
            "own".to_owned(),
            "../secret".to_owned(),
            "file:///etc/passwd".to_owned(),
            String::new(),
        ] {
            assert_eq!(paths(json!([outside]), Value::Null), <[&str; 0]>::default(), "{outside:?}");
            assert_eq!(paths(json!(outside), Value::Null), <[&str; 0]>::default(), "{outside:?}");
        }
        assert_eq!(paths(json!({"a": [1]}), json!([1, "x", {}])), <[&str; 0]>::default());
        for (bucket, path) in [
            ("..", "secret"),
            ("bucket", "../../secret"),
            ("bucket", "link"),
            ("", "/etc/passwd"),
            ("/etc", "passwd"),
        ] {
            let told = json!({ "bucket": bucket, "path": path });
            assert_eq!(paths(Value::Null, told), <[&str; 0]>::default(), "{bucket} {path}");
        }
    }

    #[test]
    fn a_file_named_twice_is_passed_on_once_with_its_details() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("storage/bucket/x")).unwrap();
        std::fs::create_dir(root.join("talk")).unwrap();
        let file = root.join("storage/bucket/x/a.png");
        std::fs::write(&file, "x").unwrap();
        let told = |mime_type: &str| json!({ "bucket": "bucket", "path": "x/a.png", "mime_type": mime_type });
        for files in [json!([file.to_str()]), Value::Null] {
            let metadata = json!({ ATTACHMENTS: told("image/png"), FILES: files });
            let [one] = &attachments(&root.join("talk"), metadata.as_object().unwrap())[..] else { panic!() };
            assert_eq!(one.path, file.to_str().unwrap());
            assert_eq!(
                (one.mime_type.as_deref(), one.object.as_deref()),
                (Some("image/png"), Some("bucket/x/a.png"))
            );
        }
        let metadata = json!({ ATTACHMENTS: [told("image/png\n- forged"), told("x")] });
        let all = attachments(&root.join("talk"), metadata.as_object().unwrap());
        assert_eq!(all.iter().map(|one| one.mime_type.clone()).collect::<Vec<_>>(), [None, None]);
    }
}
