//! The possible states of a disk after a power cut.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::record::{NameOp, Op, Recording, write};

/// The size of a sector, the unit of a torn write.
const SECTOR: usize = 512;

/// A small seeded generator: failures print the seed that reproduces them.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end.max(1)
    }

    pub fn coin(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// The fate of unsynced changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Dropped,
    Kept,
    /// Each of them is there or not.
    Some,
    /// All are there, but the last write only in part of its sectors.
    Torn,
    /// The later ones are there, the earlier ones are not.
    Reordered,
}

pub const FATES: [Fate; 5] = [Fate::Dropped, Fate::Some, Fate::Torn, Fate::Reordered, Fate::Kept];

/// A file on the disk: its durable bytes, and the changes since.
#[derive(Default, Clone)]
struct OnDisk {
    lasting: Vec<u8>,
    since: Vec<(usize, Op)>,
}

pub struct Disk {
    files: Vec<OnDisk>,
    names: BTreeMap<PathBuf, usize>,
    since: Vec<NameOp>,
    count: usize,
}

/// The files found after the cut: the recording's file number and the bytes.
pub type Found = BTreeMap<PathBuf, (usize, Vec<u8>)>;

impl Disk {
    pub fn new(recording: &Recording) -> Disk {
        let lasting = recording.before.values().cloned();
        Disk {
            files: lasting.map(|lasting| OnDisk { lasting, since: Vec::new() }).collect(),
            names: recording.before.keys().cloned().zip(0..).collect(),
            since: Vec::new(),
            count: 0,
        }
    }

    pub fn apply(&mut self, op: &Op) {
        self.count += 1;
        match op {
            Op::Write { file, .. } | Op::Truncate { file, .. } => {
                self.files[*file].since.push((self.count, op.clone()));
            }
            Op::Sync { file } => {
                let OnDisk { lasting, since } = &mut self.files[*file];
                since.drain(..).for_each(|(_, op)| change(lasting, &op));
            }
            Op::SyncDir { dir } => {
                let names = &mut self.names;
                self.since.retain(|op| {
                    let here = op.names().iter().all(|name| name.parent() == Some(dir));
                    if here {
                        op.apply(names);
                    }
                    !here
                });
            }
            Op::Name(op) => {
                if let NameOp::Create { file, .. } = op {
                    self.files.resize_with(*file + 1, OnDisk::default);
                }
                self.since.push(op.clone());
            }
            Op::Answer(_) => {}
        }
    }

    /// A state that may be found after a cut at this moment.
    pub fn after_cut(&self, fate: Fate, dice: &mut Dice) -> Found {
        let mut names = self.names.clone();
        // A journalling file system keeps the order of operations on one name.
        let mut lost = BTreeSet::new();
        for op in &self.since {
            let gone = match fate {
                Fate::Dropped => true,
                Fate::Kept | Fate::Torn => false,
                Fate::Some | Fate::Reordered => dice.coin(),
            };
            if gone || op.names().iter().any(|name| lost.contains(*name)) {
                lost.extend(op.names().into_iter().cloned());
            } else {
                op.apply(&mut names);
            }
        }
        let unsynced = self.files.iter().flat_map(|file| &file.since);
        let mut times: Vec<usize> = unsynced.map(|(time, _)| *time).collect();
        times.sort_unstable();
        let last = times.last().copied();
        let turn = times.get(dice.below(times.len())).copied().unwrap_or_default();
        let mut found = Found::new();
        for (path, file) in names {
            let mut bytes = self.files[file].lasting.clone();
            for (time, op) in &self.files[file].since {
                let kept = match fate {
                    Fate::Dropped => false,
                    Fate::Kept => true,
                    Fate::Some => dice.coin(),
                    Fate::Reordered => *time >= turn,
                    Fate::Torn if Some(*time) == last => {
                        tear(&mut bytes, op, dice);
                        continue;
                    }
                    Fate::Torn => true,
                };
                if kept {
                    change(&mut bytes, op);
                } else if let (Fate::Some, Op::Write { at, bytes: new, .. }) = (fate, op)
                    && bytes.len() < at + new.len()
                    && dice.below(4) == 0
                {
                    // The new length reached the disk, but not the data.
                    bytes.resize(at + new.len(), 0);
                }
            }
            found.insert(path, (file, bytes));
        }
        found
    }
}

fn change(content: &mut Vec<u8>, op: &Op) {
    match op {
        Op::Write { at, bytes, .. } => write(content, *at, bytes),
        Op::Truncate { length, .. } => content.resize(*length, 0),
        _ => {}
    }
}

/// Writes only some of the sectors.
fn tear(content: &mut Vec<u8>, op: &Op, dice: &mut Dice) {
    let Op::Write { at, bytes, .. } = op else { return };
    let mut from = 0;
    while from < bytes.len() {
        let upto = (SECTOR - (at + from) % SECTOR + from).min(bytes.len());
        if dice.coin() {
            write(content, at + from, &bytes[from..upto]);
        }
        from = upto;
    }
}
