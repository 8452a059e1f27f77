//! The connection to one server of tools.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ContentBlock, Implementation,
    JsonObject, PaginatedRequestParams, ResourceContents, Tool,
};
use rmcp::service::{NotificationContext, Peer, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, RoleClient, ServiceError, ServiceExt};
use rustix::process::{Pid, Signal};
use thread_conversation::MAX_RESULT;
use tokio::process::{Child, Command};

use super::Endpoint;
use super::http::client;
use super::long_lines::ShortLines;
use super::tool_server::{At, ToolServer};

/// How long a server may take to start, which may mean that it is downloaded, and to list its tools.
const START: Duration = Duration::from_secs(60);

/// How long it has to end once its stdin is closed.
const END: Duration = Duration::from_secs(1);

/// How many tools of a server are taken.
const MOST_TOOLS: usize = 512;

/// What is kept of a result, in bytes, so that a note fits into [`MAX_RESULT`].
const KEPT: usize = MAX_RESULT - 64;

/// The variables that a server of tools gets: no key is among them. Those of the programs say to whom it belongs, so
/// that it is found when its session is stopped.
const VARIABLES: [&str; 19] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TMPDIR",
    "TZ",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "THREAD_DIR",
    "THREAD_CONSUMER",
    "THREAD_RUN_ID",
    "THREAD_AGENT",
    "THREAD_NOTIFIER",
];

/// A server that is running, and its tools.
pub struct Connection {
    service: RunningService<RoleClient, Handler>,
    pub tools: Vec<Tool>,
    has_changed: Arc<AtomicBool>,
    /// The process, if it was started from here.
    _process: Option<Process>,
}

/// Why a call has no result.
#[derive(Debug)]
pub enum NoResult {
    /// The tool was not called, or the server says so.
    Failed(String),
    /// The connection was lost: it may have been called.
    Lost,
}

/// What this client does by itself: almost nothing.
struct Handler {
    has_changed: Arc<AtomicBool>,
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let about = Implementation::new("thread-agent", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), about)
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.has_changed.store(true, Ordering::Relaxed);
    }
}

/// A process with everything that it has started. Ended when this is dropped.
struct Process {
    child: Child,
    group: Option<Pid>,
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            rustix::process::kill_process_group(group, Signal::KILL).ok();
        }
        self.child.start_kill().ok();
    }
}

impl Connection {
    /// Connects to a server, which is started in `cwd` if it is a command.
    ///
    /// # Errors
    ///
    /// Why that is not possible.
    pub async fn open(server: &ToolServer, cwd: &Path) -> Result<Connection, String> {
        let opened = tokio::time::timeout(START, Connection::connect(server, cwd)).await;
        opened.unwrap_or_else(|_| Err(format!("it was not ready within {} s", START.as_secs())))
    }

    async fn connect(server: &ToolServer, cwd: &Path) -> Result<Connection, String> {
        let has_changed = Arc::<AtomicBool>::default();
        let handler = Handler { has_changed: Arc::clone(&has_changed) };
        let (service, process) = match &server.at {
            At::Command(words) => {
                let mut process = start(words, cwd)?;
                let (Some(input), Some(output)) = (process.child.stdin.take(), process.child.stdout.take())
                else {
                    return Err("it has no stdin and stdout".to_owned());
                };
                let transport = AsyncRwTransport::new_client(ShortLines::new(output), input);
                let service = handler.serve(transport).await.map_err(|e| e.to_string())?;
                (service, Some(process))
            }
            At::Url(url) => {
                let endpoint = Endpoint { url: url.clone(), key: None, is_agent: false };
                let client = client(&endpoint).map_err(|failed| failed.error)?;
                let config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
                let transport = StreamableHttpClientTransport::with_client(client, config);
                (handler.serve(transport).await.map_err(|e| e.to_string())?, None)
            }
        };
        let mut connection = Connection { service, tools: Vec::new(), has_changed, _process: process };
        connection.list().await?;
        Ok(connection)
    }

    pub fn is_open(&self) -> bool {
        !self.service.is_closed() && !self.service.peer().is_transport_closed()
    }

    /// Lists the tools again if the server has said that they have changed. If that fails, those from before stay.
    pub async fn refresh(&mut self) {
        if self.has_changed.swap(false, Ordering::Relaxed) {
            drop(tokio::time::timeout(START, self.list()).await);
        }
    }

    async fn list(&mut self) -> Result<(), String> {
        let (mut tools, mut cursor) = (Vec::new(), None);
        loop {
            let page = PaginatedRequestParams::default().with_cursor(cursor.clone());
            let page = self.service.peer().list_tools(Some(page)).await.map_err(|e| e.to_string())?;
            tools.extend(page.tools);
            if tools.len() >= MOST_TOOLS || page.next_cursor.is_none() || page.next_cursor == cursor {
                break;
            }
            cursor = page.next_cursor;
        }
        tools.truncate(MOST_TOOLS);
        self.tools = tools;
        Ok(())
    }

    pub fn peer(&self) -> Peer<RoleClient> {
        self.service.peer().clone()
    }

    /// Ends the connection, and the process.
    pub async fn close(mut self) {
        drop(self.service.close_with_timeout(END).await);
        if let Some(process) = &mut self._process {
            drop(tokio::time::timeout(END, process.child.wait()).await);
        }
    }
}

/// Calls a tool, and returns its result as text, or the error that it gives.
pub async fn call(
    peer: &Peer<RoleClient>,
    tool: String,
    arguments: JsonObject,
    limit: Duration,
) -> Result<Result<String, String>, NoResult> {
    let request = peer.call_tool(CallToolRequestParams::new(tool).with_arguments(arguments));
    match tokio::time::timeout(limit, request).await {
        Ok(Ok(result)) => Ok(outcome(result)),
        Ok(Err(ServiceError::TransportClosed | ServiceError::TransportSend(_))) => Err(NoResult::Lost),
        Ok(Err(ServiceError::McpError(e))) => Err(NoResult::Failed(cut(e.message.into_owned()))),
        Ok(Err(e)) => Err(NoResult::Failed(cut(e.to_string()))),
        Err(_) => {
            let limit = thread::model::duration::format(limit);
            Err(NoResult::Failed(format!("the tool gave no result within {limit}; it may have taken effect")))
        }
    }
}

fn start(words: &[String], cwd: &Path) -> Result<Process, String> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir(cwd).env_clear().kill_on_drop(true).process_group(0);
    command.envs(VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let child = command.spawn().map_err(|e| format!("'{}' cannot be run: {e}", words[0]))?;
    let group = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    Ok(Process { child, group })
}

fn outcome(result: CallToolResult) -> Result<String, String> {
    let mut text = String::new();
    for block in &result.content {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        match block {
            ContentBlock::Text(part) => text.push_str(&part.text),
            ContentBlock::Image(part) => {
                text.push_str(&format!("[an image that is not shown: {}]", part.mime_type))
            }
            ContentBlock::Audio(part) => {
                text.push_str(&format!("[a sound that is not shown: {}]", part.mime_type))
            }
            ContentBlock::Resource(part) => match &part.resource {
                ResourceContents::TextResourceContents { text: part, .. } => text.push_str(part),
                ResourceContents::BlobResourceContents { uri, .. } => {
                    text.push_str(&format!("[a file that is not shown: {uri}]"));
                }
                _ => text.push_str("[something that is not shown]"),
            },
            ContentBlock::ResourceLink(link) => text.push_str(&link.uri),
            _ => text.push_str("[something that is not shown]"),
        }
    }
    if let Some(structured) = result.structured_content.filter(|_| text.is_empty()) {
        text = structured.to_string();
    }
    if result.is_error == Some(true) { Err(cut(text)) } else { Ok(cut(text)) }
}

/// A text as long as a result may be.
fn cut(mut text: String) -> String {
    let length = text.len();
    if length > KEPT {
        text.truncate(text.floor_char_boundary(KEPT));
        text.push_str(&format!("\n[cut: {length} bytes in all]"));
    }
    text
}
