//! Which tables there are. Many come with the first use of what they are for, perhaps by another process.

use rusqlite::Connection;

/// Whether the table exists. SQLite's cached schema may be older than a table that another process has made; any statement
/// makes it look.
pub fn has_table(conn: &Connection, table: &str) -> rusqlite::Result<bool> {
    if conn.table_exists(Some("main"), table)? {
        return Ok(true);
    }
    look_again(conn)?;
    conn.table_exists(Some("main"), table)
}

/// Whether the table has that column; see [`has_table`].
pub fn has_column(conn: &Connection, table: &str, column: &str) -> rusqlite::Result<bool> {
    if conn.column_exists(Some("main"), table, column)? {
        return Ok(true);
    }
    look_again(conn)?;
    conn.column_exists(Some("main"), table, column)
}

fn look_again(conn: &Connection) -> rusqlite::Result<()> {
    conn.prepare_cached("SELECT 1 FROM main.sqlite_schema LIMIT 1")?.exists([]).map(drop)
}
