//! Damaged databases: commands fail, and never panic or hang.

use std::fs;

use thread_testkit::{World, long, names, wait_until};

use crate::fuzz::{COMMANDS, Dice, ends_well, full};

/// The type byte of a page of an SQLite file.
fn kind(db: &[u8], page: usize, size: usize) -> u8 {
    db[page * size + if page == 0 { 100 } else { 0 }]
}

#[test]
fn a_damaged_database_makes_it_fail_and_never_panic_or_hang() {
    let world = World::with_thread();
    full(&world);
    let sound = fs::read(world.inbox().join("events.db")).unwrap();
    let size = usize::from(u16::from_be_bytes([sound[16], sound[17]]));
    let pages = sound.len() / size;
    let mut kinds: Vec<u8> = (0..pages).map(|page| kind(&sound, page, size)).collect();
    kinds.sort();
    kinds.dedup();
    // Interior and leaf pages of tables and indexes; other values are overflow and free pages.
    assert!([2, 5, 10, 13].iter().filter(|kind| kinds.contains(kind)).count() >= 3, "{kinds:?}");
    let mut damaged: Vec<(String, Vec<u8>)> = Vec::new();
    for length in [
        0,
        1,
        15,
        16,
        99,
        100,
        101,
        size - 1,
        size,
        size + 1,
        size * 2,
        sound.len() / 2,
        sound.len() - size,
        sound.len() - 1,
    ] {
        damaged.push((format!("cut to {length} bytes"), sound[..length].to_vec()));
    }
    let mut dice = Dice::new();
    // The first page of each kind, and some more.
    let firsts: Vec<usize> =
        kinds.iter().map(|k| (0..pages).find(|&p| kind(&sound, p, size) == *k).unwrap()).collect();
    for page in firsts
        .into_iter()
        .chain((0..if long() { 60 } else { 20 }).map(|_| dice.below(pages)).collect::<Vec<_>>())
    {
        for way in 0..4 {
            let mut db = sound.clone();
            let whole = &mut db[page * size..(page + 1) * size];
            match way {
                0 => whole.fill(0),
                1 => (0..8).for_each(|_| whole[dice.below(12)] = dice.below(256) as u8),
                2 => (0..20).for_each(|_| whole[dice.below(size)] ^= 1 << dice.below(8)),
                _ => whole.iter_mut().for_each(|byte| *byte = dice.below(256) as u8),
            }
            damaged.push((format!("seed {}: page {page} of {pages}, way {way}", dice.seed), db));
        }
    }
    for byte in 0..100 {
        let mut db = sound.clone();
        db[byte] ^= 0xff;
        damaged.push((format!("header byte {byte}"), db));
    }
    let (mut runs, mut codes) = (0, [0; 3]);
    for (at, (about, db)) in damaged.iter().enumerate() {
        replace_db(&world, db);
        let few = if long() {
            COMMANDS
        } else {
            &[COMMANDS[runs % 6], COMMANDS[(runs / 2 + 3) % COMMANDS.len()]][..]
        };
        for command in few {
            codes[ends_well(world.off(*command), b"", &format!("{about}: {command:?}")) as usize] += 1;
            if *command == ["dispatch"] {
                kill_all_processes(&world);
            }
            runs += 1;
        }
        // `doctor` gives supervisors a few seconds to start, so it runs less often.
        if long() && at % 20 == 0 {
            for command in [&["doctor"][..], &["doctor", "--fix"]] {
                ends_well(world.thread(command), b"", &format!("{about}: {command:?}"));
            }
            kill_all_processes(&world);
        }
    }
    eprintln!("{} damaged databases, {runs} runs: exit codes 0, 1, 2: {codes:?}", damaged.len());
    assert!(codes[1] > runs / 5, "too little was noticed: {codes:?}");
    // A damaged WAL: frames with a wrong checksum count as absent.
    for way in 0..if long() { 200 } else { 20 } {
        replace_db(&world, &sound);
        world.off(COMMANDS[2]).quiet();
        let wal = world.inbox().join("events.db-wal");
        let mut bytes = fs::read(&wal).unwrap();
        match way % 3 {
            0 => bytes.truncate(dice.below(bytes.len())),
            1 => (0..=dice.below(3)).for_each(|_| {
                let at = dice.below(bytes.len());
                bytes[at] ^= 1 << dice.below(8);
            }),
            _ => drop(bytes.drain(..=dice.below(64))),
        }
        fs::write(&wal, bytes).unwrap();
        ends_well(world.off(["info"]), b"", &format!("seed {}: damaged WAL", dice.seed));
        ends_well(world.off(COMMANDS[2]), b"", &format!("seed {}: damaged WAL, push", dice.seed));
    }
}

/// Kills the supervisors and handlers that a dispatch left running, because the database file is
/// about to be replaced.
pub fn kill_all_processes(world: &World) {
    wait_until("supervisors to end", || {
        let left = world.processes();
        for pid in &left {
            if let Some(pid) = rustix::process::Pid::from_raw(*pid as i32) {
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
            }
        }
        left.is_empty()
    });
}

/// Installs a database, and removes the files that belong to the previous one.
pub fn replace_db(world: &World, bytes: &[u8]) {
    for name in names(&world.inbox()) {
        if name.starts_with("events") {
            fs::remove_file(world.inbox().join(name)).unwrap();
        }
    }
    fs::remove_file(world.inbox().join("run/_jsonl")).ok();
    fs::write(world.inbox().join("events.db"), bytes).unwrap();
}
