//! The servers of tools that an agent is given: the adapter's own, and those of an editor.
//!
//! An editor's have secrets in their variables and headers. So they are in no event and in no command line, but in a file
//! of the thread that only its owner can read. `thread acp` writes it, in the protocol's own form.

use std::path::PathBuf;

use agent_client_protocol_schema::v1::{EnvVariable, McpCapabilities, McpServer, McpServerStdio};
use serde_json::Value;

/// The file in a thread's directory with an editor's servers: an array.
pub const EDITORS_SERVERS: &str = "mcp-servers.json";

/// A value that is shorter than this is no secret.
const SHORTEST_SECRET: usize = 4;

/// A program that gives the agent tools, by the Model Context Protocol on its stdin and stdout.
#[derive(Debug, Clone)]
pub struct ToolServer {
    pub name: String,
    /// Absolute.
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
}

impl ToolServer {
    fn described(&self) -> McpServer {
        let variables = self.environment.iter().map(|(name, value)| EnvVariable::new(name, value));
        let server = McpServerStdio::new(&self.name, &self.program);
        McpServer::Stdio(server.args(self.arguments.clone()).env(variables.collect()))
    }
}

/// The servers that an agent is given with its session.
#[derive(Default)]
pub struct Servers {
    own: Vec<ToolServer>,
    /// The file with those of an editor, if the agent may have them.
    file: Option<PathBuf>,
    /// What it had when the process was started; empty if it was missing.
    content: Vec<u8>,
    /// Those in it that the agent can use.
    editors: Vec<McpServer>,
}

impl Servers {
    /// `file` has those of an editor, and may be missing.
    pub fn new(own: Vec<ToolServer>, file: Option<PathBuf>) -> Servers {
        Servers { own, file, ..Servers::default() }
    }

    fn file_content(&self) -> Vec<u8> {
        self.file.as_ref().and_then(|file| std::fs::read(file).ok()).unwrap_or_default()
    }

    /// Reads the file, for a new process.
    pub fn read(&mut self) {
        self.content = self.file_content();
        let all: Vec<Value> = serde_json::from_slice(&self.content).unwrap_or_default();
        self.editors = all.into_iter().filter_map(|one| serde_json::from_value(one).ok()).collect();
    }

    /// Whether the file has changed since it was read.
    pub fn have_changed(&self) -> bool {
        self.file_content() != self.content
    }

    /// Leaves out those that an agent cannot reach, and returns what to tell people about that.
    pub fn can_be(&mut self, capabilities: &McpCapabilities) -> Option<String> {
        let left_out = self.editors.extract_if(.., |server| match server {
            McpServer::Http(_) => !capabilities.http,
            McpServer::Sse(_) => !capabilities.sse,
            McpServer::Stdio(_) => false,
            _ => true,
        });
        let names: Vec<String> = left_out.map(|server| name_of(&server)).collect();
        let names = Some(names.join(", ")).filter(|names| !names.is_empty())?;
        Some(format!("The agent cannot reach MCP servers of this kind, so it is not given: {names}"))
    }

    /// All of them, in the protocol's form.
    pub fn for_agent(&self) -> Vec<McpServer> {
        self.own.iter().map(ToolServer::described).chain(self.editors.iter().cloned()).collect()
    }

    /// A text of the agent without the values that only it may know.
    pub fn without_secrets(&self, text: String) -> String {
        let secrets = self.editors.iter().flat_map(secrets_of);
        let mut secrets: Vec<&str> = secrets.filter(|secret| secret.len() >= SHORTEST_SECRET).collect();
        // One may be the beginning of another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.into_iter().fold(text, |text, secret| {
            // As it is, and as in JSON.
            let quoted = Value::from(secret).to_string();
            text.replace(secret, "…").replace(&quoted[1..quoted.len() - 1], "…")
        })
    }
}

impl std::fmt::Debug for Servers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Servers").field("file", &self.file).finish_non_exhaustive()
    }
}

fn name_of(server: &McpServer) -> String {
    match server {
        McpServer::Http(server) => server.name.clone(),
        McpServer::Sse(server) => server.name.clone(),
        McpServer::Stdio(server) => server.name.clone(),
        _ => String::new(),
    }
}

fn secrets_of(server: &McpServer) -> Vec<&str> {
    match server {
        McpServer::Http(server) => server.headers.iter().map(|header| &*header.value).collect(),
        McpServer::Sse(server) => server.headers.iter().map(|header| &*header.value).collect(),
        McpServer::Stdio(server) => server.env.iter().map(|variable| &*variable.value).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn servers(folder: &std::path::Path) -> Servers {
        let mut servers = Servers::new(Vec::new(), Some(folder.join(EDITORS_SERVERS)));
        servers.read();
        servers
    }

    #[test]
    fn the_file_is_read_as_far_as_it_can_be_and_a_change_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let stdio = json!({ "name": "a", "command": "/a", "args": ["x"], "env": [{ "name": "KEY", "value": "secret" }] });
        let http = |kind: &str| json!({ "type": kind, "name": kind, "url": "http://h/", "headers": [{ "name": "A", "value": "hidden" }] });
        let mut none = servers(folder.path());
        assert!(none.for_agent().is_empty() && !none.have_changed());
        let all = json!([stdio, { "type": "http" }, http("http"), http("sse"), 7]);
        std::fs::write(folder.path().join(EDITORS_SERVERS), all.to_string()).unwrap();
        assert!(none.have_changed());
        none.read();
        assert!(!none.have_changed());
        assert_eq!(
            serde_json::to_value(none.for_agent()).unwrap(),
            json!([stdio, http("http"), http("sse")])
        );
        assert_eq!(none.without_secrets("a secret is hidden".into()), "a … is …");
        let long = json!([{ "name": "b", "command": "/b", "args": [], "env": [
            { "name": "A", "value": "secret" }, { "name": "B", "value": "secret and \"more\"" },
        ] }]);
        std::fs::write(folder.path().join(EDITORS_SERVERS), long.to_string()).unwrap();
        let text = "secret and \"more\", secret, {\"x\":\"secret and \\\"more\\\"\"}";
        assert_eq!(servers(folder.path()).without_secrets(text.into()), "…, …, {\"x\":\"…\"}");
        let left_out = none.can_be(&McpCapabilities::new().http(true)).unwrap();
        assert!(left_out.ends_with(": sse"), "{left_out}");
        assert_eq!(none.for_agent().len(), 2);
        std::fs::write(folder.path().join(EDITORS_SERVERS), "{").unwrap();
        assert!(none.have_changed() && servers(folder.path()).for_agent().is_empty());
    }
}
