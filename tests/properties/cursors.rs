//! Cursors: forward with an acknowledgement, anywhere with a pop, never past what there was.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use thread::store::{Moved, Subscribed};
use thread::subscription::ConsumerId;

use crate::world::{Parts, Place, cases};

#[derive(Debug, Clone)]
enum Step {
    Push(usize),
    /// Another program deletes the newest events.
    DeleteNewest(i64),
    Subscribe(usize),
    Unsubscribe(usize),
    Pop(usize, i64),
    Acknowledge(usize, i64),
}

fn step() -> impl Strategy<Value = Step> {
    let id = prop_oneof![9 => 0..14i64, 1 => Just(i64::MAX)];
    let (pop, acknowledge) = (id.clone(), id);
    prop_oneof![
        2 => (1..4usize).prop_map(Step::Push),
        1 => (1..3i64).prop_map(Step::DeleteNewest),
        2 => (0..2usize).prop_map(Step::Subscribe),
        1 => (0..2usize).prop_map(Step::Unsubscribe),
        4 => (0..2usize, pop).prop_map(|(c, id)| Step::Pop(c, id)),
        4 => (0..2usize, acknowledge).prop_map(|(c, id)| Step::Acknowledge(c, id)),
    ]
}

proptest! {
    #![proptest_config(cases(80))]

    #[test]
    fn cursors_move_as_a_simple_model_says(steps in prop::collection::vec(step(), 1..40)) {
        let mut place = Place::new();
        let consumers = ["bot", "a:b@c"].map(|id| ConsumerId::new(id).unwrap());
        let (mut cursors, mut subscribed, mut newest) = (HashMap::new(), HashSet::new(), 0);
        let event = Parts { source: "s".into(), kind: "message", subtype: None, content: "c".into() };
        for step in steps {
            match step {
                Step::Push(count) => {
                    place.push(&vec![event.clone(); count]);
                    newest += count as i64;
                }
                Step::DeleteNewest(count) => {
                    let sql = "DELETE FROM events WHERE id > (SELECT max(id) FROM events) - ?";
                    place.plain().execute(sql, [count]).unwrap();
                }
                Step::Subscribe(c) => {
                    let done = place.subscribe(&consumers[c], None);
                    let expected = if subscribed.insert(c) { Subscribed::Added(None) } else { Subscribed::Exists };
                    prop_assert_eq!(done, expected);
                }
                Step::Unsubscribe(c) => {
                    let removed = place.thread.store.unsubscribe(&consumers[c]).unwrap();
 prop_assert_eq!(removed.is_some(), subscribed.remove(&c));
                }
                Step::Pop(c, id) => {
                    let expected = if !subscribed.contains(&c) {
                        Moved::UnknownConsumer
                    } else {
                        cursors.insert(c, id.min(newest));
                        if id > newest { Moved::Clamped(newest) } else { Moved::To(id) }
                    };
                    prop_assert_eq!(place.thread.store.set_cursor(&consumers[c], id).unwrap(), expected);
                }
                Step::Acknowledge(c, id) => {
                    let at = cursors.get(&c).copied().unwrap_or(0);
                    let expected = if !subscribed.contains(&c) {
                        Moved::UnknownConsumer
                    } else if id.min(newest) < at {
                        Moved::StandsAt(at)
                    } else {
                        cursors.insert(c, id.min(newest));
                        if id > newest { Moved::Clamped(newest) } else { Moved::To(id) }
                    };
                    prop_assert_eq!(place.thread.store.acknowledge(&consumers[c], id).unwrap(), expected);
                }
            }
            let plain = place.plain();
            let mut written = 0;
            for (c, consumer) in consumers.iter().enumerate() {
                let sql = "SELECT last_acked_id FROM consumer_progress WHERE consumer_id = ?";
                let stored = plain.query_row(sql, [consumer.as_str()], |row| row.get::<_, i64>(0)).ok();
                written += i64::from(stored.is_some());
                prop_assert_eq!(stored.unwrap_or(0), cursors.get(&c).copied().unwrap_or(0));
                let seen = place.thread.store.subscription(consumer).unwrap().map(|s| s.last_acked_id);
                let expected = subscribed.contains(&c).then(|| cursors.get(&c).copied().unwrap_or(0));
                prop_assert_eq!(seen, expected);
            }
            let rows: i64 =
                plain.query_row("SELECT count(*) FROM consumer_progress", [], |row| row.get(0)).unwrap();
            prop_assert_eq!(rows, written);
        }
    }
}
