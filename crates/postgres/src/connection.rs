//! Connecting to a server, and idle connections, so that a process that opens threads again and again does not connect
//! each time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use postgres::config::{SslMode as Tls, TargetSessionAttrs};
use postgres::error::Severity;
use postgres::{Client, Config};
use thread::error::DatabaseErrorKind as Kind;
use thread::{Error, Result};

use crate::error::{self, failed};
use crate::settings::{Settings, SslMode};
use crate::slots::Slot;
use crate::tls;

/// How soon a lost network is noticed, which TCP alone would do after hours.
const IDLE: Duration = Duration::from_secs(10);
const BETWEEN_PROBES: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;
const UNANSWERED: Duration = Duration::from_secs(25);

/// How long an idle connection may take to show that it is alive. After a shorter pause it is not checked.
const CHECK: Duration = Duration::from_secs(5);
const FRESH: Duration = Duration::from_secs(1);

/// As many connections to a server are kept as a process has used at once, but no more than this.
const MOST_IDLE: usize = 32;

/// After how long a process that is sparing closes an idle connection, and after how long if another process waits for
/// its slot. It looks so often.
const SPARED_AFTER: Duration = Duration::from_millis(150);
const YIELDED_AFTER: Duration = Duration::from_millis(20);
const SPARE_EVERY: Duration = Duration::from_millis(20);

const DOING: &str = "connecting to the database";

/// This process is one of many that rarely need a connection.
static IS_SPARING: AtomicBool = AtomicBool::new(false);

/// Makes this process share a number of connections with others of this machine, and close those that it does not use.
pub fn spare() {
    IS_SPARING.store(true, Ordering::Relaxed);
}

pub fn is_sparing() -> bool {
    IS_SPARING.load(Ordering::Relaxed)
}

/// How a process that is sparing comes by a connection.
#[derive(Debug, Clone, Copy)]
pub enum Turn {
    /// It waits for a slot for at most so long, and then does without: those who have one may be suspended.
    Within(Duration),
    /// If there is a free slot.
    OrNever,
    /// It has one of its own, beside the slots.
    Free,
}

/// What is not urgent.
pub const PATIENT: Turn = Turn::Within(Duration::from_secs(30));

/// An open connection.
pub struct Connection {
    pub client: Client,
    /// Set by each warning of the server.
    warned: Arc<AtomicBool>,
    /// After the client, which is closed first.
    slot: Option<Slot>,
}

impl Connection {
    /// An idle connection, or a new one.
    pub fn take(settings: &Settings) -> Result<Connection> {
        Connection::take_in(settings, PATIENT)
    }

    pub fn take_in(settings: &Settings, turn: Turn) -> Result<Connection> {
        let take = || {
            let mut idle = IDLE_ONES.lock().unwrap_or_else(PoisonError::into_inner);
            let at = idle.all.iter().rposition(|one| one.of == *settings);
            at.map(|at| idle.all.remove(at))
        };
        let take = || if matches!(turn, Turn::Free) { None } else { take() };
        while let Some(Idle { mut connection, since, .. }) = take() {
            let is_there = !connection.client.is_closed();
            if is_there && (since.elapsed() < FRESH || connection.client.is_valid(CHECK).is_ok()) {
                return Ok(connection);
            }
        }
        Connection::open_in(settings, turn)
    }

    /// Keeps a connection for a later [`Connection::take`]. No transaction may be open.
    pub fn keep(self, settings: &Settings) {
        if self.client.is_closed() || self.slot.as_ref().is_some_and(Slot::is_due) {
            return;
        }
        let mut idle = IDLE_ONES.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.all.iter().filter(|one| one.of == *settings).count() < MOST_IDLE {
            idle.all.push(Idle { of: settings.clone(), connection: self, since: Instant::now() });
        }
        if is_sparing() && !idle.is_watched {
            idle.is_watched = std::thread::Builder::new().name("idle".to_owned()).spawn(close_idle).is_ok();
        }
    }

    /// A new connection, which counts among those that processes share.
    pub fn open_in(settings: &Settings, turn: Turn) -> Result<Connection> {
        let (patience, is_needed) = match turn {
            Turn::Within(patience) => (patience, true),
            Turn::OrNever => (Duration::ZERO, false),
            Turn::Free => return Connection::open(settings),
        };
        let slot = match is_sparing().then(|| Slot::take(settings, patience)) {
            Some(Err(_)) if !is_needed => {
                let message = "other processes of this machine have all connections".to_owned();
                return Err(error::database(Kind::Unreachable, DOING, message, "try again"));
            }
            taken => taken.and_then(|taken| taken.ok().flatten()),
        };
        Ok(Connection { slot, ..Connection::open(settings)? })
    }

    pub fn open(settings: &Settings) -> Result<Connection> {
        let sockets_only =
            settings.host.iter().all(|host| host.starts_with('/')) && settings.hostaddr.is_empty();
        let (first, then) = match settings.sslmode {
            _ if sockets_only => (Tls::Disable, None),
            SslMode::Disable => (Tls::Disable, None),
            SslMode::Allow => (Tls::Disable, Some(Tls::Require)),
            SslMode::Prefer => (Tls::Prefer, Some(Tls::Disable)),
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => (Tls::Require, None),
        };
        connect(settings, first).or_else(|(refused, is_about_tls)| match then.filter(|_| is_about_tls) {
            Some(then) => connect(settings, then).map_err(|_| refused),
            None => Err(refused),
        })
    }

    /// Whether the server has warned since the last call.
    pub fn was_warned(&self) -> bool {
        self.warned.swap(false, Ordering::Relaxed)
    }
}

struct Idle {
    of: Settings,
    connection: Connection,
    since: Instant,
}

impl Idle {
    fn is_spared(&self) -> bool {
        let idle = self.since.elapsed();
        let is_wanted = || self.connection.slot.as_ref().is_some_and(Slot::is_wanted);
        idle >= SPARED_AFTER || idle >= YIELDED_AFTER && is_wanted()
    }
}

struct IdleOnes {
    /// The newest last.
    all: Vec<Idle>,
    /// A thread closes them.
    is_watched: bool,
}

static IDLE_ONES: Mutex<IdleOnes> = Mutex::new(IdleOnes { all: Vec::new(), is_watched: false });

/// Closes idle connections until there are none.
fn close_idle() {
    loop {
        std::thread::sleep(SPARE_EVERY);
        let mut idle = IDLE_ONES.lock().unwrap_or_else(PoisonError::into_inner);
        let spared: Vec<Idle> = idle.all.extract_if(.., |one| one.is_spared()).collect();
        idle.is_watched = !idle.all.is_empty();
        let is_over = !idle.is_watched;
        drop(idle);
        drop(spared);
        if is_over {
            return;
        }
    }
}

/// An error comes with whether there might be a connection with more or less encryption.
fn connect(settings: &Settings, tls: Tls) -> Result<Connection, (Error, bool)> {
    let mut config = Config::new();
    config.user(&settings.user).dbname(&settings.dbname).application_name(&settings.application_name);
    for (host, port) in settings.host.iter().zip(&settings.port) {
        config.host(host).port(port.parse().unwrap_or(5432));
    }
    for address in &settings.hostaddr {
        config.hostaddr(*address);
    }
    if let Some(password) = &settings.password {
        config.password(password);
    }
    if settings.connect_timeout > 0 {
        config.connect_timeout(Duration::from_secs(settings.connect_timeout));
    }
    if settings.read_write {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    config.keepalives_idle(IDLE).keepalives_interval(BETWEEN_PROBES).keepalives_retries(PROBES);
    config.tcp_user_timeout(UNANSWERED).ssl_mode(tls);
    let warned = Arc::new(AtomicBool::new(false));
    let hears = Arc::clone(&warned);
    config.notice_callback(move |notice| {
        if notice.parsed_severity() == Some(Severity::Warning) {
            hears.store(true, Ordering::Relaxed);
        }
    });
    let connected = match tls {
        Tls::Disable => config.connect(postgres::NoTls),
        _ => config.connect(tls::connector(settings).map_err(|e| (e, false))?),
    };
    let client = connected.map_err(|e| {
        // The driver reports its own errors only as text.
        let words = format!("{e}: {}", error::message(&e));
        let says = |part: &str| e.as_db_error().is_none() && words.contains(part);
        let error = if says("password missing") {
            let message = "the server asks for a password, and none is given".to_owned();
            error::database(Kind::Permission, DOING, message, "put it into ~/.pgpass or PGPASSWORD")
        } else if says("TLS") {
            let message = format!("TLS: {}", error::message(&e));
            error::database(
                Kind::Unreachable,
                DOING,
                message,
                "check sslmode, sslrootcert and the host's name",
            )
        } else {
            failed(&e, DOING)
        };
        // An authorization that the server refuses before it asks for a password.
        let is_refused = e.code().is_some_and(|code| code.code() == "28000");
        (error, says("TLS") || is_refused)
    })?;
    Ok(Connection { client, warned, slot: None })
}
