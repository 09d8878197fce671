//! Arguments of `tenure raft`.

use clap::{Args, Subcommand};

pub(crate) const EXAMPLES: &str = "\
Connect to any member or to a server on the cluster. A node id is used once: remove a member that lost its disk and add it \
again under a new id. Start a new member before adding it; its `peers` list itself and the others.

Examples:
  tenure raft status --store http://10.0.0.1:8368
  tenure serve --store 'raft:/var/lib/tenure?node=4&peers=1@10.0.0.1:8369,2@10.0.0.2:8369,3@10.0.0.3:8369,4@10.0.0.4:8369'
  tenure raft add-member 4 10.0.0.4:8369 --store http://10.0.0.1:8368
  tenure raft transfer-leader 2 --store 'raft:?peers=1@10.0.0.1:8369,2@10.0.0.2:8369'
  tenure raft remove-member 1 --store http://10.0.0.2:8368";

#[derive(Args, Debug)]
pub(crate) struct RaftArgs {
    #[command(subcommand)]
    pub(crate) command: RaftCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum RaftCommand {
    /// Show the Raft leader, voters and lagging members
    Status,
    /// Add a member; it votes once it has caught up
    AddMember {
        /// Node id, never used before
        node_id: u64,
        /// Address for the other members
        #[arg(value_name = "HOST:PORT")]
        address: String,
    },
    /// Remove a member
    RemoveMember {
        /// Node id
        node_id: u64,
    },
    /// Transfer Raft leadership to another member; the leaders of elections keep their leases
    TransferLeader {
        /// Node id
        node_id: u64,
    },
}
