"""The GPUs of this machine: the driver's facts, and CUDA's numbers. Uses no model library.

`CUDA_VISIBLE_DEVICES` hides some GPUs and renumbers the others, but the driver's management library (NVML) ignores that
variable. The rules here are the orchestrator's (`src/machine/gpu/cuda.rs`), so `cuda:1` is the same GPU for both.
"""

import ctypes
import os
from types import SimpleNamespace

from engine_kit import Failed

ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
# With this value, CUDA numbers GPUs by the slots of the machine. A run sets it for engines unless its user chose another order.
# Without it, CUDA numbers GPUs by speed.
BY_SLOT = "PCI_BUS_ID"

# The caller's values, read before a load makes fewer devices visible.
CALLER_LIST = os.environ.get(VISIBLE_VARIABLE)
CALLER_ORDER = os.environ.get(ORDER_VARIABLE, BY_SLOT)


def has_driver():
    """Whether the driver answers or, without `pynvml`, whether the driver's library can be opened."""
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


def read_gpus():
    """The driver's facts of each GPU, in the driver's order."""
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
            # Older drivers do not support every query, and some GPUs have no MIG devices.
            return default

    def read_mig_uuids():
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        devices = (query(lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)) for index in range(count))
        return [_text(pynvml.nvmlDeviceGetUUID(device)) for device in devices if device is not None]

    return SimpleNamespace(
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        uuid=query(lambda: _text(pynvml.nvmlDeviceGetUUID(handle)), ""),
        pci=query(lambda: _text(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower()),
        mig_uuids=query(read_mig_uuids, []),
    )


def _text(value):
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def choose_devices(device, count, gpus):
    """Returns `count` visible devices in CUDA's order, from `device` (`cuda`, `cuda:1`) on."""
    visible = visible_devices(CALLER_LIST, CALLER_ORDER, gpus)
    index = device.partition(":")[2] if ":" in device else "0"
    if not (index.isascii() and index.isdecimal()):
        raise Failed("bad_request", f"device `{device[:80]}`: expected `cuda` or `cuda:` and a number")
    first = int(index[:9])  # Nine digits are enough for any machine.
    chosen = visible[first : first + count]
    if len(chosen) == count:
        return chosen
    available = f"this machine has {_count_text(len(gpus))}"
    if CALLER_LIST is not None:
        visible_text = _count_text(len(visible)) if visible else "none"
        available += f", and `{VISIBLE_VARIABLE}={CALLER_LIST[:80]}` shows {visible_text}"
    if count == 1:
        raise Failed("unavailable", f"no `{device[:80]}`: {available}")
    raise Failed("unavailable", f"option `tp`: {count} GPUs starting at `{device[:80]}` are needed, but {available}")


def show_only(devices):
    """Hides all other devices. Call this before any code uses CUDA: child processes inherit the variables."""
    os.environ[ORDER_VARIABLE] = CALLER_ORDER
    os.environ[VISIBLE_VARIABLE] = ",".join(device.name for device in devices)


def _count_text(gpus):
    return f"{gpus} GPU{'' if gpus == 1 else 's'}"


def visible_devices(visible_list, order, gpus):
    """The devices that CUDA shows, in the order of CUDA's numbers. `name` is a device's name in `CUDA_VISIBLE_DEVICES`.
    `gpu` is None if only CUDA knows which GPU the device is. `gpus` have `uuid`, `pci` (or None) and `mig_uuids`."""
    ordered = _in_order(order, gpus)
    if visible_list is None:
        if len(gpus) > 1 and any(gpu.mig_uuids for gpu in gpus):
            # CUDA may then show a MIG device first, or one of them and nothing else.
            ordered = [None] * len(gpus)
        return [SimpleNamespace(name=str(index), gpu=gpu) for index, gpu in enumerate(ordered)]
    if visible_list.startswith("GPU-"):
        return _parse_list(visible_list, lambda name: _device_by_uuid(name, gpus))
    if visible_list.startswith("MIG-"):
        # CUDA shows only the first of several MIG devices.
        return _parse_list(visible_list.split(",")[0], lambda name: _device_by_mig_uuid(name, gpus))

    def by_number(name):
        index = _leading_number(name)
        return None if index is None or index >= len(gpus) else SimpleNamespace(name=str(index), gpu=ordered[index])

    return _parse_list(visible_list, by_number)


def _in_order(order, gpus):
    """The GPUs in CUDA's order; None for each GPU if only CUDA knows the order."""
    if len(gpus) > 1 and order != BY_SLOT:
        return [None] * len(gpus)
    return sorted(gpus, key=lambda gpu: gpu.pci) if all(gpu.pci for gpu in gpus) else list(gpus)


def _parse_list(names, parse):
    """The devices of a list, up to the first unknown name. A list with a duplicate shows no device."""
    devices = []
    for name in names.split(","):
        device = parse(name.strip())
        if device is None:
            break
        if any(device.name == other.name or device.gpu is not None and device.gpu is other.gpu for other in devices):
            return []
        devices.append(device)
    return devices


def _leading_number(name):
    """The number that a name begins with, as C reads it."""
    digits = name[: next((index for index, letter in enumerate(name) if letter not in "0123456789"), len(name))]
    return int(digits) if 0 < len(digits) < 10 else None


def _device_by_uuid(name, gpus):
    """The GPU whose UUID begins with the name, if there is only one."""
    return _single(name, [gpu for gpu in gpus if name.startswith("GPU-") and gpu.uuid.startswith(name)])


def _device_by_mig_uuid(name, gpus):
    """The GPU of a MIG device. Older drivers name the device by its GPU and two numbers: `MIG-GPU-8932f937/1/0`."""
    if name.startswith("MIG-GPU-"):
        device = _device_by_uuid(name.removeprefix("MIG-").split("/")[0], gpus)
        return device and SimpleNamespace(name=name, gpu=device.gpu)
    return _single(name, [gpu for gpu in gpus if any(uuid.startswith(name) for uuid in gpu.mig_uuids)])


def _single(name, gpus):
    return SimpleNamespace(name=name, gpu=gpus[0]) if len(gpus) == 1 else None
