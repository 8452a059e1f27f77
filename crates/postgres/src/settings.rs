//! The settings of a connection, from where libpq takes them: the location, the service file, the environment, the
//! password file, and defaults, in this order.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use thread::Result;

use crate::environment::Environment;
use crate::error::invalid;
use crate::{passfile, service};

/// How TLS is used, and how far the server's certificate is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SslMode {
    Disable,
    /// Only if the server insists.
    Allow,
    /// If the server can.
    Prefer,
    Require,
    /// The certificate must be signed by a known authority,
    VerifyCa,
    /// and be that of the host.
    VerifyFull,
}

/// The known settings, by libpq's names, with their environment variables.
const KNOWN: [(&str, &str); 15] = [
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("port", "PGPORT"),
    ("dbname", "PGDATABASE"),
    ("user", "PGUSER"),
    ("password", "PGPASSWORD"),
    ("passfile", "PGPASSFILE"),
    ("service", "PGSERVICE"),
    ("sslmode", "PGSSLMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("application_name", "PGAPPNAME"),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
];

/// Where Debian's server has its socket; elsewhere it is in `/tmp`.
const SOCKET_DIR: &str = "/var/run/postgresql";

/// How to reach a database.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// Names, addresses, or directories of sockets, to be tried in this order.
    pub host: Vec<String>,
    /// The addresses of these hosts, so that they need not be looked up.
    pub hostaddr: Vec<IpAddr>,
    /// As many as hosts.
    pub port: Vec<String>,
    pub dbname: String,
    pub user: String,
    pub password: Option<String>,
    pub sslmode: SslMode,
    /// A file with certificates of authorities, or `system`.
    pub sslrootcert: Option<String>,
    /// The client's certificate and its key.
    pub sslcert: Option<PathBuf>,
    pub sslkey: Option<PathBuf>,
    /// In seconds; 0 for no limit.
    pub connect_timeout: u64,
    pub application_name: String,
    pub read_write: bool,
}

/// Without the password.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Settings { host, port, dbname, user, sslmode, .. } = self;
        write!(f, "{user}@{host:?}:{port:?}/{dbname} {sslmode:?}")
    }
}

impl Settings {
    /// The setting of that name, as a parameter of a location may have it.
    pub fn known(name: &str) -> Option<&'static str> {
        KNOWN.iter().map(|(known, _)| *known).find(|known| *known == name)
    }

    /// Completes the settings `given`, each by its name.
    ///
    /// # Errors
    ///
    /// A value is not valid; the service file lacks the service.
    pub fn resolve(given: &[(&str, String)], environment: &Environment) -> Result<Settings> {
        let variable = |name: &str| {
            let (_, variable) = KNOWN.iter().find(|(known, _)| *known == name)?;
            environment.variables.get(*variable).cloned()
        };
        let from_location =
            |name: &str| given.iter().rev().find(|(given, _)| *given == name).map(|(_, value)| value.clone());
        let service = match from_location("service").or_else(|| variable("service")) {
            Some(service) => service::read(&service, environment)?,
            None => BTreeMap::new(),
        };
        if let Some(unknown) = service.keys().find(|name| Settings::known(name).is_none()) {
            return Err(invalid(
                format!("the service file has the setting '{}', which is not known", unknown.escape_debug()),
                "leave it out there",
            ));
        }
        let value = |name: &str| {
            from_location(name).or_else(|| service.get(name).cloned()).or_else(|| variable(name))
        };
        let list = |name: &str| -> Vec<String> {
            value(name)
                .map(|all| all.split(',').map(|one| one.trim().to_owned()).collect())
                .unwrap_or_default()
        };

        let mut host = list("host");
        let hostaddr = list("hostaddr");
        if host.is_empty() {
            host = hostaddr.clone();
        }
        if host.is_empty() {
            host.push(String::new());
        }
        for one in host.iter_mut().filter(|one| one.is_empty()) {
            *one = if Path::new(SOCKET_DIR).is_dir() { SOCKET_DIR } else { "/tmp" }.to_owned();
        }
        let hostaddr = hostaddr.iter().map(|one| one.parse().map_err(|_| not_valid("hostaddr", one)));
        let hostaddr: Vec<IpAddr> = hostaddr.collect::<Result<_>>()?;
        if !hostaddr.is_empty() && hostaddr.len() != host.len() {
            return Err(invalid(
                "there are not as many host addresses as hosts",
                "give one hostaddr for each host",
            ));
        }
        let mut port = list("port");
        if let [one] = &port[..] {
            port = vec![one.clone(); host.len()];
        }
        port.resize(host.len().max(port.len()), String::new());
        if port.len() != host.len() {
            return Err(invalid("there are more ports than hosts", "give one port, or one for each host"));
        }
        for one in &mut port {
            if one.is_empty() {
                "5432".clone_into(one);
            }
            if one.parse::<u16>().is_ok_and(|port| port > 0) {
                continue;
            }
            return Err(not_valid("port", one));
        }
        let user = value("user").unwrap_or_else(|| environment.user());
        if user.is_empty() {
            return Err(invalid(
                "no user of the database is given",
                "name one: postgres://user@host/database#thread",
            ));
        }
        let dbname = value("dbname").unwrap_or_else(|| user.clone());
        let file = |name: &str, at_home: &str| {
            value(name).map(PathBuf::from).or_else(|| environment.file_at_home(at_home))
        };
        let password = value("password")
            .or_else(|| passfile::find(&file("passfile", ".pgpass")?, &host, &port, &dbname, &user));
        let sslrootcert = value("sslrootcert").or_else(|| {
            Some(environment.file_at_home(".postgresql/root.crt")?.to_string_lossy().into_owned())
        });
        let is_there = |file: &String| file == "system" || Path::new(file).exists();
        let sslmode = value("sslmode");
        let sslmode = match sslmode.as_deref() {
            None if sslrootcert.as_deref() == Some("system") => SslMode::VerifyFull,
            None => SslMode::Prefer,
            Some("disable") => SslMode::Disable,
            Some("allow") => SslMode::Allow,
            Some("prefer") => SslMode::Prefer,
            // As libpq does, which had it so before there was verify-ca.
            Some("require") if sslrootcert.as_ref().is_some_and(is_there) => SslMode::VerifyCa,
            Some("require") => SslMode::Require,
            Some("verify-ca") => SslMode::VerifyCa,
            Some("verify-full") => SslMode::VerifyFull,
            Some(other) => return Err(not_valid("sslmode", other)),
        };
        if sslrootcert.as_deref() == Some("system") && sslmode != SslMode::VerifyFull {
            return Err(invalid(
                "sslrootcert=system needs sslmode=verify-full",
                "give that, or leave out sslmode",
            ));
        }
        let connect_timeout = value("connect_timeout").unwrap_or_else(|| "10".to_owned());
        let attributes = value("target_session_attrs");
        let is_checked = matches!(sslmode, SslMode::VerifyCa | SslMode::VerifyFull);
        let sslrootcert = sslrootcert.filter(|file| is_checked || is_there(file));
        Ok(Settings {
            hostaddr,
            dbname,
            user,
            password,
            sslmode,
            sslrootcert,
            sslcert: file("sslcert", ".postgresql/postgresql.crt"),
            sslkey: file("sslkey", ".postgresql/postgresql.key"),
            connect_timeout: connect_timeout
                .parse()
                .map_err(|_| not_valid("connect_timeout", &connect_timeout))?,
            application_name: value("application_name").unwrap_or_else(|| "thread".to_owned()),
            read_write: match attributes.as_deref() {
                None | Some("any") => false,
                Some("read-write" | "primary") => true,
                Some(other) => return Err(not_valid("target_session_attrs", other)),
            },
            host,
            port,
        })
    }
}

fn not_valid(name: &str, value: &str) -> thread::Error {
    invalid(format!("'{}' is not a valid {name}", value.escape_debug()), "see libpq's documentation of it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Environment { variables: variables.collect(), home: None, user: Some("me".to_owned()) }
    }

    #[test]
    fn what_is_given_goes_before_the_environment_and_that_before_defaults() {
        let surroundings =
            environment(&[("PGHOST", "a,b"), ("PGPORT", "7"), ("PGUSER", "other"), ("PGPASSWORD", "p")]);
        let given = [("host", "c".to_owned())];
        let found = Settings::resolve(&given, &surroundings).unwrap();
        assert_eq!((found.host, found.port), (vec!["c".to_owned()], vec!["7".to_owned()]));
        assert_eq!((found.user.as_str(), found.dbname.as_str()), ("other", "other"));
        assert_eq!((found.password.as_deref(), found.sslmode), (Some("p"), SslMode::Prefer));
        let found = Settings::resolve(&[], &surroundings).unwrap();
        assert_eq!((found.host.len(), found.port), (2, vec!["7".to_owned(); 2]));
        let plain = Settings::resolve(&[], &environment(&[])).unwrap();
        assert_eq!((plain.user.as_str(), plain.dbname.as_str()), ("me", "me"));
        assert!(plain.host[0].starts_with('/') && plain.password.is_none());
        assert!(!format!("{:?}", Settings::resolve(&[], &surroundings).unwrap()).contains("\"p\""));
    }

    #[test]
    fn require_checks_the_authority_if_one_is_known() {
        let mode = |sslmode: &str, root: Option<&str>| {
            let mut given = vec![("sslmode", sslmode.to_owned())];
            given.extend(root.map(|root| ("sslrootcert", root.to_owned())));
            Settings::resolve(&given, &environment(&[])).map(|found| found.sslmode)
        };
        assert_eq!(mode("require", None).unwrap(), SslMode::Require);
        assert_eq!(mode("require", Some("/dev/null")).unwrap(), SslMode::VerifyCa);
        assert_eq!(mode("require", Some("/missing")).unwrap(), SslMode::Require);
        assert_eq!(mode("verify-full", Some("system")).unwrap(), SslMode::VerifyFull);
        assert!(mode("require", Some("system")).is_err() && mode("no", None).is_err());
    }
}
