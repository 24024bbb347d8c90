"""Paths with a static cache: path `loop` with a decode step that is compiled, captured, or both. Prompts run
uncompiled: their lengths differ, and a compiler would start again for each.
"""

from contextlib import nullcontext

import torch

from batch import lay_out
from devices import wait_for
from engine_kit import Failed, Phases
from looping import Looping
from network import one_line
from options import CAPTURED, COMPILED, GRAPH_MODES
from rooms import TRIAL, Room, capacity_for
from steps import (
    Captured,
    Plain,
    Pooled,
    compile_cache,
    compiled,
    end_compilers,
    held,
    hold_against,
    insisting_on_graphs,
    traced,
)

# More rooms than a suite has shapes; each holds a cache, and possibly a graph.
MOST_ROOMS = 8

# The length of the second prompt for comparing a step with the plain one. A trace that took a position, id or mask of the
# first for a constant fails here.
ANOTHER_TRIAL = 7


class Static(Looping):
    def __init__(self, loaded):
        super().__init__(loaded)
        self._rooms, self._entrances = {}, {}

    def prepare(self, phases):
        # Frees compiled code of an earlier model, which would keep its weights.
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
            how += f", {compiler}" if options.fusion else ", graph run operation by operation (fusion off: none of Inductor's code)"
        captured = options.path in CAPTURED or (options.path == "compile" and not options.fusion and self._has_graphs)
        how += ", captured CUDA graph" if captured else ""
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
            architecture, additive = self.loaded.folder.architecture, self.loaded.options.attention == "eager"
            self._rooms[key] = Room(self.network, architecture, sequences, capacity, self.device, additive)
        return self._rooms[key]

    def _enter(self, sequences, capacity, phases):
        """The room and its step, made on first use."""
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
        """Makes the step of a room, tries it, and compares it with the plain one."""
        options, step = self.loaded.options, room.step
        trials = self._trials(room)
        trial, first = trials[0]
        wanted = [held(self._tried(room, Plain(room, step), *trial)) for trial in trials]
        make, captures = Plain, options.path in CAPTURED
        if options.path in COMPILED:
            with phases.time("compile"):
                room.prefill(trial)
                if options.path != "compile":
                    step = traced(room) if options.compiler == "torchscript" else compiled(step, options)
                else:
                    step = compiled(step, options, options.mode)
                    # Inductor captures its own graphs; without its code they are captured as in path `cuda-graph`.
                    make = Pooled if self._has_graphs and options.fusion else Plain
                    captures = self._has_graphs and not options.fusion
                with insisting_on_graphs() if make is Pooled else nullcontext():
                    # Compilers work in the first calls: they profile, compile, record.
                    for _ in range(3):
                        make(room, step)(first)
                    wait_for(self.device)
                end_compilers()
        if captures:
            with phases.time("capture"):
                room.prefill(trial)
                make_step = Captured(room, step)
                wait_for(self.device)
        else:
            make_step = make(room, step)
        for trial, logits in zip(trials, wanted):
            hold_against(logits, self._tried(room, make_step, *trial), options.path)
        return make_step

    @property
    def _has_graphs(self):
        """Whether the mode of path `compile` uses CUDA graphs."""
        return has_graphs(self.device) and self.loaded.options.mode in GRAPH_MODES

    def _trials(self, room):
        """Prompts and the ids after them. The first is for compiling and capturing; the second has another length,
        other ids, and pads if there are several sequences."""
        rows, vocabulary = range(room.sequences), len(self.network.get_input_embeddings().weight)
        most = max(1, min(ANOTHER_TRIAL, room.capacity - 1))
        # Every other sequence is half as long.
        others = [[(1 + row + at) % vocabulary for at in range(most - row % 2 * (most // 2))] for row in rows]
        trials = [([[0] * TRIAL for _ in rows], [0 for _ in rows]), (others, [(most + 3 + row) % vocabulary for row in rows])]
        return [(lay_out(prompts, "left", self.device), torch.tensor(ids, device=self.device)) for prompts, ids in trials]

    def _tried(self, room, step, prompt, ids):
        # Wiped, so that a step that writes elsewhere does not find the plain step's result.
        room.wipe()
        room.prefill(prompt)
        return step(ids)[0]


def has_graphs(device):
    return device.type == "cuda"


class Entered:
    """A room in use by one request."""

    def __init__(self, room, step):
        self.prefill, self._step = room.prefill, step
        self.best = None

    def advance(self, ids):
        logits, self.best = self._step(ids)
        return logits
