//! `tenure raft`: the members of a Raft cluster.

use tenure::port::{RaftMemberAction, RaftStatus, Store};

use crate::args::raft::{RaftArgs, RaftCommand};
use crate::args::{GlobalArgs, OutputFormat};
use crate::error::CliError;
use crate::output::{self, Table, TextStyle};
use crate::store;

pub(crate) async fn run(global: &GlobalArgs, args: RaftArgs) -> Result<u8, CliError> {
    let store = store::open(global).await?;
    let order = match args.command {
        RaftCommand::Status => {
            show(global, &members(store.as_ref()).await?);
            return Ok(0);
        }
        RaftCommand::AddMember { node_id, address } => RaftMemberAction::Add { node_id, address },
        RaftCommand::RemoveMember { node_id } => RaftMemberAction::Remove { node_id },
        RaftCommand::TransferLeader { node_id } => RaftMemberAction::Transfer { node_id },
    };
    members(store.as_ref()).await?;
    store.change_raft_members(&order).await?;
    let (node_id, done) = match &order {
        RaftMemberAction::Add { node_id, .. } => (node_id, "is a voting member"),
        RaftMemberAction::Remove { node_id } => {
            (node_id, "is removed; stop it, and do not use its node id again")
        }
        RaftMemberAction::Transfer { node_id } => (node_id, "is the Raft leader"),
    };
    output::note(global, TextStyle::Green, &format!("node {node_id} {done}"));
    show(global, &members(store.as_ref()).await?);
    Ok(0)
}

async fn members(store: &dyn Store) -> Result<RaftStatus, CliError> {
    store.raft_status().await?.ok_or_else(|| {
        CliError::usage(
            "this store is not a Raft cluster; use --store raft:?peers=…, or http://… for a server on one",
        )
    })
}

fn show(global: &GlobalArgs, cluster: &RaftStatus) {
    if global.output == OutputFormat::Json {
        return output::print_json(cluster);
    }
    let mut table = Table::new(&["node", "address", "role", "lag entries"]);
    for member in &cluster.members {
        let (role, style) = match (cluster.leader == Some(member.node_id), member.voter) {
            (true, _) => ("leader", TextStyle::Green),
            (false, true) => ("voter", TextStyle::Plain),
            (false, false) => ("learner", TextStyle::Yellow),
        };
        let behind = member.lag_entries.map_or_else(|| "–".to_owned(), |entries| entries.to_string());
        table.row(vec![
            (member.node_id.to_string(), TextStyle::Bold),
            (member.address.clone(), TextStyle::Plain),
            (role.to_owned(), style),
            (behind, TextStyle::Dim),
        ]);
    }
    output::print_line(&table.render());
    let (text, style) = match cluster.leader {
        Some(leader) => (
            format!("node {leader} is the leader in term {}, {} entries", cluster.term, cluster.index),
            TextStyle::Dim,
        ),
        None => ("no leader: this node cannot reach a majority of the members".to_owned(), TextStyle::Red),
    };
    output::note(global, style, &text);
}
