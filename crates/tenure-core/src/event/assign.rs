//! Who reads which slot.

use std::collections::BTreeMap;

use crate::port::{GroupLook, Member, Share};
use crate::{SessionId, Token};

/// For how long a group that was empty gathers, in milliseconds: until then, slots are left for those who had them.
pub const GATHER_MS: u64 = 3_000;

/// What a member has to do about its slots. Slots come with the tokens under which they were seen, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// What it has and is to give up, as soon as it is through with what it read of them.
    pub free: Vec<(u32, Token)>,
    /// What is free and its own.
    pub take: Vec<(u32, Token)>,
    /// What is to be its own as soon as another gives it up, or dies.
    pub awaited: Vec<u32>,
    /// In how long to look again, in milliseconds, though nothing may happen until then: the group gathers, and slots are left
    /// for members that may come back.
    pub look_in_ms: Option<u64>,
}

impl Balance {
    /// Whether there is nothing to do, nor to wait for.
    pub fn is_settled(&self) -> bool {
        *self == Balance::default()
    }
}

/// What the member on this session has to do, so that the slots are spread evenly.
///
/// Each member asks this of what it sees, and does its part; nobody decides for all. Looks that are equal give one plan, each
/// share changes hands by compare-and-swap, and a plan that was carried out in part is planned again to the same end. So it does not
/// matter who acts first, nor whether somebody acts on an old look.
///
/// - *Even*: no member has two slots more than another.
/// - *Little moves*: who has no more than its part keeps all it has; who has more gives up what is too much, and no more.
/// - *Sticky*: what is free goes back to the name that had it last, as far as that has room.
/// - *Gathering*: in the first [`GATHER_MS`] after a group was empty, what a name had that is not there is left for it. So when all
///   members are restarted, each gets what it had, whoever is first.
///
/// ```
/// use tenure_core::event::assign;
/// use tenure_core::port::{GroupLook, GroupSettings, Member, Share};
/// use tenure_core::{SessionId, Token};
///
/// let session = |id: &str| SessionId::from_stored(id);
/// let member = |id: &str| Member { session: session(id), name: id.into() };
/// let share = |slot| Share { slot, token: Token::from_u64(1), holder: Some(session("a")), last: "a".into(), position: 0 };
/// let look = GroupLook {
///     members: vec![member("a"), member("b")],
///     shares: (0..4).map(share).collect(),
///     settings: GroupSettings::default(),
///     paused: None,
///     gathered_ms: 60_000,
/// };
/// assert_eq!(assign(&look, &session("a")).free, [(2, Token::from_u64(1)), (3, Token::from_u64(1))]);
/// assert_eq!(assign(&look, &session("b")).awaited, [2, 3]);
/// ```
pub fn assign(look: &GroupLook, me: &SessionId) -> Balance {
    let members = ranked(&look.members);
    let my_place = members.iter().position(|member| member.session == *me);
    let gathering = look.gathered_ms < GATHER_MS;
    let plan = Plan::of(&members, &look.shares, gathering);
    let mut balance = Balance::default();
    for (share, owner) in look.shares.iter().zip(&plan.owners) {
        let (mine, held) = (my_place.is_some() && *owner == my_place, share.holder.as_ref());
        match held {
            Some(holder) if holder == me && !mine => balance.free.push((share.slot, share.token)),
            Some(holder) if holder != me && mine => balance.awaited.push(share.slot),
            None if mine => balance.take.push((share.slot, share.token)),
            _ => {}
        }
    }
    if plan.left > 0 && my_place.is_some() {
        balance.look_in_ms = Some(GATHER_MS - look.gathered_ms);
    }
    balance
}

/// The members in an order that does not hang on chance: by name, which outlives a restart, then by session.
fn ranked(members: &[Member]) -> Vec<&Member> {
    let mut ranked: Vec<&Member> = members.iter().collect();
    ranked.sort_by(|a, b| (&a.name, &a.session).cmp(&(&b.name, &b.session)));
    ranked.dedup_by(|a, b| a.session == b.session);
    ranked
}

/// Whose each slot is to be.
struct Plan {
    /// By the shares' order: the place of its owner among the members. `None`: it is left for who is not there, or nobody is.
    owners: Vec<Option<usize>>,
    /// How many are left for who is not there.
    left: usize,
}

impl Plan {
    fn of(members: &[&Member], shares: &[Share], gathering: bool) -> Plan {
        let wishes = wishes(members, shares);
        let parts = parts(&wishes, shares.len());
        let mut owners: Vec<Option<usize>> = vec![None; shares.len()];
        let mut loads = vec![0; members.len()];
        for (place, wish) in wishes.iter().enumerate() {
            // What is too much goes from the end: at first what is free already. So giving something up changes no plan.
            for share in wish.iter().take(parts[place]) {
                owners[*share] = Some(place);
                loads[place] += 1;
            }
        }
        let mut left = 0;
        for (share, owner) in shares.iter().zip(&mut owners) {
            if owner.is_some() {
                continue;
            }
            let known = |name: &str| members.iter().any(|member| member.name == name);
            if gathering && share.holder.is_none() && !share.last.is_empty() && !known(&share.last) {
                left += 1;
                continue;
            }
            let room = (0..members.len()).filter(|place| loads[*place] < parts[*place]);
            if let Some(place) = room.min_by_key(|place| (loads[*place], *place)) {
                *owner = Some(place);
                loads[place] += 1;
            }
        }
        Plan { owners, left }
    }
}

/// What each member would keep if it could: what it has, then what is free and was last had under its name. Where a name is
/// double, the one with less.
fn wishes(members: &[&Member], shares: &[Share]) -> Vec<Vec<usize>> {
    let by_session: BTreeMap<&SessionId, usize> =
        members.iter().enumerate().map(|(place, member)| (&member.session, place)).collect();
    let mut wishes: Vec<Vec<usize>> = vec![Vec::new(); members.len()];
    for (i, share) in shares.iter().enumerate() {
        if let Some(place) = share.holder.as_ref().and_then(|holder| by_session.get(holder)) {
            wishes[*place].push(i);
        }
    }
    for (i, share) in shares.iter().enumerate().filter(|(_, share)| share.holder.is_none()) {
        // Sorted by name: those of one name lie together.
        let from = members.partition_point(|member| member.name < share.last);
        let namesakes = (from..members.len()).take_while(|place| members[*place].name == share.last);
        if let Some(place) = namesakes.min_by_key(|place| (wishes[*place].len(), *place)) {
            wishes[place].push(i);
        }
    }
    wishes
}

/// How many slots each member is to have. Where they do not divide, one more for those who want more already, so that they
/// need not give it up; then for the first. Not for who wants the *most*: that changes while slots change hands.
fn parts(wishes: &[Vec<usize>], slots: usize) -> Vec<usize> {
    let Some(least) = slots.checked_div(wishes.len()) else { return Vec::new() };
    let mut order: Vec<usize> = (0..wishes.len()).collect();
    order.sort_by_key(|place| (wishes[*place].len() <= least, *place));
    let mut parts = vec![least; wishes.len()];
    for place in order.into_iter().take(slots % wishes.len()) {
        parts[place] += 1;
    }
    parts
}

#[cfg(test)]
#[path = "assign_tests.rs"]
mod tests;
