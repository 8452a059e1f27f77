//! How a server is reached: the same settings as `psql`, from the same places, and errors that say what to do.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use thread_testkit::postgres::{Server, server};
use thread_testkit::wait_until;

use crate::machine::Machine;

/// A location without the thread, as `psql` takes it, with a thread in it.
struct Reached<'s> {
    server: &'s Server,
    machine: Machine,
}

impl Reached<'_> {
    /// Whether the program reaches the server as this URL and these variables say; fails unless `psql` agrees.
    #[track_caller]
    fn reaches(&self, url: &str, variables: &[(&str, &str)]) -> bool {
        let with = |command: &mut Command| command.envs(variables.iter().copied()).output().unwrap();
        let mut psql = Command::new(self.server.bin.join("psql"));
        psql.env_clear().env("HOME", self.machine.path("")).args(["-wXc", "SELECT 1", url]);
        let psql = with(&mut psql);
        let mut ours = self.machine.command(&["info", "-t", &format!("{url}#inbox")]);
        let ours = with(&mut ours);
        let (told, said) = (String::from_utf8_lossy(&psql.stderr), String::from_utf8_lossy(&ours.stderr));
        assert_eq!(
            ours.status.success(),
            psql.status.success(),
            "{url} {variables:?}\npsql: {told}\nthread: {said}"
        );
        if !ours.status.success() {
            let last = said.lines().last().unwrap();
            assert!(last.starts_with("Error: ") && last.contains(" - "), "{said}");
            assert!(!said.contains("hunter2"), "{said}");
        }
        ours.status.success()
    }
}

/// A server on which `user` has the password hunter2 and there is a thread in the default schema.
fn reached<'s>(server: &'s Server, user: &str) -> Reached<'s> {
    let location = server.location_of("thread", "inbox");
    let machine = Machine::new(&location);
    drop(machine.run(&["init", &location]));
    server.psql(&format!("CREATE ROLE {user} SUPERUSER LOGIN PASSWORD 'hunter2'"));
    Reached { server, machine }
}

#[test]
fn settings_come_from_where_psql_takes_them() {
    let Some(server) = server() else { return };
    let with = reached(server, "guest");
    let (dir, port) = (server.dir.display(), server.port);
    let url = format!("postgres://guest@/postgres?host={dir}&port={port}");
    let password = ("PGPASSWORD", "hunter2");
    assert!(with.reaches(&url, &[password]));
    assert!(!with.reaches(&url, &[("PGPASSWORD", "wrong")]));
    assert!(!with.reaches(&url, &[]));
    let (host, number) = (server.dir.to_str().unwrap(), port.to_string());
    let from_variables =
        [("PGHOST", host), ("PGPORT", &number), ("PGUSER", "guest"), ("PGDATABASE", "postgres"), password];
    assert!(with.reaches("postgres://", &from_variables));
    assert!(
        !with.reaches("postgres://", &[("PGPORT", "1"), ("PGHOST", host), ("PGUSER", "guest"), password])
    );
    // The URL takes precedence over the variables.
    assert!(with.reaches(&url, &[("PGHOST", "/nowhere"), ("PGUSER", "nobody"), password]));
    assert!(with.reaches(&format!("postgres://guest@127.0.0.1:{port}/postgres"), &[password]));
    assert!(with.reaches(&format!("postgres://guest@127.0.0.1:1,127.0.0.1:{port}/postgres"), &[password]));
    assert!(!with.reaches(&format!("postgres://guest@127.0.0.1:1,127.0.0.1:{port}/missing"), &[password]));

    let file = |name: &str, text: &str, mode: u32| {
        let path = with.machine.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let pass = file(
        "pass",
        &format!("*:1:*:*:no\n{dir}:{port}:post*:guest:no\n*:*:postgres:guest:hunter2\n"),
        0o600,
    );
    assert!(with.reaches(&url, &[("PGPASSFILE", &pass)]));
    assert!(with.reaches(&format!("{url}&passfile={pass}"), &[]));
    let open = file("open", "*:*:*:*:hunter2\n", 0o644);
    assert!(!with.reaches(&url, &[("PGPASSFILE", &open)]));
    file(".pgpass", "*:*:*:guest:hunter2\n", 0o600);
    assert!(with.reaches(&url, &[]));
    let services =
        format!("[other]\nhost=/nowhere\n[own]\nhost={dir}\nport={port}\nuser=guest\ndbname=postgres\n");
    let services = file("services", &services, 0o644);
    let service = ("PGSERVICEFILE", services.as_str());
    assert!(with.reaches("postgres://?service=own", &[service]));
    assert!(with.reaches("postgres://", &[service, ("PGSERVICE", "own")]));
    assert!(!with.reaches("postgres://?service=other", &[service]));
    assert!(!with.reaches("postgres://?service=missing", &[service]));
}

/// Writes a file that the server reads, as its own.
fn give(server: &Server, name: &str, text: &str) -> PathBuf {
    let path = server.dir.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let owner = server.dir.join("data").metadata().unwrap();
    chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    path
}

#[test]
fn tls_is_used_and_checked_as_by_psql() {
    let Some(server) = Server::start() else { return };
    let authority = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        (params.self_signed(&key).unwrap().pem(), Issuer::new(params, key))
    };
    let ((right, issuer), (other, _)) = (authority("right"), authority("other"));
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "localhost");
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let with = reached(&server, "secure");
    let certificate = give(&server, "server.crt", &certificate.pem());
    let key = give(&server, "server.key", &key.serialize_pem());
    server.psql(&format!("ALTER SYSTEM SET ssl_cert_file = '{}'", certificate.display()));
    server.psql(&format!("ALTER SYSTEM SET ssl_key_file = '{}'", key.display()));
    server.psql("ALTER SYSTEM SET ssl = on");
    server.order("reload");
    wait_until("TLS", || server.psql("SHOW ssl") == "on");
    let root = |name: &str, text: &str| {
        let path = with.machine.path(name);
        fs::write(&path, text).unwrap();
        path
    };
    let roots =
        [None, Some(root("right.crt", &right)), Some(root("other.crt", &other)), Some("/missing".into())];
    let mut reached = Vec::new();
    for mode in ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] {
        for root in &roots {
            for host in ["localhost", "127.0.0.1"] {
                let mut url = format!("postgres://secure@{host}:{}/postgres?sslmode={mode}", server.port);
                if let Some(root) = root {
                    url += &format!("&sslrootcert={}", root.display());
                }
                if with.reaches(&url, &[("PGPASSWORD", "hunter2")]) {
                    let root = root.as_deref().and_then(Path::file_stem).map(|stem| stem.to_str().unwrap());
                    reached.push(format!("{mode} {} {host}", root.unwrap_or("none")));
                }
            }
        }
    }
    assert!(reached.contains(&"verify-full right localhost".to_owned()), "{reached:#?}");
    assert!(reached.contains(&"verify-ca right 127.0.0.1".to_owned()), "{reached:#?}");
    assert!(
        !reached.iter().any(|one| one.starts_with("verify-full") && one.ends_with("127.0.0.1")),
        "{reached:#?}"
    );
    assert!(!reached.iter().any(|one| one.contains("disable") || one.contains(" other ")), "{reached:#?}");
}

#[test]
fn errors_about_an_unusable_thread_say_how_to_fix_it() {
    let Some(server) = server() else { return };
    let location = server.location_of("said", "inbox");
    let machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    let (dir, port) = (server.dir.display(), server.port);
    let as_user =
        |user: &str| format!("postgres://{user}@/postgres?host={dir}&port={port}&schema=said#inbox");
    server.psql("CREATE ROLE said_nobody LOGIN");
    server.psql("CREATE ROLE said_standby SUPERUSER LOGIN");
    server.psql("ALTER ROLE said_standby SET default_transaction_read_only = on");
    for (location, what, how) in [
        (
            "postgres://x@127.0.0.1:1/y?sslmode=disable#z".to_owned(),
            "cannot be reached",
            "check that the server runs",
        ),
        (
            format!("postgres://x@/y?host={dir}/none&port=1#z"),
            "cannot be reached",
            "check that the server runs",
        ),
        (
            format!("postgres://postgres@/none?host={dir}&port={port}#z"),
            "the database is missing",
            "createdb",
        ),
        (as_user("said_nobody"), "permission denied", "SPEC.md"),
        (as_user("said_standby"), "nothing was changed", "primary"),
        (as_user("said_missing"), "does not exist", "user and password"),
        ("postgres://u:hunter2@h/d#x".to_owned(), "contains a password", ".pgpass"),
        ("postgres://u@h/d".to_owned(), "name of a thread", "postgres://user@host/database#thread"),
        (location.replace("#inbox", "#other"), "is not a thread", "thread init"),
    ] {
        let said = machine.fails(1, &["push", "-t", &location, "x"]);
        assert!(said.contains(what) && said.contains(how) && !said.contains("hunter2"), "{location}: {said}");
    }
    let missing = format!("postgres://postgres@/none?host={dir}&port={port}#z");
    let output = machine.run(&["push", "--json", "-t", &missing, "x"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("\"code\":\"database_missing\"") && !said.contains("permission"), "{said}");
    // Nothing was stored, and reading works where the server is read-only.
    assert!(machine.ok(&["info", "-t", &as_user("said_standby")]).contains("Events: 0"));
    let said = machine.fails(1, &["backup", "x"]);
    assert!(said.contains("is for threads in directories"), "{said}");
}

#[test]
fn the_size_of_a_database_on_a_server_is_not_shown() {
    let Some(server) = server() else { return };
    let location = server.location();
    let machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    machine.ok(&["push", "x"]);
    let info: serde_json::Value = serde_json::from_str(&machine.ok(&["info", "--json"])).unwrap();
    for part in ["database_bytes", "wal_bytes", "log_bytes"] {
        assert_eq!(info.get(part), Some(&serde_json::Value::Null), "{info}");
    }
    let table = machine.ok(&["info", "--format", "table"]);
    assert!(table.contains("logs on this machine") && !table.contains("database "), "{table}");
}

#[test]
fn doctor_checks_the_consumers_and_warns_of_what_this_machine_lacks() {
    let Some(server) = server() else { return };
    let location = server.location_of("doctored", "inbox");
    let machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    assert_eq!(machine.ok(&["doctor"]), "healthy\n");
    machine.ok(&["subscribe", "lame", "no-such-program", "--filter", "type = 'record'"]);
    let said = machine.ok(&["doctor"]);
    assert!(said.starts_with("warning: the handler of 'lame' begins with 'no-such-program'"), "{said}");
    // Nobody dispatches here.
    machine.ok(&["subscribe", "bot", "cat >>out", "--deliver", "stdin"]);
    machine.ok(&["push", "x"]);
    let output = machine.run(&["doctor", "--json"]);
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &said["healthy"]), (Some(1), &false.into()), "{said}");
    assert!(said.to_string().contains("'bot' has events pending"), "{said}");
    let said = machine.fails(1, &["prune", "--before-id", "2", "--force", "--compact"]);
    assert!(said.contains("is for threads in directories"), "{said}");
    assert_eq!(machine.bot("pending"), 1, "nothing was deleted before that");
    assert!(machine.ok(&["doctor", "--fix"]).contains("repaired: 'bot' has events pending"));
    wait_until("the handler", || machine.bot("pending") == 0);
}

#[test]
fn a_role_can_be_limited_to_pushing_or_to_reading() {
    let Some(server) = server() else { return };
    let location = server.location_of("roles", "inbox");
    let machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    machine.ok(&["subscribe", "bot", "cat", "--filter", "type = 'message'"]);
    for role in ["pusher", "reader"] {
        server.psql(&format!("CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA roles TO {role}"));
        server.psql(&format!("GRANT SELECT ON roles.versions, roles.threads, roles.counters TO {role}"));
    }
    server.psql("GRANT UPDATE ON roles.counters TO pusher; GRANT INSERT ON roles.events TO pusher");
    server.psql("GRANT SELECT ON ALL TABLES IN SCHEMA roles TO reader");
    let (dir, port) = (server.dir.display(), server.port);
    let as_role =
        |role: &str| format!("postgres://{role}@/postgres?host={dir}&port={port}&schema=roles#inbox");
    let (pusher, reader) = (as_role("pusher"), as_role("reader"));
    assert_eq!(machine.ok(&["push", "-t", &pusher, "x"]), "1\n");
    machine.fails(1, &["peek", "-t", &pusher]);
    machine.fails(1, &["subscribe", "-t", &pusher, "evil", "true"]);
    assert_eq!(machine.ok(&["peek", "-t", &reader]).lines().count(), 1);
    assert!(machine.ok(&["info", "-t", &reader]).contains("pending: 1"));
    machine.fails(1, &["push", "-t", &reader, "x"]);
    machine.fails(1, &["ack", "-t", &reader, "bot", "1"]);
}
