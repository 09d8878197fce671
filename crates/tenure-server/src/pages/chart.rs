//! A queue drawn: how deep it is, state by state; and how it filled and drained in the last minutes. And a group: how far it
//! was behind.
//!
//! Pictures fit any width without a script: bars are percentages, lines are stretched with their strokes left as they
//! are. What they show stands beside them in numbers, for those who do not see them.

use std::collections::VecDeque;
use std::time::Duration;

use maud::{Markup, html};
use tenure::Moment;
use tenure::port::{QueueView, TaskState};

use super::words::{brief, lasted, number, rate, span};
use crate::floor::{Sample, Sampled, Track, WINDOW};
use crate::gauge;

/// What a queue's bar is made of, from left to right: what is under way, what comes next, what is not yet, what is over
/// and wants somebody to look at it.
const PARTS: [TaskState; 6] = [
    TaskState::Claimed,
    TaskState::Ready,
    TaskState::Held,
    TaskState::Scheduled,
    TaskState::Waiting,
    TaskState::Dead,
];
/// The picture's own units.
const WIDE: f64 = 1000.0;
const HIGH: f64 = 100.0;
/// Anything that is there is at least this wide, in percent.
const THIN: f64 = 1.5;

/// A queue's depth as a bar, with the numbers of its parts.
pub(super) fn depth(view: &QueueView) -> Markup {
    let parts: Vec<_> =
        PARTS.into_iter().map(|state| (state, view.count(state))).filter(|(_, n)| *n > 0).collect();
    let whole: u64 = parts.iter().map(|(_, n)| n).sum();
    let widths: Vec<f64> = parts.iter().map(|(_, n)| (*n as f64 / whole as f64 * 100.0).max(THIN)).collect();
    let all: f64 = widths.iter().sum();
    let mut x = 0.0;
    html! {
        @if parts.is_empty() { span.soft { "empty" } }
        @else {
            div.depth {
                svg.stacked width="100%" height="10" role="img" aria-label=(in_words(&parts)) {
                    @for ((state, n), width) in parts.iter().zip(&widths) {
                        @let width = width / all * 100.0;
                        rect class={ "s-" (state.as_str()) } x={ (round(x)) "%" } width={ (round(width)) "%" } height="10" {
                            title { (number(*n)) " " (state.as_str()) }
                        }
                        ({ x += width; "" })
                    }
                }
                span.small {
                    @for (at, (state, n)) in parts.iter().enumerate() {
                        @if at > 0 { span.soft { " · " } }
                        span.nowrap { (brief(*n)) " " span.soft { (state.as_str()) } }
                    }
                }
            }
        }
    }
}

/// What the colours of the bars mean.
pub(super) fn legend() -> Markup {
    html! {
        div.legend aria-hidden="true" {
            @for state in PARTS {
                span { svg viewBox="0 0 22 12" { rect class={ "s-" (state.as_str()) } width="22" height="12" rx="3" {} } (state.as_str()) }
            }
        }
    }
}

fn in_words(parts: &[(TaskState, u64)]) -> String {
    let each: Vec<_> = parts.iter().map(|(state, n)| format!("{} {}", number(*n), state.as_str())).collect();
    each.join(", ")
}

/// How many finished in a second, as a line without axes.
pub(super) fn spark(track: &Track, now: Moment) -> Markup {
    let most = track.samples.iter().map(|sample| sample.rate).fold(0.0, f64::max);
    let points = points(&track.samples, now, |sample| sample.rate);
    small(&points, most, "Finished in a second", &rate(most), &rate(track.rate()))
}

/// How many events a group had not read, as a line without axes.
pub(super) fn unread(track: &gauge::Track, said: &str, now: Moment) -> Markup {
    let most = track.samples.iter().map(|sample| sample.unread).max().unwrap_or_default();
    let points = points(&track.samples, now, |sample| sample.unread as f64);
    small(&points, most as f64, "Unread events", &number(most), said)
}

fn small(points: &[(f64, f64)], most: f64, what: &str, at_most: &str, said: &str) -> Markup {
    html! {
        span.spark {
            svg width="100%" height="26" viewBox={ "0 0 " (WIDE) " " (HIGH) } preserveAspectRatio="none" role="img"
                aria-label={ (what) ", in the last " (lasted(WINDOW.as_millis() as i64)) ": at most " (at_most) } {
                path.area d=(area(points, most)) {}
                path.line d=(line(points, most)) {}
            }
            span.small.nowrap { (said) }
        }
    }
}

/// A line of the picture.
struct Line {
    class: &'static str,
    /// What people call it.
    name: &'static str,
    points: Vec<(f64, f64)>,
    most: f64,
    /// Where it stands now.
    now: String,
}

impl Line {
    fn of<S: Sampled>(
        class: &'static str,
        name: &'static str,
        samples: &VecDeque<S>,
        now: Moment,
        value: impl Fn(&S) -> f64,
        say: impl Fn(f64) -> String,
    ) -> Line {
        let most = samples.iter().map(&value).fold(0.0, f64::max);
        let last = samples.back().map(&value).unwrap_or_default();
        Line { class, name, points: points(samples, now, value), most, now: say(last) }
    }
}

/// How a queue filled and drained, and how fast.
pub(super) fn flow(track: &Track, now: Moment) -> Markup {
    let count = |n: f64| number(n as u64);
    let samples = &track.samples;
    let depth = [
        Line::of("ready", "ready", samples, now, |sample: &Sample| sample.ready as f64, count),
        Line::of("claimed", "claimed", samples, now, |sample: &Sample| sample.claimed as f64, count),
    ];
    let speed = [Line::of("finished", "finished", samples, now, |sample: &Sample| sample.rate, rate)];
    html! { div.flow { (picture(&depth, 170, "")) (picture(&speed, 90, "")) } }
}

/// How far a group was behind: in events, and in time.
pub(super) fn behind(track: &gauge::Track, now: Moment) -> Markup {
    let samples = &track.samples;
    let most = samples.iter().map(|sample| sample.late_ms).max().unwrap_or_default();
    // Of the units that people use, the one in which there is little to read.
    let (unit_ms, unit) = match most {
        0..120_000 => (1000.0, " s"),
        120_000..7_200_000 => (60_000.0, " min"),
        7_200_000..172_800_000 => (3_600_000.0, " h"),
        _ => (86_400_000.0, " d"),
    };
    let count = |n: f64| number(n as u64) + if track.lag.exact { "" } else { "+" };
    let late = |_: f64| span(track.lag.ms);
    let unread = |sample: &gauge::Sample| sample.unread as f64;
    let waited = |sample: &gauge::Sample| sample.late_ms as f64 / unit_ms;
    let events = Line::of("unread", "unread events", samples, now, unread, count);
    let time = Line::of("late", "the oldest has waited", samples, now, waited, late);
    html! { div.flow.even { (picture(&[events], 150, "")) (picture(&[time], 150, unit)) } }
}

fn picture(lines: &[Line], height: i64, unit: &str) -> Markup {
    let most = lines.iter().map(|line| line.most).fold(0.0, f64::max);
    let top = nice(most);
    let said: Vec<_> = lines.iter().map(|line| format!("{} now {}", line.name, line.now)).collect();
    let words = format!(
        "The last {}: {}; at most {}{unit}",
        lasted(WINDOW.as_millis() as i64),
        said.join(", "),
        brief(most.ceil() as u64)
    );
    html! {
        figure {
            figcaption.legend {
                @for line in lines {
                    span { svg viewBox="0 0 22 12" aria-hidden="true" { rect class={ "f-" (line.class) } width="22" height="12" rx="3" {} }
                        (line.name) " " span.strong { (line.now) } }
                }
            }
            svg.picture width="100%" height=(height + 20) role="img" aria-label=(words) {
                @for (part, at) in [(1.0, 0), (0.5, height / 2), (0.0, height)] {
                    line.grid x1="0" x2="100%" y1=(at) y2=(at) {}
                    @if top * part >= 1.0 || part == 0.0 {
                        text x="0" y=(at + 13) { (brief((top * part).round() as u64)) (unit) }
                    }
                }
                svg x="0" y="0" width="100%" height=(height) viewBox={ "0 0 " (WIDE) " " (HIGH) } preserveAspectRatio="none" aria-hidden="true" {
                    @for line in lines {
                        path class={ "area f-" (line.class) } d=(area(&line.points, top)) {}
                        path class={ "line f-" (line.class) } d=(self::line(&line.points, top)) {}
                    }
                }
                @let minutes = WINDOW.as_secs() / 60;
                @for ago in 1..minutes {
                    @let x = 100.0 - ago as f64 / minutes as f64 * 100.0;
                    text x={ (round(x)) "%" } y=(height + 16) text-anchor="middle" { "−" (ago) " min" }
                }
                text x="100%" y=(height + 16) text-anchor="end" { "now" }
            }
        }
    }
}

/// Where the samples stand: from 0 to [`WIDE`], and what they say.
fn points<S: Sampled>(samples: &VecDeque<S>, now: Moment, value: impl Fn(&S) -> f64) -> Vec<(f64, f64)> {
    let x = |at: Moment| {
        let ago = now.since(at).min(WINDOW).as_secs_f64() / WINDOW.as_secs_f64();
        WIDE - ago * WIDE
    };
    let mut points: Vec<_> = samples.iter().map(|sample| (x(sample.at()), value(sample))).collect();
    // What was last seen is how it is, until it is seen otherwise.
    if let (Some(last), Some(sample)) = (points.last().copied(), samples.back())
        && now.since(sample.at()) < Duration::from_secs(15)
    {
        points.push((WIDE, last.1));
    }
    points
}

fn line(points: &[(f64, f64)], top: f64) -> String {
    let mut path = String::new();
    for (n, (x, value)) in points.iter().enumerate() {
        let sign = if n == 0 { 'M' } else { 'L' };
        path.push_str(&format!("{sign}{} {}", round(*x), round(height(*value, top))));
    }
    path
}

fn area(points: &[(f64, f64)], top: f64) -> String {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return String::new() };
    let over = line(points, top).replacen('M', "L", 1);
    format!("M{} {HIGH}{over}L{} {HIGH}Z", round(first.0), round(last.0))
}

fn height(value: f64, top: f64) -> f64 {
    // A line at the very edge would be cut in half.
    HIGH - 1.0 - if top > 0.0 { (value / top).clamp(0.0, 1.0) * (HIGH - 2.0) } else { 0.0 }
}

/// A round number that is not less, for the top of a picture.
fn nice(most: f64) -> f64 {
    let most = most.max(1.0);
    let unit = 10f64.powf(most.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    steps.into_iter().map(|step| step * unit).find(|top| *top >= most).unwrap_or(most)
}

/// To a hundredth: addresses of points need no more.
fn round(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tenure::port::QueueKey;

    use super::*;

    fn view(counts: &[(TaskState, u64)]) -> QueueView {
        let name = |text: &str| text.parse().expect("a name");
        QueueView {
            key: QueueKey::new(name("a"), name("b")),
            settings: Default::default(),
            paused: None,
            counts: counts.iter().copied().collect::<BTreeMap<_, _>>(),
            oldest_ready_ms: None,
        }
    }

    #[test]
    fn a_bar_is_as_wide_as_all_of_its_parts_and_shows_each() {
        let bar = depth(&view(&[
            (TaskState::Ready, 1_000_000),
            (TaskState::Claimed, 1),
            (TaskState::Completed, 9),
        ]));
        let bar = bar.into_string();
        assert_eq!(bar.matches("<rect").count(), 2, "what is over is not deep: {bar}");
        assert!(bar.contains(r#"class="s-claimed" x="0%" width="1.48%""#), "{bar}");
        assert!(bar.contains(r#"x="1.48%" width="98.52%""#), "{bar}");
        assert!(bar.contains("1 claimed, 1,000,000 ready") && !bar.contains("style="), "{bar}");
        assert!(depth(&view(&[(TaskState::Completed, 9)])).into_string().contains("empty"));
    }

    #[test]
    fn tops_are_round_and_high_enough() {
        for (most, top) in [(0.0, 1.0), (1.0, 1.0), (3.0, 5.0), (10.0, 10.0), (11.0, 20.0), (999.0, 1000.0)] {
            assert_eq!(nice(most), top, "{most}");
        }
    }

    #[test]
    fn nothing_is_drawn_outside() {
        let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
        let sample = |seconds, ready| Sample { at: at(seconds), ready, claimed: 1, rate: 0.5 };
        let samples: VecDeque<_> = [sample(1, 5), sample(500, 900), sample(998, 0)].into();
        let track = Track::of(view(&[]), samples);
        for now in [at(0), at(1000), at(100_000)] {
            let drawn = flow(&track, now).into_string() + &spark(&track, now).into_string();
            assert!(!drawn.contains("NaN") && !drawn.contains("inf") && !drawn.contains("L-"), "{drawn}");
        }
        let none = Track::of(view(&[]), VecDeque::new());
        assert!(flow(&none, at(9)).into_string().contains("<svg"));
    }
}
