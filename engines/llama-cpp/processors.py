"""The processors of this process, and their cores. Imports neither the kit nor llama.cpp: a script uses it too."""

import os


def cores_first():
    """All processors: the first one of each core, then the second one of each core, and so on."""
    return [processor for _, processor in sorted(_by_index_in_core())]


def physical_cores():
    """The thread count of llama.cpp's own programs: one for each core."""
    return sum(index == 0 for index, _ in _by_index_in_core())


def _by_index_in_core():
    """Each processor with its index within its core."""
    counts = {}
    for processor in sorted(os.sched_getaffinity(0)):
        core = _physical_core(processor)
        counts[core] = counts.get(core, -1) + 1
        yield counts[core], processor


def _physical_core(processor):
    """A core, named by its processors; if the system does not list them, each processor is its own core."""
    try:
        with open(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list") as siblings:
            return siblings.read().strip()
    except OSError:
        return processor
