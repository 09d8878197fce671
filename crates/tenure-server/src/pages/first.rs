//! The first command, while there is nothing to see: whoever follows this page alone sees a live election within a
//! minute.

use std::path::Path;

use maud::{Markup, html};

use super::frame::Visit;
use super::parts;

pub(super) fn lesson(visit: &Visit) -> Markup {
    let (program, origin) = (program(visit), visit.origin());
    let run = format!("{program} run nightly --store {origin} -- sh -c 'echo hello; sleep 60'");
    let bearer = if visit.guarded { " \\\n  -H \"Authorization: Bearer $TENURE_ACCESS_TOKEN\"" } else { "" };
    let curl = format!(
        "curl -X POST {origin}/v1/elections/nightly/campaign{bearer} \\\n  -H 'Content-Type: application/json' \\\n  -d '{{\"id\": \"me\", \"lease_ms\": 60000, \"wait_ms\": 2000}}'"
    );
    html! {
        section.card aria-labelledby="first" {
            header { h2 #first { "Nobody has stood for an election yet" } }
            div.body {
                p { "An election appears here as soon as somebody stands for it. Try one; this page will show it by itself." }
                ol.steps {
                    li { div {
                        p { span.strong { "Run something as the leader." } " It starts once this process is elected, and ends if it no longer is." }
                        (parts::command("run", &run))
                        @if visit.guarded {
                            p.soft.small { "Put a token that may lead into the environment first: " code { "TENURE_ACCESS_TOKEN" } "." }
                        }
                    } }
                    li { div {
                        p { span.strong { "Run the same in another terminal." } " It waits, and takes over when the first one is gone." }
                    } }
                    li { div {
                        p { span.strong { "Or stand with plain HTTP." } " The answer says whether you lead, under which token, and for how long." }
                        (parts::command("curl", &curl))
                    } }
                }
            }
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
