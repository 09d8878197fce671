//! How to reach the server: addresses in, connect options out, the password never shown.

use std::fmt;
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;
use tenure_core::port::{StoreError, Trouble};

use super::error::explain;
use crate::backend::migrations::Schema;

/// How to use a PostgreSQL server as a store.
///
/// ```
/// use tenure::backend::postgres::PostgresOptions;
///
/// let mut options = PostgresOptions::new("postgres://app:secret@db.example/app?tenure_strict=on");
/// options.direct_url = Some("postgres://app:secret@primary.example/app".into());
/// assert!(!format!("{options:?}").contains("secret"));
/// ```
#[derive(Clone)]
pub struct PostgresOptions {
    /// Where the server or its pooler is: `postgres://user:password@host:port/database?sslmode=verify-full`, or libpq's
    /// `host=… user=… password=… dbname=…`. `tenure_strict=on` in it sets [`strict`](Self::strict).
    pub url: String,
    /// Where the server itself is, if `url` is a pooler's. `LISTEN` and take-over mode `connection` use it.
    pub direct_url: Option<String>,
    /// Refuse to count a grant or a beat that no synchronous standby has.
    pub strict: bool,
    /// The most connections for calls other than beats, which have their own.
    pub max_connections: u32,
    /// How long making one connection may take.
    pub connect_timeout: Duration,
    /// For tests: act as a program that was built for another schema.
    #[doc(hidden)]
    pub schema: Schema,
}

impl PostgresOptions {
    /// The defaults for this address: not strict, four connections, five seconds to connect.
    pub fn new(url: impl Into<String>) -> Self {
        PostgresOptions {
            url: url.into(),
            direct_url: None,
            strict: false,
            max_connections: 4,
            connect_timeout: Duration::from_secs(5),
            schema: super::migrate::SCHEMA,
        }
    }

    pub(super) fn address(&self) -> Result<Address, StoreError> {
        Address::parse(&self.url)
    }

    pub(super) fn direct_address(&self) -> Result<Address, StoreError> {
        Address::parse(self.direct_url.as_deref().unwrap_or(&self.url))
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place =
            |address: Result<Address, StoreError>| address.map_or("?".into(), |address| address.place);
        f.debug_struct("PostgresOptions")
            .field("url", &place(self.address()))
            .field("direct_url", &self.direct_url.as_ref().map(|_| place(self.direct_address())))
            .field("strict", &self.strict)
            .field("max_connections", &self.max_connections)
            .field("connect_timeout", &self.connect_timeout)
            .finish()
    }
}

/// An address, understood.
pub(super) struct Address {
    pub(super) options: PgConnectOptions,
    /// The address as people may see it.
    pub(super) place: String,
    /// Whether it asks for strict mode.
    pub(super) strict: bool,
}

impl Address {
    fn parse(text: &str) -> Result<Address, StoreError> {
        let text = text.trim();
        let url = if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            text.to_owned()
        } else if text.contains('=') {
            url_of_keywords(text)?
        } else {
            return Err(bad_address("it begins with neither postgres:// nor a keyword such as host="));
        };
        let (url, strict) = without_own_parameters(&url)?;
        let mut options: PgConnectOptions = url.parse().map_err(|error| explain(&error, ""))?;
        if options.get_application_name().is_none() {
            options = options.application_name("tenure");
        }
        // Statements are logged with their arguments, and a take that waits for a guard is not a slow statement.
        let options = options.disable_statement_logging();
        Ok(Address { place: place(&options), options, strict })
    }
}

/// The address without password and parameters.
fn place(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or(options.get_username());
    let user = options.get_username();
    match options.get_socket() {
        Some(socket) => format!("postgres:///{database}?host={}&user={user}", socket.display()),
        None => format!("postgres://{user}@{}:{}/{database}", options.get_host(), options.get_port()),
    }
}

/// Takes the parameters out that are ours and that the driver does not know.
fn without_own_parameters(url: &str) -> Result<(String, bool), StoreError> {
    let Some((base, query)) = url.split_once('?') else { return Ok((url.into(), false)) };
    let mut strict = false;
    let mut kept = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("tenure_strict", "on" | "true" | "1")) => strict = true,
            Some(("tenure_strict", "off" | "false" | "0")) => strict = false,
            Some(("tenure_strict", other)) => {
                return Err(bad_address(&format!("tenure_strict is {other:?} and not on or off")));
            }
            _ => kept.push(pair),
        }
    }
    Ok((if kept.is_empty() { base.into() } else { format!("{base}?{}", kept.join("&")) }, strict))
}

/// Keywords of libpq that the driver knows, and ours.
const KEYWORDS: [&str; 14] = [
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "tenure_strict",
    "statement-cache-capacity",
];

/// `host=localhost user=postgres password='it''s'` as a URL.
fn url_of_keywords(text: &str) -> Result<String, StoreError> {
    let mut parameters = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=').ok_or_else(|| bad_address("a keyword has no = after it"))?;
        let (value, after) = keyword_value(after.trim_start())?;
        let key = key.trim();
        if KEYWORDS.contains(&key) {
            parameters.push(format!("{key}={}", percent_encoded(&value)));
        } else {
            tracing::debug!(key, "a connection keyword is not known here and is left out");
        }
        rest = after.trim_start();
    }
    Ok(format!("postgres://?{}", parameters.join("&")))
}

/// One value, plain or in quotes, with backslash before a character that is meant literally; and what follows it.
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
    if quoted { Err(bad_address("a quoted value has no end")) } else { Ok((value, "")) }
}

fn percent_encoded(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn bad_address(why: &str) -> StoreError {
    StoreError::new(
        Trouble::Address,
        format!(
            "this is not an address of a PostgreSQL server: {why}; \
             give postgres://USER:PASSWORD@HOST:PORT/DATABASE or host=… user=… dbname=…"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn no_address_is_too_much(text in r"(postgres(ql)?://|host=|user=')?[ -~é@:/?&=%,']{0,60}") {
            if let Err(error) = Address::parse(&text) {
                proptest::prop_assert_eq!(error.kind, Trouble::Address);
            }
        }
    }

    #[test]
    fn an_address_is_shown_without_its_password() {
        let address = Address::parse("postgres://app:s%40cret@db:6432/app?sslmode=disable").unwrap();
        assert_eq!(address.place, "postgres://app@db:6432/app");
        let shown = format!("{:?}", PostgresOptions::new("postgres://app:secret@db/app"));
        assert!(!shown.contains("secret"), "{shown}");
        for bad in ["postgres://app:sec/ret@db:x/app", "mysql://app:secret@db", "host='secret", "secret"] {
            let error = Address::parse(bad).err().unwrap();
            assert_eq!(error.kind, Trouble::Address);
            assert!(!error.message.contains("sec"), "{}", error.message);
        }
    }

    #[test]
    fn the_words_of_libpq_are_understood() {
        let text =
            "host=localhost user=postgres password='it\\'s & me' dbname = le port=5433 sslmode=disable x=1";
        let address = Address::parse(text).unwrap();
        assert_eq!(address.place, "postgres://postgres@localhost:5433/le");
        assert!(address.options.to_url_lossy().as_str().contains("it%27s%20%26%20me"));
        let socket = Address::parse("host=/run/pg user=u dbname=d").unwrap();
        assert_eq!(socket.place, "postgres:///d?host=/run/pg&user=u");
    }

    #[test]
    fn strict_mode_can_be_asked_for_in_the_address() {
        assert!(Address::parse("postgres://db/app?tenure_strict=on&sslmode=disable").unwrap().strict);
        assert!(!Address::parse("postgres://db/app?tenure_strict=off").unwrap().strict);
        assert!(Address::parse("host=db tenure_strict=on").unwrap().strict);
        assert!(Address::parse("postgres://db/app?tenure_strict=maybe").is_err());
    }
}
