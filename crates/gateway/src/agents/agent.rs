//! An agent that sessions can have: a program or a model, with its options.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use thread::failure::Failure;
use thread::run::launcher::is_executable;
use thread::run::{Launcher, WakeBy};
use thread_agent::install::Install;
use thread_agent::launcher;
use thread_agent::seat::{Seat, Setting};
use thread_agent::settings::{ProtocolArg, Settings, Stay, read_env_file};
use thread_protocol::method::AgentSummary;
use thread_sessions::{RequestError, Result, SessionId};

use super::seating::{Choice, Ready, chosen_directory, not_allowed};
use super::{SESSION, of_session};

/// What an agent is called whose command gives no name.
const NAMELESS: &str = "agent";

/// The longest name of a model that is chosen for a session, in characters.
const LONGEST_MODEL: usize = 200;

/// An agent as it is described on the command line or in a file.
#[derive(Debug, Clone)]
pub struct Spec {
    /// By default made from the command.
    pub name: Option<String>,
    /// A shell command, a model (`openai:URL#MODEL`), or an agent behind AG-UI (`ag-ui:URL`).
    pub line: String,
    /// What gives the line: an option or a key.
    pub given_by: &'static str,
    pub settings: Settings,
    pub stay: Stay,
    pub environment: Vec<(String, String)>,
    /// Where it is given: relative paths in it begin there; absolute.
    pub base: PathBuf,
    /// Where it works; absolute. It may have [`SESSION`] in it.
    pub cwd: PathBuf,
    pub about: Option<String>,
    pub prompts: Vec<String>,
    /// What a session may choose.
    pub allow: Vec<Setting>,
    /// The agent for what chat programs ask besides: titles and the like.
    pub task: Option<Box<Spec>>,
}

impl Spec {
    /// The agent of `--agent`, which works where the gateway was started.
    pub fn of_line(line: &str, settings: &Settings, stay: &Stay, cwd: PathBuf) -> Spec {
        Spec {
            name: None,
            line: line.to_owned(),
            given_by: "--agent",
            settings: settings.clone(),
            stay: stay.clone(),
            environment: Vec::new(),
            base: cwd.clone(),
            cwd,
            about: None,
            prompts: Vec::new(),
            allow: Vec::new(),
            task: None,
        }
    }

    /// The agent for titles and the like that belongs to this one: a model without tools and memory, which is started
    /// for each request.
    pub fn for_tasks(&self, name: String, line: String) -> Spec {
        let settings = Settings {
            protocol: ProtocolArg::OpenAi,
            system: None,
            tools: Vec::new(),
            context: None,
            transcript: None,
            mcp: false,
            mcp_servers: false,
            memory: false,
            ..self.settings.clone()
        };
        let (base, environment) = (self.base.clone(), self.environment.clone());
        let stay = Stay { idle: Duration::ZERO, ..self.stay.clone() };
        let spec = Spec::of_line(&line, &settings, &stay, base);
        Spec { name: Some(name), given_by: "task_model", environment, ..spec }
    }
}

/// An agent that sessions can have.
#[derive(Debug, Clone)]
pub struct Agent {
    pub name: String,
    /// Whether the name says more than that it is an agent.
    pub is_named: bool,
    about: Option<String>,
    prompts: Vec<String>,
    allow: Vec<Setting>,
    /// The agent for titles and the like.
    pub task: Option<Box<Agent>>,
    settings: Settings,
    stay: Stay,
    /// Without what depends on the session.
    install: Install,
    launcher: Launcher,
}

impl Agent {
    /// Checks that an agent can be started.
    ///
    /// # Errors
    ///
    /// The model's URL or key is missing; the command cannot be run; the file of `--env-file` cannot be used; the
    /// adapter is not installed.
    pub fn new(mut spec: Spec, launcher: &Launcher) -> Result<Agent, Failure> {
        let task = spec.task.clone().map(|task| Agent::new(*task, launcher)).transpose()?.map(Box::new);
        // It is an option, too.
        match spec.allow.contains(&Setting::McpServers) {
            true => spec.settings.mcp_servers = true,
            false if spec.settings.mcp_servers => spec.allow.push(Setting::McpServers),
            false => {}
        }
        let Spec { base, .. } = &spec;
        let server = spec.settings.with_server(&spec.line)?;
        let mut settings = server.clone().unwrap_or_else(|| spec.settings.clone());
        // A variable of its own is there for the adapter.
        let is_given = |name: &String| spec.environment.iter().any(|(known, _)| known == name);
        let key_env = settings.key_env.take_if(|name| is_given(name));
        let mut settings = settings.located(base)?;
        settings.key_env = key_env.or(settings.key_env);
        let env_file = settings.env_file.as_ref().map(|file| base.join(file));
        if let Some(file) = &env_file {
            read_env_file(file).map_err(|e| Failure::usage(e.what, e.hint))?;
        }
        let mut words = if server.is_some() { Vec::new() } else { words(&spec.line, base, spec.given_by)? };
        if let Some(program) = words.first_mut().filter(|program| program.contains('/') && *base != spec.cwd)
        {
            *program = base.join(&*program).to_string_lossy().into_owned();
        }
        let told = match server.and_then(|server| server.model) {
            Some(model) => name_of(&[model.split(':').next().unwrap_or_default().to_owned()]),
            None => name_of(&words),
        };
        let name = spec.name.clone().or(told);
        let environment = spec.environment.clone();
        let install = Install { env_file, environment, ..Install::new(words, spec.cwd) };
        install.handler().map_err(|e| {
            Failure::failed(e.to_string(), "install thread-agent next to thread-serve, or on PATH")
        })?;
        Ok(Agent {
            is_named: name.is_some(),
            name: name.unwrap_or_else(|| NAMELESS.to_owned()),
            about: spec.about,
            prompts: spec.prompts,
            allow: spec.allow,
            task,
            settings,
            stay: spec.stay,
            install,
            launcher: launcher.clone(),
        })
    }

    /// What clients learn of it.
    pub fn summary(&self) -> AgentSummary {
        AgentSummary {
            name: self.name.clone(),
            about: self.about.clone(),
            prompts: self.prompts.clone(),
            allow: self.allow.iter().map(|setting| setting.as_str().to_owned()).collect(),
            steps: self.settings.protocol.goes_on_from_a_step(),
        }
    }

    /// The agent as a session gets it. Makes the session's own directory, if it has one. `moved` is the id of the move
    /// with which the session came to it.
    ///
    /// # Errors
    ///
    /// [`RequestError::BadParams`]: it does not allow what was chosen, or that cannot be; the directory cannot be made.
    pub fn seat(&self, session: SessionId, choice: &Choice, moved: Option<String>) -> Result<Ready> {
        let chosen = [(Setting::Model, &choice.model), (Setting::Cwd, &choice.cwd)];
        let chose: Vec<Setting> =
            chosen.iter().filter(|(_, value)| value.is_some()).map(|(setting, _)| *setting).collect();
        if let Some(setting) = chose.iter().find(|setting| !self.allow.contains(setting)) {
            return Err(not_allowed(&self.name, *setting));
        }
        let mut settings = self.settings.clone();
        if let Some(model) = &choice.model {
            let fits = (1..=LONGEST_MODEL).contains(&model.chars().count());
            if !fits || model.chars().any(char::is_control) {
                return Err(RequestError::BadParams(format!(
                    "'model' must be 1 to {LONGEST_MODEL} characters"
                )));
            }
            settings.model = Some(model.clone());
        }
        let own = &self.install.cwd;
        let cwd = match &choice.cwd {
            Some(cwd) => chosen_directory(own, cwd)?,
            None if own.to_string_lossy().contains(SESSION) => {
                let own = of_session(own, session);
                make_directory(&own)?;
                own
            }
            None => own.clone(),
        };
        let seat = Seat { name: Some(self.name.clone()), moved, chose };
        let options = [seat.words(), settings.words(), self.stay.words()].concat();
        let install = Install { options, cwd, ..self.install.clone() };
        Ok(Ready { install, seat, model: choice.model.clone(), launcher: self.launcher.clone() })
    }
}

/// Makes a session's own directory, which only its owner may read, with those above it.
fn make_directory(path: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|e| {
        tracing::error!("{}: the directory of a session cannot be made: {e}", path.display());
        RequestError::Failed("the directory in which the agent works cannot be made".to_owned())
    })
}

/// Splits a shell command into program and arguments. A plain command is started without a shell, so that a
/// missing program is noticed at startup; everything else is left to `sh -c`.
fn words(line: &str, base: &Path, given_by: &str) -> Result<Vec<String>, Failure> {
    const SHELLS_OWN: [char; 14] = ['|', '&', ';', '<', '>', '(', ')', '$', '`', '*', '?', '[', '~', '#'];
    let usage = |what: String| {
        Failure::usage(what, format!("give {given_by} a command that sh can run: 'llm -m local'"))
    };
    let assigns =
        line.split_whitespace().next().ok_or_else(|| usage(format!("{given_by} is empty")))?.contains('=');
    if assigns || line.contains(SHELLS_OWN) || line.contains('\n') {
        let checked = Command::new("/bin/sh").args(["-n", "-c", line]).stdin(Stdio::null()).output();
        return match checked {
            Ok(output) if !output.status.success() => {
                let why = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
                Err(usage(format!("{given_by} is not a valid shell command: {why}")))
            }
            // If there is no shell, the adapter will report it.
            _ => Ok(vec!["sh".into(), "-c".into(), line.into()]),
        };
    }
    let words = shlex::split(line).filter(|words| !words.is_empty());
    let words = words.ok_or_else(|| {
        usage(format!("{given_by} is not a valid shell command: a quote is not closed in {line}"))
    })?;
    let program = &words[0];
    let found = match program.contains('/') {
        true => is_executable(&base.join(program)),
        false => launcher::on_path(program).is_some(),
    };
    if !found {
        return Err(Failure::failed(
            format!("there is no program '{program}' for {given_by}"),
            "install it, or give its whole path",
        ));
    }
    Ok(words)
}

/// What to call an agent: `claude-code-acp` for `npx -y @zed-industries/claude-code-acp@latest`. `None` if the
/// command gives none.
fn name_of(words: &[String]) -> Option<String> {
    const STARTERS: [&str; 7] = ["node", "npx", "python", "python3", "uvx", "bun", "bunx"];
    if words.iter().any(|word| word == "-c") {
        return None;
    }
    let mut names = words.iter().filter(|word| !word.starts_with('-')).map(|word| word.rsplit('/').next());
    let name = names.find_map(|name| name.filter(|name| !STARTERS.contains(name)))?.split('@').next()?;
    let name = [".py", ".mjs", ".js", ".sh"].iter().find_map(|kind| name.strip_suffix(kind)).unwrap_or(name);
    let is_plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    is_plain.then(|| name.to_owned())
}

/// How handlers are started after a push: by the gateway itself, with the program `thread`.
///
/// # Errors
///
/// The program `thread` is not installed.
pub fn launcher() -> Result<Launcher, Failure> {
    let program = thread_agent::launcher::program("thread")
        .map_err(|e| Failure::failed(e, "install thread next to thread-serve, or on PATH"))?;
    Ok(Launcher { program, waking: WakeBy::Dispatch })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_called_after_its_program() {
        let of = |line: &str| name_of(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(of("npx -y @zed-industries/claude-code-acp@latest").as_deref(), Some("claude-code-acp"));
        assert_eq!(of("opencode acp").as_deref(), Some("opencode"));
        assert_eq!(of("/opt/venv/bin/python /srv/helper.py --acp").as_deref(), Some("helper"));
        assert_eq!((of("sh -c x"), of("'a\"b'"), of("node")), (None, None, None));
    }
}
