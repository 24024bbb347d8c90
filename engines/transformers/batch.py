"""Prompts as tensors, and tokens chosen from logits: common to every path."""

from types import SimpleNamespace

import torch

from engine_kit import Sampler


def lay_out(prompts, padding, device, pad_id=0):
    """`ids` and `mask` [sequences, columns]; the mask is None without padding."""
    columns = max(len(prompt) for prompt in prompts)
    ragged = any(len(prompt) != columns for prompt in prompts)
    rows = [_row(prompt, columns - len(prompt), padding, pad_id) for prompt in prompts]
    ids = torch.tensor([ids for ids, _ in rows], device=device)
    mask = torch.tensor([mask for _, mask in rows], device=device) if ragged else None
    return SimpleNamespace(ids=ids, mask=mask, sequences=len(prompts), columns=columns)


def _row(prompt, missing, padding, pad_id):
    pads, unseen = [pad_id] * missing, [0] * missing
    if padding == "left":
        return pads + prompt, unseen + [1] * len(prompt)
    # Pads go to the right of the text but before its last token: `generate` reads the last column, and a pad there gives no
    # next token. Positions follow the mask, so each sequence computes as if it were alone.
    return prompt[:-1] + pads + prompt[-1:], [1] * (len(prompt) - 1) + unseen + [1]


def positions_of(mask):
    """The position of each token within its own sequence."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


class Chooser:
    """Logits [sequences, vocabulary] to ids. Among equals the lowest id; sampling with the kit's sampler, on the
    host."""

    def __init__(self, job, tokens):
        self._sampler = None if job.sampling is None else Sampler(job.sampling)
        self._tokens = tokens

    @property
    def samples(self):
        return self._sampler is not None

    def __call__(self, logits):
        if self._sampler is None:
            # `argmax` takes the first of equals, which is the lowest id.
            return logits.argmax(-1)
        rows = logits.float().tolist()
        return torch.tensor([self._pick(sequence, row) for sequence, row in enumerate(rows)], device=logits.device)

    def _pick(self, sequence, row):
        # A finished sequence draws nothing, as if it were absent.
        return 0 if self._tokens.is_done(sequence) else self._sampler.pick(row, sequence)


def push(tokens, ids):
    """Pushes new ids, one to each sequence. Returns True once all are done."""
    for sequence, id in enumerate(ids):
        if not tokens.is_done(sequence):
            tokens.push(sequence, id)
    return tokens.all_done()
