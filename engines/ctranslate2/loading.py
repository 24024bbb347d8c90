"""A load: makes the library's generator of a converted folder, and reads the configuration in effect. Imports the library."""

import importlib.metadata
import os
import platform

import ctranslate2

import checkpoint
from engine_kit import Failed, check_logit, count_threads
from model import CTranslate2Model, text_of
from worker import COMPUTE_TYPES

# This project's names of the library's dtypes.
DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}

# The tokens of the first pass, in which the library starts its threads.
FIRST_TOKENS = [0, 1, 2]


def check_processor(dtype, folder):
    """Refuses a dtype that the library does not support on this processor."""
    supported = ctranslate2.get_supported_compute_types("cpu")
    if COMPUTE_TYPES[dtype] not in supported:
        found = ", ".join(f"`{name}`" for name in sorted(supported))
        message = f"dtype `{dtype}` of a {folder.architecture} model: CTranslate2 supports only {found} on this processor"
        raise Failed("unsupported", message, "--dtype f32")


def load(request, folder, path, phases):
    with phases.time("weights"):
        threads_before = count_threads()
        try:
            generator = ctranslate2.Generator(
                os.fspath(path),
                device="cpu",
                compute_type=COMPUTE_TYPES[request.dtype],
                inter_threads=1,
                intra_threads=request.threads or 0,
            )
        except (RuntimeError, ValueError) as error:
            raise Failed("model", f"`{path}`: {str(error)[:300]}") from None
    with phases.time("first-pass"):
        ids = [id for id in FIRST_TOKENS if id < folder.vocabulary_size]
        check_logit(sum(generator.score_batch([text_of(ids)])[0].log_probs), folder.name)
        # The library computes in threads of its own, which all exist after the first pass.
        threads = count_threads() - threads_before
    # `float32` or `int8_float32`: the dtype of the weights, then that of the other numbers.
    weights_type, _, float_type = generator.compute_type.rpartition("_")
    float_dtype = DTYPES.get(float_type, "f32")
    weights_dtype = weights_type or DTYPES.get(float_type, float_type)
    facts = {
        "device": generator.device,
        "weights_dtype": weights_dtype,
        "compute_dtype": weights_dtype,
        "kv_dtype": float_dtype,
        "threads": threads,
        "use_cache": True,
        "prefix_cache": False,
        "weights_bytes": (path / "model.bin").stat().st_size,
        **checkpoint.facts(folder),
        "libraries": {"python": platform.python_version(), "ctranslate2": importlib.metadata.version("ctranslate2")},
        "compute_type": generator.compute_type,
        "file": os.fspath(path / "model.bin"),
    }
    return CTranslate2Model(folder, generator, facts)
