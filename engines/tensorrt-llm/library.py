"""Calls TensorRT-LLM, and converts its exceptions to failures. No other file calls the library.

`interface.py` lists every call, field and attribute that this file requires, and compares them with the installed library
before a load. Other attributes may be missing: `getattr` reads them with a default.
Importing this file is quick; `open_library` imports the library.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import traceback

from engine_kit import Failed
from interface import EXPECTED_VERSION, LLM_CLASSES, interface_differences

DISTRIBUTION = "tensorrt-llm"

# A command to paste; its comment names two sources of the library.
INSTALL_HINT = (
    "export ORCHESTRATE_PYTHON_TENSORRT_LLM=/path/to/a/python/that/has/the/library"
    f"  # see NVIDIA's `Installation Guide` of TensorRT-LLM, or use its container image `tensorrt-llm/release:{EXPECTED_VERSION}`"
)

# No network access: model folders are local, and no data of this machine is sent anywhere.
OFFLINE_VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRTLLM_NO_USAGE_STATS": "1",
    "TELEMETRY_DISABLED": "true",
    "DO_NOT_TRACK": "1",
}

# The most tokens of one forward pass, the library's default. A longer prompt is computed in several passes.
MAX_STEP_TOKENS = 8192

# The packages whose versions `loaded` reports.
REPORTED_PACKAGES = ("tensorrt-llm", "tensorrt", "torch", "transformers", "flashinfer-python")

# Prefixes of the messages of failures.
LOADING = "TensorRT-LLM cannot load the model"
GENERATING = "TensorRT-LLM failed in a request"

# Texts of the library's exceptions, by cause.
OUT_OF_MEMORY = re.compile(
    r"out of memory|outofmemory|insufficient gpu memory|cudaErrorMemoryAllocation|std::bad_alloc|CUBLAS_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
UNKNOWN_ARCHITECTURE = re.compile(
    r"unknown architecture for \w+: (\S+)|unsupported (?:model )?architecture:? ?(\S*)", re.IGNORECASE
)
PROMPT_TOO_LONG = re.compile(r"should not exceed max_num_tokens|max_seq_len|exceeds? the (?:maximum|max)", re.IGNORECASE)
UNSUPPORTED_GPU = re.compile(r"no kernel image|not supported on (?:this|sm)|requires? sm|pre sm ?80", re.IGNORECASE)
NEEDS_NEW_LOAD = re.compile(
    r"worker died|shutting down|MPI_ABORT|BrokenPipe|connection (?:reset|refused)|cuda error|cudaError", re.IGNORECASE
)

MEMORY_HINT = "reduce one of these: `context_tokens`, or the options `max_batch`, `memory_fraction`, `pool_tokens`"


def installed_version():
    """The library's version, from metadata only. None if the library is not installed."""
    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None
    return version if importlib.util.find_spec("tensorrt_llm") is not None else None


def package_versions():
    """The versions of the library and its main dependencies."""
    versions = {}
    for name in REPORTED_PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def open_library():
    """Imports the library, without network access. The first import after a restart of the machine may take minutes."""
    os.environ.update(OFFLINE_VARIABLES)
    try:
        importlib.import_module("tensorrt_llm")
    except Exception as error:
        # A missing shared library gives an OSError or an ImportError; a wrong PyTorch can give any exception.
        message = f"TensorRT-LLM {installed_version()} cannot be imported: {_first_line(error)}"
        raise Failed("unavailable", message, INSTALL_HINT) from error


def check_interface(backend):
    """Refuses an installed library whose interface differs from the expected one."""
    if not (lines := interface_differences(backend)):
        return
    listed = "; ".join(lines[:4]) + (f"; and {len(lines) - 4} more" if len(lines) > 4 else "")
    cause = f"TensorRT-LLM {installed_version()} has another interface than {EXPECTED_VERSION}"
    raise Failed("unavailable", f"{cause}, for which this engine was written: {listed}", INSTALL_HINT)


def llm_arguments(settings, folder, context_tokens, dtype, kv_dtype):
    """The arguments of the library's class `LLM`. `dtype` and `kv_dtype` are the library's names."""
    from tensorrt_llm import llmapi

    pool = {"enable_block_reuse": False, "free_gpu_memory_fraction": settings.memory_fraction, "dtype": kv_dtype}
    if settings.pool_tokens is not None:
        pool["max_tokens"] = settings.pool_tokens
    limits = {
        "max_batch_size": settings.max_batch,
        "max_seq_len": context_tokens,
        "max_num_tokens": MAX_STEP_TOKENS,
    }
    arguments = {
        "model": str(folder.path),
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
        "tensor_parallel_size": settings.tp,
        "dtype": dtype,
        "kv_cache_config": llmapi.KvCacheConfig(**pool),
        "enable_chunked_prefill": context_tokens > MAX_STEP_TOKENS,
        **limits,
    }
    if settings.backend == "tensorrt":
        build = llmapi.BuildConfig(**limits, gather_context_logits=settings.context_logits)
        return {**arguments, "build_config": build}
    graphs = None
    if settings.cuda_graphs:
        graphs = llmapi.CudaGraphConfig(batch_sizes=settings.graph_batch_sizes(), enable_padding=True)
    return {
        **arguments,
        "cuda_graph_config": graphs,
        "disable_overlap_scheduler": not settings.overlap,
        "stream_interval": 1,
    }


def load(backend, arguments):
    """Returns the library's `LLM`, ready to generate."""
    module, name = LLM_CLASSES[backend]
    return getattr(importlib.import_module(module), name)(**arguments)


def build_seconds(llm):
    """The duration of all steps of a build; None if the library built no TensorRT engine or reports no steps."""
    steps = getattr(getattr(llm, "llm_build_stats", None), "build_steps_info", None)
    try:
        return sum(float(seconds) for _, seconds in steps) if steps else None
    except (TypeError, ValueError):
        return None


def reported_arguments(llm):
    """The arguments of `LLM` as the library reports them after the load; an unreported argument is left out."""
    args = getattr(llm, "args", None)
    graphs, pool = getattr(args, "cuda_graph_config", None), getattr(args, "kv_cache_config", None)
    overlap_disabled = getattr(args, "disable_overlap_scheduler", None)
    reported = {
        "cuda_graph_batch_sizes": list(getattr(graphs, "batch_sizes", None) or []),
        "cuda_graph_padding": getattr(graphs, "enable_padding", None),
        "overlap_scheduler": None if overlap_disabled is None else not overlap_disabled,
        "block_reuse": getattr(pool, "enable_block_reuse", None),
        "pool_fraction": getattr(pool, "free_gpu_memory_fraction", None),
        "pool_tokens": getattr(pool, "max_tokens", None),
        "pool_dtype": getattr(pool, "dtype", None),
        "tensor_parallel": getattr(args, "tensor_parallel_size", None),
    }
    return {name: value for name, value in reported.items() if value is not None}


def sampling_params(job, eos_ids):
    """Converts a job of the kit to the library's parameters. The library has no tokenizer, so it gets the EOS ids here."""
    from tensorrt_llm import SamplingParams

    eos_ids = list(eos_ids)
    params = {
        "max_tokens": job.max_new_tokens,
        "ignore_eos": job.ignore_eos,
        "end_id": eos_ids[0] if eos_ids else -1,
        "pad_id": eos_ids[0] if eos_ids else 0,
        "detokenize": False,
    }
    if len(eos_ids) > 1 and not job.ignore_eos:
        # `include_stop_str_in_output` keeps the EOS id as the last id of the sequence.
        params.update(stop_token_ids=eos_ids[1:], include_stop_str_in_output=True)
    if job.sampling is None:
        return SamplingParams(**params, top_k=1)
    return SamplingParams(
        **params,
        temperature=job.sampling.temperature,
        top_k=job.sampling.top_k or None,
        # Always set: the library treats a request with neither top_k nor top_p as greedy.
        top_p=1.0 if job.sampling.top_p is None else job.sampling.top_p,
        seed=job.sampling.seed,
    )


def submit(llm, ids, params):
    """Submits a sequence. The library sends the responses to the event loop that calls this function."""
    return llm.generate_async(inputs=list(ids), sampling_params=params, streaming=True)


async def responses(result):
    """The responses of a sequence as they arrive: new ids, the finish reason or None, the EOS id if it is reported."""
    async for output in result:
        completion = output.outputs[0]
        finish_reason = (completion.finish_reason or "unknown") if output.finished else None
        stop_id = completion.stop_reason if isinstance(completion.stop_reason, int) else None
        yield list(completion.token_ids_diff), finish_reason, stop_id


def cached_tokens(result):
    """The number of prompt tokens that the library took from a cache; None if the library reports none."""
    cached = getattr(result, "cached_tokens", None)
    return cached if type(cached) is int and cached >= 0 else None


def abort(result):
    """Aborts a request that has not finished."""
    try:
        if not result.finished:
            result.abort()
    except Exception as error:
        sys.stderr.write(f"cannot abort a request of TensorRT-LLM: {error}\n")


async def context_logits(llm, ids, end_id):
    """Logits at every position of `ids`, from the prompt's forward pass."""
    from tensorrt_llm import SamplingParams

    params = SamplingParams(
        max_tokens=1, end_id=end_id, pad_id=end_id, top_k=1, detokenize=False, return_context_logits=True
    )
    result = llm.generate_async(inputs=list(ids), sampling_params=params, streaming=False)
    await result.aresult()
    return result.context_logits


def logprobs(logits, ids, vocabulary_size):
    """The log-probability of each id. The row of logits with the same index predicts the id. Rows are converted to double
    precision one at a time, because all rows together would take gigabytes."""
    import torch

    if logits is None:
        raise Failed("internal", "TensorRT-LLM returned no context logits")
    if logits.dim() == 3:
        logits = logits[0]
    if logits.shape[0] < len(ids):
        raise Failed("internal", f"TensorRT-LLM returned logits for {logits.shape[0]} of {len(ids)} positions")
    values = []
    for position, id in enumerate(ids):
        row = logits[position][:vocabulary_size].double()
        values.append((row[id] - torch.logsumexp(row, 0)).item())
    return values


def shutdown(llm):
    """Ends the library's worker processes. An error here affects no request."""
    try:
        llm.shutdown()
    except Exception as error:
        sys.stderr.write(f"cannot shut down TensorRT-LLM: {error}\n")


def failure(error, prefix):
    """Converts an exception of the library to a `Failed` whose message starts with `prefix`. The library has few
    exception types and wraps errors of its worker processes, so the texts of the whole chain are searched."""
    if isinstance(error, Failed):
        return error
    chain = list(_exception_chain(error))
    text = "\n".join(f"{type(cause).__name__}: {cause}" for cause in chain)
    root_cause = _first_line(chain[-1])
    sys.stderr.write("".join(traceback.format_exception(error)[-12:]))
    sys.stderr.flush()
    if OUT_OF_MEMORY.search(text):
        line = next((line for line in text.splitlines() if OUT_OF_MEMORY.search(line)), root_cause)
        return Failed("out_of_memory", f"{prefix}: {line.strip()[:300]}", MEMORY_HINT)
    if match := UNKNOWN_ARCHITECTURE.search(text):
        name = (match.group(1) or match.group(2) or "").strip("`'\".,") or "of this model"
        return Failed("unsupported", f"architecture `{name}`: TensorRT-LLM has no such model")
    if UNSUPPORTED_GPU.search(text):
        return Failed("unsupported", f"{prefix}: {root_cause}")
    if prefix == GENERATING and PROMPT_TOO_LONG.search(text):
        return Failed("context", f"{prefix}: {root_cause}")
    if NEEDS_NEW_LOAD.search(text):
        return Failed("device", f"{prefix}: {root_cause}", "send `load` again")
    return Failed("internal", f"{prefix}: {root_cause}")


def _exception_chain(error):
    """The raised exception and its causes; the root cause comes last."""
    visited = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _first_line(error):
    text = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    return f"{type(error).__name__}: {text}"
