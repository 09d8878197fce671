//! The ordering torture: sixteen writers with transactions of random length, eight members that join, leave, die and are stopped.
//!
//! Each member lives on a thread of its own, so that it can die (its runtime is dropped, and with it every connection, in the middle
//! of whatever it does) and be stopped (its thread sleeps, for longer than its lease). In the end all that was committed must have been
//! handled, once, in order, and what was said under old tokens must have been refused. `scripts/chaos events` is the same with
//! real processes and servers that break, and for as long as you like.
//!
//! Once with handlers that do what they should, and once with fewer slots than lanes, so that events go by key and are marked when they are
//! done, with handlers that fail, panic and meet what passes, so that keys are set aside and follow, and with slots that are reset
//! in the middle of all that: what was done of such a slot is undone, and must be done again, once and in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::port::{Begin, GroupKey, NewEvent, Pause, TopicSettings};
use tenure::{Batch, Consumer, Publisher, Tenure};
use tenure_core::{Entropy, SplitMix};
use tokio::sync::{mpsc, oneshot};

use crate::events::books::{GROUP, Judged, SLOTS, topic};
use crate::events::reader::{Tell, Temper};

/// How many write, and how many read.
const WRITERS: u64 = 16;
const MEMBERS: usize = 8;

/// The lease of everybody: short, so that many fit into a run.
const LEASE: Duration = Duration::from_millis(800);

/// How many events must have been published to prove anything.
const ENOUGH: i64 = 100;

/// For how long things are broken.
const RAGE: Duration = Duration::from_secs(6);

/// How often the witness gets through before it is said that nothing more does: at least a quarter of a minute.
const PATIENCE: u32 = 300;

/// What else is done to them.
#[derive(Clone, Copy, Debug)]
struct Ordeal {
    slots: u32,
    temper: Temper,
    /// Whether slots are reset.
    resets: bool,
}

impl Ordeal {
    fn plain(pause_ms: u64) -> Ordeal {
        Ordeal { slots: SLOTS, temper: Temper::calm(pause_ms), resets: false }
    }

    fn harsh(pause_ms: u64) -> Ordeal {
        Ordeal { slots: 4, temper: Temper { pause_ms, concurrency: 4, one_fails_in: 40 }, resets: true }
    }
}

fn group() -> GroupKey {
    GroupKey::new(topic().unwrap(), GROUP.parse().unwrap())
}

/// What came of stale commits.
#[derive(Debug, Default)]
struct Stale {
    accepted: AtomicU64,
    refused: AtomicU64,
}

impl Stale {
    fn tell(self: &Arc<Self>) -> Tell {
        let stale = self.clone();
        Arc::new(move |accepted| {
            let count = if accepted { &stale.accepted } else { &stale.refused };
            count.fetch_add(1, Ordering::SeqCst);
        })
    }
}

/// What is done to a member.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Leaves,
    Dies,
    IsStopped(Duration),
}

/// A member, on its thread.
struct Life {
    fate: mpsc::UnboundedSender<Fate>,
    over: oneshot::Receiver<()>,
}

impl Life {
    fn is_over(&mut self) -> bool {
        !matches!(self.over.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    async fn ends(self, fate: Fate) {
        // It may be over already.
        let _ = self.fate.send(fate);
        let _ = self.over.await;
    }
}

/// Somebody with a topic and a group of his own, in the same store and at the same pace. On a machine that is starved nothing gets through
/// for as long as it takes; where his events do, and those of the torture do not, something is wrong.
struct Witness {
    publisher: Publisher,
    seen: mpsc::UnboundedReceiver<()>,
    consumer: Consumer,
}

impl Witness {
    async fn begin(home: &Tenure) -> Witness {
        let publisher = home.publisher("witness").unwrap();
        let settings = TopicSettings { slots: 1, ..TopicSettings::default() };
        while publisher.create_topic(&settings).await.is_err() {}
        let (told, seen) = mpsc::unbounded_channel();
        let consumer = loop {
            let told = told.clone();
            let handler = move |_: Batch| {
                let _ = told.send(());
                async {}
            };
            match home.consumer("witness", "witness").handler(handler).start().await {
                Ok(consumer) => break consumer,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        Witness { publisher, seen, consumer }
    }

    /// Until an event of his was published and handled.
    async fn round(&mut self) {
        while self.publisher.publish(NewEvent::new("round")).await.is_err() {}
        self.seen.recv().await;
    }

    async fn end(self) {
        let _ = self.consumer.drain().await;
    }
}

async fn open(url: &str, name: &str) -> Tenure {
    loop {
        match Tenure::builder().url(url).name(name).lease(LEASE).open().await {
            Ok(tenure) => return tenure,
            // A busy file, for example.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

fn print_seed() -> u64 {
    let seed = std::env::var("TENURE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| tenure::runtime::random() >> 32);
    println!("seed {seed}: TENURE_SEED={seed} draws the same fates again");
    seed
}

fn judge(judged: &Judged, stale: &Stale) {
    let (accepted, refused) = (stale.accepted.load(Ordering::SeqCst), stale.refused.load(Ordering::SeqCst));
    println!("{judged:?}; stale commits: {accepted} accepted, {refused} refused");
    assert_eq!((judged.lost, judged.reordered, judged.doubled), (0, 0, 0), "{:#?}", judged.amiss);
    assert!(judged.amiss.is_empty(), "{:#?}", judged.amiss);
    assert_eq!(accepted, 0);
    assert!(refused > 0, "no stale commit was ever refused: the tokens were not put to the test");
    assert!(judged.published > 100, "too little happened to prove anything");
}

macro_rules! torture_on {
    ($dialect:ident, $patience_ms:literal) => {
        mod $dialect {
            use super::*;
            use crate::events::{books::$dialect as books, reader::$dialect as reader};

            type Db = <super::pools::$dialect as super::pools::Pools>::Db;

            /// Lives until it is told otherwise.
            fn live(url: &str, name: String, late: &mpsc::UnboundedSender<Batch>, temper: Temper) -> Life {
                let (fate, mut fates) = mpsc::unbounded_channel();
                let (ended, over) = oneshot::channel();
                let (url, late) = (url.to_owned(), late.clone());
                std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(async {
                        let tenure = open(&url, &name).await;
                        let pool = super::pools::$dialect::connect(&url, 4).await;
                        let Ok(consumer) = reader::join(&tenure, &pool, late, temper).await else {
                            return;
                        };
                        while let Some(fate) = fates.recv().await {
                            match fate {
                                Fate::Leaves => {
                                    let _ = consumer.drain().await;
                                    let _ = tenure.close().await;
                                    return;
                                }
                                // Nothing more happens on this runtime.
                                Fate::Dies => return,
                                Fate::IsStopped(time) => std::thread::sleep(time),
                            }
                        }
                    });
                    drop(runtime);
                    let _ = ended.send(());
                });
                Life { fate, over }
            }

            pub(super) async fn run(url: &str, ordeal: Ordeal) {
                let mut dice = SplitMix::new(print_seed());
                let home = open(url, "home").await;
                let settings = TopicSettings { slots: ordeal.slots, ..TopicSettings::default() };
                home.store().set_topic(&topic().unwrap(), &settings).await.unwrap();
                let pool = super::pools::$dialect::connect(url, 20).await;
                books::create(&pool).await.unwrap();
                let stale = Arc::new(Stale::default());
                // He survives those whose batches he has.
                let (late, lost) = mpsc::unbounded_channel();
                tokio::spawn(reader::careless(home.clone(), pool.clone(), lost, stale.tell()));

                let (stop, stopped) = tokio::sync::watch::channel(false);
                let writers: Vec<_> = (0..WRITERS)
                    .map(|writer| {
                        let (mut dice, pool) = (SplitMix::new(dice.next_u64()), pool.clone());
                        let stopped = stopped.clone();
                        tokio::spawn(async move {
                            while !*stopped.borrow() {
                                // What fails was rolled back, or not: the books say.
                                let _ = books::write(&pool, &mut dice, $patience_ms, writer).await;
                                tokio::time::sleep(Duration::from_millis(dice.next_u64() % 30)).await;
                            }
                        })
                    })
                    .collect();

                let mut lives: Vec<Life> =
                    (0..MEMBERS).map(|n| live(url, format!("member-{n}"), &late, ordeal.temper)).collect();
                let until = tenure::runtime::now() + RAGE;
                let mut resets = 0;
                // On a machine that is starved, for as long as it takes to prove something.
                loop {
                    let published = books::counts(&pool).await.map_or(0, |(published, _)| published);
                    let proven = published > ENOUGH
                        && stale.refused.load(Ordering::SeqCst) > 0
                        && (resets > 0 || !ordeal.resets);
                    if proven && tenure::runtime::now() >= until {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(150 + dice.next_u64() % 300)).await;
                    if ordeal.resets && dice.next_u64() % 5 == 0 {
                        let slot = u32::try_from(dice.next_u64()).unwrap_or(0) % ordeal.slots;
                        resets += u32::from(reset(&home, &pool, slot, ordeal.slots).await);
                    }
                    let n = (dice.next_u64() % MEMBERS as u64) as usize;
                    if lives[n].is_over() {
                        lives[n] = live(url, format!("member-{n}"), &late, ordeal.temper);
                        continue;
                    }
                    let longer = LEASE.mul_f64(1.5) + Duration::from_millis(dice.next_u64() % 800);
                    let fate = [Fate::Leaves, Fate::Dies, Fate::IsStopped(longer), Fate::IsStopped(longer)];
                    let _ = lives[n].fate.send(fate[(dice.next_u64() % 4) as usize]);
                }
                stop.send(true).unwrap();
                for writer in writers {
                    writer.await.unwrap();
                }
                let again = |n: usize| live(url, format!("member-{n}"), &late, ordeal.temper);
                settle(&home, &pool, &mut lives, again).await;
                for life in lives {
                    life.ends(Fate::Leaves).await;
                }
                println!("{resets} resets");
                judge(&books::judge(&pool).await.unwrap(), &stale);
                home.close().await.unwrap();
            }

            /// Puts a slot back to its beginning, and undoes what was done of it. Paused, nobody begins what is to be undone; and what was
            /// begun before is refused, since the tokens are new. Whether it came to that.
            async fn reset(home: &Tenure, pool: &sqlx::Pool<Db>, slot: u32, slots: u32) -> bool {
                let (store, group) = (home.store(), group());
                let pause = Pause { by: "torture".into(), reason: String::new(), at_ms: 0 };
                if store.set_group_paused(&group, Some(&pause)).await.is_err() {
                    return false;
                }
                let reset = store.reset_group(&group, Begin::Earliest, Some(slot), false).await;
                println!("slot {slot} is reset: {reset:?}");
                let reset = reset.is_ok();
                // It is reset, and so it must be.
                while reset && books::forget(pool, slot, slots).await.is_err() {}
                while store.set_group_paused(&group, None).await.is_err() {}
                reset
            }

            /// Waits until all is read, or nothing more is while others get through. A member may still be told of a death that it was to
            /// die before: there is another in its place then.
            async fn settle(
                home: &Tenure,
                pool: &sqlx::Pool<Db>,
                lives: &mut [Life],
                again: impl Fn(usize) -> Life,
            ) {
                let mut witness = Witness::begin(home).await;
                let (mut last, mut idle) = (-1, 0);
                while idle < PATIENCE {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    for (n, life) in lives.iter_mut().enumerate() {
                        if life.is_over() {
                            *life = again(n);
                        }
                    }
                    let Ok((published, effects)) = books::counts(pool).await else { continue };
                    if effects >= published {
                        witness.end().await;
                        return;
                    }
                    witness.round().await;
                    idle = if effects > last { 0 } else { idle + 1 };
                    last = effects;
                }
                println!("nothing gets through any more: {:#?}", home.store().group(&group()).await);
            }
        }
    };
}

/// Pools of the user's own.
mod pools {
    pub(super) trait Pools {
        type Db: sqlx::Database;
    }

    #[allow(non_camel_case_types)]
    pub(super) struct sqlite;

    impl Pools for sqlite {
        type Db = sqlx::Sqlite;
    }

    impl sqlite {
        pub(super) async fn connect(url: &str, most: u32) -> sqlx::SqlitePool {
            let options: sqlx::sqlite::SqliteConnectOptions = url.parse().unwrap();
            let options = options.busy_timeout(std::time::Duration::from_secs(5));
            sqlx::sqlite::SqlitePoolOptions::new().max_connections(most).connect_with(options).await.unwrap()
        }
    }

    #[allow(non_camel_case_types)]
    pub(super) struct postgres;

    impl Pools for postgres {
        type Db = sqlx::Postgres;
    }

    impl postgres {
        pub(super) async fn connect(url: &str, most: u32) -> sqlx::PgPool {
            sqlx::postgres::PgPoolOptions::new().max_connections(most).connect(url).await.unwrap()
        }
    }
}

torture_on!(sqlite, 2);
torture_on!(postgres, 20);

async fn on_sqlite(ordeal: Ordeal) {
    let folder = tempfile::tempdir().unwrap();
    sqlite::run(&format!("sqlite:{}", folder.path().join("torture.db").display()), ordeal).await;
}

async fn on_postgres(ordeal: Ordeal) {
    let database = crate::support::migrated().await;
    postgres::run(database.url(), ordeal).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_nothing_is_lost_reordered_or_doubled() {
    on_sqlite(Ordeal::plain(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_nothing_is_lost_reordered_or_doubled() {
    on_postgres(Ordeal::plain(40)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_with_handlers_that_fail_lanes_and_resets_nothing_is_lost_reordered_or_doubled() {
    on_sqlite(Ordeal::harsh(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_with_handlers_that_fail_lanes_and_resets_nothing_is_lost_reordered_or_doubled() {
    on_postgres(Ordeal::harsh(20)).await;
}
