"""A small guest: a kernel of Debian, an initramfs that is made here, and QEMU.

The initramfs has busybox, the programs it is given with their libraries, and the modules of the kernel that it needs.
"""

import glob
import os
import pathlib
import re
import shutil
import socket
import stat
import subprocess

MODULES = ("virtio_pci", "virtio_blk", "virtio_console", "crc32c_generic", "crc32c_intel", "ext4", "xfs")


def home():
    """Where a kernel and busybox are, as `dpkg-deb -x` unpacks their packages. `.ci/run` puts them into the second."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.environ.get("THREAD_TEST_KERNEL") or os.path.join(cache, "thread-ci/kernel")


class Kernel:
    """A kernel and its modules."""

    def __init__(self, root):
        self.image = sorted(glob.glob(os.path.join(root, "boot/vmlinuz-*")))[-1]
        self.release = os.path.basename(self.image).removeprefix("vmlinuz-")
        self.modules = {}
        for file in pathlib.Path(root).glob(f"**/lib/modules/{self.release}/**/*.ko"):
            self.modules[file.stem.replace("-", "_")] = file

    def needed(self, names):
        """These modules after those that they depend on. What is built into the kernel has none."""
        found = []

        def add(name):
            file = self.modules.get(name)
            if file is None or file in found:
                return
            depends = re.search(rb"\0depends=([^\0]*)\0", file.read_bytes())
            for other in depends[1].decode().split(",") if depends else []:
                add(other.replace("-", "_"))
            found.append(file)

        for name in names:
            add(name)
        return found


def find_kernel():
    try:
        return Kernel(home())
    except IndexError:
        return None


class Files:
    """The files of an initramfs."""

    def __init__(self):
        self.parts = []
        self.names = set()

    def add(self, name, mode, content=b""):
        name = name.strip("/")
        if name in self.names:
            return
        parent = os.path.dirname(name)
        if parent:
            self.add(parent, stat.S_IFDIR | 0o755)
        self.names.add(name)
        fields = [len(self.names), mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        self.parts += [head, bytes(-len(head) % 4), content, bytes(-len(content) % 4)]

    def folder(self, name):
        self.add(name, stat.S_IFDIR | 0o755)

    def text(self, name, content):
        self.add(name, stat.S_IFREG | 0o755, content.encode())

    def file(self, name, source):
        self.add(name, stat.S_IFREG | 0o755, pathlib.Path(source).read_bytes())

    def link(self, name, target):
        self.add(name, stat.S_IFLNK | 0o777, target.encode())

    def program(self, source, name=None):
        """A program and the libraries that it needs, under the paths where its loader looks for them."""
        self.file(name or "bin/" + os.path.basename(source), source)
        self.libraries(source)

    def libraries(self, source):
        told = subprocess.run(["ldd", source], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        for path in re.findall(r"(/\S+) \(0x", told):
            self.file(path, os.path.realpath(path))

    def write(self, path):
        self.add("TRAILER!!!", 0)
        pathlib.Path(path).write_bytes(b"".join(self.parts))


def busybox():
    there = [os.path.join(home(), name, "busybox") for name in ("bin", "usr/bin")] + [shutil.which("busybox") or ""]
    return next(filter(os.path.exists, there), None)


def initramfs(path, kernel, init, programs=()):
    """Writes an initramfs whose /init is this shell script, after the modules are loaded."""
    made = Files()
    for name in ("proc", "sys", "dev", "tmp", "mnt"):
        made.folder(name)
    made.program(busybox(), "bin/busybox")
    order = []
    for file in kernel.needed(MODULES):
        made.file("modules/" + file.name, file)
        order.append(file.name)
    for program in programs:
        made.program(program)
    loading = "".join(f"insmod /modules/{name}\n" for name in order)
    made.text(
        "init",
        "#!/bin/busybox sh\nexport PATH=/bin\n/bin/busybox --install -s /bin\n"
        "mount -t proc proc /proc\nmount -t sysfs sysfs /sys\nmount -t devtmpfs dev /dev\nmount -t tmpfs tmp /tmp\n"
        "mkdir -m 1777 /dev/shm /dev/pts\nmount -t devpts pts /dev/pts\nln -s /proc/self/fd /dev/fd\nip link set lo up\n"
        f"{loading}{init}\npoweroff -f\n",
    )
    made.write(path)


def tools(path, programs, folders=(), files=()):
    """Makes a disk with programs, the libraries that they need, folders and (name, source) files. Needs root."""
    with open(path, "wb") as image:
        image.truncate(1 << 30)
    subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", path], check=True)
    at = path + ".mounted"
    os.makedirs(at)
    subprocess.run(["mount", "-o", "loop", path, at], check=True)
    try:
        for name in ("proc", "sys", "dev", "tmp", "mnt", "bin", "etc"):
            os.makedirs(os.path.join(at, name))

        def put(name, source):
            target = os.path.join(at, name.strip("/"))
            if not os.path.exists(target):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy(source, target)

        def libraries(source):
            told = subprocess.run(["ldd", source], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
            for name in re.findall(r"(/\S+) \(0x", told):
                put(name, os.path.realpath(name))

        for program in programs:
            put("bin/" + os.path.basename(program), program)
            libraries(program)
        for name, source in files:
            put(name, source)
            libraries(source)
        for folder in folders:
            shutil.copytree(folder, os.path.join(at, folder.strip("/")))
            for file in pathlib.Path(folder).rglob("*"):
                if file.is_file() and file.read_bytes()[:4] == b"\x7fELF":
                    libraries(str(file))
        for name in subprocess.check_output([busybox(), "--list"], text=True).split():
            if not os.path.lexists(os.path.join(at, "bin", name)):
                os.symlink("busybox", os.path.join(at, "bin", name))
    finally:
        subprocess.run(["umount", at], check=True)


def has_kvm():
    """Whether KVM can run a kernel as it is. There are hosts whose /dev/kvm runs only kernels that were made for it."""
    processor = any(os.path.exists(f"/sys/module/{name}") for name in ("kvm_intel", "kvm_amd"))
    return processor and os.access("/dev/kvm", os.R_OK | os.W_OK)


class Guest:
    """A guest that runs. Its messages are in `console`; `port` is a socket to its first port."""

    def __init__(self, kernel, initrd, folder, devices, memory=256, processors=1):
        self.console = os.path.join(folder, "console")
        self.path = os.path.join(folder, "port")
        listener = socket.socket(socket.AF_UNIX)
        # Relative, since the name of a socket is short.
        here = os.open(".", os.O_RDONLY)
        try:
            os.chdir(folder)
            if os.path.exists("port"):
                os.unlink("port")
            listener.bind("port")
        finally:
            os.fchdir(here)
            os.close(here)
        listener.listen(1)
        kvm = has_kvm()
        command = [
            # It ends with this process, whatever ends that.
            "setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-accel", "kvm" if kvm else "tcg", "-cpu", "host" if kvm else "max",
            "-m", str(memory), "-smp", str(processors), "-nodefaults", "-no-user-config", "-display", "none",
            "-no-reboot", "-kernel", kernel.image, "-initrd", os.path.abspath(initrd),
            "-append", "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on no_timer_check",
            "-serial", "file:console", "-device", "virtio-serial-pci",
            "-chardev", "socket,id=port,path=port", "-device", "virtserialport,chardev=port,name=port",
            *devices,
        ]
        self.process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL)
        listener.settimeout(600)
        self.port, _ = listener.accept()
        listener.close()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.port.close()
