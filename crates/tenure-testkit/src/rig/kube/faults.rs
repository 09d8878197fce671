//! Faults of the fake API server.

use std::collections::BTreeSet;

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeFault {
    /// It is rejected with this status and has no effect.
    Reject(u16),
    /// It is rejected with 429 and must be retried after this many seconds.
    RetryAfter(u64),
    /// It takes effect, but the client receives this status.
    LoseResponse(u16),
    /// It is never answered and has no effect.
    Hang,
}

/// Which requests fail.
#[derive(Default)]
pub(super) struct Faults {
    rules: Vec<FaultRule>,
    denied: BTreeSet<(String, String)>,
    /// No client is authenticated.
    pub(super) locked: bool,
    pub(super) requests: Vec<(String, String)>,
    hooks: Vec<(String, String, Hook)>,
}

/// An action before a request is served.
pub(super) type Hook = Box<dyn FnOnce() + Send>;

struct FaultRule {
    verb: String,
    name: String,
    fault: KubeFault,
    left: u32,
}

impl Faults {
    pub(super) fn add(&mut self, verb: &str, name: &str, fault: KubeFault, times: u32) {
        self.rules.push(FaultRule { verb: verb.into(), name: name.into(), fault, left: times });
    }

    pub(super) fn hook(&mut self, verb: &str, name: &str, hook: Hook) {
        self.hooks.push((verb.into(), name.into(), hook));
    }

    /// The action before this request, if there is one.
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

    /// The fault of this request, if there is one.
    pub(super) fn of(&mut self, verb: &str, name: &str) -> Option<KubeFault> {
        self.requests.push((verb.into(), name.into()));
        let meant = |rule: &&mut FaultRule| {
            rule.left > 0 && (rule.verb == "*" || rule.verb == verb) && name.contains(rule.name.as_str())
        };
        let rule = self.rules.iter_mut().find(meant)?;
        rule.left -= 1;
        Some(rule.fault.clone())
    }
}
