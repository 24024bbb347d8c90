"""The engine `tensorrt-llm`: NVIDIA's TensorRT-LLM through its LLM API."""

import sys

import engine_kit
import library
import machine
from engine_kit import Failed
from expected import WRITTEN_FOR
from folder import FORMATS, open_folder
from settings import MAX_SEQUENCES, OPTIONS, read_settings

NAME = "tensorrt-llm"

# Dtype names in loads and facts, and in the library. `auto` follows the model folder.
DTYPES = {"auto": "auto", "bf16": "bfloat16", "f16": "float16"}

# The first GPUs with fp8 arithmetic.
FP8_CAPABILITY = (8, 9)


class TensorRTLLM(engine_kit.Engine):
    options = OPTIONS

    def __init__(self):
        self._serving = None

    def hello(self):
        version = library.installed_version()
        missing = []
        if version is None:
            missing.append(f"TensorRT-LLM is not installed in `{sys.executable}`")
        if not machine.has_driver():
            missing.append("no NVIDIA driver found")
        if missing:
            raise Failed("unavailable", " and ".join(missing), library.INSTALL_HINT if version is None else None)
        return {
            "engine": NAME,
            "version": version,
            # The library returns an iteration's ids in one response; it does not promise one id each.
            "stamp": "chunk",
            "capabilities": {
                "devices": ["cuda"],
                "dtypes": list(DTYPES),
                "formats": FORMATS,
                "batch": MAX_SEQUENCES,
                "concurrency": MAX_SEQUENCES,
                "padding_sides": ["packed"],
                "ignore_eos": "exact",
                "sampling": True,
                "score": True,
            },
        }

    def load(self, request, phases):
        self.close()
        with phases.time("headers"):
            folder = open_folder(request.model)
            settings = read_settings(request.options)
            context_tokens = decide_context(request, folder)
            gpus = machine.gpus()
            chosen = machine.choose(request.device, settings.tp, gpus)
            kv_dtype = decide_kv_dtype(settings, folder, [gpu.gpu for gpu in chosen], gpus)
            machine.show_only(chosen)
        with phases.time("import"):
            library.open_library()
            import errors
            import serving
        with phases.time("check"):
            library.check_expected(settings.backend)
        before = machine.processes()
        try:
            with phases.time("build" if settings.backend == "tensorrt" else "load"):
                dtype = DTYPES[request.dtype]
                llm = library.load(
                    settings.backend, library.arguments(settings, folder, context_tokens, dtype, kv_dtype)
                )
        except Exception as error:
            raise errors.failure(error, errors.LOADING) from error
        split_build(phases, library.build_seconds(llm))
        loaded = {
            "backend": settings.backend,
            "context_logits": settings.context_logits,
            "max_batch": settings.max_batch,
            "facts": facts(request, settings, folder, context_tokens, kv_dtype, library.in_effect(llm)),
        }
        self._serving = serving.Serving(llm, folder, loaded, machine.workers_since(before))
        if library.installed_version() != WRITTEN_FOR:
            sys.stderr.write(f"this engine was written for TensorRT-LLM {WRITTEN_FOR}, and the installed version has the same interface\n")
        return self._serving

    def close(self):
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.close()


def decide_context(request, folder):
    limit, requested = folder.context_tokens, request.context_tokens
    if requested is None and limit is None:
        message = "`config.json`: neither `max_position_embeddings` nor `n_positions`"
        raise Failed("model", message, "load with `context_tokens`")
    if requested is not None and limit is not None and requested > limit:
        raise Failed("context", f"`context_tokens`: {requested} is more than the {limit} of model `{folder.name}`")
    return requested or limit


def decide_kv_dtype(settings, folder, chosen, gpus):
    """The dtype of keys and values under the library's name. If only CUDA knows the chosen GPUs, a GPU is not called
    too old when another may be meant."""
    known = None not in chosen
    slow = [gpu for gpu in (chosen if known else gpus) if gpu.capability < FP8_CAPABILITY]
    if (slow if known else len(slow) == len(gpus)) and (settings.fp8 == "on" or folder.is_fp8):
        cause = "option `fp8`" if settings.fp8 == "on" else f"model `{folder.name}` is in fp8"
        capability = ".".join(str(number) for number in slow[0].capability)
        raise Failed("unsupported", f"{cause}: `{slow[0].name}` has compute capability {capability}, fp8 needs 8.9")
    if settings.backend == "pytorch" and (settings.fp8 == "on" or settings.fp8 == "auto" and folder.is_fp8):
        return "fp8"
    return "auto"


def facts(request, settings, folder, context_tokens, kv_dtype, in_effect):
    compute_dtype = folder.compute_dtype if request.dtype == "auto" else request.dtype
    # Without a requested dtype, the library decides how to handle f32 weights.
    if compute_dtype == "f32":
        compute_dtype = None
    weights_dtype = "fp8" if folder.is_fp8 else None if folder.is_quantised else compute_dtype
    pool_is_fp8 = "fp8" in (kv_dtype, in_effect.get("pool_dtype")) or folder.has_fp8_pool
    stated = {
        "device": request.device,
        "weights_dtype": weights_dtype,
        "compute_dtype": compute_dtype,
        "kv_dtype": "fp8" if pool_is_fp8 else compute_dtype,
        "architecture": folder.architecture,
        "context_tokens": context_tokens,
        "use_cache": True,
        "prefix_cache": False,
        "weights_bytes": weights_bytes(folder, compute_dtype),
        "parameters": folder.parameters,
        "vocabulary_size": folder.vocabulary_size,
        "hidden_size": folder.hidden_size,
        "eos_ids": folder.eos_ids,
        "bos_id": folder.bos_id,
        "libraries": library.versions(),
        # Additional facts: the protocol has no field for these.
        "in_effect": {"backend": settings.backend, "max_batch": settings.max_batch, **in_effect},
    }
    return {name: value for name, value in stated.items() if value is not None}


def weights_bytes(folder, compute_dtype):
    """The bytes on disk, unless the load converts the numbers."""
    if folder.parameters is None or compute_dtype is None or folder.weights_dtype == compute_dtype:
        return folder.weights_bytes
    return 2 * folder.parameters


def split_build(phases, build_seconds):
    """Separates building an engine from loading it, if the library reports the build's steps."""
    last = phases.times[-1]
    build_ns = None if build_seconds is None else int(build_seconds * 1e9)
    if last["name"] == "build" and build_ns is not None and 0 < build_ns < last["ns"]:
        phases.times[-1:] = [{"name": "build", "ns": build_ns}, {"name": "load", "ns": last["ns"] - build_ns}]


# MPI's worker processes import this file again under another name.
if __name__ == "__main__":
    engine_kit.serve(TensorRTLLM())
