//! The service file, `~/.pg_service.conf`: settings under a name.

use std::collections::BTreeMap;
use std::path::PathBuf;

use thread::Result;

use crate::environment::Environment;
use crate::error::invalid;

/// The file for all users, unless `PGSYSCONFDIR` is set: where Debian has it.
const FOR_ALL: &str = "/etc/postgresql-common";

const FILE: &str = "pg_service.conf";

/// The settings of a service, from the user's file, else from that for all users.
///
/// # Errors
///
/// Neither has it.
pub fn read(name: &str, environment: &Environment) -> Result<BTreeMap<String, String>> {
    let variable = |name: &str| environment.variables.get(name).map(PathBuf::from);
    let own = variable("PGSERVICEFILE").or_else(|| Some(environment.home.as_ref()?.join(".pg_service.conf")));
    let for_all = variable("PGSYSCONFDIR").unwrap_or_else(|| PathBuf::from(FOR_ALL)).join(FILE);
    for file in own.into_iter().chain([for_all]) {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        if let Some(found) = section(&text, name) {
            return Ok(found);
        }
    }
    Err(invalid(
        format!("there is no service '{}' in a service file", name.escape_debug()),
        "write it to ~/.pg_service.conf, or name the host in the location",
    ))
}

fn section(text: &str, name: &str) -> Option<BTreeMap<String, String>> {
    let mut found: Option<BTreeMap<String, String>> = None;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(section) = line.strip_prefix('[') {
            if found.is_some() {
                break;
            }
            found = (section.strip_suffix(']') == Some(name)).then(BTreeMap::new);
        } else if let (Some(found), Some((key, value))) = (&mut found, line.split_once('=')) {
            // The first one counts.
            found.entry(key.trim().to_owned()).or_insert_with(|| value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_a_section() {
        let text = "# x\nhost=no\n[a]\nhost=h\n\n# y\nport = 7\nhost=later\n[b]\nhost=other\n[a]\nuser=u\n";
        let pairs = |name| section(text, name).map(|found| found.into_iter().collect::<Vec<_>>());
        let own = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(pairs("a"), Some(vec![own("host", "h"), own("port", "7")]));
        assert_eq!(pairs("b"), Some(vec![own("host", "other")]));
        assert_eq!(pairs("c"), None);
    }
}
