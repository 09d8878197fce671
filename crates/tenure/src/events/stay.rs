//! A member's stay in its group, from joining under a session until that is lost or the consumer stops.
//!
//! It *attends*: looks at the group whenever something changed there, and at least once a beat; gives up what is not its own any more,
//! and takes what is ([`assign`]). Nobody tells it to: all members see the same, and come to the same conclusion. A share that
//! is given up is freed only when what was begun of it is done and committed, so its next holder goes on where this one ended.
//!
//! When the store is away, nothing changes hands, and what is held is delivered until the session is not trusted any more.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tenure_core::SessionId;
use tenure_core::event::assign;
use tenure_core::port::{Begin, GroupKey, GroupLook, Join, StoreError, TakeShares};
use tokio::sync::{Notify, watch};

use super::handler::Deliver;
use super::shares::Shares;
use crate::claims::hub::{Hub, locked};
use crate::metrics;
use crate::outage::{OutageLog, log_failure, log_recovery};

/// How many rounds go by before it is looked at how what is aside stands, if nobody rings: there may be very many keys.
const ASIDE_ROUNDS: u32 = 16;

/// Whether a consumer goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// It does.
    No,
    /// It finishes what it has begun.
    Drain,
    /// It drops what it has begun.
    Now,
}

/// What a consumer is told to do.
pub(super) struct Orders {
    pub(super) hub: Arc<Hub>,
    pub(super) group: Arc<GroupKey>,
    pub(super) member: String,
    pub(super) from: Begin,
    pub(super) batch: usize,
    pub(super) concurrency: usize,
    pub(super) limit: Duration,
    pub(super) handler: Arc<dyn Deliver>,
    pub(super) halt: watch::Sender<Halt>,
    /// The slots that are held at the moment.
    pub(super) slots: watch::Sender<Vec<u32>>,
}

pub(super) struct Stay<'a> {
    pub(super) orders: &'a Orders,
    pub(super) hub: &'a Arc<Hub>,
    pub(super) session: SessionId,
    shares: Mutex<Shares>,
    /// For who attends: something is to be freed.
    pub(super) leaving: Notify,
    /// For who reads: there is room.
    pub(super) room: Notify,
    /// For who reads: there are slots that it did not read.
    pub(super) new_slots: Notify,
    /// For who delivers: something was read, or lost, or resumed.
    pub(super) work: Notify,
    /// How often something passed in a row, and nothing got through.
    pub(super) passing: AtomicU32,
}

impl<'a> Stay<'a> {
    pub(super) fn new(orders: &'a Orders, session: SessionId) -> Stay<'a> {
        Stay {
            orders,
            hub: &orders.hub,
            session,
            shares: Mutex::default(),
            leaving: Notify::new(),
            room: Notify::new(),
            new_slots: Notify::new(),
            work: Notify::new(),
            passing: AtomicU32::new(0),
        }
    }

    pub(super) fn shares(&self) -> MutexGuard<'_, Shares> {
        locked(&self.shares)
    }

    pub(super) fn is_draining(&self) -> bool {
        *self.orders.halt.borrow() != Halt::No
    }

    /// Whom the members know it as.
    pub(super) fn join(&self) -> Join {
        Join {
            group: (*self.orders.group).clone(),
            session: self.session.clone(),
            member: self.orders.member.clone(),
            from: self.orders.from,
        }
    }

    /// Attends the group, for ever. `look` is what it saw when it joined, if it did.
    pub(super) async fn attend(&self, mut look: Option<GroupLook>) {
        let bell = self.hub.shared.bells.group(&self.orders.group);
        let mut rung = bell.subscribe();
        let (mut rounds, mut outages): (u32, _) = (0, OutageLog::default());
        loop {
            // Before the look: what changes after it rings again.
            rung.mark_unchanged();
            rounds += 1;
            if rounds.is_multiple_of(ASIDE_ROUNDS) {
                self.shares().look_aside();
            }
            let wait = match self.round(look.take()).await {
                Ok(wait) => {
                    let (now, group) = (self.hub.runtime.now(), &self.orders.group);
                    log_recovery!(outages, now, %group, "attending the group works again");
                    wait
                }
                Err(error) => {
                    let (now, group) = (self.hub.runtime.now(), &self.orders.group);
                    log_failure!(outages, now, %group, "attending the group failed: {error}");
                    self.hub.timing.retry()
                }
            };
            tokio::select! {
                // The bell outlives its listeners. It is rung for what people do to what is aside, too.
                _ = rung.changed() => self.shares().look_aside(),
                () = self.leaving.notified() => {}
                () = self.hub.pause(wait) => {}
            }
        }
    }

    /// One look, and what follows from it. When to look again at the latest.
    async fn round(&self, look: Option<GroupLook>) -> Result<Duration, StoreError> {
        self.free().await?;
        let look = match look {
            Some(look) => look,
            None => self.look().await?,
        };
        self.heed(&look);
        let balance = assign(&look, &self.session);
        {
            let mut shares = self.shares();
            // Under a token that we do not know: the answer to our taking was lost, or what was lost to us has come back.
            let known = |slot, token| shares.token(slot) == Some(token);
            let strays = look.shares.iter().filter(|share| share.holder.as_ref() == Some(&self.session));
            let strays: Vec<_> = strays
                .map(|share| (share.slot, share.token))
                .filter(|(slot, token)| !known(*slot, *token))
                .collect();
            shares.strays(strays);
            let free: Vec<u32> = balance.free.iter().map(|(slot, _)| *slot).collect();
            for slot in shares.slots() {
                if free.contains(&slot) { shares.give_up(slot) } else { shares.keep(slot) }
            }
        }
        self.free().await?;
        if !balance.take.is_empty() && !self.is_draining() {
            self.take(balance.take).await?;
        }
        self.refresh_aside().await?;
        self.tell();
        let beat = self.hub.timing.beat();
        Ok(balance.look_in_ms.map_or(beat, |ms| beat.min(Duration::from_millis(ms))))
    }

    /// Looks; joins again if the group does not know us.
    async fn look(&self) -> Result<GroupLook, StoreError> {
        let look = self.hub.bounded(self.hub.store.look_group(&self.orders.group)).await?;
        let knows_us = |look: &GroupLook| look.members.iter().any(|it| it.session == self.session);
        match look.filter(knows_us) {
            Some(look) => Ok(look),
            None => self.hub.bounded(self.hub.store.join_group(&self.join())).await,
        }
    }

    /// Takes in what is not a matter of who has what; and what is lost.
    fn heed(&self, look: &GroupLook) {
        let mut shares = self.shares();
        shares.settings = look.settings;
        let resumed = shares.paused && look.paused.is_none();
        shares.paused = look.paused.is_some();
        let ours = |slot: u32, token| {
            let share = look.shares.iter().find(|share| share.slot == slot);
            share.is_some_and(|share| share.token == token && share.holder.as_ref() == Some(&self.session))
        };
        let lost: Vec<u32> = shares
            .slots()
            .into_iter()
            .filter(|slot| shares.token(*slot).is_some_and(|token| !ours(*slot, token)))
            .collect();
        if !lost.is_empty() {
            tracing::info!(group = %self.orders.group, member = self.orders.member, slots = ?lost, "lost slots");
        }
        lost.iter().for_each(|slot| shares.lose(*slot));
        drop(shares);
        if resumed {
            self.room.notify_one();
        }
        if resumed || !lost.is_empty() {
            self.work.notify_one();
        }
    }

    /// Frees what is to be freed.
    async fn free(&self) -> Result<(), StoreError> {
        let to_free = self.shares().to_free();
        if !to_free.is_empty() {
            self.hub.bounded(self.hub.store.free_shares(&self.orders.group, &to_free)).await?;
            self.shares().freed(&to_free);
            let slots: Vec<u32> = to_free.iter().map(|(slot, _)| *slot).collect();
            tracing::debug!(group = %self.orders.group, member = self.orders.member, ?slots, "gave up slots");
            self.tell();
        }
        Ok(())
    }

    async fn take(&self, slots: Vec<(u32, tenure_core::Token)>) -> Result<(), StoreError> {
        let take = TakeShares { group: (*self.orders.group).clone(), session: self.session.clone(), slots };
        let taken = self.hub.bounded(self.hub.store.take_shares(&take)).await?;
        if taken.is_empty() {
            return Ok(());
        }
        metrics::took(&self.orders.group, taken.len());
        let slots: Vec<u32> = taken.iter().map(|taken| taken.slot).collect();
        tracing::debug!(group = %self.orders.group, member = self.orders.member, ?slots, "took slots");
        let (mut shares, now) = (self.shares(), self.hub.runtime.now());
        taken.into_iter().for_each(|taken| shares.take(taken, now));
        drop(shares);
        self.new_slots.notify_one();
        self.work.notify_one();
        Ok(())
    }

    /// Looks at how what is aside stands: people may have replayed or dropped some.
    async fn refresh_aside(&self) -> Result<(), StoreError> {
        let slots = self.shares().with_aside();
        for (slot, token, version) in slots {
            let aside = self.hub.bounded(self.hub.store.aside_keys(&self.orders.group, slot)).await?;
            self.shares().set_aside(slot, token, version, &aside, self.hub.runtime.now());
            self.work.notify_one();
        }
        Ok(())
    }

    /// Tells who asks which slots are held.
    fn tell(&self) {
        let slots = self.shares().slots();
        self.orders.slots.send_if_modified(|told| std::mem::replace(told, slots) != *told);
        metrics::slots(&self.orders.group, &self.orders.member, self.orders.slots.borrow().len());
    }
}
