use async_trait::async_trait;
use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;
use openraft::SnapshotMeta;

use super::super::ground;
use super::*;

/// Answers every question with the same words.
struct Parrot(Vec<u8>);

#[async_trait]
impl ground::Network for Parrot {
    async fn ask(&self, _: u64, _: &str, _: Vec<u8>) -> io::Result<Vec<u8>> {
        Ok(self.0.clone())
    }

    async fn listen(
        &self,
        _: u64,
        _: &str,
        _: Vec<u8>,
    ) -> io::Result<BoxStream<'static, io::Result<Vec<u8>>>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn serve(&self, _: &str, _: Arc<dyn ground::Answers>) -> io::Result<BoxFuture<'static, ()>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

async fn peer(answer: &impl Serialize) -> (Peer, mpsc::UnboundedReceiver<LaterVote>) {
    let parrot = Arc::new(Parrot(serde_json::to_vec(answer).unwrap()));
    let (later, heard) = mpsc::unbounded_channel();
    let lines = Lines::new(Some(1), parrot);
    let mut network = Network::new(lines, Arc::new(AtomicBool::new(true)), Heard::default(), later);
    (network.new_client(2, &BasicNode::new("b:1")).await, heard)
}

fn option() -> RPCOption {
    RPCOption::new(std::time::Duration::from_secs(1))
}

/// openraft's stream ended when it was answered with a later vote, and the leader stopped for good if it had to send a snapshot through it in that moment.
#[tokio::test]
async fn a_stream_never_hears_of_a_later_vote_and_the_core_does() {
    let (ours, later) = (Vote::new_committed(5, 1), Vote::new(6, 2));
    let answer: Result<_, RaftError<NodeId>> = Ok(AppendEntriesResponse::HigherVote(later));
    let (mut stream, mut heard) = peer(&answer).await;
    let heartbeat =
        AppendEntriesRequest { vote: ours, prev_log_id: None, entries: Vec::new(), leader_commit: None };
    let said = stream.append_entries(heartbeat, option()).await;
    assert!(matches!(said, Err(RPCError::Network(_))), "{said:?}");
    assert_eq!(heard.try_recv().unwrap(), (later, ours));

    let answer: Result<_, RaftError<NodeId, InstallSnapshotError>> =
        Ok(InstallSnapshotResponse { vote: later });
    let (mut stream, mut heard) = peer(&answer).await;
    let part = InstallSnapshotRequest {
        vote: ours,
        meta: SnapshotMeta::default(),
        offset: 0,
        data: Vec::new(),
        done: true,
    };
    let said = stream.install_snapshot(part, option()).await;
    assert!(matches!(said, Err(RPCError::Network(_))), "{said:?}");
    assert_eq!(heard.try_recv().unwrap(), (later, ours));
}

#[tokio::test]
async fn an_answer_in_the_same_term_is_passed_on() {
    let answer: Result<_, RaftError<NodeId>> = Ok(AppendEntriesResponse::<NodeId>::Success);
    let (mut stream, mut heard) = peer(&answer).await;
    let vote = Vote::new_committed(5, 1);
    let heartbeat =
        AppendEntriesRequest { vote, prev_log_id: None, entries: Vec::new(), leader_commit: None };
    assert!(stream.append_entries(heartbeat, option()).await.is_ok());
    assert!(heard.try_recv().is_err());
}
