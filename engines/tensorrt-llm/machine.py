"""The GPUs of this machine, as their driver tells, and the processes that work for this one. Knows no library of models."""

import ctypes
import os
import signal
import sys
import time
from types import SimpleNamespace

import visible
from engine_kit import Failed

# Set by the orchestrator in everything that it starts, and inherited.
MARK = "ORCHESTRATE_LAUNCH"

# What a caller had allowed before any load narrowed it.
ALLOWED = os.environ.get(visible.VISIBLE)
ORDER = os.environ.get(visible.ORDER, visible.BY_SLOT)

# What a process that computes on a GPU has open.
DEVICE_FILES = "/dev/nvidia"
# How long a process that was killed may take to be gone.
KILL_S = 1.0


def has_driver():
    """Does a driver's library open here? Cheap, and without the Python package that speaks to it."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return True
    except ImportError:
        pass
    except Exception:
        # Whatever it says, nobody can be asked about GPUs.
        return False
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
        return True
    except OSError:
        return False


def gpus():
    """What the driver says of each, in its order."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return [_gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(pynvml.nvmlDeviceGetCount())]
    except ImportError:
        raise Failed("unavailable", "`pynvml` is missing beside TensorRT-LLM, which needs it itself") from None
    except Exception as error:
        raise Failed("unavailable", f"the NVIDIA driver does not answer: {error}") from None


def _gpu(pynvml, handle):
    def said(ask, otherwise=None):
        try:
            return ask()
        except Exception:
            # Older drivers, and GPUs that cannot be cut up, do not know every question.
            return otherwise

    def parts():
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        handles = (said(lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)) for index in range(count))
        return [_text(pynvml.nvmlDeviceGetUUID(part)) for part in handles if part is not None]

    return SimpleNamespace(
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        uuid=said(lambda: _text(pynvml.nvmlDeviceGetUUID(handle)), ""),
        pci=said(lambda: _text(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower()),
        mig_uuids=said(parts, []),
    )


def choose(device, count, found):
    """The `count` GPUs from `device` (`cuda`, `cuda:1`) on, by CUDA's own numbering: what CUDA calls each, and which it is, or
    None where CUDA alone knows."""
    shown = visible.visible(ALLOWED, ORDER, found)
    index = device.partition(":")[2] if ":" in device else "0"
    if not (index.isascii() and index.isdecimal()):
        raise Failed("bad_request", f"device `{device[:80]}`: expected `cuda` or `cuda:` and a number")
    first = int(index[:9])
    chosen = shown[first : first + count]
    if len(chosen) == count:
        return chosen
    gpus = f"this machine has {_count(len(found))}"
    if ALLOWED is not None:
        gpus += f", and `CUDA_VISIBLE_DEVICES={ALLOWED[:80]}` shows {_count(len(shown)) if shown else 'none'}"
    if count == 1:
        raise Failed("unavailable", f"no `{device[:80]}`: {gpus}")
    raise Failed("unavailable", f"option `tp`: {count} GPUs from `{device[:80]}` on are asked, {gpus}")


def show_only(chosen):
    """Lets the library see these GPUs alone. To be called before anything touches CUDA: its worker processes inherit it."""
    os.environ[visible.ORDER] = ORDER
    os.environ[visible.VISIBLE] = ",".join(it.word for it in chosen)


def _count(gpus):
    return f"{gpus} GPU{'' if gpus == 1 else 's'}"


def held_bytes(pids):
    """What these processes hold on all GPUs together; None where the driver does not tell it by process."""
    held = [used for pid, used in _computing() if pid in pids and used is not None]
    return sum(held) if held else None


def _computing():
    """Who computes on a GPU, and what it holds there, as far as the driver tells: in a container it may know other numbers."""
    try:
        import pynvml

        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        found = [it for handle in handles for it in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        return [(it.pid, it.usedGpuMemory) for it in found]
    except Exception:
        return []


def workers_since(before):
    """The processes that came with a load: all of them, those that are not this one's descendants (MPI starts workers that
    are children of nobody here), and those that must stay as long as the load does."""
    now = processes()
    new = set(now) - set(before)
    elsewhere = marked_elsewhere(now) & new
    came = (descendants(os.getpid(), now) & new) | elsewhere
    return SimpleNamespace(all={os.getpid()} | came, elsewhere=elsewhere, watched=who_must_stay(came))


def who_must_stay(came):
    """Those that hold a GPU: as the driver says, or in a container, where it knows them by other numbers, as their open files
    say. Where neither names one, all: better a helper that should have ended is missed than a worker."""
    by_driver = {pid for pid, _ in _computing()} & came
    return by_driver or {pid for pid in came if _has_open(pid, DEVICE_FILES)} or set(came)


def _has_open(pid, prefix):
    try:
        files = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for file in files:
        try:
            if os.readlink(f"/proc/{pid}/fd/{file}").startswith(prefix):
                return True
        except OSError:
            continue
    return False


def processes():
    """Process id -> that of its parent, of all that can be seen."""
    parents = {}
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The name stands in brackets and may hold anything, brackets too.
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if state != b"Z":
                parents[int(name)] = int(parent)
    return parents


def descendants(pid, parents):
    """Of a process, without itself."""
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new and child not in found}
        found |= new
    return found


def marked_elsewhere(parents):
    """Processes of this launch that are neither this one's, nor its parent's: MPI starts workers that belong to nobody here."""
    mark = os.environ.get(MARK)
    if not mark:
        return set()
    wanted = f"{MARK}={mark}".encode()
    # The program that started this one is the root of what the orchestrator knows anyway.
    known = descendants(os.getppid(), parents) | {os.getppid(), os.getpid()}
    return {pid for pid in parents if pid not in known and wanted in _environment(pid)}


def end(workers):
    """Of those that `workers_since` found, the ones that are still there. They are gone when this returns, if a moment is
    enough for it."""
    others = workers.all - {os.getpid()}
    for pid in others:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    deadline = time.monotonic() + KILL_S
    while any(is_alive(pid) for pid in others) and time.monotonic() < deadline:
        time.sleep(0.005)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] != [b"Z"]
    except OSError:
        return False


def _environment(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return ()


def _text(name):
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name
