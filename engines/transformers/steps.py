"""The ways to run a decode step: plain, compiled, as a captured CUDA graph, or both.

Each takes a decode state after a prompt, and returns a function of the next ids only. There is no fallback: a failure to
compile or capture is an error.
"""

import math
from contextlib import contextmanager

import torch
import torch._dynamo
from torch._dynamo.utils import counters

from devices import NAMES
from engine_kit import Failed

# The tolerated distance of a compiled step's logits from the plain step's, relative to the largest. bf16 rounding in
# another order is far below it, and a wrong step far above.
TOLERANCE = 0.05

# A capture needs everything allocated, tuned and compiled beforehand, including profiling runs.
RUNS_BEFORE_CAPTURE = 4

# Every decode state has another shape, and so another entry.
torch._dynamo.config.recompile_limit = 256


class EagerStep:
    """Calls a step, and advances the state."""

    def __init__(self, state, step):
        self._state, self._step = state, step

    def __call__(self, ids):
        state = self._state
        logits, best = self._step(ids[:, None], state.positions, state.column, state.real)
        state.positions.add_(1)
        state.column.add_(1)
        return logits, best


class Pooled(EagerStep):
    """The same for a step whose results the next run overwrites (graphs that PyTorch itself captures)."""

    def __call__(self, ids):
        torch.compiler.cudagraph_mark_step_begin()
        logits, best = super().__call__(ids)
        return logits, best.clone()


class Captured:
    """A CUDA graph of the step and of advancing the state: per token one launch, and one copy of the ids to the host."""

    def __init__(self, state, step):
        self._state, self._step = state, step
        # PyTorch requires a warm-up on another stream than the one that captures.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(RUNS_BEFORE_CAPTURE):
                self._run_step()
        torch.cuda.current_stream().wait_stream(side)
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
            # The first token after a prompt, and every token that the host sampled.
            self._state.ids.copy_(ids[:, None])
        self._graph.replay()
        return self._logits, self._best


def compiled(step, options, mode=None):
    """Compiles by Inductor, the whole step or nothing; with fusion off, the same graph operation by operation."""
    how = {"backend": "aot_eager"} if not options.fusion else {} if mode in (None, "default") else {"mode": mode}
    return torch.compile(step, fullgraph=True, dynamic=False, **how)


def traced(state):
    """Traces by TorchScript. It merges equal constants, so the cache must be passed as arguments."""
    parts = ("keys", "values", "cumulative_length")
    cache = [getattr(layer, part) for layer in state.cache.layers for part in parts]

    def set_cache(tensors):
        remaining = iter(tensors)
        for layer in state.cache.layers:
            for part in parts:
                setattr(layer, part, next(remaining))

    def step(ids, positions, column, real, cache):
        set_cache(cache)
        return state.step(ids, positions, column, real)

    try:
        script = torch.jit.trace(step, (*(part.clone() for part in state.inputs), cache), check_trace=False)
    finally:
        set_cache(cache)
    return lambda ids, positions, column, real: script(ids, positions, column, real, cache)


@contextmanager
def requiring_graphs():
    """Requires CUDA graphs: if Inductor cannot make them it only logs a message, and the row would name graphs that do not exist."""
    counters["inductor"]["cudagraph_skips"] = 0
    yield
    if skipped := counters["inductor"]["cudagraph_skips"]:
        message = f"`torch.compile` made no CUDA graph of {skipped} parts of the decode step"
        raise Failed("internal", message, "--set mode=max-autotune-no-cudagraphs")


def expected_logits(logits):
    """The plain step's logits for comparison, after a check that the model itself gives finite ones."""
    if not math.isfinite(float(logits.abs().max())):
        narrow = logits.dtype != torch.float32
        message = f"its weights lead to logits that are not finite, in {NAMES[logits.dtype]}"
        raise Failed("model", message, "--dtype f32" if narrow else None)
    return logits.clone()


def compare_logits(expected, found, path):
    """Compares a step with the plain one: a trace keeps the branches of one call, and a compiler has bugs."""
    largest = float(expected.abs().max())
    difference = float((expected.float() - found.float()).abs().max())
    if not difference <= TOLERANCE * max(largest, 1e-6):
        message = f"its logits differ by {difference:.3g} from those of the plain step, which reach {largest:.3g}"
        raise Failed("internal", f"path `{path}`: the decode step computes something else: {message}", "--set path=loop")


def end_compilers():
    """Ends the compiler processes: they would hold memory during a measurement. The next compile starts new ones."""
    from torch._inductor.async_compile import shutdown_compile_workers

    shutdown_compile_workers()


def compile_cache():
    """Whether Inductor found its work in the disk cache, which outlives a process; None before its first work."""
    hits, misses = (counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss"))
    return None if not hits + misses else "warm" if not misses else "cold" if not hits else "warm in part"
