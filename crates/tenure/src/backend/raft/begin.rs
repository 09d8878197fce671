//! How a member begins: it takes part once it is certain that it has forgotten nothing.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use openraft::BasicNode;

use super::net::{Greeting, within};
use super::node::Node;
use super::types::{Change, Entry, Folder, NodeId};
use crate::runtime::Runtime;

/// How long a member that starts waits for the greeting of another.
const STAND_LIMIT: Duration = Duration::from_secs(1);

/// Takes part, once that is safe, and says so to all.
///
/// A member whose folder is empty although it had another one has lost its disk, and one whose folder was put back as it once was has lost the last of
/// it: what it voted for, and what it said it had, is forgotten, so it must not take part under its number again. That is known from the others: each
/// member registers its folder, and how often it was started in it, in the state that is agreed on; and who leads knows what it was told.
/// An empty folder is always found out. An old copy is if one of those that are heard knows of a later start; a copy of the very run that ended last, only
/// if somebody who led it meanwhile is still running.
pub(super) async fn begin(
    me: Weak<Node>,
    runtime: Arc<dyn Runtime>,
    id: NodeId,
    peers: BTreeMap<NodeId, String>,
) {
    let (mut warned, mut silent) = (false, Vec::new());
    loop {
        let Some(node) = me.upgrade() else { return };
        if node.is_fit.load(Ordering::Acquire) {
            break;
        }
        match node.stand(&peers).await {
            Stand::Takes => {
                node.take_part();
                if peers.len() <= 1 {
                    // Nobody else would have to be waited for.
                    node.elect().await;
                }
            }
            Stand::Begins => {
                node.take_part();
                node.found(&peers).await;
            }
            Stand::Waits(others) if others == silent => {}
            Stand::Waits(others) => {
                tracing::info!(
                    node = id,
                    "waits to be told by most of the others what they know of it; not heard of yet: {}",
                    others.join(", ")
                );
                silent = others;
            }
            Stand::Lost if warned => {}
            Stand::Lost => {
                // For good: those who know may be gone the next time.
                warned = node.log.forgot().await.is_ok();
                tracing::error!(
                    node = id,
                    "this member has another folder than it had, or an old copy of it, and has forgotten what it promised: it takes no part \
                     any more. Have it removed from the cluster, and added under another number"
                );
            }
        }
        drop(node);
        runtime.sleep_until(runtime.now() + Duration::from_millis(100)).await;
    }
    loop {
        let Some(node) = me.upgrade() else { return };
        let folder = Folder { made: node.log.folder(), started: node.log.started() };
        if node.machine.folder_of(id).is_some_and(|known| known.made != folder.made || known == folder) {
            return;
        }
        let change = Change::Register(id, folder);
        // Nobody leads yet, or we are not taken in yet: later, then.
        let _ = node.change(Entry { change, wall_ms: runtime.wall_ms() }).await;
        drop(node);
        runtime.sleep_until(runtime.now() + Duration::from_millis(200)).await;
    }
}

/// Whether a member takes part.
enum Stand {
    /// It remembers all that it promised; or it is new, and its cluster is there, or another one begins it.
    Takes,
    /// It begins the cluster: a majority of those who are to be its members has never promised anything, and nobody else has.
    Begins,
    /// Nobody knows yet: these have not been heard.
    Waits(Vec<String>),
    /// It has forgotten something.
    Lost,
}

impl Node {
    fn take_part(&self) {
        self.is_fit.store(true, Ordering::Release);
        self.raft.runtime_config().elect(true);
    }

    async fn stand(&self, peers: &BTreeMap<NodeId, String>) -> Stand {
        let is_new = self.log.is_pristine();
        // Who has been one of them knows better than its address who they are by now.
        let voters = if is_new { BTreeMap::new() } else { self.voters() };
        let peers = if voters.is_empty() { peers } else { &voters };
        let others: Vec<_> = peers.iter().filter(|(other, _)| **other != self.id).collect();
        let greetings = others.iter().map(|(other, place)| {
            within(self.runtime.as_ref(), STAND_LIMIT, self.lines.greet(**other, place))
        });
        let greetings = futures_util::future::join_all(greetings).await;
        let silent = others.iter().zip(&greetings).filter(|(_, greeting)| greeting.is_err());
        let silent = silent.map(|((other, place), _)| format!("{other} at {place}")).collect();
        let heard: Vec<Greeting> = greetings.into_iter().filter_map(Result::ok).collect();
        // One may be behind the others, so a majority is asked; and a majority without itself by who has nothing: what was agreed on while it had another
        // folder was agreed on by it and as few others as make a majority with it, and it has to meet one of those.
        let enough = match is_new {
            true => others.is_empty() || heard.len() * 2 > others.len(),
            false => (heard.len() + 1) * 2 > peers.len(),
        };
        match enough {
            _ if self.log.has_forgotten() || heard.iter().any(|greeting| self.has_forgotten(greeting)) => {
                Stand::Lost
            }
            false => Stand::Waits(silent),
            true if !is_new || heard.iter().any(|greeting| !greeting.pristine) => Stand::Takes,
            // One of them begins, so that they do not stand against each other.
            true if heard.iter().any(|greeting| greeting.node < self.id) => Stand::Takes,
            true => Stand::Begins,
        }
    }

    /// The members that vote, as far as this one knows.
    fn voters(&self) -> BTreeMap<NodeId, String> {
        let members = self.status().members.into_iter().filter(|member| member.votes);
        members.map(|member| (member.node, member.place)).collect()
    }

    /// Whether another one knows more of this member than it does itself.
    fn has_forgotten(&self, greeting: &Greeting) -> bool {
        let (made, started) = (self.log.folder(), self.log.started());
        let of_folder =
            greeting.your_folder.as_ref().is_some_and(|it| it.made != made || it.started >= started);
        // In a later term it may have been told to cut its log, in the same one never.
        let (term, index) = self.log.reach();
        let has = (term, index.max(self.machine.applied()));
        of_folder
            || greeting.your_log.is_some_and(|heard| heard.0 > has.0 || (heard.0 == has.0 && heard.1 > has.1))
    }

    async fn found(&self, peers: &BTreeMap<NodeId, String>) {
        let members: BTreeMap<NodeId, BasicNode> = match peers.is_empty() {
            true => [(self.id, BasicNode::default())].into(),
            false => peers.iter().map(|(id, place)| (*id, BasicNode::new(place))).collect(),
        };
        match self.raft.initialize(members).await {
            Ok(()) => tracing::info!(node = self.id, "a cluster of {} begins", peers.len().max(1)),
            // Another one was quicker.
            Err(error) => tracing::debug!("not begun here: {error}"),
        }
    }
}
