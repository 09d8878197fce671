//! Store selection from the options, and opening of stores and sessions.

use std::sync::Arc;

use tenure::port::{GroupKey, PoolKey, QueueKey, ScheduleKey, Store, TakeoverMode, TopicKey};
use tenure::store::gossip::GossipOptions;
use tenure::store::{self, StoreOptions};
use tenure::{ElectionKey, ElectorBuilder, Tenure, TenureBuilder};

use crate::args::{CandidateArgs, GlobalArgs, TakeoverArg};
use crate::error::{self, CliError};

/// The store that `--store`, `$TENURE_STORE` or `$DATABASE_URL` names, in this order.
pub(crate) fn configured_store(global: &GlobalArgs) -> Option<String> {
    global.store.clone().or_else(|| std::env::var("DATABASE_URL").ok()).filter(|url| !url.is_empty())
}

/// Reads the store URL from `--store-file` into `--store`.
pub(crate) fn read_file(global: &mut GlobalArgs) -> Result<(), CliError> {
    let Some(path) = &global.store_file else { return Ok(()) };
    let text = if path.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    let shown = path.display();
    let text = text.map_err(|error| CliError::usage(format!("--store-file {shown}: {error}")))?;
    let url = text.trim();
    if url.is_empty() || url.contains('\n') {
        return Err(CliError::usage(format!(
            "--store-file {shown}: the file must have one line with the store URL"
        )));
    }
    global.store = Some(url.to_owned());
    Ok(())
}

/// Rejects an invalid namespace, and commands about tasks, events or schedules on a store that only elects leaders.
pub(crate) fn check(global: &GlobalArgs, uses_work: bool) -> Result<(), CliError> {
    global.namespace.parse::<tenure::Name>().map_err(|error| {
        CliError::usage(format!(
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
        Some((scheme, kind)) => Err(CliError::usage(format!(
            "{kind} only elects leaders and keeps no tasks, events or schedules; use --store sqlite:PATH, postgres://… or http://… \
             (and --election-store {scheme}… to elect there)"
        ))),
        None => Ok(()),
    }
}

/// Store options from the global options; the default is the SQLite file of the user.
pub(crate) fn options(global: &GlobalArgs) -> Result<StoreOptions, CliError> {
    let given = global.store.clone().filter(|url| !url.is_empty());
    let given = match given {
        Some(url) => Some(url),
        None => database_url()?,
    };
    // Default: one SQLite file per user, independent of the working directory.
    let url = given.unwrap_or_else(|| "sqlite:".to_owned());
    Ok(StoreOptions {
        url,
        direct_url: global.direct_url.clone(),
        sync_replication: global.sync_replication,
        election_store: global.election_store.clone().filter(|url| !url.is_empty()),
        cluster_secret_file: global.cluster_secret_file.clone(),
        ..StoreOptions::default()
    })
}

/// `$DATABASE_URL`. Other programs use that variable too, so the error for an unknown scheme names it.
fn database_url() -> Result<Option<String>, CliError> {
    let Some(url) = std::env::var("DATABASE_URL").ok().filter(|url| !url.is_empty()) else { return Ok(None) };
    match store::check_scheme(&url) {
        Ok(()) => Ok(Some(url)),
        Err(error) => Err(CliError::usage(format!(
            "$DATABASE_URL is not a Tenure store URL, and neither --store nor $TENURE_STORE is set: {}",
            error.message
        ))),
    }
}

pub(crate) async fn open(global: &GlobalArgs) -> Result<Arc<dyn Store>, CliError> {
    Ok(store::open(&options(global)?).await?)
}

/// Opens the store for a command that only reads. Creates no file and runs no migration.
pub(crate) async fn read(global: &GlobalArgs) -> Result<Arc<dyn Store>, CliError> {
    Ok(store::open(&StoreOptions { existing_only: true, ..options(global)? }).await?)
}

/// Fails if the SQLite file does not exist yet: a store opened before would not see a file created later.
pub(crate) fn must_exist(global: &GlobalArgs, store: &dyn Store) -> Result<(), CliError> {
    let url = options(global)?.url;
    if url.starts_with("sqlite:") && store.guarantees().backend == "memory" {
        let message = format!(
            "{url} has no Tenure tables, so there is nothing to watch; create them with `tenure migrate up --store {url}`"
        );
        return Err(CliError::new(error::STORE, message));
    }
    Ok(())
}

/// Gossip options from a `gossip:` URL in the place of a store URL.
pub(crate) fn gossip(global: &GlobalArgs, url: &str) -> Result<GossipOptions, CliError> {
    let mut options: GossipOptions = url.parse()?;
    options.secret_file = options.secret_file.or_else(|| global.cluster_secret_file.clone());
    Ok(options)
}

pub(crate) fn key(global: &GlobalArgs, name: &str) -> Result<ElectionKey, CliError> {
    Ok(ElectionKey::new(global.namespace.parse()?, name.parse()?))
}

pub(crate) fn queue(global: &GlobalArgs, name: &str) -> Result<QueueKey, CliError> {
    Ok(QueueKey::new(global.namespace.parse()?, name.parse()?))
}

pub(crate) fn pool(global: &GlobalArgs, name: &str) -> Result<PoolKey, CliError> {
    Ok(PoolKey::new(global.namespace.parse()?, name.parse()?))
}

pub(crate) fn topic(global: &GlobalArgs, name: &str) -> Result<TopicKey, CliError> {
    Ok(TopicKey::new(global.namespace.parse()?, name.parse()?))
}

pub(crate) fn group(global: &GlobalArgs, topic: &str, name: &str) -> Result<GroupKey, CliError> {
    Ok(GroupKey::new(self::topic(global, topic)?, name.parse()?))
}

pub(crate) fn schedule(global: &GlobalArgs, name: &str) -> Result<ScheduleKey, CliError> {
    Ok(ScheduleKey::new(global.namespace.parse()?, name.parse()?))
}

/// A session that does not campaign, for a command that waits for tasks, resources or names.
pub(crate) async fn session_without_candidate(global: &GlobalArgs) -> Result<Tenure, CliError> {
    Ok(builder(global)?.open().await?)
}

/// Builder of a session in the configured store.
pub(crate) fn builder(global: &GlobalArgs) -> Result<TenureBuilder, CliError> {
    Ok(builder_from(options(global)?))
}

fn builder_from(options: StoreOptions) -> TenureBuilder {
    let mut builder = Tenure::builder().url(options.url).sync_replication(options.sync_replication);
    if let Some(url) = options.direct_url {
        builder = builder.direct_url(url);
    }
    if let Some(url) = options.election_store {
        builder = builder.election_store(url);
    }
    if let Some(file) = options.cluster_secret_file {
        builder = builder.cluster_secret_file(file);
    }
    builder
}

/// A session with the timing of a candidate. Validates the names before it opens the store.
pub(crate) async fn session(
    global: &GlobalArgs,
    name: &str,
    args: &CandidateArgs,
) -> Result<Tenure, CliError> {
    key(global, name)?;
    let lease = args.lease.unwrap_or(tenure::Timing::default().lease());
    let timing = tenure::Timing::new(lease, args.heartbeat_interval).map_err(tenure::Error::from)?;
    check_deadline(args, &timing)?;
    open_session(options(global)?, args).await
}

/// A session in the store of `--second-store`, if it is set.
pub(crate) async fn second_session(
    global: &GlobalArgs,
    args: &CandidateArgs,
) -> Result<Option<Tenure>, CliError> {
    match second_options(global, args)? {
        Some(options) => open_session(options, args).await.map(Some),
        None => Ok(None),
    }
}

/// Store options of `--second-store`, if it is set.
pub(crate) fn second_options(
    global: &GlobalArgs,
    args: &CandidateArgs,
) -> Result<Option<StoreOptions>, CliError> {
    let Some(url) = args.second_store.clone().filter(|url| !url.is_empty()) else { return Ok(None) };
    let first = options(global)?;
    if first.url == url {
        return Err(CliError::usage(
            "--second-store and --store are the same; remove --second-store or name another store",
        ));
    }
    let cluster_secret_file = first.cluster_secret_file;
    let options = StoreOptions {
        url,
        sync_replication: first.sync_replication,
        cluster_secret_file,
        ..StoreOptions::default()
    };
    Ok(Some(options))
}

/// Whether the session of a killed process stays live in the store until its lease expires and can be ended by another
/// process. SQLite detects a dead process at once; a Raft member is the killed process itself.
pub(crate) fn keeps_dead_sessions(options: &StoreOptions) -> bool {
    let url = options.election_store.as_ref().unwrap_or(&options.url);
    let asks_a_raft_cluster = url.starts_with("raft:") && !url.contains("node=");
    asks_a_raft_cluster
        || is_postgres(url)
        || ["http:", "https:", "http+unix:", "etcd:", "etcds:", "k8s:"]
            .iter()
            .any(|word| url.starts_with(word))
}

async fn open_session(options: StoreOptions, args: &CandidateArgs) -> Result<Tenure, CliError> {
    let elects = options.election_store.as_ref().unwrap_or(&options.url);
    if args.takeover == TakeoverArg::Connection && !is_postgres(elects) {
        return Err(CliError::usage("--takeover connection needs PostgreSQL; remove it for other stores"));
    }
    let takeover = match args.takeover {
        TakeoverArg::Lease => TakeoverMode::Lease,
        TakeoverArg::Connection => TakeoverMode::Connection,
    };
    let mut builder = builder_from(options).takeover(takeover);
    if let Some(lease) = args.lease {
        builder = builder.lease(lease);
    }
    if let Some(name) = &args.name {
        builder = builder.name(name);
    }
    if let Some(beat) = args.heartbeat_interval {
        builder = builder.heartbeat_interval(beat);
    }
    let tenure = builder.open().await?;
    // The store URL may set another lease.
    check_deadline(args, &tenure.timing())?;
    Ok(tenure)
}

/// Rejects a `--renew-deadline` below two thirds of the lease. The renew deadline is fixed; a shorter one needs a
/// shorter lease.
fn check_deadline(args: &CandidateArgs, timing: &tenure::Timing) -> Result<(), CliError> {
    match args.renew_deadline {
        Some(deadline) if deadline < timing.trust() => Err(CliError::usage(format!(
            "--renew-deadline {deadline:?} is less than two thirds of the lease ({:?}), the fixed time that a leader acts without a \
             successful heartbeat; use a shorter lease: --lease-duration {:?}",
            timing.trust(),
            deadline * 3 / 2
        ))),
        _ => Ok(()),
    }
}

/// Builder of a candidate from the options.
pub(crate) fn candidate(
    tenure: &Tenure,
    global: &GlobalArgs,
    name: &str,
    args: &CandidateArgs,
) -> ElectorBuilder {
    let builder = tenure
        .elector(name)
        .namespace(&global.namespace)
        .priority(args.priority)
        .slots(args.slots)
        .capabilities(args.capabilities.clone())
        .required_capabilities(args.required_capabilities.clone())
        .metadata("version", env!("CARGO_PKG_VERSION"));
    args.metadata.iter().fold(builder, |builder, (key, value)| builder.metadata(key, value))
}

/// Whether a store URL, in any accepted form, is one of PostgreSQL.
pub(crate) fn is_postgres(url: &str) -> bool {
    let words = ["postgres:", "postgresql:", "host=", "user=", "dbname=", "port="];
    words.iter().any(|word| url.starts_with(word))
}
