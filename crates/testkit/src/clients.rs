//! Clients written by others, from PyPI and npm, that the tests run against our programs.
//!
//! They are installed when a test first asks for them, in the versions named here, into the folder that
//! `THREAD_TEST_CLIENTS` names or else into `target/test-clients`, where they stay. If one cannot be installed,
//! because Python, Node or their registry is missing, the test reports what it needs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// All Python packages and their dependencies.
const PYTHON: &str = include_str!("../clients.txt");

/// What npm installs, each into a folder of its own.
const NPM: [(&str, &[&str]); 11] = [
    ("acp", &["@agentclientprotocol/sdk@1.0.0"]),
    ("agui-0", &["@ag-ui/client@0.0.59"]),
    ("agui-1", &["@ag-ui/client@1.0.0"]),
    ("axe", &["axe-core@4.14.1", "commonmark-spec@0.31.2"]),
    ("copilotkit", &["@copilotkit/runtime@1.75.0", "@copilotkit/core@1.75.0"]),
    // The conformance suites need a newer Node than Debian has.
    (
        "mcp",
        &[
            "@modelcontextprotocol/inspector@2.12.0",
            "@modelcontextprotocol/conformance@0.1.16",
            "node@22.23.3",
        ],
    ),
    // The first version that knows the protocol without sessions.
    ("mcp-next", &["@modelcontextprotocol/conformance@0.2.0-alpha.12"]),
    ("openai", &["openai@6.49.0"]),
    // The last version for Node 18.
    ("puppeteer", &["puppeteer-core@24.43.1"]),
    ("telegram", &["telegram-test-api@4.2.1"]),
    ("ws", &["ws@8.23.0"]),
];

/// How long an installation by npm may take.
const NPM_PATIENCE: Duration = Duration::from_secs(180);

/// The oldest Node that runs the conformance suites.
const NODE: u32 = 18;

/// A Python with all packages; otherwise what is missing to install them.
pub fn python() -> Result<PathBuf, String> {
    let made = install("python", PYTHON, |folder| {
        run(Command::new("python3").args(["-m", "venv"]).arg(folder))
            .map_err(|why| ("python3 with venv", why))?;
        let list = folder.join("clients.txt");
        fs::write(&list, PYTHON).map_err(|e| ("a folder for it", e.to_string()))?;
        run(pip(folder, "install").arg("-r").arg(list)).map_err(|why| ("PyPI", why))
    });
    made.map(|folder| folder.join("bin/python"))
}

/// The examples in the source of the Python package `agent-client-protocol`; otherwise what is missing to install them.
pub fn acp_examples() -> Result<PathBuf, String> {
    let python = python()?;
    let package =
        PYTHON.lines().find(|line| line.starts_with("agent-client-protocol==")).expect("it is listed");
    let made = install("acp-source", package, |folder| {
        let venv = python.ancestors().nth(2).expect("it is in a venv");
        let mut download = pip(venv, "download");
        download.args(["--no-deps", "--no-binary", ":all:", package, "-d"]).arg(folder);
        run(&mut download).map_err(|why| ("PyPI", why))?;
        let unpack = "tar -xzf \"$0\"/*.tar.gz -C \"$0\" --strip-components=1";
        run(Command::new("sh").args(["-c", unpack]).arg(folder)).map_err(|why| ("tar", why))
    });
    made.map(|folder| folder.join("examples"))
}

/// The folder of npm's packages of that name; otherwise what is missing to install them.
///
/// # Panics
///
/// If there is no such name.
pub fn npm(name: &str) -> Result<PathBuf, String> {
    let (_, packages) = NPM.iter().find(|(known, _)| *known == name).expect("it is listed");
    static VERSION: OnceLock<Option<u32>> = OnceLock::new();
    let version = VERSION.get_or_init(|| {
        let shown = String::from_utf8(Command::new("node").arg("--version").output().ok()?.stdout).ok()?;
        shown.trim_start_matches('v').split('.').next()?.parse().ok()
    });
    if version.is_none_or(|version| version < NODE) {
        return Err(format!("node {NODE} or newer"));
    }
    install(name, &packages.join("\n"), |folder| {
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-fund", "--no-audit", "--no-update-notifier", "--loglevel=error"]);
        npm.args(["--fetch-retries=1", "--fetch-timeout=60000", "--prefix"]).arg(folder).args(*packages);
        npm.current_dir(folder);
        // Now and then it stops for good when it has received everything; what it has is in its cache then.
        run_within(&mut npm, NPM_PATIENCE)
            .or_else(|_| run_within(&mut npm, NPM_PATIENCE))
            .map_err(|why| ("npm and its registry", why))
    })
}

/// Installs the listed packages into a folder, once. Only one test program does so at a time. After a failure, it is
/// not tried again in the same run of cargo.
fn install(
    name: &str,
    list: &str,
    make: impl FnOnce(&Path) -> Result<(), (&'static str, String)>,
) -> Result<PathBuf, String> {
    static FOUND: Mutex<BTreeMap<String, Result<PathBuf, String>>> = Mutex::new(BTreeMap::new());
    let found = || FOUND.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(found) = found().get(name) {
        return found.clone();
    }
    // Not under that lock, so that different packages can be installed at the same time.
    let made = install_once(name, list, make);
    found().insert(name.to_owned(), made.clone());
    made
}

fn install_once(
    name: &str,
    list: &str,
    make: impl FnOnce(&Path) -> Result<(), (&'static str, String)>,
) -> Result<PathBuf, String> {
    let all = std::env::var_os("THREAD_TEST_CLIENTS")
        .map_or_else(|| crate::target().join("test-clients"), PathBuf::from);
    let io = |e: std::io::Error| format!("a folder {} for its clients ({e})", all.display());
    let folder = all.join(name);
    fs::create_dir_all(&all).map_err(io)?;
    let lock = File::create(all.join(format!("{name}.lock"))).map_err(io)?;
    lock.lock().map_err(io)?;
    let done = folder.join("installed");
    if fs::read_to_string(&done).is_ok_and(|installed| installed == list) {
        return Ok(folder);
    }
    let failed = all.join(format!("{name}.failed"));
    let this_run = crate::skips::run();
    if let Some((run, needs)) = fs::read_to_string(&failed).unwrap_or_default().split_once('\n')
        && run == this_run
    {
        return Err(needs.to_owned());
    }
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(io)?;
    }
    fs::create_dir(&folder).map_err(io)?;
    if let Err((needs, why)) = make(&folder) {
        eprintln!("{name} cannot be installed into {}: {why}", all.display());
        fs::write(&failed, format!("{this_run}\n{needs}")).map_err(io)?;
        return Err(needs.to_owned());
    }
    fs::write(done, list).map_err(io)?;
    Ok(folder)
}

fn pip(venv: &Path, command: &str) -> Command {
    let mut pip = Command::new(venv.join("bin/python"));
    pip.args([
        "-m",
        "pip",
        command,
        "--quiet",
        "--disable-pip-version-check",
        "--retries",
        "1",
        "--timeout",
        "30",
    ]);
    pip
}

/// Runs a command to its end. If it fails, returns its output.
fn run(command: &mut Command) -> Result<(), String> {
    run_within(command, Duration::MAX)
}

/// Runs a command that prints little, and kills it if it takes longer.
fn run_within(command: &mut Command, patience: Duration) -> Result<(), String> {
    let began = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = command.get_program().to_owned();
    let failed = |e: std::io::Error| format!("{}: {e}", program.display());
    let mut child = command.spawn().map_err(failed)?;
    while patience < Duration::MAX && child.try_wait().map_err(failed)?.is_none() {
        if began.elapsed() > patience {
            child.kill().map_err(failed)?;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = child.wait_with_output().map_err(failed)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(()) } else { Err(text(&output.stdout) + &text(&output.stderr)) }
}
