//! The dashboard: server-rendered, live, and readable without a script.
//!
//! Every page is rendered from the board and the floor, so that many who look cost the store what one does; only the
//! history of one election and the audit are read from it, within a bound. What somebody may not see is not rendered, and a button that they may not use
//! is not shown; the gate refuses it all the same. Pages carry a content security policy that allows the server's own
//! style sheet, script and images, and nothing inline.
//!
//! | module | what it shows |
//! |---|---|
//! | `home` | the front page: elections, replicas, the store's health |
//! | `raft` | the members of the store, where it is a cluster of its own |
//! | `first` | the first command, while there is nothing to see |
//! | `election` | one election: leaders, candidates, terms |
//! | `names` | who has which name, and where singletons run |
//! | `timeline` | terms, drawn as a picture |
//! | `act` | transfer, resign, pause, resume: the question, then the deed |
//! | `queues`, `queue`, `queue_act` | the queues, one of them, and what an operator does to it |
//! | `task`, `graph`, `pretty`, `submit` | one task: its life, its relatives, what it carries; and a new one |
//! | `workers` | who works, and who may |
//! | `pools`, `pool`, `pool_act` | resources, who holds them and who waits |
//! | `topics`, `topic`, `topic_act`, `topic_event` | topics, one of them, what is done to it, and one of its events |
//! | `group`, `group_map`, `group_act`, `group_reset` | a group: who has which slot, how far it is behind, and what is done to it |
//! | `dead`, `dead_act` | events that failed, replayed or dropped |
//! | `schedules`, `schedule`, `schedule_act` | the schedules, one of them, and what an operator does to it |
//! | `schedule_strip`, `schedule_clock` | what is ahead of a schedule, on the wall clock of its zone |
//! | `schedule_form`, `schedule_wish`, `schedule_backfill` | a schedule made or edited, checked while somebody writes; past ticks fired after all |
//! | `chart` | how a queue fills and drains, drawn as a picture |
//! | `members` | who is there, as gossip tells, and who leads softly |
//! | `audit` | who did what |
//! | `credentials` | who may do what; tokens made and revoked |
//! | `login` | log in and out |
//! | `live` | the stream that says that something changed |
//! | `flash` | what a form did, told once by the next page |
//! | `store_banner` | that the store is unavailable, on every page |

mod act;
mod assets;
mod audit;
mod chart;
mod credentials;
mod dead;
mod dead_act;
mod election;
mod first;
mod flash;
mod frame;
mod given;
mod graph;
mod group;
mod group_act;
mod group_map;
mod group_reset;
mod home;
mod live;
mod login;
mod members;
mod names;
mod parts;
mod pool;
mod pool_act;
mod pools;
mod pretty;
mod queue;
mod queue_act;
mod queues;
mod raft;
mod schedule;
mod schedule_act;
mod schedule_backfill;
mod schedule_clock;
mod schedule_form;
mod schedule_strip;
mod schedule_wish;
mod schedules;
mod store_banner;
mod submit;
mod task;
mod timeline;
mod topic;
mod topic_act;
mod topic_event;
mod topics;
mod words;
mod workers;

use axum::response::Response;
use axum::routing::{get, post};
use http::Method;
use http::request::Parts;
use tenure::port::Verb;

pub(crate) use self::frame::{Visit, page};
pub(crate) use self::pretty::{Laid, glance};
pub(crate) use self::schedule_strip::Ahead;
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
        .page(Need::Known, Method::GET, "/names", get(names::show))
        .merge(work(read, admin))
        .merge(events(read, admin))
        .merge(calendar(read, admin))
        .page(Need::Known, Method::GET, "/members", get(members::show))
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

/// The routes about work and resources.
fn work(read: Need, admin: Need) -> Routes {
    let claim = Need::In(Verb::Claim);
    Routes::new()
        .page(Need::Known, Method::GET, "/queues", get(queues::show))
        .page(read, Method::GET, "/queues/{queue}", get(queue::show))
        .page(admin, Method::GET, "/queues/{queue}/{action}", get(queue_act::question))
        .page(admin, Method::POST, "/queues/{queue}/{action}", post(queue_act::act))
        .page(admin, Method::GET, "/namespace/{action}", get(queues::question))
        .page(admin, Method::POST, "/namespace/{action}", post(queues::act))
        .page(claim, Method::GET, "/tasks/new", get(submit::show))
        .page(claim, Method::POST, "/tasks/new", post(submit::act))
        .page(read, Method::GET, "/tasks/{task}", get(task::show))
        .page(admin, Method::GET, "/tasks/{task}/{action}", get(task::question))
        .page(admin, Method::POST, "/tasks/{task}/{action}", post(task::act))
        .page(Need::Known, Method::GET, "/workers", get(workers::show))
        .page(admin, Method::GET, "/workers/{worker}/{action}", get(workers::question))
        .page(admin, Method::POST, "/workers/{worker}/{action}", post(workers::act))
        .page(Need::Known, Method::GET, "/pools", get(pools::show))
        .page(admin, Method::GET, "/pools/new", get(pool_act::new))
        .page(admin, Method::POST, "/pools/new", post(pool_act::make))
        .page(read, Method::GET, "/pools/{pool}", get(pool::show))
        .page(admin, Method::GET, "/pools/{pool}/{action}", get(pool_act::question))
        .page(admin, Method::POST, "/pools/{pool}/{action}", post(pool_act::act))
        .page(
            admin,
            Method::GET,
            "/pools/{pool}/resources/{resource}/{action}",
            get(pool_act::resource_question),
        )
        .page(
            admin,
            Method::POST,
            "/pools/{pool}/resources/{resource}/{action}",
            post(pool_act::resource_act),
        )
        .page(admin, Method::GET, "/pools/{pool}/requests/{request}/release", get(pool_act::request_question))
        .page(admin, Method::POST, "/pools/{pool}/requests/{request}/release", post(pool_act::request_act))
}

/// The routes about events.
fn events(read: Need, admin: Need) -> Routes {
    let publish = Need::In(Verb::Publish);
    let aside = "/topics/{topic}/groups/{group}/aside/{event}";
    Routes::new()
        .page(Need::Known, Method::GET, "/topics", get(topics::show))
        .page(admin, Method::GET, "/new-topic", get(topic_act::new))
        .page(admin, Method::POST, "/new-topic", post(topic_act::make))
        .page(read, Method::GET, "/topics/{topic}", get(topic::show))
        .page(publish, Method::GET, "/topics/{topic}/publish", get(topic_act::event))
        .page(publish, Method::POST, "/topics/{topic}/publish", post(topic_act::publish))
        .page(admin, Method::GET, "/topics/{topic}/{action}", get(topic_act::question))
        .page(admin, Method::POST, "/topics/{topic}/{action}", post(topic_act::act))
        .page(read, Method::GET, "/topics/{topic}/events/{event}", get(topic_event::show))
        .page(read, Method::GET, "/topics/{topic}/groups/{group}", get(group::show))
        .page(admin, Method::GET, "/topics/{topic}/groups/{group}/reset", get(group_reset::question))
        .page(admin, Method::POST, "/topics/{topic}/groups/{group}/reset", post(group_reset::act))
        .page(admin, Method::GET, "/topics/{topic}/groups/{group}/push", get(group_act::push_question))
        .page(admin, Method::POST, "/topics/{topic}/groups/{group}/push", post(group_act::push))
        .page(admin, Method::GET, "/topics/{topic}/groups/{group}/dead/{action}", get(dead_act::all_question))
        .page(admin, Method::POST, "/topics/{topic}/groups/{group}/dead/{action}", post(dead_act::all))
        .page(admin, Method::GET, "/topics/{topic}/groups/{group}/{action}", get(group_act::question))
        .page(admin, Method::POST, "/topics/{topic}/groups/{group}/{action}", post(group_act::act))
        .page(read, Method::GET, aside, get(dead::show))
        .page(admin, Method::GET, &format!("{aside}/{{action}}"), get(dead_act::question))
        .page(admin, Method::POST, &format!("{aside}/{{action}}"), post(dead_act::act))
}

/// The routes about schedules.
fn calendar(read: Need, admin: Need) -> Routes {
    Routes::new()
        .page(Need::Known, Method::GET, "/schedules", get(schedules::show))
        .page(admin, Method::GET, "/schedules/new", get(schedule_form::new))
        .page(admin, Method::POST, "/schedules/new", post(schedule_form::make))
        .page(read, Method::GET, "/schedules/{schedule}", get(schedule::show))
        .page(admin, Method::GET, "/schedules/{schedule}/edit", get(schedule_form::edit))
        .page(admin, Method::POST, "/schedules/{schedule}/edit", post(schedule_form::save))
        .page(admin, Method::GET, "/schedules/{schedule}/backfill", get(schedule_backfill::question))
        .page(admin, Method::POST, "/schedules/{schedule}/backfill", post(schedule_backfill::act))
        .page(admin, Method::GET, "/schedules/{schedule}/{action}", get(schedule_act::question))
        .page(admin, Method::POST, "/schedules/{schedule}/{action}", post(schedule_act::act))
}

/// The answer for a browser that may not, or not like this.
pub(crate) fn refused(app: &App, parts: &Parts, problem: &Problem) -> Response {
    frame::trouble(&frame::Visit::of(parts, app), problem)
}
