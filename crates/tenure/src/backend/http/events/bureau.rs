//! Topics and groups, for people.

use async_trait::async_trait;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tenure_core::Name;
use tenure_core::port::{
    AsideFilter, AsideView, Begin, Bureau, DeadOrder, Event, EventId, GroupKey, GroupSettings, GroupView,
    Moved, Pause, Push, SlotEnds, StoreError, TopicKey, TopicSettings, TopicView,
};

use super::super::Http;
use super::super::answer::Answer;
use super::super::caller::{bare, get, send};
use super::super::desk::{Changed, also};
use super::{is_nowhere, of, of_group};

/// How many topics are asked for at once.
const TOPICS_PAGE: u32 = 1000;
/// How many groups.
const GROUPS_PAGE: u32 = 200;
/// How many events that are aside.
const ASIDE_PAGE: u32 = 1000;
/// How many events are named at once.
const IDS_MAX: usize = 1000;

#[derive(Deserialize)]
struct Topics {
    topics: Vec<TopicView>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Ends {
    slots: Vec<SlotEnds>,
}

#[derive(Deserialize)]
struct Groups {
    groups: Vec<GroupView>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Reset {
    slots: Vec<Moved>,
}

#[derive(Deserialize)]
struct Asides {
    events: Vec<AsideView>,
    next: Option<EventId>,
}

#[derive(Deserialize)]
struct Ordered {
    events: Vec<EventId>,
}

#[async_trait]
impl Bureau for Http {
    async fn topics(&self, namespace: Option<&Name>) -> Result<Vec<TopicView>, StoreError> {
        let (mut all, mut after) = (Vec::new(), String::new());
        let only = also("namespace", namespace.map(Name::as_str));
        loop {
            let path = format!("/v1/topics?limit={TOPICS_PAGE}{only}{after}");
            let page: Topics = self.caller.call(&get(path)).await?.read()?;
            all.extend(page.topics);
            match page.next {
                Some(next) => after = also("after", Some(&next)),
                None => return Ok(all),
            }
        }
    }

    async fn topic(&self, key: &TopicKey) -> Result<Option<TopicView>, StoreError> {
        let answer = self.caller.call(&get(of(key, ""))).await?;
        if is_nowhere(&answer) { Ok(None) } else { answer.read().map(Some) }
    }

    async fn set_topic(&self, key: &TopicKey, settings: &TopicSettings) -> Result<bool, StoreError> {
        made(self.caller.call(&send(Method::PUT, of(key, ""), settings)).await?)
    }

    async fn delete_topic(&self, key: &TopicKey) -> Result<bool, StoreError> {
        deleted(self.caller.call(&bare(Method::DELETE, of(key, ""))).await?)
    }

    async fn slot_ends(&self, key: &TopicKey) -> Result<Option<Vec<SlotEnds>>, StoreError> {
        let answer = self.caller.call(&get(of(key, "/ends"))).await?;
        if is_nowhere(&answer) {
            return Ok(None);
        }
        answer.read().map(|ends: Ends| Some(ends.slots))
    }

    async fn event(&self, topic: &TopicKey, id: EventId) -> Result<Option<Event>, StoreError> {
        let answer = self.caller.call(&get(of(topic, &format!("/events/{id}")))).await?;
        if is_nowhere(&answer) || answer.says("no-such-event") {
            return Ok(None);
        }
        answer.read().map(Some)
    }

    async fn groups(&self, namespace: Option<&Name>) -> Result<Vec<GroupView>, StoreError> {
        let (mut all, mut after) = (Vec::new(), String::new());
        let only = also("namespace", namespace.map(Name::as_str));
        loop {
            let path = format!("/v1/groups?limit={GROUPS_PAGE}{only}{after}");
            let page: Groups = self.caller.call(&get(path)).await?.read()?;
            all.extend(page.groups);
            match page.next {
                Some(next) => after = also("after", Some(&next)),
                None => return Ok(all),
            }
        }
    }

    async fn group(&self, key: &GroupKey) -> Result<Option<GroupView>, StoreError> {
        let answer = self.caller.call(&get(of_group(key, ""))).await?;
        if is_nowhere(&answer) { Ok(None) } else { answer.read().map(Some) }
    }

    async fn set_group(
        &self,
        key: &GroupKey,
        settings: &GroupSettings,
        from: Begin,
    ) -> Result<bool, StoreError> {
        let GroupSettings { max_attempts, backoff } = settings;
        let wish = json!({ "max_attempts": max_attempts, "backoff": backoff, "from": from });
        made(self.caller.call(&send(Method::PUT, of_group(key, ""), &wish)).await?)
    }

    async fn delete_group(&self, key: &GroupKey) -> Result<bool, StoreError> {
        deleted(self.caller.call(&bare(Method::DELETE, of_group(key, ""))).await?)
    }

    async fn set_group_paused(&self, key: &GroupKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        let mut call = match pause {
            Some(pause) => send(Method::POST, of_group(key, "/pause"), pause),
            None => bare(Method::POST, of_group(key, "/resume")),
        };
        // Whoever paused it with a try whose answer was lost would be told that it was paused already.
        call.again = false;
        self.caller.call(&call).await?.read().map(|answer: Changed| answer.changed)
    }

    async fn reset_group(
        &self,
        key: &GroupKey,
        to: Begin,
        slot: Option<u32>,
        dry_run: bool,
    ) -> Result<Vec<Moved>, StoreError> {
        let wish = json!({ "to": to, "slot": slot, "dry_run": dry_run });
        let mut call = send(Method::POST, of_group(key, "/reset"), &wish);
        // The second would find it where the first has put it, and take the shares away once more.
        call.again = dry_run;
        self.caller.call(&call).await?.read().map(|reset: Reset| reset.slots)
    }

    async fn aside(&self, filter: &AsideFilter) -> Result<Vec<AsideView>, StoreError> {
        let only = [
            if filter.dead { "&dead=true".into() } else { String::new() },
            filter.slot.map(|slot| format!("&slot={slot}")).unwrap_or_default(),
            also("key", filter.key.as_deref()),
        ];
        let only = only.concat();
        let (mut all, mut after) = (Vec::new(), filter.after);
        let wanted = filter.limit as usize;
        while all.len() < wanted {
            let limit = u32::try_from(wanted - all.len()).unwrap_or(ASIDE_PAGE).min(ASIDE_PAGE);
            let from = after.map(|id| format!("&after={id}")).unwrap_or_default();
            let path = format!("{}&limit={limit}{only}{from}", of_group(&filter.group, "/aside"));
            let page: Asides = self.caller.call(&get(path)).await?.read()?;
            all.extend(page.events);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        if filter.key.is_some() {
            // Pages go by numbers.
            all.sort_by_key(|aside| (aside.event.position, aside.event.id));
        }
        Ok(all)
    }

    async fn order_dead(
        &self,
        group: &GroupKey,
        events: &[EventId],
        order: DeadOrder,
    ) -> Result<Vec<EventId>, StoreError> {
        let word = match order {
            DeadOrder::Replay => "replay",
            DeadOrder::Drop => "drop",
        };
        if events.is_empty() {
            // Nothing is asked for; but of a group that is not there.
            let answer = self.caller.call(&get(of_group(group, "/look"))).await?;
            return answer.read().map(|_: IgnoredAny| Vec::new());
        }
        let mut all = Vec::new();
        for ids in events.chunks(IDS_MAX) {
            let path = of_group(group, &format!("/dead/{word}"));
            let mut call = send(Method::POST, path, &json!({ "events": ids }));
            // What a try whose answer was lost did would not be told.
            call.again = false;
            let ordered: Ordered = self.caller.call(&call).await?.read()?;
            all.extend(ordered.events);
        }
        Ok(all)
    }

    async fn set_push(&self, key: &GroupKey, push: Option<&Push>) -> Result<(), StoreError> {
        let path = of_group(key, "/push");
        match push {
            Some(push) => {
                // Without a secret, the one that there is stays.
                let secret = (!push.secret.is_empty()).then_some(&push.secret);
                let wish = json!({"url": push.url, "secret": secret, "timeout_ms": push.timeout_ms});
                let answer = self.caller.call(&send(Method::PUT, path, &wish)).await?;
                answer.read().map(|_: IgnoredAny| ())
            }
            None => self.caller.call(&bare(Method::DELETE, path)).await?.done(),
        }
    }

    /// The servers push by themselves, and show their secrets to nobody.
    async fn pushes(&self) -> Result<Vec<(GroupKey, Push)>, StoreError> {
        Ok(Vec::new())
    }
}

/// Whether it is new.
fn made(answer: Answer) -> Result<bool, StoreError> {
    let new = answer.status == StatusCode::CREATED;
    answer.read().map(|_: IgnoredAny| new)
}

/// Whether it was there.
fn deleted(answer: Answer) -> Result<bool, StoreError> {
    // Of a second try it is known that it is gone, not since when.
    if is_nowhere(&answer) { Ok(answer.tries > 1) } else { answer.done().map(|()| true) }
}
