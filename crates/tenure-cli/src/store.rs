//! Which store, and how it is opened.

use std::sync::Arc;

use tenure::backend::gossip::GossipOptions;
use tenure::backend::{self, StoreOptions};
use tenure::port::{Backend, GroupKey, PoolKey, QueueKey, ScheduleKey, Takeover, TopicKey};
use tenure::{ElectionKey, ElectorBuilder, Tenure, TenureBuilder};

use crate::args::{Global, Standing, TakeoverMode};
use crate::exit::{self, Failure};

/// The store that `--store`, `$TENURE_STORE` or `$DATABASE_URL` names, in this order.
pub(crate) fn configured_store(global: &Global) -> Option<String> {
    global.store.clone().or_else(|| std::env::var("DATABASE_URL").ok()).filter(|url| !url.is_empty())
}

/// Reads `--store-file` into `--store`.
pub(crate) fn read_file(global: &mut Global) -> Result<(), Failure> {
    let Some(path) = &global.store_file else { return Ok(()) };
    let text = if path.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    let shown = path.display();
    let text = text.map_err(|error| Failure::usage(format!("--store-file {shown}: {error}")))?;
    let url = text.trim();
    if url.is_empty() || url.contains('\n') {
        return Err(Failure::usage(format!(
            "--store-file {shown}: it must hold one line, the store's address"
        )));
    }
    global.store = Some(url.to_owned());
    Ok(())
}

/// Refuses what makes no sense whatever the command does: a namespace that is no name, and work in a store that only elects.
pub(crate) fn check(global: &Global, uses_work: bool) -> Result<(), Failure> {
    global.namespace.parse::<tenure::Name>().map_err(|error| {
        Failure::usage(format!(
            "--namespace (or $TENURE_NAMESPACE): {error}; without it, the namespace is `default`"
        ))
    })?;
    let url = if uses_work { options(global)?.url } else { return Ok(()) };
    let kinds = [
        ("etcd:", "etcd"),
        ("etcds:", "etcd"),
        ("k8s:", "Kubernetes"),
        ("raft:", "Raft"),
        ("gossip:", "gossip"),
    ];
    match kinds.iter().find(|(prefix, _)| url.starts_with(prefix)) {
        Some((scheme, kind)) => Err(Failure::usage(format!(
            "{kind} holds no tasks, events or schedules, it only elects leaders; give a store that does: --store sqlite:PATH, \
             postgres://… or http://… (and --elect {scheme}… to elect there)"
        ))),
        None => Ok(()),
    }
}

/// The options of `--store`, or of what stands in its place.
pub(crate) fn options(global: &Global) -> Result<StoreOptions, Failure> {
    let given = global.store.clone().filter(|url| !url.is_empty());
    let given = match given {
        Some(url) => Some(url),
        None => database_url()?,
    };
    // The embedded default: one file for each user, wherever the command is typed.
    let url = given.unwrap_or_else(|| "sqlite:".to_owned());
    Ok(StoreOptions {
        url,
        direct_url: global.direct_url.clone(),
        strict: global.strict,
        elect: global.elect.clone().filter(|url| !url.is_empty()),
        cluster_secret_file: global.cluster_secret_file.clone(),
        ..StoreOptions::default()
    })
}

/// `$DATABASE_URL`, which other programs use too: an address that is none of Tenure's is named with the variable.
fn database_url() -> Result<Option<String>, Failure> {
    let Some(url) = std::env::var("DATABASE_URL").ok().filter(|url| !url.is_empty()) else { return Ok(None) };
    match backend::check_scheme(&url) {
        Ok(()) => Ok(Some(url)),
        Err(error) => Err(Failure::usage(format!(
            "$DATABASE_URL is no store of Tenure's, and neither --store nor $TENURE_STORE is set: {}",
            error.message
        ))),
    }
}

pub(crate) async fn open(global: &Global) -> Result<Arc<dyn Backend>, Failure> {
    Ok(backend::open(&options(global)?).await?)
}

/// Opens the store for a command that only reads: it creates no file and migrates nothing.
pub(crate) async fn read(global: &Global) -> Result<Arc<dyn Backend>, Failure> {
    Ok(backend::open(&StoreOptions { existing_only: true, ..options(global)? }).await?)
}

/// Fails if `store` stands for a SQLite file that does not exist yet: what is created later would not be seen.
pub(crate) fn must_exist(global: &Global, store: &dyn Backend) -> Result<(), Failure> {
    let url = options(global)?.url;
    if url.starts_with("sqlite:") && store.promises().backend == "memory" {
        let message = format!(
            "{url} has no Tenure tables yet, so there is nothing to watch; create them with `tenure migrate up --store {url}`"
        );
        return Err(Failure::new(exit::STORE, message));
    }
    Ok(())
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
    match other_options(global, standing)? {
        Some(options) => open_session(options, standing).await.map(Some),
        None => Ok(None),
    }
}

/// The options of `--and-store`, if it is given.
pub(crate) fn other_options(global: &Global, standing: &Standing) -> Result<Option<StoreOptions>, Failure> {
    let Some(url) = standing.and_store.clone().filter(|url| !url.is_empty()) else { return Ok(None) };
    let first = options(global)?;
    if first.url == url {
        return Err(Failure::usage("--and-store is --store: leave it out, or name the other one"));
    }
    let cluster_secret_file = first.cluster_secret_file;
    let options = StoreOptions { url, strict: first.strict, cluster_secret_file, ..StoreOptions::default() };
    Ok(Some(options))
}

/// Whether the session of a process that was killed stays live in the store until its lease is over, and can be ended by another
/// process. SQLite sees a death at once; a member of a Raft cluster is the killed process itself.
pub(crate) fn keeps_dead_sessions(options: &StoreOptions) -> bool {
    let url = options.elect.as_ref().unwrap_or(&options.url);
    let asks_a_raft_cluster = url.starts_with("raft:") && !url.contains("node=");
    asks_a_raft_cluster
        || is_postgres(url)
        || ["http:", "https:", "http+unix:", "etcd:", "etcds:", "k8s:"]
            .iter()
            .any(|word| url.starts_with(word))
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
