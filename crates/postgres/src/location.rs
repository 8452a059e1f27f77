//! The parts of a location: `postgres://user@host:port/database?setting=value&schema=name#thread`.

use std::path::PathBuf;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha1::{Digest, Sha1};
use thread::error::Code;
use thread::model::location::Location;
use thread::{Error, Result};

use crate::environment::Environment;
use crate::error::{invalid, problem};
use crate::settings::Settings;

/// The longest name of a thread, in bytes.
const MAX_NAME: usize = 200;

/// The longest name of a schema, in bytes: PostgreSQL would cut it.
const MAX_SCHEMA: usize = 63;

/// One thread of a database, and how to reach it.
#[derive(Debug, Clone)]
pub struct Target {
    pub location: Location,
    pub settings: Settings,
    pub schema: String,
    pub thread: String,
}

impl Target {
    /// # Errors
    ///
    /// The location is not one, or a file that it refers to cannot be read.
    pub fn of(location: &Location) -> Result<Target> {
        let target = Target::of_any(location)?;
        if target.thread.is_empty() {
            return Err(unnamed());
        }
        Ok(target)
    }

    /// Like [`Target::of`], but without the name of a thread it is all threads of the schema, and the name is empty.
    pub fn of_any(location: &Location) -> Result<Target> {
        let text = location.as_os_str().to_str().ok_or_else(|| unclear("is not UTF-8"))?;
        let rest =
            text.strip_prefix("postgres://").ok_or_else(|| unclear("does not begin with postgres://"))?;
        let (rest, thread) = rest.split_once('#').unwrap_or((rest, ""));
        let thread = decoded(thread)?;
        if thread.len() > MAX_NAME || thread.chars().any(char::is_control) {
            return Err(unnamed());
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        if user.contains(':') {
            return Err(secret());
        }
        let mut given = vec![("user", decoded(user)?), ("dbname", decoded(database)?)];
        let (hosts, ports) = hosts_and_ports(hosts)?;
        given.extend([("host", hosts), ("port", ports)]);
        let mut schema = "thread".to_owned();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) =
                pair.split_once('=').ok_or_else(|| unclear("has a parameter without a value"))?;
            let (name, value) = (decoded(name)?, decoded(value)?);
            match name.as_str() {
                "schema" => schema = value,
                "password" => return Err(secret()),
                _ => given.push((Settings::known(&name).ok_or_else(|| unknown(&name))?, value)),
            }
        }
        if schema.is_empty() || schema.len() > MAX_SCHEMA || schema.contains(['\0', '@']) {
            return Err(unclear("names a schema that cannot be one"));
        }
        given.retain(|(_, value)| !value.is_empty());
        let settings = Settings::resolve(&given, &Environment::of_this_process())?;
        Ok(Target { location: location.clone(), settings, schema, thread })
    }

    /// The place of another thread of the schema.
    pub fn sibling(&self, thread: &str) -> Location {
        let text = self.location.as_os_str().to_string_lossy();
        let whole = text.split_once('#').map_or(&*text, |(whole, _)| whole);
        Location::from(format!("{whole}#{}", utf8_percent_encode(thread, NON_ALPHANUMERIC)))
    }

    /// The folder on this machine for what belongs to the machine: `$XDG_STATE_HOME/thread/<digest>`. The same
    /// for every spelling of the location that leads to the same names.
    pub fn base(&self) -> Result<PathBuf> {
        self.base_of(&self.thread)
    }

    /// The same for another thread of the schema.
    pub fn base_of(&self, thread: &str) -> Result<PathBuf> {
        let Settings { host, port, dbname, .. } = &self.settings;
        let (hosts, ports) = (host.join(","), port.join(","));
        let whole = [&*hosts, &*ports, dbname, &*self.schema, thread].join("\0");
        let digest = Sha1::digest(whole.as_bytes());
        let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Ok(state_dir()?.join(digest))
    }
}

/// The folder on this machine for all threads on servers: `$XDG_STATE_HOME/thread`.
pub fn state_dir() -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")));
    let state = state.ok_or_else(|| {
        problem(
            Code::Failed,
            "there is no folder for what belongs to this machine",
            "set HOME or XDG_STATE_HOME",
        )
    })?;
    Ok(state.join("thread"))
}

/// The hosts and the ports of the authority of a URL, each as a list separated by commas.
fn hosts_and_ports(authority: &str) -> Result<(String, String)> {
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    for one in authority.split(',') {
        // An IPv6 address stands in brackets.
        let (host, port) = match one.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, rest)) => (host, rest.strip_prefix(':').unwrap_or(rest)),
            None => one.rsplit_once(':').unwrap_or((one, "")),
        };
        hosts.push(decoded(host)?);
        ports.push(decoded(port)?);
    }
    let list =
        |all: Vec<String>| if all.iter().all(String::is_empty) { String::new() } else { all.join(",") };
    Ok((list(hosts), list(ports)))
}

fn decoded(text: &str) -> Result<String> {
    let bytes = percent_decode_str(text).decode_utf8().map_err(|_| unclear("is not UTF-8"))?;
    if bytes.contains('\0') { Err(unclear("contains a NUL character")) } else { Ok(bytes.into_owned()) }
}

fn unclear(what: &str) -> Error {
    invalid(format!("the location of the thread {what}"), "write it as postgres://user@host/database#thread")
}

fn unnamed() -> Error {
    unclear("does not end with # and the name of a thread")
}

fn unknown(name: &str) -> Error {
    invalid(
        format!("the location of the thread has the parameter '{}', which is not known", name.escape_debug()),
        "see `Many machines` in SPEC.md for those that are",
    )
}

/// A location is shown by `ps`, in logs and to handlers.
fn secret() -> Error {
    invalid(
        "the location of the thread contains a password, which every user could read",
        "leave it out, and put it into ~/.pgpass or PGPASSWORD",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(location: &str) -> Result<Target> {
        Target::of(&Location::from(location))
    }

    #[test]
    fn a_place_names_a_server_a_schema_and_a_thread() {
        let found =
            target("postgres://queue@db.example:5433/agents?schema=other&sslmode=verify-full#in%20box");
        let Target { settings, schema, thread, .. } = found.unwrap();
        assert_eq!((schema.as_str(), thread.as_str()), ("other", "in box"));
        assert_eq!((settings.host, settings.port), (vec!["db.example".into()], vec!["5433".into()]));
        assert_eq!((settings.user.as_str(), settings.dbname.as_str()), ("queue", "agents"));
        assert_eq!(target("postgresql://h/d#x").unwrap().location, Location::from("postgres://h/d#x"));
        let several = target("postgres://u@[::1]:1,b,c:3/d#x").unwrap().settings;
        assert_eq!(
            (several.host, several.port),
            (vec!["::1".into(), "b".into(), "c".into()], vec!["1".into(), "5432".into(), "3".into()])
        );
        let socket = target("postgres:///d?host=/tmp&port=7&user=u#x").unwrap().settings;
        assert_eq!((socket.host, socket.port), (vec!["/tmp".into()], vec!["7".into()]));
    }

    #[test]
    fn what_is_no_place_is_refused_and_a_password_is_not_repeated() {
        for (location, why) in [
            ("postgres://u@h/d", "the name of a thread"),
            ("postgres://u@h/d#", "the name of a thread"),
            ("postgres://u@h/d#a%0Ab", "the name of a thread"),
            ("postgres://u@h/d?colour=red#x", "'colour'"),
            ("postgres://u@h/d?sslmode#x", "without a value"),
            ("postgres://u@h/d?sslmode=maybe#x", "sslmode"),
            ("postgres://u@h:port/d#x", "port"),
            ("postgres://u@h/d?schema=a%00b#x", "NUL"),
            ("postgres://u@h/d?schema=#x", "schema"),
            ("postgres://u:hunter2@h/d#x", "password"),
            ("postgres://u@h/d?password=hunter2#x", "password"),
        ] {
            let refused = target(location).unwrap_err().to_string();
            assert!(refused.contains(why) && !refused.contains("hunter2"), "{location}: {refused}");
        }
    }

    #[test]
    fn the_folder_depends_on_the_thread_alone() {
        let base = |location: &str| target(location).unwrap().base().unwrap();
        let one = base("postgres://u@h/d#x");
        assert_eq!(one, base("postgres://v@h:5432/d?sslmode=require#x"));
        for other in [
            "postgres://u@h/d#y",
            "postgres://u@h/e#x",
            "postgres://u@h:1/d#x",
            "postgres://u@h/d?schema=s#x",
        ] {
            assert_ne!(one, base(other));
        }
    }
}
