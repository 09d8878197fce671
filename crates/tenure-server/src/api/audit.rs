//! The audit log.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{AuditEntry, Permission};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::elections::validate_number;
use super::extract::QueryParams;
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::route::{RequiredPermission, Routes};

/// Default and maximum page size.
const PAGE: (u32, u32) = (50, 500);

pub(crate) fn routes() -> Routes {
    Routes::new().api(RequiredPermission::AnyCredential, routes!(list_audit_entries))
}

/// Query of the audit log.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListAuditQuery {
    /// Namespace; if omitted, all entries, which requires `read` in `*`.
    namespace: Option<Name>,
    /// Cursor: `next_cursor` of the previous page.
    cursor: Option<i64>,
    /// Maximum number of items.
    #[param(default = 50, minimum = 1, maximum = 500)]
    limit: Option<u32>,
}

/// Page of audit entries.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuditEntryList {
    /// Newest first.
    entries: Vec<AuditEntry>,
    /// Cursor of the next page, if there may be one.
    next_cursor: Option<i64>,
}

/// List audit entries, newest first.
#[utoipa::path(get, path = "/v1/audit", tag = "servers", params(ListAuditQuery),
    responses((status = 200, body = AuditEntryList), (status = 400, body = Problem), (status = 403, body = Problem)))]
async fn list_audit_entries(
    State(app): State<App>,
    principal: Principal,
    QueryParams(query): QueryParams<ListAuditQuery>,
) -> Result<Json<AuditEntryList>, Problem> {
    principal.require(Permission::Read, query.namespace.as_ref())?;
    let limit = validate_number("limit", query.limit, PAGE)?;
    let entries = app.store.audit_entries(query.namespace.as_ref(), query.cursor, limit).await?;
    let next_cursor =
        (entries.len() == limit as usize).then(|| entries.last().map(|entry| entry.seq)).flatten();
    Ok(Json(AuditEntryList { entries, next_cursor }))
}
