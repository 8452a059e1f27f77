#!/usr/bin/env python3
"""Packs the programs for pip and npm, with the clients in `clients/`.

usage: .ci/packages.py TREE TARGET OUT

  TREE    the folder in whose bin/ the programs are, as .ci/release lays them out
  TARGET  what they are built for: x86_64-unknown-linux-gnu, …
  OUT     where the packages are put:

    threadq-<version>-….whl              the queue and the client for Python
    threadq_postgres-<version>-….whl     for threads in PostgreSQL: pip install 'threadq[postgres]'
    threadq_serve-<version>-….whl        the further programs: pip install 'threadq[serve]'
    threadq-<version>.tgz                the client for JavaScript, which depends on those for the platforms in OUT, or in
                                         the variable NPM_PLATFORMS, such as 'linux-x64 linux-arm64', and
    threadq-<platform>-<version>.tgz     the queue for a platform, also in PostgreSQL
    threadq-serve-<version>.tgz, threadq-serve-<platform>-<version>.tgz   the further programs

The tags of a wheel name the systems on which its programs run. `thread` is static, and is by itself in its wheel, so that this
runs on all; npm has no such tags.

Packages of the same programs are identical, whenever they are made: all times are SOURCE_DATE_EPOCH.
"""

import base64
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", 0))
VERSION = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.M)[1]
SUMMARY = "Durable event queues in a directory, with no daemon"
#: What Python and npm call the machines.
MACHINES = {"x86_64": ("x86_64", "x64"), "aarch64": ("aarch64", "arm64")}


def platforms(programs: list[pathlib.Path], machine: str) -> str:
    """The tags of the systems on which all these programs run: their glibc is at least as new as that of any symbol, and a
    static program needs none."""
    printed = [subprocess.run(["readelf", "-VdW", path], capture_output=True, text=True).stdout for path in programs]
    needed = [int(minor) for text in printed for minor in re.findall(r"GLIBC_2\.(\d+)", text)]
    tags = [f"manylinux_2_{max([17, *needed])}_{machine}"]
    return ".".join(tags if any("(NEEDED)" in text for text in printed) else [*tags, f"musllinux_1_1_{machine}"])


def wheel(out: pathlib.Path, name: str, files: dict[str, tuple[bytes, int]], tags: str, metadata: str) -> None:
    """Writes a wheel of these files, each with its mode."""
    info = f"{name}-{VERSION}.dist-info"
    described = ["Wheel-Version: 1.0", "Generator: .ci/packages.py", "Root-Is-Purelib: false",
                 *(f"Tag: py3-none-{tag}" for tag in tags.split("."))]
    files = {
        **files,
        f"{info}/licenses/LICENSE": ((ROOT / "LICENSE").read_bytes(), 0o644),
        f"{info}/METADATA": (metadata.encode(), 0o644),
        f"{info}/WHEEL": (("\n".join(described) + "\n").encode(), 0o644),
    }
    hashes = {path: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
              for path, (data, _) in files.items()}
    record = "".join(f"{path},sha256={hashes[path]},{len(data)}\n" for path, (data, _) in files.items())
    files[f"{info}/RECORD"] = (f"{record}{info}/RECORD,,\n".encode(), 0o644)
    # A zip file has no times before 1980.
    when = time.gmtime(max(EPOCH, 315532800))[:6]
    with zipfile.ZipFile(out / f"{name}-{VERSION}-py3-none-{tags}.whl", "w") as packed:
        for path, (data, mode) in files.items():
            entry = zipfile.ZipInfo(path, when)
            entry.external_attr = (0o100000 | mode) << 16
            packed.writestr(entry, data, zipfile.ZIP_DEFLATED, 6)


def parts(programs: list[pathlib.Path], *named: tuple[str, set[str]]) -> dict[str, list[pathlib.Path]]:
    """The programs of each package: those that are named, and in `serve` all others."""
    known = {name for _, names in named for name in names}
    found = {part: [one for one in programs if one.name in names] for part, names in named}
    found["serve"] = [one for one in programs if one.name not in known]
    return {part: its_programs for part, its_programs in found.items() if its_programs}


def readme(client: pathlib.Path, example: str, language: str) -> str:
    """A client's README for who has the package alone: with its example, and without links to other files and the
    tests."""
    text = (client / "README.md").read_text().split("\n## Tests\n")[0]
    text = re.sub(r"\[([^\]]*)\]\(\.\./[^)]*\)", r"\1", text)
    return f"{text}\n## {example}\n\n```{language}\n{(ROOT / example).read_text()}```\n"


def metadata(name: str, summary: str, readme: str, more: str = "") -> str:
    return (f"Metadata-Version: 2.4\nName: {name}\nVersion: {VERSION}\nSummary: {summary}\nLicense-Expression: MIT\n"
            f"License-File: LICENSE\nRequires-Python: >=3.11\n{more}Description-Content-Type: text/markdown\n\n{readme}")


def npm(out: pathlib.Path, about: dict, files: dict[str, tuple[bytes, int]]) -> None:
    """Writes a package of npm of these files, each with its mode."""
    files = {"package.json": (json.dumps(about, indent=2).encode() + b"\n", 0o644),
             "LICENSE": ((ROOT / "LICENSE").read_bytes(), 0o644), **files}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, (data, mode) in sorted(files.items()):
            entry = tarfile.TarInfo(f"package/{path}")
            entry.size, entry.mode, entry.mtime = len(data), mode, EPOCH
            tar.addfile(entry, io.BytesIO(data))
    name = about["name"].replace("@", "").replace("/", "-")
    (out / f"{name}-{VERSION}.tgz").write_bytes(gzip.compress(packed.getvalue(), 6, mtime=0))


def launcher(package: str) -> tuple[bytes, int]:
    """What npm puts on PATH for a program: it looks for that of the platform, in the packages that are named so."""
    return (ROOT / "clients/javascript/bin/thread").read_bytes().replace(b"@threadq/", package.encode()), 0o755


def main() -> None:
    tree, target, out = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    machine, system = target.split("-")[0], "darwin" if "darwin" in target else "linux"
    if machine not in MACHINES or system != "linux":
        return print(f"packages: nothing for pip and npm, whose platforms for {target} are not known here", file=sys.stderr)
    for_python, for_npm = MACHINES[machine]
    programs = sorted((tree / "bin").iterdir())

    source = ROOT / "clients/python/threadq"
    client = {f"threadq/{path.name}": (path.read_bytes(), 0o644)
              for path in sorted(source.iterdir()) if path.suffix == ".py" or path.name == "py.typed"}
    extras = {"postgres": "Threads in PostgreSQL, for threadq", "serve": "Agents, a gateway, a chat and MCP on threadq"}
    for part, its_programs in parts(programs, ("", {"thread"}), ("postgres", {"thread-postgres"})).items():
        name = f"threadq_{part}" if part else "threadq"
        scripts = {f"{name}-{VERSION}.data/scripts/{one.name}": (one.read_bytes(), 0o755) for one in its_programs}
        if part:
            needs = f"Requires-Dist: threadq=={VERSION}\n"
            about = metadata(f"threadq-{part}", extras[part], "See threadq.\n", needs)
        else:
            needs = "".join(f"Provides-Extra: {one}\nRequires-Dist: threadq-{one}=={VERSION}; extra == '{one}'\n"
                            for one in extras)
            about = metadata("threadq", SUMMARY, readme(ROOT / "clients/python", "examples/inbox.py", "python"), needs)
        wheel(out, name, {**({} if part else client), **scripts}, platforms(its_programs, for_python), about)

    javascript = ROOT / "clients/javascript"
    package = json.loads((javascript / "package.json").read_text()) | {"version": VERSION}
    for part, its_programs in parts(programs, ("", {"thread", "thread-postgres"})).items():
        prefix = f"@threadq/{part}-" if part else "@threadq/"
        common = {"version": VERSION, "license": "MIT"}
        npm(out, {"name": f"{prefix}{system}-{for_npm}", "description": f"{SUMMARY}: programs", **common,
                  "os": [system], "cpu": [for_npm]}, {f"bin/{one.name}": (one.read_bytes(), 0o755) for one in its_programs})
        named = f"@threadq/{part}" if part else "threadq"
        bins = {one.name: f"bin/{one.name}" for one in its_programs}
        # Those whose packages are in OUT, unless other machines make some: one that does not exist cannot be installed.
        start, end = prefix.replace("@", "").replace("/", "-"), f"-{VERSION}.tgz"
        made = sorted(path.name[len(start):-len(end)] for path in out.glob(f"{start}linux-*{end}"))
        needs = {f"{prefix}{platform}": VERSION for platform in os.environ.get("NPM_PLATFORMS", "").split() or made}
        files = {f"bin/{one.name}": launcher(prefix) for one in its_programs}
        if part:
            about = {"name": named, "description": extras[part], **common}
        else:
            about = {key: value for key, value in package.items() if key != "scripts"}
            files |= {path.name: (path.read_bytes(), 0o644) for path in javascript.iterdir() if path.suffix in (".js",
            ".ts")}
            files["README.md"] = (readme(javascript, "examples/inbox.mjs", "js").encode(), 0o644)
        npm(out, {**about, "bin": bins, "optionalDependencies": needs}, files)


main()
