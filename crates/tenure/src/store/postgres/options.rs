//! Parses server addresses into a [`Config`]. The password is never displayed.
//!
//! Addresses have the format of libpq: URLs and keywords, services, `PG…` variables, several hosts. A parameter that Tenure
//! does not support is rejected by name. None is ignored, because `channel_binding=require` or `requirepeer` would then be
//! violated silently.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tenure_core::port::{ErrorKind, StoreError};

use crate::store::migrations::Schema;

/// Options of the PostgreSQL store.
///
/// ```
/// use tenure::store::postgres::PostgresOptions;
///
/// let mut options = PostgresOptions::new("postgres://app:secret@db.example/app?tenure_sync_replication=on");
/// options.direct_url = Some("postgres://app:secret@primary.example/app".into());
/// assert!(!format!("{options:?}").contains("secret"));
/// ```
#[derive(Clone)]
pub struct PostgresOptions {
    /// Address of the server or its pooler: `postgres://user:password@host:port/database?sslmode=verify-full`, or libpq's
    /// `host=… user=… password=… dbname=…`. Several hosts are tried in turn. `tenure_sync_replication=on` in it sets
    /// [`sync_replication`](Self::sync_replication).
    pub url: String,
    /// Direct address of the server, if `url` leads to a pooler. `LISTEN` and takeover mode `connection` use it.
    pub direct_url: Option<String>,
    /// Require synchronous replication: a grant or heartbeat counts only after a synchronous standby has confirmed it.
    pub sync_replication: bool,
    /// Maximum number of connections of each call pool; heartbeats have connections of their own.
    pub max_connections: u32,
    /// Connect timeout for each host; `connect_timeout` in the address overrides it.
    pub connect_timeout: Duration,
    /// For tests: acts as a program that was built for another schema.
    #[doc(hidden)]
    pub schema: Schema,
}

impl PostgresOptions {
    /// The defaults for this address: four connections, five seconds to connect, no required synchronous replication.
    pub fn new(url: impl Into<String>) -> Self {
        PostgresOptions {
            url: url.into(),
            direct_url: None,
            sync_replication: false,
            max_connections: 4,
            connect_timeout: Duration::from_secs(5),
            schema: super::migrate::SCHEMA,
        }
    }

    pub(super) fn address(&self) -> Result<Address, StoreError> {
        Address::parse(&self.url, &Environment::of_process())
    }

    pub(super) fn direct_address(&self) -> Result<Address, StoreError> {
        Address::parse(self.direct_url.as_deref().unwrap_or(&self.url), &Environment::of_process())
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let display =
            |address: Result<Address, StoreError>| address.map_or("?".into(), |address| address.display);
        f.debug_struct("PostgresOptions")
            .field("url", &display(self.address()))
            .field("direct_url", &self.direct_url.as_ref().map(|_| display(self.direct_address())))
            .field("sync_replication", &self.sync_replication)
            .field("max_connections", &self.max_connections)
            .field("connect_timeout", &self.connect_timeout)
            .finish()
    }
}

/// A parsed address.
pub(super) struct Address {
    pub(super) config: Config,
    /// The address without the password.
    pub(super) display: String,
    /// Whether it requires synchronous replication.
    pub(super) sync_replication: bool,
}

/// Parameters of a connection.
#[derive(Clone)]
pub(super) struct Config {
    /// At least one host.
    pub(super) hosts: Vec<Host>,
    pub(super) user: String,
    pub(super) database: String,
    password: Option<String>,
    passfile: Option<PathBuf>,
    pub(super) application_name: String,
    pub(super) options: Option<String>,
    pub(super) tls: Tls,
    pub(super) session: SessionAttrs,
    /// Whether to try the hosts in random order.
    pub(super) random_order: bool,
    pub(super) connect_timeout: Option<Duration>,
    statement_cache: Option<usize>,
}

/// One of the hosts of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    /// A host name, an IP address, or the folder of a Unix socket. Certificates and passfiles are compared with it.
    pub(super) name: String,
    /// IP address, if the name is not resolved.
    pub(super) address: Option<String>,
    pub(super) port: u16,
}

/// libpq's `sslmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SslMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// The certificate authorities for server certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RootCertificates {
    /// Those of the system, in the modes that verify.
    Default,
    /// Those of the system, as the address requires.
    System,
    File(PathBuf),
}

/// TLS parameters of the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tls {
    pub(super) mode: SslMode,
    pub(super) root: RootCertificates,
    /// The client's certificate and its key.
    pub(super) client: Option<(PathBuf, PathBuf)>,
}

/// libpq's `target_session_attrs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionAttrs {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    PreferStandby,
}

impl Host {
    /// The path of the Unix socket, if the host is one.
    pub(super) fn socket(&self) -> Option<PathBuf> {
        let folder = self.name.starts_with('/') && self.address.is_none();
        folder.then(|| Path::new(&self.name).join(format!(".s.PGSQL.{}", self.port)))
    }
}

impl Config {
    /// The password for a host: from the address, or from the passfile.
    pub(super) fn password(&self, host: &Host) -> Option<String> {
        self.password.clone().or_else(|| {
            passfile::password(self.passfile.as_deref()?, &host.name, host.port, &self.database, &self.user)
        })
    }

    /// Connect options for the pool of the user.
    pub(super) fn pool_options(&self, host: &Host) -> PgConnectOptions {
        let mut options = PgConnectOptions::new_without_pgpass()
            .port(host.port)
            .username(&self.user)
            .database(&self.database)
            .application_name(&self.application_name)
            .ssl_mode(match self.tls.mode {
                SslMode::Disable => PgSslMode::Disable,
                SslMode::Allow => PgSslMode::Allow,
                SslMode::Prefer => PgSslMode::Prefer,
                // libpq's `require` verifies the certificate if there is an authority; sqlx's never does.
                SslMode::Require if self.tls.root != RootCertificates::Default => PgSslMode::VerifyCa,
                SslMode::Require => PgSslMode::Require,
                SslMode::VerifyCa => PgSslMode::VerifyCa,
                SslMode::VerifyFull => PgSslMode::VerifyFull,
            });
        options = if host.socket().is_some() {
            options.socket(&host.name)
        } else {
            options.host(host.address.as_deref().unwrap_or(&host.name))
        };
        if let Some(password) = self.password(host) {
            options = options.password(&password);
        }
        if let RootCertificates::File(path) = &self.tls.root {
            options = options.ssl_root_cert(path);
        }
        if let Some((certificate, key)) = &self.tls.client {
            options = options.ssl_client_cert(certificate).ssl_client_key(key);
        }
        if let Some(text) = &self.options {
            options = options.options(server_options(text));
        }
        if let Some(capacity) = self.statement_cache {
            options = options.statement_cache_capacity(capacity);
        }
        // sqlx would log arguments, and a takeover that waits for a guard is not a slow statement.
        options.disable_statement_logging()
    }

    /// The address without password and parameters.
    fn display(&self) -> String {
        let (user, database) = (&self.user, &self.database);
        if let [host] = &self.hosts[..]
            && host.socket().is_some()
        {
            return format!("postgres:///{database}?host={}&user={user}", host.name);
        }
        let hosts: Vec<String> =
            self.hosts.iter().map(|host| format!("{}:{}", host.name, host.port)).collect();
        format!("postgres://{user}@{}/{database}", hosts.join(","))
    }
}

/// `-c name=value` and `--name=value`, as pairs.
fn server_options(text: &str) -> Vec<(String, String)> {
    let text = text.replace("-c ", "-c");
    let pair = |word: &str| {
        let word = word.strip_prefix("-c").or_else(|| word.strip_prefix("--"))?;
        word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    text.split_whitespace().filter_map(pair).collect()
}

impl Address {
    fn parse(text: &str, environment: &Environment<'_>) -> Result<Address, StoreError> {
        let text = text.trim();
        let given = if let Some(rest) =
            text.strip_prefix("postgres://").or_else(|| text.strip_prefix("postgresql://"))
        {
            url_parameters(rest)?
        } else if text.contains('=') {
            keywords(text)?
        } else {
            return Err(bad_address("it starts with neither postgres:// nor a keyword such as host="));
        };
        let mut parameters = Parameters::default();
        for (key, value) in given {
            parameters.put(&key, value)?;
        }
        parameters.resolve(environment)
    }
}

/// Supported parameters.
const HONOURED: &[&str] = &[
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "passfile",
    "application_name",
    "fallback_application_name",
    "options",
    "connect_timeout",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "service",
    "servicefile",
    "target_session_attrs",
    "load_balance_hosts",
    "tenure_sync_replication",
    "statement-cache-capacity",
];

/// Parameters that are accepted only with values that match the behaviour of this client.
const AS_IT_IS: &[(&str, &[&str])] = &[
    ("channel_binding", &["disable", "prefer"]),
    ("client_encoding", &["utf8", "utf-8", "UTF8", "UTF-8", "auto"]),
    ("gssencmode", &["disable", "prefer"]),
    ("sslcertmode", &["allow"]),
    ("sslcompression", &["0"]),
    ("sslnegotiation", &["postgres"]),
    ("sslsni", &["1"]),
    ("ssl_min_protocol_version", &["TLSv1", "TLSv1.1", "TLSv1.2"]),
    ("ssl_max_protocol_version", &["TLSv1.3"]),
];

/// Environment variables of libpq and their parameters.
const VARIABLES: &[(&str, &str)] = &[
    ("PGHOST", "host"),
    ("PGHOSTADDR", "hostaddr"),
    ("PGPORT", "port"),
    ("PGDATABASE", "dbname"),
    ("PGUSER", "user"),
    ("PGPASSWORD", "password"),
    ("PGPASSFILE", "passfile"),
    ("PGAPPNAME", "application_name"),
    ("PGOPTIONS", "options"),
    ("PGCONNECT_TIMEOUT", "connect_timeout"),
    ("PGSSLMODE", "sslmode"),
    ("PGSSLROOTCERT", "sslrootcert"),
    ("PGSSLCERT", "sslcert"),
    ("PGSSLKEY", "sslkey"),
    ("PGTARGETSESSIONATTRS", "target_session_attrs"),
    ("PGLOADBALANCEHOSTS", "load_balance_hosts"),
    ("PGCHANNELBINDING", "channel_binding"),
    ("PGCLIENTENCODING", "client_encoding"),
    ("PGGSSENCMODE", "gssencmode"),
    ("PGREQUIREAUTH", "require_auth"),
    ("PGREQUIREPEER", "requirepeer"),
    ("PGSSLCERTMODE", "sslcertmode"),
    ("PGSSLCRL", "sslcrl"),
    ("PGSSLCRLDIR", "sslcrldir"),
    ("PGSSLNEGOTIATION", "sslnegotiation"),
    ("PGSSLSNI", "sslsni"),
    ("PGSSLMINPROTOCOLVERSION", "ssl_min_protocol_version"),
    ("PGSSLMAXPROTOCOLVERSION", "ssl_max_protocol_version"),
];

/// The environment of this process, or of a test.
struct Environment<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    home: Option<PathBuf>,
}

impl Environment<'_> {
    fn of_process() -> Environment<'static> {
        Environment { variable: &|name| std::env::var(name).ok(), home: std::env::home_dir() }
    }
}

/// Parameters of an address; all are supported.
#[derive(Default)]
struct Parameters(BTreeMap<String, String>);

impl Parameters {
    /// Set a parameter; the last value counts.
    fn put(&mut self, key: &str, value: String) -> Result<(), StoreError> {
        check_parameter(key, &value)?;
        self.0.insert(key.to_owned(), value);
        Ok(())
    }

    /// Set a parameter that has no value yet.
    fn fill_in(&mut self, key: &str, value: String) -> Result<(), StoreError> {
        if self.0.contains_key(key) { Ok(()) } else { self.put(key, value) }
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        self.get(key).map(PathBuf::from)
    }

    fn resolve(mut self, environment: &Environment<'_>) -> Result<Address, StoreError> {
        let variable = |name: &str| (environment.variable)(name).filter(|value| !value.is_empty());
        if let Some(service) = self.get("service").map(str::to_owned).or_else(|| variable("PGSERVICE")) {
            let home = environment.home.as_ref().map(|home| home.join(".pg_service.conf"));
            let system = variable("PGSYSCONFDIR").map(|folder| Path::new(&folder).join("pg_service.conf"));
            let named = self.path("servicefile").or_else(|| variable("PGSERVICEFILE").map(PathBuf::from));
            let files: Vec<PathBuf> = [named.or(home), system].into_iter().flatten().collect();
            for (key, value) in service::parameters(&service, &files)? {
                self.fill_in(&key, value)?;
            }
        }
        for (name, key) in VARIABLES {
            if let Some(value) = variable(name) {
                self.fill_in(key, value)?;
            }
        }
        let user = match self.get("user") {
            Some(user) => user.to_owned(),
            None => variable("USER").or_else(|| variable("LOGNAME")).unwrap_or_else(|| "postgres".into()),
        };
        let passfile = self.path("passfile");
        let sync_replication = match self.get("tenure_sync_replication") {
            None | Some("off" | "false" | "0") => false,
            Some("on" | "true" | "1") => true,
            Some(other) => {
                return Err(bad_address(&format!("tenure_sync_replication is {other:?}; use on or off")));
            }
        };
        let config = Config {
            hosts: self.hosts()?,
            database: self.get("dbname").unwrap_or(&user).to_owned(),
            user,
            password: self.get("password").map(str::to_owned),
            passfile: passfile.or_else(|| environment.home.as_ref().map(|home| home.join(".pgpass"))),
            application_name: self
                .get("application_name")
                .or_else(|| self.get("fallback_application_name"))
                .unwrap_or("tenure")
                .to_owned(),
            options: self.get("options").map(str::to_owned),
            tls: self.tls()?,
            session: self.session()?,
            random_order: match self.get("load_balance_hosts") {
                None | Some("disable") => false,
                Some("random") => true,
                Some(_) => return Err(bad_value("load_balance_hosts", "disable or random")),
            },
            connect_timeout: self.connect_timeout()?,
            statement_cache: self
                .get("statement-cache-capacity")
                .map(|text| text.parse().map_err(|_| bad_value("statement-cache-capacity", "a number")))
                .transpose()?,
        };
        Ok(Address { display: config.display(), config, sync_replication })
    }

    fn hosts(&self) -> Result<Vec<Host>, StoreError> {
        let list = |key: &str| -> Vec<String> {
            self.get(key)
                .map_or_else(Vec::new, |text| text.split(',').map(|it| it.trim().to_owned()).collect())
        };
        let (names, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
        let count = names.len().max(addresses.len()).max(1);
        if !names.is_empty() && !addresses.is_empty() && names.len() != addresses.len() {
            return Err(bad_address("host and hostaddr have different numbers of hosts"));
        }
        if ports.len() > 1 && ports.len() != count {
            return Err(bad_address("the number of ports is neither one nor the number of hosts"));
        }
        let host = |n: usize| {
            let port = match ports.get(n).or_else(|| ports.first().filter(|_| ports.len() == 1)) {
                Some(text) if !text.is_empty() => {
                    let port = text.parse().ok().filter(|port| *port != 0);
                    port.ok_or_else(|| bad_address("a port is not a number from 1 to 65535"))?
                }
                _ => 5432,
            };
            let address = addresses.get(n).filter(|address| !address.is_empty()).cloned();
            let name = names.get(n).filter(|name| !name.is_empty()).cloned();
            let name = name.or_else(|| address.clone()).unwrap_or_else(|| default_host(port));
            if let Some(address) = &address
                && address.parse::<std::net::IpAddr>().is_err()
            {
                return Err(bad_address("hostaddr is not an IP address"));
            }
            Ok(Host { name, address, port })
        };
        (0..count).map(host).collect()
    }

    fn tls(&self) -> Result<Tls, StoreError> {
        let root = match self.get("sslrootcert") {
            None => RootCertificates::Default,
            Some("system") => RootCertificates::System,
            Some(path) => RootCertificates::File(path.into()),
        };
        let mode = match self.get("sslmode") {
            // As libpq: with the authorities of the system the host name must be verified.
            None if root == RootCertificates::System => SslMode::VerifyFull,
            None | Some("prefer") => SslMode::Prefer,
            Some("disable") => SslMode::Disable,
            Some("allow") => SslMode::Allow,
            Some("require") => SslMode::Require,
            Some("verify-ca") => SslMode::VerifyCa,
            Some("verify-full") => SslMode::VerifyFull,
            Some(_) => {
                let words = "disable, allow, prefer, require, verify-ca or verify-full";
                return Err(bad_value("sslmode", words));
            }
        };
        if root == RootCertificates::System && mode != SslMode::VerifyFull {
            return Err(bad_address("sslrootcert=system needs sslmode=verify-full"));
        }
        let client = match (self.path("sslcert"), self.path("sslkey")) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(bad_address("sslcert and sslkey must be set together")),
        };
        Ok(Tls { mode, root, client })
    }

    fn session(&self) -> Result<SessionAttrs, StoreError> {
        Ok(match self.get("target_session_attrs") {
            None | Some("any") => SessionAttrs::Any,
            Some("read-write") => SessionAttrs::ReadWrite,
            Some("read-only") => SessionAttrs::ReadOnly,
            Some("primary") => SessionAttrs::Primary,
            Some("standby") => SessionAttrs::Standby,
            Some("prefer-standby") => SessionAttrs::PreferStandby,
            Some(_) => {
                let words = "any, read-write, read-only, primary, standby or prefer-standby";
                return Err(bad_value("target_session_attrs", words));
            }
        })
    }

    /// In seconds, at least two as in libpq; zero means the maximum duration of a call.
    fn connect_timeout(&self) -> Result<Option<Duration>, StoreError> {
        let Some(text) = self.get("connect_timeout") else { return Ok(None) };
        let seconds: i64 = text.parse().map_err(|_| bad_value("connect_timeout", "a number of seconds"))?;
        Ok(Some(match u64::try_from(seconds) {
            Ok(0) | Err(_) => super::call_pool::CALL_MAX,
            Ok(seconds) => Duration::from_secs(seconds.max(2)),
        }))
    }
}

/// Reject an unsupported parameter.
fn check_parameter(key: &str, value: &str) -> Result<(), StoreError> {
    if HONOURED.contains(&key) {
        return Ok(());
    }
    // The error contains the parameter only if it looks like one: in a malformed address the password may be in its
    // position.
    let looks_like_a_name = |key: &str| {
        !key.is_empty() && key.len() < 40 && key.bytes().all(|b| b.is_ascii_lowercase() || b"_-".contains(&b))
    };
    match AS_IT_IS.iter().find(|(name, _)| *name == key) {
        Some((_, values)) if values.contains(&value) || value.is_empty() => Ok(()),
        Some((name, values)) => Err(unsupported(&format!(
            "the parameter {name} supports only {}; change or remove it",
            values.join(" or ")
        ))),
        None if looks_like_a_name(key) => Err(unsupported(&format!(
            "the parameter {key} is not supported and cannot be ignored; remove it"
        ))),
        None => Err(bad_address("the name of a parameter has invalid characters")),
    }
}

/// The default host on this machine.
fn default_host(port: u16) -> String {
    let folders = ["/var/run/postgresql", "/private/tmp", "/tmp"];
    let there = |folder: &&str| Path::new(folder).join(format!(".s.PGSQL.{port}")).exists();
    folders.iter().find(|folder| there(folder)).unwrap_or(&"localhost").to_string()
}

/// Parse `user:password@host:port,host:port/database?key=value&…`.
fn url_parameters(text: &str) -> Result<Vec<(String, String)>, StoreError> {
    let (text, query) = text.split_once('?').unwrap_or((text, ""));
    let (authority, database) = text.split_once('/').unwrap_or((text, ""));
    let (userinfo, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let mut parameters = Vec::new();
    let mut put = |key: &str, value: String| {
        if !value.is_empty() {
            parameters.push((key.to_owned(), value));
        }
    };
    let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    put("user", percent_decoded(user)?);
    put("password", percent_decoded(password)?);
    put("dbname", percent_decoded(database)?);
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for host in hosts.split(',') {
        let (name, port) = match host.strip_prefix('[') {
            Some(rest) => {
                let (name, after) =
                    rest.split_once(']').ok_or_else(|| bad_address("an IPv6 address has no ] after it"))?;
                (name, after.strip_prefix(':').unwrap_or(after))
            }
            None => host.rsplit_once(':').unwrap_or((host, "")),
        };
        names.push(percent_decoded(name)?);
        ports.push(port.to_owned());
    }
    if names.iter().any(|name| !name.is_empty()) {
        put("host", names.join(","));
    }
    if ports.iter().any(|port| !port.is_empty()) {
        put("port", ports.join(","));
    }
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| bad_address("a parameter has no value"))?;
        parameters.push((percent_decoded(key)?, percent_decoded(value)?));
    }
    Ok(parameters)
}

fn percent_decoded(text: &str) -> Result<String, StoreError> {
    let bad = || bad_address("a % is not followed by two hexadecimal digits of a UTF-8 text");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok()).ok_or_else(bad)?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| bad())?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

/// `host=localhost user=postgres password='it\'s'`.
fn keywords(text: &str) -> Result<Vec<(String, String)>, StoreError> {
    let mut parameters = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=').ok_or_else(|| bad_address("a keyword has no ="))?;
        let (value, after) = keyword_value(after.trim_start())?;
        parameters.push((key.trim().to_owned(), value));
        rest = after.trim_start();
    }
    Ok(parameters)
}

/// Parse one value, plain or quoted, in which a backslash escapes the next character. Returns the rest.
fn keyword_value(text: &str) -> Result<(String, &str), StoreError> {
    let quoted = text.starts_with('\'');
    let text = text.strip_prefix('\'').unwrap_or(text);
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            '\'' if quoted => return Ok((value, &text[at + 1..])),
            c if !quoted && c.is_whitespace() => return Ok((value, &text[at..])),
            c => value.push(c),
        }
    }
    if quoted { Err(bad_address("a quoted value is not closed")) } else { Ok((value, "")) }
}

/// `~/.pg_service.conf`: named sets of parameters.
mod service {
    use super::*;

    /// The parameters of a service, from the first file that defines it.
    pub(super) fn parameters(service: &str, files: &[PathBuf]) -> Result<Vec<(String, String)>, StoreError> {
        for file in files {
            let Ok(text) = std::fs::read_to_string(file) else { continue };
            if let Some(found) = section(&text, service) {
                return Ok(found);
            }
        }
        let files: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
        Err(bad_address(&format!("the service {service:?} is not defined in {}", files.join(" or "))))
    }

    pub(super) fn section(text: &str, service: &str) -> Option<Vec<(String, String)>> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let (mut found, mut inside) = (None, false);
        for line in lines {
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                inside = found.is_none() && name.trim() == service;
                if inside {
                    found = Some(Vec::new());
                }
            } else if let (true, Some((key, value))) = (inside, line.split_once('=')) {
                found.get_or_insert_default().push((key.trim().to_owned(), value.trim().to_owned()));
            }
        }
        found
    }
}

/// `~/.pgpass`: passwords by host, port, database and user.
mod passfile {
    use super::*;

    /// The password of the first line that matches. As in libpq, ignores a file that other users can read.
    pub(super) fn password(file: &Path, host: &str, port: u16, database: &str, user: &str) -> Option<String> {
        use std::os::unix::fs::PermissionsExt;
        let metadata = std::fs::metadata(file).ok().filter(|metadata| metadata.is_file())?;
        if metadata.permissions().mode() & 0o077 != 0 {
            let path = file.display();
            tracing::warn!(%path, "password file ignored: other users can access it; change its mode to 0600");
            return None;
        }
        let text = std::fs::read_to_string(file).ok()?;
        // libpq's name for the default socket.
        let host = if host == "/var/run/postgresql" || host == "/tmp" { "localhost" } else { host };
        find(&text, [host, &port.to_string(), database, user])
    }

    pub(super) fn find(text: &str, wanted: [&str; 4]) -> Option<String> {
        text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
            let mut fields = fields(line);
            let password = fields.pop().filter(|_| fields.len() == 4)?;
            let fits = fields.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted);
            fits.then_some(password)
        })
    }

    /// Fields separated by colons; a backslash escapes the next character. The password may contain colons.
    fn fields(line: &str) -> Vec<String> {
        let mut fields = vec![String::new()];
        let mut chars = line.chars();
        while let Some(c) = chars.next() {
            match c {
                ':' if fields.len() < 5 => fields.push(String::new()),
                '\\' => fields.last_mut().into_iter().for_each(|field| field.extend(chars.next())),
                c => fields.last_mut().into_iter().for_each(|field| field.push(c)),
            }
        }
        fields
    }
}

fn bad_value(key: &str, words: &str) -> StoreError {
    bad_address(&format!("{key} is not {words}"))
}

fn unsupported(why: &str) -> StoreError {
    StoreError::new(ErrorKind::Address, format!("unsupported PostgreSQL address: {why}"))
}

fn bad_address(why: &str) -> StoreError {
    StoreError::new(
        ErrorKind::Address,
        format!(
            "invalid PostgreSQL address: {why}; \
             use postgres://USER:PASSWORD@HOST:PORT/DATABASE or host=… user=… dbname=…"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &str) -> Option<String> {
        None
    }

    fn parse(text: &str) -> Result<Address, StoreError> {
        Address::parse(text, &Environment { variable: &nothing, home: None })
    }

    fn hosts(text: &str) -> Vec<String> {
        let config = parse(text).unwrap().config;
        config.hosts.iter().map(|host| format!("{}:{}", host.name, host.port)).collect()
    }

    proptest::proptest! {
        #[test]
        fn parsing_never_panics(text in r"(postgres(ql)?://|host=|user=')?[ -~é@:/?&=%,']{0,60}") {
            if let Err(error) = parse(&text) {
                proptest::prop_assert_eq!(error.kind, ErrorKind::Address);
            }
        }
    }

    #[test]
    fn an_address_is_shown_without_its_password() {
        let address = parse("postgres://app:s%40cret@db:6432/app?sslmode=disable").unwrap();
        assert_eq!(address.display, "postgres://app@db:6432/app");
        assert_eq!(address.config.password.as_deref(), Some("s@cret"));
        let shown = format!("{:?}", PostgresOptions::new("postgres://app:secret@db/app"));
        assert!(!shown.contains("secret"), "{shown}");
        let bad = [
            "postgres://app:sec/ret@db:x/app",
            "mysql://app:secret@db",
            "mysql://app:secret@db?x=1",
            "host='secret",
            "secret",
            "postgres://app@db/app?secret",
        ];
        for bad in bad {
            let error = parse(bad).err().unwrap();
            assert_eq!(error.kind, ErrorKind::Address);
            assert!(!error.message.contains("sec"), "{}", error.message);
        }
    }

    #[test]
    fn the_words_of_libpq_are_understood() {
        let text =
            "host=localhost user=postgres password='it\\'s & me' dbname = le port=5433 sslmode=disable";
        let address = parse(text).unwrap();
        assert_eq!(address.display, "postgres://postgres@localhost:5433/le");
        assert_eq!(address.config.password.as_deref(), Some("it's & me"));
        assert_eq!(address.config.tls.mode, SslMode::Disable);
        let socket = parse("host=/run/pg user=u dbname=d").unwrap();
        assert_eq!(socket.display, "postgres:///d?host=/run/pg&user=u");
        assert_eq!(socket.config.hosts[0].socket().unwrap(), Path::new("/run/pg/.s.PGSQL.5432"));
        assert_eq!(hosts("postgres://%2Frun%2Fpg/d"), ["/run/pg:5432"]);
        assert_eq!(hosts("postgres://u@[::1]:7/d"), ["::1:7"]);
    }

    #[test]
    fn the_address_can_require_synchronous_replication() {
        assert!(
            parse("postgres://db/app?tenure_sync_replication=on&sslmode=disable").unwrap().sync_replication
        );
        assert!(!parse("postgres://db/app?tenure_sync_replication=off").unwrap().sync_replication);
        assert!(parse("host=db tenure_sync_replication=on").unwrap().sync_replication);
        assert!(parse("postgres://db/app?tenure_sync_replication=maybe").is_err());
    }

    #[test]
    fn several_hosts_have_ports_of_their_own_or_one() {
        assert_eq!(hosts("postgres://u@a:1,b:2,c/d"), ["a:1", "b:2", "c:5432"]);
        assert_eq!(hosts("host=a,b port=1,2"), ["a:1", "b:2"]);
        assert_eq!(hosts("host=a,b port=7"), ["a:7", "b:7"]);
        assert_eq!(hosts("hostaddr=127.0.0.1,::1 port=7,8"), ["127.0.0.1:7", "::1:8"]);
        let both = parse("host=a,b hostaddr=127.0.0.1,127.0.0.2").unwrap();
        assert_eq!(both.config.hosts[1].name, "b");
        assert_eq!(both.config.hosts[1].address.as_deref(), Some("127.0.0.2"));
        assert_eq!(both.display, format!("postgres://{}@a:5432,b:5432/{0}", both.config.user));
        for bad in ["host=a,b port=1,2,3", "host=a,b hostaddr=127.0.0.1", "hostaddr=a", "host=a port=0"] {
            assert_eq!(parse(bad).err().unwrap().kind, ErrorKind::Address, "{bad}");
        }
    }

    /// Regression test: `channel_binding=require` was ignored, and the connection was opened without it.
    #[test]
    fn a_parameter_that_is_not_honoured_is_refused_by_name() {
        let refused = [
            ("channel_binding", "require"),
            ("gssencmode", "require"),
            ("require_auth", "scram-sha-256"),
            ("requirepeer", "postgres"),
            ("sslcrl", "/crl"),
            ("sslpassword", "x"),
            ("sslnegotiation", "direct"),
            ("ssl_min_protocol_version", "TLSv1.3"),
            ("client_encoding", "LATIN1"),
            ("keepalives_idle", "5"),
            ("replication", "database"),
            ("sslmoed", "verify-full"),
        ];
        for (key, value) in refused {
            for text in [format!("postgres://db/app?{key}={value}"), format!("host=db {key}={value}")] {
                let error = parse(&text).err().unwrap();
                assert_eq!(error.kind, ErrorKind::Address);
                assert!(error.message.contains(key), "{error}");
            }
        }
        let variable = |name: &str| (name == "PGCHANNELBINDING").then(|| "require".to_owned());
        let error =
            Address::parse("host=db", &Environment { variable: &variable, home: None }).err().unwrap();
        assert!(error.message.contains("channel_binding"), "{error}");
        for (key, values) in AS_IT_IS {
            for value in *values {
                parse(&format!("host=db {key}={value}")).unwrap();
            }
        }
        for bad in ["sslmode=maybe", "target_session_attrs=leader", "connect_timeout=soon", "sslcert=/c"] {
            assert!(parse(&format!("host=db {bad}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn kinds_of_sessions_and_timeouts_are_understood() {
        let session =
            |word: &str| parse(&format!("host=db target_session_attrs={word}")).unwrap().config.session;
        assert_eq!(session("any"), SessionAttrs::Any);
        assert_eq!(session("read-write"), SessionAttrs::ReadWrite);
        assert_eq!(session("read-only"), SessionAttrs::ReadOnly);
        assert_eq!(session("primary"), SessionAttrs::Primary);
        assert_eq!(session("standby"), SessionAttrs::Standby);
        assert_eq!(session("prefer-standby"), SessionAttrs::PreferStandby);
        let timeout = |seconds: &str| {
            parse(&format!("host=db connect_timeout={seconds}")).unwrap().config.connect_timeout.unwrap()
        };
        assert_eq!(timeout("7"), Duration::from_secs(7));
        assert_eq!(timeout("1"), Duration::from_secs(2));
        assert_eq!(timeout("0"), super::super::call_pool::CALL_MAX);
        assert_eq!(parse("host=db").unwrap().config.connect_timeout, None);
    }

    #[test]
    fn variables_fill_in_what_the_address_leaves_open() {
        let variable = |name: &str| {
            let value = match name {
                "PGHOST" => "elsewhere",
                "PGPORT" => "7",
                "PGUSER" => "me",
                "PGSSLMODE" => "disable",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let address = Address::parse("host=here", &Environment { variable: &variable, home: None }).unwrap();
        assert_eq!(address.display, "postgres://me@here:7/me");
        assert_eq!(address.config.tls.mode, SslMode::Disable);
    }

    #[test]
    fn a_service_and_a_passfile_are_read() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let services = folder.path().join("services");
        std::fs::write(
            &services,
            "# ours\n[other]\nhost=x\n[db]\nhost = a,b\nport=1\n\nuser=u\n[db]\nuser=v\n",
        )
        .unwrap();
        let passwords = folder.path().join("passwords");
        std::fs::write(&passwords, "# comment\n*:2:*:u:two\na:1:d\\:b:u:se\\\\c:ret\n").unwrap();
        let permit = |mode| {
            std::fs::set_permissions(&passwords, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        permit(0o600);
        let file = services.display().to_string();
        let variable = |name: &str| (name == "PGSERVICEFILE").then(|| file.clone());
        let environment = Environment { variable: &variable, home: None };
        let text = format!("service=db port=1,2 dbname=d:b passfile={}", passwords.display());
        let config = Address::parse(&text, &environment).unwrap().config;
        assert_eq!((config.user.as_str(), config.hosts.len(), config.hosts[1].port), ("u", 2, 2));
        assert_eq!(config.password(&config.hosts[0]).as_deref(), Some("se\\c:ret"));
        assert_eq!(config.password(&config.hosts[1]).as_deref(), Some("two"));
        permit(0o644);
        assert_eq!(config.password(&config.hosts[0]), None, "other users can read the file");
        let error = Address::parse("service=none", &environment).err().unwrap();
        assert!(error.message.contains("none"), "{error}");
        std::fs::write(&services, "[db]\nchannel_binding=require\n").unwrap();
        let error = Address::parse("service=db", &environment).err().unwrap();
        assert!(error.message.contains("channel_binding"), "{error}");
    }
}
