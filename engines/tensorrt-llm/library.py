"""The only file that calls TensorRT-LLM. `expected.py` lists every call, field and attribute used here, and compares
them with the installed library before a load.

Importing this file imports nothing heavy; `open_library` does.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import sys

from engine_kit import Failed
from expected import CLASSES, WRITTEN_FOR, differences

DISTRIBUTION = "tensorrt-llm"

# A command to paste, and the sources of the library. The names are those of NVIDIA's pages and image.
INSTALL_HINT = (
    "export ORCHESTRATE_PYTHON_TENSORRT_LLM=/path/to/a/python/that/has/it"
    f"  # NVIDIA's TensorRT LLM `Installation Guide`, or its container image `tensorrt-llm/release:{WRITTEN_FOR}`"
)

# No network access: model folders are local, and no data of this machine is sent anywhere.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRTLLM_NO_USAGE_STATS": "1",
    "TELEMETRY_DISABLED": "true",
    "DO_NOT_TRACK": "1",
}

# Prompts of up to this many tokens are computed in one piece, the library's default; longer ones in several.
MAX_STEP_TOKENS = 8192

LIBRARIES = ("tensorrt-llm", "tensorrt", "torch", "transformers", "flashinfer-python")


def installed_version():
    """The version, from metadata only. None if the library is not installed."""
    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None
    return version if importlib.util.find_spec("tensorrt_llm") is not None else None


def versions():
    """The versions of the library and its main dependencies."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def stay_offline():
    os.environ.update(OFFLINE)


def open_library():
    """Imports the library. Minutes on a cold disk."""
    stay_offline()
    try:
        importlib.import_module("tensorrt_llm")
    except Exception as error:
        # A missing shared library gives an OSError or an ImportError; a wrong PyTorch can give any exception.
        line = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        message = f"TensorRT-LLM {installed_version()} cannot be imported: {type(error).__name__}: {line}"
        raise Failed("unavailable", message, INSTALL_HINT) from error


def check_expected(backend):
    """Refuses an installed library whose interface differs from the expected one."""
    if not (found := differences(backend)):
        return
    listed = "; ".join(found[:4]) + (f"; and {len(found) - 4} more" if len(found) > 4 else "")
    message = f"TensorRT-LLM {installed_version()} has another interface than {WRITTEN_FOR}, for which this engine was written: {listed}"
    raise Failed("unavailable", message, INSTALL_HINT)


def arguments(settings, folder, context_tokens, dtype, kv_dtype):
    """The arguments of `LLM`."""
    from tensorrt_llm import llmapi

    pool = {"enable_block_reuse": False, "free_gpu_memory_fraction": settings.memory_fraction, "dtype": kv_dtype}
    if settings.pool_tokens is not None:
        pool["max_tokens"] = settings.pool_tokens
    limits = {
        "max_batch_size": settings.max_batch,
        "max_seq_len": context_tokens,
        "max_num_tokens": MAX_STEP_TOKENS,
    }
    passed = {
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
        return {**passed, "build_config": build}
    graphs = None
    if settings.cuda_graphs:
        graphs = llmapi.CudaGraphConfig(batch_sizes=settings.graph_batch_sizes(), enable_padding=True)
    return {
        **passed,
        "cuda_graph_config": graphs,
        "disable_overlap_scheduler": not settings.overlap,
        "stream_interval": 1,
    }


def load(backend, arguments):
    """The engine, ready to generate."""
    module, name, *_ = CLASSES[backend]
    return getattr(importlib.import_module(module), name)(**arguments)


def build_seconds(llm):
    """The duration of a build's steps, if the library built an engine and reports it; else None."""
    steps = getattr(getattr(llm, "llm_build_stats", None), "build_steps_info", None)
    try:
        return sum(float(seconds) for _, seconds in steps) if steps else None
    except (TypeError, ValueError):
        return None


def sampling_params(job, eos_ids):
    """Converts a kit's job to the library's parameters. Without a tokenizer the library must be given the EOS ids."""
    from tensorrt_llm import SamplingParams

    ends = list(eos_ids)
    passed = {
        "max_tokens": job.max_new_tokens,
        "ignore_eos": job.ignore_eos,
        "end_id": ends[0] if ends else -1,
        "pad_id": ends[0] if ends else 0,
        "detokenize": False,
    }
    if len(ends) > 1 and not job.ignore_eos:
        # An id that ends a sequence stays as its last.
        passed.update(stop_token_ids=ends[1:], include_stop_str_in_output=True)
    if job.sampling is None:
        return SamplingParams(**passed, top_k=1)
    sampling = job.sampling
    return SamplingParams(
        **passed,
        temperature=sampling.temperature,
        top_k=sampling.top_k or None,
        # Always set: to the library a request with neither top_k nor top_p is greedy.
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        seed=sampling.seed,
    )


def submit(llm, ids, params):
    """Submits a sequence. Call it in the event loop, so that its answers come back there."""
    return llm.generate_async(inputs=list(ids), sampling_params=params, streaming=True)


async def responses(result):
    """Results of a sequence as they come: (new ids, its finish reason or None, the id that ended it or None)."""
    async for output in result:
        completion = output.outputs[0]
        reason = (completion.finish_reason or "unknown") if output.finished else None
        stop = completion.stop_reason if isinstance(completion.stop_reason, int) else None
        yield list(completion.token_ids_diff), reason, stop


def cached_tokens(result):
    """Prompt tokens that the library took from a cache, if it reports them. None are expected: reuse is off."""
    cached = getattr(result, "cached_tokens", None)
    return cached if type(cached) is int and cached >= 0 else None


def abort(result):
    """Aborts a request. A finished request, or one without an engine, needs no abort."""
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
    """The log-probability of each of `ids`, from the row of logits at its index. It uses double precision, one row at
    a time: all rows together are gigabytes."""
    import torch

    if logits is None:
        raise Failed("internal", "TensorRT-LLM returned no context logits")
    if logits.dim() == 3:
        logits = logits[0]
    if logits.shape[0] < len(ids):
        raise Failed("internal", f"TensorRT-LLM returned logits of {logits.shape[0]} positions, not of {len(ids)}")
    values = []
    for position, id in enumerate(ids):
        row = logits[position][:vocabulary_size].double()
        values.append((row[id] - torch.logsumexp(row, 0)).item())
    return values


def in_effect(llm):
    """The arguments in effect, as far as the library reports them."""
    args = getattr(llm, "args", None)
    graphs, pool = getattr(args, "cuda_graph_config", None), getattr(args, "kv_cache_config", None)
    found = {
        "cuda_graph_batch_sizes": list(getattr(graphs, "batch_sizes", None) or []),
        "cuda_graph_padding": getattr(graphs, "enable_padding", None),
        "overlap_scheduler": _negated(getattr(args, "disable_overlap_scheduler", None)),
        "block_reuse": getattr(pool, "enable_block_reuse", None),
        "pool_fraction": getattr(pool, "free_gpu_memory_fraction", None),
        "pool_tokens": getattr(pool, "max_tokens", None),
        "pool_dtype": getattr(pool, "dtype", None),
        "tensor_parallel": getattr(args, "tensor_parallel_size", None),
    }
    return {name: value for name, value in found.items() if value is not None}


def _negated(value):
    return None if value is None else not value


def shutdown(llm):
    """Ends its worker processes. An error here affects no request."""
    try:
        llm.shutdown()
    except Exception as error:
        sys.stderr.write(f"cannot shut down TensorRT-LLM: {error}\n")
