//! `--soft`: leading over gossip, where two may lead at once for a while.

pub(crate) mod elect;
pub(crate) mod run;

use tenure::backend::gossip::{Gossip, GossipOptions, SoftElector, SoftElectorBuilder, SoftOver};

use crate::args::{Global, Standing, TakeoverMode};
use crate::exit::Failure;
use crate::store;

/// What `--soft` needs, and what it has no use for.
fn check(global: &Global, name: &str, standing: &Standing) -> Result<GossipOptions, Failure> {
    store::key(global, name)?;
    let url = store::options(global)?.url;
    if !url.starts_with("gossip:") {
        return Err(Failure::usage(
            "--soft is for gossip: every other store knows who leads, and nobody else does; leave --soft out, or use \
             --store gossip:HOST:PORT",
        ));
    }
    let unused = [
        (standing.slots != 1, "-n"),
        (!standing.capabilities.is_empty(), "--capability"),
        (!standing.requires.is_empty(), "--requires"),
        (standing.takeover != TakeoverMode::Lease, "--takeover"),
        (standing.beat.is_some(), "--beat"),
    ];
    if let Some((_, flag)) = unused.iter().find(|(given, _)| *given) {
        return Err(Failure::usage(format!(
            "{flag} has no meaning with --soft; how fast gossip goes is said in the address: \
             gossip:HOST:PORT?round=200ms&patience=2s&hold_down=2s"
        )));
    }
    let mut options = store::gossip(global, &url)?;
    if let Some(id) = &standing.id {
        options.name.clone_from(id);
    }
    options.metadata.extend(standing.metadata.iter().cloned());
    options.metadata.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    Ok(options)
}

/// Joins.
async fn join(global: &Global, name: &str, standing: &Standing) -> Result<Gossip, Failure> {
    Ok(Gossip::join(check(global, name, standing)?).await?)
}

/// A candidate as the arguments describe it.
fn candidate(gossip: &Gossip, global: &Global, name: &str, standing: &Standing) -> SoftElectorBuilder {
    gossip.elector(name).namespace(&global.namespace).priority(standing.priority)
}

/// Who leads besides, as far as is seen.
fn others(gossip: &Gossip, elector: &SoftElector) -> Vec<String> {
    let view = elector.view();
    view.leaders().filter(|leader| leader.member.id != gossip.id()).map(|l| l.member.name.clone()).collect()
}

fn reason(over: SoftOver) -> &'static str {
    over.as_str()
}
