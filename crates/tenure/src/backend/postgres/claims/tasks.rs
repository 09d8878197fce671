//! The path of workers.

use async_trait::async_trait;
use tenure_core::port::{
    ClaimAnswer, ClaimAsk, Post, QueueKey, Settled, Settlement, StoreError, Submission, Submitted, TaskId,
    Tasks, Tend, Tended,
};
use tenure_core::{SessionId, Token};

use super::super::error::garbled;
use super::super::message::{Message, STRICT};
use super::super::store::{int, json, number};
use super::super::value::Value;
use super::super::wire::PgRow;
use super::super::{Postgres, get};
use super::submit;
use super::take::duration;

#[async_trait]
impl Tasks for Postgres {
    async fn submit(&self, submission: &Submission) -> Result<Vec<Submitted>, StoreError> {
        let message = Message::fresh(&self.queries).plain(STRICT, self.shared.strict);
        let message = submit::written(message, submission, true)?;
        submit::read(&self.shared.calls.run(message).await?)
    }

    async fn claim(&self, ask: &ClaimAsk) -> Result<ClaimAnswer, StoreError> {
        self.take_tasks(ask).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        self.settle_tasks(settlements).await
    }

    async fn held(&self, session: &SessionId) -> Result<Vec<(TaskId, Token)>, StoreError> {
        let rows = self.call("task_held", &[session.as_str().into()]).await?;
        let held = rows.iter().map(|row| {
            let (id, token) = (get::<i64>(row, "id")?, get::<i64>(row, "token")?);
            Ok((TaskId(number(id, "a task's number")?), Token::from_u64(number(token, "a token")?)))
        });
        held.collect()
    }

    async fn doze(&self, _session: &SessionId, queues: &[QueueKey]) -> Result<(), StoreError> {
        self.call("doze", &[json(queues)?]).await.map(drop)
    }

    async fn tend(&self, tend: &Tend) -> Result<Tended, StoreError> {
        let values = [
            tend.session.as_str().into(),
            int(tend.token.as_u64()),
            tend.clock_ms.map_or(Value::Null, Value::Int),
            tend.limit.into(),
        ];
        let message = Message::fresh(&self.queries).then("keeper_tend", &values)?;
        let rows = self.shared.calls.run(message).await?;
        let row = rows.first().ok_or_else(|| garbled("what was tended", "no row"))?;
        let count = |column| number(get::<i64>(row, column)?, column);
        Ok(Tended {
            leads: get(row, "leads")?,
            returned: count("returned")?,
            dead: count("dead")?,
            due: count("due")?,
            forgotten: count("forgotten")?,
            freed: count("freed")?,
            more: get(row, "more")?,
            store_ms: get(row, "store_ms")?,
            next_in: duration(get(row, "next_ms")?)?,
        })
    }

    async fn put_post(&self, post: &Post) -> Result<bool, StoreError> {
        let secret = hex(&post.secret);
        let values = [
            post.session.as_str().into(),
            int(post.token.as_u64()),
            post.address.as_str().into(),
            secret.as_str().into(),
        ];
        Ok(!self.call("post_put", &values).await?.is_empty())
    }

    async fn post(&self) -> Result<Option<Post>, StoreError> {
        let rows = self.call("post_show", &[]).await?;
        let post = |row: &PgRow| {
            Ok(Post {
                token: Token::from_u64(number(get::<i64>(row, "token")?, "a token")?),
                session: SessionId::from_stored(get::<&str>(row, "session")?),
                address: get(row, "address")?,
                secret: unhex(get(row, "secret")?)?,
            })
        };
        rows.first().map(post).transpose()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(in super::super) fn unhex(text: &str) -> Result<Vec<u8>, StoreError> {
    let pair = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).map_err(|error| garbled("bytes", error))?;
        u8::from_str_radix(pair, 16).map_err(|error| garbled("bytes", error))
    };
    text.as_bytes().chunks(2).map(pair).collect()
}
