"""The GPUs that CUDA shows, and their order. `CUDA_VISIBLE_DEVICES` hides some and renumbers the others, but the
driver's management library ignores it. The rules are the orchestrator's, so that `cuda:1` is the same GPU for both.
"""

from types import SimpleNamespace

ORDER = "CUDA_DEVICE_ORDER"
VISIBLE = "CUDA_VISIBLE_DEVICES"
# The order of slots, which the orchestrator sets for all its processes. CUDA's default is the fastest first.
BY_SLOT = "PCI_BUS_ID"


def visible(allowed, order, gpus):
    """CUDA's devices by number: CUDA's name of each, and the GPU, or None if the order depends on CUDA's
    ranking by speed. `gpus` have `uuid`, `pci` (or None) and `mig_uuids`."""
    by_slot = in_order(order, gpus)
    if allowed is None:
        if len(gpus) > 1 and any(gpu.mig_uuids for gpu in gpus):
            # Here CUDA counts MIG parts, and only of one GPU.
            by_slot = [None] * len(gpus)
        return [SimpleNamespace(name=str(index), gpu=gpu) for index, gpu in enumerate(by_slot)]
    if allowed.startswith("GPU-"):
        return listed(allowed, lambda name: by_identity(name, gpus))
    if allowed.startswith("MIG-"):
        # CUDA shows only the first of several parts.
        return listed(allowed.split(",")[0], lambda name: part(name, gpus))

    def by_number(name):
        index = number(name)
        return None if index is None or index >= len(gpus) else SimpleNamespace(name=str(index), gpu=by_slot[index])

    return listed(allowed, by_number)


def in_order(order, gpus):
    if len(gpus) > 1 and order != BY_SLOT:
        return [None] * len(gpus)
    return sorted(gpus, key=lambda gpu: gpu.pci) if all(gpu.pci for gpu in gpus) else list(gpus)


def listed(names, find):
    """The GPUs of a list, up to the first unknown name. A list with a duplicate is refused as a whole."""
    found = []
    for name in names.split(","):
        gpu = find(name.strip())
        if gpu is None:
            break
        if any(gpu.name == other.name or gpu.gpu is not None and gpu.gpu is other.gpu for other in found):
            return []
        found.append(gpu)
    return found


def number(name):
    """The leading digits of a name, as C reads a number."""
    digits = name[: next((index for index, letter in enumerate(name) if letter not in "0123456789"), len(name))]
    return int(digits) if 0 < len(digits) < 10 else None


def by_identity(name, gpus):
    """The GPU with this identity or a unique beginning of it."""
    return only(name, [gpu for gpu in gpus if name.startswith("GPU-") and gpu.uuid.startswith(name)])


def part(name, gpus):
    """The MIG part by `MIG-` and its identity, or in the older form by its GPU and two numbers:
    `MIG-GPU-8932f937/1/0`."""
    if name.startswith("MIG-GPU-"):
        its = by_identity(name.removeprefix("MIG-").split("/")[0], gpus)
        return its and SimpleNamespace(name=name, gpu=its.gpu)
    return only(name, [gpu for gpu in gpus if any(uuid.startswith(name) for uuid in gpu.mig_uuids)])


def only(name, found):
    return SimpleNamespace(name=name, gpu=found[0]) if len(found) == 1 else None
