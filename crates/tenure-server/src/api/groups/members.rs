//! Group membership over HTTP: internal operations of the HTTP store, one route per method of
//! [`EventStore`](tenure::port::EventStore).
//!
//! The routes pass the types of the port through and add no rules of their own. The partition leases of a
//! member live as long as the heartbeats of its session. Every request about them carries their tokens, so
//! any replica accepts it.

use std::collections::{BTreeSet, HashSet};

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::port::{
    CommitResult, ErrorKind, GroupAssignment, GroupKey, JoinGroupRequest, PARTITIONS_MAX, PartitionCommit,
    Permission, TakePartitionsRequest, TakenPartition, TopicKey,
};
use tenure::{Name, SessionId, Token};
use tenure_core::rules::event::{validate_commit, validate_join, validate_take};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::{MEMBERS, group_problem, invalid_request, key, no_such_group, validate_partition};
use crate::App;
use crate::access::Principal;
use crate::api::campaign::validate_token;
use crate::api::events::topic_problem;
use crate::api::extract::{JsonBody, PathParams, QueryParams};
use crate::api::session_owner::require_owned_session;
use crate::api::sessions::{NamespaceQuery, invalid_value, session_ended};
use crate::problem::Problem;
use crate::quota::{self, Object};
use crate::route::{RequiredPermission, Routes};

/// Maximum number of commits in one request.
const COMMITS_MAX: usize = 1024;

pub(super) fn routes() -> Routes {
    let (work, member) =
        (RequiredPermission::In(Permission::Claim), RequiredPermission::SessionIn(Permission::Claim));
    Routes::new()
        .api(MEMBERS, routes!(get_group_assignment))
        .api(member, routes!(join_group))
        // A session may always release its own leases.
        .api(RequiredPermission::Session, routes!(leave_group))
        .api(member, routes!(take_partitions))
        .api(work, routes!(release_partitions))
        .api_large(work, routes!(commit_partitions))
        .api(RequiredPermission::Session, routes!(register_topic_waiter))
}

/// Partitions to take.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TakePartitionsRequestJson {
    /// Partitions with the tokens under which they were last seen.
    partitions: Vec<PartitionToken>,
}

/// Partition with the token of its lease.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PartitionToken {
    /// Partition.
    partition: u32,
    /// Fencing token.
    token: Token,
}

fn pairs(partitions: &[PartitionToken]) -> Vec<(u32, Token)> {
    partitions.iter().map(|lease| (lease.partition, lease.token)).collect()
}

/// Partitions that were taken.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TakePartitionsResponse {
    /// Only the partitions that were taken.
    taken: Vec<TakenPartition>,
}

/// Partitions to release.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReleasePartitionsRequest {
    /// Partitions with the tokens of their leases.
    partitions: Vec<PartitionToken>,
}

/// Partition commits.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CommitPartitionsRequest {
    /// Commits, each in its own transaction.
    commits: Vec<PartitionCommit>,
}

/// Results of partition commits.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CommitPartitionsResponse {
    /// Result of each commit, in request order.
    committed: Vec<CommitResult>,
}

/// Get the members of a group and the holder of each partition.
#[utoipa::path(get, path = "/internal/v1/topics/{topic}/groups/{group}/assignment", tag = "internal",
    params(("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery),
    responses((status = 200, body = GroupAssignment), (status = 404, body = Problem, description = "The group does not exist.")))]
pub(super) async fn get_group_assignment(
    State(app): State<App>,
    PathParams((topic, group)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<Json<GroupAssignment>, Problem> {
    let key = key(within, topic, group);
    app.store.group_assignment(&key).await?.map(Json).ok_or_else(|| no_such_group(&key))
}

/// Join a group with a session; idempotent. Creates the group if necessary; the topic must exist.
#[utoipa::path(put, path = "/internal/v1/sessions/{session}/topics/{topic}/groups/{group}", tag = "internal",
    params(("session" = SessionId, Path), ("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery), request_body = JoinGroupRequest,
    responses((status = 200, body = GroupAssignment), (status = 404, body = Problem, description = "The topic does not exist."),
        (status = 409, body = Problem, description = "The group has a webhook."),
        (status = 410, body = Problem, description = "The session has ended.")))]
pub(super) async fn join_group(
    State(app): State<App>,
    PathParams((session, topic, group)): PathParams<(SessionId, Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(join): JsonBody<JoinGroupRequest>,
) -> Result<Json<GroupAssignment>, Problem> {
    let key = key(within, topic, group);
    if session != join.session {
        return Err(invalid_value("session", "path and body name different sessions"));
    }
    same_group(&key, &join.group)?;
    join_or_problem(&app, join).await.map(Json)
}

/// Join a group, or return the problem.
pub(super) async fn join_or_problem(app: &App, join: JoinGroupRequest) -> Result<GroupAssignment, Problem> {
    validate_join(&join).map_err(|error| invalid_request(&error, "from"))?;
    if app.store.webhooks().await?.iter().any(|(group, _)| *group == join.group) {
        // Members and servers would divide the partitions, so each would receive only some of the events.
        return Err(Problem::new(
            StatusCode::CONFLICT,
            "group-has-webhook",
            format!("the events of {} are sent to a webhook", join.group),
        )
        .field("group")
        .remedy("use another group, or delete the webhook first"));
    }
    quota::check(app, Object::Group(&join.group)).await?;
    match app.store.join_group(&join).await {
        Ok(assignment) => Ok(assignment),
        Err(error) if error.kind == ErrorKind::Request => {
            // Either the topic does not exist, or the session has ended.
            let problem = topic_problem(app, &join.group.topic, error).await;
            let ours = [join.session.clone()];
            let found = app.store.sessions(Some(&ours)).await?;
            let alive = found.iter().any(|session| session.id == join.session && session.live);
            Err(if problem.code == "no-such-topic" || alive { problem } else { session_ended(&join.session) })
        }
        Err(error) => Err(error.into()),
    }
}

/// Leave a group and release all partitions of the session.
#[utoipa::path(delete, path = "/internal/v1/sessions/{session}/topics/{topic}/groups/{group}", tag = "internal",
    params(("session" = SessionId, Path), ("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery),
    responses((status = 204)))]
pub(super) async fn leave_group(
    State(app): State<App>,
    PathParams((session, topic, group)): PathParams<(SessionId, Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<StatusCode, Problem> {
    app.store.leave_group(&key(within, topic, group), &session).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Take free partitions, each only if its token is unchanged.
#[utoipa::path(post, path = "/internal/v1/sessions/{session}/topics/{topic}/groups/{group}/take-partitions", tag = "internal",
    params(("session" = SessionId, Path), ("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery), request_body = TakePartitionsRequestJson,
    responses((status = 200, body = TakePartitionsResponse)))]
pub(super) async fn take_partitions(
    State(app): State<App>,
    PathParams((session, topic, group)): PathParams<(SessionId, Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(TakePartitionsRequestJson { partitions }): JsonBody<TakePartitionsRequestJson>,
) -> Result<Json<TakePartitionsResponse>, Problem> {
    let partitions = pairs(&partitions);
    partitions.iter().try_for_each(|(_, token)| validate_token(*token))?;
    let take = TakePartitionsRequest { group: key(within, topic, group), session, partitions };
    validate_take(&take).map_err(|error| invalid_request(&error, "partitions"))?;
    match app.store.take_partitions(&take).await {
        Ok(taken) => Ok(Json(TakePartitionsResponse { taken })),
        Err(error) => Err(group_problem(&app, &take.group, error).await),
    }
}

/// Reject requests about partitions that another principal's session holds: every reader can see their
/// tokens. The store itself rejects tokens that are not current.
async fn check_owner(
    app: &App,
    principal: &Principal,
    group: &GroupKey,
    named: impl Iterator<Item = (u32, Token)>,
) -> Result<(), Problem> {
    let Some(assignment) = app.store.group_assignment(group).await? else { return Ok(()) };
    let named: HashSet<(u32, Token)> = named.collect();
    let held =
        assignment.partition_leases.iter().filter(|lease| named.contains(&(lease.partition, lease.token)));
    let holders: BTreeSet<&SessionId> = held.filter_map(|lease| lease.holder.as_ref()).collect();
    for holder in holders {
        require_owned_session(app, principal, holder).await?;
    }
    Ok(())
}

/// Release partitions, each only if it is held under the given token.
#[utoipa::path(post, path = "/internal/v1/topics/{topic}/groups/{group}/release-partitions", tag = "internal",
    params(("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery), request_body = ReleasePartitionsRequest,
    responses((status = 204), (status = 403, body = Problem, description = "Another principal's session holds one of the partitions.")))]
pub(super) async fn release_partitions(
    State(app): State<App>,
    principal: Principal,
    PathParams((topic, group)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(ReleasePartitionsRequest { partitions }): JsonBody<ReleasePartitionsRequest>,
) -> Result<StatusCode, Problem> {
    if partitions.len() > PARTITIONS_MAX as usize {
        let detail =
            format!("{} partitions are given; a topic has at most {PARTITIONS_MAX}", partitions.len());
        return Err(invalid_value("partitions", detail));
    }
    let partitions = pairs(&partitions);
    partitions.iter().try_for_each(|(partition, _)| validate_partition("partitions", *partition))?;
    partitions.iter().try_for_each(|(_, token)| validate_token(*token))?;
    let group = key(within, topic, group);
    check_owner(&app, &principal, &group, partitions.iter().copied()).await?;
    match app.store.release_partitions(&group, &partitions).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(error) => Err(group_problem(&app, &group, error).await),
    }
}

/// Commit offsets, failures and retried events of partitions.
#[utoipa::path(post, path = "/internal/v1/topics/{topic}/groups/{group}/commit-partitions", tag = "internal",
    params(("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery), request_body = CommitPartitionsRequest,
    responses((status = 200, body = CommitPartitionsResponse),
        (status = 403, body = Problem, description = "Another principal's session holds one of the partitions.")))]
pub(super) async fn commit_partitions(
    State(app): State<App>,
    principal: Principal,
    PathParams((topic, group)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(CommitPartitionsRequest { commits }): JsonBody<CommitPartitionsRequest>,
) -> Result<Json<CommitPartitionsResponse>, Problem> {
    let group = key(within, topic, group);
    if commits.len() > COMMITS_MAX {
        let detail = format!("{} commits exceed the maximum", commits.len());
        return Err(
            invalid_value("commits", detail).remedy(format!("send at most {COMMITS_MAX} per request"))
        );
    }
    for (n, commit) in commits.iter().enumerate() {
        same_group(&group, &commit.group)?;
        validate_partition("partition", commit.partition)?;
        validate_commit(commit).map_err(|error| invalid_request(&error, &format!("commits[{n}]")))?;
    }
    check_owner(&app, &principal, &group, commits.iter().map(|commit| (commit.partition, commit.token)))
        .await?;
    match app.store.commit_partitions(&commits).await {
        Ok(committed) => Ok(Json(CommitPartitionsResponse { committed })),
        Err(error) => Err(group_problem(&app, &group, error).await),
    }
}

/// Register the session as a waiter for this topic; notifications arrive at `/internal/v1/notifications`.
#[utoipa::path(put, path = "/internal/v1/sessions/{session}/topics/{topic}/waiter", tag = "internal",
    params(("session" = SessionId, Path), ("topic" = Name, Path), NamespaceQuery), responses((status = 204)))]
pub(super) async fn register_topic_waiter(
    State(app): State<App>,
    principal: Principal,
    PathParams((session, topic)): PathParams<(SessionId, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<StatusCode, Problem> {
    if !principal.may(Permission::Claim, Some(&within.namespace)) {
        principal.require(Permission::Read, Some(&within.namespace))?;
    }
    let topic = TopicKey::new(within.namespace, topic);
    match app.store.register_topic_waiter(&session, &topic).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(error) => Err(topic_problem(&app, &topic, error).await),
    }
}

fn same_group(path: &GroupKey, body: &GroupKey) -> Result<(), Problem> {
    if path == body {
        return Ok(());
    }
    let detail = format!("the path has group {path} and the body {body}");
    Err(invalid_value("group", detail).remedy("send the namespace in the query: ?namespace=NAME"))
}
