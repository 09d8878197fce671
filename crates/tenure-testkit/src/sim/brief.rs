//! One line for everything that may appear in a diary.

use std::fmt::Write as _;

use tenure_core::SessionId;
use tenure_core::lease::{Answer, Command, Event, Input};
use tenure_core::port::{ElectionView, Pulse, Scope, Wake};

pub(super) fn input_in_brief(input: &Input) -> String {
    match input {
        Input::Answer { answer, .. } => answer_in_brief(answer),
        Input::Campaign(stand) => format!("campaign {} priority {}", stand.election, stand.priority),
        Input::Wake(Wake::Released { election, slot, token, by, successor, via }) => {
            let to = successor.as_ref().map_or("anybody", SessionId::short);
            format!(
                "hint: {election}/{slot} {token} released by {} for {to} via {}",
                by.short(),
                via.as_str()
            )
        }
        Input::Wake(Wake::Changed(key)) => format!("hint: {key} changed"),
        Input::Wake(wake) => format!("hint: {wake:?}"),
        Input::Finished(key) => format!("finished {key}"),
        Input::Withdraw(key) => format!("withdraw {key}"),
        Input::Resign(key) => format!("resign {key}"),
        other => format!("{other:?}"),
    }
}

pub(super) fn event_in_brief(event: &Event) -> String {
    match event {
        Event::Elected { election, slot, token } => format!("leads {election}/{slot} under {token}"),
        Event::Lost { election, token, why } => format!("lost {election} {token}: {}", why.as_str()),
        Event::Asked { election, kind } => format!("is asked in {election} to {}", kind.word()),
        Event::Released { election, token } => format!("released {election} {token}"),
        Event::Standing(key) => format!("stands in {key}"),
        Event::Withdrawn(key) => format!("stands no longer in {key}"),
        Event::Opened(id) => format!("opened {}", id.short()),
        other => format!("{other:?}"),
    }
}

pub(super) fn command_in_brief(command: &Command) -> String {
    match command {
        Command::Open(session) => format!("open {}", session.id.short()),
        Command::Beat(id) => format!("beat {}", id.short()),
        Command::End(id) => format!("end {}", id.short()),
        Command::Join(c) => format!("join {} {} priority {}", c.election, c.session.short(), c.priority),
        Command::Leave(id, key) => format!("leave {key} {}", id.short()),
        Command::Observe(id, Scope::Only(keys)) => {
            let keys: Vec<_> = keys.iter().map(ToString::to_string).collect();
            format!("observe {} {}", id.short(), keys.join(" "))
        }
        Command::Observe(id, scope) => format!("observe {} {scope:?}", id.short()),
        Command::Take(take) => format!(
            "take {}/{} by {} (saw {} of {}{})",
            take.election,
            take.slot,
            take.session.short(),
            take.token,
            take.holder.as_ref().map_or("nobody", SessionId::short),
            take.expire.as_ref().map_or(String::new(), |e| format!(", expire beat {:?}", e.beat)),
        ),
        Command::Release(r) => format!(
            "release {}/{} {} of {} for {} via {}{}",
            r.election,
            r.slot,
            r.token,
            r.session.short(),
            r.successor.as_ref().map_or("anybody", SessionId::short),
            r.via.as_str(),
            if r.leave { " and leave" } else { "" },
        ),
        Command::Expire(e) => format!("expire {} at beat {:?}", e.session.short(), e.beat),
        Command::Ask(ask) => {
            format!("ask {}/{} {} to {}", ask.election, ask.slot, ask.token, ask.kind.word())
        }
        Command::Watch(sessions) => format!("watch {}", sessions.len()),
    }
}

pub(super) fn answer_in_brief(answer: &Answer) -> String {
    match answer {
        Answer::Pulse(Ok(Pulse::Alive { epoch, asks })) => {
            let asks: Vec<_> = asks.iter().map(|ask| ask.kind.word()).collect();
            format!("alive, epoch {epoch}, asks {asks:?}")
        }
        Answer::Observed(Ok(observation)) => {
            let mut line = String::from("saw");
            observation.elections.iter().for_each(|view| view_in_brief(&mut line, view));
            for (key, slot, token) in &observation.strays {
                let _ = write!(line, " stray {key}/{slot} {token}");
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
            Some(h) => write!(line, " [{} {} of {}@{}]", lease.slot, lease.token, h.id.short(), h.beat),
            None => write!(line, " [{} {} free]", lease.slot, lease.token),
        };
    }
    for c in &view.candidates {
        let role = if c.observer { "observer" } else { "" };
        let _ = write!(line, " {}:{}{role}@{}", c.session.id.short(), c.priority, c.session.beat);
    }
}
