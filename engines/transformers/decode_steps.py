"""Ways to run a decode step: plain, compiled or traced. Each of these can also be captured as a CUDA graph.

An object of a step class belongs to one decode state. A call takes the last id of each sequence, and reads the rest from the
state. There is no fallback: a failure to compile or capture is an error.
"""

import math
from contextlib import contextmanager

import torch
import torch._dynamo
from torch._dynamo.utils import counters

from devices import DTYPE_NAMES
from engine_kit import Failed

# The largest allowed difference between the logits of a step and of the plain step, relative to the largest logit. Another
# order of sums in bf16 causes far less, and a wrong step far more.
MAX_LOGIT_DIFFERENCE = 0.05

# The number of calls of a step before its capture. These calls allocate, profile, tune and compile; a capture forbids all that.
RUNS_BEFORE_CAPTURE = 4

# PyTorch counts a recompilation for each shape of a decode state, and its default limit of recompilations is too low.
torch._dynamo.config.recompile_limit = 256


class DirectStep:
    """Calls a step that this engine has not captured, and advances the state. Returns the logits, and `best`: the id of the
    largest logit of each sequence."""

    def __init__(self, state, step):
        self._state, self._step = state, step

    def __call__(self, ids):
        state = self._state
        logits, best = self._step(ids[:, None], state.positions, state.column, state.is_token)
        state.positions.add_(1)
        state.column.add_(1)
        return logits, best


class InductorGraphStep(DirectStep):
    """Calls a step that Inductor captures in CUDA graphs. The next call overwrites the logits."""

    def __call__(self, ids):
        torch.compiler.cudagraph_mark_step_begin()
        logits, best = super().__call__(ids)
        return logits, best.clone()


class CapturedStep:
    """A CUDA graph of the step, which also advances the state. Each token takes one launch of the graph, and one copy of the
    ids to the host."""

    def __init__(self, state, step):
        self._state, self._step = state, step
        # PyTorch requires a warm-up on another stream than the stream of the capture.
        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            for _ in range(RUNS_BEFORE_CAPTURE):
                self._run_step()
        torch.cuda.current_stream().wait_stream(warm_up)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits, self._best = self._run_step()

    def _run_step(self):
        state = self._state
        logits, best = self._step(*state.inputs)
        state.ids.copy_(best[:, None])
        state.positions.add_(1)
        state.column.add_(1)
        return logits, best

    def __call__(self, ids):
        if ids is not self._best:
            # The first ids after a prompt, and ids that the host sampled, are not in the graph's input yet.
            self._state.ids.copy_(ids[:, None])
        self._graph.replay()
        return self._logits, self._best


def compile_step(step, options, mode=None):
    """Compiles the whole step with Inductor, or fails. Without fusion, the step runs operation by operation, without Inductor."""
    if not options.fusion:
        arguments = {"backend": "aot_eager"}
    else:
        arguments = {} if mode in (None, "default") else {"mode": mode}
    return torch.compile(step, fullgraph=True, dynamic=False, **arguments)


def trace_step(state):
    """Traces the step by TorchScript. The cache is passed as arguments, because TorchScript merges equal constants."""
    fields = ("keys", "values", "cumulative_length")
    cache = [getattr(layer, field) for layer in state.cache.layers for field in fields]

    def set_cache(tensors):
        remaining = iter(tensors)
        for layer in state.cache.layers:
            for field in fields:
                setattr(layer, field, next(remaining))

    def step(ids, positions, column, is_token, cache):
        set_cache(cache)
        return state.step(ids, positions, column, is_token)

    try:
        script = torch.jit.trace(step, (*(tensor.clone() for tensor in state.inputs), cache), check_trace=False)
    finally:
        set_cache(cache)
    return lambda ids, positions, column, is_token: script(ids, positions, column, is_token, cache)


@contextmanager
def require_graphs():
    """Fails if Inductor skips a CUDA graph. Inductor itself only logs this, and the row would name graphs that do not exist."""
    counters["inductor"]["cudagraph_skips"] = 0
    yield
    if skipped := counters["inductor"]["cudagraph_skips"]:
        message = f"`torch.compile` made no CUDA graph for {skipped} parts of the decode step"
        raise Failed("internal", message, "--set mode=max-autotune-no-cudagraphs")


def expected_logits(logits):
    """A copy of the plain step's logits, to compare other logits with. Refuses a model with logits that are not finite."""
    if not math.isfinite(float(logits.abs().max())):
        is_narrow = logits.dtype != torch.float32
        message = f"the model's weights lead to logits that are not finite, in {DTYPE_NAMES[logits.dtype]}"
        raise Failed("model", message, "--dtype f32" if is_narrow else None)
    return logits.clone()


def compare_logits(expected, logits, path):
    """Refuses logits that differ from the plain step's: a trace keeps the branches of one call, and a compiler can have
    bugs."""
    largest = float(expected.abs().max())
    difference = float((expected.float() - logits.float()).abs().max())
    if not difference <= MAX_LOGIT_DIFFERENCE * max(largest, 1e-6):
        message = f"its logits differ by {difference:.3g} from those of the plain step, which reach {largest:.3g}"
        raise Failed("internal", f"path `{path}`: the decode step computes something else: {message}", "--set path=loop")


def end_compilers():
    """Ends the compiler processes, which would hold memory during a measurement. The next compilation starts new ones."""
    from torch._inductor.async_compile import shutdown_compile_workers

    shutdown_compile_workers()


def compile_cache_state():
    """Whether Inductor found its code in the disk cache: `warm`, `cold`, `warm in part`; None before any compilation."""
    hits, misses = (counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss"))
    return None if not hits + misses else "warm" if not misses else "cold" if not hits else "warm in part"
