//! How many connections the many processes of a machine have at once that look after handlers. Each of these connections
//! has a slot, which is the lock of a file, so that of a killed process is free.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sha1::{Digest, Sha1};
use thread::Result;

use crate::location::state_dir;
use crate::settings::Settings;

/// How many there are, for one user and one server.
const SLOTS: u32 = 14;

/// How often the process whose turn it is tries the slots; and how often, at least, the others try to be the one.
const TRY_EVERY: Duration = Duration::from_millis(3);
const WAIT: Duration = Duration::from_millis(8);

/// A process may keep its slot for so long, though others wait.
const TURN: Duration = Duration::from_millis(200);

/// A slot, which is free again once this is dropped.
pub struct Slot {
    _locked: File,
    /// Locked by the process that is the next to get a slot.
    next: File,
    since: Instant,
}

/// All slots are taken.
pub struct Busy;

impl Slot {
    /// Takes a slot, waiting for at most `patience`. `None` if there are no slots, as no files can be made.
    pub fn take(settings: &Settings, patience: Duration) -> Result<Option<Slot>, Busy> {
        let Ok(dir) = of_server(settings) else { return Ok(None) };
        let Ok(next) = file(&dir.join("next")) else { return Ok(None) };
        let began = Instant::now();
        let is_over = || began.elapsed() >= patience;
        while next.try_lock().is_err() {
            if is_over() {
                return Err(Busy);
            }
            // Not all at the same time.
            let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
            std::thread::sleep(WAIT + Duration::from_micros(u64::from(nanos / 1000 % 16_000)));
        }
        loop {
            for at in (0..SLOTS).map(|at| (at + std::process::id()) % SLOTS) {
                match file(&dir.join(at.to_string())) {
                    Ok(slot) if slot.try_lock().is_ok() => {
                        drop(next.unlock());
                        return Ok(Some(Slot { _locked: slot, next, since: Instant::now() }));
                    }
                    Ok(_) => {}
                    Err(_) => return Ok(None),
                }
            }
            if is_over() {
                return Err(Busy);
            }
            std::thread::sleep(TRY_EVERY);
        }
    }

    /// Whether another process waits for a slot.
    pub fn is_wanted(&self) -> bool {
        let is_free = self.next.try_lock().is_ok();
        if is_free {
            drop(self.next.unlock());
        }
        !is_free
    }

    /// Whether another process waits for a slot, and has done so for long enough.
    pub fn is_due(&self) -> bool {
        self.since.elapsed() >= TURN && self.is_wanted()
    }
}

fn of_server(settings: &Settings) -> Result<std::path::PathBuf> {
    let server = [settings.host.join(","), settings.port.join(",")].join("\0");
    let digest: String =
        Sha1::digest(server.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Ok(state_dir()?.join(format!("{digest}.connections")))
}

fn file(path: &Path) -> std::io::Result<File> {
    let open = || File::options().create(true).append(true).open(path);
    open().or_else(|_| {
        std::fs::create_dir_all(path.parent().unwrap_or(path))?;
        open()
    })
}

#[cfg(test)]
mod tests {
    use thread::model::location::Location;
    use thread_testkit::wait_until;

    use super::*;
    use crate::location::Target;

    #[test]
    fn a_slot_is_had_at_once_while_one_is_free_and_wanted_while_another_process_waits() {
        let text = format!("postgres://slots-{}/d#x", std::process::id());
        let settings = &Target::of(&Location::from(text)).unwrap().settings;
        // Each as in a process of its own.
        let take = |patience: Duration| Slot::take(settings, patience).map(|slot| slot.expect("no files"));
        let mut all: Vec<Slot> =
            (0..SLOTS).map(|_| take(Duration::ZERO).unwrap_or_else(|Busy| panic!("busy"))).collect();
        for _ in 0..2 {
            assert!(all.iter().all(|slot| !slot.is_wanted()));
        }
        assert!(take(Duration::ZERO).is_err());
        wait_until("nobody to wait", || !all[0].is_wanted());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| take(Duration::from_secs(120)));
            wait_until("another to wait", || all[0].is_wanted());
            assert!(all.iter().all(Slot::is_wanted));
            drop(all.pop());
            assert!(waits.join().unwrap().is_ok_and(|slot| !slot.is_wanted()));
        });
        drop(all);
        std::fs::remove_dir_all(of_server(settings).unwrap()).unwrap();
    }
}
