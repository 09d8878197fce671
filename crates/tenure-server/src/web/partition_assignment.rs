//! The chart of the partition assignment of a group: member and lag of each partition.
//!
//! A cell has the letter and colour of its member; its fill height shows the lag. Letters and heights make
//! the chart readable without colours. The table below has the same data, and the `aria-label` summarizes it
//! for screen readers.

use std::collections::HashMap;

use maud::{Markup, html};
use tenure::SessionId;
use tenure::port::{GroupMember, GroupView, PartitionView};

use super::format::{self, count, number};

/// Number of distinct colours; further members reuse them with other letters.
const COLOURS: usize = 12;
/// The fill level of a cell by lag, and its label.
const LEVELS: [(u64, &str); 5] = [(0, "none"), (1, "1+"), (10, "10+"), (100, "100+"), (1000, "1,000+")];
/// Maximum number of members in the legend; the table has all.
const NAMED: usize = 24;

/// The members of a group ordered by name, each with a letter and a colour.
pub(super) struct MemberColors<'v> {
    pub(super) members: Vec<&'v GroupMember>,
    places: HashMap<&'v SessionId, usize>,
}

impl<'v> MemberColors<'v> {
    pub(super) fn of(view: &'v GroupView) -> MemberColors<'v> {
        let mut members: Vec<_> = view.members.iter().collect();
        members.sort_by(|a, b| (&a.name, &a.session).cmp(&(&b.name, &b.session)));
        let places = members.iter().enumerate().map(|(at, member)| (&member.session, at)).collect();
        MemberColors { members, places }
    }

    /// The index of the member that holds a partition.
    pub(super) fn holder(&self, partition: &PartitionView) -> Option<usize> {
        partition.partition_lease.holder.as_ref().and_then(|session| self.places.get(session)).copied()
    }

    /// The letter and colour of a member, as in its cells.
    pub(super) fn mark(&self, at: usize) -> Markup {
        html! { span class={ "cell mark " (colour(at)) } aria-hidden="true" { (letter(at)) } }
    }
}

/// The member that holds a partition.
pub(super) fn holder<'v>(view: &'v GroupView, partition: &PartitionView) -> Option<&'v GroupMember> {
    let session = partition.partition_lease.holder.as_ref()?;
    view.members.iter().find(|member| member.session == *session)
}

fn colour(at: usize) -> String {
    format!("m{}", at % COLOURS)
}

/// `A` to `Z`, `a` to `z`, then pairs of letters.
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

/// Render the chart and its legend. `here` is the partition to highlight.
pub(super) fn chart(view: &GroupView, colors: &MemberColors<'_>, here: Option<u32>) -> Markup {
    let size = match view.partitions.len() {
        0..=64 => "few",
        65..=256 => "some",
        _ => "many",
    };
    html! {
        div class={ "partitions " (size) } role="img" aria-label=(in_words(view, colors)) {
            @for partition in &view.partitions { (cell(partition, colors, size, here)) }
        }
        (legend(view, colors))
    }
}

fn cell(partition: &PartitionView, colors: &MemberColors<'_>, size: &str, here: Option<u32>) -> Markup {
    let lease = &partition.partition_lease;
    let owner = colors.holder(partition);
    let owner_class = owner.map_or_else(|| "unassigned".into(), colour);
    let current = if here == Some(lease.partition) { " current" } else { "" };
    let class = format!("cell {owner_class} l{}{current}", level(partition.lag_events));
    let owner_text = match owner {
        Some(at) => colors.members[at].name.clone(),
        None if lease.last_member.is_empty() => "never assigned".into(),
        None => format!("unassigned, last {}", lease.last_member),
    };
    let behind = if partition.lag_events == 0 {
        "up to date".into()
    } else {
        let plus = if partition.lag_exact { "" } else { "+" };
        format!(
            "lag {}{plus} events, oldest {}",
            number(partition.lag_events),
            format::span(partition.lag_ms)
        )
    };
    html! {
        span class=(class) data-key=(format!("partition-{}", lease.partition)) title=(format!("Partition {}: {owner_text}; {behind}", lease.partition)) {
            @if size != "many" { small { (lease.partition) } }
            @match owner { Some(at) => b { (letter(at)) }, None => b { "–" } }
        }
    }
}

fn legend(view: &GroupView, colors: &MemberColors<'_>) -> Markup {
    let counts = partition_counts(view, colors);
    let free = view.partitions.len() - counts.iter().sum::<usize>();
    html! {
        div.legend.members aria-hidden="true" {
            @for (at, member) in colors.members.iter().enumerate().take(NAMED) {
                span { (colors.mark(at)) (member.name) " " span.soft { (counts[at]) } }
            }
            @if colors.members.len() > NAMED { span { "and " (colors.members.len() - NAMED) " more" } }
            @if free > 0 { span { span.cell.mark.unassigned { "–" } "unassigned " span.soft { (free) } } }
        }
        div.legend.levels aria-hidden="true" {
            span { "Lag:" }
            @for (at, (_, name)) in LEVELS.iter().enumerate() { span { span class={ "cell mark bare l" (at) } {} (name) } }
        }
    }
}

/// Number of partitions by member.
pub(super) fn partition_counts(view: &GroupView, colors: &MemberColors<'_>) -> Vec<usize> {
    let mut counts = vec![0; colors.members.len()];
    for at in view.partitions.iter().filter_map(|partition| colors.holder(partition)) {
        counts[at] += 1;
    }
    counts
}

/// A summary of the chart for screen readers.
fn in_words(view: &GroupView, colors: &MemberColors<'_>) -> String {
    let counts = partition_counts(view, colors);
    let free = view.partitions.len() - counts.iter().sum::<usize>();
    let mut summary = vec![count(view.partitions.len(), "partition")];
    summary.extend(
        colors.members.iter().zip(&counts).take(NAMED).map(|(member, n)| format!("{}: {n}", member.name)),
    );
    if colors.members.len() > NAMED {
        summary.push(format!("and {} more members", colors.members.len() - NAMED));
    }
    summary.push(if free == 0 { "none unassigned".into() } else { format!("{free} unassigned") });
    summary.push(
        match view
            .partitions
            .iter()
            .max_by_key(|partition| partition.lag_events)
            .filter(|partition| partition.lag_events > 0)
        {
            Some(partition) => {
                format!(
                    "partition {} has the largest lag: {} events",
                    partition.partition_lease.partition,
                    number(partition.lag_events)
                )
            }
            None => "up to date".into(),
        },
    );
    summary.join(", ")
}

/// Format numbers with consecutive ones as ranges: `0–3, 7`.
pub(super) fn ranges(numbers: impl Iterator<Item = u32>, most: usize) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for n in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => ranges.push((n, n)),
        }
    }
    let range = |(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}–{last}"),
    };
    let text: Vec<_> = ranges.iter().take(most).map(range).collect();
    text.join(", ") + if ranges.len() > most { ", …" } else { "" }
}

#[cfg(test)]
mod tests {
    use tenure::Token;
    use tenure::port::{GroupKey, PartitionLease, TopicKey};

    use super::*;

    fn session(n: usize) -> SessionId {
        SessionId::from_stored(&format!("{n:032x}"))
    }

    /// A group with partitions assigned round-robin, the last one unassigned, each with more lag than the one before.
    fn view(partitions: u32, members: usize) -> GroupView {
        let name = |text: &str| text.parse().expect("a name");
        let partition = |n: u32| PartitionView {
            partition_lease: PartitionLease {
                partition: n,
                token: Token::ZERO,
                holder: (n + 1 < partitions && members > 0).then(|| session(n as usize % members)),
                last_member: "gone <b>".into(),
                committed_offset: 5,
            },
            end_offset: 9,
            lag_events: u64::from(n) * 10,
            lag_exact: n < 100,
            lag_ms: 1500,
        };
        // Not ordered by name.
        let member = |n: usize| GroupMember { session: session(n), name: format!("node-{:03}", members - n) };
        GroupView {
            key: GroupKey::new(TopicKey::new(name("default"), name("orders")), name("billing")),
            settings: Default::default(),
            paused: None,
            members: (0..members).map(member).collect(),
            partitions: (0..partitions).map(partition).collect(),
            parked_event_count: 0,
            dead_letter_count: 0,
            rebalanced_partition_count: 0,
            webhook: None,
        }
    }

    #[test]
    fn every_partition_has_a_cell_with_the_letter_of_its_member_and_its_lag() {
        let view = view(64, 3);
        let colors = MemberColors::of(&view);
        assert_eq!(
            colors.members.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(),
            ["node-001", "node-002", "node-003"]
        );
        let drawn = chart(&view, &colors, Some(7)).into_string();
        assert_eq!(drawn.matches(r#"data-key="partition-"#).count(), 64);
        assert!(!drawn.contains("style=") && !drawn.contains("<b>node"), "{drawn}");
        // Partition 0 belongs to the third member by name and is up to date.
        assert!(drawn.contains(r#"<span class="cell m2 l0" data-key="partition-0" title="Partition 0: node-003; up to date"><small>0</small><b>C</b>"#), "{drawn}");
        assert!(drawn.contains(r#"class="cell m1 l2 current""#), "{drawn}");
        assert!(
            drawn.contains("Partition 63: unassigned, last gone &lt;b&gt;; lag 630 events, oldest 1.5 s"),
            "{drawn}"
        );
        assert!(drawn.contains("64 partitions, node-001: 21, node-002: 21, node-003: 21, 1 unassigned, partition 63 has the largest lag: 630 events"), "{drawn}");
    }

    #[test]
    fn the_largest_topic_and_group_are_rendered() {
        let view = view(1024, 300);
        let colors = MemberColors::of(&view);
        let drawn = chart(&view, &colors, None).into_string();
        assert_eq!(drawn.matches(r#"data-key="partition-"#).count(), 1024);
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
    fn consecutive_numbers_are_formatted_as_ranges() {
        assert_eq!(ranges([0, 1, 2, 3, 7, 9, 10].into_iter(), 9), "0–3, 7, 9, 10");
        assert_eq!(ranges([1, 3, 5].into_iter(), 2), "1, 3, …");
        assert_eq!(ranges(std::iter::empty(), 2), "");
    }
}
