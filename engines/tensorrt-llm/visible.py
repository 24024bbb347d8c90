"""The GPUs that CUDA shows, and their order. `CUDA_VISIBLE_DEVICES` hides some and renumbers the others, but the
driver's management library ignores it. The rules are the orchestrator's, so that `cuda:1` is the same GPU for both.
"""

from types import SimpleNamespace

ORDER = "CUDA_DEVICE_ORDER"
VISIBLE = "CUDA_VISIBLE_DEVICES"
# The order of slots, which the orchestrator sets for all its processes. CUDA's default is the fastest first.
BY_SLOT = "PCI_BUS_ID"


def visible(allowed, order, gpus):
    """CUDA's devices by number: a word that names each to CUDA, and the GPU, or None if the order depends on CUDA's
    ranking by speed. `gpus` have `uuid`, `pci` (or None) and `mig_uuids`."""
    by_place = in_order(order, gpus)
    if allowed is None:
        if len(gpus) > 1 and any(gpu.mig_uuids for gpu in gpus):
            # Here CUDA counts MIG parts, and only of one GPU.
            by_place = [None] * len(gpus)
        return [SimpleNamespace(word=str(place), gpu=gpu) for place, gpu in enumerate(by_place)]
    if allowed.startswith("GPU-"):
        return listed(allowed, lambda word: whole(word, gpus))
    if allowed.startswith("MIG-"):
        # CUDA shows only the first of several parts.
        return listed(allowed.split(",")[0], lambda word: part(word, gpus))

    def by_number(word):
        place = number(word)
        return None if place is None or place >= len(gpus) else SimpleNamespace(word=str(place), gpu=by_place[place])

    return listed(allowed, by_number)


def in_order(order, gpus):
    if len(gpus) > 1 and order != BY_SLOT:
        return [None] * len(gpus)
    return sorted(gpus, key=lambda gpu: gpu.pci) if all(gpu.pci for gpu in gpus) else list(gpus)


def listed(words, named):
    """The GPUs of a list, up to the first unknown word. A list with a duplicate is refused as a whole."""
    found = []
    for word in words.split(","):
        it = named(word.strip())
        if it is None:
            break
        if any(it.word == other.word or it.gpu is not None and it.gpu is other.gpu for other in found):
            return []
        found.append(it)
    return found


def number(word):
    """The leading digits of a word, as C reads a number."""
    digits = word[: next((at for at, letter in enumerate(word) if letter not in "0123456789"), len(word))]
    return int(digits) if 0 < len(digits) < 10 else None


def whole(word, gpus):
    """The GPU with this identity or a unique beginning of it."""
    return only(word, [gpu for gpu in gpus if word.startswith("GPU-") and gpu.uuid.startswith(word)])


def part(word, gpus):
    """The MIG part by `MIG-` and its identity, or in the older form by its GPU and two numbers:
    `MIG-GPU-8932f937/1/0`."""
    if word.startswith("MIG-GPU-"):
        its = whole(word.removeprefix("MIG-").split("/")[0], gpus)
        return its and SimpleNamespace(word=word, gpu=its.gpu)
    return only(word, [gpu for gpu in gpus if any(uuid.startswith(word) for uuid in gpu.mig_uuids)])


def only(word, found):
    return SimpleNamespace(word=word, gpu=found[0]) if len(found) == 1 else None
