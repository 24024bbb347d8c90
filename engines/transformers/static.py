"""Paths with a static cache: the loop of path `loop`, with a decode step that is compiled, captured, or both. Prompts run
as they are: every prompt has another length, and a compiler would start anew at each.
"""

from contextlib import nullcontext

import torch

from batch import lay_out
from devices import wait_for
from engine_kit import Failed, Phases
from looping import Looping
from network import one_line
from options import CAPTURED, COMPILED
from rooms import TRIAL, Room, capacity_for
from steps import Captured, Plain, Pooled, compile_cache, compiled, insisting_on_graphs, traced

# More rooms than a suite has shapes; each holds a cache, and a graph where there is one.
MOST_ROOMS = 8

# So far may a compiled step's logits lie from the plain one's, as a part of the largest. Rounding in another order is far
# below it in bf16, and a step that computes something else far above.
TOLERATED = 0.05


class Static(Looping):
    def __init__(self, loaded):
        super().__init__(loaded)
        self._rooms, self._entrances = {}, {}

    def prepare(self, phases):
        # What was compiled for a model that is gone would keep its weights.
        torch._dynamo.reset()
        options = self.loaded.options
        self._enter(1, capacity_for(TRIAL, options.cache_tokens, self.loaded.context_tokens), phases)

    def steps(self, batch, new_tokens):
        options, most = self.loaded.options, self.loaded.context_tokens
        # The last new token is never run, so it needs no column.
        capacity = capacity_for(batch.columns + new_tokens - 1, options.cache_tokens, most)
        if new_tokens == 1:
            return Entered(self._room(batch.sequences, capacity), None)
        return Entered(*self._enter(batch.sequences, capacity, Phases()))

    def choices(self):
        options, how = self.loaded.options, "static cache"
        if options.path in COMPILED:
            compiler = options.compiler if options.path != "compile" else f"inductor, mode {options.mode}"
            compiler = {"torchscript": "TorchScript trace"}.get(compiler, compiler)
            how += f", {compiler}" if options.fusion else ", graph run operation by operation (fusion off)"
        how += ", captured CUDA graph" if options.path in CAPTURED else ""
        choices = {**super().choices(), "decode": f"loop over the model, {how}"}
        if (found := compile_cache()) is not None:
            choices["inductor cache"] = found
        return choices

    def _room(self, sequences, capacity):
        key = (sequences, capacity)
        if key not in self._rooms:
            if len(self._rooms) == MOST_ROOMS:
                oldest = next(iter(self._rooms))
                del self._rooms[oldest]
                self._entrances.pop(oldest, None)
            folder, options = self.loaded.folder, self.loaded.options
            additive = options.attention == "eager"
            self._rooms[key] = Room(self.network, folder.architecture, sequences, capacity, self.device, additive)
        return self._rooms[key]

    def _enter(self, sequences, capacity, phases):
        """A room and its step, made where it is not there yet."""
        room = self._room(sequences, capacity)
        key = (sequences, capacity)
        if key not in self._entrances:
            try:
                self._entrances[key] = self._make(room, phases)
            except (Failed, MemoryError, torch.OutOfMemoryError):
                raise
            except Exception as error:
                path = self.loaded.options.path
                what = f"path `{path}`: the decode step could not be made: {type(error).__name__}: {one_line(error)}"
                raise Failed("internal", what, "--set path=loop") from error
        return room, self._entrances[key]

    def _make(self, room, phases):
        """The step of a room, tried out, and held against the plain one."""
        options, step = self.loaded.options, room.step
        trial = lay_out([[0] * TRIAL] * room.sequences, "left", self.device)
        first = torch.zeros(room.sequences, dtype=torch.long, device=self.device)
        room.prefill(trial)
        wanted = Plain(room, room.step)(first)[0].clone()
        make = Plain
        if options.path in COMPILED:
            with phases.time("compile"):
                room.prefill(trial)
                if options.path != "compile":
                    step = traced(room) if options.compiler == "torchscript" else compiled(step, options)
                else:
                    graphs = self.device.type == "cuda" and "cudagraphs" not in options.mode and options.mode != "default"
                    step, make = compiled(step, options, options.mode), Pooled if graphs and options.fusion else Plain
                with insisting_on_graphs() if make is Pooled else nullcontext():
                    # Compilers work at the first calls: they profile, compile, record.
                    for _ in range(3):
                        make(room, step)(first)
                    wait_for(self.device)
                end_compilers()
        if options.path in CAPTURED:
            with phases.time("capture"):
                room.prefill(trial)
                make_step = Captured(room, step)
                wait_for(self.device)
        else:
            make_step = make(room, step)
        room.prefill(trial)
        self._hold_against(wanted, make_step(first)[0])
        return make_step

    def _hold_against(self, wanted, found):
        """A trace keeps the way that one call took, and a compiler has bugs: what computes something else is no row."""
        largest = float(wanted.abs().max())
        apart = float((wanted.float() - found.float()).abs().max())
        if not apart <= TOLERATED * max(largest, 1e-6):
            what = f"its logits lie {apart:.3g} from those of the plain step, which reach {largest:.3g}"
            raise Failed("internal", f"path `{self.loaded.options.path}`: {what}", "--set path=loop")


class Entered:
    """A room for one request."""

    def __init__(self, room, step):
        self.prefill, self._step = room.prefill, step
        self.best = None

    def advance(self, ids):
        logits, self.best = self._step(ids)
        return logits


def end_compilers():
    """Ends the processes that compiled: they would hold memory beside what is measured. The next compile starts its own."""
    from torch._inductor.async_compile import shutdown_compile_workers

    shutdown_compile_workers()
