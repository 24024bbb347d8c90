"""The environment variables to set before any library is imported: no network, no telemetry, the number of threads.

Libraries read these once, at import. Standard library only.
"""

import os

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    # Kernels from the hub would be foreign code.
    "USE_HUB_KERNELS": "0",
}
QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # One text at a time: a pool of threads would only compete with those that compute.
    "TOKENIZERS_PARALLELISM": "false",
}


def prepare_environment(threads, environment=os.environ):
    """Call it before the first heavy import. A later load can change the number of threads only through PyTorch."""
    environment.update(OFFLINE)
    environment.update(QUIET)
    if threads is not None:
        # OpenMP's default is every visible core, and a library may read it before PyTorch does.
        environment.update({"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)})
        # A compiler also starts a process for every core.
        environment["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)
