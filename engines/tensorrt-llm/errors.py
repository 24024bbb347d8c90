"""Converts errors of the library to failures with a hint. The library has few exception types and wraps
its workers' errors, so the texts of the whole chain are searched.
"""

import re
import sys
import traceback

from engine_kit import Failed

# The first part of a message.
LOADING = "TensorRT-LLM cannot load the model"
GENERATING = "TensorRT-LLM failed in a request"

OUT_OF_MEMORY = re.compile(
    r"out of memory|outofmemory|insufficient gpu memory|cudaErrorMemoryAllocation|std::bad_alloc|CUBLAS_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
ARCHITECTURE = re.compile(r"unknown architecture for \w+: (\S+)|unsupported (?:model )?architecture:? ?(\S*)", re.IGNORECASE)
TOO_LONG = re.compile(r"should not exceed max_num_tokens|max_seq_len|exceeds? the (?:maximum|max)", re.IGNORECASE)
UNSUPPORTED_GPU = re.compile(r"no kernel image|not supported on (?:this|sm)|requires? sm|pre sm ?80", re.IGNORECASE)
ENDED = re.compile(
    r"worker died|shutting down|MPI_ABORT|BrokenPipe|connection (?:reset|refused)|cuda error|cudaError", re.IGNORECASE
)

SMALLER = "reduce one of these: `context_tokens`, or the options `max_batch`, `memory_fraction`, `pool_tokens`"


def failure(error, step):
    """A `Failed` for any exception of the library."""
    if isinstance(error, Failed):
        return error
    chain = list(_chain(error))
    text = "\n".join(f"{type(cause).__name__}: {cause}" for cause in chain)
    cause = _line(chain[-1])
    sys.stderr.write("".join(traceback.format_exception(error)[-12:]))
    sys.stderr.flush()
    if OUT_OF_MEMORY.search(text):
        line = next((line for line in text.splitlines() if OUT_OF_MEMORY.search(line)), cause)
        return Failed("out_of_memory", f"{step}: {line.strip()[:300]}", SMALLER)
    if named := ARCHITECTURE.search(text):
        name = (named.group(1) or named.group(2) or "").strip("`'\".,") or "of this model"
        return Failed("unsupported", f"architecture `{name}`: TensorRT-LLM has no such model")
    if UNSUPPORTED_GPU.search(text):
        return Failed("unsupported", f"{step}: {cause}")
    if step == GENERATING and TOO_LONG.search(text):
        return Failed("context", f"{step}: {cause}")
    if ENDED.search(text):
        return Failed("device", f"{step}: {cause}", "send `load` again")
    return Failed("internal", f"{step}: {cause}")


def _chain(error):
    """The exceptions from the raised one to its cause."""
    visited = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _line(error):
    text = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    return f"{type(error).__name__}: {text}"
