"""Where a model computes: the device, the threads, how much memory there is, and what is said when it is not enough."""

import math
import re
from contextlib import contextmanager
from pathlib import Path

import torch

from engine_kit import Failed

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

# Where a container is told how much memory it may have.
CGROUP = Path("/sys/fs/cgroup")

# What PyTorch does where nobody says how many threads to use; read before anybody does.
DEFAULT_THREADS = torch.get_num_threads()


def set_threads(asked):
    """Threads inside one operation, of OpenMP and of MKL, and of the pool between operations."""
    torch.set_num_threads(asked or DEFAULT_THREADS)
    try:
        torch.set_num_interop_threads(asked or DEFAULT_THREADS)
    except RuntimeError:
        # PyTorch lets this be said once in a process. What is in effect is read back and told.
        pass


def find_device(name):
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise Failed("device", f"no CUDA device for `{name}`: PyTorch {torch.__version__} finds none", "--device cpu")
    number, count = name.removeprefix("cuda").removeprefix(":") or "0", torch.cuda.device_count()
    if not number.isdecimal() or int(number) >= count:
        raise Failed("device", f"no CUDA device `{name}`: there are {count}", "--device cuda:0")
    device = torch.device("cuda", int(number))
    # Streams and graphs are made on the current device.
    torch.cuda.set_device(device)
    return device


def wait_for(device):
    """So that a phase of a load has its own work in it. Nothing that is measured per token calls this."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_bytes(device):
    """Memory that an allocation can still have; None where nobody says."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min((room for room in (free_of_host(), free_of_container()) if room is not None), default=None)


def free_of_host():
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return None


def free_of_container(folder=CGROUP):
    """What the limit of a container (cgroup v2) leaves; None where there is no limit. The host may have far more."""
    try:
        most, used = (int((folder / name).read_text("ascii")) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):
        return None
    try:
        lines = dict(line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
        # Pages of files that nobody looks at count as used and make room when room is needed, as a fresh download's do.
        used -= int(lines["inactive_file"])
    except (OSError, KeyError, ValueError):
        pass
    return max(0, most - used)


def bytes_as(tensors, dtype):
    """What these tensors take in another dtype."""
    return sum(math.prod(tensor.shape) for tensor in tensors.values()) * dtype.itemsize


def check_room(needs, dtype, free=free_bytes):
    """Refuses weights that cannot fit, before they are read: a host that runs out of memory kills instead of refusing.
    `needs`: bytes by device, for what does not fit on one is of no use to it on another."""
    for device, need in needs.items():
        if (room := free(device)) is not None and need > room:
            what = "the weights take" if len(needs) == 1 else f"the shard on {device} takes"
            message = f"{what} {gigabytes(need)} as {NAMES.get(dtype, 'int8')}, and {gigabytes(room)} are free on {device}"
            raise Failed("out_of_memory", message, None if dtype.itemsize < 4 else "--dtype bf16")


@contextmanager
def saying_memory(what, device):
    """Turns the ways in which memory runs out into one: what was under way, how much was asked, how much was free."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        asked = asked_bytes(error)
        if asked is None and not isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            raise
        if device.type == "cuda":
            # What the failed work held must not be missing from the next request.
            torch.cuda.empty_cache()
        left = free_bytes(device)
        much = "more memory" if asked is None else gigabytes(asked)
        free = "" if left is None else f", and {gigabytes(left)} are free"
        raise Failed("out_of_memory", f"{what}: asked for {much} on {device}{free}") from None


def asked_bytes(error):
    """How much an allocation that failed had asked for, from the words of PyTorch's allocators; None of other errors."""
    said = str(error)
    if found := re.search(r"tried to allocate (\d+) bytes", said):
        return int(found[1])
    if found := re.search(r"Tried to allocate ([\d.]+) (bytes|[KMGT]iB)", said):
        return int(float(found[1]) * {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[found[2]])
    return None


def gigabytes(count):
    return f"{count / 1e9:.2f} GB"


def device_memory(devices):
    """Over all devices of the load together."""
    counts = (torch.cuda.memory_allocated, torch.cuda.max_memory_allocated, torch.cuda.memory_reserved)
    names = ("in_use_bytes", "peak_bytes", "reserved_bytes")
    return {name: sum(count(device) for device in devices) for name, count in zip(names, counts)}
