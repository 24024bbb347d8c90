"""The engine `tensorrt-llm`: NVIDIA's TensorRT-LLM through its LLM API."""

import sys

import engine_kit
import gpus
import library
import processes
from engine_kit import Failed, choose_context
from folder import open_folder
from interface import EXPECTED_VERSION
from model_folder import FORMATS
from settings import MAX_SEQUENCES, OPTIONS, parse_settings

NAME = "tensorrt-llm"

# The library's dtype names, by the protocol's names. `auto` follows the model folder.
LIBRARY_DTYPES = {"auto": "auto", "bf16": "bfloat16", "f16": "float16"}

# The lowest compute capability with fp8 arithmetic.
MIN_FP8_CAPABILITY = (8, 9)


class TensorRTLLM(engine_kit.Engine):
    options = OPTIONS

    def __init__(self):
        self._model = None

    def hello(self):
        version = library.installed_version()
        missing = []
        if version is None:
            missing.append(f"TensorRT-LLM is not installed in `{sys.executable}`")
        if not gpus.has_driver():
            missing.append("no NVIDIA driver found")
        if missing:
            raise Failed("unavailable", " and ".join(missing), library.INSTALL_HINT if version is None else None)
        return {
            "engine": NAME,
            "version": version,
            # A response of the library may hold several ids, which then have the same timestamp.
            "stamp": "chunk",
            "capabilities": {
                "devices": ["cuda"],
                "dtypes": list(LIBRARY_DTYPES),
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
            settings = parse_settings(request.options)
            context_tokens = decide_context(request, folder)
            all_gpus = gpus.read_gpus()
            devices = gpus.choose_devices(request.device, settings.tp, all_gpus)
            kv_dtype = decide_kv_dtype(settings, folder, [device.gpu for device in devices], all_gpus)
            gpus.show_only(devices)
        with phases.time("import"):
            library.open_library()
            from loaded_model import LoadedModel
        with phases.time("check"):
            library.check_interface(settings.backend)
        parents_before_load = processes.parents_by_pid()
        try:
            with phases.time("build" if settings.backend == "tensorrt" else "load"):
                dtype = LIBRARY_DTYPES[request.dtype]
                arguments = library.llm_arguments(settings, folder, context_tokens, dtype, kv_dtype)
                llm = library.load(settings.backend, arguments)
        except Exception as error:
            raise library.failure(error, library.LOADING) from error
        split_build(phases, library.build_seconds(llm))
        facts = model_facts(request, settings, folder, context_tokens, kv_dtype, library.reported_arguments(llm))
        self._model = LoadedModel(llm, folder, settings, facts, processes.library_processes_since(parents_before_load))
        if library.installed_version() != EXPECTED_VERSION:
            written_for = f"this engine was written for TensorRT-LLM {EXPECTED_VERSION}"
            sys.stderr.write(f"{written_for}; version {library.installed_version()}, which is installed, has the same interface\n")
        return self._model

    def close(self):
        model, self._model = self._model, None
        if model is not None:
            model.close()


def decide_context(request, folder):
    limit, requested = folder.context_tokens, request.context_tokens
    if requested is None and limit is None:
        message = "`config.json`: neither `max_position_embeddings` nor `n_positions`"
        raise Failed("model", message, "set `context_tokens` in the request `load`")
    return choose_context(requested, limit, folder.name)


def decide_kv_dtype(settings, folder, chosen, all_gpus):
    """The library's name for the dtype of keys and values. `chosen` has None where only CUDA knows which GPU is chosen;
    fp8 is then refused only if all GPUs of the machine are too old."""
    is_known = None not in chosen
    too_old = [gpu for gpu in (chosen if is_known else all_gpus) if gpu.capability < MIN_FP8_CAPABILITY]
    lacks_fp8 = bool(too_old) if is_known else len(too_old) == len(all_gpus)
    if lacks_fp8 and (settings.fp8 == "on" or folder.is_fp8):
        cause = "option `fp8`" if settings.fp8 == "on" else f"model `{folder.name}` is in fp8"
        capability = ".".join(str(number) for number in too_old[0].capability)
        raise Failed("unsupported", f"{cause}: `{too_old[0].name}` has compute capability {capability}, fp8 needs 8.9")
    if settings.backend == "pytorch" and (settings.fp8 == "on" or settings.fp8 == "auto" and folder.is_fp8):
        return "fp8"
    return "auto"


def model_facts(request, settings, folder, context_tokens, kv_dtype, reported_arguments):
    compute_dtype = folder.compute_dtype if request.dtype == "auto" else request.dtype
    # The library may convert f32 weights, and does not report the dtype.
    if compute_dtype == "f32":
        compute_dtype = None
    weights_dtype = "fp8" if folder.is_fp8 else None if folder.is_quantized else compute_dtype
    # The library's `pool` is the memory for keys and values.
    kv_is_fp8 = "fp8" in (kv_dtype, reported_arguments.get("pool_dtype")) or folder.has_fp8_kv
    facts = {
        "device": request.device,
        "weights_dtype": weights_dtype,
        "compute_dtype": compute_dtype,
        "kv_dtype": "fp8" if kv_is_fp8 else compute_dtype,
        "architecture": folder.architecture,
        "context_tokens": context_tokens,
        "use_cache": True,
        "prefix_cache": False,
        "weights_bytes": loaded_bytes(folder, compute_dtype),
        "parameters": folder.parameters,
        "vocabulary_size": folder.vocabulary_size,
        "hidden_size": folder.hidden_size,
        **folder.dimensions,
        "eos_ids": folder.eos_ids,
        "bos_id": folder.bos_id,
        "libraries": library.package_versions(),
        "in_effect": {"backend": settings.backend, "max_batch": settings.max_batch, **reported_arguments},
    }
    return {name: value for name, value in facts.items() if value is not None}


def loaded_bytes(folder, compute_dtype):
    """The bytes of the loaded weights: those on disk, or two for each parameter if the load converts the weights."""
    if folder.parameters is None or compute_dtype is None or folder.weights_dtype == compute_dtype:
        return folder.weights_bytes
    return 2 * folder.parameters


def split_build(phases, build_seconds):
    """Separates the build of a TensorRT engine from its load, if the library reports the duration of the build."""
    last = phases.times[-1]
    build_ns = None if build_seconds is None else int(build_seconds * 1e9)
    if last["name"] == "build" and build_ns is not None and 0 < build_ns < last["ns"]:
        phases.times[-1:] = [{"name": "build", "ns": build_ns}, {"name": "load", "ns": last["ns"] - build_ns}]


# MPI's worker processes import this file again under another name, and must not serve requests.
if __name__ == "__main__":
    engine_kit.serve(TensorRTLLM())
