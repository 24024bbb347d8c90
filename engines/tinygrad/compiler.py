"""clang, which compiles tinygrad's kernels, the folder of the compiled kernels, and tinygrad's settings for a load.

Imports tinygrad only in `configure`, so that hello can look for clang without that import.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import stat
import subprocess
from pathlib import Path

from engine_kit import Failed

# The package that has clang for the pinned environment: Zig's compiler, whose program runs clang as `zig clang`.
CLANG_PACKAGE = "ziglang"

# Limits of a search in tinygrad's own variables, so that it ends: the least gain of a round in microseconds, the most operations of
# a variant, and its most unrolled ones. The user's variables come first.
SEARCH_LIMITS = {"BEAM_MIN_PROGRESS": "20", "BEAM_UOPS_MAX": "1000", "BEAM_UPCAST_MAX": "64"}

HINT = "apt-get install clang    # or: export CC=/path/to/clang"


def find_clang():
    """The path of clang: the program in `CC` if it is a clang, else that of the environment, else the machine's. None if there
    is none. Of the environment it is the path of `zig`."""
    own = os.environ.get("CC", "")
    if "clang" in Path(own).name:
        found = shutil.which(own)
        if found is None:
            raise Failed("unavailable", f"`CC` names no program: `{own[:200]}`", "unset CC")
        return Path(found)
    if (package := importlib.util.find_spec(CLANG_PACKAGE)) is not None and package.origin:
        zig = Path(package.origin).parent / "zig"
        if zig.is_file():
            return zig
    machine = shutil.which("clang")
    return machine and Path(machine)


def require_clang():
    clang = find_clang()
    if clang is None:
        raise Failed("unavailable", "no clang, which compiles tinygrad's kernels for the CPU", HINT)
    return clang


def data_folder():
    """This engine's own folder in the data folder of the project, by the rule of `engines/paths`."""
    home = os.environ.get("ORCHESTRATE_HOME")
    if not home:
        home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "orchestrate"
    return Path(home) / "tinygrad"


def prepare_clang(clang, folder):
    """The command to run clang. tinygrad runs one program without arguments of its own, so a script runs `zig clang`."""
    if clang.name != "zig":
        return clang
    script = folder / f"clang-{hashlib.sha256(os.fsencode(clang)).hexdigest()[:12]}"
    if not script.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        quoted = str(clang).replace("'", "'\\''")
        temporary = script.with_name(f".{script.name}.{os.getpid()}")
        temporary.write_text(f"#!/bin/sh\nexec '{quoted}' clang \"$@\"\n")
        temporary.chmod(temporary.stat().st_mode | stat.S_IXUSR)
        temporary.rename(script)
    if not os.access(clang, os.X_OK):
        # Some installers do not keep the permission of a program in a wheel.
        clang.chmod(clang.stat().st_mode | stat.S_IXUSR)
    return script


def version_of(command):
    """The first line of `clang --version`."""
    try:
        done = subprocess.run([command, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failed("unavailable", f"clang cannot be started: {error}", HINT) from None
    return next(iter(done.stdout.splitlines()), "")


def processor():
    """The model and the features of the processor, for which clang compiles."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return "unknown"
    fields = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    return "".join(value for name, value in fields.items() if name.strip() in ("model name", "flags", "Features"))


class Settings:
    """tinygrad's settings of this process, and what they are in effect. tinygrad reads most of them once, so `configure` also
    drops what tinygrad keeps of kernels that were made with other settings."""

    def __init__(self):
        self.clang_version = None
        self._threads = None

    def configure(self, threads, beam, rounds_to_f16):
        clang = require_clang()
        command = prepare_clang(clang, data_folder())
        if self.clang_version is None:
            self.clang_version = version_of(command)
        os.environ["CC"] = str(command)
        # The engine measures the CPU, whatever other devices tinygrad would find.
        os.environ["DEV"] = "CPU"
        os.environ["HALF"] = "1" if rounds_to_f16 else "0"
        for name, value in SEARCH_LIMITS.items():
            os.environ.setdefault(name, value)
        from tinygrad import Device, helpers

        helpers.getenv.cache_clear()
        helpers.BEAM.value = beam
        renderer = Device["CPU"].renderer
        threads = threads or helpers.CPU_COUNT.value
        if threads != self._threads:
            self._use_threads(threads, renderer, helpers)
        return renderer

    def _use_threads(self, threads, renderer, helpers):
        from tinygrad import codegen, schedule

        helpers.CPU_COUNT.value = threads
        renderer.global_max = (threads, 0, 0)
        codegen.to_program_cache.clear()
        schedule.schedule_cache.clear()
        # A search finds kernels for its number of threads, and tinygrad's names of its results do not contain this number.
        helpers.CACHEDB = str(self._kernel_folder() / f"{threads}-threads.db")
        helpers._db_connection = None
        helpers._db_tables.clear()
        self._threads = threads

    def _kernel_folder(self):
        """The folder of compiled kernels and of search results. Another processor, clang or tinygrad has another folder."""
        identity = "\n".join([importlib.metadata.version("tinygrad"), self.clang_version, processor()])
        return data_folder() / "kernels" / hashlib.sha256(identity.encode()).hexdigest()[:16]


SETTINGS = Settings()
