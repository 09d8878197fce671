//! Registered names on a store: the leader of an election holds the name.
//!
//! A process that registers a name becomes a candidate, and either leads or observes the leader. The holder of
//! a name usually has no rivals in its election, so no process would detect its death there. For that, all
//! processes that register names are observers of one common election of the namespace. There each sees the
//! heartbeats of the others, and expires sessions that are silent for too long, which frees their names.

use std::pin::pin;
use std::time::Duration;

use tenure_core::rules::cluster::{Metadata, REGISTRY_MEMBERS_ELECTION, RegisteredName};
use tenure_core::{BootInstant, Name};
use tokio::sync::{mpsc, oneshot, watch};

use super::{RegistrationTerm, StrictBackend};
use crate::cluster::registry::{Registration, RegistrationCommand, RegistrationEnd, RegistryError};
use crate::election::leadership::TermEnd;
use crate::{Elector, Error, Leadership, metrics};

/// Additional time, beyond a lease, for a free name to be granted: several processes may want it, and the store
/// may be slow.
const GRANT: Duration = Duration::from_secs(2);

pub(super) async fn register(
    backend: &StrictBackend,
    name: Name,
    metadata: Metadata,
    max_wait: Duration,
) -> Result<Registration<StrictBackend>, RegistryError> {
    join_observers(backend).await?;
    let wait_until = backend.tenure.runtime().now() + max_wait;
    let elector = join_election(backend, &name, &metadata, wait_until).await?;
    match wait_granted(backend, &elector, &name, wait_until).await {
        Ok(leadership) => Ok(start_maintaining(name, elector, leadership)),
        Err(refusal) => {
            // The name may have been granted at this moment; leaving the election releases it.
            elector.stop().await?;
            Err(refusal)
        }
    }
}

/// Joins the election of the name. A process is one candidate per election: if another task of this process
/// holds the name or waits for it, this waits until that task has left.
async fn join_election(
    backend: &StrictBackend,
    name: &Name,
    metadata: &Metadata,
    wait_until: BootInstant,
) -> Result<Elector, RegistryError> {
    let (runtime, withdrawn) = (backend.tenure.runtime(), &backend.tenure.ctx().shared.withdrawn);
    loop {
        // Subscribes before it tries: a candidate that leaves in between is noticed.
        let mut freed = pin!(withdrawn.notified());
        freed.as_mut().enable();
        let builder = backend.tenure.elector(name.as_str()).namespace(backend.namespace.as_str());
        let builder = metadata.iter().fold(builder, |builder, (key, value)| builder.metadata(key, value));
        match builder.start().await {
            Ok(elector) => return Ok(elector),
            Err(Error::AlreadyCandidate(_)) if runtime.now() < wait_until => {}
            Err(Error::AlreadyCandidate(_)) => {
                let holder = backend.tenure.name().to_owned();
                return Err(RegistryError::Taken { name: name.clone(), holder });
            }
            Err(error) => return Err(error.into()),
        }
        tokio::select! {
            () = freed => {}
            () = runtime.sleep_until(wait_until) => {}
        }
    }
}

/// Joins the common election as observer, once for all registries of this process.
async fn join_observers(backend: &StrictBackend) -> Result<(), Error> {
    let members = backend
        .tenure
        .elector(REGISTRY_MEMBERS_ELECTION)
        .namespace(backend.namespace.as_str())
        .observer(true);
    match members.start().await {
        Ok(elector) => {
            elector.detach();
            Ok(())
        }
        Err(Error::AlreadyCandidate(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn wait_granted(
    backend: &StrictBackend,
    elector: &Elector,
    name: &Name,
    wait_until: BootInstant,
) -> Result<Leadership, RegistryError> {
    let runtime = backend.tenure.runtime();
    let started = runtime.now();
    let limit = backend.tenure.timing().lease() + GRANT + wait_until.since(started);
    let mut views = elector.views();
    loop {
        let holder = views.borrow_and_update().as_ref().and_then(|view| RegisteredName::of(view));
        let is_own = |view: &RegisteredName| Some(&view.session) == backend.tenure.session().as_ref();
        let waiting = match holder.filter(|view| !is_own(view)) {
            Some(view) if runtime.now() >= wait_until => {
                return Err(RegistryError::Taken { name: name.clone(), holder: view.holder });
            }
            Some(_) => wait_until,
            None => started + limit,
        };
        tokio::select! {
            biased;
            leadership = elector.elected() => return Ok(leadership?),
            changed = views.changed() => changed.map_err(|_| Error::Closed)?,
            () = runtime.sleep_until(waiting) => {
                if runtime.now() >= started + limit {
                    return Err(RegistryError::NotGranted(name.clone(), limit));
                }
            }
        }
    }
}

fn start_maintaining(name: Name, elector: Elector, leadership: Leadership) -> Registration<StrictBackend> {
    let (commands, inbox) = mpsc::unbounded_channel();
    let (end, ended) = watch::channel(None);
    let data = RegistrationTerm(leadership.term.clone());
    tokio::spawn(maintain(elector, leadership, inbox, end));
    Registration { name, data, ended, commands }
}

/// Keeps the name until it is released or lost, then leaves the election, so that the next process need not
/// wait.
async fn maintain(
    elector: Elector,
    leadership: Leadership,
    mut commands: mpsc::UnboundedReceiver<RegistrationCommand>,
    end: watch::Sender<Option<RegistrationEnd>>,
) {
    let counted = metrics::ActiveMetric::name("fenced");
    let (ended, confirm) = run(&elector, &leadership, &mut commands).await;
    drop((leadership, counted));
    end.send_replace(Some(ended));
    let stopped = elector.stop().await.map_err(RegistryError::from);
    confirm.into_iter().for_each(|confirm| drop(confirm.send(stopped.clone())));
}

type Confirm = oneshot::Sender<Result<(), RegistryError>>;

async fn run(
    elector: &Elector,
    leadership: &Leadership,
    commands: &mut mpsc::UnboundedReceiver<RegistrationCommand>,
) -> (RegistrationEnd, Option<Confirm>) {
    let end = async {
        tokio::select! {
            biased;
            end = leadership.lost() => match end {
                TermEnd::Lost(why) => RegistrationEnd::Lost(why),
                TermEnd::Released => RegistrationEnd::Requested,
            },
            _ = leadership.leader_request() => RegistrationEnd::Requested,
        }
    };
    tokio::pin!(end);
    loop {
        let command = tokio::select! {
            biased;
            ended = &mut end => return (ended, None),
            command = commands.recv() => command,
        };
        match command {
            None => return (RegistrationEnd::Unregistered, None),
            Some(RegistrationCommand::Unregister(confirm)) => {
                return (RegistrationEnd::Unregistered, Some(confirm));
            }
            Some(RegistrationCommand::Update(metadata, confirm)) => {
                let result = tokio::select! {
                    biased;
                    ended = &mut end => return (ended, None),
                    result = elector.set_metadata(metadata) => result,
                };
                let _ = confirm.send(result.map_err(RegistryError::from));
            }
        }
    }
}
