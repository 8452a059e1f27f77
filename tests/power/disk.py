"""What a guest wrote to its disk, as `blklogwrites` of QEMU logs it, and the disks that a power cut may leave.

The log has the format of Linux's dm-log-writes: a head with the number of entries, then for each entry a sector with
its place, length and flags, followed by its data. An entry is added when the write or the flush is complete, and only
then the guest hears of it.
"""

import errno
import os
import random
import struct

SECTOR = 512
HEAD = struct.Struct("<QQQI")
ENTRY = struct.Struct("<QQQQ")
MAGIC = 0x6A736677736872
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8


def count(log):
    """How many entries an open log has by now."""
    head = os.pread(log, HEAD.size, 0)
    return HEAD.unpack(head)[2] if len(head) == HEAD.size else 0


class Entry:
    def __init__(self, place, length, flags, data):
        self.place, self.length, self.flags, self.data = place, length, flags, data


class Log:
    def __init__(self, path):
        self.file = os.open(path, os.O_RDONLY)
        magic, version, number, sector = HEAD.unpack(os.pread(self.file, HEAD.size, 0))
        assert (magic, version, sector) == (MAGIC, 1, SECTOR), "this is no log of writes"
        self.entries = []
        at = SECTOR
        for _ in range(number):
            place, sectors, flags, length = ENTRY.unpack(os.pread(self.file, ENTRY.size, at))
            assert flags & ~(FLUSH | FUA | DISCARD) == 0 and length == 0, "an entry that is not understood"
            at += SECTOR
            self.entries.append(Entry(place * SECTOR, sectors * SECTOR, flags, at))
            if not flags & DISCARD:
                at += sectors * SECTOR
        self.flushes = [index for index, entry in enumerate(self.entries) if entry.flags & FLUSH]

    def apply(self, image, entry, chosen=None):
        """Writes an entry into an open image: all of it, or only some of its sectors."""
        if not entry.length:
            return
        if entry.flags & DISCARD:
            # What is discarded may be read as anything, also as it was.
            return
        data = os.pread(self.file, entry.length, entry.data)
        # The first block has the superblock. ext4 is lost if that is torn.
        if chosen is None or entry.place == 0:
            os.pwrite(image, data, entry.place)
            return
        for at in range(0, entry.length, SECTOR):
            if chosen():
                os.pwrite(image, data[at:at + SECTOR], entry.place + at)


class Cut:
    """The power fails when the log has `upto` entries. Everything up to the flush `durable` is there; of what was
    written since, it depends on the way:

    dropped    nothing is there
    prefix     the first writes are there, in order; one of them is torn
    some       any of the writes are there, or some of their sectors
    reordered  the later ones are there, the earlier ones are not
    kept       everything is there
    """

    WAYS = ("dropped", "some", "prefix", "reordered", "kept")

    def __init__(self, upto, durable, way, seed):
        self.upto, self.durable, self.way, self.seed = upto, durable, way, seed

    def __str__(self):
        return f"cut after {self.upto} entries, flushed up to {self.durable}, then {self.way}, seed {self.seed}"

    def finish(self, log, image):
        """Applies its unflushed writes to an image that has everything up to its flush."""
        dice = random.Random(self.seed)
        since = log.entries[self.durable:self.upto]
        turn = dice.randrange(len(since)) if since else 0
        for index, entry in enumerate(since):
            coin = lambda: dice.random() < 0.5
            if self.way == "kept" or self.way == "prefix" and index < turn or self.way == "reordered" and index > turn:
                log.apply(image, entry)
            elif self.way in ("prefix", "reordered") and index == turn:
                log.apply(image, entry, coin)
            elif self.way == "some":
                fate = dice.randrange(3)
                if fate:
                    log.apply(image, entry, coin if fate == 2 else None)


def cuts(log, torn, flushes=None, seed=1):
    """A cut just before each flush, or before a sample of so many, at which what was not flushed is lost; and so many
    cuts at any time in the other ways."""
    dice = random.Random(seed)
    ends = [0] + [index + 1 for index in log.flushes]
    spans = list(zip(ends, [*log.flushes, len(log.entries)]))
    chosen = spans if flushes is None or flushes >= len(spans) else dice.sample(spans, flushes)
    found = [Cut(upto, durable, "dropped", 0) for durable, upto in chosen]
    spans = [span for span in spans if span[1] > span[0]]
    for number in range(torn if spans else 0):
        durable, end = dice.choice(spans)
        way = Cut.WAYS[1 + number % 4]
        found.append(Cut(dice.randint(durable + 1, end), durable, way, dice.randrange(1 << 30)))
    return sorted(found, key=lambda cut: (cut.durable, cut.upto))


def copy(source, target):
    """Copies a sparse file. Both are paths."""
    a, b = os.open(source, os.O_RDONLY), os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        size = os.fstat(a).st_size
        os.truncate(b, size)
        at = 0
        while at < size:
            try:
                at = os.lseek(a, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break
                raise
            end = os.lseek(a, at, os.SEEK_HOLE)
            os.lseek(b, at, os.SEEK_SET)
            while at < end:
                at += os.sendfile(b, a, at, end - at)
    finally:
        os.close(a)
        os.close(b)


def disks(log, base, wanted, fresh):
    """Makes the disk of each of these cuts, in their order. `fresh` gives a path for each; `base` is changed."""
    image = os.open(base, os.O_RDWR)
    done = 0
    for cut in wanted:
        while done < cut.durable:
            log.apply(image, log.entries[done])
            done += 1
        path = fresh()
        copy(base, path)
        made = os.open(path, os.O_RDWR)
        cut.finish(log, made)
        os.close(made)
        yield cut, path
    os.close(image)
