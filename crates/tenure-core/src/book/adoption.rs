//! Leases that another store has granted.

use super::{Book, Lease};
use crate::port::Adopt;
use crate::{Token, port::Via};

impl Book {
    /// See [`Store::adopt`](crate::port::Store::adopt).
    pub fn adopt(&mut self, adopt: &Adopt, wall_ms: i64) -> bool {
        let Adopt { session, election: key, slot, token, by } = adopt;
        let at = (key.clone(), *slot, by.clone());
        let last = self.adopted.get(&at);
        // A leader that is late, with what another has long been granted, must not come back.
        if !self.is_live(session) || last.is_some_and(|(last, _)| token <= last) {
            return false;
        }
        let held = self.elections.get(key).and_then(|election| election.leases.get(*slot as usize));
        let holder = held.and_then(|lease| Some((lease.token, lease.session.clone()?)));
        // Tokens of different electors do not compare: who was elected by another one must have left, or died.
        if holder.is_some_and(|holder| Some(&holder) != last && self.is_live(&holder.1)) {
            return false;
        }
        let election = self.elections.entry(key.clone()).or_default();
        election.slots = election.slots.max(*slot + 1);
        let rows = election.leases.len().max(election.slots as usize);
        election.leases.resize(rows, Lease { token: Token::first(self.epoch), ..Lease::default() });
        election.asks.retain(|ask| ask.slot != *slot);
        let lease = &mut election.leases[*slot as usize];
        *lease = Lease {
            token: *token,
            own: lease.own.or(Some(lease.token)),
            session: Some(session.clone()),
            reserved: None,
            via: Via::Release,
            granted_at_ms: Some(wall_ms),
        };
        self.adopted.insert(at, (*token, session.clone()));
        true
    }
}
