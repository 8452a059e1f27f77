//! `thread agent check`: whether a model can be an agent.

use std::path::PathBuf;

use crate::model::{Check, Endpoint, check, default_key_variable, parse_url};
use crate::settings::{key, missing_key, read_env_file};
use clap::{Args, ValueHint};
use serde_json::json;

use super::{Failure, Globals, Result, print};

/// See whether a model answers, streams its answers, and takes tools
///
/// Asks the server for its models, and the model for two short answers. Exits 0 if there is an answer.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread agent check http://localhost:11434/v1
  thread agent check http://localhost:11434/v1#qwen3
  thread agent check https://api.openai.com/v1#gpt-5-mini --env-file keys.env")]
pub struct Command {
    /// The base URL of the server, and the name of the model [default: the first one that the server lists]
    #[arg(value_name = "URL[#MODEL]", value_hint = ValueHint::Url)]
    url: String,
    /// The variable with the server's key, of --env-file or the environment [default: OPENAI_API_KEY for
    /// api.openai.com, none for others]
    #[arg(long, value_name = "VAR")]
    key_env: Option<String>,
    /// A file of NAME=value lines
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    env_file: Option<PathBuf>,
}

impl Command {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let whole = self.url.strip_prefix("openai:").unwrap_or(&self.url);
        let (url, model) = whole.split_once('#').unwrap_or((whole, ""));
        let url = parse_url(url).map_err(|why| {
            Failure::usage(format_args!("the URL '{}': {why}", self.url), "give URL or URL#MODEL")
        })?;
        let file = self.env_file.as_deref().map(read_env_file).transpose()?.unwrap_or_default();
        let variable = self.key_env.as_deref().or_else(|| default_key_variable(&url));
        let key = variable.and_then(|name| key(name, &file));
        if let (Some(name), None) = (&self.key_env, &key) {
            return Err(missing_key(name));
        }
        let model = Some(model.to_owned()).filter(|model| !model.is_empty());
        let (mut last, mut printed) = (None, Ok(()));
        let mut tell = |Check { what, is_so, detail }: Check| {
            let line = match globals.json {
                true => json!({ "check": what, "ok": is_so, "detail": detail }).to_string(),
                false => format!("{what:<8} {:<4} {}", if is_so { "yes" } else { "no" }, plain(&detail)),
            };
            if printed.is_ok() {
                printed = print(line);
            }
            last = Some(detail);
        };
        let works = check(&Endpoint { url: url.clone(), key, is_agent: false }, model, &mut tell);
        let works =
            works.map_err(|e| Failure::failed(format_args!("nothing can be asked: {e}"), "try again"))?;
        printed?;
        match works {
            true => Ok(()),
            false => Err(Failure::failed(
                format_args!("{url} cannot be an agent: {}", last.unwrap_or_default()),
                "start the server, or check the URL, the model and the key",
            )),
        }
    }
}

/// Names of models are the server's own text.
fn plain(text: &str) -> String {
    text.replace(char::is_control, " ")
}
