//! A name is an election: whoever leads it has the name.
//!
//! Who registers stands, and either leads or sees who does. Nobody else stands, so nobody would notice that whoever has a name
//! died: for that all who register stand, as observers, in one election of the namespace, where each sees the others' beats, and
//! whoever is silent for long is declared dead, which frees its names.

use std::pin::pin;
use std::time::Duration;

use tenure_core::cluster::{MEMBERS_ELECTION, Metadata, NameView};
use tenure_core::{Moment, Name};
use tokio::sync::{mpsc, oneshot, watch};

use super::{Hold, Strict};
use crate::cluster::registry::{Ended, Order, Registered, RegistryError};
use crate::leadership::Over;
use crate::{Elector, Error, Leadership, metrics};

/// How long a name that nobody has may take to be granted, beyond a lease: several may want it, and the store may be slow.
const GRANT: Duration = Duration::from_secs(2);

pub(super) async fn register(
    on: &Strict,
    name: Name,
    metadata: Metadata,
    patience: Duration,
) -> Result<Registered<Strict>, RegistryError> {
    attend(on).await?;
    let patient_until = on.tenure.runtime().now() + patience;
    let elector = stand(on, &name, &metadata, patient_until).await?;
    match granted(on, &elector, &name, patient_until).await {
        Ok(leadership) => Ok(kept(name, elector, leadership)),
        Err(refusal) => {
            // It may have been granted this very moment; either way nothing is left behind.
            elector.stop().await?;
            Err(refusal)
        }
    }
}

/// Stands for the name. A process is one candidate per election: where another task of this process has the name or waits for
/// it, this waits until that task is done with it.
async fn stand(
    on: &Strict,
    name: &Name,
    metadata: &Metadata,
    patient_until: Moment,
) -> Result<Elector, RegistryError> {
    let (runtime, withdrawn) = (on.tenure.runtime(), &on.tenure.hub().shared.withdrawn);
    loop {
        // Listens before it asks: a candidate that withdraws in between is noticed.
        let mut freed = pin!(withdrawn.notified());
        freed.as_mut().enable();
        let builder = on.tenure.elector(name.as_str()).namespace(on.namespace.as_str());
        let builder = metadata.iter().fold(builder, |builder, (key, value)| builder.metadata(key, value));
        match builder.start().await {
            Ok(elector) => return Ok(elector),
            Err(Error::AlreadyStanding(_)) if runtime.now() < patient_until => {}
            Err(Error::AlreadyStanding(_)) => {
                let holder = on.tenure.name().to_owned();
                return Err(RegistryError::Taken { name: name.clone(), holder });
            }
            Err(error) => return Err(error.into()),
        }
        tokio::select! {
            () = freed => {}
            () = runtime.sleep_until(patient_until) => {}
        }
    }
}

/// Stands among those who watch over each other, once for all registries of this process.
async fn attend(on: &Strict) -> Result<(), Error> {
    let members = on.tenure.elector(MEMBERS_ELECTION).namespace(on.namespace.as_str()).observer(true);
    match members.start().await {
        Ok(elector) => {
            elector.unattended();
            Ok(())
        }
        Err(Error::AlreadyStanding(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn granted(
    on: &Strict,
    elector: &Elector,
    name: &Name,
    patient_until: Moment,
) -> Result<Leadership, RegistryError> {
    let runtime = on.tenure.runtime();
    let begun = runtime.now();
    let limit = on.tenure.timing().lease() + GRANT + patient_until.since(begun);
    let mut views = elector.views();
    loop {
        let holder = views.borrow_and_update().as_ref().and_then(|view| NameView::of(view));
        let mine = |view: &NameView| Some(&view.session) == on.tenure.session().as_ref();
        let waiting = match holder.filter(|view| !mine(view)) {
            Some(view) if runtime.now() >= patient_until => {
                return Err(RegistryError::Taken { name: name.clone(), holder: view.holder });
            }
            Some(_) => patient_until,
            None => begun + limit,
        };
        tokio::select! {
            biased;
            leadership = elector.elected() => return Ok(leadership?),
            changed = views.changed() => changed.map_err(|_| Error::Closed)?,
            () = runtime.sleep_until(waiting) => {
                if runtime.now() >= begun + limit {
                    return Err(RegistryError::NotGranted(name.clone(), limit));
                }
            }
        }
    }
}

fn kept(name: Name, elector: Elector, leadership: Leadership) -> Registered<Strict> {
    let (orders, inbox) = mpsc::unbounded_channel();
    let (over, ended) = watch::channel(None);
    let hold = Hold(leadership.term.clone());
    tokio::spawn(keep(elector, leadership, inbox, over));
    Registered { name, hold, ended, orders }
}

/// Has the name until it is given up or lost; then nothing of it is left here, so that the next one need not wait.
async fn keep(
    elector: Elector,
    leadership: Leadership,
    mut orders: mpsc::UnboundedReceiver<Order>,
    over: watch::Sender<Option<Ended>>,
) {
    let counted = metrics::Counted::name("strict");
    let (ended, confirm) = until_over(&elector, &leadership, &mut orders).await;
    drop((leadership, counted));
    over.send_replace(Some(ended));
    let stopped = elector.stop().await.map_err(RegistryError::from);
    confirm.into_iter().for_each(|confirm| drop(confirm.send(stopped.clone())));
}

type Confirm = oneshot::Sender<Result<(), RegistryError>>;

async fn until_over(
    elector: &Elector,
    leadership: &Leadership,
    orders: &mut mpsc::UnboundedReceiver<Order>,
) -> (Ended, Option<Confirm>) {
    let over = async {
        tokio::select! {
            biased;
            over = leadership.lost() => match over {
                Over::Lost(why) => Ended::Lost(why),
                Over::GivenUp => Ended::Asked,
            },
            _ = leadership.asked() => Ended::Asked,
        }
    };
    tokio::pin!(over);
    loop {
        let order = tokio::select! {
            biased;
            ended = &mut over => return (ended, None),
            order = orders.recv() => order,
        };
        match order {
            None => return (Ended::Unregistered, None),
            Some(Order::Unregister(confirm)) => return (Ended::Unregistered, Some(confirm)),
            Some(Order::Update(metadata, confirm)) => {
                let said = tokio::select! {
                    biased;
                    ended = &mut over => return (ended, None),
                    said = elector.set_metadata(metadata) => said,
                };
                let _ = confirm.send(said.map_err(RegistryError::from));
            }
        }
    }
}
