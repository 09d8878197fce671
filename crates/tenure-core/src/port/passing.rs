//! For stores that stand before another one.

/// Hands a macro of the caller every call of the ports that are not about elections, one port at a time:
///
/// ```text
/// impl PORT {
///     [CALL -> TYPE]                      what a store says of itself, without being asked anything
///     CALL(NAME: TYPE, …) -> TYPE;        what it is asked, and may fail
/// }
/// ```
///
/// A store that passes these on to another says in that macro how, once; a call that is added to a port is added here, and passed on by all.
#[macro_export]
macro_rules! pass_on_work {
    ($with:ident) => {
        $with! {
            impl $crate::port::Office {
                credentials() -> Vec<$crate::port::Credential>;
                put_credential(credential: &$crate::port::Credential) -> ();
                record(deed: &$crate::port::Deed) -> ();
                deeds(namespace: Option<&$crate::Name>, before: Option<i64>, limit: u32) -> Vec<$crate::port::Deed>;
                forget(before_ms: i64) -> ();
            }
        }
        $with! {
            impl $crate::port::Tasks {
                [routes_claims -> bool]
                [keeps_work -> bool]
                submit(submission: &$crate::port::Submission) -> Vec<$crate::port::Submitted>;
                claim(ask: &$crate::port::ClaimAsk) -> $crate::port::ClaimAnswer;
                settle(settlements: &[$crate::port::Settlement]) -> Vec<$crate::port::Settled>;
                held(session: &$crate::SessionId) -> Vec<($crate::port::TaskId, $crate::Token)>;
                doze(session: &$crate::SessionId, queues: &[$crate::port::QueueKey]) -> ();
                tend(tend: &$crate::port::Tend) -> $crate::port::Tended;
                put_post(post: &$crate::port::Post) -> bool;
                post() -> Option<$crate::port::Post>;
            }
        }
        $with! {
            impl $crate::port::Desk {
                queues(namespace: Option<&$crate::Name>) -> Vec<$crate::port::QueueView>;
                queue(key: &$crate::port::QueueKey) -> Option<$crate::port::QueueView>;
                set_queue(key: &$crate::port::QueueKey, settings: &$crate::port::QueueSettings) -> ();
                set_queue_paused(namespace: &$crate::Name, queue: Option<&$crate::Name>, pause: Option<&$crate::port::Pause>) -> bool;
                tasks(filter: &$crate::port::TaskFilter) -> Vec<$crate::port::TaskView>;
                task(namespace: &$crate::Name, id: $crate::port::TaskId) -> Option<$crate::port::TaskView>;
                order(namespace: &$crate::Name, tasks: &[$crate::port::TaskId], order: $crate::port::Order) -> Vec<$crate::port::TaskId>;
                why(namespace: &$crate::Name, id: $crate::port::TaskId) -> Option<Vec<$crate::port::Why>>;
                finished(key: &$crate::port::QueueKey, limit: u32) -> Vec<$crate::port::Finished>;
                register(namespace: &$crate::Name, worker: &$crate::port::NewWorker) -> ();
                workers(namespace: Option<&$crate::Name>) -> Vec<$crate::port::WorkerView>;
                approve(namespace: &$crate::Name, worker: &str, by: Option<&str>) -> bool;
            }
        }
        $with! {
            impl $crate::port::Pools {
                pools(namespace: Option<&$crate::Name>) -> Vec<$crate::port::PoolView>;
                pool(key: &$crate::port::PoolKey) -> Option<$crate::port::PoolView>;
                set_pool(key: &$crate::port::PoolKey, settings: &$crate::port::PoolSettings) -> ();
                add_resources(key: &$crate::port::PoolKey, resources: &[$crate::port::NewResource]) -> ();
                remove_resource(key: &$crate::port::PoolKey, name: &$crate::Name) -> bool;
                request(key: &$crate::port::PoolKey, request: &$crate::port::NewRequest) -> $crate::port::RequestView;
                match_pool(ask: &$crate::port::PoolMatch) -> Result<Vec<$crate::port::RequestView>, $crate::port::ClaimRefusal>;
                pool_request(namespace: &$crate::Name, id: $crate::port::RequestId) -> Option<$crate::port::RequestView>;
                handle_request(
                    namespace: &$crate::Name, id: $crate::port::RequestId, owner: &str, token: Option<$crate::Token>, handle: $crate::port::Handle
                ) -> bool;
            }
        }
        $with! {
            impl $crate::port::Events {
                publish(topic: &$crate::port::TopicKey, events: &[$crate::port::NewEvent]) -> Vec<$crate::port::Published>;
                join_group(join: &$crate::port::Join) -> $crate::port::GroupLook;
                leave_group(group: &$crate::port::GroupKey, session: &$crate::SessionId) -> ();
                look_group(group: &$crate::port::GroupKey) -> Option<$crate::port::GroupLook>;
                take_shares(take: &$crate::port::TakeShares) -> Vec<$crate::port::Taken>;
                free_shares(group: &$crate::port::GroupKey, shares: &[(u32, $crate::Token)]) -> ();
                read_events(read: &$crate::port::ReadAsk) -> Vec<$crate::port::Event>;
                commit_shares(commits: &[$crate::port::ShareCommit]) -> Vec<$crate::port::Committed>;
                aside_keys(group: &$crate::port::GroupKey, slot: u32) -> Vec<$crate::port::AsideKey>;
                aside_keys_in(group: &$crate::port::GroupKey, slots: &[u32]) -> ::std::collections::BTreeMap<u32, Vec<$crate::port::AsideKey>>;
                doze_topic(session: &$crate::SessionId, topic: &$crate::port::TopicKey) -> ();
                prune_events(tend: &$crate::port::Tend) -> (u64, bool);
            }
        }
        $with! {
            impl $crate::port::Bureau {
                topics(namespace: Option<&$crate::Name>) -> Vec<$crate::port::TopicView>;
                topic_names(namespace: Option<&$crate::Name>) -> Vec<$crate::port::TopicKey>;
                topic(key: &$crate::port::TopicKey) -> Option<$crate::port::TopicView>;
                set_topic(key: &$crate::port::TopicKey, settings: &$crate::port::TopicSettings) -> bool;
                delete_topic(key: &$crate::port::TopicKey) -> bool;
                slot_ends(key: &$crate::port::TopicKey) -> Option<Vec<$crate::port::SlotEnds>>;
                event(topic: &$crate::port::TopicKey, id: $crate::port::EventId) -> Option<$crate::port::Event>;
                groups(namespace: Option<&$crate::Name>) -> Vec<$crate::port::GroupView>;
                group_names(namespace: Option<&$crate::Name>) -> Vec<$crate::port::GroupKey>;
                group(key: &$crate::port::GroupKey) -> Option<$crate::port::GroupView>;
                set_group(key: &$crate::port::GroupKey, settings: &$crate::port::GroupSettings, from: $crate::port::Begin) -> bool;
                delete_group(key: &$crate::port::GroupKey) -> bool;
                set_group_paused(key: &$crate::port::GroupKey, pause: Option<&$crate::port::Pause>) -> bool;
                reset_group(key: &$crate::port::GroupKey, to: $crate::port::Begin, slot: Option<u32>, dry_run: bool) -> Vec<$crate::port::Moved>;
                aside(filter: &$crate::port::AsideFilter) -> Vec<$crate::port::AsideView>;
                order_dead(group: &$crate::port::GroupKey, events: &[$crate::port::EventId], order: $crate::port::DeadOrder) -> Vec<$crate::port::EventId>;
                set_push(key: &$crate::port::GroupKey, push: Option<&$crate::port::Push>) -> ();
                pushes() -> Vec<($crate::port::GroupKey, $crate::port::Push)>;
            }
        }
        $with! {
            impl $crate::port::Scheduling {
                [fires_abreast -> usize]
                due(limit: u32) -> $crate::port::DueLook;
                fire(fire: &$crate::port::Fire) -> Option<Vec<$crate::port::Fired>>;
                prune_ticks(session: &$crate::SessionId, token: $crate::Token, limit: u32) -> (u64, bool);
            }
        }
        $with! {
            impl $crate::port::Calendar {
                schedules(filter: &$crate::port::ScheduleFilter) -> Vec<$crate::port::ScheduleView>;
                schedule(key: &$crate::port::ScheduleKey) -> Option<$crate::port::ScheduleView>;
                set_schedule(set: &$crate::port::SetSchedule) -> $crate::port::ScheduleSet;
                delete_schedule(key: &$crate::port::ScheduleKey, expect: Option<u64>) -> Option<bool>;
                set_schedule_paused(key: &$crate::port::ScheduleKey, pause: Option<&$crate::port::Pause>) -> Option<bool>;
                fire_by_hand(hand: &$crate::port::Hand) -> Option<Vec<$crate::port::HandFired>>;
                ticks(filter: &$crate::port::TickFilter) -> Vec<$crate::port::TickView>;
                schedule_stats() -> Vec<$crate::port::ScheduleStats>;
                call_secret(key: &$crate::port::ScheduleKey) -> Option<String>;
            }
        }
    };
}

#[cfg(test)]
mod tests {
    /// A call with a body of its own in the port compiles when nobody passes it on, and then answers for the wrong store.
    #[test]
    fn every_call_is_passed_on() {
        let here = include_str!("passing.rs");
        let ports = [
            include_str!("office.rs"),
            include_str!("claims/mod.rs"),
            include_str!("events/mod.rs"),
            include_str!("schedules/mod.rs"),
        ];
        let traits = ports.iter().flat_map(|file| file.split("\npub trait ").skip(1));
        let inside = traits.flat_map(|text| text.split("\n}").next());
        let calls: Vec<&str> = inside
            .flat_map(str::lines)
            .filter_map(|line| line.strip_prefix("    async fn ").or_else(|| line.strip_prefix("    fn ")))
            .filter_map(|line| line.split('(').next())
            .collect();
        assert!(calls.len() > 60, "{calls:?}");
        for call in calls {
            let is_here = here.contains(&format!(" {call}(")) || here.contains(&format!("[{call} ->"));
            assert!(is_here, "{call}");
        }
    }
}
