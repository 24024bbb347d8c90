"""Finds, watches and ends the processes that TensorRT-LLM starts. Uses no model library."""

import os
import signal
import sys
import time
from types import SimpleNamespace

# The orchestrator sets this variable for each engine process that it starts; children inherit it.
LAUNCH_VARIABLE = "ORCHESTRATE_LAUNCH"

# The paths of the GPUs' device files begin with this, except under Windows (WSL). A process that computes on a GPU has some
# of these files open.
DEVICE_FILES = "/dev/nvidia"
# The time for killed processes to end.
KILL_TIMEOUT_S = 1.0


def used_bytes(pids):
    """The memory of these processes on all GPUs; None if the driver does not report memory by process."""
    sizes = [size for pid, size in _gpu_processes() if pid in pids and size is not None]
    return sum(sizes) if sizes else None


def _gpu_processes():
    """The processes that compute on a GPU: ids and bytes of GPU memory. In a container the driver may use other ids."""
    try:
        import pynvml

        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        running = [process for handle in handles for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        return [(process.pid, process.usedGpuMemory) for process in running]
    except Exception:
        return []


def library_processes_since(before):
    """The processes that were started since `before`, a result of `parents_by_pid`. `all` includes this process.
    `non_descendants` are those that MPI started: they descend neither from this process nor from its parent. A request fails
    if one of `watched` ends."""
    now = parents_by_pid()
    new = set(now) - set(before)
    non_descendants = _marked_non_descendants(now) & new
    started = (_descendants(os.getpid(), now) & new) | non_descendants
    watched = _processes_to_watch(started)
    return SimpleNamespace(all={os.getpid()} | started, non_descendants=non_descendants, watched=watched)


def _processes_to_watch(started):
    """The started processes that the driver lists. In a container the driver may use other ids and list none of them. Then it
    returns the processes with an open device file, or all if no process has one: the end of a worker must not be missed."""
    by_driver = {pid for pid, _ in _gpu_processes()} & started
    return by_driver or {pid for pid in started if _has_open_device(pid)} or set(started)


def _has_open_device(pid):
    try:
        files = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for file in files:
        try:
            if os.readlink(f"/proc/{pid}/fd/{file}").startswith(DEVICE_FILES):
                return True
        except OSError:
            continue
    return False


def parents_by_pid():
    """The parent's id of each visible process, by process id."""
    names = os.listdir("/proc") if sys.platform == "linux" else ()
    parents = {int(name): _parent_pid(name) for name in names if name.isdecimal()}
    return {pid: parent for pid, parent in parents.items() if parent is not None}


def _parent_pid(pid):
    """The parent's id of a process; None if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The program's name, in brackets, stands before these fields. The name may itself contain brackets.
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state == b"Z" else int(parent)


def is_alive(pid):
    return _parent_pid(pid) is not None


def _descendants(pid, parents):
    """The descendants of a process, without itself."""
    descendants, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new and child not in descendants}
        descendants |= new
    return descendants


def _marked_non_descendants(parents):
    """Processes of this launch that descend neither from this process nor from its parent."""
    mark = os.environ.get(LAUNCH_VARIABLE)
    if not mark:
        return set()
    variable = f"{LAUNCH_VARIABLE}={mark}".encode()
    # The parent is the engine's Rust program, which the orchestrator started. The orchestrator finds its descendants without
    # this list.
    known = _descendants(os.getppid(), parents) | {os.getppid(), os.getpid()}
    return {pid for pid in parents if pid not in known and variable in _environment(pid)}


def _environment(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return ()


def kill(library_processes):
    """Kills the processes of `library_processes_since` that still run, except this one. Waits for their end, but not longer
    than `KILL_TIMEOUT_S`."""
    pids = library_processes.all - {os.getpid()}
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.005)
