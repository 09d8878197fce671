//! The path of publishers and members.

mod bureau;

use async_trait::async_trait;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure_core::port::{
    AsideKey, Committed, Event, Events, GroupKey, GroupLook, Join, NewEvent, Position, Published, ReadAsk,
    ShareCommit, StoreError, TakeShares, Taken, Tend, TopicKey, Trouble,
};
use tenure_core::{SessionId, Token};

use super::Http;
use super::caller::{bare, get, part, send};
use super::claims::within;

/// The most commits in one request.
const COMMITS_MAX: usize = 1024;

#[derive(Serialize)]
struct NewEvents<'a> {
    events: &'a [NewEvent],
}

#[derive(Deserialize)]
struct PublishedEvents {
    events: Vec<Published>,
}

#[derive(Deserialize)]
struct TakenShares {
    taken: Vec<Taken>,
}

#[derive(Serialize)]
struct Reading<'a> {
    after: &'a [(u32, Position)],
    limit: u32,
}

#[derive(Deserialize)]
struct EventList {
    events: Vec<Event>,
}

#[derive(Serialize)]
struct Commits<'a> {
    commits: &'a [ShareCommit],
}

#[derive(Deserialize)]
struct Heard {
    committed: Vec<Committed>,
}

#[derive(Deserialize)]
struct AsideKeys {
    keys: Vec<AsideKey>,
}

#[async_trait]
impl Events for Http {
    async fn publish(&self, topic: &TopicKey, events: &[NewEvent]) -> Result<Vec<Published>, StoreError> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let mut call = send(Method::POST, of(topic, "/events"), &NewEvents { events });
        call.again = events.iter().all(|event| event.idempotency_key.is_some());
        self.caller.call(&call).await?.read().map(|published: PublishedEvents| published.events)
    }

    async fn join_group(&self, join: &Join) -> Result<GroupLook, StoreError> {
        let answer =
            self.caller.call(&send(Method::PUT, member(&join.session, &join.group, ""), join)).await?;
        if answer.is_gone() {
            let message = format!(
                "session {} is not live, so it can join no group; open another",
                join.session.short()
            );
            return Err(StoreError::new(Trouble::Request, message));
        }
        answer.read()
    }

    async fn leave_group(&self, group: &GroupKey, session: &SessionId) -> Result<(), StoreError> {
        let answer = self.caller.call(&bare(Method::DELETE, member(session, group, ""))).await?;
        if answer.is_gone() { Ok(()) } else { answer.done() }
    }

    async fn look_group(&self, group: &GroupKey) -> Result<Option<GroupLook>, StoreError> {
        let answer = self.caller.call(&get(of_group(group, "/look"))).await?;
        if is_nowhere(&answer) { Ok(None) } else { answer.read().map(Some) }
    }

    async fn take_shares(&self, take: &TakeShares) -> Result<Vec<Taken>, StoreError> {
        if take.slots.is_empty() {
            return Ok(Vec::new());
        }
        let path = member(&take.session, &take.group, "/take");
        let answer = self.caller.call(&send(Method::POST, path, &json!({ "slots": take.slots }))).await?;
        if answer.is_gone() || is_nowhere(&answer) {
            return Ok(Vec::new());
        }
        answer.read().map(|taken: TakenShares| taken.taken)
    }

    async fn free_shares(&self, group: &GroupKey, shares: &[(u32, Token)]) -> Result<(), StoreError> {
        if shares.is_empty() {
            return Ok(());
        }
        let call = send(Method::POST, of_group(group, "/free"), &json!({ "shares": shares }));
        let answer = self.caller.call(&call).await?;
        if is_nowhere(&answer) { Ok(()) } else { answer.done() }
    }

    async fn read_events(&self, read: &ReadAsk) -> Result<Vec<Event>, StoreError> {
        let reading = Reading { after: &read.after, limit: read.limit };
        let answer = self.caller.call(&send(Method::POST, of(&read.topic, "/read"), &reading)).await?;
        answer.read().map(|list: EventList| list.events)
    }

    async fn commit_shares(&self, commits: &[ShareCommit]) -> Result<Vec<Committed>, StoreError> {
        let mut all = Vec::with_capacity(commits.len());
        let mut rest = commits;
        while let Some(first) = rest.first() {
            let same = rest.iter().take(COMMITS_MAX).take_while(|commit| commit.group == first.group).count();
            let (batch, later) = rest.split_at(same);
            let mut call = send(Method::POST, of_group(&first.group, "/commit"), &Commits { commits: batch });
            // How far something is read is the same when it is said twice; what failed would be counted twice.
            call.again = batch.iter().all(|commit| {
                commit.done.is_empty() && commit.set_aside.is_empty() && commit.settled.is_empty()
            });
            let answer = self.caller.call(&call).await?;
            if is_nowhere(&answer) {
                all.extend(batch.iter().map(|_| Committed::Stale));
            } else {
                let heard: Heard = answer.read()?;
                if heard.committed.len() != batch.len() {
                    let message = format!(
                        "the server answered {} of {} commits; is it of another version?",
                        heard.committed.len(),
                        batch.len()
                    );
                    return Err(StoreError::new(Trouble::Unfit, message));
                }
                all.extend(heard.committed);
            }
            rest = later;
        }
        Ok(all)
    }

    async fn aside_keys(&self, group: &GroupKey, slot: u32) -> Result<Vec<AsideKey>, StoreError> {
        let answer = self.caller.call(&get(of_group(group, &format!("/slots/{slot}/aside")))).await?;
        if is_nowhere(&answer) {
            return Ok(Vec::new());
        }
        answer.read().map(|keys: AsideKeys| keys.keys)
    }

    async fn doze_topic(&self, session: &SessionId, topic: &TopicKey) -> Result<(), StoreError> {
        let place =
            format!("/v1/sessions/{}/topics/{}/doze", part(session.as_str()), part(topic.name.as_str()));
        let answer = self.caller.call(&bare(Method::PUT, within(&place, &topic.namespace))).await?;
        if answer.is_gone() { Ok(()) } else { answer.done() }
    }

    /// The servers keep their own house.
    async fn prune_events(&self, _: &Tend) -> Result<(u64, bool), StoreError> {
        Ok((0, false))
    }
}

/// Whether there is no such group, or not even its topic.
fn is_nowhere(answer: &super::answer::Answer) -> bool {
    answer.says("no-such-group") || answer.says("no-such-topic")
}

/// The path of a topic.
fn of(key: &TopicKey, rest: &str) -> String {
    within(&format!("/v1/topics/{}{rest}", part(key.name.as_str())), &key.namespace)
}

/// The path of a group.
fn of_group(key: &GroupKey, rest: &str) -> String {
    of(&key.topic, &format!("/groups/{}{rest}", part(key.name.as_str())))
}

/// The path of a group's member.
fn member(session: &SessionId, group: &GroupKey, rest: &str) -> String {
    let (topic, name) = (part(group.topic.name.as_str()), part(group.name.as_str()));
    let path = format!("/v1/sessions/{}/topics/{topic}/groups/{name}{rest}", part(session.as_str()));
    within(&path, &group.topic.namespace)
}
