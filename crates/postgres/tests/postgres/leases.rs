//! Every change of a lease that real programs store while they are killed, against the rule of the lease.

use std::time::Duration;

use thread_testkit::{Dice, kill, long, postgres::Server, wait_until};

use crate::machine::Machine;

/// The length of the leases, in milliseconds.
const LENGTH: i64 = 3000;

/// A lease as it was stored at some moment, in milliseconds since 1970 by the server's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Lease {
    at: i64,
    epoch: i64,
    renewal: i64,
    holder: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It was free, or of this machine, whose lock the one who takes it has.
    Takes,
    /// Of another machine, which has not renewed it for its whole length.
    TakesOver,
    Renews,
    GivesBack,
}

/// What leads from one to the next; `None` if the rule does not allow that.
fn step(before: &Lease, after: &Lease) -> Option<Step> {
    let is_same = before.holder == after.holder;
    let is_next =
        after.epoch == before.epoch + 1 && after.renewal > before.renewal && !after.holder.is_empty();
    if after.epoch == before.epoch {
        let renews = is_same && !after.holder.is_empty() && after.renewal > before.renewal;
        let gives_back = after.holder.is_empty() && !before.holder.is_empty();
        return if renews { Some(Step::Renews) } else { gives_back.then_some(Step::GivesBack) };
    }
    match () {
        () if !is_next => None,
        () if before.holder.is_empty() || is_same => Some(Step::Takes),
        () => (after.at - before.at >= LENGTH).then_some(Step::TakesOver),
    }
}

fn record(server: &Server, schema: &str) {
    server.psql(&format!(
        "CREATE TABLE public.trace (n bigserial, at bigint, epoch bigint, renewal bigint, holder text);
         CREATE FUNCTION public.record() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.trace (at, epoch, renewal, holder) VALUES
                 ((extract(epoch FROM clock_timestamp()) * 1000)::bigint, NEW.epoch, NEW.renewal, NEW.holder);
             RETURN NULL;
         END $$;
         CREATE TRIGGER record AFTER INSERT OR UPDATE ON {schema}.leases
             FOR EACH ROW EXECUTE FUNCTION public.record()"
    ));
}

fn trace(server: &Server) -> Vec<Lease> {
    let rows = server.psql("SELECT at, epoch, renewal, coalesce(holder, '') FROM public.trace ORDER BY n");
    let lease = |line: &str| {
        let fields: Vec<&str> = line.split('|').collect();
        let [at, epoch, renewal] = [0, 1, 2].map(|field| fields[field].parse().unwrap());
        Lease { at, epoch, renewal, holder: fields[3].to_owned() }
    };
    rows.lines().map(lease).collect()
}

#[test]
fn every_change_of_a_lease_is_one_that_the_rule_allows() {
    let Some(server) = Server::start() else { return };
    let text = server.location();
    let schema = text.split_once("schema=").and_then(|(_, rest)| rest.split_once('#')).unwrap().0;
    let mut machines = [Machine::new(&text), Machine::new(&text)];
    machines[0].ok(&["init", &text]);
    let handler = "read -r line; case $line in *long*) sleep 4 ;; *) sleep 0.4 ;; esac";
    let options = ["--deliver", "stdin", "--batch-size", "1", "--max-attempts", "never", "--backoff", "10ms"];
    machines[0].ok(&[&["subscribe", "bot", handler][..], &options].concat());
    record(&server, schema);
    let lease = ["--lease".to_owned(), format!("{LENGTH}ms")];
    let lease = [lease[0].as_str(), lease[1].as_str()];
    let (mut dice, mut kills) = (Dice::new(), 0);
    for _ in 0..if long() { 300 } else { 12 } {
        machines.iter_mut().for_each(|machine| machine.revive_worker(&lease));
        machines[0].ok(&["push", "a"]);
        std::thread::sleep(Duration::from_millis(100 + dice.up_to(500)));
        let machine = &machines[dice.up_to(1) as usize];
        let running = machine.processes();
        if let Some(pid) = running.get(dice.up_to(running.len().max(1) as u64 - 1) as usize) {
            kill(*pid);
            kills += 1;
        }
    }
    // Then one machine after the other is gone while it has the lease.
    for at in [0, 1] {
        machines[1 - at].kill();
        machines[at].revive_worker(&lease);
        wait_until("all to be delivered", || machines[1 - at].bot("pending") == 0);
        machines[at].ok(&["push", "long"]);
        wait_until("a renewal", || {
            if machines[at].bot("pending") == 0 {
                // It had ended before the last look.
                machines[at].ok(&["push", "long"]);
            }
            let trace = trace(&server);
            trace.windows(2).last().is_some_and(|pair| step(&pair[0], &pair[1]) == Some(Step::Renews))
        });
        machines[at].kill();
        machines[1 - at].revive_worker(&lease);
        wait_until("all to be delivered", || machines[1 - at].bot("pending") == 0);
    }
    machines.iter_mut().for_each(Machine::kill);
    let trace = trace(&server);
    let mut steps = Vec::new();
    for pair in trace.windows(2) {
        steps.push(step(&pair[0], &pair[1]).unwrap_or_else(|| panic!("{pair:?} in {trace:?}")));
    }
    let count = |what| steps.iter().filter(|step| **step == what).count();
    let [takes, over, renews, back] =
        [Step::Takes, Step::TakesOver, Step::Renews, Step::GivesBack].map(count);
    // Without a step, a renewal looks like the next one; and so does a lease that is taken and renewed.
    let refused = trace.windows(3).filter(|three| step(&three[0], &three[2]).is_none()).count();
    println!(
        "{} changes, {kills} kills: {takes} taken, {over} taken over, {renews} renewed, {back} given back; without one \
         step, {refused} are refused",
        trace.len()
    );
    assert!(takes > 0 && over > 0 && renews > 0);
    errors_are_refused(&trace);
}

fn errors_are_refused(trace: &[Lease]) {
    for pair in trace.windows(2) {
        let [before, after] = pair else { continue };
        let other = Lease { holder: "another".to_owned(), ..after.clone() };
        let wrong = [
            // An epoch that is given twice, is left out, or goes back.
            Lease { epoch: before.epoch, at: after.at, ..other.clone() },
            Lease { epoch: before.epoch + 2, ..after.clone() },
            Lease { epoch: before.epoch - 1, ..after.clone() },
            // A renewal that is none.
            Lease { renewal: before.renewal, epoch: before.epoch, ..before.clone() },
        ];
        let is_held = !before.holder.is_empty();
        for wrong in wrong.iter().filter(|_| is_held) {
            assert_eq!(step(before, wrong), None, "{before:?}, {wrong:?}");
        }
        // Taken from another machine before its time is over.
        let early = Lease {
            epoch: before.epoch + 1,
            renewal: before.renewal + 1,
            at: before.at + LENGTH - 1,
            ..other
        };
        assert!(!is_held || step(before, &early).is_none(), "{before:?}, {early:?}");
    }
}
