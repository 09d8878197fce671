//! Forwarding of all ports to an inner store.

/// Passes every call of the ports other than [`ElectionStore`](crate::port::ElectionStore) and
/// [`ElectionAdmin`](crate::port::ElectionAdmin) to a macro of the caller, one port at a time:
///
/// ```text
/// impl PORT {
///     [CALL -> TYPE]                      a property of the store; takes no arguments and cannot fail
///     CALL(NAME: TYPE, …) -> TYPE;        an operation, which may fail
/// }
/// ```
/// A store that wraps another one defines in that macro, once, how it forwards a call. To add a call to a port, also
/// add it here; every wrapper then forwards it.
#[macro_export]
macro_rules! pass_on_work {
    ($with:ident) => {
        $with! {
            impl $crate::port::AccessStore {
                credentials() -> Vec<$crate::port::Credential>;
                put_credential(credential: &$crate::port::Credential) -> ();
                append_audit(entry: &$crate::port::AuditEntry) -> ();
                audit_entries(namespace: Option<&$crate::Name>, before: Option<i64>, limit: u32) -> Vec<$crate::port::AuditEntry>;
                prune_access(before_ms: i64) -> ();
            }
        }
        $with! {
            impl $crate::port::TaskStore {
                [routes_to_broker -> bool]
                [supports_work -> bool]
                submit(submission: &$crate::port::Submission) -> Vec<$crate::port::SubmitReceipt>;
                claim(request: &$crate::port::ClaimBatchRequest) -> $crate::port::ClaimBatchResponse;
                settle(settlements: &[$crate::port::Settlement]) -> Vec<$crate::port::SettleResult>;
                held_claims(session: &$crate::SessionId) -> Vec<($crate::port::TaskId, $crate::Token)>;
                register_queue_waiter(session: &$crate::SessionId, queues: &[$crate::port::QueueKey]) -> ();
                maintain(request: &$crate::port::MaintenanceRequest) -> $crate::port::MaintenanceResponse;
                publish_broker_endpoint(endpoint: &$crate::port::BrokerEndpoint) -> bool;
                broker_endpoint() -> Option<$crate::port::BrokerEndpoint>;
            }
        }
        $with! {
            impl $crate::port::TaskAdmin {
                queues(namespace: Option<&$crate::Name>) -> Vec<$crate::port::QueueView>;
                queue(key: &$crate::port::QueueKey) -> Option<$crate::port::QueueView>;
                set_queue(key: &$crate::port::QueueKey, settings: &$crate::port::QueueSettings) -> ();
                set_queue_paused(namespace: &$crate::Name, queue: Option<&$crate::Name>, pause: Option<&$crate::port::Pause>) -> bool;
                tasks(filter: &$crate::port::TaskFilter) -> Vec<$crate::port::TaskView>;
                task(namespace: &$crate::Name, id: $crate::port::TaskId) -> Option<$crate::port::TaskView>;
                apply_task_action(namespace: &$crate::Name, tasks: &[$crate::port::TaskId], order: $crate::port::TaskAction) -> Vec<$crate::port::TaskId>;
                wait_reasons(namespace: &$crate::Name, id: $crate::port::TaskId) -> Option<Vec<$crate::port::WaitReason>>;
                finished_tasks(key: &$crate::port::QueueKey, limit: u32) -> Vec<$crate::port::FinishedTask>;
                register_worker(namespace: &$crate::Name, worker: &$crate::port::NewWorker) -> ();
                workers(namespace: Option<&$crate::Name>) -> Vec<$crate::port::WorkerView>;
                set_worker_approval(namespace: &$crate::Name, worker: &str, by: Option<&str>) -> bool;
            }
        }
        $with! {
            impl $crate::port::PoolStore {
                pools(namespace: Option<&$crate::Name>) -> Vec<$crate::port::PoolView>;
                pool(key: &$crate::port::PoolKey) -> Option<$crate::port::PoolView>;
                set_pool(key: &$crate::port::PoolKey, settings: &$crate::port::PoolSettings) -> ();
                add_resources(key: &$crate::port::PoolKey, resources: &[$crate::port::NewResource]) -> ();
                remove_resource(key: &$crate::port::PoolKey, name: &$crate::Name) -> bool;
                create_pool_request(key: &$crate::port::PoolKey, request: &$crate::port::PoolRequest) -> $crate::port::PoolRequestView;
                match_pool(request: &$crate::port::PoolMatchRequest) -> Result<Vec<$crate::port::PoolRequestView>, $crate::port::ClaimRefusal>;
                pool_request(namespace: &$crate::Name, id: $crate::port::PoolRequestId) -> Option<$crate::port::PoolRequestView>;
                update_pool_request(
                    namespace: &$crate::Name, id: $crate::port::PoolRequestId, owner: &str, token: Option<$crate::Token>, handle: $crate::port::PoolRequestAction
                ) -> bool;
            }
        }
        $with! {
            impl $crate::port::EventStore {
                publish(topic: &$crate::port::TopicKey, events: &[$crate::port::NewEvent]) -> Vec<$crate::port::PublishReceipt>;
                join_group(join: &$crate::port::JoinGroupRequest) -> $crate::port::GroupAssignment;
                leave_group(group: &$crate::port::GroupKey, session: &$crate::SessionId) -> ();
                group_assignment(group: &$crate::port::GroupKey) -> Option<$crate::port::GroupAssignment>;
                take_partitions(take: &$crate::port::TakePartitionsRequest) -> Vec<$crate::port::TakenPartition>;
                release_partitions(group: &$crate::port::GroupKey, shares: &[(u32, $crate::Token)]) -> ();
                read_events(read: &$crate::port::ReadEventsRequest) -> Vec<$crate::port::Event>;
                commit_partitions(commits: &[$crate::port::PartitionCommit]) -> Vec<$crate::port::CommitResult>;
                parked_keys(group: &$crate::port::GroupKey, slot: u32) -> Vec<$crate::port::ParkedKey>;
                parked_keys_in(group: &$crate::port::GroupKey, slots: &[u32]) -> ::std::collections::BTreeMap<u32, Vec<$crate::port::ParkedKey>>;
                register_topic_waiter(session: &$crate::SessionId, topic: &$crate::port::TopicKey) -> ();
                prune_events(request: &$crate::port::MaintenanceRequest) -> (u64, bool);
            }
        }
        $with! {
            impl $crate::port::EventAdmin {
                topics(namespace: Option<&$crate::Name>) -> Vec<$crate::port::TopicView>;
                topic_names(namespace: Option<&$crate::Name>) -> Vec<$crate::port::TopicKey>;
                topic(key: &$crate::port::TopicKey) -> Option<$crate::port::TopicView>;
                set_topic(key: &$crate::port::TopicKey, settings: &$crate::port::TopicSettings) -> bool;
                delete_topic(key: &$crate::port::TopicKey) -> bool;
                partition_offsets(key: &$crate::port::TopicKey) -> Option<Vec<$crate::port::PartitionOffsets>>;
                event(topic: &$crate::port::TopicKey, id: $crate::port::EventId) -> Option<$crate::port::Event>;
                groups(namespace: Option<&$crate::Name>) -> Vec<$crate::port::GroupView>;
                group_names(namespace: Option<&$crate::Name>) -> Vec<$crate::port::GroupKey>;
                group(key: &$crate::port::GroupKey) -> Option<$crate::port::GroupView>;
                set_group(key: &$crate::port::GroupKey, settings: &$crate::port::GroupSettings, from: $crate::port::StartOffset) -> bool;
                delete_group(key: &$crate::port::GroupKey) -> bool;
                set_group_paused(key: &$crate::port::GroupKey, pause: Option<&$crate::port::Pause>) -> bool;
                reset_group(key: &$crate::port::GroupKey, to: $crate::port::StartOffset, slot: Option<u32>, dry_run: bool) -> Vec<$crate::port::OffsetChange>;
                parked_events(filter: &$crate::port::ParkedEventFilter) -> Vec<$crate::port::ParkedEvent>;
                apply_dead_letter_action(group: &$crate::port::GroupKey, events: &[$crate::port::EventId], order: $crate::port::DeadLetterAction) -> Vec<$crate::port::EventId>;
                set_webhook(key: &$crate::port::GroupKey, push: Option<&$crate::port::WebhookSettings>) -> ();
                webhooks() -> Vec<($crate::port::GroupKey, $crate::port::WebhookSettings)>;
            }
        }
        $with! {
            impl $crate::port::ScheduleStore {
                [max_concurrent_fires -> usize]
                due_schedules(limit: u32) -> $crate::port::DueResponse;
                fire(fire: &$crate::port::FireRequest) -> Option<Vec<$crate::port::FireOutcome>>;
                prune_ticks(session: &$crate::SessionId, token: $crate::Token, limit: u32) -> (u64, bool);
            }
        }
        $with! {
            impl $crate::port::ScheduleAdmin {
                schedules(filter: &$crate::port::ScheduleFilter) -> Vec<$crate::port::ScheduleView>;
                schedule(key: &$crate::port::ScheduleKey) -> Option<$crate::port::ScheduleView>;
                set_schedule(set: &$crate::port::SetScheduleRequest) -> $crate::port::SetScheduleOutcome;
                delete_schedule(key: &$crate::port::ScheduleKey, expect: Option<u64>) -> Option<bool>;
                set_schedule_paused(key: &$crate::port::ScheduleKey, pause: Option<&$crate::port::Pause>) -> Option<bool>;
                fire_manually(manual_fire: &$crate::port::ManualFire) -> Option<Vec<$crate::port::ManualFireResult>>;
                ticks(filter: &$crate::port::TickFilter) -> Vec<$crate::port::TickView>;
                schedule_stats() -> Vec<$crate::port::ScheduleStats>;
                webhook_secret(key: &$crate::port::ScheduleKey) -> Option<String>;
            }
        }
    };
}

#[cfg(test)]
mod tests {
    /// A wrapper compiles even if it does not forward a port call with a default body. It would then return the default
    /// and not the response of the inner store.
    #[test]
    fn every_port_call_is_forwarded() {
        let here = include_str!("forward.rs");
        let ports = [
            include_str!("access.rs"),
            include_str!("work/mod.rs"),
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
