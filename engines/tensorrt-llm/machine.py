"""The GPUs of this machine from their driver, and the processes that work for this one. Uses no model library."""

import ctypes
import os
import signal
import sys
import time
from types import SimpleNamespace

import visible
from engine_kit import Failed

# The orchestrator sets this in all processes that it starts; children inherit it.
MARK = "ORCHESTRATE_LAUNCH"

# The caller's visible devices, before a load narrows them.
ALLOWED = os.environ.get(visible.VISIBLE)
ORDER = os.environ.get(visible.ORDER, visible.BY_SLOT)

# The open device files of a process that computes on a GPU.
DEVICE_FILES = "/dev/nvidia"
# The time for a killed process to end.
KILL_S = 1.0


def has_driver():
    """Whether a driver's library opens here. Cheap, and without its Python package."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return True
    except ImportError:
        pass
    except Exception:
        # Any error means that the GPUs cannot be queried.
        return False
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
        return True
    except OSError:
        return False


def gpus():
    """The driver's facts of each GPU, in its order."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return [_gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(pynvml.nvmlDeviceGetCount())]
    except ImportError:
        raise Failed("unavailable", "`pynvml` is missing, which TensorRT-LLM needs too") from None
    except Exception as error:
        raise Failed("unavailable", f"the NVIDIA driver does not answer: {error}") from None


def _gpu(pynvml, handle):
    def query(call, default=None):
        try:
            return call()
        except Exception:
            # Older drivers, and GPUs without MIG, do not support every query.
            return default

    def parts():
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        handles = (query(lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)) for index in range(count))
        return [_text(pynvml.nvmlDeviceGetUUID(part)) for part in handles if part is not None]

    return SimpleNamespace(
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        uuid=query(lambda: _text(pynvml.nvmlDeviceGetUUID(handle)), ""),
        pci=query(lambda: _text(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower()),
        mig_uuids=query(parts, []),
    )


def choose(device, count, found):
    """The `count` GPUs from `device` (`cuda`, `cuda:1`) on, in CUDA's numbering: CUDA's name of each, and the GPU, or
    None if only CUDA knows it."""
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
    raise Failed("unavailable", f"option `tp`: {count} GPUs from `{device[:80]}` on, {gpus}")


def show_only(chosen):
    """Makes only these GPUs visible. Call it before anything touches CUDA: worker processes inherit it."""
    os.environ[visible.ORDER] = ORDER
    os.environ[visible.VISIBLE] = ",".join(gpu.name for gpu in chosen)


def _count(gpus):
    return f"{gpus} GPU{'' if gpus == 1 else 's'}"


def used_bytes(pids):
    """The memory of these processes on all GPUs; None if the driver does not state the memory of a process."""
    used_by = [used for pid, used in _computing() if pid in pids and used is not None]
    return sum(used_by) if used_by else None


def _computing():
    """The processes that compute on a GPU, and their memory. In a container the driver may use other process ids."""
    try:
        import pynvml

        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        processes = [process for handle in handles for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        return [(process.pid, process.usedGpuMemory) for process in processes]
    except Exception:
        return []


def workers_since(before):
    """The processes that a load started: all of them, those that are not descendants of this one (MPI's
    workers), and those that must live as long as the load."""
    now = processes()
    new = set(now) - set(before)
    elsewhere = marked_non_descendants(now) & new
    started = (descendants(os.getpid(), now) & new) | elsewhere
    return SimpleNamespace(all={os.getpid()} | started, elsewhere=elsewhere, watched=processes_to_watch(started))


def processes_to_watch(started):
    """The processes that hold a GPU: from the driver, or from open files in a container, where the driver uses other
    ids. If neither names one, all of them: a helper that ends early is less harmful than an unnoticed dead worker."""
    by_driver = {pid for pid, _ in _computing()} & started
    return by_driver or {pid for pid in started if _has_open(pid, DEVICE_FILES)} or set(started)


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
    """Process id -> parent's id, for all visible processes."""
    parents = {}
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The name is in brackets and may contain any character, even brackets.
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if state != b"Z":
                parents[int(name)] = int(parent)
    return parents


def descendants(pid, parents):
    """The descendants of a process, without itself."""
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new and child not in found}
        found |= new
    return found


def marked_non_descendants(parents):
    """Processes of this launch that do not descend from this process or its parent: MPI's workers do not."""
    mark = os.environ.get(MARK)
    if not mark:
        return set()
    variable = f"{MARK}={mark}".encode()
    # The parent is the root of the processes that the orchestrator knows.
    known = descendants(os.getppid(), parents) | {os.getppid(), os.getpid()}
    return {pid for pid in parents if pid not in known and variable in _environment(pid)}


def end(workers):
    """Ends the processes of `workers_since` that still run. Waits a moment for their end."""
    worker_pids = workers.all - {os.getpid()}
    for pid in worker_pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    deadline = time.monotonic() + KILL_S
    while any(is_alive(pid) for pid in worker_pids) and time.monotonic() < deadline:
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
