//! Members of a Raft store (`raft:`).

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use tenure::port::{AuditEntry, Permission, RaftMemberAction, RaftStatus};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::audit_writer::AuditActor;
use super::election_actions::EmptyRequest;
use super::extract::{JsonBody, OptionalJsonBody, PathParams};
use crate::App;
use crate::problem::Problem;
use crate::route::{RequiredPermission, Routes};

pub(crate) fn routes() -> Routes {
    // Members and their addresses are visible to administrators of the whole store.
    let admin = RequiredPermission::InAll(Permission::Admin);
    Routes::new()
        .api(RequiredPermission::InAll(Permission::Read), routes!(get_raft_status))
        .api(admin, routes!(add_raft_member))
        .api(admin, routes!(remove_raft_member))
        .api(admin, routes!(transfer_raft_leader))
}

/// Raft member to add.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"address": "10.0.0.4:8369"}))]
pub(crate) struct AddRaftMemberRequest {
    /// Address at which the other members reach it: `HOST:PORT`.
    #[schema(max_length = 256)]
    address: String,
}

/// Transfer of the Raft leadership.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"to": 2}))]
pub(crate) struct RaftTransferRequest {
    /// Node id of the new leader.
    to: u64,
}

/// Get the Raft status
///
/// Leader, voters, learners and their lag, for a store that is a Raft cluster.
#[utoipa::path(get, path = "/v1/raft", tag = "store", responses((status = 200, body = RaftStatus), (status = 404, body = Problem)))]
async fn get_raft_status(State(app): State<App>) -> Result<Json<RaftStatus>, Problem> {
    members(&app).await.map(Json)
}

/// Add a Raft member
///
/// The member joins as a learner and becomes a voter once it has caught up; the response is sent then. Start
/// it first, with its node id and the addresses of all members. A node id is used once: a member that lost
/// its disk returns under a new one.
#[utoipa::path(put, path = "/v1/raft/members/{node_id}", tag = "store", params(("node_id" = u64, Path)), request_body = AddRaftMemberRequest,
    responses((status = 200, body = RaftStatus), (status = 404, body = Problem), (status = 422, body = Problem)))]
async fn add_raft_member(
    State(app): State<App>,
    by: AuditActor,
    PathParams(node_id): PathParams<u64>,
    JsonBody(new): JsonBody<AddRaftMemberRequest>,
) -> Result<Json<RaftStatus>, Problem> {
    let known = members(&app).await?;
    let address = new.address.trim().to_owned();
    let plausible = address.len() <= 256
        && address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
    if !plausible {
        let detail = format!("{address:?} is not a valid address");
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value", detail)
            .field("address")
            .remedy("send HOST:PORT as the other members reach it"));
    }
    if let Some(member) =
        known.members.iter().find(|member| member.node_id == node_id && member.address != address)
    {
        let detail = format!("node {node_id} is already a member, at {}", member.address);
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value", detail)
            .field("node_id")
            .remedy("use a node id that was never used, or remove the other member first"));
    }
    change_members(
        &app,
        &by,
        "raft.add_member",
        &node_id.to_string(),
        address.clone(),
        RaftMemberAction::Add { node_id, address },
    )
    .await
}

/// Remove a Raft member
///
/// The member no longer votes and receives no more entries; stop it afterwards. Do not reuse its node id.
#[utoipa::path(delete, path = "/v1/raft/members/{node_id}", tag = "store", params(("node_id" = u64, Path)),
    responses((status = 200, body = RaftStatus), (status = 404, body = Problem), (status = 422, body = Problem)))]
async fn remove_raft_member(
    State(app): State<App>,
    by: AuditActor,
    PathParams(node_id): PathParams<u64>,
    OptionalJsonBody(EmptyRequest {}): OptionalJsonBody<EmptyRequest>,
) -> Result<Json<RaftStatus>, Problem> {
    let known = members(&app).await?;
    if !known.members.iter().any(|member| member.node_id == node_id) {
        let detail = format!("node {node_id} is not a member");
        return Err(Problem::new(StatusCode::NOT_FOUND, "no-such-member", detail)
            .remedy("GET /v1/raft lists the members"));
    }
    if known.members.iter().filter(|member| member.voter).count() == 1 {
        let detail = format!("node {node_id} is the only voter");
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value", detail)
            .remedy("add another member first"));
    }
    change_members(
        &app,
        &by,
        "raft.remove_member",
        &node_id.to_string(),
        String::new(),
        RaftMemberAction::Remove { node_id },
    )
    .await
}

/// Transfer the Raft leadership
///
/// Elections of the store continue; responses are delayed for a moment.
#[utoipa::path(post, path = "/v1/raft/transfer", tag = "store", request_body = RaftTransferRequest,
    responses((status = 200, body = RaftStatus), (status = 404, body = Problem), (status = 422, body = Problem)))]
async fn transfer_raft_leader(
    State(app): State<App>,
    by: AuditActor,
    JsonBody(RaftTransferRequest { to }): JsonBody<RaftTransferRequest>,
) -> Result<Json<RaftStatus>, Problem> {
    members(&app).await?;
    change_members(
        &app,
        &by,
        "raft.transfer",
        &to.to_string(),
        String::new(),
        RaftMemberAction::Transfer { node_id: to },
    )
    .await
}

async fn members(app: &App) -> Result<RaftStatus, Problem> {
    app.store.raft_status().await?.ok_or_else(|| {
        Problem::new(
            StatusCode::NOT_FOUND,
            "not-a-raft-store",
            "the store of this server is not a Raft cluster",
        )
        .remedy("send the request to a server whose --store or --election-store is raft:…")
    })
}

async fn change_members(
    app: &App,
    by: &AuditActor,
    audit_action: &str,
    target: &str,
    detail: String,
    action: RaftMemberAction,
) -> Result<Json<RaftStatus>, Problem> {
    app.store.change_raft_members(&action).await?;
    let entry = AuditEntry {
        seq: 0,
        recorded_at_ms: app.runtime.wall_ms(),
        principal: by.principal.to_string(),
        action: audit_action.into(),
        namespace: None,
        target: format!("node {target}"),
        detail,
        request_id: by.request_id().to_owned(),
    };
    app.record(&entry).await;
    members(app).await.map(Json)
}
