//! What the reference store decided, as it is written into a Lease.

use tenure_core::book::{Book, Election, Lease};
use tenure_core::port::{Ask, Pause, SessionView, StoreError, Term, Trouble};
use tenure_core::{ElectionKey, SessionId, Token};

use super::names::{about, lease_name};
use super::object::{ELECTION, Object};
use super::reading::{Reading, Slot};
use super::record::{Holder, Last, OF, RECORD, Record, seconds};

/// All that the Lease of a slot says.
#[derive(PartialEq)]
struct Said<'a> {
    lease: Lease,
    asks: Vec<&'a Ask>,
    terms: Vec<&'a Term>,
    /// Of the election: only the first slot says it.
    head: Option<Head<'a>>,
}

/// Slots, how many there ever were, what a leader must be able to do, and whether it is paused.
type Head<'a> = (u32, u32, &'a [String], Option<&'a Pause>);

fn said(election: Option<&Election>, slot: u32) -> Option<Said<'_>> {
    let election = election?;
    let rows = u32::try_from(election.leases.len()).unwrap_or(u32::MAX);
    Some(Said {
        lease: election.leases.get(slot as usize).cloned().unwrap_or_default(),
        asks: election.asks.iter().filter(|ask| ask.slot == slot).collect(),
        terms: election.terms.iter().filter(|term| term.slot == slot).collect(),
        head: (slot == 0).then_some((
            election.slots,
            rows,
            election.requires.as_slice(),
            election.paused.as_ref(),
        )),
    })
}

/// The slots of an election whose Leases have to say something else now. The first slot's Lease is made with the election,
/// or made ours.
pub(super) fn changed(reading: &Reading, before: &Book, after: &Book, key: &ElectionKey) -> Vec<u32> {
    let (before, after) = (before.kept(key), after.kept(key));
    let rows = after.map_or(0, |election| u32::try_from(election.leases.len()).unwrap_or(u32::MAX));
    let differs = |slot: &u32| {
        let lease = reading.leases.get(&(key.clone(), *slot));
        let is_missing = *slot == 0 && lease.is_none_or(|lease| lease.kind() != Some(ELECTION));
        is_missing || said(before, *slot).is_some_and(|was| said(after, *slot) != Some(was))
    };
    (0..rows).filter(differs).collect()
}

/// The slots of all elections that other sessions hold now, or nobody.
pub(super) fn freed(before: &Book, after: &Book) -> Vec<Slot> {
    let keys = after.elections(None).into_iter().map(|view| view.key);
    let of_key = |key: ElectionKey| {
        let leases =
            |book: &Book| book.kept(&key).map(|election| election.leases.clone()).unwrap_or_default();
        let pairs = leases(before).into_iter().zip(leases(after)).zip(0..);
        let moved = pairs.filter(|((was, is), _)| was.session != is.session).map(|(_, slot)| slot);
        moved.map(|slot| (key.clone(), slot)).collect::<Vec<_>>()
    };
    keys.flat_map(of_key).collect()
}

/// The Lease of a slot as it should be, with what it is now as its basis.
pub(super) fn lease_object(
    namespace: &str,
    reading: &Reading,
    (before, after): (&Book, &Book),
    (key, slot): (&ElectionKey, u32),
    wall_ms: i64,
) -> Result<Object, StoreError> {
    let found = reading.leases.get(&(key.clone(), slot));
    let mut object = found.cloned().unwrap_or_else(|| Object::new(namespace, &lease_name(key, slot)));
    let mut record: Record = object.note(RECORD).unwrap_or_default();
    let row = |book: &Book| book.kept(key).and_then(|election| election.leases.get(slot as usize).cloned());
    let (was, lease) = (row(before).unwrap_or_default(), row(after).unwrap_or_default());
    let is_moved = (&was.session, was.token) != (&lease.session, lease.token);
    match &lease.session {
        Some(id) if is_moved => {
            let (_, session) = reading.sessions.get(id).ok_or_else(|| unknown(id))?;
            let view = SessionView { beat: reading.beat_of(id), ..session.view.clone() };
            grant(&mut object, &session.identity, &view, lease.token, wall_ms)?;
            record.holder =
                Some(Holder { identity: session.identity.clone(), token: lease.token, session: view });
        }
        None if is_moved => {
            free(&mut object, lease.token, wall_ms)?;
            record.holder = None;
        }
        // Made anew after it was deleted: whoever held it must be waited out, by all who look.
        Some(id) if found.is_none() => {
            if let Some(view) = after.session(id) {
                object.set_spec("holderIdentity", "");
                object.set_spec("leaseDurationSeconds", seconds(view.lease_ms));
                object.set_spec("leaseTransitions", transitions(lease.token)?);
                record.holder =
                    Some(Holder { identity: String::new(), token: lease.token, session: view.clone() });
            }
        }
        _ => {}
    }
    record.last = Some(Last {
        token: lease.token,
        via: lease.via,
        reserved: lease.reserved.clone(),
        granted_at_ms: lease.granted_at_ms,
    });
    if let Some(said) = said(after.kept(key), slot) {
        record.asks = said.asks.into_iter().cloned().collect();
        record.terms = said.terms.into_iter().cloned().collect();
        if let Some((slots, rows, requires, paused)) = said.head {
            (record.slots, record.rows) = (slots, rows);
            (record.requires, record.paused) = (requires.to_vec(), paused.cloned());
        }
    }
    object.set_kind(ELECTION, &about(key));
    object.set_words(OF, &format!("{}/{}/{slot}", key.namespace, key.name));
    object.set_note(RECORD, &record);
    Ok(object)
}

/// As client-go takes a Lease.
fn grant(
    object: &mut Object,
    identity: &str,
    holder: &SessionView,
    token: Token,
    wall_ms: i64,
) -> Result<(), StoreError> {
    let now = object.next_time(wall_ms);
    object.set_spec("holderIdentity", identity);
    object.set_spec("leaseDurationSeconds", seconds(holder.lease_ms));
    object.set_time("acquireTime", now);
    object.set_time("renewTime", now);
    object.set_spec("leaseTransitions", transitions(token)?);
    Ok(())
}

/// As client-go releases one: nobody's, for one more second, and counted as before.
fn free(object: &mut Object, token: Token, wall_ms: i64) -> Result<(), StoreError> {
    let now = object.next_time(wall_ms);
    object.set_spec("holderIdentity", "");
    object.set_spec("leaseDurationSeconds", 1);
    object.set_time("acquireTime", now);
    object.set_time("renewTime", now);
    object.set_spec("leaseTransitions", transitions(token)?);
    Ok(())
}

/// `leaseTransitions` of a grant: one less than its token, as client-go begins to count at 0.
fn transitions(token: Token) -> Result<u64, StoreError> {
    let count = token.as_u64().saturating_sub(1);
    i32::try_from(count).map(|_| count).map_err(|_| {
        let message = "leaseTransitions has come to its end: Kubernetes counts to 2147483647; use an election of another name";
        StoreError::new(Trouble::Unfit, message)
    })
}

fn unknown(id: &SessionId) -> StoreError {
    StoreError::new(Trouble::Other, format!("the session {id} is not to be found"))
}
