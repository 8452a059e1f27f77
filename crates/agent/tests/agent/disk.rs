//! Disks that are full for a while, or slow.

use thread_testkit::skipped;

use crate::harness::Talk;

/// Script that creates a thread on a disk of 4 MB.
const PREPARE: &str = "mkdir disk; mount -t tmpfs -o size=4m tmpfs disk; export THREAD_DIR=\"$PWD/disk/talk\"; set -e; \
                       thread init \"$THREAD_DIR\";";

/// A conversation; `None` if this machine cannot mount a small disk.
fn with_small_disk() -> Option<Talk> {
    let talk = Talk::new();
    let mounted = talk.sh("unshare -rm mount -t tmpfs tmpfs /mnt").succeeds();
    if !mounted {
        skipped("the right to mount a small disk");
    }
    mounted.then_some(talk)
}

/// Runs a script in a mount namespace of its own.
fn run(talk: &Talk, script: &str) {
    let ran = talk.command("unshare").args(["-rm", "sh", "-c", script]).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn a_program_that_prints_while_the_disk_is_full_is_not_quiet() {
    let Some(talk) = with_small_disk() else { return };
    // The program prints all the time; the disk is full for longer than it may be quiet.
    talk.write(
        "agent.sh",
        "read x; dd if=/dev/zero of=disk/fill bs=4k 2>/dev/null; (sleep 4; rm disk/fill) >/dev/null &\n\
         for i in $(seq 60); do echo $i; sleep 0.1; done\n",
    );
    let script = format!(
        "{PREPARE} thread agent install --quiet 2s --attempts 1 -- sh agent.sh\n\
         thread ask --timeout 2m hello >answer; thread agent stop"
    );
    run(&talk, &script);
    let all: String = (1..=60).map(|n| format!("{n}\n")).collect();
    assert_eq!(talk.read("answer"), all);
}

#[test]
fn events_that_cannot_be_stored_are_kept_until_there_is_space() {
    let Some(talk) = with_small_disk() else { return };
    // The program fills the disk, prints more than fits, and frees the space after a while.
    talk.write(
        "agent.sh",
        "read x; dd if=/dev/zero of=disk/fill bs=4k 2>/dev/null; head -c 300000 /dev/zero | tr '\\0' x\n\
         sleep 1; thread peek --last-event-id 0 --limit 1000 --filter \"subtype = 'token'\" | wc -c >stored; rm disk/fill\n",
    );
    let script = format!(
        "{PREPARE} thread agent install -- sh agent.sh\n\
         thread ask --timeout 2m hello | tr -d '\\n' | wc -c >answer\n\
         thread peek --last-event-id 0 --limit 100000 --filter \"subtype = 'token'\" | grep -o x | wc -l >tokens\n\
         thread agent stop"
    );
    run(&talk, &script);
    let number = |name: &str| talk.read(name).trim().parse::<u64>().unwrap();
    assert!(number("stored") < 300_000, "the disk was not full");
    assert_eq!(number("answer"), 300_000);
    assert_eq!(number("tokens"), 300_000);
}

#[test]
fn a_slow_disk_cuts_no_answer_short() {
    let talk = Talk::new();
    if !talk.sh("strace -o strace.out true").succeeds() {
        return skipped("strace that may trace");
    }
    // A sync takes longer than the wait for output after the program has exited.
    talk.write("agent.sh", "head -c 300000 /dev/zero | tr '\\0' x");
    let slow =
        "strace -f -o strace.out -e trace=fdatasync,fsync -e inject=fdatasync,fsync:delay_enter=2200000";
    let handler = format!("{slow} thread agent -- sh agent.sh");
    let filter = "type = 'message' AND source <> 'self'";
    talk.thread(&["subscribe", "--consumer", "agent", "--filter", filter, "--handler", &handler]).ok();
    let id = talk.say("hello");
    let answer = talk.answer(id);
    assert_eq!((answer.len(), answer.trim_matches('x')), (300_000, ""));
    assert_eq!(talk.tokens(&format!("run_{id}")).concat(), answer);
}

#[test]
fn what_is_printed_after_the_exit_is_waited_for_however_slow_the_disk() {
    let talk = Talk::new();
    if !talk.sh("strace -o strace.out true").succeeds() {
        return skipped("strace that may trace");
    }
    // Storing the second line takes longer than the wait for output after the exit; the third is printed then.
    let stored =
        |line: &str| format!("until grep -q {line} \"$THREAD_DIR/events.jsonl\"; do sleep 0.02; done");
    let (one, two) = (stored("line-one"), stored("line-two"));
    talk.write("agent.sh", &format!("echo line-one; ({one}; echo line-two; {two}; echo line-three) &"));
    let slow =
        "strace -f -o strace.out -e trace=fdatasync,fsync -e inject=fdatasync,fsync:delay_enter=2200000";
    let handler = format!("{slow} thread agent -- sh agent.sh");
    let filter = "type = 'message' AND source <> 'self'";
    talk.thread(&["subscribe", "--consumer", "agent", "--filter", filter, "--handler", &handler]).ok();
    assert_eq!(talk.answer(talk.say("hello")), "line-one\nline-two\nline-three\n");
}
