//! The MCP servers that an editor names for a session.
//!
//! The agent of the session is given them by its adapter, which finds them in a file of the thread. They are commands to
//! start, and their variables and headers have secrets. So the gateway is not asked: the file is written from here. That
//! takes the right to write to the thread, which is the right to run commands as its owner anyway.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use agent_client_protocol_schema::v1::{Error, McpServer};
use thread_protocol::method::AgentSummary;
use uuid::Uuid;

use crate::choices::Choices;

/// The file, in the thread's directory: an array in the form of the protocol.
const FILE: &str = "mcp-servers.json";

/// The longest list, as JSON, in bytes.
const LONGEST: usize = 256 * 1024;

/// Those of a session.
pub struct Servers {
    /// Where the sessions are, if the gateway is on this machine.
    pub root: Option<PathBuf>,
    pub named: Vec<McpServer>,
}

impl Servers {
    /// Keeps them with the session in place of those from before, if one of the agents that it can have may be given them.
    /// Returns whether there are some that its agent of now is not given.
    ///
    /// # Errors
    ///
    /// They cannot be kept.
    pub fn keep(&self, session: &str, choices: &Choices) -> Result<bool, Error> {
        let are_used = self.root.is_some() && choices.agent().is_some_and(takes_servers);
        self.replace(session, choices.agents())?;
        Ok(!self.named.is_empty() && !are_used)
    }

    fn replace(&self, session: &str, agents: &[AgentSummary]) -> Result<(), Error> {
        // An id is a name of a directory here.
        let (Some(root), Ok(id)) = (&self.root, Uuid::parse_str(session)) else { return Ok(()) };
        let directory = root.join(id.to_string());
        let are_wanted = !self.named.is_empty() && agents.iter().any(takes_servers);
        let replaced = match are_wanted {
            true => {
                let text = serde_json::to_vec(&self.named).map_err(|e| failed(&e.into()))?;
                if text.len() > LONGEST {
                    let what = "the MCP servers take more than 256 KiB - name fewer of them";
                    return Err(Error::new(-32602, what));
                }
                replace(&directory, &text)
            }
            false => fs::remove_file(directory.join(FILE)),
        };
        match replaced {
            Err(e) if are_wanted || e.kind() != io::ErrorKind::NotFound => Err(failed(&e)),
            _ => Ok(()),
        }
    }
}

fn takes_servers(agent: &AgentSummary) -> bool {
    agent.allow.iter().any(|word| word == "mcp_servers")
}

/// Writes the file, which is complete at any time, unless that is what it has.
fn replace(directory: &Path, text: &[u8]) -> io::Result<()> {
    let file = directory.join(FILE);
    if fs::read(&file).is_ok_and(|now| now == text) {
        return Ok(());
    }
    let draft = directory.join(format!(".{FILE}.{}", Uuid::new_v4()));
    let written = (|| {
        let mut new = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        new.write_all(text)?;
        new.sync_all()?;
        fs::rename(&draft, &file)
    })();
    if written.is_err() {
        fs::remove_file(&draft).ok();
    }
    written
}

fn failed(why: &io::Error) -> Error {
    Error::new(-32603, format!("the MCP servers cannot be kept with the session: {why} - see to its folder"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    const SESSION: &str = "3e0f4a4a-0000-4000-8000-000000000000";

    fn agents(allow: &[&str]) -> Vec<AgentSummary> {
        let agent = |name: &str, allow: &[&str]| AgentSummary {
            name: name.to_owned(),
            about: None,
            prompts: Vec::new(),
            allow: allow.iter().map(|word| (*word).to_owned()).collect(),
            steps: false,
        };
        vec![agent("first", &[]), agent("second", allow)]
    }

    fn servers(root: Option<&Path>, names: &[&str]) -> Servers {
        let env = json!([{ "name": "A", "value": "b" }]);
        let server = |name: &&str| json!({ "name": name, "command": "/x", "args": [], "env": env });
        let named = names.iter().map(|name| serde_json::from_value(server(name)).unwrap()).collect();
        Servers { root: root.map(Path::to_owned), named }
    }

    fn choices(agent: &str, allow: &[&str]) -> Choices {
        Choices::new(&agents(allow), Some(agent.to_owned()), Vec::new())
    }

    #[test]
    fn they_are_kept_where_an_agent_may_have_them_and_replaced_by_the_next() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(SESSION).join(FILE);
        let keep = |names: &[&str], allow: &[&str]| {
            servers(Some(root.path()), names).keep(SESSION, &choices("second", allow))
        };
        // There is no such session.
        assert!(keep(&["m"], &["mcp_servers"]).is_err());
        fs::create_dir(root.path().join(SESSION)).unwrap();
        assert!(keep(&["m"], &["cwd"]).unwrap() && !file.exists());
        for names in [&["m"][..], &["m"], &["n", "o"]] {
            assert!(!keep(names, &["cwd", "mcp_servers"]).unwrap());
            let read: Vec<McpServer> = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            assert_eq!(read, servers(None, names).named);
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        assert!(keep(&["x".repeat(LONGEST).as_str()], &["mcp_servers"]).is_err());
        // The session may be moved to the agent that may have them.
        let here = servers(Some(root.path()), &["p"]);
        assert!(here.keep(SESSION, &choices("first", &["mcp_servers"])).unwrap());
        assert_eq!(fs::read(&file).unwrap(), serde_json::to_vec(&here.named).unwrap());
        assert!(!keep(&[], &["mcp_servers"]).unwrap() && !file.exists());
        assert!(!keep(&[], &[]).unwrap());
        // A name of another place is none of a session, and a gateway elsewhere has no place here.
        here.keep("..", &choices("second", &["mcp_servers"])).unwrap();
        assert!(servers(None, &["m"]).keep(SESSION, &choices("second", &["mcp_servers"])).unwrap());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
        assert!(!file.exists());
    }
}
