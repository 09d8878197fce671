//! `tenure raft`: the members of a cluster.

use tenure::port::{Backend, MemberOrder, Membership};

use crate::args::raft::{RaftArgs, RaftCommand};
use crate::args::{Format, Global};
use crate::exit::Failure;
use crate::output::{self, Ink, Table};
use crate::store;

pub(crate) async fn run(global: &Global, args: RaftArgs) -> Result<u8, Failure> {
    let store = store::open(global).await?;
    let order = match args.command {
        RaftCommand::Status => {
            show(global, &members(store.as_ref()).await?);
            return Ok(0);
        }
        RaftCommand::Admit { node, place } => MemberOrder::Admit { node, place },
        RaftCommand::Dismiss { node } => MemberOrder::Dismiss { node },
        RaftCommand::Transfer { node } => MemberOrder::Transfer { node },
    };
    members(store.as_ref()).await?;
    store.order_member(&order).await?;
    let (node, done) = match &order {
        MemberOrder::Admit { node, .. } => (node, "is a member, and votes"),
        MemberOrder::Dismiss { node } => {
            (node, "is no member any more; stop it, and do not use its number again")
        }
        MemberOrder::Transfer { node } => (node, "leads the cluster"),
    };
    output::note(global, Ink::Green, &format!("node {node} {done}"));
    show(global, &members(store.as_ref()).await?);
    Ok(0)
}

async fn members(store: &dyn Backend) -> Result<Membership, Failure> {
    store.membership().await?.ok_or_else(|| {
        Failure::usage("this store has no members of its own; name a Raft cluster: --store raft:?peers=… or a server on one, http://…")
    })
}

fn show(global: &Global, cluster: &Membership) {
    if global.output == Format::Json {
        return output::print_json(cluster);
    }
    let mut table = Table::new(&["node", "address", "role", "behind"]);
    for member in &cluster.members {
        let (role, ink) = match (cluster.leader == Some(member.node), member.votes) {
            (true, _) => ("leads", Ink::Green),
            (false, true) => ("votes", Ink::Plain),
            (false, false) => ("learns", Ink::Yellow),
        };
        let behind = member.behind.map_or_else(|| "–".to_owned(), |entries| entries.to_string());
        table.row(vec![
            (member.node.to_string(), Ink::Bold),
            (member.place.clone(), Ink::Plain),
            (role.to_owned(), ink),
            (behind, Ink::Dim),
        ]);
    }
    output::print_line(&table.render());
    let (text, ink) = match cluster.leader {
        Some(leader) => {
            (format!("node {leader} leads in term {}, {} entries", cluster.term, cluster.index), Ink::Dim)
        }
        None => ("nobody leads: fewer than half of the members can be reached".to_owned(), Ink::Red),
    };
    output::note(global, ink, &text);
}
