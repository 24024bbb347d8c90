"""A stand-in for the driver's library. The variable `STAND_IN` has its settings as JSON: GPUs, processes, faults."""

import json
import os
from types import SimpleNamespace

SETTINGS = json.loads(os.environ.get("STAND_IN", "{}"))
# A name and a compute capability for each GPU.
GPUS = SETTINGS.get("gpus", [["Stand-in GPU", [9, 0]]])


class NVMLError(Exception):
    pass


def nvmlInit():
    if "no_driver" in SETTINGS.get("faults", []):
        raise NVMLError("NVML Shared Library Not Found")


def nvmlDeviceGetCount():
    return len(GPUS)


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetName(handle):
    return GPUS[handle][0]


def nvmlDeviceGetCudaComputeCapability(handle):
    return tuple(GPUS[handle][1])


def nvmlDeviceGetUUID(handle):
    # The handle of a MIG device is its UUID.
    return f"GPU-{handle}f" if isinstance(handle, int) else handle


def nvmlDeviceGetPciInfo(handle):
    return SimpleNamespace(busId=f"00000000:{handle:02X}:00.0")


def nvmlDeviceGetMaxMigDeviceCount(handle):
    if handle != SETTINGS.get("partitioned_gpu"):
        raise NVMLError("Not Supported")
    return 2


def nvmlDeviceGetMigDeviceHandleByIndex(handle, index):
    return f"MIG-{handle}{index}"


def nvmlDeviceGetComputeRunningProcesses(handle):
    """Each worker process in the stand-in's record uses 1 GiB on the first GPU."""
    try:
        lines = [json.loads(line) for line in open(SETTINGS["record"])]
    except (KeyError, OSError):
        return []
    pids = [pid for line in lines for pid in line.get("workers", [])] if handle == 0 else []
    if "in_a_container" in SETTINGS.get("faults", []):
        # The driver gives process ids from outside the container.
        pids = [pid + 10_000_000 for pid in pids]
    return [SimpleNamespace(pid=pid, usedGpuMemory=2**30) for pid in pids]
