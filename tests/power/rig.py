"""Cuts the power of a guest: see tests/FAULTS.md.

usage: rig.py THREAD FOLDER short|long

It must be root, and mounts disks in a namespace of its own.
"""

import concurrent.futures
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time

import check
import disk
import guest
import record
import services

HERE = os.path.dirname(os.path.abspath(__file__))


WORKERS = (os.cpu_count() or 2) + 2
# How long a guest may take, in seconds.
PATIENCE = 1800


def script(tools, **settings):
    with open(os.path.join(HERE, "workload.sh"), encoding="utf-8") as file:
        text = file.read()
    text = "".join(f"{name}='{value}'\n" for name, value in settings.items()) + text + "work\n"
    if not tools:
        return text
    # What it needs is on a disk of its own, and under the same paths as here.
    return f"""
mkdir /tools
mount -t ext4 -o ro /dev/vdb /tools
for name in proc sys dev tmp mnt; do mount --rbind /$name /tools/$name; done
cat >/tmp/work <<'END'
export PATH={tools}:/bin
{text}
END
chroot /tools sh /tmp/work
"""


class Scene:
    """A guest that works while its disk is recorded."""

    def __init__(self, name, kernel, programs, folder, kind="ext4", judge=check.Inbox, tools=None, prepare=None,
                 program=None, more=(), **settings):
        began = time.monotonic()
        self.name, self.programs, self.folder, self.judge = name, programs, folder, judge
        os.makedirs(folder, exist_ok=True)
        initrd = os.path.join(folder, "initrd")
        text = script(tools and programs, KIND=kind, **settings)
        guest.initramfs(initrd, kernel, text, () if tools else [program or os.path.join(programs, "thread"), *more])
        devices = ["-drive", f"file={tools},format=raw,if=virtio,readonly=on"] if tools else []
        self.recording = record.record(kernel, folder, kind, initrd, PATIENCE, prepare, devices, 768 if tools else 384)
        self.promises = check.Promises(self.recording)
        self.seconds = time.monotonic() - began

    def look(self, torn, flushes=None, enough=None, seed=1):
        """Looks at disks that a power cut may leave. Returns what is wrong with them."""
        began = time.monotonic()
        log = self.recording.log
        wanted = disk.cuts(log, torn, flushes, seed)
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        # Servers need the paths that they had in the guest.
        alone = self.judge is not check.Inbox
        workers = 1 if alone else WORKERS
        wrong, looked = [("always", problem) for problem in self.promises.failed], 0
        with tempfile.TemporaryDirectory(prefix="thread-cut", dir=memory) as images:
            number = itertools.count()

            def judge(cut, image):
                try:
                    look = self.judge(self.programs, self.promises, self.recording.kind)
                    return [(cut, problem) for problem in look(cut, image, "/mnt" if alone else image + ".mounted")]
                finally:
                    os.unlink(image)

            replayed = os.path.join(self.folder, "replayed")
            disk.copy(os.path.join(self.folder, "base"), replayed)
            made = disk.disks(log, replayed, wanted, lambda: os.path.join(images, f"{next(number)}"))
            with concurrent.futures.ThreadPoolExecutor(workers) as working:
                pending = set()
                for cut, image in made:
                    pending.add(working.submit(judge, cut, image))
                    if len(pending) > workers:
                        done, pending = concurrent.futures.wait(pending, return_when="FIRST_COMPLETED")
                        looked += len(done)
                        wrong += itertools.chain.from_iterable(one.result() for one in done)
                    if enough and len(wrong) >= enough:
                        break
                looked += len(pending)
                wrong += itertools.chain.from_iterable(one.result() for one in pending)
        print(f"{self.name}, {self.recording.kind}: {self.promises.numbers()} told in {self.seconds:.0f} s; "
              f"{len(log.entries)} entries, {len(log.flushes)} flushes; {looked} disks in "
              f"{time.monotonic() - began:.0f} s, {len(wrong)} problems", flush=True)
        if self.judge is services.Gateway:
            print(f"  {services.Gateway.continued} questions without an ending were continued by now")
        return wrong


def patched(thread, old, new):
    """A copy of the program in which a text of it is another one of the same length."""
    with open(thread, "rb") as file:
        program = file.read()
    assert old in program and len(old) == len(new), f"the program has no {old!r}"
    with open(thread, "wb") as file:
        file.write(program.replace(old, new))


def unsynced(*paths):
    """What makes each sync of these files or directories do nothing."""
    named = " ".join(f"-P {path}" for path in paths)
    traced = f"strace -f -qq -o /dev/null {named} -e trace=fsync,fdatasync -e inject=fsync,fdatasync:retval=0"
    return {"THREAD": f"{traced} thread", "more": [shutil.which("strace")]}


def planted(kernel, programs, folder, long):
    """Each of these faults must be found. Returns those that are not."""
    weaker = os.path.join(folder, "weaker")
    os.makedirs(weaker)
    weak = shutil.copy(os.path.join(programs, "thread"), weaker)
    patched(weak, b"synchronous = FULL", b"synchronous = 1   ")
    faults = [("synchronous=NORMAL", {"program": weak})]
    if long:
        faults += [
            ("no sync of the directory", unsynced("/mnt", "/mnt/inbox")),
            ("a WAL that is reused before the database is synced", dict(unsynced("/mnt/inbox/events.db"), PARTS="session batches")),
            ("an acknowledgement before the commit", {"TOO_EARLY": "1"}),
        ]
    missed = []
    for number, (name, settings) in enumerate(faults):
        made = Scene(name, kernel, programs, os.path.join(folder, str(number)),
                     **{"PARTS": "session", "PUSHES": 4, **settings})
        wrong = made.look(torn=20, flushes=100, enough=1)
        if not any("lost" in problem for _, problem in wrong):
            missed.append(name)
    return missed


def main(thread, folder, form):
    long = form == "long"
    kernel = guest.find_kernel()
    shutil.rmtree(folder, ignore_errors=True)
    programs = os.path.join(os.path.abspath(folder), "programs")
    os.makedirs(programs)
    strip(thread, programs)
    scenes = [(dict(PARTS="pool pushers session batches", PUSHES=5), 60, 60)]
    if long:
        parts = "keeper schedules pool pushers session batches"
        kinds = list(file_systems())
        scenes = [(dict(kind=kind, PARTS=parts, PUSHES=20 if guest.has_kvm() else 5), 1000, None) for kind in kinds]
        scenes += with_services(thread, programs, kinds)
    bad = False
    for number, (settings, torn, flushes) in enumerate(scenes):
        made = Scene(settings["PARTS"], kernel, programs, os.path.join(folder, str(number)), **settings)
        wrong = made.look(torn, flushes)
        for cut, problem in wrong[:20]:
            print(f"{cut}: {problem}")
        bad = bad or bool(wrong)
    for name in planted(kernel, programs, os.path.join(folder, "planted"), long):
        print(f"this fault went unnoticed: {name}")
        bad = True
    return 1 if bad else 0


def strip(program, folder):
    subprocess.run(["strip", "-o", os.path.join(folder, os.path.basename(program)), program], check=True)


def with_services(thread, programs, kinds):
    """The scenes with a gateway and with PostgreSQL."""
    built = os.path.dirname(thread)
    for name in ("thread-serve", "thread-agent", "thread-postgres"):
        strip(os.path.join(built, name), programs)
    tools = os.path.join(os.path.dirname(programs), "tools")
    files = [(os.path.join(programs, name), os.path.join(programs, name)) for name in os.listdir(programs)]
    files += [(f"/etc/{name}", f"/etc/{name}") for name in ("passwd", "group", "nsswitch.conf")]
    folders = []
    if bin := services.postgres_programs():
        version = os.path.basename(os.path.dirname(bin))
        folders = [f"/usr/lib/postgresql/{version}", f"/usr/share/postgresql/{version}", "/usr/share/zoneinfo"]
    guest.tools(tools, [guest.busybox()], folders, files)
    scenes = []
    for kind in kinds:
        common = dict(kind=kind, tools=tools)
        scenes.append((dict(common, PARTS="gateway", PUSHES=6, judge=services.Gateway), 40, 60))
        if bin:
            scenes.append((dict(common, PARTS="postgres", PUSHES=10, judge=services.Postgres,
                                prepare=services.prepare), 40, 60))
    return scenes


def needs(kernel, long):
    """Exits and prints what is missing: with 78 if it is something that `.ci/run` installs, else with 77."""
    def without(what, code):
        print(what)
        sys.exit(code)

    if os.geteuid() != 0:
        without("root", 77)
    if not os.path.exists("/dev/loop-control"):
        without("loop devices", 77)
    if not long and not guest.has_kvm():
        without("KVM, or the long form", 77)
    if not shutil.which("qemu-system-x86_64"):
        without("qemu-system-x86_64", 78)
    if kernel is None or guest.busybox() is None:
        without("a kernel and busybox in the folder THREAD_TEST_KERNEL", 78)


def file_systems():
    """Those that the kernel of this machine can mount."""
    if shutil.which("modprobe"):
        subprocess.run(["modprobe", "-q", "xfs"], stderr=subprocess.DEVNULL, check=False)
    with open("/proc/filesystems", encoding="ascii") as known:
        words = known.read().split()
    for kind in ("ext4", "xfs"):
        if kind in words:
            yield kind
        else:
            print(f"{kind} is left out: this kernel cannot mount it")


if __name__ == "__main__":
    if os.environ.get("THREAD_POWER_INSIDE") is None:
        needs(guest.find_kernel(), sys.argv[3] == "long")
        os.environ["THREAD_POWER_INSIDE"] = "1"
        os.environ["PATH"] += ":/usr/sbin:/sbin"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, "-B", *sys.argv])
    sys.exit(main(*sys.argv[1:]))
