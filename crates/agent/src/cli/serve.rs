//! `thread agent -- PROGRAM`: the adapter itself, as the handler of a consumer.

use crate::adapter::{Adapter, Options};
use crate::launcher;
use crate::model::{self, Endpoint, default_context, default_key_variable};
use crate::notes::Notebook;
use crate::protocol::{
    Acp, AgUi, EDITORS_SERVERS, Exec, ModelOptions, Ndjson, OpenAi, Protocol, Servers, ToolServer,
};
use crate::seat::Seat;
use crate::settings::{ProtocolArg, Settings, Stay, key, missing_key, read_env_file};
use crate::sub_agent::is_sub_agent;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use thread::Queue;
use thread::model::subscription::ConsumerId;

use super::{Failure, Globals, Result, current_directory, open, variable};

/// The environment variable with the path of `--env-file`.
pub const ENV_FILE: &str = "THREAD_AGENT_ENV_FILE";

/// The folder of a thread in which servers of tools are started.
const WORK: &str = "work";

/// Processes the consumer's messages until there has been nothing to do for long enough.
pub fn run(
    seat: Seat,
    settings: Settings,
    stay: Stay,
    mut program: Vec<String>,
    globals: &Globals,
) -> Result<()> {
    // The consumer's lock must be held by this process only, not by processes the agent leaves behind.
    close_fds::set_fds_cloexec(3, &[]);
    let consumer = variable("THREAD_CONSUMER").and_then(|name| name.into_string().ok()).ok_or_else(|| {
        Failure::usage(
            "this is not the handler of a consumer (THREAD_CONSUMER is not set)",
            "subscribe the agent with `thread agent install`",
        )
    })?;
    settings.check()?;
    let queue = open(globals.thread.clone())?;
    let stay = if is_sub_agent(queue.path()) { stay.for_sub_agent() } else { stay };
    let launcher = super::find_launcher()?;
    let mut environment = Vec::new();
    if let Some(file) = &settings.env_file {
        environment = read_env_file(file)?;
        // For `thread agent run`: a sub-agent, too, has the same variables however it is woken.
        environment
            .push((ENV_FILE.to_owned(), current_directory()?.join(file).to_string_lossy().into_owned()));
    }
    let protocol: Box<dyn Protocol> = match settings.protocol {
        ProtocolArg::Exec => {
            let most = settings.transcript.map_or(0, |most| usize::try_from(most).unwrap_or(usize::MAX));
            Box::new(Exec::with_transcript(most))
        }
        ProtocolArg::Ndjson => Box::<Ndjson>::default(),
        ProtocolArg::Acp => {
            let own = if settings.mcp { vec![tools(&queue, &consumer)?] } else { Vec::new() };
            let file = match settings.mcp_servers {
                true => Some(queue.directory("--mcp-servers")?.join(EDITORS_SERVERS)),
                false => None,
            };
            Box::new(Acp::new(current_directory()?, Servers::new(own, file)))
        }
        ProtocolArg::OpenAi => {
            program = own_program(&["_model"])?;
            let mut servers = settings.tools.clone();
            if settings.mcp {
                servers.insert(0, model_tools(tools(&queue, &consumer)?));
            }
            Box::new(model(&settings, servers, &queue, &mut environment))
        }
        ProtocolArg::AgUi => {
            program = own_program(&["_model"])?;
            let url = settings.url.clone().unwrap_or_default();
            let (key, hindrance) = server_key(settings.key_env.as_deref(), None, &mut environment);
            Box::new(AgUi::new(Endpoint { url, key, is_agent: true }, hindrance))
        }
    };
    let options = Options {
        consumer: ConsumerId::stored(consumer),
        program: program.into_iter().map(Into::into).collect(),
        environment,
        protocol,
        seat,
        settings,
        stay,
    };
    let adapter = Adapter::new(queue, launcher, options)?;
    let stop = adapter.stopper();
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])
        .map_err(|e| Failure::failed(format_args!("cannot listen to signals: {e}"), "try again"))?;
    std::thread::spawn(move || signals.forever().for_each(|_| stop.stop()));
    adapter.run()?;
    Ok(())
}

/// The command line of this program with these arguments.
fn own_program(words: &[&str]) -> Result<Vec<String>> {
    let own = std::env::current_exe()
        .map_err(|e| Failure::failed(format_args!("cannot find this program: {e}"), "install it again"))?;
    let own = own.to_string_lossy().into_owned();
    Ok(std::iter::once(own).chain(words.iter().map(|word| (*word).to_owned())).collect())
}

/// The key of a server, in the variable that is named or else in that of `default`, and why there is none. It is taken
/// out of `environment` and of this process's own, so that no program that is started from here has it.
fn server_key(
    named: Option<&str>,
    default: Option<&str>,
    environment: &mut Vec<(String, String)>,
) -> (Option<String>, Option<String>) {
    let variable = named.or(default);
    let key = variable.and_then(|name| key(name, environment));
    if let Some(name) = variable {
        environment.retain(|(known, _)| known != name);
        // SAFETY: no other thread has been started yet.
        unsafe { std::env::remove_var(name) };
    }
    let missing = named.filter(|_| key.is_none()).map(|name| missing_key(name).what);
    (key, missing)
}

/// The protocol for a model.
fn model(
    settings: &Settings,
    servers: Vec<model::ToolServer>,
    queue: &Queue,
    environment: &mut Vec<(String, String)>,
) -> OpenAi {
    let url = settings.url.as_deref().map(|url| model::parse_url(url).unwrap_or_else(|_| url.to_owned()));
    let url = url.unwrap_or_default();
    let (key, missing) = server_key(settings.key_env.as_deref(), default_key_variable(&url), environment);
    OpenAi::new(ModelOptions {
        endpoint: Endpoint { url: url.clone(), key, is_agent: false },
        model: settings.model.clone().unwrap_or_default(),
        system: settings.system.clone(),
        servers: numbered(servers),
        folder: queue.path().join(WORK),
        notebook: Notebook::of(queue).filter(|_| settings.memory),
        max_turns: settings.max_turns,
        context: settings.context.or_else(|| default_context(&url)),
        hindrance: missing,
    })
}

/// Servers with a name each.
fn numbered(mut servers: Vec<model::ToolServer>) -> Vec<model::ToolServer> {
    for at in 1..servers.len() {
        let (before, rest) = servers.split_at_mut(at);
        let name = rest[0].name.clone();
        let is_free = |name: &String| before.iter().all(|server| server.name != *name);
        let mut names = std::iter::once(name.clone()).chain((2..).map(|number| format!("{name}{number}")));
        rest[0].name = names.find(is_free).unwrap_or(name);
    }
    servers
}

/// The server of tools for the agent of this thread.
fn tools(queue: &Queue, consumer: &str) -> Result<ToolServer> {
    let hint = "install it next to thread-agent, or put it on PATH, or leave out --mcp";
    let program = launcher::program("thread-mcp").map_err(|what| Failure::failed(what, hint))?;
    let thread = queue.directory("--mcp")?.to_string_lossy().into_owned();
    let arguments = ["--thread", &thread, "--sessions", "--consumer", consumer, "--name", "agent"];
    Ok(ToolServer {
        name: "thread".to_owned(),
        program,
        arguments: arguments.map(str::to_owned).to_vec(),
        // Agents may start it with little else: how it wakes others is as here.
        environment: ["PATH", "THREAD_NOTIFIER"]
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), variable(name)?.into_string().ok()?)))
            .collect(),
    })
}

/// The same server for a model. Its programs start with a clean environment.
fn model_tools(server: ToolServer) -> model::ToolServer {
    let variables = server.environment.iter().map(|(name, value)| format!("{name}={value}"));
    let program = [server.program.to_string_lossy().into_owned()];
    let words = ["env".to_owned()].into_iter().chain(variables).chain(program).chain(server.arguments);
    model::ToolServer { name: server.name, is_named: true, at: model::At::Command(words.collect()) }
}
