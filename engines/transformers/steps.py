"""Ways to run a room's step: as it is, through a compiler, as a captured CUDA graph, or both.

Each takes a room that a prompt has been through, and gives a function of nothing but the next ids. None of them falls back
on another: what cannot be compiled or captured is an error that says so.
"""

import math
from contextlib import contextmanager

import torch
import torch._dynamo
from torch._dynamo.utils import counters

from devices import NAMES
from engine_kit import Failed

# So far may a compiled step's logits lie from the plain one's, as a part of the largest. Rounding in another order is far
# below it in bf16, and a step that computes something else far above.
TOLERATED = 0.05

# A capture must find everything allocated, tuned and, where a compiler profiles first, compiled.
RUNS_BEFORE_CAPTURE = 4

# Every room is another shape, and so another entry.
torch._dynamo.config.recompile_limit = 256


class Plain:
    """Calls a step, and moves the room on."""

    def __init__(self, room, step):
        self._room, self._step = room, step

    def __call__(self, ids):
        room = self._room
        logits, best = self._step(ids[:, None], room.positions, room.column, room.real)
        room.positions.add_(1)
        room.column.add_(1)
        return logits, best


class Pooled(Plain):
    """The same for a step whose results lie in memory that its next run writes over (graphs that PyTorch itself captures)."""

    def __call__(self, ids):
        torch.compiler.cudagraph_mark_step_begin()
        logits, best = super().__call__(ids)
        return logits, best.clone()


class Captured:
    """A CUDA graph of the step and of moving on: per token one launch, and one copy of the ids to the host."""

    def __init__(self, room, step):
        self._room, self._step = room, step
        # As PyTorch asks for it: warm-up on another stream than the one that captures.
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
            # The first token after a prompt, and every token that the host picked.
            self._room.ids.copy_(ids[:, None])
        self._graph.replay()
        return self._logits, self._best


def compiled(step, options, mode=None):
    """By Inductor, the whole step or nothing; with fusion off, the same graph operation by operation."""
    how = {"backend": "aot_eager"} if not options.fusion else {} if mode in (None, "default") else {"mode": mode}
    return torch.compile(step, fullgraph=True, dynamic=False, **how)


def traced(room):
    """By TorchScript. It holds equal constants to be one constant, so that a cache must come in as arguments."""
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
    """Inductor leaves graphs out with a remark in a log where it cannot make them; a row that names them must have them."""
    counters["inductor"]["cudagraph_skips"] = 0
    yield
    if skipped := counters["inductor"]["cudagraph_skips"]:
        what = f"`torch.compile` made no CUDA graph of {skipped} parts of the decode step"
        raise Failed("internal", what, "--set mode=max-autotune-no-cudagraphs")


def held(logits):
    """What a step that nothing was done to gives, kept to hold others against. No compiler is to blame for a model's own."""
    if not math.isfinite(float(logits.abs().max())):
        narrow = logits.dtype != torch.float32
        what = f"its weights lead to logits that are no numbers, in {NAMES[logits.dtype]}"
        raise Failed("model", what, "--dtype f32" if narrow else None)
    return logits.clone()


def hold_against(wanted, found, path):
    """A trace keeps the way that one call took, and a compiler has bugs: what computes something else is no row."""
    largest = float(wanted.abs().max())
    apart = float((wanted.float() - found.float()).abs().max())
    if not apart <= TOLERATED * max(largest, 1e-6):
        what = f"its logits lie {apart:.3g} from those of the plain step, which reach {largest:.3g}"
        raise Failed("internal", f"path `{path}`: the decode step computes something else: {what}", "--set path=loop")


def end_compilers():
    """Ends the processes that compiled: they would hold memory beside what is measured. The next compile starts its own."""
    from torch._inductor.async_compile import shutdown_compile_workers

    shutdown_compile_workers()


def compile_cache():
    """Whether Inductor found its work in the cache on disk, which outlives a process; None before it has worked."""
    hits, misses = (counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss"))
    return None if not hits + misses else "warm" if not misses else "cold" if not hits else "warm in part"
