"""Path `generate`: tokens by the library's own `generate`, timestamped in its streamer."""

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.generation.streamers import BaseStreamer

from batch import Chooser, lay_out, push
from causal import Causal


class Generating(Causal):
    def run(self, job, tokens):
        eos_ids = [] if job.ignore_eos else self.loaded.folder.eos_ids
        pad_id = next(iter(self.loaded.folder.eos_ids), 0)
        batch = lay_out(job.prompts, job.padding, self.device, pad_id)
        # All settings are explicit, so that neither the folder nor the library's defaults apply.
        config = GenerationConfig(
            max_new_tokens=job.max_new_tokens,
            do_sample=False,
            num_beams=1,
            use_cache=job.use_cache,
            eos_token_id=eos_ids or None,
            pad_token_id=pad_id,
            disable_compile=True,
        )
        chooser = Chooser(job, tokens)
        checked = self._check_first()
        processors = LogitsProcessorList([Picked(chooser)] if chooser.samples else [])
        try:
            self.network.generate(
                batch.ids,
                attention_mask=torch.ones_like(batch.ids) if batch.mask is None else batch.mask,
                generation_config=config,
                logits_processor=processors,
                streamer=Streamer(tokens),
            )
        except Done:
            pass
        finally:
            checked.remove()

    def _check_first(self):
        """A hook that removes itself after the first call of the model, so that no other token pays for it."""

        def check(network, asked, output):
            handle.remove()
            self.check_numbers(output.logits[:, -1])

        handle = self.network.register_forward_hook(check)
        return handle

    def choices(self):
        return {**super().choices(), "decode": "transformers.generate, growing cache"}


class Streamer(BaseStreamer):
    """Pushes each token when `generate` gives it to the streamer, on the host, as for any user who streams."""

    def __init__(self, tokens):
        self._tokens, self._prompt = tokens, True

    def put(self, value):
        if self._prompt:
            # The first value is the prompt.
            self._prompt = False
        elif push(self._tokens, value.tolist()) and self._tokens.cancelled:
            raise Done

    def end(self):
        pass


class Done(Exception):
    """Aborts `generate` for a cancelled request. A stopping criterion would cost time at every token of every
    request, and see the token only after the next one."""


class Picked(LogitsProcessor):
    """Leaves one id of each row to choose from: the protocol's sampling inside `generate`."""

    def __init__(self, chooser):
        self._chooser = chooser

    def __call__(self, input_ids, scores):
        left = torch.full_like(scores, float("-inf"))
        return left.scatter_(1, self._chooser(scores)[:, None], 0.0)
