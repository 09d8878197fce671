//! The banner that says that the store cannot be read, at the top of every page.
//!
//! Pages are rendered from what was read last, so they go on to be shown while the store is away; the banner says how old that may
//! be. The script turns "live" into "stale" while the banner is there, and refreshes the page when the store is back.

use std::time::Duration;

use maud::{Markup, html};
use tenure::port::{StoreError, Trouble, Verb};

use super::frame::Visit;
use super::{parts, words};
use crate::App;
use crate::problem::Problem;

/// Whether the store can be read, as a page tells it.
pub(super) enum Banner {
    /// It can.
    None,
    /// The last attempt failed: the page shows what was read before.
    Stale { age: Duration, error: StoreError },
    /// There is nothing to show.
    Unreadable { cause: Option<String> },
}

impl Banner {
    /// How it stands with the store of this server.
    pub(super) fn of(app: &App) -> Banner {
        let (now, board) = (app.runtime.now(), app.board.seen());
        // A store that keeps no work or no events is not away.
        let away = |error: &StoreError| error.kind != Trouble::Unfit;
        let work = [app.floor.standing(), app.gauge.standing()].into_iter().flatten();
        let work: Vec<_> = work.map(|(at, error)| (at, error.filter(away))).collect();
        let error = board.trouble.clone().or_else(|| work.iter().find_map(|(_, error)| error.clone()));
        let Some(error) = error else { return Banner::None };
        let known = board.is_known().then_some(board.at);
        let oldest = known.into_iter().chain(work.iter().map(|(at, _)| *at)).min();
        match oldest {
            Some(at) => Banner::Stale { age: now.since(at), error },
            None => Banner::Unreadable { cause: Some(error.to_string()) },
        }
    }

    /// The store did not give the data for this page.
    pub(super) fn unreadable(problem: &Problem) -> Banner {
        Banner::Unreadable { cause: problem.cause.as_ref().map(|cause| cause.to_string()) }
    }

    pub(super) fn is_unreadable(&self) -> bool {
        matches!(self, Banner::Unreadable { .. })
    }
}

/// The banner. What the store said names hosts and users: it is for administrators.
pub(super) fn shown(banner: &Banner, visit: &Visit) -> Markup {
    let (about, cause) = match banner {
        Banner::None => return html! {},
        Banner::Stale { age, error } => {
            let age = words::lasted(i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
            (format!("Data is up to {age} old."), Some(error.to_string()))
        }
        Banner::Unreadable { cause } => (
            "This page cannot be shown. It loads by itself when the store is available again.".to_owned(),
            cause.clone(),
        ),
    };
    html! {
        div data-stale {
            (parts::notice("bad", html! {
                p { span.strong { "The store is unavailable." } " " span data-age { (about) } }
                @if let Some(cause) = cause.filter(|_| visit.may(Verb::Admin, None)) { p.soft { (cause) } }
            }))
        }
    }
}
