//! The process that asks a model, and calls tools for it.

use std::io::{BufRead, Write};
use std::rc::Rc;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::{JoinSet, LocalSet};

use super::ag_ui;
use super::ask::ask;
use super::tools::Tools;
use super::{Endpoint, Failed, Heard, Order, Outcome, Reply, What};
use thread_conversation::ModelTurn;

/// The model answers without tools.
const WITHOUT_TOOLS: &str = "The model refuses tools, so it was asked without them.";

/// Handles orders from stdin until it is closed.
///
/// # Errors
///
/// There is no runtime, or stdout is closed.
pub fn serve() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (send, mut orders) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let Ok(order) = serde_json::from_str::<Order>(&line) else { continue };
            if send.send(order).is_err() {
                return;
            }
        }
    });
    let work = async {
        let tools = Rc::new(Mutex::new(Tools::default()));
        let mut tasks = JoinSet::new();
        let served = loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(Order { id, what: What::Cancel }) => {
                        tasks.shutdown().await;
                        if let Err(e) = write(id, Heard::Stopped) {
                            break Err(e);
                        }
                    }
                    Some(Order { id, what }) => drop(tasks.spawn_local(follow(id, what, Rc::clone(&tools)))),
                    None => break Ok(()),
                },
                Some(done) = tasks.join_next() => match done {
                    Ok(Err(e)) => break Err(e),
                    Err(e) if e.is_panic() => break Err(std::io::Error::other(e)),
                    _ => {}
                },
            }
        };
        tasks.shutdown().await;
        tools.lock().await.close().await;
        served
    };
    LocalSet::new().block_on(&runtime, work)
}

/// Follows an order.
async fn follow(id: u64, what: What, tools: Rc<Mutex<Tools>>) -> std::io::Result<()> {
    match what {
        What::Connect { servers, cwd } => {
            let mut tools = tools.lock().await;
            for failed in tools.connect(servers, cwd).await {
                write(id, Heard::Note(failed))?;
            }
            write(id, Heard::Tools(tools.marks()))
        }
        What::Ask { endpoint, model, messages, tools: mut all, has_servers } => {
            if has_servers {
                let mut tools = tools.lock().await;
                if tools.refresh().await {
                    write(id, Heard::Tools(tools.marks()))?;
                }
                all.splice(..0, tools.described());
            }
            let mut written = Ok(());
            let mut hear = |heard| {
                if written.is_ok() {
                    written = write(id, heard);
                }
            };
            let turn = ask_with(&endpoint, &model, &messages, &all, &mut hear).await;
            written?;
            write(id, turn.map_or_else(Heard::Failed, Heard::Turn))
        }
        What::Run { endpoint, input } => {
            let mut written = Ok(());
            let mut hear = |event| {
                if written.is_ok() {
                    written = write(id, Heard::Event(event));
                }
            };
            let ran = ag_ui::run(&endpoint, &input, &mut hear).await;
            written?;
            ran.or_else(|failed| write(id, Heard::Failed(failed)))
        }
        What::Call { name, arguments, limit, again } => {
            let found = tools.lock().await.find(&name).await;
            let outcome = match found {
                Err(why) => Err(why),
                Ok(callee) => match callee.call(arguments.clone(), limit).await {
                    Some(outcome) => outcome,
                    None if again => call_again(&name, arguments, limit, &tools).await,
                    None => {
                        Err("the server of this tool has ended; the call may have taken effect".to_owned())
                    }
                },
            };
            write(id, Heard::Returned(outcome))
        }
        What::Cancel => Ok(()),
    }
}

async fn call_again(
    name: &str,
    arguments: Map<String, Value>,
    limit: std::time::Duration,
    tools: &Mutex<Tools>,
) -> Outcome {
    let callee = tools.lock().await.find(name).await?;
    let outcome = callee.call(arguments, limit).await;
    outcome.unwrap_or_else(|| Err("the server of this tool has ended twice".to_owned()))
}

/// Asks for a turn with these tools; without them if the model refuses them.
async fn ask_with(
    endpoint: &Endpoint,
    model: &str,
    messages: &[Value],
    tools: &[Value],
    hear: &mut impl FnMut(Heard),
) -> Result<ModelTurn, Failed> {
    if tools.is_empty() {
        return ask(endpoint, model, messages, &Value::Null, hear).await;
    }
    let (listed, mut has_said) = (json!(tools), false);
    let mut listen = |heard| {
        has_said = true;
        hear(heard);
    };
    match ask(endpoint, model, messages, &json!({ "tools": listed }), &mut listen).await {
        Err(failed) if !has_said && failed.is_about_tools() => {
            let turn = ask(endpoint, model, messages, &Value::Null, hear).await?;
            hear(Heard::Note(WITHOUT_TOOLS.to_owned()));
            Ok(turn)
        }
        turn => turn.map(|turn| ModelTurn { tools: digest_of(&listed.to_string()), ..turn }),
    }
}

/// The SHA-256 of a text, in hexadecimal digits.
pub fn digest_of(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write(id: u64, heard: Heard) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(&Reply { id, heard })?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}
