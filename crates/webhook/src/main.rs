//! `thread webhook`: posts events to a URL.
//!
//! It is a kept handler: an event a line on stdin, an answer a line on stdout. It
//! keeps nothing. If it is killed while it posts, the event is delivered again, and posted again with the same
//! `webhook-id`.

#![allow(rustdoc::bare_urls, reason = "the doc comments are the help text, where URLs appear as they are")]

mod address;
mod answer;
mod delivery;

use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use answer::Answer;
use clap::Parser;
use delivery::{Delivery, Outcome, Receiver};
use thread::failure::{Failure, Result, WithHint};
use thread::run::launcher::{directories, executable_in};

/// Post the events of a consumer to a URL
///
/// It is a handler for `thread subscribe --deliver ndjson`. The body of a request is the event as `thread peek` prints it;
/// its headers are those of Standard Webhooks (standardwebhooks.com): the same webhook-id each time the event is posted, and
/// with --secret-env a signature.
///
/// An answer 2xx acknowledges the event. 408, 425, 429, 5xx, and no answer at all: it is posted again, after Retry-After or
/// the consumer's --backoff. Any other answer makes it a dead letter, and redirects are not followed. 410 pauses the
/// consumer.
#[derive(Parser)]
#[command(name = "thread webhook", bin_name = "thread webhook", version, max_term_width = 100, after_help = EXAMPLES)]
struct Options {
    /// Where to post: https://… or http://…
    url: String,
    /// The environment variable with the secret (whsec_…) that signs requests; twice while a secret is replaced
    #[arg(long, value_name = "VAR")]
    secret_env: Vec<String>,
    /// Also post to addresses that are not public, such as 127.0.0.1 and 10.0.0.0/8
    #[arg(long)]
    allow_private: bool,
    /// How long the receiver may take to answer
    #[arg(long, value_name = "D", default_value = "30s", value_parser = thread::model::duration::parse_positive)]
    timeout: Duration,
}

const EXAMPLES: &str = "\
Examples:
  thread subscribe partner 'thread webhook https://partner.example/hook --secret-env PARTNER_SECRET' \\
    --deliver ndjson --concurrency 4 --env PARTNER_SECRET=whsec_...
  thread peek -n 1 | thread webhook http://localhost:8080/ --allow-private";

/// As a shell says that a command cannot be run. It makes the consumer stall, so that a wrong setting uses up the attempts of
/// no event.
const CANNOT_RUN: u8 = 126;

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(e) if !e.use_stderr() => {
            // Help or version. If the reader closed the pipe, there is nothing more to print.
            drop(e.print());
            return ExitCode::SUCCESS;
        }
        Err(e) => {
            let failure = Failure::of_usage(&e.render().to_string(), "see `thread webhook --help`");
            return unusable(&failure);
        }
    };
    let receiver = match receiver(&options) {
        Ok(receiver) => receiver,
        Err(failure) => return unusable(&failure),
    };
    match run(&receiver) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("Error: {failure}");
            ExitCode::from(failure.exit)
        }
    }
}

fn unusable(failure: &Failure) -> ExitCode {
    eprintln!("Error: {failure}");
    ExitCode::from(if consumer().is_some() { CANNOT_RUN } else { failure.exit })
}

/// The consumer whose handler this is.
fn consumer() -> Option<OsString> {
    std::env::var_os("THREAD_CONSUMER").filter(|name| !name.is_empty())
}

fn receiver(options: &Options) -> Result<Receiver> {
    let secrets = options.secret_env.iter().map(|name| secret(name)).collect::<Result<Vec<_>>>()?;
    Receiver::new(&options.url, secrets, options.allow_private, options.timeout)
        .map_err(|what| Failure::usage(what, "see `thread webhook --help`"))
}

fn secret(name: &str) -> Result<standardwebhooks::Webhook> {
    let missing = || Failure::usage(format_args!("{name} is not set"), "set it to the secret: whsec_…");
    let text = std::env::var(name).ok().filter(|text| !text.trim().is_empty()).ok_or_else(missing)?;
    standardwebhooks::Webhook::new(text.trim()).map_err(|_| {
        let what = format!("the secret in {name} is none: it is not base64");
        Failure::usage(what, "give it as the receiver shows it, `whsec_` and base64")
    })
}

/// Posts one event after another until stdin ends.
fn run(receiver: &Receiver) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.with_hint("cannot start", "close some files")?;
    for line in std::io::stdin().lock().split(b'\n') {
        let line = line.with_hint("cannot read stdin", "try again")?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        let Some(delivery) = Delivery::of(line) else {
            // It can be answered by no id. The process that gave it sees it unanswered.
            eprintln!("a line on stdin is no event, and was not posted");
            continue;
        };
        let outcome = runtime.block_on(receiver.post(&delivery));
        let is_gone = matches!(outcome, Outcome::Gone(_));
        if let Outcome::Gone(why) = &outcome {
            pause(why)?;
        }
        answer(&Answer::new(delivery.id, outcome))?;
        if is_gone {
            break;
        }
    }
    Ok(())
}

fn answer(answer: &Answer) -> Result<()> {
    let mut line = serde_json::to_vec(answer).unwrap_or_default();
    line.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(&line).and_then(|()| stdout.flush());
    written.with_hint("cannot write to stdout", "read the answers")
}

/// Pauses the consumer, because its receiver wants nothing any more.
fn pause(why: &str) -> Result<()> {
    let Some(consumer) = consumer() else {
        return Err(Failure::failed(why, "the receiver is gone for good; remove it"));
    };
    let hint = "pause it by hand: `thread pause`";
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = executable_in(beside.into_iter().chain(directories(&path)).collect(), "thread");
    let program = program.ok_or_else(|| Failure::failed(why, hint))?;
    let mut command = std::process::Command::new(program);
    // Its stdout is not ours, which has answers.
    command.arg("pause").arg("--consumer").arg(consumer).stdout(std::process::Stdio::null());
    let status = command.status().with_hint("cannot run `thread pause`", hint)?;
    eprintln!("{why}: the consumer is paused; `thread resume` it when the receiver is back");
    if status.success() { Ok(()) } else { Err(Failure::failed(why, hint)) }
}
