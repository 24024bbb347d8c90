"""Ways to run a room's step: plain, compiled, as a captured CUDA graph, or both.

Each takes a room after a prompt, and returns a function of the next ids only. None has a fallback: a failure to compile
or capture is an error.
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
TOLERATED = 0.05

# A capture needs everything allocated, tuned and compiled beforehand, including profiling runs.
RUNS_BEFORE_CAPTURE = 4

# Every room has another shape, and so another entry.
torch._dynamo.config.recompile_limit = 256


class Plain:
    """Calls a step, and advances the room."""

    def __init__(self, room, step):
        self._room, self._step = room, step

    def __call__(self, ids):
        room = self._room
        logits, best = self._step(ids[:, None], room.positions, room.column, room.real)
        room.positions.add_(1)
        room.column.add_(1)
        return logits, best


class Pooled(Plain):
    """The same for a step whose results the next run overwrites (graphs that PyTorch itself captures)."""

    def __call__(self, ids):
        torch.compiler.cudagraph_mark_step_begin()
        logits, best = super().__call__(ids)
        return logits, best.clone()


class Captured:
    """A CUDA graph of the step and of advancing the room: per token one launch, and one copy of the ids to the host."""

    def __init__(self, room, step):
        self._room, self._step = room, step
        # PyTorch requires a warm-up on another stream than the one that captures.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(RUNS_BEFORE_CAPTURE):
                self._once()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits, self._best = self._once()

    def _once(self):
        room = self._room
        logits, best = self._step(*room.place)
        room.ids.copy_(best[:, None])
        room.positions.add_(1)
        room.column.add_(1)
        return logits, best

    def __call__(self, ids):
        if ids is not self._best:
            # The first token after a prompt, and every token that the host sampled.
            self._room.ids.copy_(ids[:, None])
        self._graph.replay()
        return self._logits, self._best


def compiled(step, options, mode=None):
    """Compiles by Inductor, the whole step or nothing; with fusion off, the same graph operation by operation."""
    how = {"backend": "aot_eager"} if not options.fusion else {} if mode in (None, "default") else {"mode": mode}
    return torch.compile(step, fullgraph=True, dynamic=False, **how)


def traced(room):
    """Traces by TorchScript. It merges equal constants, so the cache must be passed as arguments."""
    parts = ("keys", "values", "cumulative_length")
    cache = [getattr(layer, part) for layer in room.cache.layers for part in parts]

    def put(tensors):
        left = iter(tensors)
        for layer in room.cache.layers:
            for part in parts:
                setattr(layer, part, next(left))

    def step(ids, positions, column, real, cache):
        put(cache)
        return room.step(ids, positions, column, real)

    try:
        script = torch.jit.trace(step, (*(part.clone() for part in room.place), cache), check_trace=False)
    finally:
        put(cache)
    return lambda ids, positions, column, real: script(ids, positions, column, real, cache)


@contextmanager
def insisting_on_graphs():
    """Requires CUDA graphs: if Inductor cannot make them it only logs a message, but the row would name them."""
    counters["inductor"]["cudagraph_skips"] = 0
    yield
    if skipped := counters["inductor"]["cudagraph_skips"]:
        what = f"`torch.compile` made no CUDA graph of {skipped} parts of the decode step"
        raise Failed("internal", what, "--set mode=max-autotune-no-cudagraphs")


def held(logits):
    """The plain step's logits for comparison, after a check that the model itself gives finite ones."""
    if not math.isfinite(float(logits.abs().max())):
        narrow = logits.dtype != torch.float32
        what = f"its weights lead to logits that are no numbers, in {NAMES[logits.dtype]}"
        raise Failed("model", what, "--dtype f32" if narrow else None)
    return logits.clone()


def hold_against(wanted, found, path):
    """Compares a step with the plain one: a trace keeps the branches of one call, and a compiler has bugs."""
    largest = float(wanted.abs().max())
    apart = float((wanted.float() - found.float()).abs().max())
    if not apart <= TOLERATED * max(largest, 1e-6):
        what = f"its logits lie {apart:.3g} from those of the plain step, which reach {largest:.3g}"
        raise Failed("internal", f"path `{path}`: the decode step computes something else: {what}", "--set path=loop")


def end_compilers():
    """Ends the compiler processes: they would hold memory during a measurement. The next compile starts new ones."""
    from torch._inductor.async_compile import shutdown_compile_workers

    shutdown_compile_workers()


def compile_cache():
    """Whether Inductor found its work in the disk cache, which outlives a process; None before its first work."""
    hits, misses = (counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss"))
    return None if not hits + misses else "warm" if not misses else "cold" if not hits else "warm in part"
