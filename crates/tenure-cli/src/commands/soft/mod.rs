//! `--soft`: elections over gossip, where several candidates may lead at once for some time.

pub(crate) mod campaign;
pub(crate) mod run;

use tenure::store::gossip::{Gossip, GossipOptions, SoftElector, SoftElectorBuilder, SoftTermEnd};

use crate::args::{CandidateArgs, GlobalArgs, TakeoverArg};
use crate::error::CliError;
use crate::store;

/// Validates the options of `--soft`: it needs a gossip URL, and rejects options without effect.
fn check(global: &GlobalArgs, name: &str, args: &CandidateArgs) -> Result<GossipOptions, CliError> {
    store::key(global, name)?;
    let url = store::options(global)?.url;
    if !url.starts_with("gossip:") {
        return Err(CliError::usage(
            "--soft needs a gossip store: use --store gossip:HOST:PORT, or remove --soft; every other store elects exactly one \
             leader",
        ));
    }
    let unused = [
        (args.slots != 1, "-n"),
        (!args.capabilities.is_empty(), "--capability"),
        (!args.required_capabilities.is_empty(), "--required-capability"),
        (args.takeover != TakeoverArg::Lease, "--takeover"),
        (args.heartbeat_interval.is_some(), "--heartbeat-interval"),
    ];
    if let Some((_, flag)) = unused.iter().find(|(given, _)| *given) {
        return Err(CliError::usage(format!(
            "{flag} has no effect with --soft; set the timing of gossip in the URL: \
             gossip:HOST:PORT?round=200ms&silence_limit=2s&hold_down=2s"
        )));
    }
    let mut options = store::gossip(global, &url)?;
    if let Some(name) = &args.name {
        options.name.clone_from(name);
    }
    options.metadata.extend(args.metadata.iter().cloned());
    options.metadata.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    Ok(options)
}

/// Joins the gossip cluster.
async fn join(global: &GlobalArgs, name: &str, args: &CandidateArgs) -> Result<Gossip, CliError> {
    Ok(Gossip::join(check(global, name, args)?).await?)
}

/// Builder of a soft candidate from the options.
fn candidate(gossip: &Gossip, global: &GlobalArgs, name: &str, args: &CandidateArgs) -> SoftElectorBuilder {
    gossip.elector(name).namespace(&global.namespace).priority(args.priority)
}

/// Names of the other known leaders.
fn others(gossip: &Gossip, elector: &SoftElector) -> Vec<String> {
    let view = elector.view();
    view.leaders().filter(|leader| leader.member.id != gossip.id()).map(|l| l.member.name.clone()).collect()
}

fn reason(over: SoftTermEnd) -> &'static str {
    over.as_str()
}
