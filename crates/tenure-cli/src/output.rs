//! What people and scripts see.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use crate::args::{Command, Format, Global};
use crate::commands::serve::LogFormat;
use crate::telemetry;

static COLOUR_OUT: AtomicBool = AtomicBool::new(false);
static UNREAD: AtomicBool = AtomicBool::new(false);
static COLOUR_ERR: AtomicBool = AtomicBool::new(false);

/// Colours with a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    Plain,
    Bold,
    Dim,
    Green,
    Yellow,
    Red,
}

/// How a command writes its log, unless it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    /// Whether everyday things are told without `-v`.
    talkative: bool,
    json: bool,
}

impl Log {
    pub(crate) fn of(command: &Command) -> Log {
        match command {
            Command::Serve(args) => Log { talkative: true, json: args.log_format == LogFormat::Json },
            _ => Log { talkative: false, json: false },
        }
    }
}

/// Sets up colours and the log. `TENURE_LOG` chooses what is logged, as `RUST_LOG` does elsewhere.
pub(crate) fn init(global: &Global, style: Log) {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    COLOUR_OUT.store(wanted && std::io::stdout().is_terminal(), Ordering::Relaxed);
    COLOUR_ERR.store(wanted && std::io::stderr().is_terminal(), Ordering::Relaxed);
    let level = match global.verbose + u8::from(style.talkative) {
        0 => "tenure=warn",
        1 => "tenure=info,openraft=error,warn",
        _ => "tenure=debug,tenure_core=debug,openraft=warn,info",
    };
    let filter = EnvFilter::try_from_env("TENURE_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    // Where nobody reads the log any more, it must not complain on the same stream: that would panic.
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    let log = if style.json || global.output == Format::Json {
        log.json().boxed()
    } else {
        log.with_ansi(COLOUR_ERR.load(Ordering::Relaxed)).boxed()
    };
    let done = tracing_subscriber::registry().with(telemetry::layer()).with(log).with(filter).try_init();
    done.unwrap_or_else(|error| err_line(format_args!("tenure: no log: {error}")));
}

pub(crate) fn paint(text: &str, ink: Ink) -> String {
    painted(text, ink, COLOUR_OUT.load(Ordering::Relaxed))
}

pub(crate) fn paint_err(text: &str, ink: Ink) -> String {
    painted(text, ink, COLOUR_ERR.load(Ordering::Relaxed))
}

fn painted(text: &str, ink: Ink, colour: bool) -> String {
    let code = match ink {
        Ink::Plain => return text.to_owned(),
        Ink::Bold => "1",
        Ink::Dim => "2",
        Ink::Green => "32",
        Ink::Yellow => "33",
        Ink::Red => "31",
    };
    if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// A line of progress on the error stream, so that a child's output stays its own.
pub(crate) fn note(global: &Global, ink: Ink, text: &str) {
    if global.output == Format::Table {
        err_line(format_args!("{} {}", paint_err("●", ink), plain(text)));
    }
}

/// How far a long piece of work is: only for who watches, over the last such line.
pub(crate) fn progress(global: &Global, text: &str) {
    if watched(global) {
        err_text(format_args!("\r{} {text} …\x1b[K", paint_err("●", Ink::Dim)));
    }
}

/// Takes the last such line away.
pub(crate) fn progress_ends(global: &Global) {
    if watched(global) {
        err_text(format_args!("\r\x1b[K"));
    }
}

fn watched(global: &Global) -> bool {
    global.output == Format::Table && std::io::stderr().is_terminal()
}

/// Prints a line on the error stream. Unlike `eprintln!` it does not panic when nobody reads that stream any more.
pub(crate) fn err_line(text: std::fmt::Arguments<'_>) {
    err_text(format_args!("{text}\n"));
}

/// As [`err_line`], as it is.
fn err_text(text: std::fmt::Arguments<'_>) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_fmt(text).and_then(|()| err.flush());
}

pub(crate) fn print_json(value: &impl serde::Serialize) {
    // All that we print are plain data structures, which cannot fail to serialize.
    print_line(&serde_json::to_string(value).unwrap_or_default());
}

/// Prints a line. Where nobody reads any more (`| head`), [`is_read`] says so, and commands leave in good order.
pub(crate) fn print_line(line: &str) {
    print_text(&format!("{line}\n"));
}

/// As [`print_line`], as it is.
pub(crate) fn print_text(text: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        UNREAD.store(true, Ordering::Relaxed);
    }
}

/// Whether somebody still reads what we print.
pub(crate) fn is_read() -> bool {
    !UNREAD.load(Ordering::Relaxed)
}

/// The size of the terminal that we print to, in columns and lines, if it is one.
pub(crate) fn screen() -> Option<(usize, usize)> {
    let (width, height) = terminal_size::terminal_size_of(std::io::stdout())?;
    Some((width.0.into(), height.0.into()))
}

/// Paints a screen anew without flicker; a pipe gets one picture after the other.
pub(crate) fn redraw(text: &str) {
    let Some((_, height)) = screen() else {
        print_line(text);
        return;
    };
    let lines: Vec<&str> = text.lines().collect();
    // What does not fit would scroll, and the next picture would not cover it.
    let fits = height.saturating_sub(1).max(1);
    let (shown, more) = match lines.len() > fits {
        true => (fits - 1, paint(&format!("… {} more lines", lines.len() - fits + 1), Ink::Dim)),
        false => (lines.len(), String::new()),
    };
    // Home, each line cleared to its end, then everything below.
    let lines: String = lines[..shown].iter().map(|line| format!("{line}\x1b[K\n")).collect();
    print_text(&format!("\x1b[H{lines}{more}\x1b[J"));
}

/// The narrowest that a column is made for want of space; the second where the first is not enough.
const NARROWEST: [usize; 2] = [6, 3];

/// A table with aligned columns. On a terminal, no line is wider than it.
pub(crate) struct Table {
    rows: Vec<Vec<(String, Ink)>>,
    /// Columns of numbers.
    right: Vec<usize>,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Self {
        let header = header.iter().map(|text| (text.to_uppercase(), Ink::Dim)).collect();
        Table { rows: vec![header], right: Vec::new() }
    }

    /// Without a header: what follows names itself.
    pub(crate) fn plain() -> Self {
        Table { rows: Vec::new(), right: Vec::new() }
    }

    /// The columns that hold numbers, under the same header.
    pub(crate) fn right(mut self, headers: &[&str]) -> Self {
        let header = self.rows.first().into_iter().flatten().enumerate();
        let numbers = header.filter(|(_, cell)| headers.iter().any(|name| name.to_uppercase() == cell.0));
        self.right = numbers.map(|(column, _)| column).collect();
        self
    }

    pub(crate) fn row(&mut self, cells: Vec<(String, Ink)>) {
        self.rows.push(cells.into_iter().map(|(text, ink)| (plain(&text), ink)).collect());
    }

    pub(crate) fn render(&self) -> String {
        self.render_within(screen().map(|(width, _)| width))
    }

    fn render_within(&self, limit: Option<usize>) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|c| columns_of(&c.0)).max()
        };
        let mut widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        shrink(&mut widths, limit);
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, ink)) in row.iter().enumerate() {
                let cell = clipped(cell, widths[column]);
                let space = " ".repeat(widths[column] - columns_of(&cell));
                let gap = if column + 1 < row.len() { "  " } else { "" };
                let cell = paint(&cell, *ink);
                match self.right.contains(&column) {
                    true => line.extend([&space, &cell, gap]),
                    false => line.extend([&cell, &space, gap]),
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Takes from the widest until all fit, with two between them.
fn shrink(widths: &mut [usize], limit: Option<usize>) {
    let Some(limit) = limit else { return };
    for narrowest in NARROWEST {
        while widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1) > limit {
            match widths.iter_mut().rev().max_by_key(|width| **width).filter(|width| **width > narrowest) {
                Some(widest) => *widest -= 1,
                None => break,
            }
        }
    }
}

/// The beginning of a text, and a sign that there is more.
pub(crate) fn clipped(text: &str, width: usize) -> String {
    if columns_of(text) <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// A text as a terminal may have it: programs name themselves as they like, and what a terminal would obey, or turn around,
/// is shown as what it is.
pub(crate) fn plain(text: &str) -> String {
    let turns =
        |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() || turns(c) {
            true => plain.extend(c.escape_default()),
            false => plain.push(c),
        }
    }
    plain
}

/// As [`plain`], line by line.
pub(crate) fn plain_lines(text: &str) -> String {
    text.lines().map(plain).collect::<Vec<_>>().join("\n")
}

/// `250ms`, `1.2s`, `5s`, `2m05s`, `7d` for people.
pub(crate) fn span(ms: u64) -> String {
    match (ms, ms % 1000 / 100) {
        (0..1000, _) => format!("{ms}ms"),
        (1000..60_000, 0) => format!("{}s", ms / 1000),
        (1000..60_000, tenths) => format!("{}.{tenths}s", ms / 1000),
        _ => {
            let long = ago(0, i64::try_from(ms).unwrap_or(i64::MAX));
            // Round ones are what people have asked for.
            let rest = long.len().saturating_sub(3);
            if long[rest..].starts_with("00") { long[..rest].to_owned() } else { long }
        }
    }
}

/// `1 task`, `2 tasks`.
pub(crate) fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// How many columns of a terminal a text takes, near enough for names.
fn columns_of(text: &str) -> usize {
    text.chars().count()
}

/// `3s`, `2m`, `5h`, `4d` for people.
pub(crate) fn ago(then_ms: i64, now_ms: i64) -> String {
    let seconds = now_ms.saturating_sub(then_ms).max(0) / 1000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_says_nothing_to_the_terminal() {
        let mut table = Table::new(&["id"]);
        table.row(vec![("a\u{1b}]0;x\u{7}\nb\u{202e}é".into(), Ink::Plain)]);
        assert_eq!(table.render_within(None), "ID\na\\u{1b}]0;x\\u{7}\\nb\\u{202e}é\n");
    }

    #[test]
    fn a_failure_keeps_its_lines_and_nothing_else() {
        assert_eq!(plain_lines("one\r\ntwo\u{1b}[2J\n\tthree"), "one\ntwo\\u{1b}[2J\n\\tthree");
    }

    #[test]
    fn what_is_said_to_have_happened_before_all_time_was_long_ago() {
        assert!(ago(i64::MIN, 1).ends_with('h'));
        assert_eq!(ago(i64::MAX, i64::MIN), "0s");
    }

    #[test]
    fn spans_are_short_and_round_ones_are_round() {
        let cases =
            [(0, "0ms"), (999, "999ms"), (5000, "5s"), (1250, "1.2s"), (60_000, "1m"), (125_000, "2m05s")];
        let long = [(3_600_000, "1h"), (604_800_000, "7d"), (36_000_000, "10h"), (864_000_000_000, "10000d")];
        for (ms, text) in cases.into_iter().chain(long) {
            assert_eq!(span(ms), text);
        }
    }

    #[test]
    fn a_table_fits_its_screen_at_the_cost_of_its_widest_column() {
        let mut table = Table::new(&["id", "n", "about"]).right(&["n"]);
        table.row(vec![("a".into(), Ink::Bold), ("7".into(), Ink::Plain), ("x".repeat(40), Ink::Dim)]);
        table.row(vec![("bb".into(), Ink::Bold), ("12".into(), Ink::Plain), ("y".into(), Ink::Dim)]);
        let wide = table.render_within(None);
        assert!(wide.contains(&"x".repeat(40)), "{wide}");
        assert_eq!(table.render_within(Some(20)), "ID   N  ABOUT\na    7  xxxxxxxxxxx…\nbb  12  y\n");
        // Eight columns wrapped on a terminal of 60.
        let mut many =
            Table::new(&["election", "leader", "token", "since", "beat", "via", "standing", "state"]);
        many.row(vec![("a-long-name".into(), Ink::Plain); 8]);
        assert!(many.render_within(Some(60)).lines().all(|line| line.chars().count() <= 60));
        // Too narrow for anything: it is as narrow as it gets.
        assert!(table.render_within(Some(1)).lines().all(|line| line.chars().count() <= 14));
    }
}
