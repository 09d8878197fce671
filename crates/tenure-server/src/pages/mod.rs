//! The dashboard: server-rendered, live, and readable without a script.
//!
//! Every page is rendered from the board, so a page costs the store nothing; only the history of one election and the
//! audit are read from it, within a bound. What somebody may not see is not rendered, and a button that they may not use
//! is not shown; the gate refuses it all the same. Pages carry a content security policy that allows the server's own
//! style sheet, script and images, and nothing inline.
//!
//! | module | what it shows |
//! |---|---|
//! | `home` | the front page: elections, replicas, the store's health |
//! | `first` | the first command, while there is nothing to see |
//! | `election` | one election: leaders, candidates, terms |
//! | `timeline` | terms, drawn as a picture |
//! | `act` | transfer, resign, pause, resume: the question, then the deed |
//! | `audit` | who did what |
//! | `credentials` | who may do what; tokens made and revoked |
//! | `login` | a token becomes a cookie |
//! | `live` | the stream that says that something changed |

mod act;
mod assets;
mod audit;
mod credentials;
mod election;
mod first;
mod frame;
mod given;
mod home;
mod live;
mod login;
mod parts;
mod timeline;
mod words;

use axum::response::Response;
use axum::routing::{get, post};
use http::Method;
use http::request::Parts;
use tenure::port::Verb;

pub(crate) use self::frame::{Visit, page};
use crate::App;
use crate::problem::Problem;
use crate::route::{Need, Routes};

/// The routes of the dashboard.
pub(crate) fn routes() -> Routes {
    let (read, admin) = (Need::In(Verb::Read), Need::In(Verb::Admin));
    Routes::new()
        .page(Need::Known, Method::GET, "/", get(home::show))
        .page(Need::Known, Method::GET, "/live", get(live::stream))
        .page(read, Method::GET, "/elections/{election}", get(election::show))
        .page(admin, Method::GET, "/elections/{election}/{action}", get(act::question))
        .page(admin, Method::POST, "/elections/{election}/{action}", post(act::act))
        .page(Need::Known, Method::GET, "/audit", get(audit::show))
        .page(Need::Over(Verb::Admin), Method::GET, "/access", get(credentials::show))
        .page(Need::Over(Verb::Admin), Method::POST, "/access", post(credentials::create))
        .page(Need::Over(Verb::Admin), Method::GET, "/access/{id}/revoke", get(credentials::question))
        .page(Need::Over(Verb::Admin), Method::POST, "/access/{id}/revoke", post(credentials::revoke))
        .page(Need::Nothing, Method::GET, "/login", get(login::show))
        .page(Need::Nothing, Method::POST, "/login", post(login::enter))
        .page(Need::Nothing, Method::POST, "/logout", post(login::leave))
        .page(Need::Nothing, Method::POST, "/theme", post(frame::choose_theme))
        .page(Need::Nothing, Method::GET, "/assets/{hash}/{name}", get(assets::serve))
}

/// The answer for a browser that may not, or not like this.
pub(crate) fn refused(app: &App, parts: &Parts, problem: &Problem) -> Response {
    frame::trouble(&frame::Visit::of(parts, app), problem)
}
