//! `dispatch --follow` on a server, and what becomes of runs whose machine lacks something or is cut off for a moment.

use std::fs;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use thread_testkit::postgres::{Server, server};
use thread_testkit::{PATIENCE, quoted, wait_until};

use crate::machine::{Machine, Proxy};

fn lines(machine: &Machine, name: &str) -> Vec<String> {
    fs::read_to_string(machine.path(name)).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// The log of the machine.
fn logged(machine: &Machine) -> String {
    // The log does not exist before the machine's first command.
    let bases = fs::read_dir(machine.path("state/thread")).into_iter().flatten().flatten();
    let logs = bases.filter_map(|base| fs::read_to_string(base.path().join("logs/thread.log")).ok());
    logs.collect()
}

#[test]
fn a_worker_serves_several_threads_or_all_of_a_schema_also_new_ones() {
    let Some(server) = server() else { return };
    let location = |thread: &str| server.location_of("several", thread);
    let whole = location("a").replace("#a", "");
    let mut machine = Machine::new(&whole);
    // Each thread has a folder of its own on each machine, so it is named in the handler.
    let begin = |thread: &str| {
        let location = location(&thread.replace(' ', "%20"));
        machine.ok(&["init", &location]);
        let out = machine.path(thread);
        let handler = format!("cat >>{}", quoted(&out));
        machine.ok(&["subscribe", "-t", &location, "bot", &handler, "--deliver", "stdin"]);
        machine.ok(&["push", "-t", &location, "x"]);
        out
    };
    let is_handled =
        |out: &std::path::Path| fs::read_to_string(out).is_ok_and(|text| text.contains("\"id\":1,"));
    let outs = ["a", "b", "in box"].map(begin);
    let mut given = Machine::new("");
    given.start_worker(&["--thread", &location("a"), "--thread", &location("b")]);
    wait_until("two threads to be served", || is_handled(&outs[0]) && is_handled(&outs[1]));
    assert!(!outs[2].exists());
    given.kill();
    // The machine's path may be longer than a socket's can be.
    let folder = fs::File::open(machine.path("")).unwrap();
    let socket = UnixDatagram::bind(format!("/proc/self/fd/{}/notify", folder.as_raw_fd())).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    machine.variables.push(("NOTIFY_SOCKET", "notify".to_owned()));
    let told = |socket: &UnixDatagram| {
        let mut bytes = [0; 64];
        let read = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..read].to_vec()).unwrap()
    };
    machine.start_worker(&[]);
    assert_eq!(told(&socket), "READY=1");
    wait_until("all threads to be served", || is_handled(&outs[2]));
    let later = {
        let location = location("later");
        machine.ok(&["init", &location]);
        let out = machine.path("later");
        let handler = format!("cat >>{}", quoted(&out));
        machine.ok(&["subscribe", "-t", &location, "bot", &handler, "--deliver", "stdin"]);
        machine.ok(&["push", "-t", &location, "x"]);
        out
    };
    wait_until("a new thread to be served", || is_handled(&later));
    assert_eq!(machine.end_worker(), Some(0));
    assert_eq!(told(&socket), "STOPPING=1");
    // No other command takes it.
    let said = machine.fails(1, &["peek"]);
    assert!(said.contains("name of a thread"), "{said}");
}

#[test]
fn a_worker_asked_to_end_lets_its_handlers_finish_and_then_ends_them() {
    let Some(server) = server() else { return };
    let location = server.location();
    let mut machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    machine.ok(&[
        "subscribe",
        "bot",
        "echo begin >>out; sleep 2; cat >/dev/null; echo end >>out",
        "--deliver",
        "stdin",
    ]);
    machine.start_worker(&["--grace", "60s"]);
    machine.ok(&["push", "x"]);
    wait_until("the handler", || lines(&machine, "out") == ["begin"]);
    assert_eq!(machine.end_worker(), Some(0));
    assert_eq!(lines(&machine, "out"), ["begin", "end"]);
    assert_eq!(machine.bot("last_acked_id"), 1);

    machine.ok(&["subscribe", "bot", "echo long >>out; exec sleep 1000", "--replace"]);
    machine.ok(&["push", "y"]);
    machine.start_worker(&["--grace", "300ms"]);
    wait_until("the long handler", || lines(&machine, "out").len() == 3);
    assert_eq!(machine.end_worker(), Some(0));
    wait_until("its processes to be gone", || machine.processes().is_empty());
    // It costs no attempt, and is due again: on any machine, at once.
    assert_eq!((machine.bot("pending"), machine.bot("attempt")), (1.into(), serde_json::Value::Null));
    let mut other = Machine::new(&location);
    other.start_worker(&[]);
    wait_until("another machine to go on", || lines(&machine, "out").len() == 4);
    other.kill();
}

#[test]
fn a_worker_reconnects_for_ever_and_continues() {
    let Some(server) = Server::start() else { return };
    let location = server.location();
    let mut machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    machine.ok(&["subscribe", "bot", "cat >>out", "--deliver", "stdin"]);
    machine.start_worker(&[]);
    for n in 1..=3 {
        machine.ok(&["push", "x"]);
        wait_until("the event to be handled", || machine.bot("pending") == 0);
        assert_eq!(lines(&machine, "out").len(), n);
        server.order("kill");
        server.order("start");
    }
}

#[test]
fn a_worker_tries_an_unreachable_server_with_growing_pauses() {
    // What answers here is no server.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    let location = format!("postgres://x@127.0.0.1:{port}/y?sslmode=disable#z");
    let mut machine = Machine::new(&location);
    machine.start_worker(&[]);
    let (mut last, mut longest) = (None::<Instant>, Duration::ZERO);
    wait_until("a long pause", || {
        if listener.accept().is_ok() {
            longest = longest.max(last.map_or(Duration::ZERO, |last| last.elapsed()));
            last = Some(Instant::now());
        }
        longest > Duration::from_millis(2500)
    });
}

#[test]
fn a_machine_without_the_program_of_a_handler_leaves_the_run_to_others() {
    let Some(server) = server() else { return };
    let location = server.location();
    let (mut without, mut with) = (Machine::new(&location), Machine::new(&location));
    without.ok(&["init", &location]);
    let program = with.path("bin/only-there");
    fs::write(&program, "#!/bin/sh\ncat\n").unwrap();
    let mode =
        |mode| fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    mode(0o644);
    // Its path does not exist there either.
    let out = with.path("out");
    let handler = format!("echo $$ >>tries; only-there >>{}", quoted(&out));
    without.ok(&["subscribe", "bot", &handler, "--deliver", "stdin", "--max-attempts", "1"]);
    without.start_worker(&[]);
    without.ok(&["push", "x"]);
    wait_until("the first try", || logged(&without).contains("cannot be run here: left to other machines"));
    assert_eq!((without.bot("pending"), without.bot("dead")), (1.into(), 0.into()));
    // The file is not executable there yet: exit code 126.
    with.start_worker(&[]);
    wait_until("the second try", || logged(&with).contains("cannot be run here: left to other machines"));
    // Not killed: a kill may come before the end of the run is recorded and would then count as an attempt.
    with.end_worker();
    mode(0o755);
    let mark = fs::read_dir(with.base().join("run")).unwrap().flatten();
    mark.filter(|entry| entry.path().extension().is_some_and(|it| it == "left")).for_each(|entry| {
        // As if a minute had passed.
        fs::File::options()
            .write(true)
            .open(entry.path())
            .unwrap()
            .set_modified(std::time::UNIX_EPOCH)
            .unwrap();
    });
    with.start_worker(&[]);
    wait_until("the machine that has it", || without.bot("pending") == 0);
    assert_eq!(lines(&with, "out").len(), 1);
    // On a slow machine, a minute may have passed by now.
    assert!(lines(&without, "tries").len() >= 3);
    assert_eq!((without.bot("dead"), without.bot("state")), (0.into(), "idle".into()));
}

#[test]
fn a_machine_without_the_folder_of_a_handler_leaves_the_run_to_others() {
    let Some(server) = server() else { return };
    let location = server.location_of("folders", "inbox");
    let (mut without, mut with) = (Machine::new(&location), Machine::new(&location));
    with.ok(&["init", &location]);
    with.ok(&["subscribe", "bot", "cat >>out", "--deliver", "stdin", "--cwd", "/"]);
    // The machines of these tests have one file system. A relative path is below the folder that each has for itself.
    server.psql("UPDATE folders.consumers SET cwd = 'work'");
    let cwd = with.base().join("work");
    fs::create_dir(&cwd).unwrap();
    without.ok(&["push", "x"]);
    without.start_worker(&[]);
    let says = || logged(&without).matches("the working directory of 'bot'").count() as u64;
    wait_until("the machine without it", || says() > 0);
    // It does so once a minute, however often it looks.
    let began = Instant::now();
    for _ in 0..5 {
        assert!(without.ok(&["dispatch", "--json"]).contains("bot"));
    }
    assert!(says() <= 2 + began.elapsed().as_secs() / 60, "{}", logged(&without));
    assert_eq!(with.bot("pending"), 1);
    with.start_worker(&[]);
    wait_until("the machine with it", || with.bot("pending") == 0);
    assert_eq!(fs::read_to_string(cwd.join("out")).unwrap().lines().count(), 1);
}

#[test]
fn a_cut_that_is_shorter_than_the_lease_is_survived_by_the_run() {
    let Some(server) = server() else { return };
    server.psql("CREATE ROLE shortly SUPERUSER LOGIN PASSWORD 'secret'");
    let direct = server.location_of("shortly", "inbox");
    let proxy = Proxy::to(server.port);
    let (mut one, mut other) = (Machine::new(&direct), Machine::new(&direct));
    one.location =
        format!("postgres://shortly@127.0.0.1:{}/postgres?schema=shortly&sslmode=disable#inbox", proxy.port);
    one.variables.push(("PGPASSWORD", "secret".to_owned()));
    other.ok(&["init", &direct]);
    let handler = "echo begin $THREAD_EPOCH >>out; until [ -e go ]; do sleep 0.05; done; cat >/dev/null; echo end >>out";
    other.ok(&["subscribe", "bot", handler, "--deliver", "stdin"]);
    one.start_worker(&["--lease", "60s"]);
    one.ok(&["push", "x"]);
    wait_until("the handler", || lines(&other, "out") == ["begin 1"]);
    other.start_worker(&["--lease", "60s"]);
    proxy.cut();
    // It ends while its supervisor cannot reach the server.
    fs::write(other.path("go"), "").unwrap();
    wait_until("its end", || lines(&other, "out") == ["begin 1", "end"]);
    assert_eq!(other.bot("pending"), 1);
    proxy.heal();
    wait_until("its end to be recorded", || other.bot("pending") == 0);
    assert_eq!(lines(&other, "out"), ["begin 1", "end"]);
    let runs: serde_json::Value =
        serde_json::from_str(&other.ok(&["info", "--json", "bot", "--runs"])).unwrap();
    assert!(runs.to_string().contains("succeeded") && !runs.to_string().contains("unknown"), "{runs}");
}

#[test]
fn logs_of_a_run_on_another_machine_say_where_they_are() {
    let Some(server) = server() else { return };
    let location = server.location_of("logged", "inbox");
    let (mut one, other) = (Machine::new(&location), Machine::new(&location));
    one.ok(&["init", &location]);
    one.ok(&[
        "subscribe",
        "bot",
        "echo hello; until [ -e go ]; do sleep 0.05; done; cat",
        "--deliver",
        "stdin",
    ]);
    one.start_worker(&[]);
    one.ok(&["push", "x"]);
    let said = |machine: &Machine| {
        let output = machine.run(&["logs", "bot"]);
        assert!(output.status.success());
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    let note = |host: &str| format!("Note: the last run was on {host}, which has its output\n");
    wait_until("its output", || said(&one).0.contains("hello"));
    assert_eq!(said(&other), (String::new(), note(&host)));
    assert_eq!(said(&one).1, "");
    fs::write(one.path("go"), "").unwrap();
    wait_until("its end", || one.bot("pending") == 0 && one.bot("state") == "idle");
    // Machines of these tests have the same name.
    server.psql("UPDATE logged.leases SET host = 'elsewhere'");
    assert_eq!(said(&other).1, note("elsewhere"));
}

/// The release of the lease is delayed, and in that time another machine pushes and does not get the lease.
#[test]
fn after_releasing_a_lease_its_holder_looks_again() {
    let Some(server) = server() else { return };
    let location = server.location_of("givenback", "inbox");
    let (one, other) = (Machine::new(&location), Machine::new(&location));
    one.ok(&["init", &location]);
    let handler = "until [ -e go ]; do sleep 0.05; done; cat >>out";
    one.ok(&["subscribe", "bot", handler, "--deliver", "stdin"]);
    one.ok(&["push", "x"]);
    one.ok(&["dispatch"]);
    wait_until("the handler", || one.bot("state") == "running");
    let url = format!("host={} port={} user=postgres dbname=postgres", server.dir.display(), server.port);
    let mut holder = postgres::Client::connect(&url, postgres::NoTls).unwrap();
    holder.batch_execute("BEGIN; SELECT 1 FROM givenback.leases FOR UPDATE").unwrap();
    fs::write(one.path("go"), "").unwrap();
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%givenback%'";
    wait_until("the lease to be given back", || server.psql(waiting) == "1");
    other.ok(&["push", "y"]);
    let turned_away = other.ok(&["dispatch", "--json"]);
    assert!(turned_away.contains("running"), "{turned_away}");
    holder.batch_execute("COMMIT").unwrap();
    wait_until("the second event to be handled", || one.bot("pending") == 0);
    assert_eq!(lines(&one, "out").len(), 2);
}

/// One dispatch after each push is enough, on any machine: the holder of the lease looks again after releasing it.
/// There is no worker here, which would look by itself.
#[test]
fn a_dispatch_after_each_push_is_enough_on_whatever_machine() {
    let Some(server) = server() else { return };
    let location = server.location();
    let (one, other) = (Machine::new(&location), Machine::new(&location));
    one.ok(&["init", &location]);
    one.ok(&["subscribe", "bot", "cat >>out", "--deliver", "stdin"]);
    std::thread::scope(|scope| {
        for machine in [&one, &other] {
            scope.spawn(move || {
                for _ in 0..if thread_testkit::long() { 200 } else { 12 } {
                    machine.ok(&["push", "x"]);
                    machine.ok(&["dispatch"]);
                }
            });
        }
    });
    wait_until("all to be handled", || one.bot("pending") == 0);
}

#[test]
fn a_handler_that_is_started_in_the_background_has_the_lease_of_its_worker() {
    let Some(server) = server() else { return };
    let location = server.location_of("background", "x");
    let mut machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    // More than is looked through at once, so a process in the background finds the event.
    let events = "{\"content\":\"x\"}\n".repeat(100_000);
    fs::write(machine.path("events"), events + "{\"content\":\"wanted\"}\n").unwrap();
    let stdin = fs::File::open(machine.path("events")).unwrap();
    assert!(machine.command(&["push", "--batch"]).stdin(stdin).output().unwrap().status.success());
    let handler = "cat >>out; exec sleep 1000";
    machine.ok(&["subscribe", "bot", handler, "--deliver", "stdin", "--filter", "content LIKE '%want%'"]);
    machine.start_worker(&["--lease", "77s"]);
    wait_until("the handler", || lines(&machine, "out").len() == 1);
    assert_eq!(server.psql("SELECT length_ms FROM background.leases"), "77000");
    machine.kill();
}
