//! Leases that another store granted.

use super::{Elections, LeaseRecord};
use crate::port::AdoptLeaseRequest;
use crate::{Token, port::StartReason};

impl Elections {
    /// See [`ElectionStore::adopt_lease`](crate::port::ElectionStore::adopt_lease).
    pub fn adopt_lease(&mut self, adopt: &AdoptLeaseRequest, wall_ms: i64) -> bool {
        let AdoptLeaseRequest { session, election: key, slot, token, granted_by: by } = adopt;
        let at = (key.clone(), *slot, by.clone());
        let last = self.adopted.get(&at);
        // Reject an older grant: the granting store has granted the lease again since.
        if !self.is_live(session) || last.is_some_and(|(last, _)| token <= last) {
            return false;
        }
        let held = self.elections.get(key).and_then(|election| election.leases.get(*slot as usize));
        let holder = held.and_then(|lease| Some((lease.token, lease.session.clone()?)));
        // Tokens of different stores cannot be compared, so the holder of another store's grant must have released
        // the lease or died.
        if holder.is_some_and(|holder| Some(&holder) != last && self.is_live(&holder.1)) {
            return false;
        }
        let election = self.elections.entry(key.clone()).or_default();
        election.slots = election.slots.max(*slot + 1);
        let rows = election.leases.len().max(election.slots as usize);
        election
            .leases
            .resize(rows, LeaseRecord { token: Token::first(self.epoch), ..LeaseRecord::default() });
        election.leader_requests.retain(|request| request.slot != *slot);
        let lease = &mut election.leases[*slot as usize];
        *lease = LeaseRecord {
            token: *token,
            own_token: lease.own_token.or(Some(lease.token)),
            session: Some(session.clone()),
            reserved_for: None,
            start_reason: StartReason::Release,
            granted_at_ms: Some(wall_ms),
        };
        self.adopted.insert(at, (*token, session.clone()));
        true
    }
}
