//! A COPY that continues while the next rows are being made: a dedicated thread waits for the server.

use std::io::{self, Write};
use std::num::TryFromIntError;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use thread::{Error, Result};

use crate::connection::Connection;
use crate::error::{Doing, failed};

/// How many pieces may wait to be sent.
const AHEAD: usize = 4;

/// What precedes the rows in the binary format: its name, no flags, and no extension.
const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// What follows them, where a row has the number of its columns.
const TRAILER: [u8; 2] = (-1_i16).to_be_bytes();

/// A COPY that was begun. Its connection can do nothing else until it ends.
pub struct Copy {
    pieces: SyncSender<Vec<u8>>,
    copier: JoinHandle<(Connection, Result<()>)>,
}

impl Copy {
    pub fn begin(mut connection: Connection, sql: String, doing: &'static str) -> Result<Copy> {
        let (pieces, received) = sync_channel(AHEAD);
        let copier = std::thread::Builder::new().name("copy".to_owned()).spawn(move || {
            let copied = copy(&mut connection, &sql, &received, doing);
            (connection, copied)
        });
        let copier = copier.map_err(|source| Error::Spawn { what: "a thread", source })?;
        Ok(Copy { pieces, copier })
    }

    /// Sends rows. Returns false if it has failed: [`Copy::end`] says why.
    pub fn send(&self, rows: Vec<u8>) -> bool {
        self.pieces.send(rows).is_ok()
    }

    /// Returns the connection. What was sent is stored if `keep`; if not, the transaction has failed.
    pub fn end(self, keep: bool) -> (Connection, Result<()>) {
        if keep {
            self.send(TRAILER.to_vec());
        }
        drop(self.pieces);
        self.copier.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Sends the data as it comes. It is stored only if it ends with the trailer.
fn copy(
    connection: &mut Connection,
    sql: &str,
    pieces: &Receiver<Vec<u8>>,
    doing: &'static str,
) -> Result<()> {
    let lost = |e: io::Error| match e.downcast::<postgres::Error>() {
        Ok(e) => failed(&e, doing),
        Err(e) => Error::Other(format!("cannot send to the server: {e}")),
    };
    let mut writer = connection.client.copy_in(sql).doing(doing)?;
    writer.write_all(HEADER).map_err(lost)?;
    for piece in pieces {
        writer.write_all(&piece).map_err(lost)?;
        if piece == TRAILER {
            return writer.finish().map(drop).doing(doing);
        }
    }
    Ok(())
}

/// Appends a row, of text and bytes as they are, and numbers with the highest byte first.
///
/// # Errors
///
/// A column has more than 2 GiB.
pub fn write_row(rows: &mut Vec<u8>, columns: &[Option<&[u8]>]) -> Result<(), TryFromIntError> {
    rows.extend_from_slice(&i16::try_from(columns.len())?.to_be_bytes());
    for column in columns {
        let length = column.map_or(Ok(-1), |column| i32::try_from(column.len()))?;
        rows.extend_from_slice(&length.to_be_bytes());
        rows.extend_from_slice(column.unwrap_or_default());
    }
    Ok(())
}
