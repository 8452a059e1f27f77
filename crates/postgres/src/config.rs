//! The settings of a thread. The table is made with the first setting in the schema, outside of the schema's versions:
//! programs that do not know it need not be refused.

use std::collections::BTreeMap;

use thread::Result;

use crate::link::{Session, lock_key, text};

pub fn has_table(session: &mut Session<'_>) -> Result<bool> {
    let sql = "SELECT ($1::bigint IS NOT NULL AND to_regclass($$@config$$) IS NOT NULL)::int::int8";
    Ok(session.number(sql, &[])? == Some(1))
}

pub fn load(session: &mut Session<'_>) -> Result<BTreeMap<String, String>> {
    if !has_table(session)? {
        return Ok(BTreeMap::new());
    }
    // Others are private to the store.
    let rows =
        session.rows("SELECT name, value FROM @config WHERE thread = $1 AND left(name, 1) <> '_'", &[])?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Sets one or, without a value, removes it. Returns whether it was set before. Called in a transaction.
pub fn set(session: &mut Session<'_>, name: &str, value: Option<&str>) -> Result<bool> {
    if value.is_some() {
        prepare(session)?;
    } else if !has_table(session)? {
        return Ok(false);
    }
    let sql = "DELETE FROM @config WHERE thread = $1 AND name = $2 RETURNING 1::bigint";
    let was_set = session.number(sql, &[text(&name)])?.is_some();
    if let Some(value) = value {
        let sql = "INSERT INTO @config (thread, name, value) VALUES ($1, $2, $3) \
                   ON CONFLICT (thread, name) DO UPDATE SET value = $3";
        session.rows(sql, &[text(&name), text(&value)])?;
    }
    Ok(was_set)
}

/// Makes the table if it is missing.
pub fn prepare(session: &mut Session<'_>) -> Result<()> {
    if has_table(session)? {
        return Ok(());
    }
    // Without the lock, two processes that make it at once would disturb each other.
    let lock = lock_key(&[&session.target.schema, "schema"]);
    session.batch(&format!(
        "SELECT pg_advisory_xact_lock({lock}); CREATE TABLE IF NOT EXISTS @config (thread bigint NOT NULL, \
         name text COLLATE \"C\" NOT NULL, value text NOT NULL, PRIMARY KEY (thread, name))"
    ))
}
