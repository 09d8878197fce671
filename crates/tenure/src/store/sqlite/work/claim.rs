//! Claims: assigning ready tasks to requests of workers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::SessionId;
use tenure_core::port::{
    AssignmentMode, BrokerFallback, CLAIM_BYTES, ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse,
    ClaimRefusal, ClaimRequest, ClaimedTask, QueueSettings, RateLimit, RawJson, TaskId, WorkerProfile,
};
use tenure_core::rules::work::{Requirements, validate_claim_requests};

use super::super::SqliteStore;
use super::super::connection::query;
use super::super::election_admin;
use super::super::write_transaction::{WriteTransaction, number as token_number};
use super::views::{backoff, leader_token, parse_json, queue_settings, token, unsigned};
use super::{CallError, json, ms, number};

/// Maximum number of due tasks that one claim promotes.
const DUE_MAX: i64 = 10_000;

/// Maximum number of searches for replacements of blocked tasks in one claim.
const MAX_ROUNDS: u32 = 12;

/// The settings and counters of a queue that a claim needs.
struct QueueForClaim {
    id: i64,
    settings: QueueSettings,
    /// The last claim sequence.
    claim_seq: i64,
    rate_used_until_ms: f64,
    /// How many more tasks may be claimed at the same time.
    capacity: u64,
    next_run_at_ms: Option<i64>,
}

/// A ready task as the matching needs it.
struct ReadyTask {
    id: i64,
    requirements_id: i64,
    ready_at_ms: i64,
    concurrency_key: Option<String>,
    concurrency_limit: i64,
    parent_count: i64,
    payload_bytes: i64,
}

/// The assignments of one claim before they are written. A request is identified by its index.
#[derive(Default)]
struct ClaimPlan {
    /// Tasks and their requests, in claim order.
    assigned: Vec<(i64, usize)>,
    /// For each assigned task: the size of its payload, and whether it has parents.
    sizes: Vec<(i64, bool)>,
    /// For each request: how many tasks it can still take.
    remaining: Vec<usize>,
    /// How many tasks the limits of the queue still allow.
    capacity: usize,
    /// Claimed tasks for each concurrency key, including the assigned ones.
    keys: HashMap<String, i64>,
    /// Requirements that some of the workers may take after the preference window.
    after_window: BTreeSet<i64>,
    /// Whether more tasks may be available now.
    unfinished: bool,
}

impl SqliteStore {
    pub(super) async fn claim_tasks(
        &self,
        batch: &ClaimBatchRequest,
    ) -> Result<ClaimBatchResponse, CallError> {
        validate_claim_requests(&batch.requests)?;
        let mut tx = self.begin_write().await?;
        let now = tx.wall_ms;
        let queue = match self.load_queue(&mut tx, batch).await? {
            Ok(Some(queue)) => queue,
            Ok(None) => {
                tx.commit().await?;
                let tasks = batch.requests.iter().map(|_| Vec::new()).collect();
                return Ok(ClaimBatchResponse::Served { tasks, next_in: None });
            }
            Err(refusal) => {
                tx.commit().await?;
                return Ok(ClaimBatchResponse::Refused(refusal));
            }
        };
        self.update_last_seen(&mut tx, batch).await?;
        let rate =
            queue.settings.rate.map(|rate| RateBucket { rate, used_until_ms: queue.rate_used_until_ms });
        let allowed = rate.as_ref().map_or(u64::MAX, |rate| rate.allowed(now)).min(queue.capacity);
        let requirements = self.ready_requirements(&mut tx, queue.id).await?;
        let mut plan = ClaimPlan {
            remaining: batch.requests.iter().map(|request| request.limit as usize).collect(),
            capacity: usize::try_from(allowed).unwrap_or(usize::MAX),
            ..ClaimPlan::default()
        };
        self.plan_claims(&mut tx, &batch.requests, &requirements, &queue, &mut plan).await?;
        self.limit_size(&mut tx, &mut plan).await?;
        let assigned = plan.assigned.len();
        let ordered = matches!(batch.authority, ClaimAuthority::Leader { .. });
        let tasks = self
            .write_claims(&mut tx, batch, &requirements, &plan, ordered.then_some(queue.claim_seq))
            .await?;
        let used_until_ms = rate.as_ref().map_or(queue.rate_used_until_ms, |rate| rate.spend(now, assigned));
        let reset_rate = rate.as_ref().is_some_and(|rate| rate.exceeds_limit(now));
        if reset_rate || (assigned > 0 && (ordered || rate.is_some())) {
            let claimed = if ordered { number(assigned as u64) } else { 0 };
            let spend = query(self.queries.get("queue_counters_update"))
                .bind(queue.id)
                .bind(claimed)
                .bind(used_until_ms);
            tx.transaction.execute(spend).await?;
        }
        let next_in = if plan.remaining.iter().all(|left| *left == 0) {
            None
        } else {
            let rate = queue.settings.rate.map(|rate| RateBucket { rate, used_until_ms });
            self.next_in(&mut tx, &queue, &plan, rate).await?
        };
        tx.commit().await?;
        Ok(ClaimBatchResponse::Served { tasks, next_in })
    }

    /// Load the queue and promote its due tasks. `None` if the queue does not exist; a refusal if it cannot be claimed from.
    async fn load_queue(
        &self,
        tx: &mut WriteTransaction<'_>,
        batch: &ClaimBatchRequest,
    ) -> Result<Result<Option<QueueForClaim>, ClaimRefusal>, CallError> {
        let requests: Vec<(&str, Option<&str>)> = batch
            .requests
            .iter()
            .map(|request| (request.worker.name.as_str(), request.session.as_ref().map(SessionId::as_str)))
            .collect();
        let (session, token) = match &batch.authority {
            ClaimAuthority::Leader { session, token } => (Some(session.as_str()), Some(token_number(*token))),
            _ => (None, None),
        };
        let select = query(self.queries.get("claim_get"))
            .bind(batch.queue.namespace.as_str())
            .bind(batch.queue.name.as_str())
            .bind(json(&requests)?)
            .bind(session)
            .bind(token);
        let Some(row) = tx.transaction.one(select).await? else { return Ok(Ok(None)) };
        if let Some(refusal) = claim_refusal(&row, batch)? {
            return Ok(Err(refusal));
        }
        let id = row.try_get("id")?;
        let mut next_run_at_ms: Option<i64> = row.try_get("next_run_at_ms")?;
        if next_run_at_ms.is_some_and(|at| at <= tx.wall_ms) {
            let due = query(self.queries.get("task_promote_due")).bind(id).bind(tx.wall_ms).bind(DUE_MAX);
            tx.transaction.execute(due).await?;
            let next = tx.transaction.one(query(self.queries.get("queue_next_run")).bind(id)).await?;
            next_run_at_ms = next.map(|row| row.try_get(0)).transpose()?.flatten();
        }
        let settings = queue_settings(&row)?;
        let claimed: Option<i64> = row.try_get("claimed_count")?;
        let capacity = settings
            .max_claimed
            .map_or(u64::MAX, |max| u64::from(max).saturating_sub(claimed.unwrap_or(0).cast_unsigned()));
        let (claim_seq, rate_used_until_ms) =
            (row.try_get("claim_seq")?, row.try_get("rate_used_until_at_ms")?);
        Ok(Ok(Some(QueueForClaim { id, settings, claim_seq, rate_used_until_ms, capacity, next_run_at_ms })))
    }

    /// Update the last-seen time of workers without a session: they are online while they claim.
    async fn update_last_seen(
        &self,
        tx: &mut WriteTransaction<'_>,
        batch: &ClaimBatchRequest,
    ) -> Result<(), CallError> {
        let names: BTreeSet<&str> = batch
            .requests
            .iter()
            .filter(|request| request.session.is_none())
            .map(|request| request.worker.name.as_str())
            .collect();
        if !names.is_empty() {
            let update = query(self.queries.get("worker_set_last_seen"))
                .bind(batch.queue.namespace.as_str())
                .bind(json(&names)?)
                .bind(tx.wall_ms);
            tx.transaction.execute(update).await?;
        }
        Ok(())
    }

    /// The requirements that have ready tasks, by id.
    async fn ready_requirements(
        &self,
        tx: &mut WriteTransaction<'_>,
        queue: i64,
    ) -> Result<BTreeMap<i64, Requirements>, CallError> {
        let rows =
            tx.transaction.all(query(self.queries.get("requirements_with_ready_tasks")).bind(queue)).await?;
        let requirement = |row: &SqliteRow| {
            let requirement = Requirements {
                kind: row.try_get("kind")?,
                required_tags: election_admin::json(row, "required_tags")?,
                preferred_tags: election_admin::json(row, "preferred_tags")?,
                allowed_workers: election_admin::json(row, "allowed_workers")?,
            };
            Ok((row.try_get("id")?, requirement))
        };
        Ok(rows.iter().map(requirement).collect::<sqlx::Result<_>>()?)
    }

    /// Assign tasks to requests. Tasks that reach the limit of their concurrency key become blocked, and the search continues.
    async fn plan_claims(
        &self,
        tx: &mut WriteTransaction<'_>,
        requests: &[ClaimRequest],
        requirements: &BTreeMap<i64, Requirements>,
        queue: &QueueForClaim,
        plan: &mut ClaimPlan,
    ) -> Result<(), CallError> {
        let classes = WorkerClasses::of(requests, requirements);
        let ready_before = tx.wall_ms - ms(queue.settings.preference_window_ms);
        for round in 0..=MAX_ROUNDS {
            let (immediately, after_window) = classes.requirements(&plan.remaining);
            plan.after_window.clone_from(&after_window);
            let remaining = plan.remaining.iter().sum::<usize>().min(plan.capacity);
            if remaining == 0 || (immediately.is_empty() && after_window.is_empty()) {
                return Ok(());
            }
            if round == MAX_ROUNDS {
                plan.unfinished = true;
                return Ok(());
            }
            // The search widens with each round. Assigned tasks are still ready in the table.
            let limit = number(((remaining << round).min(4_000).max(remaining) + plan.assigned.len()) as u64);
            let ready_tasks = self.ready_tasks(tx, &immediately, &after_window, limit, ready_before).await?;
            self.count_keys(tx, &ready_tasks, &mut plan.keys).await?;
            let blocked = classes.serve(&ready_tasks, ready_before, plan);
            if blocked.is_empty() {
                return Ok(());
            }
            tx.transaction.execute(query(self.queries.get("task_block")).bind(json(&blocked)?)).await?;
        }
        Ok(())
    }

    /// The first ready tasks of these requirements, in queue order.
    async fn ready_tasks(
        &self,
        tx: &mut WriteTransaction<'_>,
        immediately: &BTreeSet<i64>,
        after_window: &BTreeSet<i64>,
        limit: i64,
        ready_before: i64,
    ) -> Result<Vec<ReadyTask>, CallError> {
        let mut rows = Vec::new();
        if !immediately.is_empty() {
            let ready_tasks = query(self.queries.get("task_list_first")).bind(json(immediately)?).bind(limit);
            rows = tx.transaction.all(ready_tasks).await?;
        }
        if !after_window.is_empty() {
            let ready_tasks = query(self.queries.get("task_list_first_waited"));
            let ready_tasks = ready_tasks.bind(json(after_window)?).bind(limit).bind(ready_before);
            rows.extend(tx.transaction.all(ready_tasks).await?);
        }
        let mut ready_tasks: BTreeMap<(i64, i64), ReadyTask> = BTreeMap::new();
        for row in &rows {
            let id = row.try_get("id")?;
            let task = ReadyTask {
                id,
                requirements_id: row.try_get("requirements_id")?,
                ready_at_ms: row.try_get("ready_at_ms")?,
                concurrency_key: row.try_get("concurrency_key")?,
                concurrency_limit: row.try_get("concurrency_limit")?,
                parent_count: row.try_get("parent_count")?,
                payload_bytes: row.try_get("payload_bytes")?,
            };
            ready_tasks.insert((row.try_get("effective_at_ms")?, id), task);
        }
        Ok(ready_tasks.into_values().collect())
    }

    /// Count the claimed tasks of concurrency keys that are not in `keys` yet.
    async fn count_keys(
        &self,
        tx: &mut WriteTransaction<'_>,
        ready_tasks: &[ReadyTask],
        keys: &mut HashMap<String, i64>,
    ) -> Result<(), CallError> {
        let uncounted: BTreeSet<&str> = ready_tasks
            .iter()
            .filter_map(|it| it.concurrency_key.as_deref())
            .filter(|key| !keys.contains_key(*key))
            .collect();
        if uncounted.is_empty() {
            return Ok(());
        }
        let rows = tx
            .transaction
            .all(query(self.queries.get("concurrency_key_counts")).bind(json(&uncounted)?))
            .await?;
        keys.extend(uncounted.into_iter().map(|key| (key.to_owned(), 0)));
        for row in &rows {
            keys.insert(row.try_get("concurrency_key")?, row.try_get("claimed_count")?);
        }
        Ok(())
    }

    /// Drop assignments that exceed the maximum size of a response.
    async fn limit_size(&self, tx: &mut WriteTransaction<'_>, plan: &mut ClaimPlan) -> Result<(), CallError> {
        let children: Vec<i64> = plan
            .assigned
            .iter()
            .zip(&plan.sizes)
            .filter(|(_, (_, has_parents))| *has_parents)
            .map(|((id, _), _)| *id)
            .collect();
        let mut parent_results: HashMap<i64, i64> = HashMap::new();
        if !children.is_empty() {
            let select = query(self.queries.get("task_input_bytes")).bind(json(&children)?);
            for row in tx.transaction.all(select).await? {
                parent_results.insert(
                    row.try_get("task_id")?,
                    row.try_get::<Option<i64>, _>("result_bytes")?.unwrap_or(0),
                );
            }
        }
        let (mut sum, max) = (0, CLAIM_BYTES as i64);
        let fits = |((id, _), (payload_bytes, _)): &(&(i64, usize), &(i64, bool))| {
            sum += payload_bytes + parent_results.get(id).copied().unwrap_or(0);
            sum <= max
        };
        let kept = plan.assigned.iter().zip(&plan.sizes).take_while(fits).count().max(1);
        if kept < plan.assigned.len() {
            for (_, request) in plan.assigned.drain(kept..) {
                plan.remaining[request] += 1;
            }
            plan.unfinished = true;
        }
        Ok(())
    }

    /// Write the claims and return the tasks of each request.
    async fn write_claims(
        &self,
        tx: &mut WriteTransaction<'_>,
        batch: &ClaimBatchRequest,
        requirements: &BTreeMap<i64, Requirements>,
        plan: &ClaimPlan,
        claim_seq: Option<i64>,
    ) -> Result<Vec<Vec<ClaimedTask>>, CallError> {
        let mut tasks: Vec<Vec<ClaimedTask>> = batch.requests.iter().map(|_| Vec::new()).collect();
        if plan.assigned.is_empty() {
            return Ok(tasks);
        }
        let claims: Vec<_> = (1..)
            .zip(&plan.assigned)
            .map(|(n, (id, request))| {
                let request = &batch.requests[*request];
                let session = request.session.as_ref().map(SessionId::as_str);
                (
                    *id,
                    request.worker.name.as_str(),
                    session,
                    request.claim_timeout_ms.map(ms),
                    claim_seq.map(|claim_seq| claim_seq + n),
                )
            })
            .collect();
        let claim = query(self.queries.get("task_claim")).bind(json(&claims)?).bind(tx.wall_ms);
        let rows = tx.transaction.all(claim).await?;
        let mut parent_results = self.parent_results(tx, &rows).await?;
        let mut claimed = HashMap::with_capacity(rows.len());
        for row in &rows {
            let id: i64 = row.try_get("id")?;
            let kind = requirements
                .get(&row.try_get("requirements_id")?)
                .map(|requirement| requirement.kind.clone());
            claimed.insert(
                id,
                ClaimedTask {
                    id: TaskId(id.cast_unsigned()),
                    token: token(row, "token")?,
                    queue: batch.queue.name.clone(),
                    kind: kind.unwrap_or_default(),
                    payload: parse_json(row.try_get("payload")?)?,
                    parent_results: parent_results.remove(&id).unwrap_or_default(),
                    attempt: row.try_get("attempt")?,
                    max_attempts: row.try_get("max_attempts")?,
                    backoff: backoff(row)?,
                    priority: row.try_get("priority")?,
                    max_run_ms: unsigned(row, "max_run_ms")?,
                    claim_expires_at_ms: row.try_get("claim_expires_at_ms")?,
                    submitted_at_ms: row.try_get("submitted_at_ms")?,
                    claim_seq: unsigned(row, "claim_seq")?,
                    leader_token: leader_token(row)?,
                    idempotency_key: row.try_get("idempotency_key")?,
                },
            );
        }
        for (id, request) in &plan.assigned {
            tasks[*request].extend(claimed.remove(id));
        }
        Ok(tasks)
    }

    /// The results of the parents of these tasks, by task.
    async fn parent_results(
        &self,
        tx: &mut WriteTransaction<'_>,
        rows: &[SqliteRow],
    ) -> Result<HashMap<i64, BTreeMap<TaskId, RawJson>>, CallError> {
        let mut children: Vec<i64> = Vec::new();
        for row in rows {
            if row.try_get::<i64, _>("parent_count")? > 0 {
                children.push(row.try_get("id")?);
            }
        }
        let mut parent_results: HashMap<i64, BTreeMap<TaskId, RawJson>> = HashMap::new();
        if children.is_empty() {
            return Ok(parent_results);
        }
        let select = query(self.queries.get("task_inputs")).bind(json(&children)?);
        for row in tx.transaction.all(select).await? {
            let parent = TaskId(row.try_get::<i64, _>("parent_id")?.cast_unsigned());
            if let Some(result) = row.try_get::<Option<&str>, _>("result")? {
                parent_results
                    .entry(row.try_get("task_id")?)
                    .or_default()
                    .insert(parent, parse_json(result)?);
            }
        }
        Ok(parent_results)
    }

    /// When more tasks may become available without a new submission.
    async fn next_in(
        &self,
        tx: &mut WriteTransaction<'_>,
        queue: &QueueForClaim,
        plan: &ClaimPlan,
        rate: Option<RateBucket>,
    ) -> Result<Option<Duration>, CallError> {
        let now = tx.wall_ms;
        if plan.unfinished {
            return Ok(Some(Duration::ZERO));
        }
        let mut instants: Vec<i64> = queue.next_run_at_ms.into_iter().collect();
        instants.extend(rate.map(|rate| rate.next_at(now)).filter(|at| *at > now));
        if !plan.after_window.is_empty() {
            let window_ms = ms(queue.settings.preference_window_ms);
            let next = query(self.queries.get("task_next_preference_end"))
                .bind(json(&plan.after_window)?)
                .bind(now - window_ms);
            if let Some(row) = tx.transaction.one(next).await? {
                instants.extend(row.try_get::<Option<i64>, _>(0)?.map(|at| at + window_ms));
            }
        }
        let wait = instants.into_iter().min().map(|at| (at - now).max(0).cast_unsigned());
        Ok(wait.map(Duration::from_millis))
    }
}

/// The reason why the queue refuses the claim, if any.
fn claim_refusal(row: &SqliteRow, batch: &ClaimBatchRequest) -> sqlx::Result<Option<ClaimRefusal>> {
    let settings = queue_settings(row)?;
    if let Some(refusal) =
        mode_refusal(&batch.authority, settings.mode, settings.fallback, row.try_get("is_leader")?)
    {
        return Ok(Some(refusal));
    }
    let paused = |column| row.try_get::<Option<i64>, _>(column).map(|at| at.is_some());
    if paused("paused_at_ms")? || paused("namespace_paused_at_ms")? {
        return Ok(Some(ClaimRefusal::Paused));
    }
    // The first request with an ended session or an unapproved worker.
    let first =
        |column| row.try_get::<Option<u32>, _>(column).map(|index| index.unwrap_or(u32::MAX) as usize);
    let (ended, unapproved) = (first("ended_session_index")?, first("unapproved_index")?);
    Ok(match batch.requests.get(ended.min(unapproved)) {
        Some(request) if ended <= unapproved => request.session.clone().map(ClaimRefusal::SessionEnded),
        Some(request) => Some(ClaimRefusal::NotApproved(request.worker.name.clone())),
        None => None,
    })
}

/// The refusal if this authority may not assign in this mode.
pub(super) fn mode_refusal(
    authority: &ClaimAuthority,
    mode: AssignmentMode,
    fallback: BrokerFallback,
    is_leader: bool,
) -> Option<ClaimRefusal> {
    match (authority, mode) {
        (ClaimAuthority::Leader { .. }, AssignmentMode::Distributed) => {
            Some(ClaimRefusal::Mode(AssignmentMode::Distributed))
        }
        (ClaimAuthority::Leader { .. }, AssignmentMode::Exclusive) => {
            (!is_leader).then_some(ClaimRefusal::NotLeader)
        }
        (ClaimAuthority::Fallback, AssignmentMode::Exclusive) if fallback == BrokerFallback::Distributed => {
            None
        }
        (ClaimAuthority::Direct | ClaimAuthority::Fallback, AssignmentMode::Exclusive) => {
            Some(ClaimRefusal::Mode(AssignmentMode::Exclusive))
        }
        (ClaimAuthority::Direct | ClaimAuthority::Fallback, AssignmentMode::Distributed) => None,
    }
}

/// Requests grouped by equal worker profiles. A task that does not match one request of a class does not match the others.
struct WorkerClasses {
    /// For each request: its class.
    class: Vec<usize>,
    /// For each class: the requirements that it meets, and whether it may take them immediately.
    fits: Vec<HashMap<i64, bool>>,
}

impl WorkerClasses {
    fn of(requests: &[ClaimRequest], requirements: &BTreeMap<i64, Requirements>) -> WorkerClasses {
        let mut known: HashMap<(&str, &[String], &[String]), usize> = HashMap::new();
        let mut classes = WorkerClasses { class: Vec::with_capacity(requests.len()), fits: Vec::new() };
        for request in requests {
            let WorkerProfile { name, task_kinds: kinds, tags } = &request.worker;
            let class = *known.entry((name, kinds, tags)).or_insert_with(|| {
                let suits =
                    requirements.iter().filter(|(_, requirement)| requirement.may_match(&request.worker));
                classes.fits.push(
                    suits.map(|(id, requirement)| (*id, requirement.is_preferred(&request.worker))).collect(),
                );
                classes.fits.len() - 1
            });
            classes.class.push(class);
        }
        classes
    }

    /// The requirements that open requests meet: immediately, and after the preference window.
    fn requirements(&self, remaining: &[usize]) -> (BTreeSet<i64>, BTreeSet<i64>) {
        let busy: BTreeSet<usize> = self
            .class
            .iter()
            .zip(remaining)
            .filter(|(_, left)| **left > 0)
            .map(|(class, _)| *class)
            .collect();
        let fits = busy.into_iter().flat_map(|class| &self.fits[class]);
        let (immediately, after_window): (Vec<_>, Vec<_>) = fits.partition(|(_, immediately)| **immediately);
        let ids = |list: Vec<(&i64, &bool)>| list.into_iter().map(|(id, _)| *id).collect();
        (ids(immediately), ids(after_window))
    }

    /// Assign tasks to the requests in order, each in queue order. Returns the tasks that must be blocked.
    fn serve(&self, ready_tasks: &[ReadyTask], ready_before: i64, plan: &mut ClaimPlan) -> Vec<i64> {
        let assigned: HashSet<i64> = plan.assigned.iter().map(|(id, _)| *id).collect();
        let mut taken: Vec<bool> = ready_tasks.iter().map(|task| assigned.contains(&task.id)).collect();
        let mut reached = vec![0; self.fits.len()];
        let mut blocked = Vec::new();
        for (request, class) in self.class.iter().enumerate() {
            let (fits, index) = (&self.fits[*class], &mut reached[*class]);
            while plan.remaining[request] > 0 && plan.capacity > 0 && *index < ready_tasks.len() {
                let (n, task) = (*index, &ready_tasks[*index]);
                *index += 1;
                let fit = fits
                    .get(&task.requirements_id)
                    .is_some_and(|immediately| *immediately || task.ready_at_ms <= ready_before);
                if taken[n] || !fit {
                    continue;
                }
                taken[n] = true;
                if let Some(claimed) = task.concurrency_key.as_ref().and_then(|key| plan.keys.get_mut(key)) {
                    if *claimed >= task.concurrency_limit {
                        blocked.push(task.id);
                        continue;
                    }
                    *claimed += 1;
                }
                plan.assigned.push((task.id, request));
                plan.sizes.push((task.payload_bytes, task.parent_count > 0));
                plan.remaining[request] -= 1;
                plan.capacity -= 1;
            }
        }
        blocked
    }
}

/// A leaky bucket. `used_until_ms` is the instant until which the rate is used up; it may be ahead of the clock by at most `per_ms`.
#[derive(Clone, Copy)]
pub(super) struct RateBucket {
    pub(super) rate: RateLimit,
    pub(super) used_until_ms: f64,
}

impl RateBucket {
    /// The time that one claim uses up, in milliseconds.
    fn interval_ms(&self) -> f64 {
        self.rate.per_ms as f64 / f64::from(self.rate.count.max(1))
    }

    /// How far the bucket is ahead of the clock, limited to `per_ms` in case the clock was set back.
    fn ahead(&self, now: i64) -> f64 {
        (self.used_until_ms - now as f64).clamp(0.0, self.rate.per_ms as f64)
    }

    /// Whether the bucket is further ahead than allowed because the clock was set back. Then it must be reset.
    fn exceeds_limit(&self, now: i64) -> bool {
        self.used_until_ms > now as f64 + self.rate.per_ms as f64
    }

    /// How many claims are allowed now.
    fn allowed(&self, now: i64) -> u64 {
        // Tolerate rounding errors of a thousandth of a claim.
        ((self.rate.per_ms as f64 - self.ahead(now)) / self.interval_ms() + 0.001).floor().max(0.0) as u64
    }

    /// The new `used_until_ms` after this many claims.
    fn spend(&self, now: i64, claims: usize) -> f64 {
        now as f64 + self.ahead(now) + self.interval_ms() * claims as f64
    }

    /// When the next claim is allowed.
    pub(super) fn next_at(&self, now: i64) -> i64 {
        if self.allowed(now) > 0 {
            return now;
        }
        now + (self.ahead(now) + self.interval_ms() - self.rate.per_ms as f64).ceil().max(1.0) as i64
    }
}
