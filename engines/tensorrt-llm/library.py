"""The only file that talks to TensorRT-LLM. Every call, field and attribute of it that is used here is listed in
`expected.py`, and compared with the installed library before anything is loaded.

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

# What a user can paste, and where the library is to be had. The names are those that NVIDIA gives its pages and its image.
GET_IT = (
    "export ORCHESTRATE_PYTHON_TENSORRT_LLM=/path/to/a/python/that/has/it"
    f"  # NVIDIA's TensorRT LLM `Installation Guide`, or its container image `tensorrt-llm/release:{WRITTEN_FOR}`"
)

# Nothing here goes to a network: model folders are local, and no figure of this machine is anybody's.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRTLLM_NO_USAGE_STATS": "1",
    "TELEMETRY_DISABLED": "true",
    "DO_NOT_TRACK": "1",
}

# Prompts of up to so many tokens are computed in one piece, which is the library's own default; longer ones in several.
TOKENS_AT_ONCE = 8192

LIBRARIES = ("tensorrt-llm", "tensorrt", "torch", "transformers", "flashinfer-python")


def installed_version():
    """From metadata alone. None where the library is not there."""
    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None
    return version if importlib.util.find_spec("tensorrt_llm") is not None else None


def versions():
    """Of the library and of what it stands on."""
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
    """Imports it. Minutes on a cold disk."""
    stay_offline()
    try:
        importlib.import_module("tensorrt_llm")
    except Exception as error:
        # A missing shared library is an OSError or an ImportError, an unfit PyTorch anything.
        line = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        message = f"TensorRT-LLM {installed_version()} cannot be imported: {type(error).__name__}: {line}"
        raise Failed("unavailable", message, GET_IT) from error


def check_expected(backend):
    """Refuses an installed library whose calls are not those that this engine makes."""
    if not (found := differences(backend)):
        return
    installed, wanted = installed_version(), WRITTEN_FOR
    told = "; ".join(found[:4]) + (f"; and {len(found) - 4} more" if len(found) > 4 else "")
    message = f"TensorRT-LLM {installed} is not as this engine knows it, which was written for {wanted}: {told}"
    raise Failed("unavailable", message, GET_IT)


def arguments(settings, folder, context_tokens, dtype, kv_dtype):
    """What `LLM` is called with."""
    from tensorrt_llm import llmapi

    pool = {"enable_block_reuse": False, "free_gpu_memory_fraction": settings.memory_fraction, "dtype": kv_dtype}
    if settings.pool_tokens is not None:
        pool["max_tokens"] = settings.pool_tokens
    limits = {
        "max_batch_size": settings.max_batch,
        "max_seq_len": context_tokens,
        "max_num_tokens": TOKENS_AT_ONCE,
    }
    given = {
        "model": str(folder.path),
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
        "tensor_parallel_size": settings.tp,
        "dtype": dtype,
        "kv_cache_config": llmapi.KvCacheConfig(**pool),
        "enable_chunked_prefill": context_tokens > TOKENS_AT_ONCE,
        **limits,
    }
    if settings.backend == "tensorrt":
        build = llmapi.BuildConfig(**limits, gather_context_logits=settings.context_logits)
        return {**given, "build_config": build}
    graphs = None
    if settings.cuda_graphs:
        graphs = llmapi.CudaGraphConfig(batch_sizes=settings.graph_batch_sizes(), enable_padding=True)
    return {
        **given,
        "cuda_graph_config": graphs,
        "disable_overlap_scheduler": not settings.overlap,
        "stream_interval": 1,
    }


def load(backend, given):
    """The engine, ready to generate."""
    module, name, *_ = CLASSES[backend]
    return getattr(importlib.import_module(module), name)(**given)


def build_seconds(llm):
    """How long the steps of a build took, where the library built an engine and tells. None elsewhere."""
    steps = getattr(getattr(llm, "llm_build_stats", None), "build_steps_info", None)
    try:
        return sum(float(seconds) for _, seconds in steps) if steps else None
    except (TypeError, ValueError):
        return None


def sampling_params(job, eos_ids):
    """A kit's job in the library's words. Without a tokenizer it must be told what ends a sequence."""
    from tensorrt_llm import SamplingParams

    ends = list(eos_ids)
    given = {
        "max_tokens": job.max_new_tokens,
        "ignore_eos": job.ignore_eos,
        "end_id": ends[0] if ends else -1,
        "pad_id": ends[0] if ends else 0,
        "detokenize": False,
    }
    if len(ends) > 1 and not job.ignore_eos:
        # An id that ends a sequence is its last one, and not cut off.
        given.update(stop_token_ids=ends[1:], include_stop_str_in_output=True)
    if job.sampling is None:
        return SamplingParams(**given, top_k=1)
    sampling = job.sampling
    return SamplingParams(
        **given,
        temperature=sampling.temperature,
        top_k=sampling.top_k or None,
        # Said even where all is kept: a request with neither top_k nor top_p is greedy to the library.
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        seed=sampling.seed,
    )


def submit(llm, ids, params):
    """Hands a sequence over. To be called in the event loop, which is how its answers find their way back."""
    return llm.generate_async(inputs=list(ids), sampling_params=params, streaming=True)


async def news(result):
    """What comes of a sequence, as it comes: (new ids, why it ended or None, the id that ended it or None)."""
    async for output in result:
        completion = output.outputs[0]
        reason = (completion.finish_reason or "unsaid") if output.finished else None
        stop = completion.stop_reason if isinstance(completion.stop_reason, int) else None
        yield list(completion.token_ids_diff), reason, stop


def cached_tokens(result):
    """Prompt tokens that the library took from a cache, where it says so. None is expected: reuse is switched off."""
    cached = getattr(result, "cached_tokens", None)
    return cached if type(cached) is int and cached >= 0 else None


def abort(result):
    """Gives a request up. One that is over, or whose engine is gone, needs nothing more."""
    try:
        if not result.finished:
            result.abort()
    except Exception as error:
        sys.stderr.write(f"TensorRT-LLM did not take an abort: {error}\n")


async def context_logits(llm, ids, end_id):
    """Logits at every position of `ids`, from the forward pass that a prompt gets."""
    from tensorrt_llm import SamplingParams

    params = SamplingParams(
        max_tokens=1, end_id=end_id, pad_id=end_id, top_k=1, detokenize=False, return_context_logits=True
    )
    result = llm.generate_async(inputs=list(ids), sampling_params=params, streaming=False)
    await result.aresult()
    return result.context_logits


def logprobs(logits, ids, vocabulary_size):
    """Of each of `ids`, by the row of logits in its place. In double precision, a row at a time: all at once are gigabytes."""
    import torch

    if logits is None:
        raise Failed("internal", "TensorRT-LLM gave no context logits, which were asked for")
    if logits.dim() == 3:
        logits = logits[0]
    if logits.shape[0] < len(ids):
        raise Failed("internal", f"TensorRT-LLM gave logits of {logits.shape[0]} positions, not of {len(ids)}")
    values = []
    for position, id in enumerate(ids):
        row = logits[position][:vocabulary_size].double()
        values.append((row[id] - torch.logsumexp(row, 0)).item())
    return values


def in_effect(llm):
    """What the library says it made of its arguments, where it says so."""
    made = getattr(llm, "args", None)
    graphs, pool = getattr(made, "cuda_graph_config", None), getattr(made, "kv_cache_config", None)
    said = {
        "cuda_graph_batch_sizes": list(getattr(graphs, "batch_sizes", None) or []),
        "cuda_graph_padding": getattr(graphs, "enable_padding", None),
        "overlap_scheduler": _negated(getattr(made, "disable_overlap_scheduler", None)),
        "block_reuse": getattr(pool, "enable_block_reuse", None),
        "pool_fraction": getattr(pool, "free_gpu_memory_fraction", None),
        "pool_tokens": getattr(pool, "max_tokens", None),
        "pool_dtype": getattr(pool, "dtype", None),
        "tensor_parallel": getattr(made, "tensor_parallel_size", None),
    }
    return {name: value for name, value in said.items() if value is not None}


def _negated(value):
    return None if value is None else not value


def shutdown(llm):
    """Ends its worker processes. What goes wrong here hurts nobody any more."""
    try:
        llm.shutdown()
    except Exception as error:
        sys.stderr.write(f"TensorRT-LLM did not shut down: {error}\n")
