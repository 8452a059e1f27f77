//! The recipes of docs/WORKER.md, as far as they can be run on this machine.

use std::fs;
use std::path::Path;

use thread_testkit::{World, quoted, skipped, wait_until};

/// The text of the page's first block in this language.
fn block(language: &str) -> String {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/WORKER.md")).unwrap();
    let (_, rest) = page.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

/// A folder that stands for the page's `/srv/agents`, containing a thread with one pushed event: its path.
fn agents(world: &World) -> String {
    world.sh("mkdir agents && thread init agents/inbox").ends_with(0);
    let subscribe = "thread subscribe -t agents/inbox --consumer bot --deliver stdin --handler 'cat >>got'";
    world.sh(subscribe).env("THREAD_NOTIFIER", "off").quiet();
    let push = "thread push -t agents/inbox --source self --type message --content x";
    world.sh(push).env("THREAD_NOTIFIER", "off").quiet();
    world.path("agents").display().to_string()
}

#[test]
fn the_unit_is_one_that_systemd_takes() {
    let world = World::new();
    // systemd takes no program with a quote in its path.
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_thread"), world.path("thread")).unwrap();
    let program = world.path("thread").display().to_string().replace('%', "%%");
    if program.contains(['\'', '"']) {
        return skipped("a TMPDIR without quotes");
    }
    let unit = block("ini").replace("/usr/bin/thread", &format!("\"{program}\""));
    world.write("thread-worker.service", unit);
    let verify = "exec systemd-analyze verify --man=no ./thread-worker.service";
    let output = world.sh(verify).env("PATH", "/usr/bin:/bin").output();
    if output.status.code() == Some(127) {
        return skipped("systemd-analyze");
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // systemd may warn about other units.
    assert!(output.status.success() && !said.contains("thread-worker"), "{said}");
}

#[test]
fn the_units_command_works_and_ends_in_time() {
    let world = World::new();
    let agents = agents(&world);
    let unit = block("ini");
    let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    let seconds = |text: &str| text.strip_suffix('s').unwrap().parse::<u32>().unwrap();
    let command = value("ExecStart=").replace("/usr/bin/", "").replace("/srv/agents", &quoted(&agents));
    assert!(seconds(value("TimeoutStopSec=")) >= seconds(command.rsplit(' ').next().unwrap()) + 7);
    let script =
        format!("{command} & worker=$!; until [ -s got ]; do sleep 0.1; done; kill $worker; wait $worker");
    world.sh(&script).quiet();
}

#[test]
fn the_entry_point_of_the_image_works() {
    let world = World::new();
    let agents = agents(&world);
    let file = block("dockerfile");
    let entry = file.lines().find_map(|line| line.strip_prefix("ENTRYPOINT ")).unwrap();
    let words: Vec<String> = serde_json::from_str(entry).unwrap();
    let words = words.iter().map(|word| word.replace("/srv/agents", &agents));
    let mut run = world.sh("exec unshare --pid --fork --mount-proc --kill-child \"$0\" \"$@\"");
    run.command().args(words);
    let path = format!("{}:/usr/bin:/bin", world.bin().display());
    let mut child = run.env("PATH", path).spawn();
    wait_until("a run, or the end", || !world.read("got").is_empty() || child.try_wait().unwrap().is_some());
    if child.try_wait().unwrap().is_some() {
        return skipped("a PID namespace");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    world.wait_until_quiet();
}

#[test]
fn the_crontab_has_lines_that_cron_would_run() {
    let world = World::new();
    let agents = agents(&world);
    let table = block("cron");
    let (path, job) = table.trim_end().split_once('\n').unwrap();
    assert!(path.starts_with("PATH=/"), "{path}");
    let fields: Vec<&str> = job.splitn(6, ' ').collect();
    assert!(fields[..5].iter().all(|field| *field == "*"), "{job}");
    assert!(!fields[5].contains('%'), "cron would end the line there");
    assert_eq!(world.sh(&fields[5].replace("/srv/agents", &quoted(&agents))).quiet(), "");
    wait_until("a run", || !world.read("got").is_empty());
}
