//! `/v1`: elections for whatever can speak HTTP, and the document that describes it.

mod audit;
mod campaign;
mod claims;
mod deeds;
mod docs;
mod document;
mod elections;
mod events;
mod given;
mod groups;
mod members;
mod names;
mod operate;
mod owned;
mod pools;
mod queues;
mod raft;
mod replicas;
mod room;
mod schedules;
mod sense;
mod sessions;
mod shape;
mod shown;
mod store;
mod tasks;
mod tokens;
mod topics;
mod watch;
mod workers;

use axum::routing::get;
use http::Method;
use tenure::port::Verb;
use utoipa_axum::routes;

pub(crate) use self::deeds::By;
pub(crate) use self::document::bare as document;
pub(crate) use self::events::{fitting, no_event as no_such_event};
pub(crate) use self::groups::{
    PushWish, none as no_such_group, order_dead, push_address, reset_detail, set_push,
};
pub(crate) use self::members::none as no_gossip;
pub(crate) use self::names::names as names_namespace;
pub(crate) use self::schedules::{
    Range as TickRange, ScheduleWish, backfill_range, changed_meanwhile, checked as check_schedule,
    none as no_such_schedule, set_schedule, trigger_now,
};
pub(crate) use self::sessions::short;
pub(crate) use self::tasks::{CANCELLED, RETRIED};
pub(crate) use self::topics::none as no_such_topic;
use crate::route::{Need, Routes};

/// The routes of the API.
pub(crate) fn routes() -> Routes {
    let read = Need::In(Verb::Read);
    Routes::new()
        .api(Need::Known, routes!(elections::list))
        .api(read, routes!(elections::show))
        .api(read, routes!(elections::leader))
        .api(read, routes!(elections::candidates))
        .api(read, routes!(elections::history))
        .api(read, routes!(watch::election))
        .api(Need::Known, routes!(watch::all))
        .api(Need::Stand, routes!(campaign::campaign))
        // Those who lead step down by themselves; it takes an operator to make others do so.
        .api(Need::In(Verb::Lead), routes!(operate::resign))
        .api(Need::In(Verb::Admin), routes!(operate::transfer))
        .api(Need::In(Verb::Admin), routes!(operate::pause))
        .api(Need::In(Verb::Admin), routes!(operate::resume))
        .api(Need::Known, routes!(store::show))
        .page(Need::Nothing, Method::GET, "/openapi.json", get(document::serve))
        .page(Need::Nothing, Method::GET, "/docs", get(docs::show))
        .merge(queues::routes())
        .merge(tasks::routes())
        .merge(claims::routes())
        .merge(workers::routes())
        .merge(pools::routes())
        .merge(topics::routes())
        .merge(events::routes())
        .merge(groups::routes())
        .merge(schedules::routes())
        .merge(sessions::routes())
        .merge(names::routes())
        .merge(replicas::routes())
        .merge(raft::routes())
        .merge(members::routes())
        .merge(audit::routes())
        .merge(tokens::routes())
}
