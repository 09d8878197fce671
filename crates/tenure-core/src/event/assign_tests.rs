//! Groups whose members do what they are told, one at a time, in any order, on looks that may be old.

use proptest::prelude::*;

use super::*;
use crate::port::GroupSettings;
use crate::{Entropy, SplitMix};

/// A group, as a store has it.
struct Group {
    members: Vec<Member>,
    shares: Vec<Share>,
    gathered_ms: u64,
    /// How many slots changed hands from one name to another.
    moves: usize,
    /// How many were given up.
    given_up: usize,
    dice: SplitMix,
}

impl Group {
    fn new(slots: u32, seed: u64) -> Group {
        let share = |slot| Share { slot, token: Token::ZERO, holder: None, last: String::new(), position: 0 };
        let shares = (0..slots).map(share).collect();
        Group {
            members: Vec::new(),
            shares,
            gathered_ms: 0,
            moves: 0,
            given_up: 0,
            dice: SplitMix::new(seed),
        }
    }

    /// A group in which these have shared the slots for a while.
    fn of(slots: u32, names: &[String], seed: u64) -> Group {
        let mut group = Group::new(slots, seed);
        names.iter().for_each(|name| group.join(name));
        group.gathered_ms = 60_000;
        group.settle();
        (group.moves, group.given_up) = (0, 0);
        group
    }

    fn join(&mut self, name: &str) {
        let session = SessionId::generate(&mut self.dice);
        self.members.push(Member { session, name: name.into() });
    }

    /// The member at this place leaves, or dies.
    fn leave(&mut self, place: usize) {
        let gone = self.members.remove(place);
        for share in &mut self.shares {
            if share.holder.as_ref() == Some(&gone.session) {
                share.holder = None;
            }
        }
    }

    fn leave_all(&mut self) {
        while !self.members.is_empty() {
            self.leave(0);
        }
        self.gathered_ms = 0;
    }

    fn look(&self) -> GroupLook {
        GroupLook {
            members: self.members.clone(),
            shares: self.shares.clone(),
            settings: GroupSettings::default(),
            paused: None,
            gathered_ms: self.gathered_ms,
        }
    }

    /// What the store makes of what a member does; whether it changed anything.
    fn apply(&mut self, me: &Member, balance: &Balance) -> bool {
        let mut changed = false;
        for (slot, token) in &balance.free {
            let share = &mut self.shares[*slot as usize];
            if share.holder.as_ref() == Some(&me.session) && share.token == *token {
                share.holder = None;
                self.given_up += 1;
                changed = true;
            }
        }
        for (slot, token) in &balance.take {
            let share = &mut self.shares[*slot as usize];
            if share.holder.is_none() && share.token == *token {
                self.moves += usize::from(!share.last.is_empty() && share.last != me.name);
                share.holder = Some(me.session.clone());
                share.last.clone_from(&me.name);
                share.token = share.token.next(0);
                changed = true;
            }
        }
        changed
    }

    fn act(&mut self, place: usize) -> bool {
        let me = self.members[place].clone();
        let balance = assign(&self.look(), &me.session);
        self.apply(&me, &balance)
    }

    /// Members act in any order until nobody has anything to do.
    fn settle(&mut self) {
        let most = 4 * (self.shares.len() + 1) * (self.members.len() + 1);
        for _ in 0..most {
            if !self.members.is_empty() {
                let place = self.dice.next_u64() as usize % self.members.len();
                self.act(place);
            }
            if self.is_settled() {
                return;
            }
        }
        panic!("the group never settles: {:?}", self.look());
    }

    fn is_settled(&self) -> bool {
        let look = self.look();
        self.members.iter().all(|member| {
            let balance = assign(&look, &member.session);
            balance.free.is_empty() && balance.take.is_empty()
        })
    }

    fn loads(&self) -> Vec<usize> {
        let load = |member: &Member| {
            self.shares.iter().filter(|share| share.holder.as_ref() == Some(&member.session)).count()
        };
        self.members.iter().map(load).collect()
    }

    /// The names that have the slots.
    fn owners(&self) -> Vec<String> {
        self.shares.iter().map(|share| share.last.clone()).collect()
    }

    fn is_even(&self) -> bool {
        let loads = self.loads();
        let all_held = loads.iter().sum::<usize>() == self.shares.len();
        let (least, most) = (loads.iter().min().copied(), loads.iter().max().copied());
        all_held && most.unwrap_or(0) - least.unwrap_or(0) <= 1
    }

    /// How many slots must change names at least, for the members that there are now, if their names are different and all
    /// slots were had by somebody. Reckoned another way than the plan is made: by trying who may have one more.
    fn fewest_moves(&self) -> usize {
        let (slots, count) = (self.shares.len(), self.members.len());
        let had = |member: &Member| self.shares.iter().filter(|share| share.last == member.name).count();
        let had: Vec<usize> = self.members.iter().map(had).collect();
        let least: usize = had.iter().map(|had| (*had).min(slots / count)).sum();
        let gain = had.iter().filter(|had| **had > slots / count).count().min(slots % count);
        slots - least - gain
    }
}

fn names(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("m{n:02}")).collect()
}

#[test]
fn doubling_the_members_moves_half_of_the_slots_and_halving_them_too() {
    for seed in 0..20 {
        let mut group = Group::of(64, &names(0..4), seed);
        names(4..8).iter().for_each(|name| group.join(name));
        group.settle();
        assert_eq!((group.moves, group.loads()), (32, vec![8; 8]));
        for _ in 0..4 {
            group.leave(2);
        }
        group.settle();
        assert_eq!((group.moves, group.loads()), (64, vec![16; 4]));
    }
}

#[test]
fn a_slot_is_given_up_once_and_taken_once() {
    let mut group = Group::of(8, &names(0..1), 7);
    group.join("m01");
    let (a, b) = (group.members[0].session.clone(), group.members[1].session.clone());
    let giving = assign(&group.look(), &a);
    assert_eq!(giving.free.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [4, 5, 6, 7]);
    let waiting = assign(&group.look(), &b);
    assert_eq!((waiting.awaited, waiting.take), (vec![4, 5, 6, 7], vec![]));
    assert!(group.act(0) && !group.act(0), "what was given up does not come back");
    let taking = assign(&group.look(), &b);
    assert_eq!((taking.take.len(), taking.awaited), (4, vec![]));
    assert!(group.act(1) && group.is_settled());
    assert_eq!(assign(&group.look(), &a), Balance::default());
}

#[test]
fn who_is_no_member_gives_up_all_and_takes_nothing() {
    let mut group = Group::of(4, &names(0..2), 3);
    let gone = group.members.remove(0);
    let balance = assign(&group.look(), &gone.session);
    assert_eq!((balance.free.len(), balance.take.len(), balance.awaited.len()), (2, 0, 0));
    group.members.clear();
    assert_eq!(assign(&group.look(), &gone.session).free.len(), 2);
}

#[test]
fn more_members_than_slots_leave_some_without() {
    let mut group = Group::of(3, &names(0..3), 9);
    let before = group.owners();
    for name in ["a", "b", "zz"] {
        group.join(name);
    }
    group.settle();
    assert_eq!((group.moves, group.owners()), (0, before), "who has one keeps it");
    group.leave(0);
    group.settle();
    assert_eq!(group.moves, 1);
}

#[test]
fn a_new_group_does_not_wait() {
    let mut group = Group::new(4, 1);
    group.join("a");
    let balance = assign(&group.look(), &group.members[0].session);
    assert_eq!((balance.take.len(), balance.look_in_ms), (4, None));
}

#[test]
fn what_is_left_for_who_is_not_there_goes_to_others_in_the_end() {
    let mut group = Group::of(10, &names(0..2), 5);
    group.leave_all();
    group.join("m00");
    group.gathered_ms = 100;
    group.settle();
    assert_eq!(group.loads(), [5]);
    let me = group.members[0].session.clone();
    assert_eq!(assign(&group.look(), &me).look_in_ms, Some(GATHER_MS - 100));
    group.gathered_ms = GATHER_MS;
    assert_eq!(assign(&group.look(), &me).take.len(), 5);
    group.settle();
    assert_eq!((group.loads(), group.moves), (vec![10], 5));
}

#[test]
fn names_that_are_double_share_what_the_name_had() {
    for seed in 0..20 {
        let twins = vec!["w".to_string(); 3];
        let mut group = Group::of(10, &twins, seed);
        assert!(group.is_even());
        group.leave_all();
        twins.iter().for_each(|name| group.join(name));
        group.settle();
        assert!(group.is_even() && group.moves == 0);
        group.join("other");
        group.gathered_ms = 60_000;
        group.settle();
        assert!(group.is_even());
        assert_eq!(group.moves, 2, "its part, and no more");
    }
}

/// Its name may come before those of the others, or after, or between.
fn newcomer(n: usize) -> String {
    format!("m{:02}x{n}", n * 37 % 100)
}

/// Members who come and go, by a number each: even ones come.
fn changes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 1..8)
}

proptest! {
    #[test]
    fn whoever_comes_and_goes_the_group_settles_evenly_with_the_fewest_moves(
        slots in 1..70u32, first in 1..9usize, changes in changes(), seed in any::<u64>()
    ) {
        let mut group = Group::of(slots, &names(0..first), seed);
        prop_assert!(group.is_even());
        let mut next = first;
        // All at once, then they settle.
        for change in changes {
            if change % 2 == 0 || group.members.len() == 1 {
                group.join(&newcomer(next));
                next += 1;
            } else {
                let place = usize::from(change) % group.members.len();
                group.leave(place);
            }
        }
        let fewest = group.fewest_moves();
        group.settle();
        prop_assert!(group.is_even(), "{:?}", group.loads());
        prop_assert_eq!(group.moves, fewest);
        prop_assert!(group.given_up <= fewest, "nothing is given up for nothing");
    }

    /// One after the other, each time with the fewest.
    #[test]
    fn each_change_alone_moves_the_fewest(slots in 1..70u32, first in 1..9usize, changes in changes(), seed in any::<u64>()) {
        let mut group = Group::of(slots, &names(0..first), seed);
        let mut next = first;
        for change in changes {
            if change % 2 == 0 || group.members.len() == 1 {
                group.join(&newcomer(next));
                next += 1;
            } else {
                let place = usize::from(change) % group.members.len();
                group.leave(place);
            }
            let (before, fewest) = (group.moves, group.fewest_moves());
            group.settle();
            prop_assert!(group.is_even());
            prop_assert_eq!(group.moves - before, fewest);
            prop_assert!(group.given_up <= group.moves, "nothing is given up for nothing");
        }
    }

    #[test]
    fn a_restart_of_all_moves_nothing(slots in 1..70u32, count in 1..12usize, late in 0..GATHER_MS, seed in any::<u64>()) {
        let mut group = Group::of(slots, &names(0..count), seed);
        let before = group.owners();
        group.leave_all();
        let mut back = names(0..count);
        while !back.is_empty() {
            // Who is there already acts at any time.
            let place = group.dice.next_u64() as usize % back.len();
            let name = back.swap_remove(place);
            group.join(&name);
            group.gathered_ms = late - late / (count - back.len() + 1) as u64;
            if group.dice.next_u64().is_multiple_of(2) {
                group.settle();
            }
        }
        group.settle();
        group.gathered_ms = GATHER_MS;
        prop_assert!(group.is_settled() && group.is_even());
        prop_assert_eq!((group.moves, group.owners()), (0, before));
    }

    /// Everybody acts on what it saw some time ago; whoever then looks again settles it.
    #[test]
    fn old_looks_do_no_harm(slots in 1..40u32, first in 1..6usize, more in 0..6usize, seed in any::<u64>()) {
        let mut group = Group::of(slots, &names(0..first), seed);
        names(first..first + more).iter().for_each(|name| group.join(name));
        if first > 1 {
            group.leave(0);
        }
        let mut looks = vec![group.look()];
        for _ in 0..20 {
            let member = group.members[group.dice.next_u64() as usize % group.members.len()].clone();
            let look = &looks[group.dice.next_u64() as usize % looks.len()];
            let balance = assign(look, &member.session);
            group.apply(&member, &balance);
            looks.push(group.look());
        }
        group.settle();
        prop_assert!(group.is_even());
    }

    #[test]
    fn double_names_settle_evenly(slots in 1..40u32, picks in prop::collection::vec(0..3u8, 1..10), seed in any::<u64>()) {
        let names: Vec<String> = picks.iter().map(|pick| format!("n{pick}")).collect();
        let mut group = Group::of(slots, &names, seed);
        prop_assert!(group.is_even());
        group.leave(0);
        group.join("n0");
        group.join("n9");
        group.settle();
        prop_assert!(group.is_even());
    }

    /// The order in which a store tells the members does not matter.
    #[test]
    fn the_order_of_members_does_not_matter(slots in 1..40u32, count in 2..9usize, seed in any::<u64>()) {
        let mut group = Group::of(slots, &names(0..count / 2), seed);
        names(count / 2..count).iter().for_each(|name| group.join(name));
        let look = group.look();
        let mut turned = look.clone();
        turned.members.reverse();
        for member in &look.members {
            prop_assert_eq!(assign(&look, &member.session), assign(&turned, &member.session));
        }
    }
}
