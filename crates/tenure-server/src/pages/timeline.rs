//! Terms, drawn as a picture: a lane for each leader, a bar for each term, time from left to right.
//!
//! Lengths along the time are percentages, so that the picture fits any width without a script; heights are pixels. What
//! it shows is in the table below it too, for those who do not see it.

use maud::{Markup, html};
use tenure::port::Term;

use super::words::{lasted, utc};

/// More lanes than this are not told apart; the latest leaders have one.
const LANES: usize = 8;
const LANE: i64 = 40;
const BAR: i64 = 18;
/// Terms and gaps that are narrower than this, in percent, are widened or left out.
const THIN: f64 = 0.4;

/// A stretch of time on the picture, in percent of its width.
struct Span {
    x: f64,
    width: f64,
}

/// The whole of what is drawn, from when until when.
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

    /// Round times to draw lines at: at most five, each a whole number of steps ago.
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

/// The picture of these terms, the newest first.
pub(super) fn picture(terms: &[Term], slots: u32, now_ms: i64) -> Markup {
    let Some(from) = terms.iter().map(|term| term.began_at_ms).min() else { return html! {} };
    let latest = terms.iter().filter_map(|term| term.ended_at_ms).max().unwrap_or(now_ms);
    let window = Window { from, until: now_ms.max(latest).max(from + 1000) };
    let lanes = lanes(terms);
    let gaps = if slots == 1 { gaps(terms, &window) } else { Vec::new() };
    let height = (lanes.len() as i64 + i64::from(!gaps.is_empty())) * LANE;
    html! {
        figure {
            svg.picture width="100%" height=(height + 20) role="img" aria-label=(in_words(terms, &lanes, now_ms)) {
                @for at in window.ticks() {
                    line.grid x1={ (window.at(at)) "%" } x2={ (window.at(at)) "%" } y1="0" y2=(height) {}
                    text x={ (window.at(at)) "%" } y=(height + 15) text-anchor="middle" { "−" (short(window.until - at)) }
                }
                text x="100%" y=(height + 15) text-anchor="end" { "now" }
                @for (n, (who, theirs)) in lanes.iter().enumerate() {
                    (lane(n as i64 * LANE, who, theirs, &window))
                }
                @if !gaps.is_empty() {
                    @let y = lanes.len() as i64 * LANE;
                    text x="0" y=(y + 13) { "nobody" }
                    @for (from, until) in &gaps {
                        @let span = window.span(*from, *until);
                        rect.gap x={ (span.x) "%" } width={ (span.width) "%" } y=(y + 19) height=(BAR - 2) rx="3" {
                            title { "nobody led for " (lasted(until - from)) ", from " (utc(*from)) }
                        }
                    }
                }
            }
        }
    }
}

/// What the signs of the picture mean.
pub(super) fn legend() -> Markup {
    html! {
        div.legend aria-hidden="true" {
            span { svg viewBox="0 0 22 12" { rect.now width="22" height="12" rx="3" {} } "leads now" }
            span { svg viewBox="0 0 22 12" { rect.term width="22" height="12" rx="3" {} } "led" }
            span { svg viewBox="0 0 22 12" { rect.term width="18" height="12" rx="3" {} line.cut x1="20" x2="20" y1="0" y2="12" {} } "died or fell silent" }
            span { svg viewBox="0 0 22 12" { rect.gap x="1" y="1" width="20" height="10" rx="3" {} } "nobody led" }
        }
    }
}

fn lane(y: i64, who: &str, terms: &[&Term], window: &Window) -> Markup {
    let led: i64 = terms.iter().map(|term| term.ended_at_ms.unwrap_or(window.until) - term.began_at_ms).sum();
    html! {
        text x="0" y=(y + 13) {
            tspan.who { (who) } tspan dx="8" { (super::words::count(terms.len(), "term")) ", " (lasted(led)) }
        }
        rect.lane x="0" width="100%" y=(y + 18) height=(BAR) rx="4" {}
        @for term in terms {
            @let until = term.ended_at_ms.unwrap_or(window.until);
            @let span = window.span(term.began_at_ms, until);
            @let fell = term.end.as_deref() == Some("expired");
            g.now[term.ended_at_ms.is_none()] {
                title { (tooltip(term, until)) }
                rect.term x={ (span.x) "%" } width={ (span.width) "%" } y=(y + 18) height=(BAR) rx="4" {}
                @if span.width > 9.0 { text.label x={ (span.x) "%" } dx="7" y=(y + 31) { (term.token) } }
                @if fell { line.cut x1={ (span.x + span.width) "%" } x2={ (span.x + span.width) "%" } y1=(y + 15) y2=(y + 19 + BAR) {} }
            }
        }
    }
}

fn tooltip(term: &Term, until: i64) -> String {
    let how = term.end.as_deref().unwrap_or("leads");
    let (token, lasted, began) = (term.token, lasted(until - term.began_at_ms), utc(term.began_at_ms));
    format!("{} under token {token}, by {}, for {lasted} from {began}: {how}", term.id, term.via.as_str())
}

/// The terms of each leader; who led last comes first.
fn lanes(terms: &[Term]) -> Vec<(&str, Vec<&Term>)> {
    let mut lanes: Vec<(&str, Vec<&Term>)> = Vec::new();
    for term in terms {
        let known = lanes.iter().position(|(who, _)| *who == term.id);
        if known.is_none() && lanes.len() < LANES {
            lanes.push((&term.id, vec![term]));
        } else if let Some(known) = known {
            lanes[known].1.push(term);
        } else if let Some((who, theirs)) = lanes.last_mut() {
            *who = "others";
            theirs.push(term);
        }
    }
    lanes
}

/// When nobody led, where that is wide enough to be seen.
fn gaps(terms: &[Term], window: &Window) -> Vec<(i64, i64)> {
    let mut ended = None;
    let mut gaps = Vec::new();
    for term in terms.iter().rev() {
        if let Some(ended) = ended {
            gaps.push((ended, term.began_at_ms));
        }
        ended = term.ended_at_ms;
    }
    gaps.extend(ended.map(|ended| (ended, window.until)));
    gaps.retain(|(from, until)| window.at(*until) - window.at(*from) > THIN);
    gaps
}

fn in_words(terms: &[Term], lanes: &[(&str, Vec<&Term>)], now_ms: i64) -> String {
    let since = terms.last().map_or(0, |term| now_ms - term.began_at_ms);
    let each: Vec<_> = lanes.iter().map(|(who, theirs)| format!("{who} {}", theirs.len())).collect();
    let terms = super::words::count(terms.len(), "term");
    format!("{terms} in the last {}: {}. The table below has each of them.", lasted(since), each.join(", "))
}

/// A round time, in one unit.
fn short(ms: i64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        _ if seconds % 60 > 0 => format!("{} s", seconds),
        60..3600 => format!("{} min", seconds / 60),
        _ if seconds < 10_800 && seconds % 3600 > 0 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use tenure::port::Via;
    use tenure::{SessionId, Token};

    use super::*;

    fn term(id: &str, n: u32, began: i64, ended: Option<(i64, &str)>) -> Term {
        let token = (0..n).fold(Token::ZERO, |token, _| token.next(0));
        Term {
            slot: 0,
            token,
            id: id.into(),
            session: SessionId::from_stored(id),
            via: Via::Release,
            began_at_ms: began,
            ended_at_ms: ended.map(|(at, _)| at),
            end: ended.map(|(_, how)| how.into()),
        }
    }

    #[test]
    fn a_term_stands_where_its_time_is() {
        let terms = [term("b", 2, 60_000, None), term("a", 1, 0, Some((50_000, "expired")))];
        let drawn = picture(&terms, 1, 100_000).into_string();
        assert!(drawn.contains(r#"<rect class="term" x="60%" width="40%""#), "{drawn}");
        assert!(drawn.contains(r#"<rect class="term" x="0%" width="50%""#), "{drawn}");
        assert!(drawn.contains("nobody led for 10 s"), "{drawn}");
        assert!(drawn.contains("class=\"cut\""), "{drawn}");
        assert!(!drawn.contains("style="), "{drawn}");
    }

    #[test]
    fn no_two_ticks_read_the_same() {
        for whole in (1..400).map(|n| n * n * 700) {
            let window = Window { from: 0, until: whole };
            let mut said: Vec<_> = window.ticks().into_iter().map(|at| short(whole - at)).collect();
            let ticks = said.len();
            said.dedup();
            assert_eq!(said.len(), ticks, "{said:?}");
            assert!(ticks <= 4);
        }
    }

    #[test]
    fn many_leaders_share_the_last_lane() {
        let ids: Vec<_> = (0..20).map(|n| format!("node-{n:02}")).collect();
        let terms: Vec<_> = ids
            .iter()
            .enumerate()
            .rev()
            .map(|(n, id)| {
                term(id, n as u32 + 1, n as i64 * 1000, Some((n as i64 * 1000 + 1000, "released")))
            })
            .collect();
        let lanes = lanes(&terms);
        assert_eq!(lanes.len(), LANES);
        assert_eq!(lanes[LANES - 1].0, "others");
        assert_eq!(lanes.iter().map(|(_, theirs)| theirs.len()).sum::<usize>(), 20);
    }

    #[test]
    fn clocks_that_disagree_draw_nothing_outside() {
        let terms = [term("b", 2, 5_000, Some((4_000, "ended"))), term("a", 1, 9_000, None)];
        let drawn = picture(&terms, 1, 1_000).into_string();
        assert!(!drawn.contains("NaN") && !drawn.contains("\"-"), "{drawn}");
        assert!(picture(&[], 1, 0).into_string().is_empty());
    }
}
