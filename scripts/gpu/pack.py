"""Packs the programs for a machine with a GPU and without Rust: `scripts/gpu-check --pack`.

The engines' manifests name the programs, so a new engine needs no change here. Needs Python 3.11.
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
    VERSION = ".".join(str(part) for part in sys.version_info[:2])
    sys.exit(f"error: packing needs Python 3.11, and this is {VERSION}\nhint: uv run --python 3.11 scripts/gpu/pack.py gpu-check")

ROOT = Path(__file__).resolve().parents[2]
DEVICE_FAMILY = "cuda"
# The limit for the packed programs together with the checkout: they are copied to a machine without a network.
MAX_BYTES = 64 << 20
# The packed programs use the instructions of this common processor level, because the GPU machine may lack newer ones.
PROCESSOR = "x86-64-v3"
ENVIRONMENT = {
    "RUSTFLAGS": f"-C target-cpu={PROCESSOR}",
    # Hopper by default.
    "CUDA_COMPUTE_CAP": os.environ.get("CUDA_COMPUTE_CAP", "90"),
    # A separate folder, because these flags differ from those of other builds.
    "CARGO_TARGET_DIR": str(ROOT / "target" / "gpu-check"),
}


class Program(NamedTuple):
    name: str
    build: dict
    """From the manifest: a cargo package, or a command."""
    has_kernels: bool = False
    """Whether the program has kernels, which are compiled for one compute capability."""


class Missing(Exception):
    """The reason why a program cannot be packed."""


def programs():
    """The orchestrator, the programs for the GPU, and the program of the verifier."""
    by_name = {"orchestrate": Program("orchestrate", {"package": "orchestrate"})}
    for path in sorted(ROOT.glob("engines/*/engine.toml")):
        engine = tomllib.loads(path.read_text())
        gpu_entry = engine.get("devices", {}).get(DEVICE_FAMILY)
        default = Program(engine["binary"], engine.get("build", {}))
        if gpu_entry and "binary" in gpu_entry:
            by_name[gpu_entry["binary"]] = Program(gpu_entry["binary"], gpu_entry.get("build", {}), has_kernels=True)
        elif gpu_entry is not None or "driver" in engine.get("needs", {}):
            by_name[default.name] = default
        if engine.get("reference"):
            by_name[default.name] = default
    return list(by_name.values())


def build(program):
    """Builds a program, and returns its file."""
    settings = program.build
    if "package" in settings:
        command = ["cargo", "build", "--release", "--locked", "-p", settings["package"]]
        command += ["--features", ",".join(settings["features"])] if settings.get("features") else []
    elif "command" in settings:
        command = settings["command"]
    else:
        raise Missing("its manifest has no build")
    print(f"building {program.name}: {' '.join(command)}", flush=True)
    try:
        status = subprocess.run(command, cwd=ROOT, env=os.environ | ENVIRONMENT, check=False).returncode
    except OSError as error:
        raise Missing(f"`{command[0]}` cannot be started: {error.strerror}") from None
    if status != 0:
        raise Missing(f"`{' '.join(command)}` failed")
    return program_file(Path(ENVIRONMENT["CARGO_TARGET_DIR"]) / "release", program)


def program_file(folder, program):
    path = folder / program.name
    if not path.is_file():
        raise Missing(f"`{path}` is missing")
    return path


def pack(path, name, folder):
    """Strips and compresses a program. Returns its line for the manifest, its packed size, and the unpacked content."""
    stripped = folder / name
    with path.open("rb") as file:
        can_strip = shutil.which("strip") and file.read(4) == b"\x7fELF"
    if not can_strip or subprocess.run(["strip", "-o", stripped, path], check=False).returncode != 0:
        shutil.copyfile(path, stripped)
    content = remove_run_path(stripped)
    stripped.unlink()
    packed = compress(content)
    (folder / f"{name}.xz").write_bytes(packed)
    return f"program {name} {hashlib.sha256(content).hexdigest()} {len(content)} {len(packed)}", len(packed), content


def remove_run_path(path):
    """The content of a program, with zeros in place of its run path, a folder that exists only on the building machine."""
    content = path.read_bytes()
    for folder in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.+)\]", command_output("readelf", "-dW", str(path))):
        name = b"\0" + folder.encode() + b"\0"
        if content.count(name) == 1:
            content = content.replace(name, b"\0" * len(name))
    return content


def newest_glibc(contents):
    """The newest version of glibc that any of the programs needs."""
    versions = {tuple(map(int, version)) for content in contents for version in re.findall(rb"GLIBC_(\d+)\.(\d+)", content)}
    return ".".join(map(str, max(versions))) if versions else None


def compress(content):
    if not shutil.which("xz"):
        return lzma.compress(content, preset=9)
    environment = {"XZ_OPT": "-9 -T0", **os.environ}
    return subprocess.run(["xz", "-c"], input=content, stdout=subprocess.PIPE, env=environment, check=True).stdout


def command_output(*command):
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def facts(is_built_here):
    commit = command_output("git", "rev-parse", "--short=12", "HEAD") or "unknown"
    dirty = "-dirty" if command_output("git", "status", "--porcelain", "--untracked-files=no") else ""
    yield f"commit {commit}{dirty}"
    yield f"packed {datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')}"
    if is_built_here:
        yield f"rustc {command_output('rustc', '--version').removeprefix('rustc ') or 'unknown'}"
        yield f"processor {PROCESSOR}"


def capability(path, is_built_here):
    """The compute capability of a program's kernels: from the file beside the program, or of the build just made."""
    file = path.with_name(path.name + ".capability")
    if file.is_file():
        return file.read_text().strip()
    return ENVIRONMENT["CUDA_COMPUTE_CAP"].replace(".", "") if is_built_here else None


def checkout_bytes():
    files = command_output("git", "ls-files", "-z").split("\0")
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
        sys.exit(f"error: `{arguments.folder}` is not empty, and has no packed programs\nhint: name another folder")
    temporary = folder.with_name(folder.name + ".new")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        status = pack_all(temporary, arguments.source)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print(f"packed in {arguments.folder}; copy it and this checkout to the GPU machine, and run there: scripts/gpu-check {arguments.folder}")
    sys.exit(status)


def pack_all(folder, source):
    is_built_here = source is None
    lines, sizes, missing, contents = list(facts(is_built_here)), {}, {}, []
    if is_built_here:
        print("a first build takes half an hour on two cores; CUDA's compiler is downloaded if it is missing (its size is printed)")
    for program in programs():
        try:
            path = program_file(source, program) if source else build(program)
        except Missing as reason:
            missing[program.name] = reason
            continue
        line, sizes[program.name], content = pack(path, program.name, folder)
        lines.append(line)
        contents.append(content)
        if program.has_kernels and (compiled_for := capability(path, is_built_here)):
            lines.append(f"compute-capability {compiled_for}")
    if newest := newest_glibc(contents):
        lines.append(f"glibc {newest}")
    (folder / "manifest").write_text("\n".join(lines) + "\n")
    checkout = checkout_bytes()
    total = sum(sizes.values()) + checkout
    largest = sorted(sizes, key=sizes.get, reverse=True)
    for name in largest:
        print(f"  {name:<24} {megabytes(sizes[name]):>9}")
    print(f"  {'total':<24} {megabytes(sum(sizes.values())):>9}, {megabytes(total)} with the checkout")
    if total > MAX_BYTES:
        cause = f"`{largest[0]}` is the largest" if sizes[largest[0]] > checkout else "most of it is the checkout"
        sys.exit(f"error: {megabytes(total)} with the checkout are more than the limit of {megabytes(MAX_BYTES)}: {cause}")
    if "orchestrate" in missing:
        sys.exit(f"error: nothing is packed without `orchestrate`: {missing['orchestrate']}")
    for name, reason in missing.items():
        print(f"warning: `{name}` is not packed: {reason}", file=sys.stderr)
    return 4 if missing else 0


if __name__ == "__main__":
    main()
