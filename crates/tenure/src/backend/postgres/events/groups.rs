//! Groups: joining, looking, taking and giving back.

use std::collections::BTreeMap;

use tenure_core::event::{check_join, check_take, session_is_gone};
use tenure_core::port::{AsideKey, Begin, GroupKey, GroupLook, Join, StoreError, TakeShares, Taken};
use tenure_core::{SessionId, Token};

use super::super::claims::array;
use super::super::message::{Message, STRICT};
use super::super::store::{int, number};
use super::super::value::Value;
use super::super::{Postgres, from_json, get, get_json};
use super::group;

impl Postgres {
    pub(super) async fn join(&self, join: &Join) -> Result<GroupLook, StoreError> {
        check_join(join)?;
        let [namespace, topic, name] = group(&join.group);
        let [from, value] = begin(join.from);
        let (session, member) = (join.session.as_str().into(), join.member.as_str().into());
        let message = Message::fresh(&self.queries)
            .then("group_join", &[namespace, topic, name, session, member, from, value])?
            .then("group_look", &group(&join.group))?;
        let mut answers = self.shared.calls.run_all(message).await?;
        let (look, joined) = (answers.pop().unwrap_or_default(), answers.pop().unwrap_or_default());
        let joined = joined.first().map(|row| get::<Option<i32>>(row, "id")).transpose()?.flatten();
        match (joined, look.first()) {
            (Some(_), Some(row)) => from_json(row, "look"),
            _ => Err(session_is_gone(&join.session, &join.group)),
        }
    }

    pub(super) async fn leave(&self, key: &GroupKey, session: &SessionId) -> Result<(), StoreError> {
        let [namespace, topic, name] = group(key);
        self.call("group_leave", &[namespace, topic, name, session.as_str().into()]).await.map(drop)
    }

    pub(super) async fn look_at(&self, key: &GroupKey) -> Result<Option<GroupLook>, StoreError> {
        let rows = self.call("group_look", &group(key)).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        get::<Option<&str>>(row, "look")?.map(|_| from_json(row, "look")).transpose()
    }

    pub(super) async fn take_slots(&self, take: &TakeShares) -> Result<Vec<Taken>, StoreError> {
        check_take(take)?;
        let [namespace, topic, name] = group(&take.group);
        let slots = array(take.slots.iter().map(|(slot, _)| u64::from(*slot)));
        let tokens = array(take.slots.iter().map(|(_, token)| token.as_u64()));
        let session = take.session.as_str().into();
        let values = [namespace, topic, name, session, slots.as_str().into(), tokens.as_str().into()];
        let message = Message::fresh(&self.queries).plain(STRICT, self.shared.strict);
        let rows = self.shared.calls.run(message.then("share_take", &values)?).await?;
        let mut taken = Vec::with_capacity(rows.len());
        for row in &rows {
            taken.push(Taken {
                slot: number(get::<i32>(row, "slot")?, "a slot")?,
                token: Token::from_u64(number(get::<i64>(row, "token")?, "a token")?),
                position: number(get::<i64>(row, "position")?, "a position")?,
                done: get_json(row, "done")?,
                aside: get_json(row, "aside")?,
            });
        }
        // In the order in which they were wished for.
        let place = |slot: u32| take.slots.iter().position(|(wanted, _)| *wanted == slot);
        taken.sort_by_key(|taken| place(taken.slot));
        Ok(taken)
    }

    pub(super) async fn free_slots(&self, key: &GroupKey, shares: &[(u32, Token)]) -> Result<(), StoreError> {
        let [namespace, topic, name] = group(key);
        let slots = array(shares.iter().map(|(slot, _)| u64::from(*slot)));
        let tokens = array(shares.iter().map(|(_, token)| token.as_u64()));
        let values = [namespace, topic, name, slots.as_str().into(), tokens.as_str().into()];
        let message = Message::fresh(&self.queries).then("share_free", &values)?;
        self.shared.calls.run(message).await.map(drop)
    }

    pub(super) async fn keys_aside(&self, key: &GroupKey, slot: u32) -> Result<Vec<AsideKey>, StoreError> {
        let [namespace, topic, name] = group(key);
        let rows = self.call("aside_keys", &[namespace, topic, name, slot.into()]).await?;
        rows.first().map_or_else(|| Ok(Vec::new()), |row| get_json(row, "keys"))
    }

    pub(super) async fn keys_aside_in(
        &self,
        key: &GroupKey,
        slots: &[u32],
    ) -> Result<BTreeMap<u32, Vec<AsideKey>>, StoreError> {
        let [namespace, topic, name] = group(key);
        let slots = array(slots.iter().map(|slot| u64::from(*slot)));
        let rows = self.call("aside_keys_in", &[namespace, topic, name, slots.as_str().into()]).await?;
        let keys = |row| Ok((number(get::<i32>(row, "slot")?, "a slot")?, get_json(row, "keys")?));
        rows.iter().map(keys).collect()
    }
}

/// Where a group begins or is put: a word, and a number to it.
pub(super) fn begin(begin: Begin) -> [Value<'static>; 2] {
    match begin {
        Begin::Earliest => ["earliest".into(), Value::Int(0)],
        Begin::Latest => ["latest".into(), Value::Int(0)],
        Begin::Position(position) => ["position".into(), int(position)],
        Begin::Time(at_ms) => ["time".into(), Value::Int(at_ms)],
    }
}
