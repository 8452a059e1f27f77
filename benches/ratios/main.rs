//! Speed of this program, as ratios to other programs that do the same work in the same run.
//!
//! `cargo bench` takes a minute or two; `cargo bench -- --full` takes more rounds and larger threads;
//! `cargo bench -- push read` runs the benchmarks whose names contain one of these words;
//! `cargo bench -- --program PATH` measures another build. Ratios below 1 are in our favour.

mod measure;
mod peers;
mod place;
mod works;

use std::path::PathBuf;

use measure::Pairs;
use place::Place;

/// Which benchmarks to run, and how thoroughly.
pub struct Plan {
    pub program: PathBuf,
    pub full: bool,
    only: Vec<String>,
}

impl Plan {
    fn from_args() -> Plan {
        let mut plan = Plan { program: env!("CARGO_BIN_EXE_thread").into(), full: false, only: Vec::new() };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                // Passed by `cargo bench` itself.
                "--bench" => {}
                "--full" => plan.full = true,
                "--program" => plan.program = args.next().expect("--program needs a path").into(),
                _ => plan.only.push(arg),
            }
        }
        plan.program = plan.program.canonicalize().expect("the program to measure is there");
        plan
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| name.contains(word.as_str()))
    }

    /// Returns the value for the quick or the full run.
    pub fn pick<N>(&self, quick: N, full: N) -> N {
        if self.full { full } else { quick }
    }
}

fn main() {
    let plan = Plan::from_args();
    let place = Place::new(&plan.program);
    println!("{}\n", place.machine());
    println!(
        "{:<46} {:>9} {:>9}   {:>5} {:>13} {:>6}",
        "work, against", "ours", "theirs", "ratio", "quartiles", "goal"
    );
    for (name, work) in works::ALL {
        if plan.wants(name) {
            work(&plan, &place);
        }
    }
}

/// Prints one line of the table. `goal` is the largest acceptable ratio.
pub fn row(work: &str, pairs: &Pairs, goal: Option<f64>) {
    let (ours, theirs) = pairs.medians();
    let [low, ratio, high] = pairs.ratio();
    let goal = goal.map_or(String::new(), |goal| format!("{goal:.2}"));
    println!(
        "{work:<46} {:>9} {:>9}   {ratio:>5.2} {:>13} {goal:>6}",
        time(ours),
        time(theirs),
        format!("{low:.2}..{high:.2}")
    );
}

/// Prints a figure that is not a ratio. `goal` is the largest acceptable value.
pub fn figure(work: &str, value: String, goal: &str) {
    println!("{work:<46} {value:>9} {:>34}", format!("<= {goal}"));
}

pub fn time(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.2} ms", seconds * 1000.0) } else { format!("{seconds:.2} s") }
}
