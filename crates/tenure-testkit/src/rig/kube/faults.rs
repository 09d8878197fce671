//! Bad days.

use std::collections::BTreeSet;

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeFault {
    /// It is refused with this status, and nothing happens.
    Refuse(u16),
    /// It is refused with 429 and told to come back after so many seconds.
    RetryAfter(u64),
    /// It happens, and is answered with this status.
    Forget(u16),
    /// It is never answered, and does not happen.
    Hang,
}

/// Which requests go wrong.
#[derive(Default)]
pub(super) struct Faults {
    rules: Vec<Rule>,
    denied: BTreeSet<(String, String)>,
    /// Nobody is let in.
    pub(super) locked: bool,
    pub(super) requests: Vec<(String, String)>,
    hooks: Vec<(String, String, Hook)>,
}

/// Something to be done before a request is served.
pub(super) type Hook = Box<dyn FnOnce() + Send>;

struct Rule {
    verb: String,
    name: String,
    fault: KubeFault,
    left: u32,
}

impl Faults {
    pub(super) fn add(&mut self, verb: &str, name: &str, fault: KubeFault, times: u32) {
        self.rules.push(Rule { verb: verb.into(), name: name.into(), fault, left: times });
    }

    pub(super) fn hook(&mut self, verb: &str, name: &str, hook: Hook) {
        self.hooks.push((verb.into(), name.into(), hook));
    }

    /// What is to be done before this request is served, if anything.
    pub(super) fn hook_of(&mut self, verb: &str, name: &str) -> Option<Hook> {
        let at = self.hooks.iter().position(|(of, object, _)| of == verb && object == name)?;
        Some(self.hooks.remove(at).2)
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
        self.denied.clear();
        self.locked = false;
    }

    pub(super) fn deny(&mut self, verb: &str, resource: &str) {
        self.denied.insert((verb.into(), resource.into()));
    }

    pub(super) fn is_denied(&self, verb: &str, resource: &str) -> bool {
        self.denied.contains(&(verb.into(), resource.into()))
    }

    /// What goes wrong with this request, if anything.
    pub(super) fn of(&mut self, verb: &str, name: &str) -> Option<KubeFault> {
        self.requests.push((verb.into(), name.into()));
        let meant = |rule: &&mut Rule| {
            rule.left > 0 && (rule.verb == "*" || rule.verb == verb) && name.contains(rule.name.as_str())
        };
        let rule = self.rules.iter_mut().find(meant)?;
        rule.left -= 1;
        Some(rule.fault.clone())
    }
}
