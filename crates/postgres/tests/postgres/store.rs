//! Guarantees of this store beyond the common contract: several connections, order, and keys.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fallible_iterator::FallibleIterator;
use thread::model::location::Location;
use thread::model::run::RunState;
use thread::model::scheduled::Due;
use thread::model::step::Kind;
use thread::store::{Move, RunUpdate, StepChange, StepsOf, Store, Stored};
use thread::{Error, NewEvent};
use thread_postgres::SCHEME;
use thread_testkit::store::conformance::{
    a_ledger_is_of_one_moment, append, everything, fill, message, name, new_step, new_subscription, put,
    with_key,
};
use thread_testkit::{postgres::server, wait_until};

use crate::machine::{Machine, schema_of};

const LIMIT: Duration = Duration::from_secs(60);

/// A new thread, or `None` without a server.
fn thread() -> Option<Location> {
    let location = Location::from(server()?.location());
    (SCHEME.init)(&location).unwrap();
    Some(location)
}

fn open(location: &Location) -> Box<dyn Store> {
    (SCHEME.open)(location, LIMIT).unwrap()
}

fn ids(store: &mut dyn Store, after: i64) -> Vec<i64> {
    let mut ids = Vec::new();
    store
        .read(after, i64::MAX, usize::MAX, &mut |row| {
            ids.push(row.id);
            ControlFlow::Continue(())
        })
        .unwrap();
    ids
}

#[test]
fn a_ledger_that_is_read_is_of_one_moment() {
    let Some(location) = thread() else { return };
    a_ledger_is_of_one_moment(|| open(&location));
}

#[test]
fn connections_see_each_others_commits_at_once_and_in_order() {
    let Some(location) = thread() else { return };
    let (mut one, mut other) = (open(&location), open(&location));
    for id in 1..=20 {
        let (writer, reader) = if id % 3 == 0 { (&mut one, &mut other) } else { (&mut other, &mut one) };
        assert_eq!(put(&mut **writer, &message("x")).unwrap(), Stored::New(id));
        assert_eq!(everything(&mut **reader), everything(&mut **writer));
    }
}

/// One that looks at consumers, as a process that waits does, and one that only asks.
#[test]
fn the_first_schedule_and_the_first_step_of_others_are_seen_by_those_who_came_before() {
    for has_consumer in [true, false] {
        let Some(location) = thread() else { return };
        let (mut waits, mut asks, mut other) = (open(&location), open(&location), open(&location));
        fill(&mut *other, 1);
        if has_consumer {
            other.subscribe(&new_subscription("c")).unwrap();
        }
        assert!(
            waits.subscriptions().unwrap().len() == usize::from(has_consumer) && !waits.has_steps().unwrap()
        );
        assert!(waits.next_scheduled().unwrap().is_none() && asks.scheduled(None, 9).unwrap().is_empty());

        let later = NewEvent { due: Some(Due::After(LIMIT)), ..message("x") };
        append(&mut *other, &[later]).unwrap();
        assert_eq!((asks.count_scheduled().unwrap(), asks.scheduled(None, 9).unwrap().len()), (1, 1));
        waits.subscriptions().unwrap();
        assert!(waits.next_scheduled().unwrap().is_some());

        let step = new_step(1, "pay", Kind::Step);
        assert!(other.change_step(&StepChange::to(None, step)).unwrap());
        assert_eq!(asks.steps(StepsOf::default()).unwrap().len(), 1);
        waits.subscriptions().unwrap();
        assert!(waits.has_steps().unwrap());
    }
}

/// A crash of the server may lose what was not synced, though its writer has seen it.
#[test]
fn what_was_seen_before_a_crash_is_not_mistaken_for_what_others_stored_after_it() {
    let Some(location) = thread() else { return };
    let (mut one, mut other) = (open(&location), open(&location));
    one.subscribe(&new_subscription("c")).unwrap();
    let get = |store: &mut dyn Store| store.subscription(&name("c")).unwrap().unwrap();
    let text = location.to_string();
    let schema = schema_of(&text);
    let psql = |sql: &str| server().unwrap().psql(&sql.replace('@', &format!("{schema}.")));
    psql("CREATE TABLE @saved AS SELECT * FROM @consumers");
    let update =
        RunUpdate { durable: false, ..RunUpdate::state(RunState { deferred: 1, ..RunState::default() }) };
    let seen = get(&mut *one);
    let lost = one.update_run(&seen, &update).unwrap().unwrap();
    psql("UPDATE @consumers c SET run = s.run, revision = s.revision FROM @saved s");
    let seen = get(&mut *other);
    other.update_run(&seen, &RunUpdate { durable: true, ..update.clone() }).unwrap().unwrap();
    assert_eq!(one.update_run(&lost, &update).unwrap(), None);
}

/// This is about readers that only ask for newer ids, as followers do.
#[test]
fn sixteen_writers_leave_no_gap_and_no_follower_misses_or_doubles_an_event() {
    const WRITERS: usize = 16;
    const EACH: usize = 40;
    let Some(location) = thread() else { return };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let location = &location;
                scope.spawn(move || {
                    let mut store = open(location);
                    for n in 0..EACH {
                        match n % 4 {
                            0 => drop(
                                append(&mut *store, &[message("a"), message("b"), message("c")]).unwrap(),
                            ),
                            1 => {
                                let key = format!("{writer}-{n}");
                                put(&mut *store, &with_key(&message("k"), &key)).unwrap();
                            }
                            _ => fill(&mut *store, 1),
                        }
                    }
                })
            })
            .collect();
        let followers: Vec<_> = (0..3)
            .map(|_| {
                let (location, done) = (&location, &done);
                scope.spawn(move || {
                    let (mut store, mut seen) = (open(location), Vec::new());
                    loop {
                        let last = done.load(Ordering::SeqCst);
                        seen.extend(ids(&mut *store, seen.last().copied().unwrap_or(0)));
                        if last {
                            return seen;
                        }
                    }
                })
            })
            .collect();
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::SeqCst);
        written.into_iter().for_each(|writer| writer.unwrap());
        let all: Vec<i64> = (1..=(WRITERS * EACH / 4 * 6) as i64).collect();
        for follower in followers {
            assert_eq!(follower.join().unwrap(), all);
        }
    });
    let mut store = open(&location);
    let mut times = Vec::new();
    store
        .read(0, i64::MAX, usize::MAX, &mut |row| {
            times.push(row.to_event().created_at);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(times.is_sorted());
}

#[test]
fn sixteen_writers_of_as_many_threads_hinder_nobody_and_followers_see_each_event_once() {
    const THREADS: usize = 16;
    const EACH: i64 = 60;
    let Some(server) = server() else { return };
    let texts: Vec<String> = (0..THREADS).map(|n| server.location_of("sixteen", &format!("t{n}"))).collect();
    let locations: Vec<Location> = texts.iter().map(Location::from).collect();
    locations.iter().for_each(|location| (SCHEME.init)(location).unwrap());
    let machine = Machine::new(&texts[0]);
    // Followers of four of the threads, as separate processes.
    let mut followers: Vec<_> = (0..4)
        .map(|n| {
            let out = std::fs::File::create(machine.path(&n.to_string())).unwrap();
            let args = ["peek", "-t", &texts[n], "--follow", "--last-event-id", "0"];
            machine.command(&args).stdout(out).spawn().unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        for location in &locations {
            scope.spawn(move || {
                let mut store = open(location);
                for n in 0..EACH / 3 {
                    fill(&mut *store, 1);
                    append(&mut *store, &[message("a"), with_key(&message("b"), &n.to_string())]).unwrap();
                }
            });
        }
    });
    let seen = |n: usize| -> Vec<i64> {
        let text = std::fs::read_to_string(machine.path(&n.to_string())).unwrap();
        let id = |line: &str| line.split_once("\"id\":")?.1.split_once(',')?.0.parse().ok();
        text.split_inclusive('\n').filter(|line| line.ends_with('\n')).filter_map(id).collect()
    };
    wait_until("the followers", || (0..followers.len()).all(|n| seen(n).len() as i64 >= EACH));
    for (n, follower) in followers.iter_mut().enumerate() {
        follower.kill().unwrap();
        follower.wait().unwrap();
        assert!(seen(n).into_iter().eq(1..=EACH), "{n}");
    }
    for location in &locations {
        assert!(ids(&mut *open(location), 0).into_iter().eq(1..=EACH));
    }
}

/// A reader that looks after a notice sees its event.
#[test]
fn a_notice_comes_after_the_commit() {
    let Some(server) = server() else { return };
    let text = server.location_of("noticed", "inbox");
    let location = Location::from(&text);
    (SCHEME.init)(&location).unwrap();
    let url = format!("host={} port={} user=postgres dbname=postgres", server.dir.display(), server.port);
    thread::queue::locations::add(SCHEME);
    let mut listener = postgres::Client::connect(&url, postgres::NoTls).unwrap();
    listener.batch_execute(&format!("LISTEN {}", thread_postgres::channel(&location).unwrap())).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut queue = thread::Queue::open(&location).unwrap();
            for _ in 0..50 {
                queue.push(&message("x")).unwrap();
            }
        });
        for n in 1..=50 {
            let notice = listener.notifications().timeout_iter(LIMIT).next().unwrap();
            assert_eq!(notice.expect("a notice").payload(), "einbox");
            let sql = "SELECT newest FROM noticed.counters";
            let newest: i64 = listener.query_one(sql, &[]).unwrap().get(0);
            assert!(newest >= n, "notice {n}, event {newest}");
        }
    });
}

#[test]
fn of_writers_with_the_same_key_one_stores_its_event() {
    let Some(location) = thread() else { return };
    let stored: Vec<Stored> = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..8)
            .map(|n| {
                let location = &location;
                scope.spawn(move || {
                    let mut store = open(location);
                    let event = with_key(&message("x"), "key");
                    let beside = message("beside");
                    let mut stored = Vec::new();
                    let events = if n % 2 == 0 { vec![event] } else { vec![beside, event] };
                    store
                        .append(&mut |put| {
                            stored = put(&events)?;
                            Ok(())
                        })
                        .unwrap();
                    stored.pop().unwrap()
                })
            })
            .collect();
        tries.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let new = stored.iter().filter(|stored| matches!(stored, Stored::New(_))).count();
    assert_eq!(new, 1, "{stored:?}");
    assert_eq!(ids(&mut *open(&location), 0), [1, 2, 3, 4, 5]);
}

#[test]
fn threads_of_one_schema_and_schemas_of_one_database_are_apart() {
    let Some(server) = server() else { return };
    let locations = [("apart", "a"), ("apart", "b"), ("a \"part", "a")]
        .map(|(schema, thread)| server.location_of(schema, thread));
    let mut stores: Vec<_> = locations
        .iter()
        .map(|location| {
            let location = Location::from(location.replace('"', "%22").replace(' ', "%20"));
            (SCHEME.init)(&location).unwrap();
            assert!(matches!((SCHEME.init)(&location), Err(Error::AlreadyAThread(_))));
            open(&location)
        })
        .collect();
    for (at, store) in stores.iter_mut().enumerate() {
        fill(&mut **store, at + 1);
        put(&mut **store, &with_key(&message("x"), "k")).unwrap();
        store.subscribe(&new_subscription("c")).unwrap();
        store.move_cursor(&name("c"), 1, Move::Acknowledge).unwrap();
    }
    for (at, store) in stores.iter_mut().enumerate() {
        assert_eq!(store.newest().unwrap(), at as i64 + 2);
        assert_eq!(store.subscriptions().unwrap().len(), 1);
    }
    stores[0].unsubscribe(&name("c")).unwrap();
    assert_eq!(stores[1].subscriptions().unwrap().len(), 1);
}

#[test]
fn of_run_updates_from_the_same_state_only_one_applies() {
    let Some(location) = thread() else { return };
    open(&location).subscribe(&new_subscription("c")).unwrap();
    let update =
        RunUpdate { durable: true, ..RunUpdate::state(RunState { attempts: 1, ..RunState::default() }) };
    for _ in 0..5 {
        let seen = open(&location).subscription(&name("c")).unwrap().unwrap();
        let applied: usize = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| open(&location).update_run(&seen, &update).unwrap().is_some()))
                .collect();
            tries.into_iter().map(|one| usize::from(one.join().unwrap())).sum()
        });
        assert_eq!(applied, 1);
        assert_ne!(open(&location).subscription(&name("c")).unwrap().unwrap().revision, seen.revision);
    }
}

#[test]
fn a_consumer_that_is_held_is_changed_by_others_after_the_next_write_or_the_release() {
    let Some(location) = thread() else { return };
    let (mut one, mut other) = (open(&location), open(&location));
    one.subscribe(&new_subscription("c")).unwrap();
    let update = RunUpdate { durable: true, ..RunUpdate::state(RunState::default()) };
    let read = |store: &mut dyn Store| store.subscription(&name("c")).unwrap().unwrap();
    let seen = read(&mut *one);
    one.hold(&name("c")).unwrap();
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| other.update_run(&seen, &update).unwrap());
        // If nothing keeps the other one from it, it is the first.
        std::thread::sleep(Duration::from_millis(300));
        let now = read(&mut *one);
        assert!(one.update_run(&now, &update).unwrap().is_some());
        assert_eq!(refused.join().unwrap(), None);
    });
    let ends: [fn(&mut Box<dyn Store>); 3] = [
        |store| store.release(),
        |store| store.in_snapshot(&mut |store| store.newest().map(drop)).unwrap(),
        |store| drop(put(&mut **store, &message("x")).unwrap()),
    ];
    let mut is_free = || {
        let seen = read(&mut *other);
        other.update_run(&seen, &update).unwrap().is_some()
    };
    for end in ends {
        one.hold(&name("c")).unwrap();
        end(&mut one);
        assert!(is_free());
    }
    one.hold(&name("c")).unwrap();
    drop(one);
    assert!(is_free());
}

#[test]
fn of_processes_that_make_the_same_thread_one_does() {
    let Some(server) = server() else { return };
    let location = Location::from(server.location());
    let made: usize = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| match (SCHEME.init)(&location) {
                    Ok(()) => 1,
                    Err(Error::AlreadyAThread(_)) => 0,
                    Err(e) => panic!("{e}"),
                })
            })
            .collect();
        tries.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!(made, 1);
    fill(&mut *open(&location), 1);
}

#[test]
fn a_newer_schema_is_refused_and_a_missing_thread_is_reported() {
    let Some(server) = server() else { return };
    let location = Location::from(server.location_of("newer", "inbox"));
    let missing = (SCHEME.open)(&location, LIMIT).err();
    assert!(matches!(missing, Some(Error::NotAThread(_))), "{missing:?}");
    (SCHEME.init)(&location).unwrap();
    let other = Location::from(server.location_of("newer", "other"));
    assert!(matches!((SCHEME.open)(&other, LIMIT), Err(Error::NotAThread(_))));
    server.psql("INSERT INTO newer.versions VALUES (99)");
    for refused in [(SCHEME.open)(&location, LIMIT).err(), (SCHEME.init)(&other).err()] {
        assert!(matches!(refused, Some(Error::NewerSchema { found: 99, .. })), "{refused:?}");
    }
}

#[test]
fn an_event_with_a_nul_is_stored_but_in_a_key_or_subtype_it_is_refused() {
    let Some(location) = thread() else { return };
    let mut store = open(&location);
    let event = NewEvent::new("self", "record", Some("a\0b".into()), "x").unwrap();
    assert!(matches!(put(&mut *store, &event), Err(Error::InvalidEvent(_))));
    assert!(matches!(put(&mut *store, &with_key(&message("x"), "a\0b")), Err(Error::InvalidEvent(_))));
    assert_eq!(put(&mut *store, &message("a\0b")).unwrap(), Stored::New(1));
    assert_eq!(store.id_of_key("a\0b").unwrap(), None);
}

#[test]
fn a_transaction_that_stays_open_is_not_waited_for_longer_than_the_limit() {
    let Some(server) = server() else { return };
    let location = Location::from(server.location_of("held", "inbox"));
    (SCHEME.init)(&location).unwrap();
    let mut holder = open(&location);
    let mut other = (SCHEME.open)(&location, Duration::from_millis(100)).unwrap();
    holder
        .append(&mut |put| {
            put(&[message("a")])?;
            let refused = append(&mut *other, &[message("b")]).unwrap_err();
            assert!(refused.is_locked(), "{refused}");
            // A reader does not wait for the lock.
            assert_eq!(ids(&mut *other, 0), [0; 0]);
            Ok(())
        })
        .unwrap();
    assert_eq!(put(&mut *other, &message("b")).unwrap(), Stored::New(2));
}

#[test]
fn a_store_reconnects_after_its_connection_was_cut() {
    let Some(server) = server() else { return };
    let location = server.location_of("cut", "inbox").replace('#', "&application_name=cut#");
    let location = Location::from(location);
    (SCHEME.init)(&location).unwrap();
    let mut store = open(&location);
    fill(&mut *store, 1);
    let cut = || {
        let sql = "SELECT bool_and(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity \
                   WHERE application_name = 'cut'";
        assert_eq!(server.psql(sql), "t");
    };
    cut();
    assert_eq!(ids(&mut *store, 0), [1]);
    cut();
    assert_eq!(put(&mut *store, &message("x")).unwrap(), Stored::New(2));
    // In the middle of a transaction nothing is stored.
    let failed = store.append(&mut |put| {
        put(&[message("lost")])?;
        cut();
        Ok(())
    });
    assert!(failed.unwrap_err().may_pass());
    assert_eq!(ids(&mut *store, 0), [1, 2]);
    assert_eq!(put(&mut *store, &message("x")).unwrap(), Stored::New(3));
}

/// One COPY continues over several pieces, and is ended for a look-up of keys.
#[test]
fn a_batch_of_many_pieces_has_its_order_and_knows_its_own_keys() {
    let Some(location) = thread() else { return };
    let mut store = open(&location);
    put(&mut *store, &with_key(&message("0"), "before")).unwrap();
    let long = "x".repeat(1000);
    let contents: Vec<String> =
        (0..=1200).map(|n| if n == 0 { "0".into() } else { format!("{n}{long}") }).collect();
    let keys: Vec<String> = (0..12).map(|piece| format!("key {piece}")).collect();
    let mut results = Vec::new();
    let appended = store
        .append(&mut |put| {
            for piece in 0..12 {
                let first = piece * 100 + 1;
                let mut events: Vec<_> =
                    contents[first..first + 100].iter().map(|content| message(content)).collect();
                if piece % 4 == 1 {
                    events[50] = with_key(&events[50], &keys[piece]);
                }
                if piece % 4 == 3 {
                    // One from a piece that was sent, and one that was stored long before.
                    events.push(with_key(&message(&contents[first - 150]), &keys[piece - 2]));
                    events.push(with_key(&message("0"), "before"));
                }
                results.extend(put(&events)?);
            }
            Ok(())
        })
        .unwrap();
    assert_eq!((appended.count, appended.first_id, appended.last_id), (1200, Some(2), Some(1201)));
    let repeated = results.iter().filter_map(|stored| match stored {
        Stored::Repeated { id, .. } => Some(*id),
        Stored::New(_) | Stored::Scheduled { .. } => None,
    });
    assert_eq!((results.len(), repeated.collect::<Vec<_>>()), (1206, vec![152, 1, 552, 1, 952, 1]));
    let stored: Vec<String> = everything(&mut *store).1.into_iter().map(|event| event.content).collect();
    assert!(stored == contents);
}

#[test]
fn a_batch_that_fails_on_its_way_stores_nothing_and_does_not_spoil_the_next() {
    let Some(server) = server() else { return };
    let location = Location::from(server.location_of("halfway", "inbox"));
    (SCHEME.init)(&location).unwrap();
    let mut store = open(&location);
    let events = vec![message("x"); 5000];
    let failed = store.append(&mut |put| {
        put(&events)?;
        put(&events)?;
        Err(Error::Other("the lines end".to_owned()))
    });
    assert!(matches!(failed, Err(Error::Other(_))), "{failed:?}");
    assert_eq!(put(&mut *store, &message("first")).unwrap(), Stored::New(1));
    let failed = store.append(&mut |put| {
        put(&events)?;
        let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                   WHERE pid <> pg_backend_pid() AND query LIKE 'COPY%halfway%' AND state = 'active'";
        wait_until("the COPY to be ended", || server.psql(end) == "1");
        put(&events).map(drop)
    });
    assert!(matches!(failed, Err(Error::Database(_))), "{failed:?}");
    // The server refuses a line.
    server.psql("ALTER TABLE halfway.events ADD CHECK (content <> 'refused')");
    let failed = append(&mut *store, &[message("x"), message("refused")]);
    assert!(matches!(failed, Err(Error::Database(_))), "{failed:?}");
    assert_eq!(put(&mut *store, &message("second")).unwrap(), Stored::New(2));
    assert_eq!(ids(&mut *store, 0), [1, 2]);
}
