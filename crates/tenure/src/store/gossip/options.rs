//! Options of a gossip member.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tenure_core::port::{ErrorKind, StoreError};
use tenure_core::rules::soft::GossipTiming;

use super::limits;
use crate::runtime;
use crate::secrets::{self, Secrets};
use crate::store::host_port::{self, is_here};

const USAGE: &str = "use gossip:HOST:PORT for the first member, gossip:HOST:PORT?seed=HOST:PORT,HOST:PORT&cluster=NAME to join";

/// Environment variable with the secret of the cluster, unless the secret is in a file.
pub const SECRET_ENV: &str = "TENURE_GOSSIP_SECRET";

/// Default port.
const PORT: u16 = 8370;

/// Options for joining a cluster.
///
/// ```
/// use tenure::store::gossip::GossipOptions;
///
/// let options: GossipOptions = "gossip:10.0.0.3:8370?seed=10.0.0.1:8370,10.0.0.2:8370&cluster=prod".parse()?;
/// assert_eq!(options.seeds.len(), 2);
/// # Ok::<_, tenure::port::StoreError>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct GossipOptions {
    /// Listen address. Port 0 selects a free port.
    pub bind: String,
    /// Address for other members, if it differs from the listen address.
    pub advertise: Option<String>,
    /// Host and port of the members to contact first. Host names are resolved again from time to time.
    pub seeds: Vec<String>,
    /// Name of the cluster; default `tenure`. Members of clusters with different names ignore each other.
    pub cluster: String,
    /// Name of this member; default is the process name. Need not be unique.
    pub name: String,
    /// Metadata that this member publishes.
    pub metadata: BTreeMap<String, String>,
    /// File with the secret, instead of `$TENURE_GOSSIP_SECRET` and the file named by `$TENURE_GOSSIP_SECRET_FILE`.
    /// With several secrets, one per line, the first encrypts and all are accepted.
    pub secret_file: Option<PathBuf>,
    /// The secret itself, instead of a file or variable; several as in a file.
    pub secret: Option<String>,
    /// Timing of gossip.
    pub timing: GossipTiming,
    /// Watch only: an observer is not listed among the members.
    pub observer: bool,
}

impl GossipOptions {
    /// Create options for a member with the given listen address and no seeds.
    pub fn new(bind: impl Into<String>) -> Self {
        GossipOptions {
            bind: bind.into(),
            advertise: None,
            seeds: Vec::new(),
            cluster: "tenure".into(),
            name: runtime::process_name(),
            metadata: BTreeMap::new(),
            secret_file: None,
            secret: None,
            timing: GossipTiming::default(),
            observer: false,
        }
    }

    /// Add a member to contact first.
    #[must_use]
    pub fn seed(mut self, seed: impl Into<String>) -> Self {
        self.seeds.push(seed.into());
        self
    }

    /// Set the name of the cluster.
    #[must_use]
    pub fn cluster(mut self, cluster: impl Into<String>) -> Self {
        self.cluster = cluster.into();
        self
    }

    /// Set the name of this member.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Add published metadata.
    #[must_use]
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// Set the secret.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// Set the timing of gossip.
    #[must_use]
    pub fn timing(mut self, timing: GossipTiming) -> Self {
        self.timing = timing;
        self
    }

    /// Watch only, without being listed among the members.
    #[must_use]
    pub fn observer(mut self) -> Self {
        self.observer = true;
        self
    }

    /// Become a temporary observer: listen on a free port and use the original listen address as a seed.
    #[must_use]
    pub fn temporary_observer(mut self) -> Self {
        let (host, port) = self.bind.rsplit_once(':').unwrap_or((&self.bind, "0"));
        let anywhere = matches!(host, "0.0.0.0" | "[::]");
        let bind = format!("{host}:0");
        if !anywhere && port != "0" {
            self.seeds.push(self.bind);
        }
        (self.bind, self.advertise) = (bind, None);
        self.observer()
    }

    /// Read the secrets from the options, the file or the environment. Members on several machines require a secret.
    pub(super) fn read_secrets(&self, own: SocketAddr) -> Result<Secrets, StoreError> {
        let secrets = match &self.secret {
            Some(secret) => Secrets::parse(secret)?,
            None => Secrets::read(self.secret_file.as_deref(), SECRET_ENV)?,
        };
        let far = self.seeds.iter().find(|seed| !is_here(seed));
        let near = own.ip().is_loopback() && far.is_none();
        if !near && !secrets.are_long_enough() {
            let message = format!(
                "gossip between machines needs a secret; {}, or secret_file=PATH",
                secrets::remedy(SECRET_ENV)
            );
            return Err(StoreError::new(ErrorKind::Denied, message));
        }
        Ok(secrets)
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        limits::text("the cluster's name", &self.cluster, limits::NAME_MAX)?;
        limits::text("the member's name", &self.name, limits::NAME_MAX)?;
        for seed in &self.seeds {
            checked_address(seed)?;
        }
        for (key, value) in &self.metadata {
            limits::entry(key, value)?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for GossipOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GossipOptions")
            .field("bind", &self.bind)
            .field("seeds", &self.seeds)
            .field("cluster", &self.cluster)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl FromStr for GossipOptions {
    type Err = StoreError;

    fn from_str(url: &str) -> Result<Self, StoreError> {
        let rest = url.strip_prefix("gossip:").unwrap_or(url);
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (bind, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options = GossipOptions::new(with_port(bind)?);
        let (mut round, mut silence_limit, mut hold_down) = (None, None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("seed" | "seeds", list)) => {
                    for seed in list.split(',').filter(|seed| !seed.is_empty()) {
                        options.seeds.push(with_port(seed)?);
                    }
                }
                Some(("cluster", name)) => options.cluster = name.into(),
                Some(("name", name)) => options.name = name.into(),
                Some(("advertise", at)) => options.advertise = Some(with_port(at)?),
                Some(("secret_file", path)) => options.secret_file = Some(path.into()),
                Some(("round", time)) => round = Some(duration(time)?),
                Some(("silence_limit", time)) => silence_limit = Some(duration(time)?),
                Some(("hold_down", time)) => hold_down = Some(duration(time)?),
                Some(("secret", _)) => {
                    return Err(invalid(format!(
                        "a URL is visible to others and must not contain a secret; set ${SECRET_ENV}"
                    )));
                }
                _ => return Err(invalid(format!("unknown parameter {pair:?}"))),
            }
        }
        let timing = options.timing;
        let round = round.unwrap_or(timing.round());
        // A changed round scales the other durations that are not set.
        let scaled = |time: Duration| time.mul_f64(round.as_secs_f64() / timing.round().as_secs_f64());
        options.timing = GossipTiming::new(
            round,
            silence_limit.unwrap_or_else(|| scaled(timing.silence_limit())),
            hold_down.unwrap_or_else(|| scaled(timing.hold_down())),
        )
        .map_err(invalid)?;
        options.check()?;
        Ok(options)
    }
}

fn with_port(text: &str) -> Result<String, StoreError> {
    let without_port = text.parse::<IpAddr>().is_ok() || !text.contains(':');
    match text {
        "" => checked_address(&format!("0.0.0.0:{PORT}")),
        _ if without_port && text.contains(':') => checked_address(&format!("[{text}]:{PORT}")),
        _ if without_port => checked_address(&format!("{text}:{PORT}")),
        _ => checked_address(text),
    }
}

fn checked_address(text: &str) -> Result<String, StoreError> {
    host_port::checked(text).map_err(invalid)
}

/// Parse `250ms` or `3s`.
fn duration(text: &str) -> Result<Duration, StoreError> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number = number.parse::<u64>().ok();
    match (number, unit) {
        (Some(number), "ms") => Ok(Duration::from_millis(number)),
        (Some(number), "s") => Ok(Duration::from_secs(number)),
        _ => Err(invalid(format!("{text:?} is not a duration; write 250ms or 3s"))),
    }
}

fn invalid(message: impl std::fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Address, format!("{message}; {USAGE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_sets_address_seeds_and_timing() {
        let options: GossipOptions =
            "gossip:10.0.0.3?seed=10.0.0.1,b:9&seed=[::1]:5&cluster=prod&name=c&round=100ms".parse().unwrap();
        assert_eq!(options.bind, "10.0.0.3:8370");
        assert_eq!(options.seeds, ["10.0.0.1:8370", "b:9", "[::1]:5"]);
        assert_eq!((options.cluster.as_str(), options.name.as_str()), ("prod", "c"));
        assert_eq!(options.timing.silence_limit(), GossipTiming::default().silence_limit() / 2);
        assert_eq!("gossip:".parse::<GossipOptions>().unwrap().bind, "0.0.0.0:8370");
    }

    #[test]
    fn an_invalid_url_is_rejected_with_the_usage() {
        for url in [
            "gossip:a:b",
            "gossip:a:1?seed=:1",
            "gossip:a:1?seeds",
            "gossip:a:1?secret=open",
            "gossip:a:1?round=1",
            "gossip:a:1?round=1s&silence_limit=2s",
            "gossip:a:1?colour=red",
        ] {
            let error = url.parse::<GossipOptions>().expect_err(url);
            assert!(
                error.kind == ErrorKind::Address && error.message.contains("gossip:HOST"),
                "{url}: {error}"
            );
        }
    }

    #[test]
    fn a_secret_is_required_between_machines() {
        let near: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let far: SocketAddr = "10.0.0.1:1".parse().unwrap();
        let options = GossipOptions::new("a:1").secret("");
        assert!(options.read_secrets(near).is_ok());
        assert_eq!(options.read_secrets(far).unwrap_err().kind, ErrorKind::Denied);
        assert!(options.clone().seed("10.0.0.2:1").read_secrets(near).is_err());
        assert!(options.secret("sixteen characters").read_secrets(far).is_ok());
    }
}
