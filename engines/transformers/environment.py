"""Environment variables that libraries read once, at import: no network, no telemetry, the number of threads.

This module uses only the standard library.
"""

import os

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    # Kernels from the Hugging Face hub are not part of the measured libraries.
    "USE_HUB_KERNELS": "0",
}
QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # Only one text is encoded at a time, and a pool of threads would compete with the computing threads.
    "TOKENIZERS_PARALLELISM": "false",
}


def prepare_environment(threads, environment=os.environ):
    """Sets the variables. Call this function before the first heavy import: afterwards only PyTorch can change the
    number of threads."""
    environment.update(OFFLINE)
    environment.update(QUIET)
    if threads is not None:
        # OpenMP's default is all visible cores, and a library may read the variable before PyTorch does.
        environment.update({"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)})
        # Inductor's default is a compiler process for each core.
        environment["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)
