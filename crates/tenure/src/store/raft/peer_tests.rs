use async_trait::async_trait;
use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;
use openraft::SnapshotMeta;

use super::super::env;
use super::*;

/// A network that gives the same reply to every request.
struct FixedReply(Vec<u8>);

#[async_trait]
impl env::Network for FixedReply {
    async fn request(&self, _: u64, _: &str, _: Vec<u8>) -> io::Result<Vec<u8>> {
        Ok(self.0.clone())
    }

    async fn subscribe(
        &self,
        _: u64,
        _: &str,
        _: Vec<u8>,
    ) -> io::Result<BoxStream<'static, io::Result<Vec<u8>>>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn serve(&self, _: &str, _: Arc<dyn env::RequestHandler>) -> io::Result<BoxFuture<'static, ()>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

async fn peer(answer: &impl Serialize) -> (Peer, mpsc::UnboundedReceiver<LaterVote>) {
    let network = Arc::new(FixedReply(serde_json::to_vec(answer).unwrap()));
    let (later, votes) = mpsc::unbounded_channel();
    let client = RaftClient::new(Some(1), network);
    let mut network = PeerNetwork::new(client, Arc::new(AtomicBool::new(true)), AckedLogs::default(), later);
    (network.new_client(2, &BasicNode::new("b:1")).await, votes)
}

fn option() -> RPCOption {
    RPCOption::new(std::time::Duration::from_secs(1))
}

/// Regression test: the replication stream of openraft ended when it received a higher vote, and the leader stopped
/// permanently if it had to send a snapshot through the stream at that moment.
#[tokio::test]
async fn a_higher_vote_reaches_the_core_but_not_the_stream() {
    let (ours, later) = (Vote::new_committed(5, 1), Vote::new(6, 2));
    let answer: Result<_, RaftError<NodeId>> = Ok(AppendEntriesResponse::HigherVote(later));
    let (mut stream, mut votes) = peer(&answer).await;
    let heartbeat =
        AppendEntriesRequest { vote: ours, prev_log_id: None, entries: Vec::new(), leader_commit: None };
    let result = stream.append_entries(heartbeat, option()).await;
    assert!(matches!(result, Err(RPCError::Network(_))), "{result:?}");
    assert_eq!(votes.try_recv().unwrap(), (later, ours));

    let answer: Result<_, RaftError<NodeId, InstallSnapshotError>> =
        Ok(InstallSnapshotResponse { vote: later });
    let (mut stream, mut votes) = peer(&answer).await;
    let part = InstallSnapshotRequest {
        vote: ours,
        meta: SnapshotMeta::default(),
        offset: 0,
        data: Vec::new(),
        done: true,
    };
    let result = stream.install_snapshot(part, option()).await;
    assert!(matches!(result, Err(RPCError::Network(_))), "{result:?}");
    assert_eq!(votes.try_recv().unwrap(), (later, ours));
}

#[tokio::test]
async fn a_reply_in_the_same_term_is_returned() {
    let answer: Result<_, RaftError<NodeId>> = Ok(AppendEntriesResponse::<NodeId>::Success);
    let (mut stream, mut votes) = peer(&answer).await;
    let vote = Vote::new_committed(5, 1);
    let heartbeat =
        AppendEntriesRequest { vote, prev_log_id: None, entries: Vec::new(), leader_commit: None };
    assert!(stream.append_entries(heartbeat, option()).await.is_ok());
    assert!(votes.try_recv().is_err());
}
