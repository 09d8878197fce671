//! The banner at the top of every page while the store is unavailable.
//!
//! Pages are rendered from snapshots, so they remain available while the store is not. The banner shows the
//! age of the data. The script replaces "live" by "stale" while the banner is present, and refreshes the page
//! when the store is back.

use std::time::Duration;

use maud::{Markup, html};
use tenure::port::{ErrorKind, Permission, StoreError};

use super::layout::PageContext;
use super::{components, format};
use crate::App;
use crate::problem::Problem;

/// Availability of the store, as shown on a page.
pub(super) enum Banner {
    /// The store is available.
    None,
    /// The last read failed; the page shows an older snapshot.
    Stale { age: Duration, error: StoreError },
    /// There is no snapshot, so the page has no data.
    Unreadable { cause: Option<String> },
}

impl Banner {
    /// The current availability of the store of this server.
    pub(super) fn of(app: &App) -> Banner {
        let (now, elections) = (app.runtime.now(), app.elections.snapshot());
        // A store without queues or events is not unavailable.
        let away = |error: &StoreError| error.kind != ErrorKind::Misconfigured;
        let work = [app.queues.status(), app.events.status()].into_iter().flatten();
        let work: Vec<_> = work.map(|(at, error)| (at, error.filter(away))).collect();
        let error = elections.error.clone().or_else(|| work.iter().find_map(|(_, error)| error.clone()));
        let Some(error) = error else { return Banner::None };
        let known = elections.is_loaded().then_some(elections.at);
        let oldest = known.into_iter().chain(work.iter().map(|(at, _)| *at)).min();
        match oldest {
            Some(at) => Banner::Stale { age: now.since(at), error },
            None => Banner::Unreadable { cause: Some(error.to_string()) },
        }
    }

    /// The banner of a page for which the store was unavailable.
    pub(super) fn unreadable(problem: &Problem) -> Banner {
        Banner::Unreadable { cause: problem.cause.as_ref().map(|cause| cause.to_string()) }
    }

    pub(super) fn is_unreadable(&self) -> bool {
        matches!(self, Banner::Unreadable { .. })
    }
}

/// Render the banner. Only administrators see the cause, because it may name hosts and users.
pub(super) fn shown(banner: &Banner, ctx: &PageContext) -> Markup {
    let (about, cause) = match banner {
        Banner::None => return html! {},
        Banner::Stale { age, error } => {
            let age = format::elapsed(i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
            (format!("Data is up to {age} old."), Some(error.to_string()))
        }
        Banner::Unreadable { cause } => (
            "This page cannot be shown. It loads by itself when the store is available again.".to_owned(),
            cause.clone(),
        ),
    };
    html! {
        div data-stale {
            (components::notice("bad", html! {
                p { span.strong { "The store is unavailable." } " " span data-age { (about) } }
                @if let Some(cause) = cause.filter(|_| ctx.may(Permission::Admin, None)) { p.soft { (cause) } }
            }))
        }
    }
}
