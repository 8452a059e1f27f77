//! What a process is told by its surroundings.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// What a process is told by its surroundings.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    pub variables: BTreeMap<String, String>,
    pub home: Option<PathBuf>,
    /// The user's name.
    pub user: String,
}

impl Environment {
    pub fn of_this_process() -> Environment {
        let variables: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, value)| name.starts_with("PG") && !value.is_empty())
            .collect();
        let uid = rustix::process::geteuid().as_raw().to_string();
        let list = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let mut entries = list.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let entry = entries.find(|entry| entry.get(2) == Some(&uid.as_str()));
        let from_list =
            |column: usize| entry.as_ref().and_then(|entry| entry.get(column)).map(ToString::to_string);
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        Environment {
            variables,
            home: home.or_else(|| from_list(5).map(PathBuf::from)),
            user: from_list(0).or_else(|| std::env::var("USER").ok()).unwrap_or_default(),
        }
    }

    /// A file in the home directory, if it exists.
    pub fn file_at_home(&self, name: &str) -> Option<PathBuf> {
        let path = self.home.as_ref()?.join(name);
        path.exists().then_some(path)
    }
}
