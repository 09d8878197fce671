//! The slots of a group as a map: whose each is, and how far behind.
//!
//! A cell has its member's letter and colour, and is filled from below the further it is behind: by letters and heights it can be
//! read without its colours. What it shows is in the table below it, too, and for those who see neither it says in a sentence
//! what is most worth knowing.

use std::collections::HashMap;

use maud::{Markup, html};
use tenure::SessionId;
use tenure::port::{GroupView, Member, SlotView};

use super::words::{self, count, number};

/// As many colours as can be told apart; letters go on.
const COLOURS: usize = 12;
/// How full a cell is, by how many events it is behind.
const LEVELS: [(u64, &str); 5] = [(0, "none"), (1, "1+"), (10, "10+"), (100, "100+"), (1000, "1,000+")];
/// How many members the legend names; all are in the table.
const NAMED: usize = 24;

/// The members of a group in the order of their names, each with its letter and colour.
pub(super) struct Marks<'v> {
    pub(super) members: Vec<&'v Member>,
    places: HashMap<&'v SessionId, usize>,
}

impl<'v> Marks<'v> {
    pub(super) fn of(view: &'v GroupView) -> Marks<'v> {
        let mut members: Vec<_> = view.members.iter().collect();
        members.sort_by(|a, b| (&a.name, &a.session).cmp(&(&b.name, &b.session)));
        let places = members.iter().enumerate().map(|(at, member)| (&member.session, at)).collect();
        Marks { members, places }
    }

    /// The place of who has a slot.
    pub(super) fn holder(&self, slot: &SlotView) -> Option<usize> {
        slot.share.holder.as_ref().and_then(|session| self.places.get(session)).copied()
    }

    /// A member's mark, as it is in its cells.
    pub(super) fn mark(&self, at: usize) -> Markup {
        html! { span class={ "cell mark " (colour(at)) } aria-hidden="true" { (letter(at)) } }
    }
}

/// Who has a slot.
pub(super) fn holder<'v>(view: &'v GroupView, slot: &SlotView) -> Option<&'v Member> {
    let session = slot.share.holder.as_ref()?;
    view.members.iter().find(|member| member.session == *session)
}

fn colour(at: usize) -> String {
    format!("m{}", at % COLOURS)
}

/// `A` to `Z`, `a` to `z`, then two of them.
fn letter(at: usize) -> String {
    let one = |n: usize| {
        let n = u8::try_from(n % 52).unwrap_or_default();
        char::from(if n < 26 { b'A' + n } else { b'a' + n - 26 })
    };
    if at < 52 { one(at).into() } else { [one(at / 52 - 1), one(at)].into_iter().collect() }
}

fn level(lag: u64) -> usize {
    LEVELS.iter().rposition(|(from, _)| lag >= *from).unwrap_or_default()
}

/// The map, and what its letters, colours and heights mean. `here`: a slot that somebody looks for.
pub(super) fn map(view: &GroupView, marks: &Marks<'_>, here: Option<u32>) -> Markup {
    let size = match view.slots.len() {
        0..=64 => "few",
        65..=256 => "some",
        _ => "many",
    };
    html! {
        div class={ "slots " (size) } role="img" aria-label=(in_words(view, marks)) {
            @for slot in &view.slots { (cell(slot, marks, size, here)) }
        }
        (legend(view, marks))
    }
}

fn cell(slot: &SlotView, marks: &Marks<'_>, size: &str, here: Option<u32>) -> Markup {
    let share = &slot.share;
    let owner = marks.holder(slot);
    let whose = owner.map_or_else(|| "free".into(), colour);
    let sought = if here == Some(share.slot) { " here" } else { "" };
    let class = format!("cell {whose} l{}{sought}", level(slot.lag));
    let whose = match owner {
        Some(at) => marks.members[at].name.clone(),
        None if share.last.is_empty() => "nobody's, ever".into(),
        None => format!("free, last {}", share.last),
    };
    let behind = if slot.lag == 0 {
        "all read".into()
    } else {
        let plus = if slot.lag_exact { "" } else { "+" };
        format!("{}{plus} unread, the oldest for {}", number(slot.lag), words::span(slot.lag_ms))
    };
    html! {
        span class=(class) data-key=(format!("slot-{}", share.slot)) title=(format!("Slot {}: {whose}; {behind}", share.slot)) {
            @if size != "many" { small { (share.slot) } }
            @match owner { Some(at) => b { (letter(at)) }, None => b { "–" } }
        }
    }
}

fn legend(view: &GroupView, marks: &Marks<'_>) -> Markup {
    let shares = shares(view, marks);
    let free = view.slots.len() - shares.iter().sum::<usize>();
    html! {
        div.legend.whose aria-hidden="true" {
            @for (at, member) in marks.members.iter().enumerate().take(NAMED) {
                span { (marks.mark(at)) (member.name) " " span.soft { (shares[at]) } }
            }
            @if marks.members.len() > NAMED { span { "and " (marks.members.len() - NAMED) " more" } }
            @if free > 0 { span { span.cell.mark.free { "–" } "free " span.soft { (free) } } }
        }
        div.legend.heights aria-hidden="true" {
            span { "Unread:" }
            @for (at, (_, name)) in LEVELS.iter().enumerate() { span { span class={ "cell mark bare l" (at) } {} (name) } }
        }
    }
}

/// How many slots each member has.
pub(super) fn shares(view: &GroupView, marks: &Marks<'_>) -> Vec<usize> {
    let mut shares = vec![0; marks.members.len()];
    for at in view.slots.iter().filter_map(|slot| marks.holder(slot)) {
        shares[at] += 1;
    }
    shares
}

/// What is most worth knowing of the map.
fn in_words(view: &GroupView, marks: &Marks<'_>) -> String {
    let shares = shares(view, marks);
    let free = view.slots.len() - shares.iter().sum::<usize>();
    let mut said = vec![count(view.slots.len(), "slot")];
    said.extend(
        marks.members.iter().zip(&shares).take(NAMED).map(|(member, n)| format!("{} has {n}", member.name)),
    );
    if marks.members.len() > NAMED {
        said.push(format!("and {} more members", marks.members.len() - NAMED));
    }
    said.push(if free == 0 { "none is free".into() } else { format!("{free} are free") });
    said.push(match view.slots.iter().max_by_key(|slot| slot.lag).filter(|slot| slot.lag > 0) {
        Some(slot) => {
            format!("slot {} is furthest behind, with {} unread", slot.share.slot, number(slot.lag))
        }
        None => "all is read".into(),
    });
    said.join(", ")
}

/// Numbers with those that follow one another drawn together: `0–3, 7`.
pub(super) fn ranges(numbers: impl Iterator<Item = u32>, most: usize) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for n in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => ranges.push((n, n)),
        }
    }
    let said = |(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}–{last}"),
    };
    let text: Vec<_> = ranges.iter().take(most).map(said).collect();
    text.join(", ") + if ranges.len() > most { ", …" } else { "" }
}

#[cfg(test)]
mod tests {
    use tenure::Token;
    use tenure::port::{GroupKey, Share, TopicKey};

    use super::*;

    fn session(n: usize) -> SessionId {
        SessionId::from_stored(&format!("{n:032x}"))
    }

    /// A group whose slots go round among its members, the last one free, each further behind than the one before.
    fn view(slots: u32, members: usize) -> GroupView {
        let name = |text: &str| text.parse().expect("a name");
        let slot = |n: u32| SlotView {
            share: Share {
                slot: n,
                token: Token::ZERO,
                holder: (n + 1 < slots && members > 0).then(|| session(n as usize % members)),
                last: "gone <b>".into(),
                position: 5,
            },
            end: 9,
            lag: u64::from(n) * 10,
            lag_exact: n < 100,
            lag_ms: 1500,
        };
        // Not in the order of their names.
        let member = |n: usize| Member { session: session(n), name: format!("node-{:03}", members - n) };
        GroupView {
            key: GroupKey::new(TopicKey::new(name("default"), name("orders")), name("billing")),
            settings: Default::default(),
            paused: None,
            members: (0..members).map(member).collect(),
            slots: (0..slots).map(slot).collect(),
            aside: 0,
            dead: 0,
            moves: 0,
            push: None,
        }
    }

    #[test]
    fn every_slot_has_a_cell_with_its_owners_letter_and_how_full_it_is() {
        let view = view(64, 3);
        let marks = Marks::of(&view);
        assert_eq!(
            marks.members.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(),
            ["node-001", "node-002", "node-003"]
        );
        let drawn = map(&view, &marks, Some(7)).into_string();
        assert_eq!(drawn.matches(r#"data-key="slot-"#).count(), 64);
        assert!(!drawn.contains("style=") && !drawn.contains("<b>node"), "{drawn}");
        // Slot 0 is the third's by name, and has read all.
        assert!(drawn.contains(r#"<span class="cell m2 l0" data-key="slot-0" title="Slot 0: node-003; all read"><small>0</small><b>C</b>"#), "{drawn}");
        assert!(drawn.contains(r#"class="cell m1 l2 here""#), "{drawn}");
        assert!(
            drawn.contains("Slot 63: free, last gone &lt;b&gt;; 630 unread, the oldest for 1.5 s"),
            "{drawn}"
        );
        assert!(drawn.contains("64 slots, node-001 has 21, node-002 has 21, node-003 has 21, 1 are free, slot 63 is furthest behind, with 630 unread"), "{drawn}");
    }

    #[test]
    fn the_greatest_topic_and_the_greatest_group_are_drawn_too() {
        let view = view(1024, 300);
        let marks = Marks::of(&view);
        let drawn = map(&view, &marks, None).into_string();
        assert_eq!(drawn.matches(r#"data-key="slot-"#).count(), 1024);
        assert!(drawn.contains("and 276 more"), "{drawn}");
        assert!(drawn.len() < 200_000, "{}", drawn.len());
        let letters: std::collections::HashSet<_> = (0..300).map(letter).collect();
        assert_eq!(letters.len(), 300);
        assert_eq!(
            [letter(0), letter(25), letter(26), letter(51), letter(52), letter(104)],
            ["A", "Z", "a", "z", "AA", "BA"]
        );
    }

    #[test]
    fn numbers_in_a_row_are_drawn_together() {
        assert_eq!(ranges([0, 1, 2, 3, 7, 9, 10].into_iter(), 9), "0–3, 7, 9, 10");
        assert_eq!(ranges([1, 3, 5].into_iter(), 2), "1, 3, …");
        assert_eq!(ranges(std::iter::empty(), 2), "");
    }
}
