//! The dashboard: server-rendered, live, and readable without a script.
//!
//! Pages are rendered from the server's snapshots, so the load on the store does not depend on the number of
//! visitors. Only the terms of one election and the audit log are read from the store, with a timeout. A page
//! leaves out objects that the principal may not read and buttons that the principal may not use; the access
//! middleware rejects such requests too. The content security policy of a page allows the server's own style
//! sheet, script and images, and no inline code.
//!
//! | module | contents |
//! |---|---|
//! | `home` | the home page: elections, servers, health of the store |
//! | `raft` | the members of a Raft store |
//! | `getting_started` | first commands, shown while the store is empty |
//! | `election` | one election: leaders, candidates, terms |
//! | `names` | registered names and singletons |
//! | `timeline` | the chart of terms |
//! | `election_actions` | transfer, resign, pause and resume, with confirmation |
//! | `queues`, `queue`, `queue_actions` | all queues, one queue, and its actions |
//! | `task`, `task_graph`, `payload`, `submit` | one task with its dependencies and payload; the form of a new task |
//! | `workers` | workers and their approval |
//! | `pools`, `pool`, `pool_actions` | all pools, one pool with its resources and requests, and its actions |
//! | `topics`, `topic`, `topic_actions`, `event` | all topics, one topic, its actions, and one event |
//! | `group`, `partition_assignment`, `group_actions`, `group_reset` | one consumer group: assignment, lag, actions |
//! | `parked`, `dead_letter_actions` | parked events and dead letters; replay and drop |
//! | `schedules`, `schedule`, `schedule_actions` | all schedules, one schedule, and its actions |
//! | `calendar_chart`, `local_time` | the upcoming ticks of a schedule in its time zone |
//! | `schedule_form`, `schedule_form_view`, `schedule_backfill` | the form of a schedule; backfill of past ticks |
//! | `chart` | charts of queue depth, throughput and lag |
//! | `gossip` | gossip members and soft elections |
//! | `audit` | the audit log |
//! | `credentials` | credentials: list, create and revoke |
//! | `login` | login and logout |
//! | `live` | the event stream that triggers page refreshes |
//! | `flash` | one-time messages about the result of a form |
//! | `store_banner` | the banner shown while the store is unavailable |

mod assets;
mod audit;
mod calendar_chart;
mod chart;
mod components;
mod credentials;
mod dead_letter_actions;
mod election;
mod election_actions;
mod event;
mod extract;
mod flash;
mod format;
mod getting_started;
mod gossip;
mod group;
mod group_actions;
mod group_reset;
mod home;
mod layout;
mod live;
mod local_time;
mod login;
mod names;
mod parked;
mod partition_assignment;
mod payload;
mod pool;
mod pool_actions;
mod pools;
mod queue;
mod queue_actions;
mod queues;
mod raft;
mod schedule;
mod schedule_actions;
mod schedule_backfill;
mod schedule_form;
mod schedule_form_view;
mod schedules;
mod store_banner;
mod submit;
mod task;
mod task_graph;
mod timeline;
mod topic;
mod topic_actions;
mod topics;
mod workers;

use axum::response::Response;
use axum::routing::{get, post};
use http::Method;
use http::request::Parts;
use tenure::port::Permission;

pub(crate) use self::calendar_chart::UpcomingTicks;
pub(crate) use self::layout::{PageContext, page};
pub(crate) use self::payload::{FormattedPayload, excerpt};
use crate::App;
use crate::problem::Problem;
use crate::route::{RequiredPermission, Routes};

/// The routes of the dashboard.
pub(crate) fn routes() -> Routes {
    let (read, admin) = (RequiredPermission::In(Permission::Read), RequiredPermission::In(Permission::Admin));
    Routes::new()
        .page(RequiredPermission::AnyCredential, Method::GET, "/", get(home::show))
        .page(RequiredPermission::AnyCredential, Method::GET, "/live", get(live::stream))
        .page(read, Method::GET, "/elections/{election}", get(election::show))
        .page(admin, Method::GET, "/elections/{election}/{action}", get(election_actions::confirm))
        .page(admin, Method::POST, "/elections/{election}/{action}", post(election_actions::apply))
        .page(RequiredPermission::AnyCredential, Method::GET, "/names", get(names::show))
        .merge(queues(read, admin))
        .merge(events(read, admin))
        .merge(schedules(read, admin))
        .page(RequiredPermission::AnyCredential, Method::GET, "/gossip", get(gossip::show))
        .page(RequiredPermission::AnyCredential, Method::GET, "/audit", get(audit::show))
        .page(
            RequiredPermission::InAll(Permission::Admin),
            Method::GET,
            "/credentials",
            get(credentials::show),
        )
        .page(
            RequiredPermission::InAll(Permission::Admin),
            Method::POST,
            "/credentials",
            post(credentials::create),
        )
        .page(
            RequiredPermission::InAll(Permission::Admin),
            Method::GET,
            "/credentials/{id}/revoke",
            get(credentials::confirm),
        )
        .page(
            RequiredPermission::InAll(Permission::Admin),
            Method::POST,
            "/credentials/{id}/revoke",
            post(credentials::revoke),
        )
        .page(RequiredPermission::None, Method::GET, "/login", get(login::show))
        .page(RequiredPermission::None, Method::POST, "/login", post(login::log_in))
        .page(RequiredPermission::None, Method::POST, "/logout", post(login::log_out))
        .page(RequiredPermission::None, Method::POST, "/theme", post(layout::choose_theme))
        .page(RequiredPermission::None, Method::GET, "/assets/{hash}/{name}", get(assets::serve))
}

/// The routes of queues, tasks, workers and pools.
fn queues(read: RequiredPermission, admin: RequiredPermission) -> Routes {
    let claim = RequiredPermission::In(Permission::Claim);
    Routes::new()
        .page(RequiredPermission::AnyCredential, Method::GET, "/queues", get(queues::show))
        .page(read, Method::GET, "/queues/{queue}", get(queue::show))
        .page(admin, Method::GET, "/queues/{queue}/{action}", get(queue_actions::confirm))
        .page(admin, Method::POST, "/queues/{queue}/{action}", post(queue_actions::apply))
        .page(admin, Method::GET, "/namespace/{action}", get(queues::confirm))
        .page(admin, Method::POST, "/namespace/{action}", post(queues::apply))
        .page(claim, Method::GET, "/tasks/new", get(submit::show))
        .page(claim, Method::POST, "/tasks/new", post(submit::create))
        .page(read, Method::GET, "/tasks/{task}", get(task::show))
        .page(admin, Method::GET, "/tasks/{task}/{action}", get(task::confirm))
        .page(admin, Method::POST, "/tasks/{task}/{action}", post(task::apply))
        .page(RequiredPermission::AnyCredential, Method::GET, "/workers", get(workers::show))
        .page(admin, Method::GET, "/workers/{worker}/{action}", get(workers::confirm))
        .page(admin, Method::POST, "/workers/{worker}/{action}", post(workers::apply))
        .page(RequiredPermission::AnyCredential, Method::GET, "/pools", get(pools::show))
        .page(admin, Method::GET, "/pools/new", get(pool_actions::new))
        .page(admin, Method::POST, "/pools/new", post(pool_actions::create))
        .page(read, Method::GET, "/pools/{pool}", get(pool::show))
        .page(admin, Method::GET, "/pools/{pool}/{action}", get(pool_actions::confirm))
        .page(admin, Method::POST, "/pools/{pool}/{action}", post(pool_actions::apply))
        .page(
            admin,
            Method::GET,
            "/pools/{pool}/resources/{resource}/{action}",
            get(pool_actions::confirm_resource),
        )
        .page(
            admin,
            Method::POST,
            "/pools/{pool}/resources/{resource}/{action}",
            post(pool_actions::apply_resource),
        )
        .page(
            admin,
            Method::GET,
            "/pools/{pool}/requests/{request}/release",
            get(pool_actions::confirm_request),
        )
        .page(
            admin,
            Method::POST,
            "/pools/{pool}/requests/{request}/release",
            post(pool_actions::apply_request),
        )
}

/// The routes of topics and consumer groups.
fn events(read: RequiredPermission, admin: RequiredPermission) -> Routes {
    let publish = RequiredPermission::In(Permission::Publish);
    let parked_event = "/topics/{topic}/groups/{group}/parked-events/{event}";
    Routes::new()
        .page(RequiredPermission::AnyCredential, Method::GET, "/topics", get(topics::show))
        .page(admin, Method::GET, "/new-topic", get(topic_actions::new))
        .page(admin, Method::POST, "/new-topic", post(topic_actions::create))
        .page(read, Method::GET, "/topics/{topic}", get(topic::show))
        .page(publish, Method::GET, "/topics/{topic}/publish", get(topic_actions::publish_form))
        .page(publish, Method::POST, "/topics/{topic}/publish", post(topic_actions::publish))
        .page(admin, Method::GET, "/topics/{topic}/{action}", get(topic_actions::confirm))
        .page(admin, Method::POST, "/topics/{topic}/{action}", post(topic_actions::apply))
        .page(read, Method::GET, "/topics/{topic}/events/{event}", get(event::show))
        .page(read, Method::GET, "/topics/{topic}/groups/{group}", get(group::show))
        .page(admin, Method::GET, "/topics/{topic}/groups/{group}/reset", get(group_reset::confirm))
        .page(admin, Method::POST, "/topics/{topic}/groups/{group}/reset", post(group_reset::apply))
        .page(admin, Method::GET, "/topics/{topic}/groups/{group}/webhook", get(group_actions::webhook_form))
        .page(
            admin,
            Method::POST,
            "/topics/{topic}/groups/{group}/webhook",
            post(group_actions::save_webhook),
        )
        .page(
            admin,
            Method::GET,
            "/topics/{topic}/groups/{group}/dead-letters/{action}",
            get(dead_letter_actions::confirm_all),
        )
        .page(
            admin,
            Method::POST,
            "/topics/{topic}/groups/{group}/dead-letters/{action}",
            post(dead_letter_actions::apply_all),
        )
        .page(admin, Method::GET, "/topics/{topic}/groups/{group}/{action}", get(group_actions::confirm))
        .page(admin, Method::POST, "/topics/{topic}/groups/{group}/{action}", post(group_actions::apply))
        .page(read, Method::GET, parked_event, get(parked::show))
        .page(admin, Method::GET, &format!("{parked_event}/{{action}}"), get(dead_letter_actions::confirm))
        .page(admin, Method::POST, &format!("{parked_event}/{{action}}"), post(dead_letter_actions::apply))
}

/// The routes of schedules.
fn schedules(read: RequiredPermission, admin: RequiredPermission) -> Routes {
    Routes::new()
        .page(RequiredPermission::AnyCredential, Method::GET, "/schedules", get(schedules::show))
        .page(admin, Method::GET, "/schedules/new", get(schedule_form_view::new))
        .page(admin, Method::POST, "/schedules/new", post(schedule_form_view::create))
        .page(read, Method::GET, "/schedules/{schedule}", get(schedule::show))
        .page(admin, Method::GET, "/schedules/{schedule}/edit", get(schedule_form_view::edit))
        .page(admin, Method::POST, "/schedules/{schedule}/edit", post(schedule_form_view::save))
        .page(admin, Method::GET, "/schedules/{schedule}/backfill", get(schedule_backfill::confirm))
        .page(admin, Method::POST, "/schedules/{schedule}/backfill", post(schedule_backfill::apply))
        .page(admin, Method::GET, "/schedules/{schedule}/{action}", get(schedule_actions::confirm))
        .page(admin, Method::POST, "/schedules/{schedule}/{action}", post(schedule_actions::apply))
}

/// Render the rejection of a browser's request as a page.
pub(crate) fn rejection_page(app: &App, parts: &Parts, problem: &Problem) -> Response {
    layout::problem_page(&layout::PageContext::of(parts, app), problem)
}
