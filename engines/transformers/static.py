"""Paths with a static cache: path `loop` with a decode step that is compiled, captured, or both. Prompts run
uncompiled: their lengths differ, and a compiler would start again for each.
"""

from contextlib import nullcontext

import torch

from causal import lay_out
from devices import wait_for
from engine_kit import Failed, Phases
from growing import Looping
from network import one_line
from options import CAPTURED, COMPILED, GRAPH_MODES
from decode_state import TRIAL, DecodeState, capacity_for
from steps import (
    Captured,
    EagerStep,
    Pooled,
    compare_logits,
    compile_cache,
    compiled,
    end_compilers,
    expected_logits,
    requiring_graphs,
    traced,
)

# More decode states than a suite has shapes; each holds a cache, and possibly a graph.
MAX_STATES = 8

# The length of the second prompt for comparing a step with the plain one. A trace that has a position, id or mask of
# the first as a constant fails here.
SECOND_TRIAL = 7


class Static(Looping):
    def __init__(self, loaded):
        super().__init__(loaded)
        self._states, self._steps = {}, {}

    def prepare(self, phases):
        # Frees compiled code of an earlier model, which would keep its weights.
        torch._dynamo.reset()
        options = self.loaded.options
        self._prepared(1, capacity_for(TRIAL, options.cache_tokens, self.loaded.context_tokens), phases)

    def steps(self, batch, new_tokens):
        options, limit = self.loaded.options, self.loaded.context_tokens
        # The last new token is never run, so it needs no column.
        capacity = capacity_for(batch.columns + new_tokens - 1, options.cache_tokens, limit)
        if new_tokens == 1:
            return StaticSteps(self._state(batch.sequences, capacity), None)
        return StaticSteps(*self._prepared(batch.sequences, capacity, Phases()))

    def choices(self):
        options, decode = self.loaded.options, "static cache"
        if options.path in COMPILED:
            compiler = options.compiler if options.path != "compile" else f"inductor, mode {options.mode}"
            compiler = {"torchscript": "TorchScript trace"}.get(compiler, compiler)
            decode += f", {compiler}" if options.fusion else ", graph run operation by operation (fusion off: none of Inductor's code)"
        captured = options.path in CAPTURED or (options.path == "compile" and not options.fusion and self._has_graphs)
        decode += ", captured CUDA graph" if captured else ""
        choices = {**super().choices(), "decode": f"loop over the model, {decode}"}
        if (cache := compile_cache()) is not None:
            choices["inductor cache"] = cache
        return choices

    def _state(self, sequences, capacity):
        key = (sequences, capacity)
        if key not in self._states:
            if len(self._states) == MAX_STATES:
                oldest = next(iter(self._states))
                del self._states[oldest]
                self._steps.pop(oldest, None)
            architecture, additive = self.loaded.folder.architecture, self.loaded.options.attention == "eager"
            self._states[key] = DecodeState(self.network, architecture, sequences, capacity, self.device, additive)
        return self._states[key]

    def _prepared(self, sequences, capacity, phases):
        """The decode state and its step, made on first use."""
        state = self._state(sequences, capacity)
        key = (sequences, capacity)
        if key not in self._steps:
            try:
                self._steps[key] = self._make(state, phases)
            except (Failed, MemoryError, torch.OutOfMemoryError):
                raise
            except Exception as error:
                path = self.loaded.options.path
                message = f"path `{path}`: cannot make the decode step: {type(error).__name__}: {one_line(error)}"
                raise Failed("internal", message, "--set path=loop") from error
        return state, self._steps[key]

    def _make(self, state, phases):
        """Makes the step of a decode state, tries it, and compares it with the plain one."""
        options, step = self.loaded.options, state.step
        trials = self._trials(state)
        trial, first = trials[0]
        expected = [expected_logits(self._run_trial(state, EagerStep(state, step), *trial)) for trial in trials]
        make, captures = EagerStep, options.path in CAPTURED
        if options.path in COMPILED:
            with phases.time("compile"):
                state.prefill(trial)
                if options.path != "compile":
                    step = traced(state) if options.compiler == "torchscript" else compiled(step, options)
                else:
                    step = compiled(step, options, options.mode)
                    # Inductor captures its own graphs; without its code they are captured as in path `cuda-graph`.
                    make = Pooled if self._has_graphs and options.fusion else EagerStep
                    captures = self._has_graphs and not options.fusion
                with requiring_graphs() if make is Pooled else nullcontext():
                    # Compilers work in the first calls: they profile, compile, record.
                    for _ in range(3):
                        make(state, step)(first)
                    wait_for(self.device)
                end_compilers()
        if captures:
            with phases.time("capture"):
                state.prefill(trial)
                make_step = Captured(state, step)
                wait_for(self.device)
        else:
            make_step = make(state, step)
        for trial, logits in zip(trials, expected):
            compare_logits(logits, self._run_trial(state, make_step, *trial), options.path)
        return make_step

    @property
    def _has_graphs(self):
        """Whether the mode of path `compile` uses CUDA graphs."""
        return has_graphs(self.device) and self.loaded.options.mode in GRAPH_MODES

    def _trials(self, state):
        """Prompts and the ids after them. The first is for compiling and capturing; the second has another length,
        other ids, and pads if there are several sequences."""
        rows, vocabulary = range(state.sequences), len(self.network.get_input_embeddings().weight)
        limit = max(1, min(SECOND_TRIAL, state.capacity - 1))
        # Every other sequence is half as long.
        varied = [[(1 + row + index) % vocabulary for index in range(limit - row % 2 * (limit // 2))] for row in rows]
        trials = [([[0] * TRIAL for _ in rows], [0 for _ in rows]), (varied, [(limit + 3 + row) % vocabulary for row in rows])]
        return [(lay_out(prompts, "left", self.device), torch.tensor(ids, device=self.device)) for prompts, ids in trials]

    def _run_trial(self, state, step, prompt, ids):
        # Cleared, so that a step that writes elsewhere does not find the plain step's result.
        state.clear()
        state.prefill(prompt)
        return step(ids)[0]


def has_graphs(device):
    return device.type == "cuda"


class StaticSteps:
    """A decode state in use by one request."""

    def __init__(self, state, step):
        self.prefill, self._step = state.prefill, step
        self.best = None

    def advance(self, ids):
        logits, self.best = self._step(ids)
        return logits
