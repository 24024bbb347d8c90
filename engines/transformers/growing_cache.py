"""The decode paths with a growing cache. `generate` is the library's own `generate`, with tokens timestamped in its streamer.
`loop` calls the same network in this engine's decode loop: the difference in time is the cost of `generate`."""

import time

import torch
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
        hooks = [self._check_first_logits()]
        # A draft is compared with the likeliest token, and it needs the cache. Otherwise nothing is drafted.
        if job.speculation == "prompt_lookup" and job.use_cache and not chooser.is_sampling:
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
        except RequestCancelled:
            pass
        finally:
            for hook in hooks:
                hook.remove()
        if job.speculation != "off":
            tokens.set_drafts(0, drafts.drafted, drafts.accepted)

    def _check_first_logits(self):
        """Adds a hook to the network that checks the logits of the first call. The hook then removes itself, so that it costs
        no time at other tokens."""

        def check(network, arguments, output):
            hook.remove()
            self.check_finite(output.logits[:, -1])

        hook = self.network.register_forward_hook(check)
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
            if self._tokens.cancelled:
                raise RequestCancelled
        elif push_ids(self._tokens, value.tolist()) and self._tokens.cancelled:
            raise RequestCancelled

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


class RequestCancelled(Exception):
    """Ends `generate` for a cancelled request. A stopping criterion would cost time at every token of every request."""


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
            logits = steps.advance(ids)
            # A compiled or captured step includes the greedy choice.
            ids = chooser(logits) if steps.greedy_ids is None or chooser.is_sampling else steps.greedy_ids

    def make_steps(self, batch, max_new_tokens):
        """The steps of one request: `prefill(batch)`, then `advance(ids)` for every token. Both return logits [sequences,
        vocabulary]. `greedy_ids`: the ids that the last step chose, or None if steps return only logits."""
        return GrowingCacheSteps(self.network)

    def effects(self):
        return {**super().effects(), "decode": "loop over the model, growing cache"}


class GrowingCacheSteps:
    """Keys and values in tensors that grow by one token at a time, the library's default."""

    greedy_ids = None

    def __init__(self, network):
        self._network, self._cache = network, DynamicCache(config=network.config.get_text_config(decoder=True))

    def prefill(self, batch):
        self._mask = batch.mask
        self._positions = None if batch.mask is None else mask_positions(batch.mask)
        return self._forward(batch.ids)

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
