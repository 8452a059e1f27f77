//! Counts and digests of rows, by which two threads are compared.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha1::{Digest as _, Sha1};

use super::{TABLES, Table, Value, line, size};

/// How many rows of a kind there are, and the sum of their digests. It does not depend on the order in which they were
/// added, so that a copy that was interrupted continues with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    pub count: u64,
    pub digest: Digest,
}

/// A sum of digests, as 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Digest(u128);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
        let text = String::deserialize(from)?;
        let is_one = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let digest = is_one.then(|| u128::from_str_radix(&text, 16).ok()).flatten();
        digest.map(Digest).ok_or_else(|| serde::de::Error::custom("a digest has 32 hexadecimal digits"))
    }
}

impl Tally {
    /// Adds a row, as it is in the other thread.
    pub fn add(&mut self, table: &'static Table, row: &[Value]) {
        let mut text = Vec::with_capacity(size(row) + 200);
        match table.arrive {
            Some(arrive) => {
                let mut row = row.to_vec();
                arrive(&mut row);
                line::write(table, &row, &mut text);
            }
            None => line::write(table, row, &mut text),
        }
        let digest: [u8; 20] = Sha1::digest(&text).into();
        let first = u128::from_be_bytes(std::array::from_fn(|at| digest[at]));
        self.count += 1;
        self.digest.0 = self.digest.0.wrapping_add(first);
    }
}

/// The tallies of all kinds of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tallies(Vec<Tally>);

impl Default for Tallies {
    fn default() -> Tallies {
        Tallies(vec![Tally::default(); TABLES.len()])
    }
}

impl Tallies {
    pub fn add(&mut self, table: &'static Table, row: &[Value]) {
        self.of_mut(table).add(table, row);
    }

    pub fn of(&self, table: &'static Table) -> Tally {
        self.0[table.index()]
    }

    pub fn of_mut(&mut self, table: &'static Table) -> &mut Tally {
        &mut self.0[table.index()]
    }

    /// Each with the kind of its rows.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Table, Tally)> + '_ {
        TABLES.iter().zip(self.0.iter().copied())
    }
}
