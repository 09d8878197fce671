//! `tenure gossip`: lists the members of a gossip cluster.

use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tenure::runtime::{now, sleep_until, wall_ms};
use tenure::store::gossip::{Gossip, GossipMemberState, Roster, SoftElectionView};

use super::signals::Signals;
use crate::args::{GlobalArgs, OutputFormat};
use crate::error::{self, CliError};
use crate::output::{self, Table, TextStyle, ago};
use crate::store;

pub(crate) const EXAMPLES: &str = "\
Joins as a temporary member on a free port of the address and queries the member at the address and the seeds.

Examples:
  tenure gossip --store 'gossip:10.0.0.1:8370'                  members known to that member
  tenure gossip --store 'gossip:127.0.0.1?seed=10.0.0.1' -w
  tenure gossip --store 'gossip:10.0.0.1:8370' -o json | jq '.members[].name'";

#[derive(Args, Debug)]
pub(crate) struct GossipArgs {
    /// Refresh the list continuously
    #[arg(short, long)]
    pub(crate) watch: bool,

    /// Include members that failed or left
    #[arg(short, long)]
    pub(crate) all: bool,
}

pub(crate) async fn run(global: &GlobalArgs, args: GossipArgs) -> Result<u8, CliError> {
    let url = store::options(global)?.url;
    if !url.starts_with("gossip:") {
        return Err(CliError::usage("gossip members need a gossip store: use --store gossip:HOST:PORT"));
    }
    let options = store::gossip(global, &url)?;
    let gossip = Gossip::join(options.temporary_observer()).await?;
    let shown = match args.watch {
        true => watch(global, &args, &gossip).await,
        false => show(global, &args, &gossip).await,
    };
    gossip.leave().await;
    shown
}

async fn show(global: &GlobalArgs, args: &GossipArgs, gossip: &Gossip) -> Result<u8, CliError> {
    gathered(gossip).await;
    let roster = gossip.roster();
    if !roster.live().any(|member| member.id != gossip.id()) {
        let message = "no member answered: check the address, the cluster name and the secret ($TENURE_GOSSIP_SECRET, $TENURE_GOSSIP_SECRET_FILE)";
        return Err(CliError::new(error::STORE, message));
    }
    output::print_text(&picture(global, args, gossip, &roster));
    Ok(0)
}

/// Waits until members have answered and no new one appears for some time, up to a limit.
pub(super) async fn gathered(gossip: &Gossip) {
    let pace = gossip.timing();
    let limit = now() + pace.silence_limit() * 3;
    let quiet: Duration = pace.settle() * 2;
    let (mut seen, mut since) = (0, now());
    while now() < limit {
        let live = gossip.roster().live().count();
        if live != seen {
            (seen, since) = (live, now());
        }
        if seen > 1 && now().since(since) >= quiet {
            return;
        }
        sleep_until(now() + pace.round() / 2).await;
    }
}

async fn watch(global: &GlobalArgs, args: &GossipArgs, gossip: &Gossip) -> Result<u8, CliError> {
    let mut signals = Signals::ending()?;
    let mut changes = gossip.watch();
    let mut shown = String::new();
    while output::stdout_open() {
        tokio::select! {
            roster = changes.next() => {
                let Some(roster) = roster else { return Ok(0) };
                let picture = picture(global, args, gossip, &roster);
                if picture != shown {
                    match global.output {
                        OutputFormat::Json => output::print_text(&picture),
                        OutputFormat::Table => output::redraw(&picture),
                    }
                    shown = picture;
                }
            }
            _ = signals.next() => return Ok(0),
        }
    }
    Ok(0)
}

fn picture(global: &GlobalArgs, args: &GossipArgs, gossip: &Gossip, roster: &Roster) -> String {
    let elections = gossip.elections();
    match global.output {
        OutputFormat::Json => super::watch_screen::json(&as_json(args, gossip, roster, &elections)),
        OutputFormat::Table => table(args, roster, &elections),
    }
}

fn as_json(args: &GossipArgs, gossip: &Gossip, roster: &Roster, elections: &[SoftElectionView]) -> Value {
    let members = roster.all().filter(|member| !member.observer && (args.all || member.is_live())).map(|member| {
        json!({
            "id": member.id, "name": member.name, "generation": member.generation, "address": member.address.to_string(),
            "state": member.state.as_str(), "metadata": member.metadata,
        })
    });
    let elections = elections.iter().map(|view| {
        let candidates = view.candidates.iter().map(|standing| {
            json!({
                "member": standing.member.id, "name": standing.member.name, "priority": standing.rank.priority,
                "state": standing.state.as_str(), "since_at_ms": standing.since_ms,
            })
        });
        let leaders = view.leaders().map(|leader| leader.member.name.as_str());
        json!({
            "namespace": view.election.namespace, "election": view.election.name, "soft": true,
            "leaders": leaders.collect::<Vec<_>>(), "candidates": candidates.collect::<Vec<_>>(),
        })
    });
    json!({
        "cluster": gossip.cluster(), "members": members.collect::<Vec<_>>(), "elections": elections.collect::<Vec<_>>(),
    })
}

fn table(args: &GossipArgs, roster: &Roster, elections: &[SoftElectionView]) -> String {
    let mut table = Table::new(&["member", "status", "since", "address", "leads", "metadata"]);
    let now_ms = wall_ms();
    for member in roster.all().filter(|member| !member.observer && (args.all || member.is_live())) {
        let leads: Vec<_> = elections
            .iter()
            .filter(|view| view.leaders().any(|leader| leader.member.id == member.id))
            .map(|view| view.election.to_string())
            .collect();
        let metadata: Vec<_> = member.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let style = match member.state {
            GossipMemberState::Live => TextStyle::Green,
            GossipMemberState::Failed => TextStyle::Yellow,
            _ => TextStyle::Dim,
        };
        let joined = i64::try_from(member.generation).unwrap_or(i64::MAX);
        table.row(vec![
            (member.name.clone(), TextStyle::Bold),
            (member.state.as_str().to_owned(), style),
            (format!("{} ago", ago(joined, now_ms)), TextStyle::Plain),
            (member.address.to_string(), TextStyle::Plain),
            (leads.join(" "), TextStyle::Plain),
            (metadata.join(" "), TextStyle::Dim),
        ]);
    }
    table.render()
}
