//! The file of `--agents`: TOML, with a table `[[agent]]` for each.

use std::path::Path;

use clap::ValueEnum;
use thread::failure::Failure;
use thread::run::Launcher;
use thread_agent::model::{ToolServer, checked_url, parse_url};
use thread_agent::seat::{self, Setting};
use thread_agent::settings::{Budget, MAX_TURNS, Permit, PermitWait, ProtocolArg, Settings, Stay};
use toml::{Table, Value};

use super::SESSION;
use super::agent::{Agent, Spec};

/// The keys of a table, as the error of another one lists them.
const KEYS: &str = "name, command, url, protocol, permit, permit_wait, cwd, env, env_file, key_env, tools, system, \
                    task_model, about, prompts, allow, budget";

/// The most agents, and the longest text that clients are shown, in characters.
const MOST_AGENTS: usize = 100;
const LONGEST_TEXT: usize = 1000;
const MOST_PROMPTS: usize = 20;

/// Reads the agents of a file, in their order. Options of the command line apply where a table says nothing else.
///
/// # Errors
///
/// The file cannot be read or is no TOML; a table has an unknown key or a bad value, or an agent cannot be started: a
/// message that names the file, the table and the key.
pub fn read(
    file: &Path,
    options: (&Settings, &Stay),
    cwd: &Path,
    launcher: &Launcher,
) -> Result<Vec<Agent>, Failure> {
    let text = std::fs::read_to_string(file).map_err(|e| {
        Failure::failed(format!("cannot read {}: {e}", file.display()), "check the file of --agents")
    })?;
    let base = cwd.join(file).parent().map(Path::to_owned).unwrap_or_else(|| cwd.to_owned());
    let whole: Table = text.parse().map_err(|e: toml::de::Error| {
        let at = e.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        let what = e.message().replace('\n', " ");
        Failure::usage(format!("{}, line {at}: {what}", file.display()), "write TOML with tables [[agent]]")
    })?;
    let shown = file.display();
    if let Some(other) = whole.keys().find(|key| *key != "agent") {
        return Err(Failure::usage(
            format!("{shown}: unknown key '{other}'"),
            "the file has nothing but tables [[agent]]",
        ));
    }
    let hint = "describe each agent in a table of its own: [[agent]], name = \"…\", command = \"…\"";
    let Some(Value::Array(tables)) = whole.get("agent").filter(|agents| !is_empty(agents)) else {
        return Err(Failure::usage(format!("{shown} has no table [[agent]]"), hint));
    };
    if tables.len() > MOST_AGENTS {
        return Err(Failure::usage(format!("{shown} has more than {MOST_AGENTS} agents"), "leave some out"));
    }
    let mut agents: Vec<Agent> = Vec::new();
    for (at, table) in tables.iter().enumerate() {
        let name = table.get("name").and_then(Value::as_str);
        let place = match name {
            Some(name) => format!("{shown}, [[agent]] {} ('{}')", at + 1, name.escape_debug()),
            None => format!("{shown}, [[agent]] {}", at + 1),
        };
        let Value::Table(table) = table else {
            return Err(Failure::usage(format!("{place} is no table"), hint));
        };
        let agent = spec(table, options, &base).map_err(|Bad { key, what, hint }| {
            let key = if key.is_empty() { String::new() } else { format!(", {key}") };
            Failure::usage(format!("{place}{key}: {what}"), hint)
        })?;
        let agent =
            Agent::new(agent, launcher).map_err(|e| Failure { what: format!("{place}: {}", e.what), ..e })?;
        let known = || agents.iter().flat_map(|other| [Some(other), other.task.as_deref()]).flatten();
        if [Some(&agent), agent.task.as_deref()]
            .into_iter()
            .flatten()
            .any(|new| known().any(|other| other.name == new.name))
        {
            return Err(Failure::usage(
                format!("{place}, name: another agent has the name '{}'", agent.name),
                "give each agent its own name",
            ));
        }
        agents.push(agent);
    }
    Ok(agents)
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_none_or(Vec::is_empty)
}

/// What is wrong in a table.
struct Bad {
    /// The key; empty if it is the table as a whole.
    key: String,
    what: String,
    hint: String,
}

fn bad<T>(key: &str, what: impl Into<String>, hint: impl Into<String>) -> Result<T, Bad> {
    Err(Bad { key: key.to_owned(), what: what.into(), hint: hint.into() })
}

fn spec(table: &Table, (settings, stay): (&Settings, &Stay), base: &Path) -> Result<Spec, Bad> {
    let mut spec = Spec::of_line("", settings, stay, base.to_owned());
    (spec.given_by, spec.base) = ("command", base.to_owned());
    let (mut command, mut url, mut tools, mut task_model) = (None, None, false, None);
    for (key, value) in table {
        let settings = &mut spec.settings;
        match &**key {
            "name" => spec.name = Some(checked(key, text(key, value)?, seat::name)?),
            "command" => command = Some(text(key, value)?.to_owned()),
            "url" => url = Some(text(key, value)?.to_owned()),
            "protocol" => settings.protocol = word::<ProtocolArg>(key, value)?,
            "permit" => settings.permit = word::<Permit>(key, value)?,
            "permit_wait" => {
                settings.permit_wait = match value {
                    Value::Integer(seconds) => checked(key, &seconds.to_string(), PermitWait::parse)?,
                    value => checked(key, text(key, value)?, PermitWait::parse)?,
                };
            }
            "cwd" => spec.cwd = base.join(text(key, value)?),
            "env" => spec.environment = variables(key, value)?,
            "env_file" => settings.env_file = Some(base.join(text(key, value)?)),
            "key_env" => {
                settings.key_env =
                    Some(checked(key, text(key, value)?, thread_agent::settings::variable_name)?)
            }
            "tools" => match value {
                Value::Boolean(wanted) => tools = *wanted,
                value if !value.is_array() => {
                    let hint = "write tools = true, or tools = [\"COMMAND\"] for a model at url";
                    return bad(key, "it is not true or false, and no list of servers", hint);
                }
                value => {
                    settings.tools = list(key, value)?
                        .into_iter()
                        .map(|one| checked(key, text(key, one)?, ToolServer::parse))
                        .collect::<Result<_, _>>()?;
                }
            },
            "budget" => {
                let text = match value {
                    Value::Integer(amount) => amount.to_string(),
                    Value::Float(amount) => amount.to_string(),
                    value => text(key, value)?.to_owned(),
                };
                settings.budget = Some(checked(key, &text, Budget::parse)?);
            }
            "task_model" => task_model = Some(text(key, value)?),
            "system" => settings.system = Some(base.join(text(key, value)?)),
            "about" => spec.about = Some(shown_text(key, text(key, value)?)?),
            "prompts" => spec.prompts = prompts(key, value)?,
            "allow" => {
                spec.allow = list(key, value)?
                    .into_iter()
                    .map(|one| word::<Setting>(key, one))
                    .collect::<Result<_, _>>()?
            }
            other => return bad(other, "unknown key", format!("the keys are {KEYS}")),
        }
    }
    if spec.name.is_none() {
        return bad("name", "it is missing", "give each agent a name");
    }
    line(&mut spec, command, url)?;
    if let Some(model) = task_model {
        task(&mut spec, model)?;
    }
    fits(&mut spec, table, tools)?;
    Ok(spec)
}

/// The program or the model.
fn line(spec: &mut Spec, command: Option<String>, url: Option<String>) -> Result<(), Bad> {
    spec.line = match (command, url) {
        (Some(command), None)
            if ["openai:", "ag-ui:"].iter().any(|kind| command.trim_start().starts_with(kind)) =>
        {
            return bad("command", "it is a server, not a command", "give it as url");
        }
        (Some(command), None) => command,
        (None, Some(url)) => {
            if let Some(address) = url.strip_prefix("ag-ui:") {
                let hint = "write ag-ui:URL, such as ag-ui:http://localhost:8000/";
                spec.settings.model = None;
                spec.line =
                    checked_url(address).map_or_else(|why| bad("url", why, hint), |_| Ok(url.clone()))?;
                return Ok(());
            }
            let hint = "write openai:URL#MODEL, such as openai:http://localhost:11434/v1#qwen3, or ag-ui:URL";
            let address = url.strip_prefix("openai:").and_then(|rest| rest.split_once('#'));
            match address.map(|(address, model)| (parse_url(address), model)) {
                Some((Ok(_), model)) if !model.is_empty() => url,
                Some((Err(why), _)) => return bad("url", why, hint),
                _ => return bad("url", format!("'{url}' is not openai:URL#MODEL"), hint),
            }
        }
        (Some(_), Some(_)) => {
            return bad("url", "the agent has a command, too", "give one of command and url");
        }
        (None, None) => return bad("", "it has neither a command nor a url", "give one of them"),
    };
    Ok(())
}

/// The model for titles and the like: a name at the agent's own URL, or one with its URL.
fn task(spec: &mut Spec, model: &str) -> Result<(), Bad> {
    const KEY: &str = "task_model";
    let line = match model.starts_with("openai:") {
        true => model.to_owned(),
        false => match spec.line.strip_prefix("openai:").and_then(|rest| rest.split_once('#')) {
            Some((url, _)) => format!("openai:{url}#{model}"),
            None => {
                let hint = "write openai:URL#MODEL, such as openai:http://localhost:11434/v1#qwen3";
                return bad(KEY, "the agent is not a model whose URL it could be at", hint);
            }
        },
    };
    let name = format!("{}.tasks", spec.name.as_deref().unwrap_or_default());
    let name = seat::name(&name)
        .or_else(|_| bad("name", "it is too long for an agent with a task_model", "shorten it"))?;
    spec.task = Some(Box::new(spec.for_tasks(name, line)));
    Ok(())
}

/// Checks that the keys fit together.
fn fits(spec: &mut Spec, table: &Table, tools: bool) -> Result<(), Bad> {
    let is_agent = spec.line.starts_with("ag-ui:");
    let is_model = table.contains_key("url") && !is_agent;
    let settings = &mut spec.settings;
    if is_model && table.contains_key("protocol") && settings.protocol != ProtocolArg::OpenAi {
        return bad("protocol", "a model at url is asked by the protocol openai", "leave it out");
    }
    if is_agent && table.contains_key("protocol") && settings.protocol != ProtocolArg::AgUi {
        return bad("protocol", "an agent at ag-ui:URL is asked by the protocol ag-ui", "leave it out");
    }
    if is_agent {
        settings.protocol = ProtocolArg::AgUi;
    }
    if !is_model {
        if !is_agent && settings.protocol == ProtocolArg::AgUi {
            return bad("protocol", "ag-ui is for an agent at a url", "give a url instead of a command");
        }
        if !is_agent && settings.protocol == ProtocolArg::OpenAi {
            return bad("protocol", "openai is for a model", "give a url instead of a command");
        }
        let has_key = is_agent || spec.task.is_some();
        let models: &[&str] = if has_key { &["system"] } else { &["key_env", "system"] };
        if let Some(key) = models.iter().find(|key| table.contains_key(**key)) {
            return bad(key, "it is for a model at url only", "leave it out");
        }
        // Those of the command line are for agents that can have them.
        settings.key_env = settings.key_env.take().filter(|_| is_agent && table.contains_key("key_env"));
        (settings.system, settings.context) = (None, None);
        (settings.tools, settings.max_turns) = (Vec::new(), MAX_TURNS);
    }
    if settings.protocol != ProtocolArg::Exec || is_model || is_agent {
        settings.transcript = None;
    }
    let has_servers = table.get("tools").is_some_and(Value::is_array);
    if has_servers && !is_model {
        return bad("tools", "servers of tools are for a model at url", "leave it out");
    }
    let can_have_tools = is_model || settings.protocol == ProtocolArg::Acp;
    if tools && !can_have_tools {
        let what = "only a model at url and an agent with protocol = \"acp\" can be given tools";
        return bad("tools", what, "leave it out");
    }
    settings.mcp = match table.get("tools") {
        Some(Value::Boolean(_)) => tools,
        _ => settings.mcp && can_have_tools,
    };
    let can_have_servers = !is_model && settings.protocol == ProtocolArg::Acp;
    if spec.allow.contains(&Setting::McpServers) && !can_have_servers {
        let what = "only an agent with protocol = \"acp\" can be given the MCP servers of an editor";
        return bad("allow", what, "leave out \"mcp_servers\"");
    }
    settings.mcp_servers = can_have_servers && settings.mcp_servers;
    if spec.allow.contains(&Setting::Model) && !is_model {
        return bad("allow", "a model can be chosen only for a model at url", "leave out \"model\"");
    }
    let is_own = spec.cwd.to_string_lossy().contains(SESSION);
    if is_own && spec.allow.contains(&Setting::Cwd) {
        return bad(
            "allow",
            "each session has a directory of its own by cwd",
            "leave out \"cwd\" there or here",
        );
    }
    if !is_own && !spec.cwd.is_dir() {
        return bad("cwd", format!("{} is not a directory", spec.cwd.display()), "make it, or name another");
    }
    Ok(())
}

fn text<'v>(key: &str, value: &'v Value) -> Result<&'v str, Bad> {
    match value.as_str() {
        Some(text) if text.trim().is_empty() => bad(key, "it is empty", "give it a value, or leave it out"),
        Some(text) if text.contains('\0') => bad(key, "it has a NUL character", "leave that out"),
        Some(text) => Ok(text),
        None => bad(key, "it is not a text", "write it in quotes"),
    }
}

fn checked<T>(key: &str, text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, Bad> {
    parse(text).or_else(|why| bad(key, why, "correct it"))
}

/// One of the words of an option.
fn word<T: ValueEnum>(key: &str, value: &Value) -> Result<T, Bad> {
    let text = text(key, value)?;
    T::from_str(text, false).or_else(|_| {
        let words = T::value_variants().iter().filter_map(T::to_possible_value);
        let words: Vec<String> = words.map(|word| word.get_name().to_owned()).collect();
        bad(key, format!("'{text}' is not one of {}", words.join(", ")), "write one of them")
    })
}

fn list<'v>(key: &str, value: &'v Value) -> Result<Vec<&'v Value>, Bad> {
    match value {
        Value::Array(all) => Ok(all.iter().collect()),
        _ => bad(key, "it is not a list", "write it in brackets: [\"…\"]"),
    }
}

fn shown_text(key: &str, text: &str) -> Result<String, Bad> {
    match text.chars().count() > LONGEST_TEXT {
        true => bad(key, format!("it is longer than {LONGEST_TEXT} characters"), "shorten it"),
        false => Ok(text.to_owned()),
    }
}

fn prompts(key: &str, value: &Value) -> Result<Vec<String>, Bad> {
    let all = list(key, value)?;
    if all.len() > MOST_PROMPTS {
        return bad(key, format!("there are more than {MOST_PROMPTS}"), "leave some out");
    }
    all.into_iter().map(|one| shown_text(key, text(key, one)?)).collect()
}

/// Variables for the program.
fn variables(key: &str, value: &Value) -> Result<Vec<(String, String)>, Bad> {
    let hint = "write env = { NAME = \"value\" }";
    let Value::Table(table) = value else {
        return bad(key, "it is not a table", hint);
    };
    let mut all = Vec::new();
    for (name, value) in table {
        let full = format!("{key}.{name}");
        if thread_agent::settings::variable_name(name).is_err() {
            return bad(&full, "a variable cannot have this name", "use A-Z a-z 0-9 and _");
        }
        if name.starts_with("THREAD_") {
            return bad(&full, "these variables are set by thread", "choose another name");
        }
        match value {
            Value::String(text) if text.contains('\0') => {
                return bad(&full, "it has a NUL character", "leave that out");
            }
            Value::String(text) => all.push((name.clone(), text.clone())),
            _ => return bad(&full, "it is not a text", "write it in quotes"),
        }
    }
    Ok(all)
}
