"""The decode paths with a static cache: the loop of path `loop`, with a decode step that is compiled or traced, captured as a
CUDA graph, or both.

Keys and values are in tensors of fixed size and address. A decode state belongs to a capacity and a number of sequences, and
its step is compiled or captured once. Capacities double, so that requests of many lengths share a few states. Prompts run
uncompiled, because each length would be compiled again.
"""

from contextlib import nullcontext

import torch
from transformers.cache_utils import Cache, StaticLayer

from decode_path import make_batch, mask_positions
from decode_steps import (
    CapturedStep,
    DirectStep,
    InductorGraphStep,
    compare_logits,
    compile_cache_state,
    compile_step,
    end_compilers,
    expected_logits,
    require_graphs,
    trace_step,
)
from devices import wait_for
from engine_kit import Failed, Phases
from growing_cache import LoopPath
from network import layer_kinds, one_line
from options import CAPTURED_PATHS, COMPILED_PATHS, GRAPH_MODES

# The most decode states that are kept, each with a cache and possibly a graph.
MAX_STATES = 8

# The number of tokens of the first trial prompt, with which a step is compiled and captured.
TRIAL_TOKENS = 2

# The number of tokens of the second trial prompt. The second trial finds a step that has a position, an id or the mask of the
# first trial as a constant.
SECOND_TRIAL_TOKENS = 7


class StaticCachePath(LoopPath):
    def __init__(self, loaded):
        super().__init__(loaded)
        self._states, self._steps = {}, {}

    def prepare(self, phases):
        # Frees compiled code of an earlier model, which would keep that model's weights in memory.
        torch._dynamo.reset()
        self._state_and_step(1, self._capacity_for(TRIAL_TOKENS), phases)

    def make_steps(self, batch, max_new_tokens):
        # The last new token is no input of a step, so it needs no column of the cache.
        capacity = self._capacity_for(batch.columns + max_new_tokens - 1)
        if max_new_tokens == 1:
            return StaticCacheSteps(self._state(batch.sequences, capacity), None)
        return StaticCacheSteps(*self._state_and_step(batch.sequences, capacity, Phases()))

    def effects(self):
        options, decode = self.loaded.options, "static cache"
        if options.path in COMPILED_PATHS:
            compiler = options.compiler if options.path != "compile" else f"inductor, mode {options.mode}"
            compiler = {"torchscript": "TorchScript trace"}.get(compiler, compiler)
            decode += f", {compiler}" if options.fusion else ", torch.compile without Inductor (fusion off: operations run one by one)"
        captures = options.path in CAPTURED_PATHS or (options.path == "compile" and not options.fusion and self._has_graphs)
        decode += ", captured CUDA graph" if captures else ""
        effects = {**super().effects(), "decode": f"loop over the model, {decode}"}
        if (cache_state := compile_cache_state()) is not None:
            effects["inductor cache"] = cache_state
        return effects

    def _capacity_for(self, tokens):
        return capacity_for(tokens, self.loaded.options.cache_tokens, self.loaded.context_tokens)

    def _state(self, sequences, capacity):
        key = (sequences, capacity)
        if key not in self._states:
            if len(self._states) == MAX_STATES:
                oldest = next(iter(self._states))
                del self._states[oldest]
                self._steps.pop(oldest, None)
            architecture, additive_masks = self.loaded.folder.architecture, self.loaded.options.attention == "eager"
            self._states[key] = DecodeState(self.network, architecture, sequences, capacity, self.device, additive_masks)
        return self._states[key]

    def _state_and_step(self, sequences, capacity, phases):
        """The decode state and its step, made on first use."""
        state = self._state(sequences, capacity)
        key = (sequences, capacity)
        if key not in self._steps:
            try:
                self._steps[key] = self._make_step(state, phases)
            except (Failed, MemoryError, torch.OutOfMemoryError):
                raise
            except Exception as error:
                path = self.loaded.options.path
                message = f"path `{path}`: cannot make the decode step: {type(error).__name__}: {one_line(error)}"
                raise Failed("internal", message, "--set path=loop") from error
        return state, self._steps[key]

    def _make_step(self, state, phases):
        """Makes the step of a decode state, and compares its logits with those of the plain step."""
        options, function = self.loaded.options, state.step
        trials = self._trials(state)
        prompt, ids = trials[0]
        expected = [expected_logits(self._run_trial(state, DirectStep(state, function), *trial)) for trial in trials]
        step_class, captures = DirectStep, options.path in CAPTURED_PATHS
        if options.path in COMPILED_PATHS:
            with phases.time("compile"):
                state.prefill(prompt)
                if options.path != "compile":
                    function = trace_step(state) if options.compiler == "torchscript" else compile_step(function, options)
                else:
                    function = compile_step(function, options, options.mode)
                    # Inductor captures graphs of its own code. Without fusion this engine captures the step.
                    step_class = InductorGraphStep if self._has_graphs and options.fusion else DirectStep
                    captures = self._has_graphs and not options.fusion
                with require_graphs() if step_class is InductorGraphStep else nullcontext():
                    # Compilers profile, compile and record in the first three calls.
                    for _ in range(3):
                        step_class(state, function)(ids)
                    wait_for(self.device)
                end_compilers()
        if captures:
            with phases.time("capture"):
                state.prefill(prompt)
                step = CapturedStep(state, function)
                wait_for(self.device)
        else:
            step = step_class(state, function)
        for trial, logits in zip(trials, expected):
            compare_logits(logits, self._run_trial(state, step, *trial), options.path)
        return step

    @property
    def _has_graphs(self):
        """Whether the mode of path `compile` uses CUDA graphs."""
        return has_graphs(self.device) and self.loaded.options.mode in GRAPH_MODES

    def _trials(self, state):
        """Two batches, each with the ids that follow. The second has another length, other ids, and pads if there are
        several sequences."""
        rows, vocabulary = range(state.sequences), len(self.network.get_input_embeddings().weight)
        longest = max(1, min(SECOND_TRIAL_TOKENS, state.capacity - 1))
        # Every second prompt is about half as long as the others.
        varied = [[(1 + row + index) % vocabulary for index in range(longest - row % 2 * (longest // 2))] for row in rows]
        trials = [([[0] * TRIAL_TOKENS for _ in rows], [0 for _ in rows]), (varied, [(longest + 3 + row) % vocabulary for row in rows])]
        return [(make_batch(prompts, "left", self.device), torch.tensor(ids, device=self.device)) for prompts, ids in trials]

    def _run_trial(self, state, step, prompt, ids):
        # Cleared, so that a step that writes to a wrong address does not read the plain step's result.
        state.clear()
        state.prefill(prompt)
        return step(ids)[0]


def has_graphs(device):
    return device.type == "cuda"


class StaticCacheSteps:
    """The steps of one request, as `LoopPath.make_steps` describes them."""

    def __init__(self, state, step):
        self.prefill, self._step = state.prefill, step
        self.greedy_ids = None

    def advance(self, ids):
        logits, self.greedy_ids = self._step(ids)
        return logits


def capacity_for(tokens, smallest, limit):
    """The capacity for this many tokens: `smallest` doubled until they fit, at most `limit` (the context in effect)."""
    capacity = smallest
    while capacity < tokens:
        capacity *= 2
    return capacity if limit is None else min(capacity, limit)


def count_layers(config, capacity, architecture):
    """The number of layers. Refuses layers without full or sliding attention, and windows of fewer than `capacity` tokens."""
    kinds = layer_kinds(config)
    if unsupported_kinds := sorted(set(kinds) - {"full_attention", "sliding_attention"}):
        message = f"a static cache of architecture `{architecture}`: it has layers of kind `{unsupported_kinds[0]}`"
        raise Failed("unsupported", message, "--set path=loop")
    window = config.sliding_window if "sliding_attention" in kinds else None
    if window is not None and capacity > window:
        message = f"a static cache of {capacity} tokens: architecture `{architecture}` attends only to the last {window} tokens"
        raise Failed("unsupported", message, "--set path=loop")
    return len(kinds)


class DecodeState:
    """A static cache for a number of sequences and tokens, with the other tensors that a step reads."""

    def __init__(self, network, architecture, sequences, capacity, device, additive_masks):
        """`additive_masks`: masks are numbers that attention adds to its scores, not booleans."""
        layers = count_layers(network.config.get_text_config(decoder=True), capacity, architecture)
        self._network, self.sequences, self.capacity = network, sequences, capacity
        self.cache = Cache(layers=[StaticLayer(max_cache_len=capacity) for _ in range(layers)])
        self._columns = torch.arange(capacity, device=device)
        self._additive_masks = additive_masks
        # The last id of each sequence and its position; one column for all. `is_token` is False for a column with a pad.
        self.ids = torch.zeros(sequences, 1, dtype=torch.long, device=device)
        self.positions = torch.zeros(sequences, 1, dtype=torch.long, device=device)
        self.column = torch.zeros(1, dtype=torch.long, device=device)
        self.is_token = torch.ones(sequences, capacity, dtype=torch.bool, device=device)

    @property
    def inputs(self):
        """The tensors that a step reads besides the cache."""
        return self.ids, self.positions, self.column, self.is_token

    def prefill(self, batch):
        """Runs the prompt from an empty cache, without compiler or graph. Returns the logits of the last column."""
        self.rewind()
        self.is_token.fill_(True)
        mask = positions = None
        if batch.mask is not None:
            self.is_token[:, : batch.columns] = batch.mask.bool()
            positions = mask_positions(batch.mask)
            mask = self._mask(self._columns[: batch.columns, None] >= self._columns)
        arguments = dict(attention_mask=mask, position_ids=positions, past_key_values=self.cache, use_cache=True)
        logits = self._network(input_ids=batch.ids, logits_to_keep=1, **arguments).logits[:, -1]
        self.column.fill_(batch.columns)
        self.positions.copy_(batch.columns if positions is None else positions[:, -1:] + 1)
        return logits

    def step(self, ids, positions, column, is_token):
        """Runs one token of each sequence, and returns the logits and the greedy ids. This function is compiled or
        captured, so it must not read a value back to the host."""
        mask = self._mask(self._columns <= column, is_token)
        arguments = dict(attention_mask=mask, position_ids=positions, past_key_values=self.cache, use_cache=True)
        logits = self._network(input_ids=ids, logits_to_keep=1, **arguments).logits[:, -1]
        return logits, logits.argmax(-1)

    def rewind(self):
        """Sets the number of written columns to 0. The mask hides the old content until it is overwritten."""
        for layer in self.cache.layers:
            layer.cumulative_length.zero_()

    def clear(self):
        """Fills the cache with zeros. A request does not need this, because the mask hides old content."""
        for layer in self.cache.layers:
            if layer.is_initialized:
                layer.keys.zero_()
                layer.values.zero_()

    def _mask(self, visible, is_token=None):
        """The columns that each input token attends to: [sequences, 1, input tokens, capacity]."""
        allowed = visible & (self.is_token if is_token is None else is_token)[:, None, None, :]
        if not self._additive_masks:
            return allowed
        dtype = self._network.dtype
        return torch.zeros((), dtype=dtype, device=allowed.device).masked_fill(~allowed, torch.finfo(dtype).min)
