//! The tools of all servers, under the names that the model knows them by.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{JsonObject, Tool};
use rmcp::service::Peer;
use serde_json::{Value, json};

use super::connection::{Connection, NoResult, call};
use super::tool_server::ToolServer;
use super::{Marks, Outcome};

/// The longest name of a tool that models accept, in bytes.
const LONGEST_NAME: usize = 64;

/// The longest description of a tool that a model is given, in bytes.
const LONGEST_DESCRIPTION: usize = 8 * 1024;

/// The servers, and what they offer.
#[derive(Default)]
pub struct Tools {
    cwd: PathBuf,
    servers: Vec<(ToolServer, Option<Connection>)>,
    /// The server and the tool for each name.
    known: BTreeMap<String, (usize, Tool)>,
}

/// A tool that can be called.
#[derive(Clone)]
pub struct Callee {
    peer: Peer<RoleClient>,
    tool: String,
}

impl Tools {
    /// Connects to the servers that are not connected. Returns why some cannot be.
    pub async fn connect(&mut self, servers: Vec<ToolServer>, cwd: PathBuf) -> Vec<String> {
        if self.servers.iter().map(|(server, _)| server).ne(&servers) {
            self.close().await;
            self.servers = servers.into_iter().map(|server| (server, None)).collect();
        }
        self.cwd = cwd;
        let cwd = &self.cwd;
        let open = self.servers.iter_mut().map(|(server, connection)| async move {
            let is_open = connection.as_ref().is_some_and(Connection::is_open);
            if is_open {
                return None;
            }
            // The old one ends first: it may hold what the new one needs.
            *connection = None;
            match Connection::open(server, cwd).await {
                Ok(opened) => *connection = Some(opened),
                Err(why) => return Some(format!("there are no tools of '{server}': {why}")),
            }
            None
        });
        let failed = together(open).await;
        self.name_all();
        failed.into_iter().flatten().collect()
    }

    /// Takes in what servers have said of changes to their tools. Returns whether there were any.
    pub async fn refresh(&mut self) -> bool {
        let before = self.known.clone();
        for connection in self.servers.iter_mut().filter_map(|(_, connection)| connection.as_mut()) {
            connection.refresh().await;
        }
        self.name_all();
        self.known != before
    }

    fn name_all(&mut self) {
        self.known.clear();
        for (at, (server, connection)) in self.servers.iter().enumerate() {
            for tool in connection.iter().flat_map(|connection| &connection.tools) {
                let name = name_of(&server.name, &tool.name);
                let mut names = (1..).map(|n| if n == 1 { name.clone() } else { numbered(&name, n) });
                if let Some(name) = names.find(|name| !self.known.contains_key(name)) {
                    self.known.insert(name, (at, tool.clone()));
                }
            }
        }
    }

    /// What the adapter has to know of each tool.
    pub fn marks(&self) -> BTreeMap<String, Marks> {
        let marks = |name: &str, tool: &Tool| {
            let hints = tool.annotations.as_ref();
            let is_read_only = hints.and_then(|hints| hints.read_only_hint) == Some(true);
            let is_idempotent = hints.and_then(|hints| hints.idempotent_hint) == Some(true);
            Marks { is_read_only, is_idempotent, size: described(name, tool).to_string().len() }
        };
        self.known.iter().map(|(name, (_, tool))| (name.clone(), marks(name, tool))).collect()
    }

    /// The tools as OpenAI's chat completions describe them.
    pub fn described(&self) -> Vec<Value> {
        self.known.iter().map(|(name, (_, tool))| described(name, tool)).collect()
    }

    /// The tool of that name. Its server is connected again if it has ended.
    ///
    /// # Errors
    ///
    /// There is none.
    pub async fn find(&mut self, name: &str) -> Result<Callee, String> {
        let unknown = || format!("there is no tool '{}'", name.chars().take(100).collect::<String>());
        let (at, _) = self.known.get(name).ok_or_else(unknown)?;
        let (server, connection) = &mut self.servers[*at];
        if !connection.as_ref().is_some_and(Connection::is_open) {
            *connection = None;
            let opened = Connection::open(server, &self.cwd).await;
            *connection =
                Some(opened.map_err(|why| format!("the server of this tool cannot be used: {why}"))?);
            self.name_all();
        }
        let (at, tool) = self.known.get(name).ok_or_else(unknown)?;
        let peer = self.servers[*at].1.as_ref().map(Connection::peer).ok_or_else(unknown)?;
        Ok(Callee { peer, tool: tool.name.clone().into_owned() })
    }

    pub async fn close(&mut self) {
        let open = self.servers.iter_mut().filter_map(|(_, connection)| connection.take());
        together(open.map(Connection::close)).await;
    }
}

impl Callee {
    /// Calls it. `None` if the connection was lost, so that it may have been called or not.
    pub async fn call(self, arguments: JsonObject, limit: Duration) -> Option<Outcome> {
        match call(&self.peer, self.tool, arguments, limit).await {
            Ok(outcome) => Some(outcome),
            Err(NoResult::Failed(why)) => Some(Err(why)),
            Err(NoResult::Lost) => None,
        }
    }
}

fn described(name: &str, tool: &Tool) -> Value {
    let about = tool.description.as_deref().or(tool.title.as_deref()).unwrap_or_default();
    let about = &about[..about.floor_char_boundary(LONGEST_DESCRIPTION)];
    let mut parameters = Value::Object((*tool.input_schema).clone());
    if !parameters["properties"].is_object() {
        // Servers of models insist on it.
        parameters["properties"] = json!({});
    }
    function(name, about, parameters)
}

/// A tool as OpenAI's chat completions describe it.
pub fn function(name: &str, about: &str, parameters: Value) -> Value {
    let function = json!({ "name": name, "description": about, "parameters": parameters });
    json!({ "type": "function", "function": function })
}

/// Names come from servers, and models accept few characters.
fn name_of(server: &str, tool: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let name = format!("{server}__{tool}");
    name.chars().map(|c| if fits(c) { c } else { '_' }).take(LONGEST_NAME).collect()
}

fn numbered(name: &str, number: usize) -> String {
    let end = format!("_{number}");
    format!("{}{end}", &name[..name.len().min(LONGEST_NAME - end.len())])
}

/// Does work side by side.
async fn together<T>(work: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    futures_util::future::join_all(work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_models_accept_them() {
        assert_eq!(name_of("files", "read_file"), "files__read_file");
        assert_eq!(name_of("a", "b.c/d é\n"), "a__b_c_d___");
        assert_eq!(name_of("a", &"x".repeat(100)).len(), LONGEST_NAME);
        assert_eq!(numbered(&"x".repeat(64), 2), format!("{}_2", "x".repeat(62)));
    }
}
