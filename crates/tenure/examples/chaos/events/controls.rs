//! Negative controls for events: each known mistake must be reported by the books.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tenure::Outbox;
use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure::event::slot_of;
use tenure::port::{
    Backend, Begin, Committed, Event, GroupKey, Join, ReadAsk, ShareCommit, TakeShares, Taken, TopicSettings,
};
use tenure_testkit::conformance::Actor;
use tokio::runtime::Handle;

use super::books::{GROUP, SLOTS, postgres as books, topic};
use super::pools;
use crate::Failed;
use crate::report::Progress;
use crate::theatre::{Control, Theatre};

/// Plays all controls.
pub(super) fn run(progress: &mut Progress, runtime: &Handle) -> Result<Vec<Control>, Failed> {
    let mut theatre = Theatre::open(progress, runtime)?;
    let no_token =
        ("commit_share", "AND s.token = in_token AND s.session IS NOT NULL FOR UPDATE", "FOR UPDATE");
    let no_lock = (
        "place_batch",
        "s.topic = NEW.topic AND s.slot = NEW.slot FOR UPDATE;",
        "s.topic = NEW.topic AND s.slot = NEW.slot;",
    );
    Ok(vec![
        theatre.control("an offset outside of the transaction", &[], judged(offset_apart))?,
        theatre.control("a commit without its token", &[no_token], judged(stale_commit))?,
        theatre.control("a position without its slot's lock", &[no_lock], judged(late_commit))?,
    ])
}

/// A script, and then a look at the books.
fn judged(
    script: impl AsyncFn(&Scene, bool) -> Result<(), Failed>,
) -> impl AsyncFn(&str, bool) -> Result<bool, Failed> {
    async move |url, wrong| {
        let scene = Scene::open(url).await?;
        script(&scene, wrong).await?;
        let judged = books::judge(&scene.pool).await?;
        Ok(judged.lost + judged.reordered + judged.doubled > 0)
    }
}

/// A database with the books, and a store on it.
struct Scene {
    store: Arc<dyn Backend>,
    pool: PgPool,
    group: GroupKey,
}

/// A member that has every slot.
struct Reader<'a> {
    scene: &'a Scene,
    actor: Actor,
    shares: Vec<Taken>,
}

impl Scene {
    async fn open(url: &str) -> Result<Scene, Failed> {
        let store: Arc<dyn Backend> = Arc::new(Postgres::connect(PostgresOptions::new(url)).await?);
        let settings = TopicSettings { slots: SLOTS, ..TopicSettings::default() };
        store.set_topic(&topic()?, &settings).await?;
        let pool = pools::postgres(url, 8)?;
        books::create(&pool).await?;
        Ok(Scene { store, pool, group: GroupKey::new(topic()?, GROUP.parse()?) })
    }

    async fn publish(&self, key: &str) -> Result<(), Failed> {
        let mut tx = self.pool.begin().await?;
        books::publish(&mut tx, key).await?;
        Ok(tx.commit().await?)
    }

    /// Joins the group, and takes all that is free.
    async fn reader(&self, name: &str) -> Result<Reader<'_>, Failed> {
        let actor = Actor::open(self.store.clone(), name).await;
        let (group, session) = (self.group.clone(), actor.id.clone());
        let join = Join {
            group: group.clone(),
            session: session.clone(),
            member: name.into(),
            from: Begin::Earliest,
        };
        let look = self.store.join_group(&join).await?;
        let slots = look.shares.iter().map(|share| (share.slot, share.token)).collect();
        let shares = self.store.take_shares(&TakeShares { group, session, slots }).await?;
        if shares.len() != SLOTS as usize {
            return Err("not all slots were free".into());
        }
        Ok(Reader { scene: self, actor, shares })
    }
}

impl Reader<'_> {
    /// What is there after where the slots stood when they were taken, or `after`.
    async fn read(&self, after: &[ShareCommit]) -> Result<Vec<Event>, Failed> {
        let position = |share: &Taken| {
            let said = after.iter().find(|commit| commit.slot == share.slot);
            said.and_then(|commit| commit.position).unwrap_or(share.position)
        };
        let after = self.shares.iter().map(|share| (share.slot, position(share))).collect();
        Ok(self.scene.store.read_events(&ReadAsk { topic: topic()?, after, limit: 100 }).await?)
    }

    /// What is said when these events are done.
    fn words(&self, events: &[Event]) -> Vec<ShareCommit> {
        let mut words = Vec::<ShareCommit>::new();
        for event in events {
            let share = self.shares.iter().find(|share| share.slot == event.slot);
            words.retain(|word| word.slot != event.slot);
            words.extend(share.map(|share| ShareCommit {
                group: self.scene.group.clone(),
                slot: share.slot,
                token: share.token,
                position: Some(event.position),
                done: Vec::new(),
                set_aside: Vec::new(),
                settled: Vec::new(),
            }));
        }
        words
    }

    /// Does all in one transaction, as the library does; whether it counts.
    async fn handle(&self, events: &[Event]) -> Result<bool, Failed> {
        let mut tx = self.scene.pool.begin().await?;
        books::keep(events, &mut tx, "m").await.map_err(|error| error.to_string())?;
        for word in self.words(events) {
            if tx.commit_share(&word, Duration::from_secs(10)).await? == Committed::Stale {
                return Ok(false);
            }
        }
        tx.commit().await?;
        Ok(true)
    }

    async fn leave(&self) -> Result<(), Failed> {
        Ok(self.scene.store.leave_group(&self.scene.group, &self.actor.id).await?)
    }
}

/// A member dies between what it does and saying how far it has read.
async fn offset_apart(scene: &Scene, wrong: bool) -> Result<(), Failed> {
    scene.publish("key-1").await?;
    let first = scene.reader("first").await?;
    let events = first.read(&[]).await?;
    let mut tx = scene.pool.begin().await?;
    books::keep(&events, &mut tx, "first").await.map_err(|error| error.to_string())?;
    if wrong {
        tx.commit().await?;
    } else {
        tx.rollback().await?;
    }
    first.leave().await?;
    let second = scene.reader("second").await?;
    let events = second.read(&[]).await?;
    second.handle(&events).await?;
    Ok(())
}

/// A member that was stopped goes on when another has had its slots, and done what it was about to do.
async fn stale_commit(scene: &Scene, _: bool) -> Result<(), Failed> {
    scene.publish("key-1").await?;
    let first = scene.reader("first").await?;
    let events = first.read(&[]).await?;
    first.leave().await?;
    let second = scene.reader("second").await?;
    second.handle(&second.read(&[]).await?).await?;
    first.handle(&events).await?;
    Ok(())
}

/// A transaction has its position, and commits after one that came later.
async fn late_commit(scene: &Scene, _: bool) -> Result<(), Failed> {
    let slot = slot_of("key-0", SLOTS);
    let other = (1..).map(|n| format!("key-{n}")).find(|key| slot_of(key, SLOTS) == slot).unwrap_or_default();
    let reader = scene.reader("m").await?;
    let mut early = scene.pool.begin().await?;
    books::publish(&mut early, "key-0").await?;
    sqlx::query("SET CONSTRAINTS ALL IMMEDIATE").execute(&mut *early).await?;
    // Under the lock, it waits for the early one.
    let late = scene.publish(&other);
    let then = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let read = reader.read(&[]).await?;
        reader.handle(&read).await?;
        early.commit().await?;
        Ok::<_, Failed>(reader.words(&read))
    };
    let (published, said) = tokio::join!(late, then);
    published?;
    let rest = reader.read(&said?).await?;
    reader.handle(&rest).await?;
    Ok(())
}
