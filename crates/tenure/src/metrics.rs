//! What this process tells whoever measures it, through the [`metrics`] facade: nothing, and at no cost, unless a recorder
//! is installed.
//!
//! | name | kind | labels | what |
//! |---|---|---|---|
//! | `tenure_leader` | gauge | namespace, election | how many slots of the election this process leads |
//! | `tenure_leader_transitions_total` | counter | namespace, election, kind | `elected`, `released` or `lost` |
//! | `tenure_leadership_duration_seconds` | histogram | namespace, election | how long each term lasted |
//! | `tenure_renewals_total` | counter | result | beats: `counted`, `gone` or `failed` |
//! | `tenure_renewal_duration_seconds` | histogram | – | from sending a beat to its answer |
//! | `tenure_trust_remaining_seconds` | gauge | – | for how long all that is led is trusted, after the last answer |
//! | `tenure_store_errors_total` | counter | kind | troubles with the store |

use std::time::Duration;

use metrics::{Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use tenure_core::ElectionKey;
use tenure_core::port::{Pulse, StoreError, Trouble};

/// The names.
pub mod names {
    #![allow(missing_docs)]
    pub const LEADER: &str = "tenure_leader";
    pub const TRANSITIONS: &str = "tenure_leader_transitions_total";
    pub const LEADERSHIP: &str = "tenure_leadership_duration_seconds";
    pub const RENEWALS: &str = "tenure_renewals_total";
    pub const RENEWAL: &str = "tenure_renewal_duration_seconds";
    pub const TRUST: &str = "tenure_trust_remaining_seconds";
    pub const STORE_ERRORS: &str = "tenure_store_errors_total";
}

/// Describes every metric to the recorder that is installed.
pub fn describe() {
    describe_gauge!(names::LEADER, "Slots of the election that this process leads.");
    describe_counter!(names::TRANSITIONS, "Terms of this process: elected, released, lost.");
    describe_histogram!(names::LEADERSHIP, Unit::Seconds, "How long each term of this process lasted.");
    describe_counter!(names::RENEWALS, "Beats of this process: counted, gone, failed.");
    describe_histogram!(names::RENEWAL, Unit::Seconds, "From sending a beat to its answer.");
    describe_gauge!(
        names::TRUST,
        Unit::Seconds,
        "For how long all that this process leads is trusted, as of the last answer to a beat."
    );
    describe_counter!(names::STORE_ERRORS, "Troubles of this process with its store, by kind.");
    // Those that pagers wait for are there from the start: a rate needs a nought to grow from.
    for kind in [Trouble::Timeout, Trouble::Unreachable, Trouble::Unavailable] {
        counter!(names::STORE_ERRORS, "kind" => word(kind)).increment(0);
    }
    for result in ["counted", "gone", "failed"] {
        counter!(names::RENEWALS, "result" => result).increment(0);
    }
}

pub(crate) fn elected(key: &ElectionKey) {
    gauge!(names::LEADER, labels(key)).increment(1.0);
    transition(key, "elected");
}

/// A term ended, after this long.
pub(crate) fn ended(key: &ElectionKey, kind: &'static str, lasted: Duration) {
    gauge!(names::LEADER, labels(key)).decrement(1.0);
    histogram!(names::LEADERSHIP, labels(key)).record(lasted);
    transition(key, kind);
}

pub(crate) fn renewed(result: &Result<Pulse, StoreError>, took: Duration) {
    let word = match result {
        Ok(Pulse::Alive { .. }) => "counted",
        Ok(Pulse::Gone) => "gone",
        Err(_) => "failed",
    };
    counter!(names::RENEWALS, "result" => word).increment(1);
    histogram!(names::RENEWAL).record(took);
}

pub(crate) fn trusted_for(left: Duration) {
    gauge!(names::TRUST).set(left);
}

pub(crate) fn trouble(error: &StoreError) {
    counter!(names::STORE_ERRORS, "kind" => word(error.kind)).increment(1);
}

fn word(kind: Trouble) -> String {
    kind.to_string().replace(' ', "_")
}

fn transition(key: &ElectionKey, kind: &'static str) {
    let mut labels = labels(key);
    labels.push(Label::from_static_parts("kind", kind));
    counter!(names::TRANSITIONS, labels).increment(1);
}

fn labels(key: &ElectionKey) -> Vec<Label> {
    vec![Label::new("namespace", key.namespace.to_string()), Label::new("election", key.name.to_string())]
}
