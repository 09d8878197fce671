//! Output of commands: tables, JSON, progress and the log.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use crate::args::{Command, GlobalArgs, OutputFormat};
use crate::commands::serve::LogFormat;
use crate::telemetry;

static COLOUR_OUT: AtomicBool = AtomicBool::new(false);
static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);
static COLOUR_ERR: AtomicBool = AtomicBool::new(false);

/// Text style with a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextStyle {
    Plain,
    Bold,
    Dim,
    Green,
    Yellow,
    Red,
}

/// Default log options of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogOptions {
    /// Whether info messages are logged without `-v`.
    info_by_default: bool,
    json: bool,
}

impl LogOptions {
    pub(crate) fn of(command: &Command) -> LogOptions {
        match command {
            Command::Serve(args) => {
                LogOptions { info_by_default: true, json: args.log_format == LogFormat::Json }
            }
            _ => LogOptions { info_by_default: false, json: false },
        }
    }
}

/// Sets up colours and the log. `TENURE_LOG_FILTER` sets the log filter in the syntax of `RUST_LOG`.
pub(crate) fn init(global: &GlobalArgs, style: LogOptions) {
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    COLOUR_OUT.store(colours && std::io::stdout().is_terminal(), Ordering::Relaxed);
    COLOUR_ERR.store(colours && std::io::stderr().is_terminal(), Ordering::Relaxed);
    let level = match global.verbose + u8::from(style.info_by_default) {
        0 => "tenure=warn",
        1 => "tenure=info,openraft=error,warn",
        _ => "tenure=debug,tenure_core=debug,openraft=warn,info",
    };
    let filter = EnvFilter::try_from_env("TENURE_LOG_FILTER").unwrap_or_else(|_| EnvFilter::new(level));
    // If stderr is closed, the subscriber must not report the error there: that would panic.
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    let log = if style.json || global.output == OutputFormat::Json {
        log.json().boxed()
    } else {
        log.with_ansi(COLOUR_ERR.load(Ordering::Relaxed)).boxed()
    };
    let done = tracing_subscriber::registry().with(telemetry::layer()).with(log).with(filter).try_init();
    done.unwrap_or_else(|error| err_line(format_args!("tenure: cannot set up the log: {error}")));
}

pub(crate) fn paint(text: &str, style: TextStyle) -> String {
    painted(text, style, COLOUR_OUT.load(Ordering::Relaxed))
}

pub(crate) fn paint_err(text: &str, style: TextStyle) -> String {
    painted(text, style, COLOUR_ERR.load(Ordering::Relaxed))
}

fn painted(text: &str, style: TextStyle, colour: bool) -> String {
    let code = match style {
        TextStyle::Plain => return text.to_owned(),
        TextStyle::Bold => "1",
        TextStyle::Dim => "2",
        TextStyle::Green => "32",
        TextStyle::Yellow => "33",
        TextStyle::Red => "31",
    };
    if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Prints a line of progress on stderr, so that stdout has only the output of the child.
pub(crate) fn note(global: &GlobalArgs, style: TextStyle, text: &str) {
    if global.output == OutputFormat::Table {
        err_line(format_args!("{} {}", paint_err("●", style), plain(text)));
    }
}

/// Prints the progress of a long operation over the previous progress line. Only on a terminal.
pub(crate) fn progress(global: &GlobalArgs, text: &str) {
    if is_interactive(global) {
        err_text(format_args!("\r{} {text} …\x1b[K", paint_err("●", TextStyle::Dim)));
    }
}

/// Clears the progress line.
pub(crate) fn clear_progress(global: &GlobalArgs) {
    if is_interactive(global) {
        err_text(format_args!("\r\x1b[K"));
    }
}

fn is_interactive(global: &GlobalArgs) -> bool {
    global.output == OutputFormat::Table && std::io::stderr().is_terminal()
}

/// Prints a line on stderr. Unlike `eprintln!` it does not panic if stderr is closed.
pub(crate) fn err_line(text: std::fmt::Arguments<'_>) {
    err_text(format_args!("{text}\n"));
}

/// As [`err_line`], without a line break.
fn err_text(text: std::fmt::Arguments<'_>) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_fmt(text).and_then(|()| err.flush());
}

pub(crate) fn print_json(value: &impl serde::Serialize) {
    // Plain data structures cannot fail to serialize.
    print_line(&serde_json::to_string(value).unwrap_or_default());
}

/// Prints a line on stdout. If stdout is closed (`| head`), [`stdout_open`] returns `false` and commands exit cleanly.
pub(crate) fn print_line(line: &str) {
    print_text(&format!("{line}\n"));
}

/// As [`print_line`], without a line break.
pub(crate) fn print_text(text: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        STDOUT_CLOSED.store(true, Ordering::Relaxed);
    }
}

/// Whether stdout is still open.
pub(crate) fn stdout_open() -> bool {
    !STDOUT_CLOSED.load(Ordering::Relaxed)
}

/// Columns and lines of the terminal on stdout; `None` if stdout is not a terminal.
pub(crate) fn screen() -> Option<(usize, usize)> {
    let (width, height) = terminal_size::terminal_size_of(std::io::stdout())?;
    Some((width.0.into(), height.0.into()))
}

/// Redraws the screen without flicker. A pipe gets one frame after the other.
pub(crate) fn redraw(text: &str) {
    let Some((_, height)) = screen() else {
        print_line(text);
        return;
    };
    let lines: Vec<&str> = text.lines().collect();
    // Lines that do not fit would scroll, and the next frame would not overwrite them.
    let fits = height.saturating_sub(1).max(1);
    let (shown, more) = match lines.len() > fits {
        true => (fits - 1, paint(&format!("… {} more lines", lines.len() - fits + 1), TextStyle::Dim)),
        false => (lines.len(), String::new()),
    };
    // Move home, clear each line to its end, then clear everything below.
    let lines: String = lines[..shown].iter().map(|line| format!("{line}\x1b[K\n")).collect();
    print_text(&format!("\x1b[H{lines}{more}\x1b[J"));
}

/// Minimum column widths; the second is used if the first does not suffice.
const NARROWEST: [usize; 2] = [6, 3];

/// A table with aligned columns. On a terminal, columns shrink to its width.
pub(crate) struct Table {
    rows: Vec<Vec<(String, TextStyle)>>,
    /// Right-aligned columns.
    right: Vec<usize>,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Self {
        let header = header.iter().map(|text| (text.to_uppercase(), TextStyle::Dim)).collect();
        Table { rows: vec![header], right: Vec::new() }
    }

    /// A table without a header.
    pub(crate) fn plain() -> Self {
        Table { rows: Vec::new(), right: Vec::new() }
    }

    /// Right-aligns the columns with these headers.
    pub(crate) fn right(mut self, headers: &[&str]) -> Self {
        let header = self.rows.first().into_iter().flatten().enumerate();
        let numbers = header.filter(|(_, cell)| headers.iter().any(|name| name.to_uppercase() == cell.0));
        self.right = numbers.map(|(column, _)| column).collect();
        self
    }

    pub(crate) fn row(&mut self, cells: Vec<(String, TextStyle)>) {
        self.rows.push(cells.into_iter().map(|(text, style)| (plain(&text), style)).collect());
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
            for (column, (cell, style)) in row.iter().enumerate() {
                let cell = clipped(cell, widths[column]);
                let space = " ".repeat(widths[column] - columns_of(&cell));
                let gap = if column + 1 < row.len() { "  " } else { "" };
                let cell = paint(&cell, *style);
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

/// Shrinks the widest columns until all fit, with two spaces between them.
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

/// Cuts a text to a width and marks the cut with `…`.
pub(crate) fn clipped(text: &str, width: usize) -> String {
    if columns_of(text) <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// Escapes control and text-direction characters, so that names from outside cannot control the terminal.
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

/// As [`plain`], but keeps line breaks.
pub(crate) fn plain_lines(text: &str) -> String {
    text.lines().map(plain).collect::<Vec<_>>().join("\n")
}

/// Formats a duration: `250ms`, `1.2s`, `5s`, `2m05s`, `7d`.
pub(crate) fn span(ms: u64) -> String {
    match (ms, ms % 1000 / 100) {
        (0..1000, _) => format!("{ms}ms"),
        (1000..60_000, 0) => format!("{}s", ms / 1000),
        (1000..60_000, tenths) => format!("{}.{tenths}s", ms / 1000),
        _ => {
            let long = ago(0, i64::try_from(ms).unwrap_or(i64::MAX));
            // Drop a zero remainder: `1m`, not `1m00s`.
            let rest = long.len().saturating_sub(3);
            if long[rest..].starts_with("00") { long[..rest].to_owned() } else { long }
        }
    }
}

/// `1 task`, `2 tasks`.
pub(crate) fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Terminal columns of a text, approximated by its characters.
fn columns_of(text: &str) -> usize {
    text.chars().count()
}

/// Formats the time between two instants: `3s`, `2m05s`, `5h01m`, `4d02h`.
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
    fn cells_are_escaped() {
        let mut table = Table::new(&["id"]);
        table.row(vec![("a\u{1b}]0;x\u{7}\nb\u{202e}é".into(), TextStyle::Plain)]);
        assert_eq!(table.render_within(None), "ID\na\\u{1b}]0;x\\u{7}\\nb\\u{202e}é\n");
    }

    #[test]
    fn an_error_keeps_its_lines_and_escapes_the_rest() {
        assert_eq!(plain_lines("one\r\ntwo\u{1b}[2J\n\tthree"), "one\ntwo\\u{1b}[2J\n\\tthree");
    }

    #[test]
    fn extreme_instants_do_not_overflow() {
        assert!(ago(i64::MIN, 1).ends_with('h'));
        assert_eq!(ago(i64::MAX, i64::MIN), "0s");
    }

    #[test]
    fn durations_are_formatted_briefly() {
        let cases =
            [(0, "0ms"), (999, "999ms"), (5000, "5s"), (1250, "1.2s"), (60_000, "1m"), (125_000, "2m05s")];
        let long = [(3_600_000, "1h"), (604_800_000, "7d"), (36_000_000, "10h"), (864_000_000_000, "10000d")];
        for (ms, text) in cases.into_iter().chain(long) {
            assert_eq!(span(ms), text);
        }
    }

    #[test]
    fn a_table_shrinks_its_widest_column_to_the_terminal() {
        let mut table = Table::new(&["id", "n", "details"]).right(&["n"]);
        table.row(vec![
            ("a".into(), TextStyle::Bold),
            ("7".into(), TextStyle::Plain),
            ("x".repeat(40), TextStyle::Dim),
        ]);
        table.row(vec![
            ("bb".into(), TextStyle::Bold),
            ("12".into(), TextStyle::Plain),
            ("y".into(), TextStyle::Dim),
        ]);
        let wide = table.render_within(None);
        assert!(wide.contains(&"x".repeat(40)), "{wide}");
        assert_eq!(table.render_within(Some(20)), "ID   N  DETAILS\na    7  xxxxxxxxxxx…\nbb  12  y\n");
        // Regression: eight columns wrapped on a terminal with 60 columns.
        let mut many = Table::new(&[
            "election",
            "leader",
            "token",
            "since",
            "heartbeat",
            "start reason",
            "candidates",
            "state",
        ]);
        many.row(vec![("a-long-name".into(), TextStyle::Plain); 8]);
        assert!(many.render_within(Some(60)).lines().all(|line| line.chars().count() <= 60));
        // Narrower than the minimum widths: the table keeps the minimum.
        assert!(table.render_within(Some(1)).lines().all(|line| line.chars().count() <= 14));
    }
}
