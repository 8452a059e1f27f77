//! The database: is it a thread's, is it whole, and is everything in it that belongs there.

use super::{Doctor, Finding};
use crate::error::Result;
use crate::store::{Astray, Store};

/// Examines the database. The answer is open, and may be read; nothing where it cannot be relied
/// on.
pub fn check(doctor: &mut Doctor) -> Option<Store> {
    let store = match Store::open_to_examine(&doctor.files.db()) {
        Ok(store) => store,
        Err(failure) => {
            doctor.tell(Finding::failed("database", failure));
            return None;
        }
    };
    let mut store = whole(doctor, store)?;
    let examined = schema(doctor, &mut store);
    examined.map_err(|failure| doctor.tell(Finding::failed("schema", failure))).ok()?;
    Some(store)
}

/// Lets SQLite check the whole file. Only indexes can be mended: what they hold stands in the
/// tables, too.
fn whole(doctor: &mut Doctor, mut store: Store) -> Option<Store> {
    const CHECK: &str = "integrity";
    let complaints = match store.complaints() {
        Ok(complaints) => complaints,
        Err(failure) => {
            doctor.tell(Finding::failed(CHECK, failure));
            return None;
        }
    };
    let of_indexes: Option<Vec<&str>> = complaints.iter().map(|text| index_in(text)).collect();
    let Some(mut indexes) = of_indexes else {
        let more = match complaints.len() {
            1 => String::new(),
            n => format!(", and {} more complaints", n - 1),
        };
        let problem = format!("the database is damaged: {}{more}", complaints[0]);
        doctor.tell(Finding::error(CHECK, problem).instead(
            "restore the thread from a backup, or salvage it with `sqlite3 events.db .recover`; nothing is written to it here",
        ));
        return None;
    };
    if doctor.fix {
        // Where this fails, so does each mending, which then says why.
        drop(store.allow_writing());
    }
    indexes.sort_unstable();
    indexes.dedup();
    for index in indexes {
        let problem = format!("the index {index} does not agree with its table");
        doctor.found(Finding::error(CHECK, problem), || {
            store.rebuild_index(index)?;
            Ok("it was rebuilt".to_owned())
        });
    }
    Some(store)
}

/// The index a complaint is about, where it says only that its entries are not those of the table.
/// Damage to pages is another matter.
fn index_in(complaint: &str) -> Option<&str> {
    let (about, name) = complaint.rsplit_once(" index ")?;
    let is_row =
        about.starts_with("row ") && (about.ends_with(" missing from") || about.ends_with(" differ from"));
    let is_entry = about == "wrong # of entries in" || about == "non-unique entry in";
    (is_row || is_entry).then_some(name)
}

fn schema(doctor: &mut Doctor, store: &mut Store) -> Result<()> {
    const CHECK: &str = "schema";
    let path = doctor.files.db();
    if !store.never_repeats_ids()? {
        let problem = "the table events is made without AUTOINCREMENT, so the id of an event that was deleted \
                       may be given again";
        let fix =
            "make a new thread and copy the events: `thread peek … | thread push --thread <new> --batch`";
        doctor.tell(Finding::error(CHECK, problem).instead(fix));
    } else if let Some(seq) = store.sequence_behind()? {
        let problem =
            format!("sqlite_sequence says that {seq} is the last id given, but there are later events");
        doctor.found(Finding::error(CHECK, problem), || {
            store.mend_sequence()?;
            Ok("it was set to the newest id".to_owned())
        });
    }
    // Before anything is added to the schema, which sets back cursors without a word.
    cursors(doctor, store)?;
    let is_older = store.is_older()?;
    if is_older {
        let problem = "the schema is an older one; the next command brings it up to date";
        doctor.found(Finding::warning(CHECK, problem), || {
            store.migrate()?;
            Ok("it was brought up to date".to_owned())
        });
    }
    if !store.is_older()? {
        for index in store.wrong_indexes()? {
            let problem = format!("the index {index} is missing or not as it should be");
            doctor.found(Finding::error(CHECK, problem), || {
                store.make_index(index)?;
                Ok("it was made anew".to_owned())
            });
        }
        memories(doctor, store)?;
    } else {
        store.stand_in_for_missing()?;
    }
    let mode = store.journal_mode()?;
    if !mode.eq_ignore_ascii_case("wal") {
        let problem = format!("the database is in mode '{mode}', not in write-ahead logging");
        doctor.found(Finding::warning(CHECK, problem), || {
            store.use_wal(&path)?;
            Ok("it was switched".to_owned())
        });
    }
    Ok(())
}

fn cursors(doctor: &mut Doctor, store: &mut Store) -> Result<()> {
    let astray = store.cursors_astray()?;
    let newest = store.newest_ever()?;
    let describe = |a: &Astray| {
        format!("the cursor of '{}' is {}, but the newest event ever was {newest}", a.consumer, a.value)
    };
    let done = "it was set to the newest event, or, if it was no number, to 0";
    each(doctor, &astray, describe, done, || store.mend_cursors());
    Ok(())
}

fn memories(doctor: &mut Doctor, store: &mut Store) -> Result<()> {
    let astray = store.memories_astray()?;
    let newest = store.newest_ever()?;
    let describe = |a: &Astray| {
        format!(
            "'{}' is recorded to have been looked at up to event {}, but the newest ever was {newest}, so new \
             events would not wake it",
            a.consumer, a.value
        )
    };
    each(doctor, &astray, describe, "it was forgotten", || store.mend_memories());
    Ok(())
}

/// One finding for each, all of them mended at once.
fn each(
    doctor: &mut Doctor,
    astray: &[Astray],
    describe: impl Fn(&Astray) -> String,
    done: &str,
    mut mend: impl FnMut() -> Result<()>,
) {
    let mended: Result<()> = if doctor.fix && !astray.is_empty() { mend() } else { Ok(()) };
    for one in astray {
        let mended = mended.clone().map(|()| done.to_owned());
        doctor.found(Finding::error("cursor", describe(one)), || mended);
    }
}
