//! Charts of a queue (tasks by state, throughput of the last minutes) and of a consumer group (lag).
//!
//! Charts fit any width without a script: bars are percentages, lines are stretched without scaling their
//! strokes. The same values are on the page as numbers for screen readers.

use std::collections::VecDeque;
use std::time::Duration;

use maud::{Markup, html};
use tenure::BootInstant;
use tenure::port::{QueueView, TaskState};

use super::format::{brief, elapsed, number, rate, span};
use crate::snapshot::events;
use crate::snapshot::queues::{QueueHistory, QueueSample, TimedSample, WINDOW};

/// The states in a queue's bar, from left to right: running, next, later, and dead tasks that need an operator.
const PARTS: [TaskState; 6] = [
    TaskState::Claimed,
    TaskState::Ready,
    TaskState::Blocked,
    TaskState::Scheduled,
    TaskState::Waiting,
    TaskState::Dead,
];
/// Size of the view box.
const WIDE: f64 = 1000.0;
const HIGH: f64 = 100.0;
/// Minimum width of a part, in percent.
const THIN: f64 = 1.5;

/// The tasks of a queue by state, as a bar with numbers.
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

/// The legend of the bars.
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

/// Throughput as a line without axes.
pub(super) fn spark(track: &QueueHistory, now: BootInstant) -> Markup {
    let most = track.samples.iter().map(|sample| sample.rate).fold(0.0, f64::max);
    let points = points(&track.samples, now, |sample| sample.rate);
    small(&points, most, "Finished per second", &rate(most), &rate(track.rate()))
}

/// Lag of a group as a line without axes.
pub(super) fn lag_spark(track: &events::GroupHistory, current: &str, now: BootInstant) -> Markup {
    let most = track.samples.iter().map(|sample| sample.unread).max().unwrap_or_default();
    let points = points(&track.samples, now, |sample| sample.unread as f64);
    small(&points, most as f64, "Lag (events)", &number(most), current)
}

fn small(points: &[(f64, f64)], most: f64, what: &str, at_most: &str, current: &str) -> Markup {
    html! {
        span.spark {
            svg width="100%" height="26" viewBox={ "0 0 " (WIDE) " " (HIGH) } preserveAspectRatio="none" role="img"
                aria-label={ (what) ", last " (elapsed(WINDOW.as_millis() as i64)) ": maximum " (at_most) } {
                path.area d=(area(points, most)) {}
                path.line d=(line(points, most)) {}
            }
            span.small.nowrap { (current) }
        }
    }
}

/// One series of a chart.
struct ChartSeries {
    class: &'static str,
    /// The label.
    name: &'static str,
    points: Vec<(f64, f64)>,
    most: f64,
    /// The current value.
    now: String,
}

impl ChartSeries {
    fn of<S: TimedSample>(
        class: &'static str,
        name: &'static str,
        samples: &VecDeque<S>,
        now: BootInstant,
        value: impl Fn(&S) -> f64,
        say: impl Fn(f64) -> String,
    ) -> ChartSeries {
        let most = samples.iter().map(&value).fold(0.0, f64::max);
        let last = samples.back().map(&value).unwrap_or_default();
        ChartSeries { class, name, points: points(samples, now, value), most, now: say(last) }
    }
}

/// The charts of a queue: ready and claimed tasks, and throughput.
pub(super) fn flow(track: &QueueHistory, now: BootInstant) -> Markup {
    let count = |n: f64| number(n as u64);
    let samples = &track.samples;
    let depth = [
        ChartSeries::of("ready", "ready", samples, now, |sample: &QueueSample| sample.ready as f64, count),
        ChartSeries::of(
            "claimed",
            "claimed",
            samples,
            now,
            |sample: &QueueSample| sample.claimed as f64,
            count,
        ),
    ];
    let speed =
        [ChartSeries::of("finished", "finished", samples, now, |sample: &QueueSample| sample.rate, rate)];
    html! { div.flow { (chart(&depth, 170, "")) (chart(&speed, 90, "")) } }
}

/// The charts of a group: lag in events and in time.
pub(super) fn lag(track: &events::GroupHistory, now: BootInstant) -> Markup {
    let samples = &track.samples;
    let most = samples.iter().map(|sample| sample.lag_ms).max().unwrap_or_default();
    // Choose the unit that keeps the axis labels short.
    let (unit_ms, unit) = match most {
        0..120_000 => (1000.0, " s"),
        120_000..7_200_000 => (60_000.0, " m"),
        7_200_000..172_800_000 => (3_600_000.0, " h"),
        _ => (86_400_000.0, " d"),
    };
    let count = |n: f64| number(n as u64) + if track.lag.exact { "" } else { "+" };
    let late = |_: f64| span(track.lag.ms);
    let unread = |sample: &events::GroupSample| sample.unread as f64;
    let waited = |sample: &events::GroupSample| sample.lag_ms as f64 / unit_ms;
    let events = ChartSeries::of("lag", "lag (events)", samples, now, unread, count);
    let time = ChartSeries::of("age", "age of the oldest unread event", samples, now, waited, late);
    html! { div.flow.even { (chart(&[events], 150, "")) (chart(&[time], 150, unit)) } }
}

fn chart(lines: &[ChartSeries], height: i64, unit: &str) -> Markup {
    let most = lines.iter().map(|line| line.most).fold(0.0, f64::max);
    let top = nice(most);
    let texts: Vec<_> = lines.iter().map(|line| format!("{} now {}", line.name, line.now)).collect();
    let words = format!(
        "Last {}: {}; maximum {}{unit}",
        elapsed(WINDOW.as_millis() as i64),
        texts.join(", "),
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
                        text x="0" y=(at + 13) { (tick(top * part, unit)) (unit) }
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
                    text x={ (round(x)) "%" } y=(height + 16) text-anchor="middle" { "−" (ago) " m" }
                }
                text x="100%" y=(height + 16) text-anchor="end" { "now" }
            }
        }
    }
}

/// The label of a grid line. Counts are whole numbers; times may have a fraction.
fn tick(value: f64, unit: &str) -> String {
    if unit.is_empty() || value.fract() == 0.0 { brief(value.round() as u64) } else { format!("{value:.1}") }
}

/// The samples as points: x from 0 to [`WIDE`], and the value.
fn points<S: TimedSample>(
    samples: &VecDeque<S>,
    now: BootInstant,
    value: impl Fn(&S) -> f64,
) -> Vec<(f64, f64)> {
    let x = |at: BootInstant| {
        let ago = now.since(at).min(WINDOW).as_secs_f64() / WINDOW.as_secs_f64();
        WIDE - ago * WIDE
    };
    let mut points: Vec<_> = samples.iter().map(|sample| (x(sample.at()), value(sample))).collect();
    // Extend the last sample to now while it is recent.
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
    // Keep the stroke inside the view box.
    HIGH - 1.0 - if top > 0.0 { (value / top).clamp(0.0, 1.0) * (HIGH - 2.0) } else { 0.0 }
}

/// The next round number, for the top of a chart.
fn nice(most: f64) -> f64 {
    let most = most.max(1.0);
    let unit = 10f64.powf(most.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    steps.into_iter().map(|step| step * unit).find(|top| *top >= most).unwrap_or(most)
}

/// Round to hundredths, to keep path data short.
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
            oldest_ready_age_ms: None,
        }
    }

    #[test]
    fn a_bar_shows_every_part_and_is_full_width() {
        let bar = depth(&view(&[
            (TaskState::Ready, 1_000_000),
            (TaskState::Claimed, 1),
            (TaskState::Completed, 9),
        ]));
        let bar = bar.into_string();
        assert_eq!(bar.matches("<rect").count(), 2, "completed tasks are not in the bar: {bar}");
        assert!(bar.contains(r#"class="s-claimed" x="0%" width="1.48%""#), "{bar}");
        assert!(bar.contains(r#"x="1.48%" width="98.52%""#), "{bar}");
        assert!(bar.contains("1 claimed, 1,000,000 ready") && !bar.contains("style="), "{bar}");
        assert!(depth(&view(&[(TaskState::Completed, 9)])).into_string().contains("empty"));
    }

    #[test]
    fn the_top_of_a_chart_is_a_round_number() {
        for (most, top) in [(0.0, 1.0), (1.0, 1.0), (3.0, 5.0), (10.0, 10.0), (11.0, 20.0), (999.0, 1000.0)] {
            assert_eq!(nice(most), top, "{most}");
        }
    }

    #[test]
    fn a_chart_stays_inside_its_view_box() {
        let at = |seconds: u64| BootInstant::from_nanos(seconds * 1_000_000_000);
        let sample = |seconds, ready| QueueSample { at: at(seconds), ready, claimed: 1, rate: 0.5 };
        let samples: VecDeque<_> = [sample(1, 5), sample(500, 900), sample(998, 0)].into();
        let track = QueueHistory::new(view(&[]), samples);
        for now in [at(0), at(1000), at(100_000)] {
            let drawn = flow(&track, now).into_string() + &spark(&track, now).into_string();
            assert!(!drawn.contains("NaN") && !drawn.contains("inf") && !drawn.contains("L-"), "{drawn}");
        }
        let none = QueueHistory::new(view(&[]), VecDeque::new());
        assert!(flow(&none, at(9)).into_string().contains("<svg"));
    }
}
