//! Atomic steps of the store.

use crate::rules::{Bug, EPOCH_BIT, Rules};
use crate::state::{Answer, Envelope, Grant, Life, Request, Session, Store, View, World};

/// Whether a row lock delays this request: guarded transactions hold a shared lock on the lease.
pub(crate) fn is_blocked(world: &World, rules: &Rules, envelope: &Envelope) -> bool {
    let locked = !rules.has_bug(Bug::GuardTakesNoLock)
        && world.nodes[..rules.nodes].iter().any(|node| node.transaction.is_some());
    match envelope.request {
        Request::Take { .. } => locked || world.granted.serial >= rules.grants,
        Request::Release { .. } => locked,
        Request::Beat | Request::Observe | Request::End => false,
    }
}

pub(crate) fn serve(world: &mut World, rules: &Rules, envelope: &Envelope) -> Answer {
    let at = usize::from(envelope.session);
    match envelope.request {
        Request::Beat => beat(&mut world.store.sessions[at], rules),
        Request::Observe => Answer::Observed(view(&world.store, envelope.session)),
        Request::Take { view, expire, remembered } => {
            if may_take(&world.store, rules, envelope.session, &view, expire) {
                Answer::Granted(grant(world, rules, envelope.session, expire, remembered))
            } else {
                Answer::Refused
            }
        }
        Request::Release { token } => {
            let store = &mut world.store;
            if store.lease.token != token || store.holder != Some(envelope.session) {
                return Answer::Refused;
            }
            store.holder = None;
            Answer::Done
        }
        Request::End => {
            if world.store.sessions[at].life == Life::Live {
                world.store.sessions[at].life = Life::Ended;
            }
            Answer::Done
        }
    }
}

fn beat(session: &mut Session, rules: &Rules) -> Answer {
    if rules.has_bug(Bug::HeartbeatRevivesExpired) && session.life == Life::Expired {
        session.life = Life::Live;
    }
    if session.life != Life::Live {
        return Answer::Refused;
    }
    session.beat += 1;
    Answer::Done
}

fn view(store: &Store, reader: u8) -> View {
    let session = store.holder.map(|holder| store.sessions[usize::from(holder)]);
    View {
        epoch: store.epoch,
        lease: store.lease,
        holder: store.holder,
        live: session.is_some_and(|session| session.life == Life::Live),
        // A session's own heartbeats tell it nothing new.
        beat: session.filter(|_| store.holder != Some(reader)).map_or(0, |session| session.beat),
    }
}

/// The conditions of a takeover, compared in the transaction that changes the rows.
fn may_take(store: &Store, rules: &Rules, taker: u8, seen: &View, expire: bool) -> bool {
    if rules.has_bug(Bug::TakeWithoutCas) {
        return true;
    }
    let now = view(store, taker);
    let same_beat = rules.has_bug(Bug::ExpireWithoutHeartbeatCas) || now.beat == seen.beat;
    store.is_live(taker)
        && now.lease.token == seen.lease.token
        && now.holder == seen.holder
        && (!expire || (now.live && same_beat))
        && (!rules.promotion_waited_out || now.epoch == seen.epoch)
}

fn grant(world: &mut World, rules: &Rules, taker: u8, expire: bool, remembered: u8) -> Grant {
    let store = &mut world.store;
    if let Some(holder) = store.holder.filter(|holder| expire && *holder != taker) {
        store.sessions[usize::from(holder)].life = Life::Expired;
    }
    let token = if rules.has_bug(Bug::TokenFromMemoryOnly) {
        remembered + 1
    } else if rules.has_bug(Bug::TokenForgetsEpoch) {
        store.lease.token + 1
    } else {
        store.lease.token.max(store.epoch << EPOCH_BIT) + 1
    };
    let grant = Grant { token, serial: world.granted.serial + 1 };
    store.lease = grant;
    store.holder = Some(taker);
    world.harm.token_did_not_grow |= token <= world.granted.token;
    world.granted = grant;
    grant
}
