"""The GPUs of this machine, as their driver tells, and the processes that work for this one. Knows no library of models."""

import ctypes
import os
import signal
import sys
from types import SimpleNamespace

from engine_kit import Failed

# Set by the orchestrator in everything that it starts, and inherited.
MARK = "ORCHESTRATE_LAUNCH"

# What a caller had allowed before any load narrowed it.
ALLOWED = os.environ.get("CUDA_VISIBLE_DEVICES")


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
    """Name and compute capability of each, in the driver's order."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [
            SimpleNamespace(
                name=_text(pynvml.nvmlDeviceGetName(handle)),
                capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
            )
            for handle in handles
        ]
    except ImportError:
        raise Failed("unavailable", "`pynvml` is missing beside TensorRT-LLM, which needs it itself") from None
    except Exception as error:
        raise Failed("unavailable", f"the NVIDIA driver does not answer: {error}") from None


def show_only(device, count, found):
    """Lets the library see `count` GPUs from `device` (`cuda`, `cuda:1`) on, by CUDA's own numbering. To be called before
    anything touches CUDA: its worker processes inherit it."""
    visible = [name for name in ALLOWED.split(",") if name] if ALLOWED is not None else [str(it) for it in range(found)]
    index = device.partition(":")[2] or "0"
    if not (index.isascii() and index.isdecimal()):
        raise Failed("bad_request", f"device `{device[:80]}`: expected `cuda` or `cuda:` and a number")
    first = int(index)
    chosen = visible[first : first + count]
    if len(chosen) == count:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(chosen)
        return
    gpus = f"{len(visible)} GPU{'' if len(visible) == 1 else 's'}"
    limited = " (`CUDA_VISIBLE_DEVICES` says which)" if ALLOWED is not None else ""
    if count == 1:
        raise Failed("unavailable", f"no `{device}`: this machine has {gpus}{limited}")
    raise Failed("unavailable", f"option `tp`: {count} GPUs from `{device}` on are asked, this machine has {gpus}{limited}")


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
    are children of nobody here), and those that hold a GPU and so must stay."""
    now = processes()
    new = set(now) - set(before)
    elsewhere = marked_elsewhere(now) & new
    mine = descendants(os.getpid(), now) & new
    computing = {pid for pid, _ in _computing()} & (mine | elsewhere)
    return SimpleNamespace(all={os.getpid()} | mine | elsewhere, elsewhere=elsewhere, computing=computing)


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
    """Of those that `workers_since` found, the ones that are still there."""
    for pid in workers.all - {os.getpid()}:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue


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
