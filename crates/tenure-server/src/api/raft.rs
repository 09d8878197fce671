//! The members of the store, where it is a cluster of its own (`raft:`).

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use tenure::port::{Deed, MemberOrder, Membership, Verb};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::deeds::By;
use super::given::{At, Given, MaybeGiven};
use super::operate::Nothing;
use crate::App;
use crate::problem::Problem;
use crate::route::{Need, Routes};

pub(crate) fn routes() -> Routes {
    // Members and where they are belong to those who look after the whole store.
    let admin = Need::Over(Verb::Admin);
    Routes::new()
        .api(Need::Over(Verb::Read), routes!(show))
        .api(admin, routes!(admit))
        .api(admin, routes!(dismiss))
        .api(admin, routes!(transfer))
}

/// A member to be.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"place": "10.0.0.4:8369"}))]
pub(crate) struct NewMember {
    /// Where the others reach it: `HOST:PORT`.
    #[schema(max_length = 256)]
    place: String,
}

/// Who is to lead the cluster.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"to": 2}))]
pub(crate) struct TransferTo {
    /// The member's number.
    to: u64,
}

/// Show the members
///
/// Of a store that is a cluster by itself (`raft:`): who leads it, who votes, who learns, and how far behind they are.
#[utoipa::path(get, path = "/v1/raft", tag = "store", responses((status = 200, body = Membership), (status = 404, body = Problem)))]
async fn show(State(app): State<App>) -> Result<Json<Membership>, Problem> {
    members(&app).await.map(Json)
}

/// Take a member in
///
/// It learns first, and votes when it has caught up; this is answered then. Start it beforehand, with its number and the places of all. A number is
/// used once: one that lost its disk comes back under another.
#[utoipa::path(put, path = "/v1/raft/members/{node}", tag = "store", params(("node" = u64, Path)), request_body = NewMember,
    responses((status = 200, body = Membership), (status = 404, body = Problem), (status = 422, body = Problem)))]
async fn admit(
    State(app): State<App>,
    by: By,
    At(node): At<u64>,
    Given(new): Given<NewMember>,
) -> Result<Json<Membership>, Problem> {
    let known = members(&app).await?;
    let place = new.place.trim().to_owned();
    let plausible = place.len() <= 256
        && place
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
    if !plausible {
        let detail = format!("{place:?} is no place to reach a member at");
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "unfit", detail)
            .field("place")
            .remedy("give HOST:PORT, as the others reach it"));
    }
    if let Some(member) = known.members.iter().find(|member| member.node == node && member.place != place) {
        let detail = format!("node {node} is a member already, at {}", member.place);
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "unfit", detail)
            .field("node")
            .remedy("give it a number that was never used, or dismiss the other one first"));
    }
    order(&app, &by, "raft.admit", &node.to_string(), place.clone(), MemberOrder::Admit { node, place }).await
}

/// Let a member go
///
/// It votes no more and is sent nothing more; stop it then. Its number is not used again.
#[utoipa::path(delete, path = "/v1/raft/members/{node}", tag = "store", params(("node" = u64, Path)),
    responses((status = 200, body = Membership), (status = 404, body = Problem), (status = 422, body = Problem)))]
async fn dismiss(
    State(app): State<App>,
    by: By,
    At(node): At<u64>,
    MaybeGiven(Nothing {}): MaybeGiven<Nothing>,
) -> Result<Json<Membership>, Problem> {
    let known = members(&app).await?;
    if !known.members.iter().any(|member| member.node == node) {
        let detail = format!("node {node} is no member");
        return Err(Problem::new(StatusCode::NOT_FOUND, "no-such-member", detail)
            .remedy("GET /v1/raft shows those that there are"));
    }
    if known.members.iter().filter(|member| member.votes).count() == 1 {
        let detail = format!("node {node} is the only member that votes: without it there is no cluster");
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "unfit", detail)
            .remedy("take in another one first"));
    }
    order(&app, &by, "raft.dismiss", &node.to_string(), String::new(), MemberOrder::Dismiss { node }).await
}

/// Have another member lead the cluster
///
/// Elections that the cluster decides about go on; for a moment, answers are late.
#[utoipa::path(post, path = "/v1/raft/transfer", tag = "store", request_body = TransferTo,
    responses((status = 200, body = Membership), (status = 404, body = Problem), (status = 422, body = Problem)))]
async fn transfer(
    State(app): State<App>,
    by: By,
    Given(TransferTo { to }): Given<TransferTo>,
) -> Result<Json<Membership>, Problem> {
    members(&app).await?;
    order(&app, &by, "raft.transfer", &to.to_string(), String::new(), MemberOrder::Transfer { node: to })
        .await
}

async fn members(app: &App) -> Result<Membership, Problem> {
    app.store.membership().await?.ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "no-members", "this server's store is no cluster of its own")
            .remedy("ask a server whose --store, or --elect, is raft:…")
    })
}

async fn order(
    app: &App,
    by: &By,
    action: &str,
    target: &str,
    detail: String,
    order: MemberOrder,
) -> Result<Json<Membership>, Problem> {
    app.store.order_member(&order).await?;
    let deed = Deed {
        n: 0,
        at_ms: app.runtime.wall_ms(),
        principal: by.principal.to_string(),
        action: action.into(),
        namespace: None,
        target: format!("node {target}"),
        detail,
        request_id: by.request_id().to_owned(),
    };
    app.record(&deed).await;
    members(app).await.map(Json)
}
