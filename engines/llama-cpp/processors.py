"""The processors that this process may run on, and the cores that they belong to. Knows nothing of llama.cpp."""

import os


def cores_first():
    """One processor of each core, then the second one of each, and so on."""
    return [processor for _, processor in sorted(_by_place())]


def physical_cores():
    """As many threads as llama.cpp's own programs take: one for each core."""
    return sum(place == 0 for place, _ in _by_place())


def _by_place():
    """Each processor with its place within its core."""
    seen = {}
    for processor in sorted(os.sched_getaffinity(0)):
        core = _core_of(processor)
        seen[core] = seen.get(core, -1) + 1
        yield seen[core], processor


def _core_of(processor):
    """Named by all that share it; where the system does not tell, each has its own."""
    try:
        with open(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list") as siblings:
            return siblings.read().strip()
    except OSError:
        return processor
