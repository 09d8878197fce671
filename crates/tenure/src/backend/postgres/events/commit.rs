//! What members say about their shares, in the handler's own transaction or one of ours.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::PgConnection;
use tenure_core::claim::{clip, span_ms};
use tenure_core::event::check_commit;
use tenure_core::port::{Aside, Committed, EventId, ShareCommit, StoreError};

use super::super::claims::{array, texts};
use super::super::error::{explain, garbled};
use super::super::message::{Message, STRICT};
use super::super::store::int;
use super::super::value::Value;
use super::super::wire::PgRow;
use super::super::{Postgres, QUERIES, get};
use super::group as key_of;
use super::publish::numbers;

/// Says something about a share in the transaction on this connection: it counts if that commits, together with all else in it. After
/// [`Committed::Stale`] roll back: what the transaction did is no longer this member's to do.
///
/// The share is locked from here on, and nobody takes it before the transaction is over. The rest of the transaction is bounded by
/// the lease, as after a [`guard`](super::guard): a member that is stopped in the middle must not block the next one for longer.
pub async fn commit_share(
    conn: &mut PgConnection,
    commit: &ShareCommit,
    lease: Duration,
) -> Result<Committed, StoreError> {
    let committed = commit_shares(conn, std::slice::from_ref(commit), lease).await?;
    committed.into_iter().next().ok_or_else(|| garbled("a commit", "no answer"))
}

/// The same for several shares, one result for each.
pub async fn commit_shares(
    conn: &mut PgConnection,
    commits: &[ShareCommit],
    lease: Duration,
) -> Result<Vec<Committed>, StoreError> {
    // Not less than a millisecond: nought means "no limit".
    let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX).max(1);
    let message = Message::for_user(&QUERIES).then("lease_bound", &[Value::Int(lease_ms)])?;
    let (message, said) = said(message, commits)?;
    let answers = message.run_on(conn).await.map_err(|error| explain(&error, "this connection"))?;
    said.read(&answers)
}

impl Postgres {
    pub(super) async fn commit_slots(&self, commits: &[ShareCommit]) -> Result<Vec<Committed>, StoreError> {
        if commits.is_empty() {
            return Ok(Vec::new());
        }
        let message = Message::fresh(&self.queries).plain(STRICT, self.shared.strict);
        let (message, said) = said(message, commits)?;
        said.read(&self.shared.events.run_all(message).await?)
    }
}

/// How commits were said, and so how the answers come.
enum Said {
    /// One by one, in the order of their slots: the places of those.
    Singly(Vec<usize>),
    /// So many in one statement.
    Together(usize),
}

impl Said {
    /// What came of it, in the order in which it was given.
    fn read(self, answers: &[Vec<PgRow>]) -> Result<Vec<Committed>, StoreError> {
        let committed = |row: &PgRow| Ok(if get(row, "held")? { Committed::Yes } else { Committed::Stale });
        match self {
            Said::Singly(order) => answered(answers, order),
            Said::Together(count) => {
                let rows = answers.last().map(Vec::as_slice).unwrap_or_default();
                if rows.len() != count {
                    return Err(garbled("commits", format!("{} answers", rows.len())));
                }
                rows.iter().map(committed).collect()
            }
        }
    }
}

/// All that is said. Mostly how far the shares of one group are read, and nothing else: then in one statement.
fn said<'q>(message: Message<'q>, commits: &[ShareCommit]) -> Result<(Message<'q>, Said), StoreError> {
    let positions: Option<Vec<u64>> = commits.iter().map(only_position).collect();
    let together = commits.len() > 1 && commits.iter().all(|commit| commit.group == commits[0].group);
    let slots: BTreeSet<u32> = commits.iter().map(|commit| commit.slot).collect();
    let Some(positions) = positions.filter(|_| together && slots.len() == commits.len()) else {
        let (message, order) = in_order(message, commits)?;
        return Ok((message, Said::Singly(order)));
    };
    commits.iter().try_for_each(check_commit)?;
    let [namespace, topic, name] = key_of(&commits[0].group);
    let slots = array(commits.iter().map(|commit| commit.slot.into()));
    let tokens = array(commits.iter().map(|commit| commit.token.as_u64()));
    let positions = array(positions.into_iter());
    let values =
        [namespace, topic, name, slots.as_str().into(), tokens.as_str().into(), positions.as_str().into()];
    Ok((message.then("share_commit_positions", &values)?, Said::Together(commits.len())))
}

/// How far it is read, if nothing else is said.
fn only_position(commit: &ShareCommit) -> Option<u64> {
    let nothing = commit.done.is_empty() && commit.set_aside.is_empty() && commit.settled.is_empty();
    commit.position.filter(|_| nothing)
}

/// All that is said, in one order, whatever the order it is given in: two who commit at once must not wait for each other in a
/// circle. And that order, by place.
fn in_order<'q>(
    mut message: Message<'q>,
    commits: &[ShareCommit],
) -> Result<(Message<'q>, Vec<usize>), StoreError> {
    let mut order: Vec<usize> = (0..commits.len()).collect();
    order.sort_by_key(|place| (&commits[*place].group, commits[*place].slot));
    for place in &order {
        message = written(message, &commits[*place])?;
    }
    Ok((message, order))
}

/// What came of it, in the order in which it was given.
fn answered(answers: &[Vec<PgRow>], order: Vec<usize>) -> Result<Vec<Committed>, StoreError> {
    // What comes before them in the message are settings.
    let answers = answers.get(answers.len().saturating_sub(order.len())..).unwrap_or_default();
    if answers.len() != order.len() {
        return Err(garbled("commits", format!("{} answers", answers.len())));
    }
    let mut committed = vec![Committed::Stale; order.len()];
    for (place, rows) in order.into_iter().zip(answers) {
        committed[place] = read(rows)?;
    }
    Ok(committed)
}

fn written<'q>(message: Message<'q>, commit: &ShareCommit) -> Result<Message<'q>, StoreError> {
    check_commit(commit)?;
    let ids = |ids: &mut dyn Iterator<Item = EventId>| {
        let ids: Vec<u64> = ids.map(|id| id.0).collect();
        (!ids.is_empty()).then(|| array(ids.into_iter()))
    };
    let done = ids(&mut commit.done.iter().map(|(event, _)| *event));
    let done_at = done.as_ref().map(|_| array(commit.done.iter().map(|(_, position)| *position)));
    let events = ids(&mut commit.set_aside.iter().map(|aside| aside.event));
    let positions = events.as_ref().map(|_| array(commit.set_aside.iter().map(|aside| aside.position)));
    let aside = How::of(commit.set_aside.iter().map(|aside| &aside.how));
    let settled = ids(&mut commit.settled.iter().map(|(event, _)| *event));
    let how = How::of(commit.settled.iter().map(|(_, how)| how));
    let [namespace, topic, name] = key_of(&commit.group);
    let values = [
        namespace,
        topic,
        name,
        commit.slot.into(),
        int(commit.token.as_u64()),
        commit.position.map_or(Value::Null, int),
        done.as_deref().into(),
        done_at.as_deref().into(),
        events.as_deref().into(),
        positions.as_deref().into(),
        events.as_ref().map(|_| aside.attempts.as_str()).into(),
        events.as_ref().map(|_| aside.after_ms.as_str()).into(),
        events.as_ref().map(|_| aside.errors.as_str()).into(),
        settled.as_deref().into(),
        settled.as_ref().map(|_| how.attempts.as_str()).into(),
        settled.as_ref().map(|_| how.after_ms.as_str()).into(),
        settled.as_ref().map(|_| how.errors.as_str()).into(),
    ];
    message.then("share_commit", &values)
}

fn read(rows: &[PgRow]) -> Result<Committed, StoreError> {
    let row = rows.first().ok_or_else(|| garbled("a commit", "no row"))?;
    Ok(if get(row, "held")? { Committed::Yes } else { Committed::Stale })
}

/// How events stand, as `tenure.commit_share` reads it.
struct How {
    attempts: String,
    after_ms: String,
    errors: String,
}

impl How {
    fn of<'a>(all: impl Iterator<Item = &'a Aside>) -> How {
        let (mut attempts, mut after_ms, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        for how in all {
            let (tried, after, error) = match how {
                Aside::Done => (None, None, None),
                Aside::Behind => (Some(0), Some(0), None),
                Aside::Retry { attempts, after_ms, error } => {
                    let after_ms = span_ms(Duration::from_millis(*after_ms));
                    (Some(*attempts), i64::try_from(after_ms).ok(), Some(clip(error)))
                }
                Aside::Dead { attempts, error } => (Some(*attempts), None, Some(clip(error))),
            };
            attempts.push(tried.map(i64::from));
            after_ms.push(after);
            errors.push(error);
        }
        How {
            attempts: numbers(attempts.into_iter()),
            after_ms: numbers(after_ms.into_iter()),
            errors: texts(errors.iter().map(Option::as_deref)),
        }
    }
}
