//! Which store, and how it is opened.

use std::sync::Arc;

use tenure::backend::gossip::GossipOptions;
use tenure::backend::{self, StoreOptions};
use tenure::port::{Backend, GroupKey, PoolKey, QueueKey, ScheduleKey, Takeover, TopicKey};
use tenure::{ElectionKey, ElectorBuilder, Tenure, TenureBuilder};

use crate::args::{Global, Standing, TakeoverMode};
use crate::exit::Failure;

/// The store that `--store`, `$TENURE_STORE` or `$DATABASE_URL` names, in this order.
pub(crate) fn configured_store(global: &Global) -> Option<String> {
    global.store.clone().or_else(|| std::env::var("DATABASE_URL").ok()).filter(|url| !url.is_empty())
}

/// The options of `--store`, or of what stands in its place.
pub(crate) fn options(global: &Global) -> Result<StoreOptions, Failure> {
    // The embedded default: one file for each user, wherever the command is typed.
    let url = configured_store(global).unwrap_or_else(|| "sqlite:".to_owned());
    Ok(StoreOptions {
        url,
        direct_url: global.direct_url.clone(),
        strict: global.strict,
        elect: global.elect.clone().filter(|url| !url.is_empty()),
        cluster_secret_file: global.cluster_secret_file.clone(),
        ..StoreOptions::default()
    })
}

pub(crate) async fn open(global: &Global) -> Result<Arc<dyn Backend>, Failure> {
    Ok(backend::open(&options(global)?).await?)
}

/// The options of a cluster by gossip whose address stands in the place of a store.
pub(crate) fn gossip(global: &Global, url: &str) -> Result<GossipOptions, Failure> {
    let mut options: GossipOptions = url.parse()?;
    options.secret_file = options.secret_file.or_else(|| global.cluster_secret_file.clone());
    Ok(options)
}

pub(crate) fn key(global: &Global, name: &str) -> Result<ElectionKey, Failure> {
    Ok(ElectionKey::new(global.namespace.parse()?, name.parse()?))
}

pub(crate) fn queue(global: &Global, name: &str) -> Result<QueueKey, Failure> {
    Ok(QueueKey::new(global.namespace.parse()?, name.parse()?))
}

pub(crate) fn pool(global: &Global, name: &str) -> Result<PoolKey, Failure> {
    Ok(PoolKey::new(global.namespace.parse()?, name.parse()?))
}

pub(crate) fn topic(global: &Global, name: &str) -> Result<TopicKey, Failure> {
    Ok(TopicKey::new(global.namespace.parse()?, name.parse()?))
}

pub(crate) fn group(global: &Global, topic: &str, name: &str) -> Result<GroupKey, Failure> {
    Ok(GroupKey::new(self::topic(global, topic)?, name.parse()?))
}

pub(crate) fn schedule(global: &Global, name: &str) -> Result<ScheduleKey, Failure> {
    Ok(ScheduleKey::new(global.namespace.parse()?, name.parse()?))
}

/// A session for somebody who leads nothing and has no command: to wait for tasks and resources.
pub(crate) async fn visitor(global: &Global) -> Result<Tenure, Failure> {
    Ok(builder(global)?.open().await?)
}

/// A session in the store that the arguments name.
pub(crate) fn builder(global: &Global) -> Result<TenureBuilder, Failure> {
    Ok(of_options(options(global)?))
}

fn of_options(options: StoreOptions) -> TenureBuilder {
    let mut builder = Tenure::builder().url(options.url).strict(options.strict);
    if let Some(url) = options.direct_url {
        builder = builder.direct_url(url);
    }
    if let Some(url) = options.elect {
        builder = builder.elect(url);
    }
    if let Some(file) = options.cluster_secret_file {
        builder = builder.cluster_secret_file(file);
    }
    builder
}

/// A session with the timing of a candidate. Names are checked before anything is opened.
pub(crate) async fn session(global: &Global, name: &str, standing: &Standing) -> Result<Tenure, Failure> {
    key(global, name)?;
    let lease = standing.lease.unwrap_or(tenure::Timing::default().lease());
    let timing = tenure::Timing::new(lease, standing.beat).map_err(tenure::Error::from)?;
    check_deadline(standing, &timing)?;
    open_session(options(global)?, standing).await
}

/// A session in the store to which the candidate moves, or from which it comes.
pub(crate) async fn other_session(global: &Global, standing: &Standing) -> Result<Option<Tenure>, Failure> {
    let Some(url) = standing.and_store.clone().filter(|url| !url.is_empty()) else { return Ok(None) };
    let first = options(global)?;
    if first.url == url {
        return Err(Failure::usage("--and-store is --store: leave it out, or name the other one"));
    }
    let cluster_secret_file = first.cluster_secret_file;
    let options = StoreOptions { url, strict: first.strict, cluster_secret_file, ..StoreOptions::default() };
    open_session(options, standing).await.map(Some)
}

async fn open_session(options: StoreOptions, standing: &Standing) -> Result<Tenure, Failure> {
    let elects = options.elect.as_ref().unwrap_or(&options.url);
    if standing.takeover == TakeoverMode::Connection && !is_postgres(elects) {
        return Err(Failure::usage("--takeover connection needs PostgreSQL; elsewhere leave it out"));
    }
    let takeover = match standing.takeover {
        TakeoverMode::Lease => Takeover::Lease,
        TakeoverMode::Connection => Takeover::Connection,
    };
    let mut builder = of_options(options).takeover(takeover);
    if let Some(lease) = standing.lease {
        builder = builder.lease(lease);
    }
    if let Some(id) = &standing.id {
        builder = builder.name(id);
    }
    if let Some(beat) = standing.beat {
        builder = builder.beat(beat);
    }
    let tenure = builder.open().await?;
    // The address may have its own idea of the lease.
    check_deadline(standing, &tenure.timing())?;
    Ok(tenure)
}

/// client-go's third time is not ours to choose: a beat is trusted for two thirds of the lease. Who wants to stop sooner wants a shorter lease.
fn check_deadline(standing: &Standing, timing: &tenure::Timing) -> Result<(), Failure> {
    match standing.renew_deadline {
        Some(deadline) if deadline < timing.trust() => Err(Failure::usage(format!(
            "--renew-deadline {deadline:?} is less than two thirds of the lease, {:?}, which is how long a leader goes on without a beat that \
             counts; shorten the lease: --lease-duration {:?}",
            timing.trust(),
            deadline * 3 / 2
        ))),
        _ => Ok(()),
    }
}

/// A candidate as the arguments describe it.
pub(crate) fn candidate(tenure: &Tenure, global: &Global, name: &str, standing: &Standing) -> ElectorBuilder {
    let builder = tenure
        .elector(name)
        .namespace(&global.namespace)
        .priority(standing.priority)
        .slots(standing.slots)
        .capabilities(standing.capabilities.clone())
        .requires(standing.requires.clone())
        .metadata("version", env!("CARGO_PKG_VERSION"));
    standing.metadata.iter().fold(builder, |builder, (key, value)| builder.metadata(key, value))
}

/// Whether an address leads to PostgreSQL, in any of the forms that it is written in.
pub(crate) fn is_postgres(url: &str) -> bool {
    let words = ["postgres:", "postgresql:", "host=", "user=", "dbname=", "port="];
    words.iter().any(|word| url.starts_with(word))
}
