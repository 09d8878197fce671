//! Chart of the claim mode benchmark.

use std::fmt::Write;

use tenure::port::AssignmentMode;

use super::claim_modes::{ClaimModesReport, ClaimModesRow};

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 44.0;
const RIGHT: f64 = 20.0;

const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#334}\
.title{font-size:14px;font-weight:600}.axis{stroke:#99a;stroke-width:1}.grid{stroke:#dde;stroke-width:1}\
.exclusive{stroke:#b4491c;fill:#b4491c}.distributed{stroke:#1c6fb4;fill:#1c6fb4}\
polyline{fill:none!important;stroke-width:2}";

/// Two panels: the 99th percentile of a claim, and claims per second.
pub fn svg(report: &ClaimModesReport) -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {HEIGHT}\" role=\"img\">\
         <title>Exclusive and distributed claims by number of replicas</title><style>{STYLE}</style>\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>",
        WIDTH * 2.0
    );
    panel(&mut out, report, 0.0, "p99 of a claim, ms", |row| row.p99_ms);
    panel(&mut out, report, WIDTH, "claims per second", |row| row.per_second);
    out.push_str("</svg>\n");
    out
}

fn panel(
    out: &mut String,
    report: &ClaimModesReport,
    x0: f64,
    title: &str,
    figure: fn(&ClaimModesRow) -> f64,
) {
    let rows = &report.rows;
    let most = rows.iter().map(figure).fold(0.0_f64, f64::max);
    let top = nice(most);
    let mut replicas: Vec<usize> = rows.iter().map(|row| row.replicas).collect();
    replicas.sort_unstable();
    replicas.dedup();
    let (width, height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let steps = (replicas.len().max(2) - 1) as f64;
    let x = |index: usize| x0 + LEFT + width * index as f64 / steps;
    let y = |value: f64| TOP + height * (1.0 - value / top);
    let _ = write!(out, "<text class=\"title\" x=\"{}\" y=\"24\">{title}</text>", x0 + LEFT);
    for part in 0..=4 {
        let value = top * f64::from(part) / 4.0;
        let (at, left, right) = (y(value), x0 + LEFT, x0 + WIDTH - RIGHT);
        let class = if part == 0 { "axis" } else { "grid" };
        let _ = write!(
            out,
            "<line class=\"{class}\" x1=\"{left}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 8.0,
            at + 4.0,
            short(value)
        );
    }
    for (index, count) in replicas.iter().enumerate() {
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{count}</text>",
            x(index),
            HEIGHT - BOTTOM + 18.0
        );
    }
    let _ = write!(
        out,
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">replicas</text>",
        x0 + LEFT + width / 2.0,
        HEIGHT - 8.0
    );
    for (number, mode) in [AssignmentMode::Exclusive, AssignmentMode::Distributed].into_iter().enumerate() {
        let points: Vec<(f64, f64)> = replicas
            .iter()
            .enumerate()
            .filter_map(|(index, &count)| Some((x(index), y(figure(report.row(mode, count)?)))))
            .collect();
        if points.is_empty() {
            continue;
        }
        let class = mode.as_str();
        let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(out, "<polyline class=\"{class}\" points=\"{}\"/>", line.join(" "));
        for (x, y) in points {
            let _ = write!(out, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>");
        }
        let at = x0 + LEFT + 110.0 * number as f64;
        let _ = write!(
            out,
            "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"40\" r=\"4\"/><text x=\"{:.1}\" y=\"44\">{class}</text>",
            at + 4.0,
            at + 14.0
        );
    }
}

/// Next round number: 1, 2 or 5 times a power of ten.
fn nice(most: f64) -> f64 {
    if !(most.is_finite() && most > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(most.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|&top| top >= most)
        .unwrap_or(10.0 * power)
}

fn short(value: f64) -> String {
    match value {
        v if v >= 10_000.0 => format!("{:.0}k", v / 1e3),
        v if v >= 1_000.0 => format!("{:.1}k", v / 1e3),
        v if v >= 10.0 || v == 0.0 => format!("{v:.0}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(mode: AssignmentMode, replicas: usize, p99_ms: f64) -> ClaimModesRow {
        let (successful, failed, average_ms, p95_ms) = (10, 0, 1.0, 1.5);
        ClaimModesRow { mode, replicas, successful, failed, average_ms, p95_ms, p99_ms, per_second: 1234.0 }
    }

    #[test]
    fn the_chart_has_a_line_per_mode_and_a_point_per_number_of_replicas() {
        let rows = [1, 3, 9]
            .into_iter()
            .flat_map(|n| [row(AssignmentMode::Exclusive, n, 2.0), row(AssignmentMode::Distributed, n, 1.0)]);
        let picture = svg(&ClaimModesReport { rows: rows.collect(), ..ClaimModesReport::default() });
        assert_eq!(picture.matches("<polyline class=\"exclusive\"").count(), 2);
        assert_eq!(picture.matches("<polyline class=\"distributed\"").count(), 2);
        // Three points in each of four lines, and four legend entries.
        assert_eq!(picture.matches("<circle").count(), 16);
    }

    #[test]
    fn the_axis_ends_at_a_round_number() {
        assert_eq!([0.0, 0.3, 1.0, 7.0, 1234.0].map(nice), [1.0, 0.5, 1.0, 10.0, 2000.0]);
    }
}
