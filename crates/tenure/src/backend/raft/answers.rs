//! What a member says to who asks it.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use futures_core::future::BoxFuture;
use futures_util::StreamExt;
use serde::Serialize;
use tenure_core::port::{StoreError, Wake};
use tokio::sync::broadcast;

use super::ground::{Answers, Said};
use super::net::{Greeting, Question};
use super::node::Node;
use super::types::Outcome;

/// Answers for a member, for as long as there is one.
pub(super) struct Desk(pub(super) Weak<Node>);

impl Answers for Desk {
    fn answer(&self, question: Vec<u8>) -> BoxFuture<'static, Said> {
        let me = self.0.clone();
        Box::pin(async move {
            // One that has stopped is not there either: what it knows is of the past, and it can do nothing.
            let Some(node) = me.upgrade().filter(|node| node.stopped().is_none()) else {
                return Said::Nothing;
            };
            match serde_json::from_slice(&question) {
                Ok(question) => answer(&node, question).await,
                Err(error) => {
                    tracing::debug!("raft: a question that is none: {error}");
                    Said::Nothing
                }
            }
        })
    }
}

async fn answer(node: &Node, question: Question) -> Said {
    match question {
        Question::Hello(_, who) => {
            // Also from what is not known to be agreed on: after a start that is all that came since the last snapshot.
            let your_folder =
                who.and_then(|who| node.log.registered(who).or_else(|| node.machine.folder_of(who)));
            let your_log = who.and_then(|who| node.heard.of(who));
            let pristine = node.log.is_pristine();
            once(&Greeting { node: node.id, pristine, your_folder, your_log })
        }
        // Who takes no part promises nothing: to the others it is not there.
        Question::Append(_) | Question::Vote(_) | Question::Snapshot(_)
            if !node.is_fit.load(Ordering::Acquire) =>
        {
            Said::Nothing
        }
        Question::Append(ask) => once(&node.raft.append_entries(*ask).await),
        Question::Vote(ask) => once(&node.raft.vote(ask).await),
        Question::Snapshot(ask) => once(&node.raft.install_snapshot(*ask).await),
        Question::Change(entry) => told(node.change(*entry).await),
        Question::Look(look) => told(node.look(look).await),
        Question::Lead(entry) => told(node.lead(*entry).await),
        Question::See(look) => told(node.see(&look).await),
        Question::Status => once(&node.status()),
        Question::Elect => once(&node.elect().await),
        manage @ (Question::Admit(..) | Question::Dismiss(_) | Question::Transfer(_)) => {
            told(node.manage(manage).await)
        }
        Question::Wakes => {
            let resync = futures_util::stream::iter([Wake::Resync]);
            let wakes = futures_util::stream::unfold(node.wakes.subscribe(), async |mut wakes| {
                let wake = match wakes.recv().await {
                    Ok(wake) => wake,
                    Err(broadcast::error::RecvError::Lagged(_)) => Wake::Resync,
                    Err(broadcast::error::RecvError::Closed) => return None,
                };
                Some((wake, wakes))
            });
            let words = resync.chain(wakes).map(|wake| serde_json::to_vec(&wake).unwrap_or_default());
            Said::Often(words.boxed())
        }
    }
}

fn once(answer: &impl Serialize) -> Said {
    // The types of the port and of openraft are plain; writing them can not fail.
    serde_json::to_vec(answer).map_or(Said::Nothing, Said::Once)
}

fn told(outcome: Result<Outcome, StoreError>) -> Said {
    once(&outcome.unwrap_or_else(Outcome::refused))
}
