//! A process's environment.

use std::collections::BTreeMap;
use std::path::PathBuf;

use thread::files::user_entry;

/// A process's environment.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    pub variables: BTreeMap<String, String>,
    pub home: Option<PathBuf>,
    /// The user's name; `None` if it is still to be looked up.
    pub user: Option<String>,
}

impl Environment {
    pub fn of_this_process() -> Environment {
        let variables: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, value)| name.starts_with("PG") && !value.is_empty())
            .collect();
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        let home = home.or_else(|| Some(user_entry()?.get(5)?.into()));
        Environment { variables, home, user: None }
    }

    /// The user's name; empty if it is unknown.
    pub fn user(&self) -> String {
        let found = self.user.clone().or_else(|| user_entry()?.into_iter().next());
        found.or_else(|| std::env::var("USER").ok()).unwrap_or_default()
    }

    /// A file in the home directory, if it exists.
    pub fn file_at_home(&self, name: &str) -> Option<PathBuf> {
        let path = self.home.as_ref()?.join(name);
        path.exists().then_some(path)
    }
}
