//! `tenure advise`: recommends a store and a mode, with commands and guarantees.

mod questions;
mod rules;
#[cfg(test)]
mod rules_tests;

use std::io::IsTerminal;

use serde_json::json;
use tenure::port::{Finding, FindingStatus, StoreGuarantees};

pub(crate) use self::rules::{Advice, AdviseCase, RecommendedStore, decide};
use crate::args::advise::{AdviseAnswers, AdviseArgs, DeploymentScope, DuplicatePolicy, Infrastructure};
use crate::args::{GlobalArgs, OutputFormat};
use crate::error::CliError;
use crate::output::{self, Table, TextStyle, paint};
use crate::store::configured_store;

pub(crate) fn run(global: &GlobalArgs, args: AdviseArgs) -> Result<u8, CliError> {
    let mut answers = args.answers;
    let (input, prompt) = (std::io::stdin(), std::io::stderr());
    if !answers.any_given() && input.is_terminal() && prompt.is_terminal() {
        answers = questions::ask(&mut input.lock(), &mut prompt.lock())?;
    }
    let (case, assumed) =
        AdviseCase::of(&answers, &Infrastructure::configured(configured_store(global).as_deref(), in_pod()));
    let advice = decide(&case);
    let guarantees = advice.store.guarantees();
    if global.output == OutputFormat::Json {
        let json_guarantees = json!({
            "at_most_one": guarantees.at_most_one, "netsplit": guarantees.netsplit,
            "after_crash": guarantees.after_crash, "token": advice.store.token(),
        });
        output::print_json(
            &json!({"case": case, "assumed": assumed, "advice": advice, "guarantees": json_guarantees}),
        );
        return Ok(0);
    }
    output::print_text(&render(&advice, &guarantees, &assumed));
    Ok(0)
}

fn render(advice: &Advice, guarantees: &StoreGuarantees, assumed: &[&str]) -> String {
    let mut table = Table::new(&["advice", ""]);
    for (what, value) in [
        ("recommended store", guarantees.backend),
        ("--store", advice.store_url),
        ("mode", advice.mode),
        ("at most one leader", guarantees.at_most_one),
        ("in a network split", guarantees.netsplit),
        ("after a crash", guarantees.after_crash),
        ("token", advice.store.token()),
    ] {
        table.row(vec![(what.to_owned(), TextStyle::Bold), (value.to_owned(), TextStyle::Plain)]);
    }
    let mut text = table.render();
    let mut section = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            text += &format!("\n{}\n", paint(title, TextStyle::Bold));
            lines.iter().for_each(|line| text += &format!("  {line}\n"));
        }
    };
    let owned = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    section("reasons", owned(&advice.reasons));
    section("commands", advice.configuration.clone());
    section("notes", owned(&advice.notes));
    section("assumed, because not given", owned(assumed));
    text
}

/// For `tenure doctor`: compares the store in use with the recommendation. `None` if there are no answers to compare
/// with.
pub(crate) fn check(answers: &AdviseAnswers, used: &StoreGuarantees) -> Option<Finding> {
    judge(answers, used, in_pod())
}

fn in_pod() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

fn judge(answers: &AdviseAnswers, used: &StoreGuarantees, in_pods: bool) -> Option<Finding> {
    let local = [RecommendedStore::Memory, RecommendedStore::Sqlite]
        .into_iter()
        .find(|store| store.guarantees().backend == used.backend);
    if !answers.any_given() {
        // This needs no answers: pods do not share a disk.
        let advice =
            "pods share no disk, so each elects its own leader; run `tenure advise --available kubernetes`";
        return (in_pods && local.is_some())
            .then(|| Finding::new("store choice", used.backend, FindingStatus::Warning, advice));
    }
    let (case, _) = AdviseCase::of(answers, &[]);
    let advice = decide(&case);
    let recommended = advice.store.guarantees();
    if recommended.backend == used.backend {
        return Some(Finding::new(
            "store choice",
            format!("{}, as recommended", used.backend),
            FindingStatus::Ok,
            "",
        ));
    }
    let why = advice.reasons.first().copied().unwrap_or_default();
    let (status, problem) = match local {
        Some(_) if case.topology == DeploymentScope::Cluster => (
            FindingStatus::Error,
            format!(
                "its guarantee is one leader {}: several machines have several leaders; ",
                used.at_most_one
            ),
        ),
        _ if case.split_brain == DuplicatePolicy::Never
            && used.backend == RecommendedStore::Gossip.guarantees().backend =>
        {
            (FindingStatus::Error, "it does not guarantee a single leader; ".to_owned())
        }
        _ => (FindingStatus::Warning, String::new()),
    };
    let advice = format!("{problem}recommended: {}: {why}", recommended.backend);
    Some(Finding::new("store choice", used.backend, status, advice))
}

#[cfg(test)]
mod tests {
    use tenure::store::{etcd, postgres, sqlite};

    use super::*;

    #[test]
    fn the_store_is_compared_with_the_recommendation() {
        let many = AdviseAnswers {
            topology: Some(DeploymentScope::Cluster),
            available: vec![Infrastructure::Etcd],
            ..AdviseAnswers::default()
        };
        assert_eq!(judge(&many, &etcd::GUARANTEES, false).unwrap().status, FindingStatus::Ok);
        assert_eq!(judge(&many, &postgres::GUARANTEES, false).unwrap().status, FindingStatus::Warning);
        let found = judge(&many, &sqlite::GUARANTEES, false).unwrap();
        assert_eq!(found.status, FindingStatus::Error);
        assert!(found.advice.contains("several machines") && found.advice.contains("etcd"), "{found:?}");
        assert_eq!(judge(&AdviseAnswers::default(), &sqlite::GUARANTEES, false), None);
        assert_eq!(
            judge(&AdviseAnswers::default(), &sqlite::GUARANTEES, true).unwrap().status,
            FindingStatus::Warning
        );
        assert_eq!(judge(&AdviseAnswers::default(), &postgres::GUARANTEES, true), None);
    }
}
