"""Static caches: keys and values in tensors of fixed size and address, for compilers and captured graphs.

A decode state is a cache for a number of sequences and tokens, with tensors for the positions of its sequences. Capacities
double, so that a few states serve every request: a step is compiled or captured once for each.
"""

import torch
from transformers.cache_utils import Cache, StaticLayer

from causal import mask_positions
from engine_kit import Failed

# Prompt tokens of a trial.
TRIAL = 2


def capacity_for(tokens, smallest, limit):
    """The capacity for this many tokens: `smallest` doubled until they fit, at most the model's limit."""
    capacity = smallest
    while capacity < tokens:
        capacity *= 2
    return capacity if limit is None else max(min(capacity, limit), min(tokens, limit))


def check_layers(config, capacity, architecture):
    """A static cache holds full attention layers; one with a window is full while the window covers everything."""
    kinds = layer_kinds(config)
    if unsupported_kinds := sorted(set(kinds) - {"full_attention", "sliding_attention"}):
        message = f"a static cache of architecture `{architecture}`: it has layers of kind `{unsupported_kinds[0]}`"
        raise Failed("unsupported", message, "--set path=loop")
    window = config.sliding_window if "sliding_attention" in kinds else None
    if window is not None and capacity > window:
        message = f"a static cache of {capacity} tokens: architecture `{architecture}` attends only to the last {window}"
        raise Failed("unsupported", message, "--set path=loop")
    return len(kinds)


def layer_kinds(config):
    """The kind of every layer, stated or implied by the config."""
    if (kinds := getattr(config, "layer_types", None)) is not None:
        return list(kinds)
    windows = {"sliding_window": "sliding_attention", "attention_chunk_size": "chunked_attention"}
    kind = next((kind for name, kind in windows.items() if getattr(config, name, None) is not None), "full_attention")
    return [kind] * config.num_hidden_layers


class DecodeState:
    def __init__(self, network, architecture, sequences, capacity, device, additive):
        layers = check_layers(network.config.get_text_config(decoder=True), capacity, architecture)
        self._network, self.sequences, self.capacity = network, sequences, capacity
        self.cache = Cache(layers=[StaticLayer(max_cache_len=capacity) for _ in range(layers)])
        self._columns = torch.arange(capacity, device=device)
        self._additive = additive
        # For each sequence the last id and its position; the column that it takes; which columns hold tokens instead
        # of pads.
        self.ids = torch.zeros(sequences, 1, dtype=torch.long, device=device)
        self.positions = torch.zeros(sequences, 1, dtype=torch.long, device=device)
        self.column = torch.zeros(1, dtype=torch.long, device=device)
        self.real = torch.ones(sequences, capacity, dtype=torch.bool, device=device)

    @property
    def inputs(self):
        """The tensors that a step reads besides the cache."""
        return self.ids, self.positions, self.column, self.real

    def prefill(self, batch):
        """Runs the prompt from an empty cache, without compiler or graph. Returns the logits of its end."""
        self.rewind()
        self.real.fill_(True)
        mask = positions = None
        if batch.mask is not None:
            self.real[:, : batch.columns] = batch.mask.bool()
            positions = mask_positions(batch.mask)
            mask = self._mask(self._columns[: batch.columns, None] >= self._columns)
        arguments = dict(attention_mask=mask, position_ids=positions, past_key_values=self.cache, use_cache=True)
        logits = self._network(input_ids=batch.ids, logits_to_keep=1, **arguments).logits[:, -1]
        self.column.fill_(batch.columns)
        self.positions.copy_(batch.columns if positions is None else positions[:, -1:] + 1)
        return logits

    def step(self, ids, positions, column, real):
        """One token of each sequence: logits, and the id of a greedy request. This function is compiled or captured,
        so it does not wait for the host."""
        mask = self._mask(self._columns <= column, real)
        arguments = dict(attention_mask=mask, position_ids=positions, past_key_values=self.cache, use_cache=True)
        logits = self._network(input_ids=ids, logits_to_keep=1, **arguments).logits[:, -1]
        return logits, logits.argmax(-1)

    def rewind(self):
        """Resets the positions. Old cache content stays: a mask hides every column not written since."""
        for layer in self.cache.layers:
            layer.cumulative_length.zero_()

    def clear(self):
        """Clears the cache. A request does not need this."""
        for layer in self.cache.layers:
            if layer.is_initialized:
                layer.keys.zero_()
                layer.values.zero_()

    def _mask(self, visible, real=None):
        """The columns that each token attends to: [sequences, 1, tokens or 1, columns]."""
        allowed = visible & (self.real if real is None else real)[:, None, None, :]
        if not self._additive:
            return allowed
        dtype = self._network.dtype
        return torch.zeros((), dtype=dtype, device=allowed.device).masked_fill(~allowed, torch.finfo(dtype).min)
