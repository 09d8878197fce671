//! Ranking rules.

use proptest::prelude::*;

use super::*;
use crate::port::SessionView;

fn candidate(id: &str, priority: i32, session: u64) -> CandidateView {
    let id_of_session = crate::SessionId::from_stored(&format!("{session:04}"));
    let session = SessionView {
        id: id_of_session,
        name: id.into(),
        heartbeat_count: 0,
        lease_ms: 1,
        live: true,
        heartbeat_at_ms: 0,
        owner: None,
    };
    let (observer, capabilities) = (false, Vec::new());
    let metadata = Default::default();
    CandidateView { name: id.into(), session, priority, observer, capabilities, metadata, joined_at_ms: 0 }
}

fn any_candidate() -> impl Strategy<Value = CandidateView> {
    ("[ab]{1,2}", -1..2i32, 0..3u64).prop_map(|(id, priority, session)| candidate(&id, priority, session))
}

proptest! {
    #[test]
    fn rank_is_a_total_order(a in any_candidate(), b in any_candidate(), c in any_candidate()) {
        prop_assert_eq!(by_rank(&a, &b), by_rank(&b, &a).reverse());
        if by_rank(&a, &b).is_le() && by_rank(&b, &c).is_le() {
            prop_assert!(by_rank(&a, &c).is_le());
        }
        prop_assert_eq!(by_rank(&a, &b).is_eq(), (a.priority, &a.name, &a.session.id) == (b.priority, &b.name, &b.session.id));
    }
}

#[test]
fn candidates_are_ranked_by_priority_name_and_session() {
    let mut all = [candidate("a", 0, 2), candidate("a", 0, 1), candidate("b", 0, 0), candidate("c", 5, 9)];
    all.sort_by(by_rank);
    let order: Vec<_> = all.iter().map(|c| (c.name.as_str(), c.session.id.as_str())).collect();
    assert_eq!(order, [("c", "0009"), ("a", "0001"), ("a", "0002"), ("b", "0000")]);
}

#[test]
fn a_candidate_needs_all_required_capabilities() {
    let mut c = candidate("a", 0, 0);
    c.capabilities = vec!["disk".into()];
    assert!(is_eligible(&c, &["disk".into()]) && !is_eligible(&c, &["disk".into(), "gpu".into()]));
    c.observer = true;
    assert!(!is_eligible(&c, &[]));
}
