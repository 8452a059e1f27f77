//! Which files processes watch, and the notices of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::files::watch::Notice;

#[derive(Default)]
pub struct Watches {
    /// By their numbers: the process, and the file.
    all: BTreeMap<i32, (i64, PathBuf)>,
    newest: i32,
    /// Those that were not taken yet, by process.
    notices: BTreeMap<i64, Vec<Notice>>,
}

impl Watches {
    pub fn add(&mut self, process: i64, name: &str) -> i32 {
        let is_it = |(_, (of, file)): &(&i32, &(i64, PathBuf))| *of == process && file == Path::new(name);
        if let Some((number, _)) = self.all.iter().find(is_it) {
            return *number;
        }
        self.newest += 1;
        self.all.insert(self.newest, (process, name.into()));
        self.newest
    }

    pub fn remove(&mut self, watch: i32) {
        if let Some((process, _)) = self.all.remove(&watch) {
            self.notices.entry(process).or_default().push(Notice::Gone(watch));
        }
    }

    /// A process has ended.
    pub fn end(&mut self, process: i64) {
        self.all.retain(|_, (of, _)| *of != process);
        self.notices.remove(&process);
    }

    pub fn touch(&mut self, name: &Path) {
        for (watch, (process, _)) in self.all.iter().filter(|(_, (_, file))| file == name) {
            let (notices, notice) = (self.notices.entry(*process).or_default(), Notice::Touched(*watch));
            if notices.last() != Some(&notice) {
                notices.push(notice);
            }
        }
    }

    pub fn take(&mut self, process: i64) -> Vec<Notice> {
        self.notices.remove(&process).unwrap_or_default()
    }
}
