//! `tenure members`: who is there, as gossip tells.

use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tenure::backend::gossip::{Gossip, Presence, Roster, SoftElectionView};
use tenure::runtime::{now, sleep_until, wall_ms};

use super::signals::Signals;
use crate::args::{Format, Global};
use crate::exit::{self, Failure};
use crate::output::{self, Ink, Table, ago};
use crate::store;

pub(crate) const EXAMPLES: &str = "\
It joins as a guest on a free port of the address, and asks who is at the address itself, and the seeds.

Examples:
  tenure members --store 'gossip:10.0.0.1:8370'                 whoever the member there knows of
  tenure members --store 'gossip:127.0.0.1?seed=10.0.0.1' -w
  tenure members --store 'gossip:10.0.0.1:8370' -o json | jq '.members[].name'";

#[derive(Args, Debug)]
pub(crate) struct MembersArgs {
    /// Keep the list on the screen, up to date
    #[arg(short, long)]
    pub(crate) watch: bool,

    /// Those who left or fell silent too, for as long as they are remembered
    #[arg(short, long)]
    pub(crate) all: bool,
}

pub(crate) async fn run(global: &Global, args: MembersArgs) -> Result<u8, Failure> {
    let url = store::options(global)?.url;
    if !url.starts_with("gossip:") {
        return Err(Failure::usage("members are told by gossip; name one: --store gossip:HOST:PORT"));
    }
    let options = store::gossip(global, &url)?;
    let gossip = Gossip::join(options.visiting()).await?;
    let shown = match args.watch {
        true => watch(global, &args, &gossip).await,
        false => show(global, &args, &gossip).await,
    };
    gossip.leave().await;
    shown
}

async fn show(global: &Global, args: &MembersArgs, gossip: &Gossip) -> Result<u8, Failure> {
    gathered(gossip).await;
    let roster = gossip.roster();
    if !roster.live().any(|member| member.id != gossip.id()) {
        let told = "nobody answers: check the address, the cluster's name, and that the secret ($TENURE_GOSSIP_SECRET, $TENURE_GOSSIP_SECRET_FILE) is theirs";
        return Err(Failure::new(exit::STORE, told));
    }
    output::print_text(&picture(global, args, gossip, &roster));
    Ok(0)
}

/// Until somebody was heard, and nobody new for a while; but not for ever.
pub(super) async fn gathered(gossip: &Gossip) {
    let pace = gossip.pace();
    let limit = now() + pace.patience() * 3;
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

async fn watch(global: &Global, args: &MembersArgs, gossip: &Gossip) -> Result<u8, Failure> {
    let mut signals = Signals::ending()?;
    let mut changes = gossip.watch();
    let mut shown = String::new();
    while output::is_read() {
        tokio::select! {
            roster = changes.next() => {
                let Some(roster) = roster else { return Ok(0) };
                let picture = picture(global, args, gossip, &roster);
                if picture != shown {
                    match global.output {
                        Format::Json => output::print_text(&picture),
                        Format::Table => output::redraw(&picture),
                    }
                    shown = picture;
                }
            }
            _ = signals.next() => return Ok(0),
        }
    }
    Ok(0)
}

fn picture(global: &Global, args: &MembersArgs, gossip: &Gossip, roster: &Roster) -> String {
    let elections = gossip.elections();
    match global.output {
        Format::Json => super::screen::json(&as_json(args, gossip, roster, &elections)),
        Format::Table => table(args, roster, &elections),
    }
}

fn as_json(args: &MembersArgs, gossip: &Gossip, roster: &Roster, elections: &[SoftElectionView]) -> Value {
    let members = roster.all().filter(|member| !member.guest && (args.all || member.is_live())).map(|member| {
        json!({
            "id": member.id, "name": member.name, "generation": member.generation, "address": member.address.to_string(),
            "presence": member.presence.as_str(), "metadata": member.metadata,
        })
    });
    let elections = elections.iter().map(|view| {
        let candidates = view.candidates.iter().map(|standing| {
            json!({
                "member": standing.member.id, "name": standing.member.name, "priority": standing.rank.priority,
                "stance": standing.stance.as_str(), "since_ms": standing.since_ms,
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

fn table(args: &MembersArgs, roster: &Roster, elections: &[SoftElectionView]) -> String {
    let mut table = Table::new(&["member", "status", "since", "address", "leads", "metadata"]);
    let now_ms = wall_ms();
    for member in roster.all().filter(|member| !member.guest && (args.all || member.is_live())) {
        let leads: Vec<_> = elections
            .iter()
            .filter(|view| view.leaders().any(|leader| leader.member.id == member.id))
            .map(|view| view.election.to_string())
            .collect();
        let metadata: Vec<_> = member.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let ink = match member.presence {
            Presence::Live => Ink::Green,
            Presence::Silent => Ink::Yellow,
            _ => Ink::Dim,
        };
        let joined = i64::try_from(member.generation).unwrap_or(i64::MAX);
        table.row(vec![
            (member.name.clone(), Ink::Bold),
            (member.presence.as_str().to_owned(), ink),
            (format!("{} ago", ago(joined, now_ms)), Ink::Plain),
            (member.address.to_string(), Ink::Plain),
            (leads.join(" "), Ink::Plain),
            (metadata.join(" "), Ink::Dim),
        ]);
    }
    table.render()
}
