//! The first command, while there is nothing to see: whoever follows this page alone sees a live election, or a task being
//! worked on, within a minute.

use std::path::Path;

use maud::{Markup, html};
use tenure::Name;
use tenure::port::Verb;

use super::frame::Visit;
use super::parts;

pub(super) fn lesson(visit: &Visit) -> Markup {
    let (program, origin) = (program(visit), visit.origin());
    let run = format!("{program} run nightly --store {origin} -- sh -c 'echo hello; sleep 60'");
    let curl = curl(
        visit,
        "POST",
        "/v1/elections/nightly/campaign",
        r#"{"id": "me", "lease_ms": 60000, "wait_ms": 2000}"#,
    );
    card(
        "Nobody has stood for an election yet",
        "An election appears here as soon as somebody stands for it. Try one; this page will show it by itself.",
        &[
            html! {
                p { span.strong { "Run something as the leader." } " It starts once this process is elected, and ends if it no longer is." }
                (parts::command("run", &run))
                (token(visit, "lead"))
            },
            html! {
                p { span.strong { "Run the same in another terminal." } " It waits, and takes over when the first one is gone." }
            },
            html! {
                p { span.strong { "Or stand with plain HTTP." } " The answer says whether you lead, under which token, and for how long." }
                (parts::command("curl", &curl))
            },
        ],
    )
}

/// The first tasks, while there are no queues.
pub(super) fn work(visit: &Visit) -> Markup {
    let (program, origin) = (program(visit), visit.origin());
    let submit = format!(
        "{program} tasks submit mail --kind welcome --payload '{{\"to\": \"ada\"}}' --store {origin}"
    );
    let work = format!("{program} work mail --store {origin} -- sh -c 'cat; sleep 1'");
    let curl =
        curl(visit, "POST", "/v1/queues/mail/tasks", r#"{"kind": "welcome", "payload": {"to": "ada"}}"#);
    card(
        "Nothing was ever submitted",
        "A queue appears here with its first task. Try one; this page will show it by itself.",
        &[
            html! {
                p { span.strong { "Submit a task." } " It waits in its queue until a worker claims it." }
                (parts::command("submit", &submit))
                (token(visit, "claim"))
            },
            html! {
                p { span.strong { "Start a worker." } " It runs a command for each task, with the payload on its standard input. A task whose worker dies goes back to the queue." }
                (parts::command("work", &work))
            },
            html! {
                p { span.strong { "Or submit with plain HTTP," } " or by hand." }
                (parts::command("curl", &curl))
                @if visit.may(Verb::Claim, Some(&Name::default_namespace())) { p { a.button href="/tasks/new" { "Submit by hand" } } }
            },
        ],
    )
}

/// The first topic, while there is none.
pub(super) fn events(visit: &Visit) -> Markup {
    let (program, origin) = (program(visit), visit.origin());
    let make = format!("{program} events topics create orders --store {origin}");
    let publish = format!(
        "{program} events publish orders --key customer-7 --type order.paid --payload '{{\"total\": 42}}' --store {origin}"
    );
    let tail = format!("{program} events tail orders --store {origin}");
    let curl = curl(
        visit,
        "POST",
        "/v1/topics/orders/events",
        r#"{"key": "customer-7", "type": "order.paid", "payload": {"total": 42}}"#,
    );
    card(
        "There is no topic yet",
        "A topic keeps what has happened, in order, for as many groups of readers as there are. Try one; this page will show it by itself.",
        &[
            html! {
                p { span.strong { "Make a topic." } " It is never made by accident: whoever publishes to one that is not there is told so." }
                (parts::command("make", &make))
                (token(visit, "admin"))
            },
            html! {
                p { span.strong { "Publish an event." } " In a program it is part of the transaction that it tells of: " code { "SELECT tenure.publish('orders', …)" } ", or the library." }
                (parts::command("publish", &publish))
            },
            html! {
                p { span.strong { "Watch it," } " from another terminal." }
                (parts::command("tail", &tail))
            },
            html! {
                p { span.strong { "Or publish with plain HTTP." } }
                (parts::command("curl", &curl))
            },
        ],
    )
}

/// The first schedule, while there is none.
pub(super) fn schedules(visit: &Visit) -> Markup {
    let (program, origin) = (program(visit), visit.origin());
    let create = format!("{program} schedule create heartbeat 'every 10s' --task beats --store {origin}");
    let put = curl(
        visit,
        "PUT",
        "/v1/schedules/heartbeat",
        r#"{"when": "every 10s", "target": {"task": {"queue": "beats"}}}"#,
    );
    let work = format!("{program} work beats --store {origin} -- sh -c 'echo $TENURE_TASK_KEY'");
    card(
        "There is no schedule yet",
        "A schedule says when something happens, by a cron expression or an interval, in a time zone: an event, a task, or a call of an address. Each of its ticks happens once, however many servers there are.",
        &[
            html! {
                p { span.strong { "Make a schedule." } " This one submits a task every ten seconds." }
                (parts::command("create", &create))
                (token(visit, "admin"))
            },
            html! {
                p { span.strong { "Do what it asks for," } " in another terminal. Each task tells its tick." }
                (parts::command("work", &work))
            },
            html! {
                p { span.strong { "Or make it with plain HTTP." } }
                (parts::command("curl", &put))
            },
        ],
    )
}

/// The first resources, while there are no pools.
pub(super) fn pools(visit: &Visit) -> Markup {
    let (program, origin) = (program(visit), visit.origin());
    let add = format!("{program} pool add hosts host-1 --tag ssd --store {origin}");
    let request = curl(
        visit,
        "POST",
        "/v1/pools/hosts/requests",
        r#"{"key": "build-1", "requires": ["ssd"], "hold_ms": 60000, "wait_ms": 2000}"#,
    );
    card(
        "There is no pool yet",
        "A pool holds resources that are few: hosts, devices, licences. Whoever needs one asks for it, and gets it as soon as one is free that fits.",
        &[
            html! {
                p { span.strong { "Put a resource into a pool." } " The pool is made with it." }
                (parts::command("add", &add))
                (token(visit, "admin"))
            },
            html! {
                p { span.strong { "Ask for one." } " The answer names the resource, the token of the claim and its deadline. Asked again under the same key, it is the same claim." }
                (parts::command("request", &request))
            },
        ],
    )
}

/// The first worker, while there is none.
pub(super) fn workers(visit: &Visit) -> Markup {
    let work = format!("{} work mail --store {} -- sh -c 'cat; sleep 1'", program(visit), visit.origin());
    html! {
        section.card aria-labelledby="first" {
            header { h2 #first { "No worker has made itself known yet" } }
            div.body {
                p { "A worker appears here when it starts. This one runs a command for each task of the queue " code { "mail" } ":" }
                (parts::command("work", &work))
                (token(visit, "claim"))
            }
        }
    }
}

/// What there is to know at first, and what to try, step by step.
fn card(title: &str, about: &str, steps: &[Markup]) -> Markup {
    html! {
        section.card aria-labelledby="first" {
            header { h2 #first { (title) } }
            div.body {
                p { (about) }
                ol.steps { @for step in steps { li { div { (step) } } } }
            }
        }
    }
}

/// A request with plain HTTP, as a command.
fn curl(visit: &Visit, method: &str, path: &str, body: &str) -> String {
    let bearer = if visit.guarded { " \\\n  -H \"Authorization: Bearer $TENURE_ACCESS_TOKEN\"" } else { "" };
    let origin = visit.origin();
    format!(
        "curl -X {method} {origin}{path}{bearer} \\\n  -H 'Content-Type: application/json' \\\n  -d '{body}'"
    )
}

/// What a command needs to be let in.
fn token(visit: &Visit, may: &str) -> Markup {
    html! {
        @if visit.guarded {
            p.soft.small { "Put a token that may " (may) " into the environment first: " code { "TENURE_ACCESS_TOKEN" } "." }
        }
    }
}

/// How to start `tenure` here. Whoever has just built it does not have it in their path yet.
fn program(visit: &Visit) -> String {
    let known = "tenure".to_owned();
    if visit.guarded {
        // They are on another machine, and where ours keeps its programs is not their business.
        return known;
    }
    let Ok(path) = std::env::current_exe() else { return known };
    let installed = std::env::var_os("PATH")
        .is_some_and(|dirs| std::env::split_paths(&dirs).any(|dir| dir.join("tenure").is_file()));
    if installed || path.file_name() != Some("tenure".as_ref()) { known } else { quoted(&path) }
}

fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    if plain { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}
