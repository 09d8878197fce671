//! The chart of terms: one row per leader, one bar per term, time from left to right.
//!
//! Horizontal lengths are percentages, so the chart fits any width without a script; heights are pixels. The
//! table below the chart has the same data for screen readers.

use maud::{Markup, html};
use tenure::port::Term;

use super::format::{elapsed, utc};

/// Maximum number of rows. The latest leaders have their own row; the others share the last one.
const ROWS_MAX: usize = 8;
const ROW: i64 = 40;
const BAR: i64 = 18;
/// Minimum width in percent. Narrower terms are widened; narrower gaps are omitted.
const THIN: f64 = 0.4;

/// A time range in the chart, in percent of its width.
struct Span {
    x: f64,
    width: f64,
}

/// The time range of the chart.
struct Window {
    from: i64,
    until: i64,
}

impl Window {
    fn at(&self, ms: i64) -> f64 {
        let whole = (self.until - self.from).max(1) as f64;
        ((ms - self.from) as f64 / whole * 100.0).clamp(0.0, 100.0)
    }

    fn span(&self, from: i64, until: i64) -> Span {
        let (x, end) = (self.at(from), self.at(until));
        let width = (end - x).max(THIN);
        Span { x: x.min(100.0 - width), width }
    }

    /// Instants of the grid lines: at most four, at round distances from now.
    fn ticks(&self) -> Vec<i64> {
        const STEPS: [i64; 19] = [
            1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21_600, 43_200, 86_400, 604_800,
            2_592_000,
        ];
        let whole = (self.until - self.from) / 1000;
        let step = STEPS.into_iter().find(|step| whole / step <= 4).unwrap_or(whole / 4) * 1000;
        (1..=4).map(|n| self.until - n * step).filter(|at| self.at(*at) > 8.0).collect()
    }
}

/// Render the chart. `terms` are ordered newest first.
pub(super) fn chart(terms: &[Term], slots: u32, now_ms: i64) -> Markup {
    let Some(from) = terms.iter().map(|term| term.started_at_ms).min() else { return html! {} };
    let latest = terms.iter().filter_map(|term| term.ended_at_ms).max().unwrap_or(now_ms);
    let window = Window { from, until: now_ms.max(latest).max(from + 1000) };
    let rows = rows(terms);
    let gaps = if slots == 1 { gaps(terms, &window) } else { Vec::new() };
    let height = (rows.len() as i64 + i64::from(!gaps.is_empty())) * ROW;
    html! {
        figure {
            svg.picture width="100%" height=(height + 20) role="img" aria-label=(in_words(terms, &rows, now_ms)) {
                @for at in window.ticks() {
                    line.grid x1={ (window.at(at)) "%" } x2={ (window.at(at)) "%" } y1="0" y2=(height) {}
                    text x={ (window.at(at)) "%" } y=(height + 15) text-anchor="middle" { "−" (short(window.until - at)) }
                }
                text x="100%" y=(height + 15) text-anchor="end" { "now" }
                @for (n, (name, terms_of_leader)) in rows.iter().enumerate() {
                    (row(n as i64 * ROW, name, terms_of_leader, &window))
                }
                @if !gaps.is_empty() {
                    @let y = rows.len() as i64 * ROW;
                    text x="0" y=(y + 13) { "no leader" }
                    @for (from, until) in &gaps {
                        @let span = window.span(*from, *until);
                        rect.gap x={ (span.x) "%" } width={ (span.width) "%" } y=(y + 19) height=(BAR - 2) rx="3" {
                            title { "no leader for " (elapsed(until - from)) ", from " (utc(*from)) }
                        }
                    }
                }
            }
        }
    }
}

/// The legend of the chart.
pub(super) fn legend() -> Markup {
    html! {
        div.legend aria-hidden="true" {
            span { svg viewBox="0 0 22 12" { rect.now width="22" height="12" rx="3" {} } "leading now" }
            span { svg viewBox="0 0 22 12" { rect.term width="22" height="12" rx="3" {} } "term" }
            span { svg viewBox="0 0 22 12" { rect.term width="18" height="12" rx="3" {} line.cut x1="20" x2="20" y1="0" y2="12" {} } "session expired" }
            span { svg viewBox="0 0 22 12" { rect.gap x="1" y="1" width="20" height="10" rx="3" {} } "no leader" }
        }
    }
}

fn row(y: i64, name: &str, terms: &[&Term], window: &Window) -> Markup {
    let led: i64 =
        terms.iter().map(|term| term.ended_at_ms.unwrap_or(window.until) - term.started_at_ms).sum();
    html! {
        text x="0" y=(y + 13) {
            tspan.name { (name) } tspan dx="8" { (super::format::count(terms.len(), "term")) ", " (elapsed(led)) }
        }
        rect.row x="0" width="100%" y=(y + 18) height=(BAR) rx="4" {}
        @for term in terms {
            @let until = term.ended_at_ms.unwrap_or(window.until);
            @let span = window.span(term.started_at_ms, until);
            @let expired = term.end_reason.as_deref() == Some("expired");
            g.now[term.ended_at_ms.is_none()] {
                title { (tooltip(term, until)) }
                rect.term x={ (span.x) "%" } width={ (span.width) "%" } y=(y + 18) height=(BAR) rx="4" {}
                @if span.width > 9.0 { text.label x={ (span.x) "%" } dx="7" y=(y + 31) { (term.token) } }
                @if expired { line.cut x1={ (span.x + span.width) "%" } x2={ (span.x + span.width) "%" } y1=(y + 15) y2=(y + 19 + BAR) {} }
            }
        }
    }
}

fn tooltip(term: &Term, until: i64) -> String {
    let how = term.end_reason.as_deref().unwrap_or("none, leading now");
    let (token, elapsed, began) = (term.token, elapsed(until - term.started_at_ms), utc(term.started_at_ms));
    format!(
        "{}: token {token}, start reason {}, duration {elapsed} from {began}, end reason {how}",
        term.candidate_name,
        term.start_reason.as_str()
    )
}

/// The terms by leader, the latest leader first.
fn rows(terms: &[Term]) -> Vec<(&str, Vec<&Term>)> {
    let mut rows: Vec<(&str, Vec<&Term>)> = Vec::new();
    for term in terms {
        let known = rows.iter().position(|(name, _)| *name == term.candidate_name);
        if known.is_none() && rows.len() < ROWS_MAX {
            rows.push((&term.candidate_name, vec![term]));
        } else if let Some(known) = known {
            rows[known].1.push(term);
        } else if let Some((name, terms_of_leader)) = rows.last_mut() {
            *name = "others";
            terms_of_leader.push(term);
        }
    }
    rows
}

/// The time ranges without a leader that are wide enough to be visible.
fn gaps(terms: &[Term], window: &Window) -> Vec<(i64, i64)> {
    let mut ended = None;
    let mut gaps = Vec::new();
    for term in terms.iter().rev() {
        if let Some(ended) = ended {
            gaps.push((ended, term.started_at_ms));
        }
        ended = term.ended_at_ms;
    }
    gaps.extend(ended.map(|ended| (ended, window.until)));
    gaps.retain(|(from, until)| window.at(*until) - window.at(*from) > THIN);
    gaps
}

fn in_words(terms: &[Term], rows: &[(&str, Vec<&Term>)], now_ms: i64) -> String {
    let since = terms.last().map_or(0, |term| now_ms - term.started_at_ms);
    let each: Vec<_> =
        rows.iter().map(|(name, terms_of_leader)| format!("{name} {}", terms_of_leader.len())).collect();
    let terms = super::format::count(terms.len(), "term");
    format!("{terms} in the last {}: {}. See the table below.", elapsed(since), each.join(", "))
}

/// A round duration in one unit.
fn short(ms: i64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        _ if seconds % 60 > 0 => format!("{} s", seconds),
        60..3600 => format!("{} m", seconds / 60),
        _ if seconds < 10_800 && seconds % 3600 > 0 => format!("{} m", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use tenure::port::StartReason;
    use tenure::{SessionId, Token};

    use super::*;

    fn term(id: &str, n: u32, began: i64, ended: Option<(i64, &str)>) -> Term {
        let token = (0..n).fold(Token::ZERO, |token, _| token.next(0));
        Term {
            slot: 0,
            token,
            candidate_name: id.into(),
            session: SessionId::from_stored(id),
            start_reason: StartReason::Release,
            started_at_ms: began,
            ended_at_ms: ended.map(|(at, _)| at),
            end_reason: ended.map(|(_, how)| how.into()),
        }
    }

    #[test]
    fn a_term_is_drawn_at_its_time() {
        let terms = [term("b", 2, 60_000, None), term("a", 1, 0, Some((50_000, "expired")))];
        let drawn = chart(&terms, 1, 100_000).into_string();
        assert!(drawn.contains(r#"<rect class="term" x="60%" width="40%""#), "{drawn}");
        assert!(drawn.contains(r#"<rect class="term" x="0%" width="50%""#), "{drawn}");
        assert!(drawn.contains("no leader for 10 s"), "{drawn}");
        assert!(drawn.contains("class=\"cut\""), "{drawn}");
        assert!(!drawn.contains("style="), "{drawn}");
    }

    #[test]
    fn the_labels_of_grid_lines_are_distinct() {
        for whole in (1..400).map(|n| n * n * 700) {
            let window = Window { from: 0, until: whole };
            let mut labels: Vec<_> = window.ticks().into_iter().map(|at| short(whole - at)).collect();
            let ticks = labels.len();
            labels.dedup();
            assert_eq!(labels.len(), ticks, "{labels:?}");
            assert!(ticks <= 4);
        }
    }

    #[test]
    fn many_leaders_share_the_last_row() {
        let ids: Vec<_> = (0..20).map(|n| format!("node-{n:02}")).collect();
        let terms: Vec<_> = ids
            .iter()
            .enumerate()
            .rev()
            .map(|(n, id)| {
                term(id, n as u32 + 1, n as i64 * 1000, Some((n as i64 * 1000 + 1000, "released")))
            })
            .collect();
        let rows = rows(&terms);
        assert_eq!(rows.len(), ROWS_MAX);
        assert_eq!(rows[ROWS_MAX - 1].0, "others");
        assert_eq!(rows.iter().map(|(_, terms_of_leader)| terms_of_leader.len()).sum::<usize>(), 20);
    }

    #[test]
    fn terms_of_unsynchronized_clocks_stay_inside_the_chart() {
        let terms = [term("b", 2, 5_000, Some((4_000, "ended"))), term("a", 1, 9_000, None)];
        let drawn = chart(&terms, 1, 1_000).into_string();
        assert!(!drawn.contains("NaN") && !drawn.contains("\"-"), "{drawn}");
        assert!(chart(&[], 1, 0).into_string().is_empty());
    }
}
