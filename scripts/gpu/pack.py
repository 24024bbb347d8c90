"""Packs what a machine with a GPU needs and cannot build: `scripts/gpu-check --pack`.

Which programs those are is read from the engines' manifests: an engine is added by its folder alone. Needs Python 3.11.
"""

import argparse
import datetime
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

try:
    import tomllib
except ModuleNotFoundError:
    HERE = ".".join(str(part) for part in sys.version_info[:2])
    sys.exit(f"error: packing needs Python 3.11, and this is {HERE}\nhint: uv run --python 3.11 scripts/gpu/pack.py gpu-check")

ROOT = Path(__file__).resolve().parents[2]
FAMILY = "cuda"
# What can be carried to a machine without a network, the checkout included.
MOST_BYTES = 64 << 20
# Not the processor of this machine: an instruction that another one lacks would end a program there.
PROCESSOR = "x86-64-v3"
ENVIRONMENT = {
    "RUSTFLAGS": f"-C target-cpu={PROCESSOR}",
    # Of Hopper; `CUDA_COMPUTE_CAP` says another.
    "CUDA_COMPUTE_CAP": os.environ.get("CUDA_COMPUTE_CAP", "90"),
    # Other flags than everyday's: in that one's folder each would undo the other's builds.
    "CARGO_TARGET_DIR": str(ROOT / "target" / "gpu-check"),
}


class Program(NamedTuple):
    name: str
    build: dict
    """As a manifest says it: a cargo package, or a command."""
    has_kernels: bool = False
    """Of its own for the GPU, which are compiled for one kind of it."""


class Missing(Exception):
    """Why a program cannot be packed."""


def programs():
    """The orchestrator, the programs that serve the GPU, and the program of the verifier."""
    found = {"orchestrate": Program("orchestrate", {"package": "orchestrate"})}
    for path in sorted(ROOT.glob("engines/*/engine.toml")):
        engine = tomllib.loads(path.read_text())
        on_gpu = engine.get("devices", {}).get(FAMILY)
        own = Program(engine["binary"], engine.get("build", {}))
        if on_gpu and "binary" in on_gpu:
            found[on_gpu["binary"]] = Program(on_gpu["binary"], on_gpu.get("build", {}), has_kernels=True)
        elif on_gpu is not None or "driver" in engine.get("needs", {}):
            found[own.name] = own
        if engine.get("reference"):
            found[own.name] = own
    return list(found.values())


def built(program):
    """The program's file, brought up to date."""
    build = program.build
    if "package" in build:
        command = ["cargo", "build", "--release", "--locked", "-p", build["package"]]
        command += ["--features", ",".join(build["features"])] if build.get("features") else []
    elif "command" in build:
        command = build["command"]
    else:
        raise Missing("its manifest does not say how it is built")
    print(f"building {program.name}: {' '.join(command)}", flush=True)
    try:
        status = subprocess.run(command, cwd=ROOT, env=os.environ | ENVIRONMENT, check=False).returncode
    except OSError as error:
        raise Missing(f"`{command[0]}` cannot be started: {error.strerror}") from None
    if status != 0:
        raise Missing(f"`{' '.join(command)}` failed")
    return there(Path(ENVIRONMENT["CARGO_TARGET_DIR"]) / "release", program)


def there(folder, program):
    path = folder / program.name
    if not path.is_file():
        raise Missing(f"there is no `{path}`")
    return path


def pack(path, name, folder):
    """Strips it and compresses it. Its line in the manifest is of what will be unpacked, which is given back too."""
    plain = folder / name
    with path.open("rb") as file:
        is_stripped = shutil.which("strip") and file.read(4) == b"\x7fELF"
    if not is_stripped or subprocess.run(["strip", "-o", plain, path], check=False).returncode != 0:
        shutil.copyfile(path, plain)
    content = without_run_path(plain)
    plain.unlink()
    packed = compressed(content)
    (folder / f"{name}.xz").write_bytes(packed)
    return f"program {name} {hashlib.sha256(content).hexdigest()} {len(content)} {len(packed)}", len(packed), content


def without_run_path(path):
    """Its bytes, without the folder of libraries of the machine that it was built on. To the loader an empty one is none."""
    content = path.read_bytes()
    for folder in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.+)\]", said_by("readelf", "-dW", str(path))):
        name = b"\0" + folder.encode() + b"\0"
        if content.count(name) == 1:
            content = content.replace(name, b"\0" * len(name))
    return content


def libc_needed(contents):
    """The newest version of glibc that any of them asks for."""
    asked = {tuple(map(int, found)) for content in contents for found in re.findall(rb"GLIBC_(\d+)\.(\d+)", content)}
    return ".".join(map(str, max(asked))) if asked else None


def compressed(content):
    if not shutil.which("xz"):
        return lzma.compress(content, preset=9)
    environment = {"XZ_OPT": "-9 -T0", **os.environ}
    return subprocess.run(["xz", "-c"], input=content, stdout=subprocess.PIPE, env=environment, check=True).stdout


def said_by(*command):
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def facts(are_ours):
    commit = said_by("git", "rev-parse", "--short=12", "HEAD") or "unknown"
    dirty = "-dirty" if said_by("git", "status", "--porcelain", "--untracked-files=no") else ""
    yield f"commit {commit}{dirty}"
    yield f"packed {datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')}"
    if are_ours:
        yield f"rustc {said_by('rustc', '--version').removeprefix('rustc ') or 'unknown'}"
        yield f"processor {PROCESSOR}"


def capability(path, are_ours):
    """What the kernels in it were compiled for: kept beside it, or as they were just built."""
    beside = path.with_name(path.name + ".capability")
    if beside.is_file():
        return beside.read_text().strip()
    return ENVIRONMENT["CUDA_COMPUTE_CAP"].replace(".", "") if are_ours else None


def checkout_bytes():
    files = said_by("git", "ls-files", "-z").split("\0")
    return sum((ROOT / file).stat().st_size for file in files if (ROOT / file).is_file() and file)


def megabytes(count):
    return f"{count / 1e6:.1f} MB"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--from", dest="source", type=Path)
    arguments = arguments.parse_args()
    folder = arguments.folder.absolute()
    if folder.exists() and any(folder.iterdir()) and not (folder / "manifest").is_file():
        sys.exit(f"error: `{arguments.folder}` is not empty, and no packed programs are in it\nhint: name another folder")
    half = folder.with_name(folder.name + ".new")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    try:
        status = fill(half, arguments.source)
        shutil.rmtree(folder, ignore_errors=True)
        half.rename(folder)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    print(f"packed in {arguments.folder}; carry it, and this checkout, and there: scripts/gpu-check {arguments.folder}")
    sys.exit(status)


def fill(folder, source):
    are_ours = source is None
    lines, sizes, missing, contents = list(facts(are_ours)), {}, {}, []
    if are_ours:
        print("from nothing this takes half an hour on two cores; CUDA's compiler is downloaded where it is not here (its size is said)")
    for program in programs():
        try:
            path = there(source, program) if source else built(program)
        except Missing as why:
            missing[program.name] = why
            continue
        line, sizes[program.name], content = pack(path, program.name, folder)
        lines.append(line)
        contents.append(content)
        if program.has_kernels and (compiled_for := capability(path, are_ours)):
            lines.append(f"compute-capability {compiled_for}")
    if newest := libc_needed(contents):
        lines.append(f"glibc {newest}")
    (folder / "manifest").write_text("\n".join(lines) + "\n")
    beside = checkout_bytes()
    whole = sum(sizes.values()) + beside
    largest = sorted(sizes, key=sizes.get, reverse=True)
    for name in largest:
        print(f"  {name:<24} {megabytes(sizes[name]):>9}")
    print(f"  {'in all':<24} {megabytes(sum(sizes.values())):>9}, {megabytes(whole)} with the checkout")
    if whole > MOST_BYTES:
        what = f"`{largest[0]}` is the largest" if sizes[largest[0]] > beside else "most of it is the checkout"
        sys.exit(f"error: {megabytes(whole)} are more than the {megabytes(MOST_BYTES)} that can be carried: {what}")
    if "orchestrate" in missing:
        sys.exit(f"error: nothing is packed without `orchestrate`: {missing['orchestrate']}")
    for name, why in missing.items():
        print(f"warning: `{name}` is not packed: {why}", file=sys.stderr)
    return 4 if missing else 0


if __name__ == "__main__":
    main()
