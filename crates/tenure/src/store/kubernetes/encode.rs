//! Encoding of elections into Lease objects.

use tenure_core::model::elections::{ElectionRecord, Elections, LeaseRecord};
use tenure_core::port::{ErrorKind, LeaderRequest, Pause, SessionView, StoreError, Term};
use tenure_core::{ElectionKey, SessionId, Token};

use super::decode::{LeaseReading, SlotKey};
use super::names::{election_label, lease_name};
use super::object::{ELECTION, LeaseObject};
use super::record::{Holder, LastTermRecord, OF, RECORD, SlotRecord, seconds};

/// Content of the Lease of a slot.
#[derive(PartialEq)]
struct SlotContent<'a> {
    lease: LeaseRecord,
    leader_requests: Vec<&'a LeaderRequest>,
    terms: Vec<&'a Term>,
    /// Fields of the election; only in the first slot.
    head: Option<ElectionHead<'a>>,
}

/// Slots, highest number of slots ever, required capabilities, and pause.
type ElectionHead<'a> = (u32, u32, &'a [String], Option<&'a Pause>);

fn content(election: Option<&ElectionRecord>, slot: u32) -> Option<SlotContent<'_>> {
    let election = election?;
    let rows = u32::try_from(election.leases.len()).unwrap_or(u32::MAX);
    Some(SlotContent {
        lease: election.leases.get(slot as usize).cloned().unwrap_or_default(),
        leader_requests: election.leader_requests.iter().filter(|request| request.slot == slot).collect(),
        terms: election.terms.iter().filter(|term| term.slot == slot).collect(),
        head: (slot == 0).then_some((
            election.slots,
            rows,
            election.required_capabilities.as_slice(),
            election.paused.as_ref(),
        )),
    })
}

/// Slots of an election whose Leases must be written. Includes the first slot if its Lease is missing or lacks the
/// Tenure label.
pub(super) fn changed(
    reading: &LeaseReading,
    before: &Elections,
    after: &Elections,
    key: &ElectionKey,
) -> Vec<u32> {
    let (before, after) = (before.record(key), after.record(key));
    let rows = after.map_or(0, |election| u32::try_from(election.leases.len()).unwrap_or(u32::MAX));
    let differs = |slot: &u32| {
        let lease = reading.leases.get(&(key.clone(), *slot));
        let is_missing = *slot == 0 && lease.is_none_or(|lease| lease.kind() != Some(ELECTION));
        is_missing || content(before, *slot).is_some_and(|was| content(after, *slot) != Some(was))
    };
    (0..rows).filter(differs).collect()
}

/// Slots of all elections whose holder has changed or is gone.
pub(super) fn freed(before: &Elections, after: &Elections) -> Vec<SlotKey> {
    let keys = after.elections(None).into_iter().map(|view| view.key);
    let of_key = |key: ElectionKey| {
        let leases = |elections: &Elections| {
            elections.record(&key).map(|election| election.leases.clone()).unwrap_or_default()
        };
        let pairs = leases(before).into_iter().zip(leases(after)).zip(0..);
        let moved = pairs.filter(|((was, is), _)| was.session != is.session).map(|(_, slot)| slot);
        moved.map(|slot| (key.clone(), slot)).collect::<Vec<_>>()
    };
    keys.flat_map(of_key).collect()
}

/// The new Lease of a slot, based on the existing object.
pub(super) fn lease_object(
    namespace: &str,
    reading: &LeaseReading,
    (before, after): (&Elections, &Elections),
    (key, slot): (&ElectionKey, u32),
    wall_ms: i64,
) -> Result<LeaseObject, StoreError> {
    let found = reading.leases.get(&(key.clone(), slot));
    let mut object = found.cloned().unwrap_or_else(|| LeaseObject::new(namespace, &lease_name(key, slot)));
    let mut record: SlotRecord = object.note(RECORD).unwrap_or_default();
    let row = |elections: &Elections| {
        elections.record(key).and_then(|election| election.leases.get(slot as usize).cloned())
    };
    let (was, lease) = (row(before).unwrap_or_default(), row(after).unwrap_or_default());
    let is_moved = (&was.session, was.token) != (&lease.session, lease.token);
    match &lease.session {
        Some(id) if is_moved => {
            let (_, session) = reading.sessions.get(id).ok_or_else(|| unknown(id))?;
            let view = SessionView { heartbeat_count: reading.heartbeat_of(id), ..session.view.clone() };
            grant(&mut object, &session.identity, &view, lease.token, wall_ms)?;
            record.holder =
                Some(Holder { identity: session.identity.clone(), token: lease.token, session: view });
        }
        None if is_moved => {
            free(&mut object, lease.token, wall_ms)?;
            record.holder = None;
        }
        // Recreated after a deletion: every observer must wait for the lease duration of the last holder.
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
    record.last_term = Some(LastTermRecord {
        token: lease.token,
        start_reason: lease.start_reason,
        reserved_for: lease.reserved_for.clone(),
        granted_at_ms: lease.granted_at_ms,
    });
    if let Some(content) = content(after.record(key), slot) {
        record.leader_requests = content.leader_requests.into_iter().cloned().collect();
        record.terms = content.terms.into_iter().cloned().collect();
        if let Some((slots, rows, requires, paused)) = content.head {
            (record.slots, record.max_slots) = (slots, rows);
            (record.required_capabilities, record.paused) = (requires.to_vec(), paused.cloned());
        }
    }
    object.set_kind(ELECTION, &election_label(key));
    object.set_annotation(OF, &format!("{}/{}/{slot}", key.namespace, key.name));
    object.set_note(RECORD, &record);
    Ok(object)
}

/// Take a Lease as client-go does.
fn grant(
    object: &mut LeaseObject,
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

/// Release a Lease as client-go does: no holder, a duration of one second, unchanged transitions.
fn free(object: &mut LeaseObject, token: Token, wall_ms: i64) -> Result<(), StoreError> {
    let now = object.next_time(wall_ms);
    object.set_spec("holderIdentity", "");
    object.set_spec("leaseDurationSeconds", 1);
    object.set_time("acquireTime", now);
    object.set_time("renewTime", now);
    object.set_spec("leaseTransitions", transitions(token)?);
    Ok(())
}

/// `leaseTransitions` of a grant: one less than its token, because client-go starts at 0.
fn transitions(token: Token) -> Result<u64, StoreError> {
    let count = token.as_u64().saturating_sub(1);
    i32::try_from(count).map(|_| count).map_err(|_| {
        let message =
            "leaseTransitions has reached its maximum of 2147483647; use an election with another name";
        StoreError::new(ErrorKind::Misconfigured, message)
    })
}

fn unknown(id: &SessionId) -> StoreError {
    StoreError::new(ErrorKind::Other, format!("session {id} was not found"))
}
