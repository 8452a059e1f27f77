//! A disk that is full for a while.

use crate::harness::{Talk, lacks};

#[test]
fn what_cannot_be_stored_is_kept_until_there_is_space() {
    let talk = Talk::new();
    let trial = talk.sh("unshare -rm mount -t tmpfs tmpfs /mnt");
    if lacks("unshare") || trial.code != 0 {
        eprintln!("skipped: no small disk can be mounted here");
        return;
    }
    // The program fills the disk, says more than fits, and makes room after a while.
    talk.write(
        "agent.sh",
        "read x; dd if=/dev/zero of=disk/fill bs=4k 2>/dev/null; head -c 300000 /dev/zero | tr '\\0' x\n\
         sleep 1; thread peek --last-event-id 0 --limit 1000 --filter \"subtype = 'token'\" | wc -c >stored; rm disk/fill\n",
    );
    let script = "mkdir disk; mount -t tmpfs -o size=4m tmpfs disk; export THREAD_DIR=$PWD/disk/talk; set -e\n\
                  thread init $THREAD_DIR; thread agent install -- sh agent.sh\n\
                  thread ask --timeout 2m hello | tr -d '\\n' | wc -c >answer\n\
                  thread peek --last-event-id 0 --limit 100000 --filter \"subtype = 'token'\" | grep -o x | wc -l >tokens\n\
                  thread agent stop";
    let mut command = talk.command("unshare");
    let ran = command.args(["-rm", "sh", "-c", script]).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let number = |name: &str| talk.read(name).trim().parse::<u64>().unwrap();
    assert!(number("stored") < 300_000, "the disk was not full");
    assert_eq!(number("answer"), 300_000);
    assert_eq!(number("tokens"), 300_000);
}
