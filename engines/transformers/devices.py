"""The device, threads and memory of a load, and the messages for too little memory."""

import math
import re
from contextlib import contextmanager
from pathlib import Path

import torch

from engine_kit import Failed

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

# The folder with the files of a container's memory limit.
CGROUP_FOLDER = Path("/sys/fs/cgroup")

# PyTorch's number of threads at its import: its default, or the number of the first load (`prepare_environment`).
DEFAULT_THREADS = torch.get_num_threads()


def set_threads(requested):
    """Sets two numbers of threads: within an operation (OpenMP, MKL), and of the pool that runs operations in parallel."""
    torch.set_num_threads(requested or DEFAULT_THREADS)
    try:
        torch.set_num_interop_threads(requested or DEFAULT_THREADS)
    except RuntimeError:
        # PyTorch allows this only once in a process. The facts report the number in effect.
        pass


def find_device(name):
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise Failed("device", f"no CUDA device for `{name}`: PyTorch {torch.__version__} finds none", "--device cpu")
    number, count = name.removeprefix("cuda").removeprefix(":") or "0", torch.cuda.device_count()
    if not number.isdecimal() or int(number) >= count:
        raise Failed("device", f"no CUDA device `{name}`: PyTorch finds {count}", "--device cuda:0")
    device = torch.device("cuda", int(number))
    # Streams and graphs are made on the current device.
    torch.cuda.set_device(device)
    return device


def wait_for(device):
    """Waits for the device, so that a phase of a load contains its own work. The decode loops do not call this function."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_bytes(device):
    """The bytes that can still be allocated; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min((count for count in (host_free_bytes(), container_free_bytes()) if count is not None), default=None)


def host_free_bytes():
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return None


def container_free_bytes(folder=CGROUP_FOLDER):
    """The bytes left in a container's limit (cgroup v2); None without a limit. The host may have far more."""
    try:
        limit, used = (int((folder / name).read_text("ascii")) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):
        return None
    try:
        lines = dict(line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
        # Inactive file pages, such as a new download's, count as used but are freed on demand.
        used -= int(lines["inactive_file"])
    except (OSError, KeyError, ValueError):
        pass
    return max(0, limit - used)


def bytes_as(tensors, dtype):
    """The bytes of these tensors in another dtype."""
    return sum(math.prod(tensor.shape) for tensor in tensors.values()) * dtype.itemsize


def check_free_memory(needs, dtype, free_on=free_bytes):
    """Refuses weights that do not fit, before they are read: without memory, the operating system would kill the
    process. `needs`: bytes by device, because devices do not share memory."""
    for device, need in needs.items():
        if (unused := free_on(device)) is not None and need > unused:
            subject = "the weights take" if len(needs) == 1 else f"the shard on {device} takes"
            message = f"{subject} {gigabytes(need)} as {DTYPE_NAMES.get(dtype, 'int8')}, and {gigabytes(unused)} are free on {device}"
            raise Failed("out_of_memory", message, None if dtype.itemsize < 4 else "--dtype bf16")


@contextmanager
def explain_memory_errors(work, device):
    """Converts out-of-memory errors to a `Failed` that names the work and, if known, the requested and the free bytes."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        requested = requested_bytes(error)
        if requested is None and not isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            raise
        if device.type == "cuda":
            # Frees the memory of the failed work for the next request.
            torch.cuda.empty_cache()
        available = free_bytes(device)
        amount = "more memory" if requested is None else gigabytes(requested)
        free_part = "" if available is None else f", and {gigabytes(available)} are free"
        raise Failed("out_of_memory", f"{work}: requested {amount} on {device}{free_part}") from None


def requested_bytes(error):
    """The bytes that a failed allocation requested, from PyTorch's message; None for other errors."""
    text = str(error)
    if match := re.search(r"tried to allocate (\d+) bytes", text):
        return int(match[1])
    if match := re.search(r"Tried to allocate ([\d.]+) (bytes|[KMGT]iB)", text):
        return int(float(match[1]) * {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[match[2]])
    return None


def gigabytes(count):
    return f"{count / 1e9:.2f} GB"


def device_memory(devices):
    """The memory in use, its peak and the reserved memory, each summed over the devices."""
    counts = (torch.cuda.memory_allocated, torch.cuda.max_memory_allocated, torch.cuda.memory_reserved)
    names = ("in_use_bytes", "peak_bytes", "reserved_bytes")
    return {name: sum(count(device) for device in devices) for name, count in zip(names, counts)}
