//! Where a member listens, whom it knows, and what it is called.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tenure_core::port::{StoreError, Trouble};
use tenure_core::soft::Pace;

use super::limits;
use crate::backend::place::{self, is_here};
use crate::runtime;
use crate::secrets::{self, Secrets};

const FORM: &str =
    "give gossip:HOST:PORT to be the first, gossip:HOST:PORT?seed=HOST:PORT,HOST:PORT&cluster=NAME to join";

/// What the secret of a cluster is read from, unless it is in a file.
pub const SECRET_ENV: &str = "TENURE_GOSSIP_SECRET";

/// The port that stands for one that is not named.
const PORT: u16 = 8370;

/// How to join a cluster.
///
/// ```
/// use tenure::backend::gossip::GossipOptions;
///
/// let options: GossipOptions = "gossip:10.0.0.3:8370?seed=10.0.0.1:8370,10.0.0.2:8370&cluster=prod".parse()?;
/// assert_eq!(options.seeds.len(), 2);
/// # Ok::<_, tenure::port::StoreError>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct GossipOptions {
    /// Where to listen. Port 0 is any that is free.
    pub bind: String,
    /// Where others reach us, if that is another address.
    pub advertise: Option<String>,
    /// Members that are asked first: host and port each. Names are looked up again from time to time.
    pub seeds: Vec<String>,
    /// Members of clusters with different names do not hear each other; `tenure` unless set.
    pub cluster: String,
    /// What people call this member; the process's name unless set. Need not be unique.
    pub name: String,
    /// What people, or programs, want to know of this member.
    pub metadata: BTreeMap<String, String>,
    /// A file with the secret, instead of `$TENURE_GOSSIP_SECRET` and the file that `$TENURE_GOSSIP_SECRET_FILE` names. With several, one in each
    /// line, the first seals what is sent and all are accepted.
    pub secret_file: Option<PathBuf>,
    /// The secret itself, instead of any of these; with several, as in a file.
    pub secret: Option<String>,
    /// How fast gossip goes.
    pub pace: Pace,
    /// Only watches: it is not shown among the members.
    pub guest: bool,
}

impl GossipOptions {
    /// A member that listens here, and knows nobody.
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
            pace: Pace::default(),
            guest: false,
        }
    }

    /// Adds a member that is asked first.
    #[must_use]
    pub fn seed(mut self, seed: impl Into<String>) -> Self {
        self.seeds.push(seed.into());
        self
    }

    /// Sets the cluster's name.
    #[must_use]
    pub fn cluster(mut self, cluster: impl Into<String>) -> Self {
        self.cluster = cluster.into();
        self
    }

    /// Sets what people call this member.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds something that is to be known of this member.
    #[must_use]
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// Sets the secret.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// Sets how fast gossip goes.
    #[must_use]
    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Only watches.
    #[must_use]
    pub fn guest(mut self) -> Self {
        self.guest = true;
        self
    }

    /// As somebody who only looks: on a free port, and asking also who is at the address itself.
    #[must_use]
    pub fn visiting(mut self) -> Self {
        let (host, port) = self.bind.rsplit_once(':').unwrap_or((&self.bind, "0"));
        let anywhere = matches!(host, "0.0.0.0" | "[::]");
        let bind = format!("{host}:0");
        if !anywhere && port != "0" {
            self.seeds.push(self.bind);
        }
        (self.bind, self.advertise) = (bind, None);
        self.guest()
    }

    /// The secrets: given, in the file, or in the environment. Between machines there must be one.
    pub(super) fn read_secrets(&self, own: SocketAddr) -> Result<Secrets, StoreError> {
        let secrets = match &self.secret {
            Some(secret) => Secrets::parse(secret)?,
            None => Secrets::read(self.secret_file.as_deref(), SECRET_ENV)?,
        };
        let far = self.seeds.iter().find(|seed| !is_here(seed));
        let near = own.ip().is_loopback() && far.is_none();
        if !near && !secrets.are_long_enough() {
            let told = format!(
                "members speak between machines only under a secret that others do not know; {}, or secret_file=PATH",
                secrets::remedy(SECRET_ENV)
            );
            return Err(StoreError::new(Trouble::Denied, told));
        }
        Ok(secrets)
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        limits::text("the cluster's name", &self.cluster, limits::NAME_MAX)?;
        limits::text("the member's name", &self.name, limits::NAME_MAX)?;
        for seed in &self.seeds {
            place(seed)?;
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
        let (mut round, mut patience, mut hold_down) = (None, None, None);
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
                Some(("patience", time)) => patience = Some(duration(time)?),
                Some(("hold_down", time)) => hold_down = Some(duration(time)?),
                Some(("secret", _)) => {
                    return Err(refused(format!(
                        "a secret does not belong into an address, which others can see; set ${SECRET_ENV}"
                    )));
                }
                _ => return Err(refused(format!("{pair:?} says nothing about a cluster"))),
            }
        }
        let pace = options.pace;
        let round = round.unwrap_or(pace.round());
        // Who changes only the round wants everything faster, or slower.
        let scaled = |time: Duration| time.mul_f64(round.as_secs_f64() / pace.round().as_secs_f64());
        options.pace = Pace::new(
            round,
            patience.unwrap_or_else(|| scaled(pace.patience())),
            hold_down.unwrap_or_else(|| scaled(pace.hold_down())),
        )
        .map_err(refused)?;
        options.check()?;
        Ok(options)
    }
}

fn with_port(text: &str) -> Result<String, StoreError> {
    let bare = text.parse::<IpAddr>().is_ok() || !text.contains(':');
    match text {
        "" => place(&format!("0.0.0.0:{PORT}")),
        _ if bare && text.contains(':') => place(&format!("[{text}]:{PORT}")),
        _ if bare => place(&format!("{text}:{PORT}")),
        _ => place(text),
    }
}

fn place(text: &str) -> Result<String, StoreError> {
    place::checked(text).map_err(refused)
}

/// `250ms` or `3s`.
fn duration(text: &str) -> Result<Duration, StoreError> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number = number.parse::<u64>().ok();
    match (number, unit) {
        (Some(number), "ms") => Ok(Duration::from_millis(number)),
        (Some(number), "s") => Ok(Duration::from_secs(number)),
        _ => Err(refused(format!("{text:?} is no time; say 250ms or 3s"))),
    }
}

fn refused(message: impl std::fmt::Display) -> StoreError {
    StoreError::new(Trouble::Address, format!("{message}; {FORM}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_where_and_with_whom() {
        let options: GossipOptions =
            "gossip:10.0.0.3?seed=10.0.0.1,b:9&seed=[::1]:5&cluster=prod&name=c&round=100ms".parse().unwrap();
        assert_eq!(options.bind, "10.0.0.3:8370");
        assert_eq!(options.seeds, ["10.0.0.1:8370", "b:9", "[::1]:5"]);
        assert_eq!((options.cluster.as_str(), options.name.as_str()), ("prod", "c"));
        assert_eq!(options.pace.patience(), Pace::default().patience() / 2);
        assert_eq!("gossip:".parse::<GossipOptions>().unwrap().bind, "0.0.0.0:8370");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_right_form() {
        for url in [
            "gossip:a:b",
            "gossip:a:1?seed=:1",
            "gossip:a:1?seeds",
            "gossip:a:1?secret=open",
            "gossip:a:1?round=1",
            "gossip:a:1?round=1s&patience=2s",
            "gossip:a:1?colour=red",
        ] {
            let error = url.parse::<GossipOptions>().expect_err(url);
            assert!(
                error.kind == Trouble::Address && error.message.contains("gossip:HOST"),
                "{url}: {error}"
            );
        }
    }

    #[test]
    fn between_machines_there_must_be_a_secret() {
        let near: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let far: SocketAddr = "10.0.0.1:1".parse().unwrap();
        let options = GossipOptions::new("a:1").secret("");
        assert!(options.read_secrets(near).is_ok());
        assert_eq!(options.read_secrets(far).unwrap_err().kind, Trouble::Denied);
        assert!(options.clone().seed("10.0.0.2:1").read_secrets(near).is_err());
        assert!(options.secret("sixteen characters").read_secrets(far).is_ok());
    }
}
