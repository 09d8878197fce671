//! First commands, shown while a list is empty. They lead to a live election, a running task or a published
//! event within a minute.

use std::path::Path;

use maud::{Markup, html};
use tenure::Name;
use tenure::port::Permission;

use super::components;
use super::layout::PageContext;

pub(super) fn elections(ctx: &PageContext) -> Markup {
    let (program, origin) = (program(ctx), ctx.origin());
    let run = format!("{program} run nightly --store {origin} -- sh -c 'echo hello; sleep 60'");
    let curl = curl(
        ctx,
        "POST",
        "/v1/elections/nightly/campaign",
        r#"{"name": "me", "lease_ms": 60000, "wait_ms": 2000}"#,
    );
    card(
        "No elections yet",
        "An election appears here when its first candidate joins. Try one; this page updates by itself.",
        &[
            html! {
                p { span.strong { "Run a command on the leader." } " It starts when this process is elected and stops when leadership is lost." }
                (components::command("run", &run))
                (token(ctx, "lead"))
            },
            html! {
                p { span.strong { "Run the same command in another terminal." } " It waits and takes over when the first process stops." }
            },
            html! {
                p { span.strong { "Or campaign over HTTP." } " The response has your status, token and lease remaining." }
                (components::command("curl", &curl))
            },
        ],
    )
}

/// The first task, while there are no queues.
pub(super) fn queues(ctx: &PageContext) -> Markup {
    let (program, origin) = (program(ctx), ctx.origin());
    let submit = format!(
        "{program} tasks submit mail --kind welcome --payload '{{\"to\": \"ada\"}}' --store {origin}"
    );
    let work = format!("{program} work mail --store {origin} -- sh -c 'cat; sleep 1'");
    let curl = curl(ctx, "POST", "/v1/queues/mail/tasks", r#"{"kind": "welcome", "payload": {"to": "ada"}}"#);
    card(
        "No queues yet",
        "A queue appears here with its first task. Try one; this page updates by itself.",
        &[
            html! {
                p { span.strong { "Submit a task." } " It is ready until a worker claims it." }
                (components::command("submit", &submit))
                (token(ctx, "claim"))
            },
            html! {
                p { span.strong { "Start a worker." } " It runs a command for each task, with the payload on standard input. If the worker dies, the task returns to the queue." }
                (components::command("work", &work))
            },
            html! {
                p { span.strong { "Or submit over HTTP" } " or with a form." }
                (components::command("curl", &curl))
                @if ctx.may(Permission::Claim, Some(&Name::default_namespace())) { p { a.button href="/tasks/new" { "Open the form" } } }
            },
        ],
    )
}

/// The first topic, while there are no topics.
pub(super) fn events(ctx: &PageContext) -> Markup {
    let (program, origin) = (program(ctx), ctx.origin());
    let create = format!("{program} events topics create orders --store {origin}");
    let publish = format!(
        "{program} events publish orders --key customer-7 --type order.paid --payload '{{\"total\": 42}}' --store {origin}"
    );
    let tail = format!("{program} events tail orders --store {origin}");
    let curl = curl(
        ctx,
        "POST",
        "/v1/topics/orders/events",
        r#"{"key": "customer-7", "type": "order.paid", "payload": {"total": 42}}"#,
    );
    card(
        "No topics yet",
        "A topic keeps events in order for any number of consumer groups. Create one; this page updates by itself.",
        &[
            html! {
                p { span.strong { "Create a topic." } " Publishing to a missing topic is an error." }
                (components::command("create", &create))
                (token(ctx, "admin"))
            },
            html! {
                p { span.strong { "Publish an event." } " A program publishes in the transaction that the event reports: " code { "SELECT tenure.publish('orders', …)" } ", or the library." }
                (components::command("publish", &publish))
            },
            html! {
                p { span.strong { "Print events" } " in another terminal." }
                (components::command("tail", &tail))
            },
            html! {
                p { span.strong { "Or publish over HTTP." } }
                (components::command("curl", &curl))
            },
        ],
    )
}

/// The first schedule, while there are no schedules.
pub(super) fn schedules(ctx: &PageContext) -> Markup {
    let (program, origin) = (program(ctx), ctx.origin());
    let create = format!("{program} schedules create heartbeat 'every 10s' --task beats --store {origin}");
    let put = curl(
        ctx,
        "PUT",
        "/v1/schedules/heartbeat",
        r#"{"expression": "every 10s", "target": {"task": {"queue": "beats"}}}"#,
    );
    let work = format!("{program} work beats --store {origin} -- sh -c 'echo $TENURE_TASK_IDEMPOTENCY_KEY'");
    card(
        "No schedules yet",
        "A schedule publishes an event, submits a task or sends a webhook by a cron expression or interval in a time zone. Each tick fires once, with any number of servers.",
        &[
            html! {
                p { span.strong { "Create a schedule." } " This one submits a task every ten seconds." }
                (components::command("create", &create))
                (token(ctx, "admin"))
            },
            html! {
                p { span.strong { "Run its tasks" } " in another terminal. Each task names its tick." }
                (components::command("work", &work))
            },
            html! {
                p { span.strong { "Or create it over HTTP." } }
                (components::command("curl", &put))
            },
        ],
    )
}

/// The first resource, while there are no pools.
pub(super) fn pools(ctx: &PageContext) -> Markup {
    let (program, origin) = (program(ctx), ctx.origin());
    let add = format!("{program} pools add-resource hosts host-1 --tag ssd --store {origin}");
    let request = curl(
        ctx,
        "POST",
        "/v1/pools/hosts/requests",
        r#"{"idempotency_key": "build-1", "required_tags": ["ssd"], "claim_timeout_ms": 60000, "wait_ms": 2000}"#,
    );
    card(
        "No pools yet",
        "A pool holds limited resources: hosts, devices, licenses. A request gets the first free resource that matches.",
        &[
            html! {
                p { span.strong { "Add a resource." } " This creates the pool." }
                (components::command("add", &add))
                (token(ctx, "admin"))
            },
            html! {
                p { span.strong { "Request one." } " The response has the resource, the claim token and its expiry. The same idempotency key returns the same claim." }
                (components::command("request", &request))
            },
        ],
    )
}

/// The first worker, while there are no workers.
pub(super) fn workers(ctx: &PageContext) -> Markup {
    let work = format!("{} work mail --store {} -- sh -c 'cat; sleep 1'", program(ctx), ctx.origin());
    html! {
        section.card aria-labelledby="getting-started" {
            header { h2 #getting-started { "No workers yet" } }
            div.body {
                p { "A worker appears here when it starts. This one runs a command for each task of queue " code { "mail" } ":" }
                (components::command("work", &work))
                (token(ctx, "claim"))
            }
        }
    }
}

/// A card with an introduction and numbered steps.
fn card(title: &str, about: &str, steps: &[Markup]) -> Markup {
    html! {
        section.card aria-labelledby="getting-started" {
            header { h2 #getting-started { (title) } }
            div.body {
                p { (about) }
                ol.steps { @for step in steps { li { div { (step) } } } }
            }
        }
    }
}

/// An HTTP request as a `curl` command.
fn curl(ctx: &PageContext, method: &str, path: &str, body: &str) -> String {
    let bearer = if ctx.guarded { " \\\n  -H \"Authorization: Bearer $TENURE_ACCESS_TOKEN\"" } else { "" };
    let origin = ctx.origin();
    format!(
        "curl -X {method} {origin}{path}{bearer} \\\n  -H 'Content-Type: application/json' \\\n  -d '{body}'"
    )
}

/// The access token that a command needs.
fn token(ctx: &PageContext, may: &str) -> Markup {
    html! {
        @if ctx.guarded {
            p.soft.small { "Set " code { "TENURE_ACCESS_TOKEN" } " to an access token with the permission " (may) " first." }
        }
    }
}

/// The command that starts `tenure`. It is the full path if the program is not in `PATH`, as after a fresh build.
fn program(ctx: &PageContext) -> String {
    let known = "tenure".to_owned();
    if ctx.guarded {
        // The client may be on another machine; do not reveal paths of this one.
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
