//! Checks that the database is a thread's, is undamaged, and has the complete schema.

use super::{Doctor, Finding};
use crate::error::Result;
use crate::files::DB;
use crate::sqlite::Sqlite;
use crate::store::Store;

/// Examines the database, and returns it open for reading (and, with `fix`, writing); `None` if it cannot be relied
/// on. `sound`: all files can be used.
pub fn check(doctor: &mut Doctor<'_>, sound: bool) -> Option<Sqlite> {
    let prepared = doctor.files.prepare_database();
    if prepared.is_err() && !sound {
        // Unusable files are reported already.
        return None;
    }
    let opened = prepared.and_then(|()| Sqlite::open_to_examine(&doctor.files.path_of(DB)));
    let mut store = opened.map_err(|e| doctor.report(Finding::failed("database", e))).ok()?;
    integrity(doctor, &mut store)?;
    schema(doctor, &mut store).map_err(|e| doctor.report(Finding::failed("schema", e))).ok()?;
    Some(store)
}

/// Runs SQLite's integrity check; `None` if the database is damaged. Only indexes can be repaired, because their
/// contents are also in the tables.
fn integrity(doctor: &mut Doctor<'_>, store: &mut Sqlite) -> Option<()> {
    const CHECK: &str = "integrity";
    let checked = store.integrity_errors();
    let errors = checked.map_err(|e| doctor.report(Finding::failed(CHECK, e))).ok()?;
    let indexes: Option<Vec<&str>> = errors.iter().map(|text| index_in(text)).collect();
    let Some(mut indexes) = indexes else {
        let more = match errors.len() {
            1 => String::new(),
            n => format!(", and {} more errors", n - 1),
        };
        let problem = format!("the database is damaged: {}{more}", errors[0]);
        doctor.report(Finding::error(CHECK, problem).advise(
            "restore the thread from a backup, or salvage it with `sqlite3 events.db .recover`; doctor writes nothing to it",
        ));
        return None;
    };
    if doctor.fix {
        // If this fails, so does each repair, which then reports why.
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
    Some(())
}

/// The index named by an error that only reports that the index does not match the table; `None` for damaged pages.
fn index_in(error: &str) -> Option<&str> {
    let (what, name) = error.rsplit_once(" index ")?;
    let is_row =
        what.starts_with("row ") && (what.ends_with(" missing from") || what.ends_with(" differ from"));
    let is_entry = what == "wrong # of entries in" || what == "non-unique entry in";
    (is_row || is_entry).then_some(name)
}

fn schema(doctor: &mut Doctor<'_>, store: &mut Sqlite) -> Result<()> {
    const CHECK: &str = "schema";
    // Before the migration, which resets such cursors silently.
    let newest = store.newest()?;
    for (consumer, value) in store.stray_cursors()? {
        let problem =
            format!("the cursor of '{consumer}' is {value}, but the newest event ever was {newest}");
        doctor.found(Finding::error("cursor", problem), || {
            store.repair_cursors().map(|()| "it was set to the newest event, or to 0 if it was not a number")
        });
    }
    if store.is_older()? {
        let problem = "the schema is an older one; the next command brings it up to date";
        doctor.found(Finding::warning(CHECK, problem), || {
            store.migrate().map(|()| "it was brought up to date")
        });
    }
    if store.is_older()? {
        store.create_compat_views()?;
    } else {
        for name in store.missing_objects()? {
            let finding = Finding::error(CHECK, format!("the schema lacks {name}"));
            doctor.found(finding, || store.migrate().map(|()| "it was recreated"));
        }
    }
    let mode = store.journal_mode()?;
    if !mode.eq_ignore_ascii_case("wal") {
        let problem = format!("the database is in mode '{mode}', not in write-ahead logging");
        doctor.found(Finding::warning(CHECK, problem), || store.use_wal().map(|()| "it was switched"));
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
