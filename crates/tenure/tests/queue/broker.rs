//! The connection to the broker with an attacker in between.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::Tenure;
use tenure::port::*;
use tenure::store::memory::MemoryStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::instrumented_store::InstrumentedStore;
use crate::support::*;

/// An attacker between clients and the broker that records everything, and changes bytes on demand.
struct Interceptor {
    address: String,
    broker: Arc<Mutex<String>>,
    traffic: Arc<Mutex<Vec<Vec<u8>>>>,
    tampers: Arc<AtomicBool>,
    /// Number of bytes from the broker to let through before blocking.
    byte_budget: Arc<AtomicUsize>,
    /// The forwarding tasks.
    forwarders: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Interceptor {
    async fn new() -> Interceptor {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let interceptor = Interceptor {
            address: listener.local_addr().unwrap().to_string(),
            broker: Arc::default(),
            traffic: Arc::default(),
            tampers: Arc::default(),
            byte_budget: Arc::new(AtomicUsize::new(usize::MAX)),
            forwarders: Arc::default(),
        };
        let (broker, traffic, tampers) =
            (interceptor.broker.clone(), interceptor.traffic.clone(), interceptor.tampers.clone());
        let (byte_budget, forwarders) = (interceptor.byte_budget.clone(), interceptor.forwarders.clone());
        tokio::spawn(async move {
            loop {
                let (requester, _) = listener.accept().await.unwrap();
                let there = broker.lock().unwrap().clone();
                let Ok(there) = TcpStream::connect(there).await else { continue };
                let index = {
                    let mut traffic = traffic.lock().unwrap();
                    traffic.extend([Vec::new(), Vec::new()]);
                    traffic.len() - 2
                };
                let ((from_requester, to_requester), (from_broker, to_broker)) =
                    (requester.into_split(), there.into_split());
                let all = Arc::new(AtomicUsize::new(usize::MAX));
                let there = forward(from_requester, to_broker, traffic.clone(), index, tampers.clone(), all);
                let back = forward(
                    from_broker,
                    to_requester,
                    traffic.clone(),
                    index + 1,
                    tampers.clone(),
                    byte_budget.clone(),
                );
                let both = [tokio::spawn(there).abort_handle(), tokio::spawn(back).abort_handle()];
                forwarders.lock().unwrap().extend(both);
            }
        });
        interceptor
    }

    /// Closes all connections between clients and the broker.
    fn cut(&self) {
        self.forwarders.lock().unwrap().drain(..).for_each(|forward| forward.abort());
    }

    /// Everything sent from clients to the broker, by connection.
    fn client_traffic(&self) -> Vec<Vec<u8>> {
        self.traffic.lock().unwrap().iter().step_by(2).cloned().collect()
    }
}

async fn forward(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    traffic: Arc<Mutex<Vec<Vec<u8>>>>,
    index: usize,
    tampers: Arc<AtomicBool>,
    byte_budget: Arc<AtomicUsize>,
) {
    let mut bytes = [0; 4096];
    loop {
        while byte_budget.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(MS).await;
        }
        let room = bytes.len().min(byte_budget.load(Ordering::SeqCst));
        let Ok(count @ 1..) = from.read(&mut bytes[..room]).await else { return };
        if byte_budget.load(Ordering::SeqCst) < usize::MAX {
            byte_budget.fetch_sub(count, Ordering::SeqCst);
        }
        traffic.lock().unwrap()[index].extend_from_slice(&bytes[..count]);
        if tampers.load(Ordering::SeqCst) {
            bytes[count - 1] ^= 1;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

/// A broker behind the interceptor, a client, and an exclusive queue.
async fn broker_and_requester(interceptor: &Interceptor) -> (Tenure, Tenure, InstrumentedStore, QueueKey) {
    let memory = MemoryStore::new();
    let (one, two) = (InstrumentedStore::new(memory.clone()), InstrumentedStore::new(memory));
    // A free port: the interceptor must know the listen address, and the broker advertises the interceptor's address.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    *interceptor.broker.lock().unwrap() = free.clone();
    let broker = Tenure::builder().store(one.clone()).name("leader").lease(SECOND);
    let broker = broker.broker_listen(free).broker_advertise(&interceptor.address).open().await.unwrap();
    broker.tasks().campaign_for_maintenance().await.unwrap();
    until("it is broker", async || one.store.broker_endpoint().await.unwrap().is_some()).await;
    let requester = real_process(&two, "requester").await;
    let mail = queue("mail");
    set_mode(&one, &mail, AssignmentMode::Exclusive, BrokerFallback::None).await;
    (broker, requester, one, mail)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eavesdropper_learns_nothing_and_a_replay_gets_nothing() {
    let interceptor = Interceptor::new().await;
    let (broker, requester, store, mail) = broker_and_requester(&interceptor).await;
    let secret = NewTask { payload: r#""open sesame""#.parse().unwrap(), ..NewTask::new("k") };
    broker.tasks().submit(&mail, vec![secret, NewTask::new("k")]).await.unwrap();
    let claimed = tasks(
        requester.tasks().claim(&mail, claim_request(&requester, "needle", 1), 60 * SECOND).await.unwrap(),
    );
    assert_eq!(claimed[0].payload.as_str(), r#""open sesame""#);
    let traffic = interceptor.traffic.lock().unwrap().concat();
    for word in ["sesame", "needle", "mail"] {
        assert!(!traffic.windows(word.len()).any(|bytes| bytes == word.as_bytes()), "{word} was readable");
    }
    let (claims, there) = (store.calls("claim"), interceptor.broker.lock().unwrap().clone());
    for recorded in interceptor.client_traffic().into_iter().filter(|bytes_sent| !bytes_sent.is_empty()) {
        let mut again = TcpStream::connect(&there).await.unwrap();
        again.write_all(&recorded).await.unwrap();
        let mut reply = Vec::new();
        // The broker sends its nonce and then closes the connection.
        let _ = again.read_to_end(&mut reply).await;
        assert_eq!(reply.len(), 32, "a replay gets only a nonce");
    }
    assert_eq!(store.calls("claim"), claims, "no claim was made");
    assert_eq!(counts(&store, &mail).await, [(TaskState::Ready, 1), (TaskState::Claimed, 1)].into());
    requester.close().await.unwrap();
    broker.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_byte_breaks_only_the_connection() {
    let interceptor = Interceptor::new().await;
    let (broker, requester, store, mail) = broker_and_requester(&interceptor).await;
    broker.tasks().submit(&mail, many(2)).await.unwrap();
    let first =
        tasks(requester.tasks().claim(&mail, claim_request(&requester, "w", 1), 60 * SECOND).await.unwrap());
    assert_eq!(first[0].claim_seq, Some(1));
    interceptor.tampers.store(true, Ordering::SeqCst);
    let waiting = tokio::spawn({
        let (claims, mail, request) = (requester.tasks(), mail.clone(), claim_request(&requester, "w", 1));
        async move { tasks(claims.claim(&mail, request, 60 * SECOND).await.unwrap()) }
    });
    let connections = interceptor.client_traffic().len();
    until("it reconnects", async || interceptor.client_traffic().len() > connections + 1).await;
    assert!(!waiting.is_finished());
    interceptor.tampers.store(false, Ordering::SeqCst);
    assert_eq!(waiting.await.unwrap().len(), 1);
    assert_eq!(counts(&store, &mail).await, [(TaskState::Claimed, 2)].into());
    requester.close().await.unwrap();
    broker.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_and_excessive_lengths_end_only_their_connection() {
    let interceptor = Interceptor::new().await;
    let (broker, requester, _, mail) = broker_and_requester(&interceptor).await;
    let there = interceptor.broker.lock().unwrap().clone();
    let number = [7; 32];
    let garbage: [Vec<u8>; 4] = [
        vec![0; 4],
        u32::MAX.to_be_bytes().to_vec(),
        [40u32.to_be_bytes().to_vec(), vec![1; 40]].concat(),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
    ];
    for garbage in garbage {
        let mut stranger = TcpStream::connect(&there).await.unwrap();
        stranger.write_all(&number).await.unwrap();
        stranger.write_all(&garbage).await.unwrap();
        let mut reply = Vec::new();
        let _ = stranger.read_to_end(&mut reply).await;
        assert_eq!(reply.len(), 32);
    }
    broker.tasks().submit(&mail, many(1)).await.unwrap();
    let claimed =
        tasks(requester.tasks().claim(&mail, claim_request(&requester, "w", 1), 60 * SECOND).await.unwrap());
    assert_eq!(claimed.len(), 1);
    requester.close().await.unwrap();
    broker.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_of_any_size_arrive() {
    let interceptor = Interceptor::new().await;
    let (broker, requester, _, mail) = broker_and_requester(&interceptor).await;
    let large =
        |fill: &str| NewTask { payload: RawJson::of(&fill.repeat(900_000)).unwrap(), ..NewTask::new("k") };
    let all = ["a", "b", "c", "d", "e", "f", "g"].map(large);
    broker.tasks().submit(&mail, all.to_vec()).await.unwrap();
    let claimed = tasks(
        requester
            .tasks()
            .claim(&mail, claim_request(&requester, "w", 10), Duration::from_secs(60))
            .await
            .unwrap(),
    );
    let payloads: Vec<&RawJson> = claimed.iter().map(|task| &task.payload).collect();
    assert_eq!(payloads, all.iter().map(|task| &task.payload).collect::<Vec<_>>());
    requester.close().await.unwrap();
    broker.close().await.unwrap();
}

/// The broker sends many large replies; the client reads the first one and works on it; then the connection
/// breaks. The broker must not release tasks that the client may have received.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_broker_does_not_release_tasks_that_may_have_been_sent() {
    let interceptor = Interceptor::new().await;
    let (broker, requester, store, mail) = broker_and_requester(&interceptor).await;
    let (outcomes, mut done) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..12 {
        let (claims, mail, request) = (requester.tasks(), mail.clone(), claim_request(&requester, "w", 1));
        let outcomes = outcomes.clone();
        tokio::spawn(async move { outcomes.send(claims.claim(&mail, request, 60 * SECOND).await) });
    }
    until("all claims wait at the broker", async || store.calls("register_queue_waiter") >= 1).await;
    tokio::time::sleep(100 * MS).await;
    interceptor.byte_budget.store(1_200_000, Ordering::SeqCst);
    let large = NewTask { payload: RawJson::of(&"x".repeat(900_000)).unwrap(), ..NewTask::new("k") };
    broker.tasks().submit(&mail, vec![large; 12]).await.unwrap();
    let first = tasks(done.recv().await.unwrap().unwrap());
    // The interceptor blocks in the middle of the second reply.
    until("the connection is blocked", async || interceptor.byte_budget.load(Ordering::SeqCst) == 0).await;
    interceptor.cut();
    interceptor.byte_budget.store(usize::MAX, Ordering::SeqCst);
    broker.tasks().submit(&mail, many(1)).await.unwrap();
    // Enough time for the broker to release the tasks and claim them again. If it released the first task, that
    // task would be claimed first.
    tokio::time::sleep(300 * MS).await;
    let again = tasks(done.recv().await.unwrap().unwrap());
    assert_ne!(again[0].id, first[0].id);
    let settled = requester.tasks().settle(complete(&first[0])).await.unwrap();
    assert_eq!(settled, SettleResult::Applied(TaskState::Completed), "it was released while a worker had it");
    requester.close().await.unwrap();
    broker.close().await.unwrap();
}

/// A server that claims for the session of a client cannot find lost claims of that session. So the caller gets
/// the error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_outcome_of_a_claim_on_another_session_is_reported_to_the_caller() {
    let interceptor = Interceptor::new().await;
    let (broker, requester, store, mail) = broker_and_requester(&interceptor).await;
    let client = real_process(&store, "client").await;
    broker.tasks().submit(&mail, many(1)).await.unwrap();
    let theirs = claim_request(&client, "w", 1);
    tasks(requester.tasks().claim(&mail, theirs.clone(), 60 * SECOND).await.unwrap());
    let registrations = store.calls("register_queue_waiter");
    let waiting = tokio::spawn({
        let (claims, mail) = (requester.tasks(), mail.clone());
        async move { claims.claim(&mail, theirs, 60 * SECOND).await }
    });
    until("it waits at the broker", async || store.calls("register_queue_waiter") > registrations).await;
    interceptor.cut();
    waiting.await.unwrap().unwrap_err();
    for one in [client, requester, broker] {
        one.close().await.unwrap();
    }
}

/// Regression: silent connections of strangers took all places of the broker for five seconds each, and no
/// client could connect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_connects_while_strangers_hold_silent_connections() {
    // Both ends of each connection are in this process.
    assert!(tenure::open_files::raise_limit() >= 4_096, "this test needs `ulimit -Hn` of 4096");
    let interceptor = Interceptor::new().await;
    let (broker, requester, _, mail) = broker_and_requester(&interceptor).await;
    let there = interceptor.broker.lock().unwrap().clone();
    let (opened, mut so_many) = tokio::sync::watch::channel(0);
    let flood = tokio::spawn(async move {
        let mut silent = std::collections::VecDeque::new();
        for count in 0.. {
            silent.extend(TcpStream::connect(&there).await);
            // Fill all places, then open enough connections to evict each one before its time is over.
            if silent.len() > 1_100 {
                silent.pop_front();
                tokio::time::sleep(3 * MS).await;
            }
            opened.send_replace(count);
        }
    });
    so_many.wait_for(|count| *count > 1_200).await.unwrap();
    broker.tasks().submit(&mail, many(1)).await.unwrap();
    let claimed =
        tasks(requester.tasks().claim(&mail, claim_request(&requester, "w", 1), 30 * SECOND).await.unwrap());
    assert_eq!(claimed.len(), 1);
    flood.abort();
    requester.close().await.unwrap();
    broker.close().await.unwrap();
}
