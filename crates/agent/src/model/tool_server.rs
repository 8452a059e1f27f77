//! The servers of tools that `--tools` names.

use std::fmt;

use reqwest::Url;
use serde::{Deserialize, Serialize};

/// The longest name of a server, in bytes: a name of a tool may have 64, with that of its server.
const LONGEST_NAME: usize = 24;

/// What runs a program, or is part of the command that does, and says nothing about it.
const STARTERS: [&str; 11] =
    ["npx", "node", "bun", "bunx", "deno", "python", "python3", "uv", "uvx", "run", "pipx"];

/// A server of tools, by the Model Context Protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolServer {
    /// Begins the names of its tools: a-z, 0-9, `-` and `_`.
    pub name: String,
    /// Whether the name was given, and not made of the command.
    pub is_named: bool,
    pub at: At,
}

/// Where a server of tools is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum At {
    /// A program and its arguments, not empty: it is started, and speaks on stdin and stdout.
    Command(Vec<String>),
    /// It is reached by HTTP.
    Url(String),
}

impl ToolServer {
    /// What `--tools` takes: `COMMAND`, `URL`, or one of them after `NAME=`.
    ///
    /// # Errors
    ///
    /// Why it is none.
    pub fn parse(text: &str) -> Result<ToolServer, String> {
        let given = text.split_once('=').filter(|(name, _)| is_name(name));
        let (name, place) = given.map_or((None, text), |(name, place)| (Some(name), place));
        let place = place.trim();
        let (at, derived) = match place.starts_with("http://") || place.starts_with("https://") {
            true => {
                let url = Url::parse(place).map_err(|e| format!("it is not a URL ({e})"))?;
                // Whatever is given here is stored and shown.
                if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
                    return Err("a URL of tools must have no password and no query".to_owned());
                }
                let host = url.host_str().unwrap_or_default();
                (At::Url(url.to_string()), plain(host))
            }
            false => {
                let words = shlex::split(place).ok_or("a quote is not closed")?;
                let program = words.first().ok_or("it names no command")?;
                if program.contains('=') {
                    return Err(
                        "it is started without a shell, so no variables can be set here; write a script \
                                that sets them, or begin with `env`"
                            .to_owned(),
                    );
                }
                let derived = derived(&words);
                (At::Command(words), derived)
            }
        };
        let is_named = name.is_some();
        Ok(ToolServer { name: name.map_or(derived, str::to_owned), is_named, at })
    }
}

impl fmt::Display for ToolServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &self.at {
            At::Url(url) => url.clone(),
            At::Command(words) => shlex::try_join(words.iter().map(String::as_str)).unwrap_or_default(),
        };
        match self.is_named {
            true => write!(f, "{}={place}", self.name),
            false => f.write_str(&place),
        }
    }
}

/// Names are in lower case, so that a variable is none.
fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    (1..=LONGEST_NAME).contains(&text.len()) && text.chars().all(fits)
}

/// What to call a server: `filesystem` for `npx -y @modelcontextprotocol/server-filesystem@2 /data`.
fn derived(words: &[String]) -> String {
    let base = |word: &String| word.rsplit('/').next().unwrap_or_default().to_owned();
    let names = words.iter().filter(|word| !word.starts_with('-')).map(base);
    let mut names = names.map(|name| name.split('@').next().unwrap_or_default().to_owned());
    let name = names.find(|name| !name.is_empty() && !STARTERS.contains(&&**name)).unwrap_or_default();
    let name =
        [".py", ".mjs", ".js", ".ts", ".sh"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
    let name = plain(name);
    let begins = ["mcp-server-", "mcp_server_", "server-", "mcp-", "mcp_"];
    let name = begins.iter().find_map(|start| name.strip_prefix(start)).unwrap_or(&name);
    let ends = ["-mcp-server", "_mcp_server", "-mcp", "_mcp"];
    let name = ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
    if name.is_empty() { "tools".to_owned() } else { name.to_owned() }
}

/// A text as a name.
fn plain(text: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let text: String = text.chars().map(|c| if fits(c) { c.to_ascii_lowercase() } else { '-' }).collect();
    let text = text.trim_matches(['-', '_']).chars().take(LONGEST_NAME).collect::<String>();
    if text.is_empty() { "tools".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> String {
        ToolServer::parse(text).unwrap().name
    }

    #[test]
    fn a_server_is_called_after_its_program_or_as_was_said() {
        for (text, expected) in [
            ("npx -y @modelcontextprotocol/server-filesystem@2025.1.1 /data", "filesystem"),
            ("uvx mcp-server-git --repository .", "git"),
            ("python3 -m mcp_server_time", "time"),
            ("/opt/tools/weather.py", "weather"),
            ("thread mcp", "thread"),
            ("files=npx -y x", "files"),
            ("http://localhost:3000/mcp", "localhost"),
            ("far=https://mcp.example/mcp", "far"),
            ("-x", "tools"),
        ] {
            assert_eq!(name(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for text in ["a=sh -c 'x y'", "cat 'a b'", "http://localhost:3000/mcp", "b=https://h/mcp"] {
            let server = ToolServer::parse(text).unwrap();
            assert_eq!(ToolServer::parse(&server.to_string()), Ok(server), "{text}");
        }
    }

    #[test]
    fn secrets_and_nonsense_are_refused() {
        for bad in [
            "",
            "  ",
            "a=",
            "sh -c 'x",
            "TOKEN=x npx y",
            "http://",
            "https://me:pw@h/mcp",
            "https://h/mcp?key=x",
        ] {
            assert!(ToolServer::parse(bad).is_err(), "{bad}");
        }
    }
}
