"""Path `loop`: the same call of the same model in a separate decode loop. The difference from `generate` is the cost
of `generate`."""

import torch
from transformers import DynamicCache

from batch import Chooser, lay_out, positions_of, push
from causal import Causal


class Looping(Causal):
    def run(self, job, tokens):
        batch, chooser = lay_out(job.prompts, job.padding, self.device), Chooser(job, tokens)
        steps = self.steps(batch, job.max_new_tokens) if job.use_cache else Whole(self.network)
        logits = steps.prefill(batch)
        self.check_numbers(logits)
        ids = chooser(logits)
        while not push(tokens, ids.tolist()):
            logits = steps.advance(ids)
            # A compiled or captured step includes the greedy choice.
            ids = steps.best if steps.best is not None and not chooser.samples else chooser(logits)

    def steps(self, batch, new_tokens):
        """The functions that compute logits: `prefill(batch)`, then `advance(ids)` for every token, both [sequences,
        vocabulary]."""
        return Growing(self.network)

    def choices(self):
        return {**super().choices(), "decode": "loop over the model, growing cache"}


class Growing:
    """Keys and values in tensors that grow by one token at a time, the library's default."""

    best = None

    def __init__(self, network):
        self._network, self._cache = network, DynamicCache(config=network.config.get_text_config(decoder=True))

    def prefill(self, batch):
        self._mask = batch.mask
        self._positions = None if batch.mask is None else positions_of(batch.mask)
        return self._forward(batch.ids)

    def advance(self, ids):
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(len(ids), 1)], -1)
            self._positions = self._positions[:, -1:] + 1
        return self._forward(ids[:, None])

    def _forward(self, ids):
        # Passed only if needed, like a caller of the library does for one sequence.
        asked = {} if self._mask is None else dict(attention_mask=self._mask, position_ids=self._positions)
        asked.update(past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        return self._network(input_ids=ids, **asked).logits[:, -1]


class Whole:
    """No KV cache: computes the whole sequence again for every token."""

    best = None

    def __init__(self, network):
        self._network = network

    def prefill(self, batch):
        self._ids, self._mask = batch.ids, batch.mask
        return self._forward()

    def advance(self, ids):
        self._ids = torch.cat([self._ids, ids[:, None]], -1)
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(len(ids), 1)], -1)
        return self._forward()

    def _forward(self):
        positions = None if self._mask is None else positions_of(self._mask)
        asked = dict(attention_mask=self._mask, position_ids=positions, use_cache=False, logits_to_keep=1)
        return self._network(input_ids=self._ids, **asked).logits[:, -1]
