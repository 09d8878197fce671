//! Public HTTP API under `/v1`, internal operations under `/internal/v1`, and the OpenAPI document.

mod audit;
mod audit_writer;
mod campaign;
mod claim;
mod conditional;
mod credentials;
mod docs_page;
mod election_actions;
mod election_types;
mod elections;
mod events;
mod extract;
mod gossip;
mod groups;
mod names;
mod openapi;
mod pools;
mod queues;
mod raft;
mod replicas;
mod schedules;
mod session_owner;
mod session_quota;
mod sessions;
mod store;
mod tasks;
mod topics;
mod validate;
mod watch;
mod workers;

use axum::routing::get;
use http::Method;
use tenure::port::Permission;
use utoipa_axum::routes;

pub(crate) use self::audit_writer::AuditActor;
pub(crate) use self::events::{limit_size, no_such_event};
pub(crate) use self::gossip::gossip_disabled as no_gossip;
pub(crate) use self::groups::{
    PutWebhookRequest, no_such_group, order_dead, push_address, reset_detail, set_webhook,
};
pub(crate) use self::names::names as names_namespace;
pub(crate) use self::openapi::empty as document;
pub(crate) use self::schedules::{
    PutScheduleRequest, TickRange, backfill_range, changed_meanwhile, no_such_schedule,
    preview as check_schedule, set_schedule, trigger_now,
};
pub(crate) use self::sessions::validate_display_text;
pub(crate) use self::tasks::{CANCELLED, RETRIED};
pub(crate) use self::topics::no_such_topic;
use crate::route::{RequiredPermission, Routes};

/// The routes of the API.
pub(crate) fn routes() -> Routes {
    let read = RequiredPermission::In(Permission::Read);
    Routes::new()
        .api(RequiredPermission::AnyCredential, routes!(elections::list_elections))
        .api(read, routes!(elections::get_election))
        .api(read, routes!(elections::get_leader))
        .api(read, routes!(elections::list_candidates))
        .api(read, routes!(elections::list_terms))
        .api(read, routes!(watch::watch_election))
        .api(RequiredPermission::AnyCredential, routes!(watch::watch_elections))
        .api(RequiredPermission::Campaign, routes!(campaign::campaign))
        // A leader needs `lead` to resign. An operator needs `admin` to ask a leader to resign.
        .api(RequiredPermission::In(Permission::Lead), routes!(election_actions::resign_leader))
        .api(RequiredPermission::In(Permission::Admin), routes!(election_actions::transfer_leader))
        .api(RequiredPermission::In(Permission::Admin), routes!(election_actions::pause_election))
        .api(RequiredPermission::In(Permission::Admin), routes!(election_actions::resume_election))
        .api(RequiredPermission::AnyCredential, routes!(store::get_store_status))
        .page(RequiredPermission::None, Method::GET, "/openapi.json", get(openapi::serve))
        .page(RequiredPermission::None, Method::GET, "/docs", get(docs_page::show))
        .merge(queues::routes())
        .merge(tasks::routes())
        .merge(claim::routes())
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
        .merge(gossip::routes())
        .merge(audit::routes())
        .merge(credentials::routes())
}
