"""Records a guest: what it writes to its disk, and what it tells, with the length of the log at that time."""

import os
import select
import subprocess
import time

import check
import disk
import guest

SIZES = {"ext4": "128M", "xfs": "320M"}


def make(path, kind):
    """An empty file system."""
    with open(path, "wb") as image:
        image.truncate(int(SIZES[kind][:-1]) << 20)
    if kind == "ext4":
        # Nothing is left for the kernel to do later.
        command = ["mkfs.ext4", "-q", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", path]
    else:
        command = [f"mkfs.{kind}", "-q", "-K", path]
    subprocess.run(command, check=True, env={**os.environ, "PATH": os.environ["PATH"] + ":/sbin:/usr/sbin"})


class Told:
    """A line of the guest, the time, and how many entries the log had when it was read."""

    def __init__(self, entries, time, line):
        self.entries, self.time, self.line = entries, time, line


class Recording:
    def __init__(self, log, base, kind, told, length):
        self.log, self.base, self.kind, self.told, self.length = log, base, kind, told, length

    def entries_at(self, moment):
        """At most so many entries were logged by this time: the first count that was seen after it."""
        for at, entries in self.length:
            if at >= moment:
                return entries
        return None


def record(kernel, folder, kind, initrd, patience, prepare=None, devices=(), memory=384):
    """Runs a guest until it tells that it is over. Its disk is /dev/vda; `prepare` puts files on it."""
    base, written, log = (os.path.join(folder, name) for name in ("base", "written", "log"))
    make(base, kind)
    if prepare:
        with check.Mounted(base, kind, "/mnt") as mounted:
            prepare(mounted)
    disk.copy(base, written)
    open(log, "wb").close()
    machine = guest.Guest(kernel, initrd, folder, [
        # The host's own syncs are of no use here.
        "-blockdev", "driver=file,node-name=written,filename=written,cache.no-flush=on",
        "-blockdev", "driver=file,node-name=log,filename=log,cache.no-flush=on",
        "-blockdev", "driver=blklogwrites,node-name=disk,file=written,log=log,log-super-update-interval=1",
        "-device", "virtio-blk-pci,drive=disk,write-cache=on",
        *devices,
    ], memory)
    told, length, rest = [], [], b""
    opened = os.open(log, os.O_RDONLY)
    try:
        end = time.monotonic() + patience
        while not told or told[-1].line != "over":
            if time.monotonic() > end:
                raise TimeoutError(f"the guest is not over after {patience} s: {said(machine)}")
            ready, _, _ = select.select([machine.port], [], [], 0.05)
            now, entries = time.monotonic(), disk.count(opened)
            length.append((now, entries))
            if not ready:
                continue
            got = machine.port.recv(1 << 16)
            if not got:
                raise RuntimeError(f"the guest ended: {said(machine)}")
            # The length when a line is read is no less than when it was told.
            entries = disk.count(opened)
            *lines, rest = (rest + got).split(b"\n")
            told += [Told(entries, now, line.decode(errors="replace")) for line in lines]
    finally:
        machine.end()
        os.close(opened)
    return Recording(disk.Log(log), base, kind, told, length)


def said(machine):
    try:
        with open(machine.console, errors="replace") as console:
            return console.read()[-3000:]
    except OSError:
        return ""
