//! `tenure advise`: which store, which mode, what to type, and what that promises.

mod decide;
#[cfg(test)]
mod decide_tests;
mod questions;

use std::io::IsTerminal;

use serde_json::json;
use tenure::port::{Finding, Promises, Verdict};

pub(crate) use self::decide::{Advice, Case, Rung, decide};
use crate::args::advise::{AdviseArgs, Have, Place, Two, Wishes};
use crate::args::{Format, Global};
use crate::exit::Failure;
use crate::output::{self, Ink, Table, paint};
use crate::store::configured_store;

pub(crate) fn run(global: &Global, args: AdviseArgs) -> Result<u8, Failure> {
    let mut wishes = args.wishes;
    let (input, prompt) = (std::io::stdin(), std::io::stderr());
    if !wishes.are_told() && input.is_terminal() && prompt.is_terminal() {
        wishes = questions::ask(&mut input.lock(), &mut prompt.lock())?;
    }
    let (case, assumed) = Case::of(&wishes, &Have::configured(configured_store(global).as_deref(), in_pod()));
    let advice = decide(&case);
    let promises = advice.backend.promises();
    if global.output == Format::Json {
        let guarantee = json!({
            "at_most_one": promises.at_most_one, "netsplit": promises.netsplit,
            "after_crash": promises.after_crash, "token": advice.backend.token(),
        });
        output::print_json(
            &json!({"case": case, "assumed": assumed, "advice": advice, "guarantee": guarantee}),
        );
        return Ok(0);
    }
    output::print_text(&render(&advice, &promises, &assumed));
    Ok(0)
}

fn render(advice: &Advice, promises: &Promises, assumed: &[&str]) -> String {
    let mut table = Table::new(&["advice", ""]);
    for (what, value) in [
        ("backend", promises.backend),
        ("--store", advice.store),
        ("mode", advice.mode),
        ("at most one leader", promises.at_most_one),
        ("in a netsplit", promises.netsplit),
        ("after a crash", promises.after_crash),
        ("token", advice.backend.token()),
    ] {
        table.row(vec![(what.to_owned(), Ink::Bold), (value.to_owned(), Ink::Plain)]);
    }
    let mut text = table.render();
    let mut section = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            text += &format!("\n{}\n", paint(title, Ink::Bold));
            lines.iter().for_each(|line| text += &format!("  {line}\n"));
        }
    };
    let owned = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    section("why", owned(&advice.why));
    section("to paste", advice.configuration.clone());
    section("mind", owned(&advice.mind));
    section("assumed, since you did not say", owned(assumed));
    text
}

/// For `tenure doctor`: whether the store that is used is the one to use. Nothing if nothing was said and nothing can be told.
pub(crate) fn check(wishes: &Wishes, used: &Promises) -> Option<Finding> {
    judge(wishes, used, in_pod())
}

fn in_pod() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

fn judge(wishes: &Wishes, used: &Promises, in_pods: bool) -> Option<Finding> {
    let local = [Rung::Memory, Rung::Sqlite].into_iter().find(|rung| rung.promises().backend == used.backend);
    if !wishes.are_told() {
        // One thing is known without being told: pods share no disk.
        let advice = "pods have no disk in common, and so elect one leader each; ask `tenure advise --have kubernetes`";
        return (in_pods && local.is_some())
            .then(|| Finding::new("choice", used.backend, Verdict::Fair, advice));
    }
    let (case, _) = Case::of(wishes, &[]);
    let advice = decide(&case);
    let advised = advice.backend.promises();
    if advised.backend == used.backend {
        return Some(Finding::new("choice", format!("{}, as advised", used.backend), Verdict::Good, ""));
    }
    let why = advice.why.first().copied().unwrap_or_default();
    let (verdict, harm) = match local {
        Some(_) if case.place == Place::Many => (
            Verdict::Bad,
            format!("it elects one leader {}: on several machines there are several; ", used.at_most_one),
        ),
        _ if case.two == Two::Never && used.backend == Rung::Gossip.promises().backend => {
            (Verdict::Bad, "it promises no single leader; ".to_owned())
        }
        _ => (Verdict::Fair, String::new()),
    };
    let advice = format!("{harm}advised is {}: {why}", advised.backend);
    Some(Finding::new("choice", used.backend, verdict, advice))
}

#[cfg(test)]
mod tests {
    use tenure::backend::{etcd, postgres, sqlite};

    use super::*;

    #[test]
    fn a_store_is_held_against_the_advice() {
        let many = Wishes { place: Some(Place::Many), have: vec![Have::Etcd], ..Wishes::default() };
        assert_eq!(judge(&many, &etcd::PROMISES, false).unwrap().verdict, Verdict::Good);
        assert_eq!(judge(&many, &postgres::PROMISES, false).unwrap().verdict, Verdict::Fair);
        let found = judge(&many, &sqlite::PROMISES, false).unwrap();
        assert_eq!(found.verdict, Verdict::Bad);
        assert!(found.advice.contains("several machines") && found.advice.contains("etcd"), "{found:?}");
        assert_eq!(judge(&Wishes::default(), &sqlite::PROMISES, false), None);
        assert_eq!(judge(&Wishes::default(), &sqlite::PROMISES, true).unwrap().verdict, Verdict::Fair);
        assert_eq!(judge(&Wishes::default(), &postgres::PROMISES, true), None);
    }
}
