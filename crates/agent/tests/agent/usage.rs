//! The examples of README.md, run unchanged, with stand-ins for the agents that they name.

use thread_conversation::{Entry, Priority};
use thread_testkit::{quoted, skipped};

use crate::harness::{Talk, lacks};

/// A minimal agent of the Agent Client Protocol, which ignores its arguments.
pub const ACP: &str = r#"
while IFS= read -r line; do
    id=$(printf '%s' "$line" | sed -n 's/^[^,]*,"id":\([0-9]*\),.*/\1/p')
    case $line in
    *'"method":"initialize"'*) echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{\"protocolVersion\":1}}" ;;
    *'"method":"session/new"'*) echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{\"sessionId\":\"s\"}}" ;;
    *'"method":"session/prompt"'*)
        chunk='{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a stand-in"}}'
        echo "{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":\"s\",\"update\":$chunk}}"
        echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{\"stopReason\":\"end_turn\"}}"
        ;;
    esac
done
"#;

/// An agent that is run for each message.
const EXEC: &str = "printf 'stand-in for %s: ' \"$0 $*\" | sed 's|/.*/||'\ncat\n";

/// The code blocks in a language, in order.
fn blocks(page: &str, kind: &str) -> Vec<String> {
    let fence = format!("```{kind}\n");
    page.split(&*fence).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn the_examples_of_the_readme_run() {
    if lacks("python3") {
        return;
    }
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let talk = Talk::new();
    std::fs::create_dir(talk.path("work")).unwrap();
    for (name, script) in [("npx", ACP), ("claude", EXEC), ("ollama", EXEC)] {
        talk.script(format!("bin/{name}"), script);
    }
    // One after another in one folder, as a reader would run them.
    let run =
        |script: &str| talk.sh(&format!("unset THREAD_DIR; PATH=$PWD/bin:$PATH\nset -e; cd work\n{script}"));
    let printed: Vec<String> = blocks(&page, "sh").iter().map(|block| run(block).ok()).collect();
    let last = |at: usize| printed[at].lines().last().unwrap_or_default().to_owned();
    assert_eq!(last(0), "a stand-in");
    assert_eq!(last(1), "stand-in for ollama run llama3.2: Why is the sky blue?");
    assert_eq!(last(2), "stand-in for claude -p: Say hello");
    assert!(last(3).ends_with("you said: Hello"), "{}", last(3));
    assert_eq!(last(4), "Stop that");
    assert!(last(5).contains("never mind"), "{}", last(5));
    assert_eq!(last(6), "READ THIS");
    assert_eq!(printed.len(), 8);
    for thread in ["talk", "local", "keyed", "loop", "busy", "lead"] {
        talk.sh(&format!("thread agent stop -t work/{thread}")).ok();
    }
}

/// The README's lines for a crontab, with the real folder of `thread` filled in, and that folder.
fn crontab(talk: &Talk) -> (String, String) {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let lines = blocks(&page, "text").into_iter().find(|block| block.contains("\n*/15")).unwrap();
    let thread = talk.sh("command -v thread").ok();
    // Crontabs quote nothing, and the folder of the programs may have a blank in its name.
    let bin = talk.path("programs");
    std::os::unix::fs::symlink(std::path::Path::new(thread.trim()).parent().unwrap(), &bin).unwrap();
    let bin = bin.display().to_string();
    (lines.replace("/home/ada/.cargo/bin", &bin), bin)
}

#[test]
fn the_line_for_cron_pushes_a_pulse() {
    let talk = Talk::with(&[], &["cat"]);
    let (lines, bin) = crontab(&talk);
    let line = lines.lines().find(|line| line.starts_with("*/15")).unwrap();
    let command = line.splitn(6, char::is_whitespace).nth(5).unwrap().trim().to_owned();
    // The environment in which cron runs a command, but in the test's folder instead of the home directory.
    let cron = format!(
        "cd {} && env -i HOME=/ SHELL=/bin/sh LOGNAME=me PATH={}:/usr/bin:/bin /bin/sh -c \"$0\"",
        quoted(talk.root()),
        quoted(bin)
    );
    let mut command_of_cron = talk.command("sh");
    let pushed = command_of_cron.arg("-c").arg(cron).arg(command).output().unwrap();
    let id: i64 = String::from_utf8_lossy(&pushed.stdout).trim().parse().unwrap();
    assert_eq!(talk.answer(id), "<PULSE/>");
}

#[test]
fn cron_itself_pushes_a_pulse() {
    let talk = Talk::with(&[], &["cat"]);
    // Only root may start cron, and the folders of its tables are fixed, so it gets its own mounts there.
    let private = "mount -t tmpfs tmpfs /var/spool/cron && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /etc/cron.d \
                   && mount --bind /dev/null /etc/crontab && mkdir /run/lock /var/spool/cron/crontabs";
    let mounted = talk.sh(&format!("[ $(id -u) = 0 ] && unshare -m sh -c '{private}'"));
    if lacks("cron") {
        return;
    }
    if !mounted.succeeds() {
        return skipped("the right to mount folders for a cron of its own");
    }
    let (lines, _) = crontab(&talk);
    let table = lines.replace("*/15", "*").replace("-t talk", &format!("-t {}", quoted(talk.dir())));
    talk.write("table", &table);
    let mut cron = talk.command("unshare");
    cron.args(["-m", "sh", "-c", &format!("{private} && crontab table && exec cron -f")]);
    let mut cron = cron.spawn().unwrap();
    let pulse = talk.until("no pulse", |entries| {
        entries.iter().find_map(|(id, _, entry)| match entry {
            Entry::Message(message) if message.content == "<PULSE/>" => Some((*id, message.priority)),
            _ => None,
        })
    });
    cron.kill().unwrap();
    cron.wait().unwrap();
    assert_eq!((talk.answer(pulse.0).as_str(), pulse.1), ("<PULSE/>", Priority::Later));
}
