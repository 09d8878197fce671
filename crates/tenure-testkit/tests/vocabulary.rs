//! The vocabulary check: retired words do not return, and everything has the name that the glossary gives it.
//!
//! The first test scans the sources, the SQL, the pages, the scripts and the docs for the words in `vocabulary.tsv` and
//! reports each finding as `file:line: "word" is retired; write: …`. The second test compares the routes, the metrics and
//! the commands with `docs/glossary.md`: every word in them is a glossary word or one of [`COMMON`].
//!
//! To retire a word, add a line to `vocabulary.tsv`. To introduce a term, define it in the glossary.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The retired words with their scope and replacement.
const RETIRED: &str = include_str!("vocabulary.tsv");

/// Exceptions: path prefix, retired word, reason.
const ALLOWED: &[(&str, &str, &str)] = &[
    ("crates/tenure-core/src/rules/event/text.rs", "position", "the position of a character in a text"),
    (
        "crates/tenure/src/store/postgres/migrations/0001/events/maintain.sql",
        "slot",
        "the slot of the broker election's lease",
    ),
    ("crates/tenure-bench/src/events/", "unit", "the unit of a measured figure"),
    ("deploy/", "nobody", "the unprivileged Unix user"),
];

/// Words of routes, metrics and commands that need no definition: verbs of operations, units, and names of tools.
const COMMON: &[&str] = &[
    // Operations.
    "ack",
    "acquire",
    "add",
    "apply",
    "approve",
    "assign",
    "cancel",
    "complete",
    "consume",
    "create",
    "delete",
    "drop",
    "expire",
    "fail",
    "failure",
    "fire",
    "handshake",
    "join",
    "leave",
    "list",
    "match",
    "move",
    "nack",
    "notification",
    "observe",
    "open",
    "overlap",
    "poll",
    "preview",
    "process",
    "prune",
    "pull",
    "put",
    "read",
    "recover",
    "register",
    "reject",
    "release",
    "remove",
    "replay",
    "reset",
    "retry",
    "revoke",
    "rotate",
    "run",
    "serve",
    "set",
    "settle",
    "show",
    "skip",
    "stream",
    "submit",
    "tail",
    "take",
    "update",
    "wait",
    "watch",
    "why",
    "work",
    "write",
    // States and measures.
    "acquisition",
    "age",
    "assignment",
    "build",
    "byte",
    "callback",
    "clock",
    "conflict",
    "connection",
    "count",
    "due",
    "duration",
    "error",
    "exact",
    "exit",
    "finished",
    "flight",
    "handoff",
    "held",
    "history",
    "in",
    "info",
    "last",
    "latency",
    "leadership",
    "lock",
    "max",
    "message",
    "next",
    "oldest",
    "overdue",
    "panic",
    "ratio",
    "scheduler",
    "second",
    "stats",
    "status",
    "timestamp",
    "total",
    "transaction",
    "transition",
    "up",
    // Tools and protocols.
    "advise",
    "advisory",
    "bench",
    "completion",
    "doctor",
    "flock",
    "gossip",
    "hold",
    "http",
    "man",
    "migrate",
    "raft",
    "replica",
    "sql",
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scope {
    Anywhere,
    Identifier,
    Event,
}

struct Rule {
    scope: Scope,
    /// The word as written in the table.
    retired: String,
    /// Its words in lower case, for [`Scope::Anywhere`].
    words: Vec<String>,
    instead: String,
}

#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Finding {
    path: String,
    line: usize,
    retired: String,
    instead: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {:?} is retired; write: {}", self.path, self.line, self.retired, self.instead)
    }
}

fn rules() -> Vec<Rule> {
    let lines = RETIRED.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).skip(1);
    let rule = |line: &str| {
        let columns: Vec<&str> = line.split('\t').collect();
        let [scope, retired, instead] = columns[..] else { panic!("three columns: {line:?}") };
        let scope = match scope {
            "anywhere" => Scope::Anywhere,
            "identifier" => Scope::Identifier,
            "event" => Scope::Event,
            other => panic!("unknown scope {other:?}"),
        };
        let words = retired.split(' ').map(str::to_lowercase).collect();
        Rule { scope, retired: retired.into(), words, instead: instead.into() }
    };
    lines.map(rule).collect()
}

/// All findings in one file. `path` is relative to the repository and decides which scopes apply.
fn scan(rules: &[Rule], path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut report = |rule: &Rule, line: usize| {
        let allowed =
            |(prefix, word, _): &&(&str, &str, &str)| path.starts_with(prefix) && *word == rule.retired;
        if ALLOWED.iter().find(allowed).is_none() {
            findings.push(Finding {
                path: path.into(),
                line: line + 1,
                retired: rule.retired.clone(),
                instead: rule.instead.clone(),
            });
        }
    };
    for (number, line) in text.lines().enumerate() {
        let words = words(line);
        for start in 0..words.len() {
            for rule in rules.iter().filter(|rule| rule.scope == Scope::Anywhere) {
                if is_phrase(line, &words[start..], &rule.words) {
                    report(rule, number);
                }
            }
        }
    }
    let Some(code) = code_of(path, text) else { return findings };
    let is_event_code = is_event_code(path);
    for (number, line) in code.lines().enumerate() {
        let mut previous = "";
        for (start, end) in identifiers(line) {
            let name = &line[start..end];
            let is_method = line[..start].ends_with('.') && line[end..].starts_with('(');
            for rule in rules.iter().filter(|rule| rule.retired == name) {
                let is_type = name.starts_with(|c: char| c.is_ascii_uppercase());
                let applies = match rule.scope {
                    Scope::Anywhere => false,
                    Scope::Identifier if is_type => {
                        matches!(previous, "struct" | "enum" | "trait" | "type" | "union")
                    }
                    Scope::Identifier => true,
                    Scope::Event => is_event_code && !is_method,
                };
                if applies {
                    report(rule, number);
                }
            }
            previous = name;
        }
    }
    findings
}

/// Whether the first of `words` are the words of `phrase`, separated by one space or underscore each.
fn is_phrase(line: &str, words: &[(usize, usize)], phrase: &[String]) -> bool {
    words.len() >= phrase.len()
        && words.iter().zip(phrase).all(|(&(start, end), word)| line[start..end].eq_ignore_ascii_case(word))
        && words[..phrase.len()].windows(2).all(|pair| matches!(&line[pair[0].1..pair[1].0], " " | "_"))
}

/// The words of a line: runs of ASCII letters, split where camel case starts a new word.
fn words(line: &str) -> Vec<(usize, usize)> {
    let bytes = line.as_bytes();
    let (mut words, mut start) = (Vec::new(), None);
    for at in 0..=bytes.len() {
        let is_letter = bytes.get(at).is_some_and(u8::is_ascii_alphabetic);
        let splits = |from: usize| {
            let upper = bytes[at].is_ascii_uppercase();
            let after_lower = bytes[at - 1].is_ascii_lowercase();
            let before_lower = bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase);
            at > from && upper && (after_lower || before_lower)
        };
        match start {
            Some(from) if !is_letter || splits(from) => {
                words.push((from, at));
                start = is_letter.then_some(at);
            }
            None if is_letter => start = Some(at),
            _ => {}
        }
    }
    words
}

fn identifiers(line: &str) -> Vec<(usize, usize)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(start) = line[at..].find(is_part).map(|n| at + n) {
        let end = line[start..].find(|c| !is_part(c)).map_or(line.len(), |n| start + n);
        if !line.as_bytes()[start].is_ascii_digit() {
            found.push((start, end));
        }
        at = end;
    }
    found
}

/// Whether a file belongs to topics, events or consumer groups.
fn is_event_code(path: &str) -> bool {
    const STEMS: [&str; 7] = ["event", "topic", "group", "partition", "parked", "consumer", "commit_batch"];
    path.split('/').any(|part| STEMS.iter().any(|stem| part.starts_with(stem)))
}

/// Rust or SQL with comments and strings blanked out, line by line; `None` for other files.
fn code_of(path: &str, text: &str) -> Option<String> {
    if path.ends_with(".rs") {
        Some(blank(text, rust_token))
    } else if path.ends_with(".sql") {
        Some(blank(text, sql_token))
    } else {
        None
    }
}

/// Replaces the tokens that `token` finds by spaces. `token` returns the length of a comment or string at the start of a text.
fn blank(text: &str, token: fn(&str, Option<char>) -> Option<usize>) -> String {
    let (mut out, mut at, mut before) = (String::with_capacity(text.len()), 0, None);
    while let Some(c) = text[at..].chars().next() {
        match token(&text[at..], before) {
            Some(length) => {
                out.extend(text[at..at + length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
                at += length;
                before = Some(' ');
            }
            None => {
                out.push(c);
                at += c.len_utf8();
                before = Some(c);
            }
        }
    }
    out
}

fn rust_token(rest: &str, before: Option<char>) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(rest.find("*/").map_or(rest.len(), |n| n + 2));
    }
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let prefix = rest.strip_prefix(['b', 'c']).unwrap_or(rest);
    if let Some(raw) = prefix.strip_prefix('r').filter(|_| !in_word) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let open = rest.len() - raw.len() + hashes + 1;
            let close = format!("\"{}", "#".repeat(hashes));
            return Some(rest[open..].find(&close).map_or(rest.len(), |n| open + n + close.len()));
        }
    }
    if rest.starts_with('"') {
        let mut escaped = false;
        for (n, c) in rest.char_indices().skip(1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => return Some(n + 1),
                _ => {}
            }
        }
        return Some(rest.len());
    }
    if let Some(inner) = rest.strip_prefix('\'') {
        // A character; a lifetime has no closing quote.
        let length = match inner.strip_prefix('\\') {
            Some(escape) => escape.char_indices().skip(1).find(|(_, c)| *c == '\'').map(|(n, _)| n + 3),
            None => inner.char_indices().nth(1).filter(|(_, c)| *c == '\'').map(|(n, _)| n + 2),
        };
        return length.filter(|_| !in_word);
    }
    None
}

fn sql_token(rest: &str, _before: Option<char>) -> Option<usize> {
    if rest.starts_with("--") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    let text = rest.strip_prefix('\'')?;
    Some(text.find('\'').map_or(rest.len(), |n| n + 2))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// The files that the check covers, relative to the repository.
fn sources() -> Vec<String> {
    let root = root();
    let mut files = Vec::new();
    for folder in ["crates", "docs", "deploy", "scripts"] {
        walk(&root, &root.join(folder), &mut files);
    }
    files.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"].map(String::from));
    let is_covered = |path: &String| {
        let extension = Path::new(path).extension().and_then(|extension| extension.to_str()).unwrap_or("");
        match path.split('/').next() {
            _ if path.ends_with("tests/vocabulary.rs") => false,
            Some("crates") => matches!(extension, "rs" | "sql" | "js" | "css" | "html"),
            Some("docs") => extension == "md",
            _ => true,
        }
    };
    files.retain(is_covered);
    files.sort();
    files
}

fn walk(root: &Path, folder: &Path, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            if !["target", "node_modules", ".git"].iter().any(|skipped| name == *skipped) {
                walk(root, &path, files);
            }
        } else if let Some(relative) = path.strip_prefix(root).ok().and_then(Path::to_str) {
            files.push(relative.into());
        }
    }
}

fn read(path: &str) -> String {
    fs::read(root().join(path)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// The words that the glossary defines: its terms, the terms in italics, and the values in its definitions.
fn glossary_words(glossary: &str) -> BTreeSet<String> {
    let mut defined = BTreeSet::new();
    for (term, definition) in entries(glossary) {
        let own = definition.split("*Elsewhere:").next().unwrap_or_default();
        let marked = own.split(['*', '`']).skip(1).step_by(2);
        for text in std::iter::once(term.as_str()).chain(marked) {
            defined.extend(words(text).iter().map(|&(start, end)| text[start..end].to_lowercase()));
        }
    }
    defined
}

/// The entries of the glossary: `- **term, term** – definition`, over several lines.
fn entries(glossary: &str) -> Vec<(String, String)> {
    let mut entries: Vec<(String, String)> = Vec::new();
    let mut in_entry = false;
    for line in glossary.lines() {
        if let Some((term, definition)) = line.strip_prefix("- **").and_then(|rest| rest.split_once("**")) {
            entries.push((term.into(), definition.into()));
            in_entry = true;
        } else if line.trim().is_empty() || line.starts_with('#') {
            in_entry = false;
        } else if let Some((_, definition)) = entries.last_mut().filter(|_| in_entry) {
            definition.push(' ');
            definition.push_str(line.trim());
        }
    }
    entries
}

/// Whether a word, or its stem, is among the given ones.
fn is_known(word: &str, known: &BTreeSet<String>) -> bool {
    let mut stems = vec![word.to_string()];
    for (ending, replacement) in
        [("s", ""), ("es", ""), ("ies", "y"), ("d", ""), ("ed", ""), ("ied", "y"), ("ing", ""), ("ped", "")]
    {
        stems.extend(word.strip_suffix(ending).map(|stem| format!("{stem}{replacement}")));
    }
    stems.iter().any(|stem| known.contains(stem))
}

/// The values of `key = "value"` in a text.
fn values<'t>(text: &'t str, key: &str) -> Vec<&'t str> {
    let parts = text.split(key).skip(1);
    parts.filter_map(|part| part.strip_prefix(" = \"")?.split('"').next()).collect()
}

/// The names of the commands: the variants of the enums that derive `Subcommand`, in kebab case.
fn commands(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for part in text.split("Subcommand").skip(1) {
        let Some((head, body)) = part.split_once('{') else { continue };
        if !head.contains("enum ") || head.matches(";").count() > 0 {
            continue;
        }
        let body = body.split("\n}").next().unwrap_or_default();
        for line in body.lines().filter_map(|line| line.strip_prefix("    ")) {
            let name: String = line.chars().take_while(char::is_ascii_alphanumeric).collect();
            if name.starts_with(|c: char| c.is_ascii_uppercase()) {
                names.push(name);
            }
        }
    }
    names
}

#[test]
fn retired_words_do_not_appear() {
    let rules = rules();
    let mut findings: Vec<Finding> =
        sources().iter().flat_map(|path| scan(&rules, path, &read(path))).collect();
    findings.sort();
    let text: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(text.is_empty(), "{} retired words:\n{}", text.len(), text.join("\n"));
}

#[test]
fn routes_metrics_and_commands_use_glossary_words() {
    let mut known = glossary_words(&read("docs/glossary.md"));
    assert!(known.len() > 80, "the glossary has its terms: {known:?}");
    known.extend(COMMON.iter().map(|word| word.to_string()));
    let mut unknown: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let (mut routes, mut metrics, mut names) = (0, 0, 0);
    let mut check = |kind: &str, name: &str, parts: Vec<String>| {
        for word in parts.into_iter().filter(|word| !word.is_empty() && !is_known(word, &known)) {
            unknown.entry(word).or_default().insert(format!("{kind} {name}"));
        }
    };
    for path in sources() {
        let text = read(&path);
        if path.starts_with("crates/tenure-server/src/") && path.ends_with(".rs") {
            for route in values(&text, "path").into_iter().filter(|route| route.contains("/v1/")) {
                let segments = route
                    .split('/')
                    .filter(|part| !matches!(*part, "internal" | "v1") && !part.contains('{'));
                routes += 1;
                check("route", route, segments.flat_map(|part| part.split('-')).map(String::from).collect());
            }
        }
        if path.contains("/metrics") && path.contains("/src/") {
            for name in text.split('"').skip(1).step_by(2).filter(|name| name.starts_with("tenure_")) {
                if name.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
                    metrics += 1;
                    check("metric", name, name.split('_').skip(1).map(String::from).collect());
                }
            }
        }
        if path.starts_with("crates/tenure-cli/src/args") {
            for name in commands(&text) {
                names += 1;
                let parts =
                    words(&name).iter().map(|&(start, end)| name[start..end].to_lowercase()).collect();
                check("command", &name, parts);
            }
        }
    }
    assert!(
        routes > 60 && metrics > 40 && names > 40,
        "{routes} routes, {metrics} metrics, {names} commands"
    );
    let text: Vec<String> = unknown.iter().map(|(word, places)| format!("{word}: {places:?}")).collect();
    assert!(text.is_empty(), "words that the glossary does not define:\n{}", text.join("\n"));
}

#[test]
fn every_glossary_term_is_defined_once() {
    let glossary = read("docs/glossary.md");
    let mut seen = BTreeSet::new();
    for (term, _) in entries(&glossary) {
        for term in term.split(',') {
            assert!(seen.insert(term.trim().to_lowercase()), "{term} is defined twice");
        }
    }
}

#[test]
fn a_planted_word_is_found_in_every_kind_of_text() {
    let rules = rules();
    let found = |path: &str, text: &str| -> Vec<String> {
        scan(&rules, path, text).iter().map(Finding::to_string).collect()
    };
    let path = "crates/tenure/src/worker.rs";
    assert_eq!(
        found(path, "\nfn poll_dozers() {}\n"),
        ["crates/tenure/src/worker.rs:2: \"dozers\" is retired; write: waiters"]
    );
    for text in
        ["// a turnstile", "let s = \"Turnstile\";", "struct QueueTurnstile;", "const TURNSTILE: u8 = 1;"]
    {
        assert_eq!(found(path, text).len(), 1, "{text}");
    }
    assert_eq!(found("docs/upgrade.md", "This replica keeps house for all.").len(), 1);
    assert_eq!(found("scripts/test", "echo 'Trust left'").len(), 1);
    // A type of this name is retired; a word, a variant or another crate's type is not.
    assert_eq!(found(path, "pub struct Share {").len(), 1);
    assert_eq!(found(path, "use metrics::Unit; // a Share of it: \"struct Share\"").len(), 0);
    // Slots belong to elections, partitions to events.
    assert_eq!(
        found("crates/tenure/src/store/sqlite/events/read.rs", "let slot = row.slot; // a slot").len(),
        2
    );
    assert_eq!(
        found("crates/tenure/src/store/sqlite/queries/topics.sql", "SELECT slot FROM t -- slot\n").len(),
        1
    );
    assert_eq!(found("crates/tenure/src/election/elector.rs", "let slot = row.slot;").len(), 0);
    assert_eq!(found("crates/tenure/src/event/read.rs", "events.iter().position(|e| e.id == id)").len(), 0);
}

#[test]
fn strings_and_comments_are_not_code() {
    let text = "let a = 'x'; /* slot */ let b: &'static str = r#\"slot \" slot\"#; let c = \"\\\"slot\"; // slot\nslot";
    let code = code_of("a.rs", text).unwrap();
    assert_eq!(code.matches("slot").count(), 1, "{code}");
    assert_eq!(code.lines().count(), 2);
    assert!(code.contains("&'static str"), "{code}");
    let sql = code_of("a.sql", "SELECT 'slot''s', slot -- slot\n").unwrap();
    assert_eq!(sql.matches("slot").count(), 1, "{sql}");
}

#[test]
fn words_are_split_at_underscores_and_camel_case() {
    let split = |text: &str| -> Vec<String> {
        words(text).iter().map(|&(start, end)| text[start..end].to_string()).collect()
    };
    assert_eq!(split("HTTPServer queue_dozers"), ["HTTP", "Server", "queue", "dozers"]);
    assert_eq!(split("tick-at-ms: x1y"), ["tick", "at", "ms", "x", "y"]);
}
