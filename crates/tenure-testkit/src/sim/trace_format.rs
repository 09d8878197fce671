//! One trace line per step.

use std::fmt::Write as _;

use tenure_core::SessionId;
use tenure_core::port::{ElectionView, HeartbeatResponse, Notification, ObserveScope};
use tenure_core::rules::lease::{LeaseEvent, LeaseInput, StoreCommand, StoreResponse};

pub(super) fn input_in_brief(input: &LeaseInput) -> String {
    match input {
        LeaseInput::Response { answer, .. } => answer_in_brief(answer),
        LeaseInput::Campaign(stand) => format!("campaign {} priority {}", stand.election, stand.priority),
        LeaseInput::Notification(Notification::LeaseReleased {
            election,
            slot,
            token,
            released_by: by,
            successor,
            start_reason: via,
        }) => {
            let to = successor.as_ref().map_or("any", SessionId::short);
            format!(
                "notification: {election}/{slot} {token} released by {} for {to}, start reason {}",
                by.short(),
                via.as_str()
            )
        }
        LeaseInput::Notification(Notification::ElectionChanged(key)) => {
            format!("notification: {key} changed")
        }
        LeaseInput::Notification(wake) => format!("notification: {wake:?}"),
        LeaseInput::Finished(key) => format!("finished {key}"),
        LeaseInput::Withdraw(key) => format!("withdraw {key}"),
        LeaseInput::Resign(key) => format!("resign {key}"),
        other => format!("{other:?}"),
    }
}

pub(super) fn event_in_brief(event: &LeaseEvent) -> String {
    match event {
        LeaseEvent::Elected { election, slot, token } => format!("leads {election}/{slot} under {token}"),
        LeaseEvent::Lost { election, token, why } => format!("lost {election} {token}: {}", why.as_str()),
        LeaseEvent::Requested { election, kind } => format!("is asked in {election} to {}", kind.as_str()),
        LeaseEvent::Released { election, token } => format!("released {election} {token}"),
        LeaseEvent::Joined(key) => format!("joined {key}"),
        LeaseEvent::Withdrawn(key) => format!("left {key}"),
        LeaseEvent::Opened(id) => format!("opened {}", id.short()),
        other => format!("{other:?}"),
    }
}

pub(super) fn command_in_brief(command: &StoreCommand) -> String {
    match command {
        StoreCommand::Open(session) => format!("open {}", session.id.short()),
        StoreCommand::Heartbeat(id) => format!("heartbeat {}", id.short()),
        StoreCommand::End(id) => format!("end {}", id.short()),
        StoreCommand::Join(c) => format!("join {} {} priority {}", c.election, c.session.short(), c.priority),
        StoreCommand::Leave(id, key) => format!("leave {key} {}", id.short()),
        StoreCommand::Observe(id, ObserveScope::Listed(keys)) => {
            let keys: Vec<_> = keys.iter().map(ToString::to_string).collect();
            format!("observe {} {}", id.short(), keys.join(" "))
        }
        StoreCommand::Observe(id, scope) => format!("observe {} {scope:?}", id.short()),
        StoreCommand::Take(take) => format!(
            "take {}/{} by {} (saw {} of {}{})",
            take.election,
            take.slot,
            take.session.short(),
            take.token,
            take.holder.as_ref().map_or("no session", SessionId::short),
            take.expire
                .as_ref()
                .map_or(String::new(), |e| format!(", expire heartbeat {:?}", e.heartbeat_count)),
        ),
        StoreCommand::Release(r) => format!(
            "release {}/{} {} of {} for {}, start reason {}{}",
            r.election,
            r.slot,
            r.token,
            r.session.short(),
            r.successor.as_ref().map_or("any", SessionId::short),
            r.start_reason.as_str(),
            if r.leave { " and leave" } else { "" },
        ),
        StoreCommand::Expire(e) => {
            format!("expire {} at heartbeat {:?}", e.session.short(), e.heartbeat_count)
        }
        StoreCommand::RequestLeader(request) => {
            format!(
                "request {}/{} {} to {}",
                request.election,
                request.slot,
                request.token,
                request.kind.as_str()
            )
        }
        StoreCommand::Watch(sessions) => format!("watch {}", sessions.len()),
    }
}

pub(super) fn answer_in_brief(answer: &StoreResponse) -> String {
    match answer {
        StoreResponse::Heartbeat(Ok(HeartbeatResponse::Live { epoch, leader_requests: kinds })) => {
            let kinds: Vec<_> = kinds.iter().map(|request| request.kind.as_str()).collect();
            format!("live, epoch {epoch}, requests {kinds:?}")
        }
        StoreResponse::Observed(Ok(observation)) => {
            let mut line = String::from("saw");
            observation.elections.iter().for_each(|view| view_in_brief(&mut line, view));
            for (key, slot, token) in &observation.orphaned_leases {
                let _ = write!(line, " orphaned {key}/{slot} {token}");
            }
            line
        }
        other => format!("{other:?}"),
    }
}

fn view_in_brief(line: &mut String, view: &ElectionView) {
    let _ = write!(line, " {}", view.key);
    if view.paused.is_some() {
        line.push_str(" paused");
    }
    for lease in &view.leases {
        let _ = match &lease.holder {
            Some(h) => {
                write!(line, " [{} {} of {}@{}]", lease.slot, lease.token, h.id.short(), h.heartbeat_count)
            }
            None => write!(line, " [{} {} free]", lease.slot, lease.token),
        };
    }
    for c in &view.candidates {
        let role = if c.observer { "observer" } else { "" };
        let _ = write!(line, " {}:{}{role}@{}", c.session.id.short(), c.priority, c.session.heartbeat_count);
    }
}
