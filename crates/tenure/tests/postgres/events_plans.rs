//! What the planner may do with events, and what it must not.

use tenure_core::port::{Begin, Bureau, Events, NewEvent, Tend, TopicSettings, claims_election};
use tenure_testkit::rig::FreshDatabase;

use crate::events::*;
use crate::support::*;

const MOODS: [&str; 2] = ["force_generic_plan", "force_custom_plan"];

/// What a statement read: rows of units and events by walking over the tables, and entries of their indexes.
fn reads(database: &FreshDatabase, before: &str, statement: &str) -> Vec<i64> {
    let sum = ["event_units", "events", "event_units_pkey", "events_pkey"]
        .map(|name| format!("pg_stat_get_xact_tuples_returned('tenure.{name}'::regclass)"))
        .join(", ");
    // The counters go on from one transaction to the next, until the server collects them, about once in a second.
    let count = format!("SELECT concat_ws(' ', 'reads', {sum});\n");
    let script = format!("{before};\nBEGIN;\n{count}{statement};\n{count}ROLLBACK;");
    let answer = database.psql(&script).unwrap();
    let counted: Vec<Vec<i64>> = answer
        .lines()
        .filter_map(|line| line.strip_prefix("reads "))
        .map(|line| line.split(' ').map(|n| n.parse().unwrap()).collect())
        .collect();
    let [earlier, later] = &counted[..] else { panic!("{answer}") };
    later.iter().zip(earlier).map(|(later, earlier)| later - earlier).collect()
}

/// Publishes so many events, each in a unit of its own.
fn singly(count: u32) -> String {
    format!(
        "DO $$ BEGIN FOR n IN 1..{count} LOOP
             PERFORM tenure.publish_one('default', 't', n, 'test', 'k' || n, '1', NULL, NULL, NULL); END LOOP; END $$"
    )
}

fn read(slots: u32, limit: u32, after: u64) -> String {
    format!(
        "SELECT count(*) FROM tenure.read(1, ARRAY(SELECT generate_series(0, {slots} - 1)), \
         array_fill({after}::bigint, ARRAY[{slots}]), {limit})"
    )
}

/// Tables that were empty when the plan was made, and of which nothing is known since; and with statistics.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_takes_what_it_returns_and_little_more() {
    for mood in MOODS {
        let (database, _store) = with_topic(8).await;
        for table in ["event_units", "events"] {
            database.psql(&format!("ALTER TABLE tenure.{table} SET (autovacuum_enabled = off)")).unwrap();
        }
        let planned = format!("SET plan_cache_mode = {mood};\n{}", read(8, 1, 0));
        for statistics in ["SELECT 1", "ANALYZE tenure.events, tenure.event_units"] {
            let before = format!("{planned};\n{};\n{statistics}", singly(2000));
            for (slots, limit) in [(8, 100), (1, 100), (8, 8), (3, 7)] {
                let got = reads(&database, &before, &read(slots, limit, 0));
                // Some more units than fit may be looked at.
                let most = i64::from(limit + slots + 16);
                assert!(
                    got[0] == 0 && got[1] == 0 && got[2] <= most && got[3] <= most,
                    "{mood}, {statistics}: a read of {limit} of {slots} slots read {got:?}"
                );
            }
        }
    }
}

/// While a transaction is held open, nobody may clear away what was forgotten: who reads begins after it, and so does who forgets.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_forgotten_is_in_nobodys_way() {
    let (database, store) = with_topic(1).await;
    let settings = TopicSettings { slots: 1, keep_ms: 0, ..TopicSettings::default() };
    store.set_topic(&topic("t"), &settings).await.unwrap();
    let mut held_open = store.pool().begin().await.unwrap();
    sqlx::raw_sql("SELECT txid_current()").execute(&mut *held_open).await.unwrap();
    database.psql(&singly(2000)).unwrap();
    let token = leading(&store, "keeper", &claims_election()).await;
    let tend = Tend { session: id("keeper"), token, clock_ms: Some(i64::MAX), limit: 10_000 };
    while all(&store, 1).await.len() > 1 {
        store.prune_events(&tend).await.unwrap();
    }
    store.publish(&topic("t"), &[NewEvent::new("last")]).await.unwrap();
    let floor = store.slot_ends(&topic("t")).await.unwrap().unwrap()[0].earliest;
    let from_the_floor = reads(&database, "SELECT 1", &read(1, 100, floor));
    let from_the_start = reads(&database, "SELECT 1", &read(1, 100, 0));
    assert!(from_the_floor[2] <= 5, "{from_the_floor:?}");
    assert!(
        from_the_start[2] >= 1000,
        "{from_the_start:?}: nothing was in the way, and the test tells nothing"
    );
    let forget = "SELECT tenure.forget_units(1, 0, now() - interval '1 day', NULL, 1000)";
    assert!(reads(&database, "SELECT 1", forget)[2] <= 5);
    held_open.rollback().await.unwrap();
}

/// However much a topic has, a look at it reads the ends of its slots, and a group's what is unread.
#[tokio::test(flavor = "multi_thread")]
async fn looking_does_not_walk_over_the_events() {
    let (database, store) = with_topic(4).await;
    database.psql(&singly(2000)).unwrap();
    store.set_group(&group("t", "g"), &Default::default(), Begin::Latest).await.unwrap();
    database.psql(&singly(8)).unwrap();
    let looks = [
        ("SELECT count(*) FROM tenure.event_groups g, tenure.group_view(g)", 60),
        ("SELECT count(*) FROM generate_series(0, 3) s, tenure.slot_ends(1, s)", 20),
        ("SELECT count(*) FROM tenure.show_event(1, (SELECT last_value - 1 FROM tenure.event_numbers))", 10),
        ("SELECT count(*) FROM tenure.show_event(1, 2000000)", 10),
        ("SELECT tenure.place_of(1, 0, 'time', tenure.ms(now()) - 1000)", 60),
        ("SELECT tenure.position_of(1, e.slot, e.id) FROM tenure.events e ORDER BY e.batch DESC LIMIT 1", 10),
    ];
    for mood in ["SELECT 1", "ANALYZE tenure.events, tenure.event_units"] {
        for (look, most) in looks {
            let got = reads(&database, mood, look);
            assert!(got[0] == 0 && got[2] <= most, "{mood}, {look}: {got:?}");
        }
    }
}

/// The events of a transaction over many slots are not read again for each of them.
#[tokio::test(flavor = "multi_thread")]
async fn placing_a_large_batch_looks_at_each_event_a_few_times() {
    for mood in MOODS {
        let (database, store) = with_topic(64).await;
        let events: Vec<_> = (0..1000).map(|n| keyed(&format!("k{n}"), n)).collect();
        store.publish(&topic("t"), &events).await.unwrap();
        let publish = "SELECT count(*) FROM tenure.publish_many('t', (SELECT jsonb_agg(jsonb_build_object('key', 'k' || n)) \
                       FROM generate_series(1, 1000) n)); SET CONSTRAINTS ALL IMMEDIATE";
        let got = reads(&database, &format!("SET plan_cache_mode = {mood}"), publish);
        assert!(got[0] == 0 && got[1] == 0 && got[3] <= 3_500, "{mood}: {got:?}");
        assert_eq!(all(&store, 64).await.len(), 1000);
    }
}
