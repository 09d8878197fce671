//! Task operations of submitters, workers and the broker.

use async_trait::async_trait;
use tenure_core::port::{
    BrokerEndpoint, ClaimBatchRequest, ClaimBatchResponse, MaintenanceRequest, MaintenanceResponse, QueueKey,
    SettleResult, Settlement, StoreError, Submission, SubmitReceipt, TaskId, TaskStore,
};
use tenure_core::{SessionId, Token};

use super::super::error::unexpected_response;
use super::super::message::{Message, REQUIRE_SYNC_STANDBY};
use super::super::store::{int, json, number};
use super::super::value::Value;
use super::super::wire::PgRow;
use super::super::{PostgresStore, get};
use super::claim::duration;
use super::submit;

#[async_trait]
impl TaskStore for PostgresStore {
    async fn submit(&self, submission: &Submission) -> Result<Vec<SubmitReceipt>, StoreError> {
        let message = Message::fresh(&self.queries).plain(REQUIRE_SYNC_STANDBY, self.shared.sync_replication);
        let message = submit::submit_message(message, submission, true)?;
        submit::receipts(&self.shared.calls.run(message).await?)
    }

    async fn claim(&self, batch: &ClaimBatchRequest) -> Result<ClaimBatchResponse, StoreError> {
        self.claim_tasks(batch).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<SettleResult>, StoreError> {
        self.settle_tasks(settlements).await
    }

    async fn held_claims(&self, session: &SessionId) -> Result<Vec<(TaskId, Token)>, StoreError> {
        let rows = self.call("claim_list", &[session.as_str().into()]).await?;
        let claims = rows.iter().map(|row| {
            let (id, token) = (get::<i64>(row, "id")?, get::<i64>(row, "token")?);
            Ok((TaskId(number(id, "a task id")?), Token::from_u64(number(token, "a token")?)))
        });
        claims.collect()
    }

    async fn register_queue_waiter(
        &self,
        _session: &SessionId,
        queues: &[QueueKey],
    ) -> Result<(), StoreError> {
        self.call("queue_waiter_register", &[json(queues)?]).await.map(drop)
    }

    async fn maintain(&self, request: &MaintenanceRequest) -> Result<MaintenanceResponse, StoreError> {
        let values = [
            request.session.as_str().into(),
            int(request.token.as_u64()),
            request.clock_ms.map_or(Value::Null, Value::Int),
            request.limit.into(),
        ];
        let message = Message::fresh(&self.queries).then("maintain_queues", &values)?;
        let rows = self.shared.calls.run(message).await?;
        let row = rows.first().ok_or_else(|| unexpected_response("a maintenance result", "no row"))?;
        let count = |column| number(get::<i64>(row, column)?, column);
        Ok(MaintenanceResponse {
            is_leader: get(row, "is_leader")?,
            recovered: count("recovered")?,
            dead: count("dead")?,
            promoted: count("promoted")?,
            pruned: count("pruned")?,
            released: count("released")?,
            has_more: get(row, "has_more")?,
            store_now_at_ms: get(row, "store_now_at_ms")?,
            next_in: duration(get(row, "next_in_ms")?)?,
        })
    }

    async fn publish_broker_endpoint(&self, endpoint: &BrokerEndpoint) -> Result<bool, StoreError> {
        let secret = hex(&endpoint.secret);
        let values = [
            endpoint.session.as_str().into(),
            int(endpoint.token.as_u64()),
            endpoint.address.as_str().into(),
            secret.as_str().into(),
        ];
        Ok(!self.call("broker_endpoint_put", &values).await?.is_empty())
    }

    async fn broker_endpoint(&self) -> Result<Option<BrokerEndpoint>, StoreError> {
        let rows = self.call("broker_endpoint_get", &[]).await?;
        let endpoint = |row: &PgRow| {
            Ok(BrokerEndpoint {
                token: Token::from_u64(number(get::<i64>(row, "token")?, "a token")?),
                session: SessionId::from_stored(get::<&str>(row, "session")?),
                address: get(row, "address")?,
                secret: unhex(get(row, "secret")?)?,
            })
        };
        rows.first().map(endpoint).transpose()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(in super::super) fn unhex(text: &str) -> Result<Vec<u8>, StoreError> {
    let pair = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).map_err(|error| unexpected_response("bytes", error))?;
        u8::from_str_radix(pair, 16).map_err(|error| unexpected_response("bytes", error))
    };
    text.as_bytes().chunks(2).map(pair).collect()
}
