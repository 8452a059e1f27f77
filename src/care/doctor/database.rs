//! The database: is it a thread's, is it whole, and is everything in it that belongs there.

use super::{Doctor, Finding};
use crate::error::Result;
use crate::files::DB;
use crate::sqlite::Sqlite;
use crate::store::Store;

/// Examines the database, and returns it open for reading (and, when the doctor repairs, writing);
/// `None` where it cannot be relied on. `sound` says that all files can be used.
pub fn check(doctor: &mut Doctor<'_>, sound: bool) -> Option<Sqlite> {
    match doctor.files.prepare_database() {
        Ok(()) => {}
        // What cannot be used was a finding already.
        Err(_) if !sound => return None,
        Err(e) => {
            doctor.tell(Finding::failed("database", e));
            return None;
        }
    }
    let opened = Sqlite::open_to_examine(&doctor.files.path_of(DB));
    let mut store = opened.map_err(|e| doctor.tell(Finding::failed("database", e))).ok()?;
    if !is_intact(doctor, &mut store) {
        return None;
    }
    schema(doctor, &mut store).map_err(|e| doctor.tell(Finding::failed("schema", e))).ok()?;
    Some(store)
}

/// Lets SQLite check the whole file. Only indexes can be repaired: what they hold is in the tables, too.
fn is_intact(doctor: &mut Doctor<'_>, store: &mut Sqlite) -> bool {
    const CHECK: &str = "integrity";
    let errors = match store.integrity_errors() {
        Ok(errors) => errors,
        Err(e) => {
            doctor.tell(Finding::failed(CHECK, e));
            return false;
        }
    };
    let indexes: Option<Vec<&str>> = errors.iter().map(|text| index_in(text)).collect();
    let Some(mut indexes) = indexes else {
        let more = match errors.len() {
            1 => String::new(),
            n => format!(", and {} more errors", n - 1),
        };
        let problem = format!("the database is damaged: {}{more}", errors[0]);
        doctor.tell(Finding::error(CHECK, problem).advise(
            "restore the thread from a backup, or salvage it with `sqlite3 events.db .recover`; doctor writes nothing to it",
        ));
        return false;
    };
    if doctor.fix {
        // Where this fails, so does each repair, which then says why.
        drop(store.allow_writing());
    }
    indexes.sort_unstable();
    indexes.dedup();
    let mut rebuilt = false;
    for index in indexes {
        let problem = format!("the index {index} does not agree with its table");
        doctor.found(Finding::error(CHECK, problem), || {
            if !rebuilt {
                store.rebuild_indexes()?;
                rebuilt = true;
            }
            Ok("it was rebuilt")
        });
    }
    true
}

/// The index an error is about, if it says only that its entries are not those of the table. Damage to
/// pages is another matter.
fn index_in(error: &str) -> Option<&str> {
    let (what, name) = error.rsplit_once(" index ")?;
    let is_row =
        what.starts_with("row ") && (what.ends_with(" missing from") || what.ends_with(" differ from"));
    let is_entry = what == "wrong # of entries in" || what == "non-unique entry in";
    (is_row || is_entry).then_some(name)
}

fn schema(doctor: &mut Doctor<'_>, store: &mut Sqlite) -> Result<()> {
    const CHECK: &str = "schema";
    // Before the schema is brought up to date, which sets back cursors without a word.
    let newest = store.newest()?;
    for (consumer, value) in store.stray_cursors()? {
        let problem =
            format!("the cursor of '{consumer}' is {value}, but the newest event ever was {newest}");
        doctor.found(Finding::error("cursor", problem), || {
            store.repair_cursors()?;
            Ok("it was set to the newest event, or to 0 if it was not a number")
        });
    }
    if store.is_older()? {
        let problem = "the schema is an older one; the next command brings it up to date";
        doctor.found(Finding::warning(CHECK, problem), || {
            store.migrate()?;
            Ok("it was brought up to date")
        });
    }
    if store.is_older()? {
        store.create_compat_views()?;
    } else {
        for name in store.missing_objects()? {
            doctor.found(Finding::error(CHECK, format!("the schema lacks {name}")), || {
                store.migrate()?;
                Ok("it was recreated")
            });
        }
    }
    let mode = store.journal_mode()?;
    if !mode.eq_ignore_ascii_case("wal") {
        let problem = format!("the database is in mode '{mode}', not in write-ahead logging");
        doctor.found(Finding::warning(CHECK, problem), || {
            store.use_wal()?;
            Ok("it was switched")
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::index_in;

    #[test]
    fn only_errors_about_entries_of_an_index_name_one() {
        for error in [
            "row 3 missing from index idx",
            "row 3 values differ from index idx",
            "wrong # of entries in index idx",
            "non-unique entry in index idx",
        ] {
            assert_eq!(index_in(error), Some("idx"), "{error}");
        }
        for error in [
            "Tree 5 page 5 cell 0: 2nd reference to page 9",
            "Page 7: never used",
            "NULL value in events.source",
            "malformed inverted index for FTS5 table main.x",
        ] {
            assert_eq!(index_in(error), None, "{error}");
        }
    }
}
