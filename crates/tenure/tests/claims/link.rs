//! The way to the leader, with somebody on it who means harm.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::Tenure;
use tenure::backend::memory::Memory;
use tenure::port::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::spy::Spy;
use crate::support::*;

/// Somebody between the askers and the leader who hears everything, and changes bytes if told to.
struct Eve {
    address: String,
    leader: Arc<Mutex<String>>,
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
    meddles: Arc<AtomicBool>,
    /// How many bytes from the leader she lets through; then she waits.
    lets: Arc<AtomicUsize>,
    /// Those who pass things on.
    passing: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Eve {
    async fn new() -> Eve {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let eve = Eve {
            address: listener.local_addr().unwrap().to_string(),
            leader: Arc::default(),
            heard: Arc::default(),
            meddles: Arc::default(),
            lets: Arc::new(AtomicUsize::new(usize::MAX)),
            passing: Arc::default(),
        };
        let (leader, heard, meddles) = (eve.leader.clone(), eve.heard.clone(), eve.meddles.clone());
        let (lets, passing) = (eve.lets.clone(), eve.passing.clone());
        tokio::spawn(async move {
            loop {
                let (asker, _) = listener.accept().await.unwrap();
                let there = leader.lock().unwrap().clone();
                let Ok(there) = TcpStream::connect(there).await else { continue };
                let place = {
                    let mut heard = heard.lock().unwrap();
                    heard.extend([Vec::new(), Vec::new()]);
                    heard.len() - 2
                };
                let ((from_asker, to_asker), (from_leader, to_leader)) =
                    (asker.into_split(), there.into_split());
                let all = Arc::new(AtomicUsize::new(usize::MAX));
                let there = pass(from_asker, to_leader, heard.clone(), place, meddles.clone(), all);
                let back =
                    pass(from_leader, to_asker, heard.clone(), place + 1, meddles.clone(), lets.clone());
                let both = [tokio::spawn(there).abort_handle(), tokio::spawn(back).abort_handle()];
                passing.lock().unwrap().extend(both);
            }
        });
        eve
    }

    /// Cuts all that there is between askers and the leader.
    fn cut(&self) {
        self.passing.lock().unwrap().drain(..).for_each(|pass| pass.abort());
    }

    /// All that was said from askers to the leader, by connection.
    fn asked(&self) -> Vec<Vec<u8>> {
        self.heard.lock().unwrap().iter().step_by(2).cloned().collect()
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
    place: usize,
    meddles: Arc<AtomicBool>,
    lets: Arc<AtomicUsize>,
) {
    let mut bytes = [0; 4096];
    loop {
        while lets.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(MS).await;
        }
        let room = bytes.len().min(lets.load(Ordering::SeqCst));
        let Ok(count @ 1..) = from.read(&mut bytes[..room]).await else { return };
        if lets.load(Ordering::SeqCst) < usize::MAX {
            lets.fetch_sub(count, Ordering::SeqCst);
        }
        heard.lock().unwrap()[place].extend_from_slice(&bytes[..count]);
        if meddles.load(Ordering::SeqCst) {
            bytes[count - 1] ^= 1;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

/// A leader behind Eve, an asker, and an exclusive queue.
async fn leader_and_asker(eve: &Eve) -> (Tenure, Tenure, Spy, QueueKey) {
    let memory = Memory::new();
    let (one, two) = (Spy::new(memory.clone()), Spy::new(memory));
    // A free port: what is listened on must be known to Eve, and what is told is Eve's.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    *eve.leader.lock().unwrap() = free.clone();
    let leader = Tenure::builder().store(one.clone()).name("leader").lease(SECOND);
    let leader = leader.broker_listen(free).broker_advertise(&eve.address).open().await.unwrap();
    leader.claims().stand().await.unwrap();
    until("it leads", async || one.store.post().await.unwrap().is_some()).await;
    let asker = real_process(&two, "asker").await;
    let mail = queue("mail");
    set_mode(&one, &mail, Mode::Exclusive, Fallback::None).await;
    (leader, asker, one, mail)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_listens_learns_nothing_and_who_repeats_gets_nothing() {
    let eve = Eve::new().await;
    let (leader, asker, store, mail) = leader_and_asker(&eve).await;
    let secret = NewTask { payload: r#""open sesame""#.parse().unwrap(), ..NewTask::new("k") };
    leader.claims().submit(&mail, vec![secret, NewTask::new("k")]).await.unwrap();
    let got = tasks(asker.claims().claim(&mail, seat(&asker, "needle", 1), 60 * SECOND).await.unwrap());
    assert_eq!(got[0].payload.as_str(), r#""open sesame""#);
    let heard = eve.heard.lock().unwrap().concat();
    for word in ["sesame", "needle", "mail"] {
        assert!(!heard.windows(word.len()).any(|bytes| bytes == word.as_bytes()), "{word} was heard");
    }
    let (claims, there) = (store.calls("claim"), eve.leader.lock().unwrap().clone());
    for recorded in eve.asked().into_iter().filter(|said| !said.is_empty()) {
        let mut again = TcpStream::connect(&there).await.unwrap();
        again.write_all(&recorded).await.unwrap();
        let mut answer = Vec::new();
        // Its number, and then the end.
        let _ = again.read_to_end(&mut answer).await;
        assert_eq!(answer.len(), 32, "nothing but a number is said to who repeats");
    }
    assert_eq!(store.calls("claim"), claims, "nothing was asked for");
    assert_eq!(counts(&store, &mail).await, [(TaskState::Ready, 1), (TaskState::Claimed, 1)].into());
    asker.close().await.unwrap();
    leader.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_changes_a_byte_breaks_the_connection_and_nothing_else() {
    let eve = Eve::new().await;
    let (leader, asker, store, mail) = leader_and_asker(&eve).await;
    leader.claims().submit(&mail, many(2)).await.unwrap();
    let first = tasks(asker.claims().claim(&mail, seat(&asker, "w", 1), 60 * SECOND).await.unwrap());
    assert_eq!(first[0].turn, Some(1));
    eve.meddles.store(true, Ordering::SeqCst);
    let waiting = tokio::spawn({
        let (claims, mail, seat) = (asker.claims(), mail.clone(), seat(&asker, "w", 1));
        async move { tasks(claims.claim(&mail, seat, 60 * SECOND).await.unwrap()) }
    });
    let connections = eve.asked().len();
    until("it tries anew", async || eve.asked().len() > connections + 1).await;
    assert!(!waiting.is_finished());
    eve.meddles.store(false, Ordering::SeqCst);
    assert_eq!(waiting.await.unwrap().len(), 1);
    assert_eq!(counts(&store, &mail).await, [(TaskState::Claimed, 2)].into());
    asker.close().await.unwrap();
    leader.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_and_lengths_beyond_all_bounds_end_a_connection_and_nothing_else() {
    let eve = Eve::new().await;
    let (leader, asker, _, mail) = leader_and_asker(&eve).await;
    let there = eve.leader.lock().unwrap().clone();
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
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer).await;
        assert_eq!(answer.len(), 32);
    }
    leader.claims().submit(&mail, many(1)).await.unwrap();
    let got = tasks(asker.claims().claim(&mail, seat(&asker, "w", 1), 60 * SECOND).await.unwrap());
    assert_eq!(got.len(), 1);
    asker.close().await.unwrap();
    leader.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_any_size_come_through() {
    let eve = Eve::new().await;
    let (leader, asker, _, mail) = leader_and_asker(&eve).await;
    let large =
        |fill: &str| NewTask { payload: Json::of(&fill.repeat(900_000)).unwrap(), ..NewTask::new("k") };
    let all = ["a", "b", "c", "d", "e", "f", "g"].map(large);
    leader.claims().submit(&mail, all.to_vec()).await.unwrap();
    let got =
        tasks(asker.claims().claim(&mail, seat(&asker, "w", 10), Duration::from_secs(60)).await.unwrap());
    let payloads: Vec<&Json> = got.iter().map(|task| &task.payload).collect();
    assert_eq!(payloads, all.iter().map(|task| &task.payload).collect::<Vec<_>>());
    asker.close().await.unwrap();
    leader.close().await.unwrap();
}

/// The leader sends many large answers; the first is read, and worked on; then the connection breaks. What may have been read is
/// not the leader's to give back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_have_been_sent_is_not_given_back_by_the_leader() {
    let eve = Eve::new().await;
    let (leader, asker, store, mail) = leader_and_asker(&eve).await;
    let (outcomes, mut done) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..12 {
        let (claims, mail, seat) = (asker.claims(), mail.clone(), seat(&asker, "w", 1));
        let outcomes = outcomes.clone();
        tokio::spawn(async move { outcomes.send(claims.claim(&mail, seat, 60 * SECOND).await) });
    }
    until("all stand in line at the leader", async || store.calls("doze") >= 1).await;
    tokio::time::sleep(100 * MS).await;
    eve.lets.store(1_200_000, Ordering::SeqCst);
    let large = NewTask { payload: Json::of(&"x".repeat(900_000)).unwrap(), ..NewTask::new("k") };
    leader.claims().submit(&mail, vec![large; 12]).await.unwrap();
    let first = tasks(done.recv().await.unwrap().unwrap());
    // Stuck in the middle of the second.
    until("nothing passes", async || eve.lets.load(Ordering::SeqCst) == 0).await;
    eve.cut();
    eve.lets.store(usize::MAX, Ordering::SeqCst);
    leader.claims().submit(&mail, many(1)).await.unwrap();
    // Whatever the leader gives back is given back by then, and handed out again, the first first.
    tokio::time::sleep(300 * MS).await;
    let again = tasks(done.recv().await.unwrap().unwrap());
    assert_ne!(again[0].id, first[0].id);
    let settled = asker.claims().settle(complete(&first[0])).await.unwrap();
    assert_eq!(settled, Settled::Now(TaskState::Completed), "it was given back while it was worked on");
    asker.close().await.unwrap();
    leader.close().await.unwrap();
}

/// A server asks for the session of one of its clients: what was lost on the way is nothing that the server could find.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doubt_about_a_claim_on_somebody_elses_session_is_told_to_who_asks() {
    let eve = Eve::new().await;
    let (leader, asker, store, mail) = leader_and_asker(&eve).await;
    let client = real_process(&store, "client").await;
    leader.claims().submit(&mail, many(1)).await.unwrap();
    let theirs = seat(&client, "w", 1);
    tasks(asker.claims().claim(&mail, theirs.clone(), 60 * SECOND).await.unwrap());
    let dozes = store.calls("doze");
    let waiting = tokio::spawn({
        let (claims, mail) = (asker.claims(), mail.clone());
        async move { claims.claim(&mail, theirs, 60 * SECOND).await }
    });
    until("it waits at the leader", async || store.calls("doze") > dozes).await;
    eve.cut();
    waiting.await.unwrap().unwrap_err();
    for one in [client, asker, leader] {
        one.close().await.unwrap();
    }
}

/// Strangers who connected and said nothing took all connections of the leader for five seconds each, and no asker got in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_asker_gets_in_while_strangers_hold_silent_connections() {
    // Both ends of each connection are in this process.
    assert!(tenure::open_files::raise_limit() >= 4_096, "this test needs `ulimit -Hn` of 4096");
    let eve = Eve::new().await;
    let (leader, asker, _, mail) = leader_and_asker(&eve).await;
    let there = eve.leader.lock().unwrap().clone();
    let (opened, mut so_many) = tokio::sync::watch::channel(0);
    let flood = tokio::spawn(async move {
        let mut silent = std::collections::VecDeque::new();
        for count in 0.. {
            silent.extend(TcpStream::connect(&there).await);
            // As many as there were places for, and then enough to take each place again before its time is over.
            if silent.len() > 1_100 {
                silent.pop_front();
                tokio::time::sleep(3 * MS).await;
            }
            opened.send_replace(count);
        }
    });
    so_many.wait_for(|count| *count > 1_200).await.unwrap();
    leader.claims().submit(&mail, many(1)).await.unwrap();
    let got = tasks(asker.claims().claim(&mail, seat(&asker, "w", 1), 30 * SECOND).await.unwrap());
    assert_eq!(got.len(), 1);
    flood.abort();
    asker.close().await.unwrap();
    leader.close().await.unwrap();
}
