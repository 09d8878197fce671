//! `tenure raft`.

use clap::{Args, Subcommand};

pub(crate) const EXAMPLES: &str = "\
Of a Raft cluster, through any of its members or of the servers on it. A number is used once: a member that lost its disk
is dismissed, and comes back under another. Start a new member before it is admitted; its `peers` name it and the others.

Examples:
  tenure raft status --store http://10.0.0.1:8368
  tenure serve --store 'raft:/var/lib/tenure?node=4&peers=1@10.0.0.1:8369,2@10.0.0.2:8369,3@10.0.0.3:8369,4@10.0.0.4:8369'
  tenure raft admit 4 10.0.0.4:8369 --store http://10.0.0.1:8368
  tenure raft transfer 2 --store 'raft:?peers=1@10.0.0.1:8369,2@10.0.0.2:8369'
  tenure raft dismiss 1 --store http://10.0.0.2:8368";

#[derive(Args, Debug)]
pub(crate) struct RaftArgs {
    #[command(subcommand)]
    pub(crate) command: RaftCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum RaftCommand {
    /// Who leads the cluster, who votes, who is behind
    Status,
    /// Take a member in: it learns first, and votes when it has caught up
    Admit {
        /// Its number, never used before
        node: u64,
        /// Where the others reach it
        #[arg(value_name = "HOST:PORT")]
        place: String,
    },
    /// Let a member go
    Dismiss {
        /// Its number
        node: u64,
    },
    /// Have another member lead the cluster; elections go on
    Transfer {
        /// Its number
        node: u64,
    },
}
