"""The decode paths with a growing cache. `generate` is the library's own `generate`, with tokens timestamped in its streamer.
`loop` calls the same network in this engine's decode loop: the difference in time is the cost of `generate`.

With both, the request of a step that must end can continue as rows of a cache, which `slots.py` advances."""

import time
from types import SimpleNamespace

import torch
from torch.nn import functional
from transformers import DynamicCache, GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.generation.streamers import BaseStreamer

from decode_path import DecodePath, TokenChooser, make_batch, mask_positions, push_ids


# The settings of prompt lookup that the library documents.
DRAFTED_TOKENS, LONGEST_MATCH = 10, 2


class GeneratePath(DecodePath):
    DRAFTS = True

    def run(self, job, tokens):
        eos_ids = [] if job.ignore_eos else self.loaded.folder.eos_ids
        pad_id = next(iter(self.loaded.folder.eos_ids), 0)
        batch = make_batch(job.prompts, job.padding, self.device, pad_id)
        # These settings are explicit, so that those of the folder do not apply.
        config = GenerationConfig(
            max_new_tokens=job.max_new_tokens,
            do_sample=False,
            num_beams=1,
            use_cache=job.use_cache,
            eos_token_id=eos_ids or None,
            pad_token_id=pad_id,
            disable_compile=True,
        )
        chooser, drafts = TokenChooser(job, tokens), Drafts(batch.columns)
        first_call = SimpleNamespace(cache=None)
        hooks = [self._watch_first_call(first_call)]
        # A draft is compared with the likeliest token, and it needs the cache. Otherwise nothing is drafted.
        is_drafting = job.speculation == "prompt_lookup" and job.use_cache and not chooser.is_sampling
        if is_drafting:
            config.prompt_lookup_num_tokens, config.max_matching_ngram_size = DRAFTED_TOKENS, LONGEST_MATCH
            hooks.append(self.network.register_forward_pre_hook(drafts.check, with_kwargs=True))
        processors = LogitsProcessorList([OnlyChosenId(chooser)] if chooser.is_sampling else [])
        try:
            self.network.generate(
                batch.ids,
                attention_mask=torch.ones_like(batch.ids) if batch.mask is None else batch.mask,
                generation_config=config,
                logits_processor=processors,
                streamer=Streamer(tokens, drafts),
            )
        except StepEnded:
            pass
        finally:
            for hook in hooks:
                hook.remove()
        if job.speculation != "off":
            tokens.set_drafts(0, drafts.drafted, drafts.accepted)
        if tokens.all_done():
            return None
        if not job.use_cache:
            return Unfinished(chooser, None)
        if is_drafting:
            remove_drafts(first_call.cache, batch.columns + len(tokens.ids(0)) - 1)
        return Unfinished(chooser, GrowingCacheSteps(self.network, first_call.cache, batch.mask))

    def _watch_first_call(self, first_call):
        """Adds a hook to the network that checks the logits of the first call, and keeps its cache, which later calls extend. The hook
        then removes itself, so that it costs no time at other tokens."""

        def watch(network, arguments, output):
            hook.remove()
            self.check_finite(output.logits[:, -1])
            first_call.cache = output.past_key_values

        hook = self.network.register_forward_hook(watch)
        return hook

    def effects(self):
        return {**super().effects(), "decode": "transformers.generate, growing cache"}


class Streamer(BaseStreamer):
    """Gets each token on the host when `generate` outputs it, like a user's streamer, and gives it to the kit."""

    def __init__(self, tokens, drafts):
        self._tokens, self._drafts, self._expects_prompt = tokens, drafts, True

    def put(self, value):
        if self._expects_prompt:
            # The first value is the prompt.
            self._expects_prompt = False
        elif value.dim() == 2:
            # With drafts, the value has the accepted tokens of the only sequence, and the token after them.
            ids, at_ns = value[0].tolist(), time.perf_counter_ns()
            before = len(self._tokens.ids(0))
            for id in ids:
                if self._tokens.is_done(0):
                    break
                self._tokens.push(0, id, at_ns)
            self._drafts.accept(ids[: len(self._tokens.ids(0)) - before])
            self._end_step_if_needed(self._tokens.is_done(0))
        else:
            self._end_step_if_needed(push_ids(self._tokens, value.tolist()))

    def _end_step_if_needed(self, all_done):
        if self._tokens.cancelled if all_done else self._tokens.must_end_step():
            raise StepEnded

    def end(self):
        pass


class Drafts:
    """Counts drafted and accepted tokens. The input of each call of the network has the tokens that are not cached, and then the
    draft."""

    def __init__(self, prompt_tokens):
        self.drafted, self.accepted = 0, 0
        self._uncached, self._draft = prompt_tokens, None

    def check(self, network, arguments, keywords):
        """A hook before each call of the network."""
        self._draft = keywords["input_ids"][0, self._uncached :]
        self.drafted += len(self._draft)
        self._uncached = 1

    def accept(self, ids):
        """Counts the first of these output ids that equal the draft."""
        for drafted, id in zip(self._draft.tolist(), ids):
            if drafted != id:
                return
            self.accepted += 1


class StepEnded(Exception):
    """Ends `generate` before all tokens: the request is cancelled, or others join. A stopping criterion would cost time at every
    token of every request."""


class Unfinished:
    """A job whose step ended before all its tokens. `chooser` has the random numbers of its sequences. `steps` has the cache of all
    of them, or is None for a job without a cache."""

    def __init__(self, chooser, steps):
        self.chooser, self.steps = chooser, steps


def remove_drafts(cache, columns):
    """Removes drafts after these columns. The library does so only after it has given the accepted tokens to the streamer."""
    cache.crop(columns - cache.get_seq_length())
    for layer in cache.layers:
        if hasattr(layer, "record_past"):
            layer.record_past = False


class OnlyChosenId(LogitsProcessor):
    """Excludes all ids except the sampled id, so that `generate` samples by the protocol's rules."""

    def __init__(self, chooser):
        self._chooser = chooser

    def __call__(self, input_ids, scores):
        excluded = torch.full_like(scores, float("-inf"))
        return excluded.scatter_(1, self._chooser(scores)[:, None], 0.0)


class LoopPath(DecodePath):
    def run(self, job, tokens):
        batch, chooser = make_batch(job.prompts, job.padding, self.device), TokenChooser(job, tokens)
        steps = self.make_steps(batch, job.max_new_tokens) if job.use_cache else WholeSequenceSteps(self.network)
        logits = steps.prefill(batch)
        self.check_finite(logits)
        ids = chooser(logits)
        while not push_ids(tokens, ids.tolist()):
            if tokens.must_end_step():
                return Unfinished(chooser, steps if job.use_cache else None)
            logits = steps.advance(ids)
            # A compiled or captured step includes the greedy choice.
            ids = chooser(logits) if steps.greedy_ids is None or chooser.is_sampling else steps.greedy_ids
        return None

    def make_steps(self, batch, max_new_tokens):
        """The steps of one request: `prefill(batch)`, then `advance(ids)` for every token. Both return logits [sequences,
        vocabulary]. `greedy_ids`: the ids that the last step chose, or None if steps return only logits."""
        return GrowingCacheSteps(self.network)

    def effects(self):
        return {**super().effects(), "decode": "loop over the model, growing cache"}


class GrowingCacheSteps:
    """Keys and values in tensors that grow by one token at a time, the library's default. Each sequence is a row. `cache` has the
    columns of earlier steps, if there were some; the mask of their prompts has 0 for pads."""

    greedy_ids = None

    def __init__(self, network, cache=None, mask=None):
        self._network, self._cache, self._mask, self._positions = network, cache, None, None
        if cache is None:
            self._cache = new_cache(network)
        elif mask is not None:
            self._set_mask(functional.pad(mask, (0, cache.get_seq_length() - mask.shape[1]), value=1))

    def prefill(self, batch):
        self._mask = batch.mask
        self._positions = None if batch.mask is None else mask_positions(batch.mask)
        return self._forward(batch.ids)

    def append(self, other):
        """Adds the rows of other steps. All rows end in the last column, and shorter ones get pads on their left."""
        masks = [self._full_mask(), other._full_mask()]
        columns = max(mask.shape[1] for mask in masks)
        for layer, added in zip(self._cache.layers, other._cache.layers, strict=True):
            layer.keys, layer.values = stack_rows(layer.keys, added.keys), stack_rows(layer.values, added.values)
            set_columns(layer, columns)
        self._set_mask(torch.cat([functional.pad(mask, (columns - mask.shape[1], 0)) for mask in masks]))

    def keep(self, rows):
        """Removes all rows but those with these numbers, and the columns that have only pads then."""
        numbers = torch.tensor(rows, device=self._network.device)
        mask = self._full_mask().index_select(0, numbers)
        # `argmax` returns the first of equal numbers: the first token of each row.
        mask = mask[:, int(mask.argmax(-1).min()) :]
        for layer in self._cache.layers:
            # A layer with a sliding window has only the last columns.
            stored, numbers = min(layer.keys.shape[-2], mask.shape[1]), numbers.to(layer.keys.device)
            layer.keys = layer.keys[:, :, -stored:].index_select(0, numbers)
            layer.values = layer.values[:, :, -stored:].index_select(0, numbers)
            set_columns(layer, mask.shape[1])
        self._set_mask(mask)

    def _full_mask(self):
        if self._mask is not None:
            return self._mask
        shape = len(self._cache.layers[0].keys), self._cache.get_seq_length()
        return torch.ones(shape, dtype=torch.long, device=self._network.device)

    def _set_mask(self, mask):
        """Sets the mask of the cached columns. Rows without pads need none, and are faster without one."""
        is_padded = not bool(mask.all())
        self._mask = mask if is_padded else None
        self._positions = mask_positions(mask)[:, -1:] if is_padded else None

    def advance(self, ids):
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(len(ids), 1)], -1)
            self._positions = self._positions[:, -1:] + 1
        return self._forward(ids[:, None])

    def _forward(self, ids):
        # Without pads, neither mask nor positions are passed, as in a user's own loop.
        arguments = {} if self._mask is None else dict(attention_mask=self._mask, position_ids=self._positions)
        arguments.update(past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        return self._network(input_ids=ids, **arguments).logits[:, -1]


def new_cache(network):
    return DynamicCache(config=network.config.get_text_config(decoder=True))


def stack_rows(tensor, added):
    """Two tensors of keys or values [rows, heads, columns, numbers] as one, with pads on the left of the shorter rows."""
    columns = max(tensor.shape[-2], added.shape[-2])
    return torch.cat([functional.pad(it, (0, 0, columns - it.shape[-2], 0)) for it in (tensor, added)])


def set_columns(layer, columns):
    """Sets the number of computed columns, which a layer with a sliding window counts separately."""
    if hasattr(layer, "cumulative_length"):
        layer.cumulative_length = columns


class WholeSequenceSteps:
    """No KV cache: each step computes the whole sequence again."""

    greedy_ids = None

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
        positions = None if self._mask is None else mask_positions(self._mask)
        arguments = dict(attention_mask=self._mask, position_ids=positions, use_cache=False, logits_to_keep=1)
        return self._network(input_ids=self._ids, **arguments).logits[:, -1]
