//! Release artifacts: the archive, the Debian package and their checksums, built by `.ci/release`
//! from the binary under test.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use thread_testkit::{World, missing, names, skipped};

use crate::errors::NAMES;
use crate::first_minute::first_minute;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the release script with these arguments and the machine's tools. Prints a skip notice and
/// returns `None` if the sources come without the script.
fn release(args: &[&str]) -> Option<Output> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/release");
    if !script.exists() || !cfg!(target_os = "linux") {
        skipped(".ci/release, and Linux");
        return None;
    }
    Some(Command::new(script).args(args).output().unwrap())
}

/// The programs that the crates build.
fn further_programs() -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    let mut programs = Vec::new();
    for package in names(&crates) {
        let manifest = fs::read_to_string(crates.join(&package).join("Cargo.toml")).unwrap();
        let name = |section: &str| section.split("name = \"").nth(1)?.split('"').next().map(str::to_owned);
        let named: Vec<String> = manifest.split("[[bin]]").skip(1).map(|bin| name(bin).unwrap()).collect();
        if named.is_empty() && crates.join(&package).join("src/main.rs").exists() {
            programs.push(name(&manifest).unwrap());
        }
        programs.extend(named);
    }
    programs
}

/// The names of the files that the script puts into `folder` when it packs the binary under test.
fn packed(world: &World, folder: &str) -> Option<Vec<String>> {
    let (built, out) = (world.path("built"), world.path(folder));
    fs::create_dir_all(&built).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_thread"), built.join("thread")).unwrap();
    for program in further_programs() {
        world.script(format!("built/{program}"), &format!("echo {program} {VERSION}"));
    }
    let done = release(&["--binaries", built.to_str().unwrap(), "--out", out.to_str().unwrap()])?;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(names(&out))
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// The relative paths of all files below a folder.
fn files(world: &World, folder: &str) -> Vec<String> {
    let list =
        Command::new("find").args([".", "-type", "f"]).current_dir(world.path(folder)).output().unwrap();
    let mut files: Vec<String> = String::from_utf8(list.stdout).unwrap().lines().map(str::to_owned).collect();
    files.sort();
    files
}

fn run(program: &str, args: &[&str], dir: &Path) {
    let done = Command::new(program).args(args).current_dir(dir).output().unwrap();
    assert!(done.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Checks the installed files below a prefix such as `/usr` or `~/.local`.
fn assert_is_installed(world: &World, prefix: &str, page_ending: &str, zsh: &str) {
    let found = files(world, prefix);
    let page = |name: &str| format!("./share/man/man1/thread{name}.1{page_ending}");
    let pages = NAMES.iter().map(|name| page(&format!("-{name}")));
    let below = ["", "-dead-list", "-dead-show", "-dead-retry", "-dead-discard"].map(page);
    let others = [
        "./bin/thread",
        "./share/bash-completion/completions/thread",
        "./share/fish/vendor_completions.d/thread.fish",
        "./share/doc/thread/README.md",
        "./share/doc/thread/USAGE.md",
        "./share/doc/thread/docs/DESIGN.md",
        "./share/doc/thread/docs/schema/event.json",
        zsh,
    ]
    .map(str::to_owned);
    let further = further_programs().into_iter().map(|program| format!("./bin/{program}"));
    for file in pages.chain(below).chain(others).chain(further) {
        assert!(found.contains(&file), "no {file} in {found:#?}");
    }
    for file in &found {
        assert_ne!(fs::metadata(world.path(prefix).join(file)).unwrap().len(), 0, "{file} is empty");
    }
    let told = Command::new(world.path(prefix).join("bin/thread")).arg("--version").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&told.stdout), format!("thread {VERSION}\n"));
}

#[test]
fn the_scripts_have_no_syntax_error() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci");
    if !folder.exists() {
        skipped("the folder .ci of the sources");
        return;
    }
    for script in ["run", "release"] {
        run("bash", &["-n", script], &folder);
    }
    run("sh", &["-n", "../clients/javascript/bin/thread"], &folder);
}

#[test]
fn a_release_installs_by_unpacking_and_is_the_same_when_made_again() {
    let world = World::new();
    let Some(made) = packed(&world, "made") else { return };
    let archive = made.iter().find(|name| name.ends_with(".tar.gz")).unwrap();
    assert!(archive.starts_with(&format!("thread-{VERSION}-")), "{archive}");
    run("sha256sum", &["--check", "--strict", "SHA256SUMS"], &world.path("made"));

    fs::create_dir(world.path("local")).unwrap();
    run("tar", &["-xzf", archive, "--strip-components=1", "-C", "../local"], &world.path("made"));
    assert_eq!(names(&world.path("local")), ["bin", "share"]);
    assert_is_installed(&world, "local", "", "./share/zsh/site-functions/_thread");
    let licence = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("LICENSE")).unwrap();
    assert_eq!(fs::read(world.path("local/share/doc/thread/LICENSE")).unwrap(), licence);

    if is_there("dpkg-deb") {
        for name in ["thread", "thread-serve"] {
            let is_it = |made: &&String| made.starts_with(&format!("{name}_{VERSION}-1_"));
            run("dpkg-deb", &["-x", made.iter().find(is_it).unwrap(), "../root"], &world.path("made"));
        }
        assert_is_installed(&world, "root/usr", ".gz", "./share/zsh/vendor-completions/_thread");
        assert!(world.path("root/usr/share/doc/thread-serve/copyright").exists());
    } else {
        skipped("dpkg-deb");
    }

    let files = |start: &str, end: &str| -> Vec<String> {
        let is_one = |name: &&String| name.starts_with(start) && name.ends_with(end);
        made.iter().filter(is_one).map(|name| format!("../made/{name}")).collect()
    };
    for (start, end, count) in
        [("threadq_postgres-", ".whl", 1), ("threadq_serve-", ".whl", 1), ("threadq", ".tgz", 4)]
    {
        assert_eq!(files(start, end).len(), count, "{made:?}");
    }
    std::thread::scope(|both| {
        both.spawn(|| assert_pip_installs(&world, &files("threadq-", ".whl")[0]));
        both.spawn(|| {
            assert_npm_installs(
                &world,
                &[files("threadq-linux", ""), files(&format!("threadq-{VERSION}"), ".tgz")].concat(),
            )
        });
    });

    assert_eq!(packed(&world, "again").unwrap(), made);
    assert_eq!(world.read("again/SHA256SUMS"), world.read("made/SHA256SUMS"));
}

/// Runs README's first minute with a `PATH` of this folder and common tools, and nothing else that has `thread`.
fn assert_first_minute(world: &World, folder: &str) {
    let (block, printed) = first_minute();
    let tools = world.path(format!("{folder}-tools"));
    fs::create_dir(&tools).unwrap();
    for tool in names(&world.bin()).iter().filter(|tool| *tool != "thread") {
        std::os::unix::fs::symlink(world.bin().join(tool), tools.join(tool)).unwrap();
    }
    for tool in ["uname", "dirname"] {
        let path =
            ["/bin", "/usr/bin"].map(|dir| Path::new(dir).join(tool)).into_iter().find(|path| path.exists());
        std::os::unix::fs::symlink(path.unwrap(), tools.join(tool)).unwrap();
    }
    let path = std::env::join_paths([world.path(folder), tools]).unwrap();
    assert_eq!(world.sh(&block).env("PATH", path).env_remove("THREAD_DIR").quiet(), printed, "{folder}");
}

fn assert_pip_installs(world: &World, wheel: &str) {
    let made = Command::new("python3").args(["-m", "venv"]).arg(world.path("venv")).output();
    if !made.is_ok_and(|made| made.status.success()) {
        return missing("python3 with venv");
    }
    let python = world.path("venv/bin/python");
    let python = python.to_str().unwrap();
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", wheel];
    run(python, &pip, &world.path("venv"));
    assert_first_minute(world, "venv/bin");
    // The client finds the program beside its Python.
    let push = "import threadq; print(threadq.Thread.init('of-python').push('x'))";
    assert_eq!(world.run(python).args(["-c", push]).quiet(), "1\n");
    let ask = "import importlib.metadata as m; print(m.metadata('threadq').get_payload())";
    assert_is_whole(&world.run(python).args(["-c", ask]).quiet(), "@thread.handler(");
}

/// A package's README has its example, and no links to what is not in the package.
fn assert_is_whole(readme: &str, of_example: &str) {
    assert!(!readme.contains("](../") && !readme.contains("## Tests"), "{readme}");
    let example = readme.split("\n## examples/inbox.").nth(1).expect("the example is there");
    assert!(example.contains(of_example), "{example}");
}

fn assert_npm_installs(world: &World, packages: &[String]) {
    if !is_there("npm") {
        return missing("npm");
    }
    fs::create_dir(world.path("modules")).unwrap();
    let npm = ["install", "--offline", "--no-audit", "--no-fund", "--no-update-notifier"];
    run(
        "npm",
        &[&npm[..], &packages.iter().map(String::as_str).collect::<Vec<_>>()].concat(),
        &world.path("modules"),
    );
    assert_first_minute(world, "modules/node_modules/.bin");
    // It depends on packages that were made, and on no other.
    let about: serde_json::Value =
        serde_json::from_str(&world.read("modules/node_modules/threadq/package.json")).unwrap();
    assert_is_whole(&world.read("modules/node_modules/threadq/README.md"), "thread.handler(");
    let needed: Vec<&String> = about["optionalDependencies"].as_object().unwrap().keys().collect();
    assert_eq!(needed.len(), packages.len() - 1, "{needed:?}");
    let push =
        "import { Thread } from 'threadq'; console.log(await (await Thread.init('of-node')).push('x'))";
    let node =
        world.run("env").arg("node").args(["--input-type=module", "-e", push]).dir(world.path("modules"));
    assert_eq!(node.env("PATH", std::env::var_os("PATH").unwrap()).quiet(), "1\n");
}

#[test]
fn a_release_of_another_version_or_with_unknown_words_makes_nothing() {
    let world = World::new();
    fs::create_dir(world.path("other")).unwrap();
    world.script("other/thread", "echo thread 99.0.0");
    let (other, out) = (world.path("other"), world.path("out"));
    let args = ["--binaries", other.to_str().unwrap(), "--out", out.to_str().unwrap()];
    for (more, said) in [(None, "is thread 99.0.0, but Cargo.toml says"), (Some("--fast"), "--fast")] {
        let args: Vec<&str> = args.into_iter().chain(more).collect();
        let Some(done) = release(&args) else { return };
        assert_eq!(done.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&done.stderr).contains(said), "{done:?}");
        assert!(!out.exists() || names(&out).is_empty());
    }
}

#[test]
fn all_packages_and_the_changelog_have_one_version() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for package in names(&root.join("crates")) {
        let manifest = fs::read_to_string(root.join("crates").join(&package).join("Cargo.toml")).unwrap();
        assert!(manifest.lines().any(|line| line == "version.workspace = true"), "{package}");
    }
    let changes = fs::read_to_string(root.join("CHANGELOG.md")).unwrap();
    let newest = changes.lines().find_map(|line| line.strip_prefix("## ")).unwrap();
    assert_eq!(newest.split(' ').next(), Some(VERSION), "{newest}");
    let usage = fs::read_to_string(root.join("USAGE.md")).unwrap();
    assert!(usage.contains(&format!("\nthread {VERSION}\n")), "USAGE shows another version");
}
