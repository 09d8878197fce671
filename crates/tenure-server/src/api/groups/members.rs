//! The members' protocol over HTTP: one route for each call of [`Events`](tenure::port::Events).
//!
//! As with sessions, nothing is decided here, and what goes to and fro are the types of the port. A member's shares live on the beat
//! of its session; what it says about them names their tokens, so that any replica takes it in.

use std::collections::{BTreeSet, HashSet};

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::port::{
    Committed, GroupKey, GroupLook, Join, SLOTS_MAX, ShareCommit, TakeShares, Taken, TopicKey, Trouble, Verb,
};
use tenure::{Name, SessionId, Token};
use tenure_core::event::{check_commit, check_join, check_take};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::{MEMBERS, key, none, of_group, plausible_slot, sense};
use crate::App;
use crate::access::Principal;
use crate::api::campaign::plausible_token;
use crate::api::events::of_topic;
use crate::api::given::{At, Given, In};
use crate::api::owned::owned;
use crate::api::sessions::{Within, gone, unfit};
use crate::problem::Problem;
use crate::quota::{self, Object};
use crate::route::{Need, Routes};

/// The most commits in one request.
const COMMITS_MAX: usize = 1024;

pub(super) fn routes() -> Routes {
    let (work, member) = (Need::In(Verb::Claim), Need::SessionIn(Verb::Claim));
    Routes::new()
        .api(MEMBERS, routes!(look))
        .api(member, routes!(join))
        // To give up what one has is never denied to whoever owns it.
        .api(Need::Session, routes!(leave))
        .api(member, routes!(take))
        .api(work, routes!(free))
        .api_large(work, routes!(commit))
        .api(Need::Session, routes!(doze))
}

/// Slots to be taken.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Taking {
    /// Which, and under which tokens they were seen.
    #[schema(value_type = Vec<(u32, u64)>)]
    slots: Vec<(u32, Token)>,
}

/// Slots that were taken.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TakenShares {
    /// Those, and no others.
    taken: Vec<Taken>,
}

/// Slots that are given back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Freeing {
    /// Which, and under which tokens they are held.
    #[schema(value_type = Vec<(u32, u64)>)]
    shares: Vec<(u32, Token)>,
}

/// What a member says about its slots.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Commits {
    /// Each a transaction of its own.
    commits: Vec<ShareCommit>,
}

/// What came of it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CommitsHeard {
    /// For each commit, in their order.
    committed: Vec<Committed>,
}

/// A group as its members see it: who there is, and who has which slot.
#[utoipa::path(get, path = "/v1/topics/{topic}/groups/{group}/look", tag = "members",
    params(("topic" = Name, Path), ("group" = Name, Path), Within),
    responses((status = 200, body = GroupLook), (status = 404, body = Problem, description = "There is no such group.")))]
pub(super) async fn look(
    State(app): State<App>,
    At((topic, group)): At<(Name, Name)>,
    In(within): In<Within>,
) -> Result<Json<GroupLook>, Problem> {
    let key = key(within, topic, group);
    app.store.look_group(&key).await?.map(Json).ok_or_else(|| none(&key))
}

/// Joins a group with a session, or says so again. A group that is not there is made; the topic must be.
#[utoipa::path(put, path = "/v1/sessions/{session}/topics/{topic}/groups/{group}", tag = "members",
    params(("session" = SessionId, Path), ("topic" = Name, Path), ("group" = Name, Path), Within), request_body = Join,
    responses((status = 200, body = GroupLook), (status = 404, body = Problem, description = "There is no such topic."),
        (status = 409, body = Problem, description = "The servers push the group."),
        (status = 410, body = Problem, description = "The session is over.")))]
pub(super) async fn join(
    State(app): State<App>,
    At((session, topic, group)): At<(SessionId, Name, Name)>,
    In(within): In<Within>,
    Given(join): Given<Join>,
) -> Result<Json<GroupLook>, Problem> {
    let key = key(within, topic, group);
    if session != join.session {
        return Err(unfit("session", "the address and the body name different sessions"));
    }
    same_group(&key, &join.group)?;
    joined(&app, join).await.map(Json)
}

/// Joins, and tells why not.
pub(super) async fn joined(app: &App, join: Join) -> Result<GroupLook, Problem> {
    check_join(&join).map_err(|error| sense(&error, "from"))?;
    if app.store.pushes().await?.iter().any(|(group, _)| *group == join.group) {
        // They would share the slots: some events would go to the address, and others here.
        return Err(Problem::new(StatusCode::CONFLICT, "pushed", format!("the servers push {}", join.group))
            .field("group")
            .remedy("read with a group of your own; or stop the push first"));
    }
    quota::check(app, Object::Group(&join.group)).await?;
    match app.store.join_group(&join).await {
        Ok(look) => Ok(look),
        Err(error) if error.kind == Trouble::Request => {
            // There is no such topic; or else the session has ended.
            let problem = of_topic(app, &join.group.topic, error).await;
            let ours = [join.session.clone()];
            let found = app.store.sessions(Some(&ours)).await?;
            let alive = found.iter().any(|session| session.id == join.session && session.live);
            Err(if problem.code == "no-such-topic" || alive { problem } else { gone(&join.session) })
        }
        Err(error) => Err(error.into()),
    }
}

/// Leaves a group: all that the session has in it is free.
#[utoipa::path(delete, path = "/v1/sessions/{session}/topics/{topic}/groups/{group}", tag = "members",
    params(("session" = SessionId, Path), ("topic" = Name, Path), ("group" = Name, Path), Within),
    responses((status = 204)))]
pub(super) async fn leave(
    State(app): State<App>,
    At((session, topic, group)): At<(SessionId, Name, Name)>,
    In(within): In<Within>,
) -> Result<StatusCode, Problem> {
    app.store.leave_group(&key(within, topic, group), &session).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Takes slots that are free, each if it is as it was seen.
#[utoipa::path(post, path = "/v1/sessions/{session}/topics/{topic}/groups/{group}/take", tag = "members",
    params(("session" = SessionId, Path), ("topic" = Name, Path), ("group" = Name, Path), Within), request_body = Taking,
    responses((status = 200, body = TakenShares)))]
pub(super) async fn take(
    State(app): State<App>,
    At((session, topic, group)): At<(SessionId, Name, Name)>,
    In(within): In<Within>,
    Given(Taking { slots }): Given<Taking>,
) -> Result<Json<TakenShares>, Problem> {
    slots.iter().try_for_each(|(_, token)| plausible_token(*token))?;
    let take = TakeShares { group: key(within, topic, group), session, slots };
    check_take(&take).map_err(|error| sense(&error, "slots"))?;
    match app.store.take_shares(&take).await {
        Ok(taken) => Ok(Json(TakenShares { taken })),
        Err(error) => Err(of_group(&app, &take.group, error).await),
    }
}

/// Refuses to touch what somebody else's sessions have: tokens are shown to whoever may read. Of what is held under no such token, or by
/// nobody, the store says so itself.
async fn whose(
    app: &App,
    principal: &Principal,
    group: &GroupKey,
    named: impl Iterator<Item = (u32, Token)>,
) -> Result<(), Problem> {
    let Some(look) = app.store.look_group(group).await? else { return Ok(()) };
    let named: HashSet<(u32, Token)> = named.collect();
    let held = look.shares.iter().filter(|share| named.contains(&(share.slot, share.token)));
    let holders: BTreeSet<&SessionId> = held.filter_map(|share| share.holder.as_ref()).collect();
    for holder in holders {
        owned(app, principal, holder).await?;
    }
    Ok(())
}

/// Gives slots back, each if it is held under that token.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/free", tag = "members",
    params(("topic" = Name, Path), ("group" = Name, Path), Within), request_body = Freeing,
    responses((status = 204), (status = 403, body = Problem, description = "Somebody else's session has one of them.")))]
pub(super) async fn free(
    State(app): State<App>,
    principal: Principal,
    At((topic, group)): At<(Name, Name)>,
    In(within): In<Within>,
    Given(Freeing { shares }): Given<Freeing>,
) -> Result<StatusCode, Problem> {
    if shares.len() > SLOTS_MAX as usize {
        let detail = format!("{} slots are named; a topic has {SLOTS_MAX} at most", shares.len());
        return Err(unfit("shares", detail));
    }
    shares.iter().try_for_each(|(slot, _)| plausible_slot("shares", *slot))?;
    shares.iter().try_for_each(|(_, token)| plausible_token(*token))?;
    let group = key(within, topic, group);
    whose(&app, &principal, &group, shares.iter().copied()).await?;
    match app.store.free_shares(&group, &shares).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(error) => Err(of_group(&app, &group, error).await),
    }
}

/// Takes in what a member says about its slots: how far they are read, what failed, what became of what had failed.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/commit", tag = "members",
    params(("topic" = Name, Path), ("group" = Name, Path), Within), request_body = Commits,
    responses((status = 200, body = CommitsHeard),
        (status = 403, body = Problem, description = "Somebody else's session has one of the slots.")))]
pub(super) async fn commit(
    State(app): State<App>,
    principal: Principal,
    At((topic, group)): At<(Name, Name)>,
    In(within): In<Within>,
    Given(Commits { commits }): Given<Commits>,
) -> Result<Json<CommitsHeard>, Problem> {
    let group = key(within, topic, group);
    if commits.len() > COMMITS_MAX {
        let detail = format!("{} commits are too many for one request", commits.len());
        return Err(unfit("commits", detail).remedy(format!("send {COMMITS_MAX} at a time")));
    }
    for (n, commit) in commits.iter().enumerate() {
        same_group(&group, &commit.group)?;
        plausible_slot("slot", commit.slot)?;
        check_commit(commit).map_err(|error| sense(&error, &format!("commits[{n}]")))?;
    }
    whose(&app, &principal, &group, commits.iter().map(|commit| (commit.slot, commit.token))).await?;
    match app.store.commit_shares(&commits).await {
        Ok(committed) => Ok(Json(CommitsHeard { committed })),
        Err(error) => Err(of_group(&app, &group, error).await),
    }
}

/// Says that the session sleeps until this topic has events: then `/v1/wakes` says so.
#[utoipa::path(put, path = "/v1/sessions/{session}/topics/{topic}/doze", tag = "members",
    params(("session" = SessionId, Path), ("topic" = Name, Path), Within), responses((status = 204)))]
pub(super) async fn doze(
    State(app): State<App>,
    principal: Principal,
    At((session, topic)): At<(SessionId, Name)>,
    In(within): In<Within>,
) -> Result<StatusCode, Problem> {
    if !principal.may(Verb::Claim, Some(&within.namespace)) {
        principal.must(Verb::Read, Some(&within.namespace))?;
    }
    let topic = TopicKey::new(within.namespace, topic);
    match app.store.doze_topic(&session, &topic).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(error) => Err(of_topic(&app, &topic, error).await),
    }
}

fn same_group(path: &GroupKey, body: &GroupKey) -> Result<(), Problem> {
    if path == body {
        return Ok(());
    }
    let detail = format!("the address says {path} and the body {body}");
    Err(unfit("group", detail).remedy("the namespace belongs into the query: ?namespace=NAME"))
}
