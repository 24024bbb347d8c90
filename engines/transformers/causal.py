"""The common part of every path: prompts as tensors, tokens chosen from logits, scores and facts. A path implements its
own `generate` loop.
"""

import importlib.metadata
from contextlib import contextmanager
from functools import cached_property
from types import SimpleNamespace

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from devices import NAMES, device_memory, explaining_memory
from engine_kit import Failed, Model, Sampler
from model_folder import read_tokenizer

LIBRARIES = ("torch", "transformers", "safetensors", "tokenizers")

# Logits are wide, so only this many positions are converted to f64 probabilities at a time.
SCORE_ROWS = 128


class Causal(Model):
    def __init__(self, loaded):
        """`loaded`: folder, network, device, devices, dtype, options, context_tokens, weights (their facts), choices."""
        self.loaded = loaded
        self.network, self.device = loaded.network, loaded.device

    @torch.no_grad()
    def generate(self, job, tokens):
        prompt = max(len(prompt) for prompt in job.prompts)
        work = f"generate ({len(job.prompts)} x {prompt} tokens and {job.max_new_tokens} new ones)"
        with explaining_memory(work, self.device), self.attention():
            self.run(job, tokens)

    def run(self, job, tokens):
        """Brings every sequence of the job to its end."""
        raise NotImplementedError

    def check_numbers(self, logits):
        """Checks the logits of the first token of each request [sequences, vocabulary], because weights with NaN
        would still give ids. The maximum is NaN if any logit is; -inf is allowed, because some models use it to
        exclude ids."""
        if not bool(torch.isfinite(logits.amax(-1)).all()):
            problem = f"its weights lead to logits that are not finite, in {NAMES[logits.dtype]}"
            # An overflow of f16 may not be the weights' fault.
            widened = logits.dtype != torch.float32 and self.loaded.options.quantize == "none"
            raise Failed("model", f"model `{self.loaded.folder.name}`: {problem}", "--dtype f32" if widened else None)

    def prepare(self, phases):
        """Prepares this path once, at the load."""

    @contextmanager
    def attention(self):
        """`flash` is PyTorch's own flash kernel only: without it, there is no fallback."""
        if self.loaded.options.attention != "flash":
            yield
            return
        try:
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
                yield
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            message = f"attention `flash`: PyTorch's flash kernel supports neither pads nor f32 on {self.device}"
            raise Failed("unsupported", message, "--set attention=sdpa") from None

    @torch.no_grad()
    def score(self, ids):
        with explaining_memory(f"score ({len(ids)} tokens)", self.device), self.attention():
            sequence = torch.tensor([ids], device=self.device)
            logits = self.network(input_ids=sequence, use_cache=False).logits[0, :-1]  # [tokens - 1, vocabulary]
            targets = torch.tensor(ids[1:], device=logits.device)[:, None]
            values = []
            for rows, scored in zip(logits.split(SCORE_ROWS), targets.split(SCORE_ROWS)):
                values += torch.log_softmax(rows.double(), -1).gather(1, scored)[:, 0].tolist()
        return values

    @cached_property
    def _tokenizer(self):
        """Opened by the first text: ids need none."""
        return read_tokenizer(self.loaded.folder, self.loaded.folder.vocabulary_size)

    def encode(self, text):
        if self._tokenizer is None:
            message = f"model `{self.loaded.folder.name}` has no `tokenizer.json` in its folder"
            raise Failed("model", message, "send `prompt_ids`")
        return self._tokenizer.encode(text).ids

    def decode(self, ids):
        return None if self._tokenizer is None else self._tokenizer.decode(ids)

    def facts(self):
        loaded = self.loaded
        facts = {
            "device": str(self.device),
            "weights_dtype": loaded.weights.weights_dtype,
            "compute_dtype": loaded.weights.compute_dtype,
            "kv_dtype": NAMES[loaded.dtype],
            "threads": torch.get_num_threads(),
            "architecture": loaded.folder.architecture,
            "context_tokens": loaded.context_tokens,
            "use_cache": True,
            "prefix_cache": False,
            "weights_bytes": loaded.weights.weights_bytes,
            "parameters": loaded.weights.parameters,
            "vocabulary_size": loaded.folder.vocabulary_size,
            "hidden_size": loaded.folder.hidden_size,
            "eos_ids": loaded.folder.eos_ids,
            "bos_id": loaded.folder.bos_id,
            "libraries": {**libraries(), **self.choices()},
        }
        if self.device.type == "cuda":
            facts["device_memory"] = device_memory(loaded.devices)
        return {name: value for name, value in facts.items() if value is not None}

    def choices(self):
        """The effects of options and defaults, as text for the row."""
        return {**self.loaded.choices, "inter-op threads": str(torch.get_num_interop_threads())}


def libraries(names=LIBRARIES):
    return {name: importlib.metadata.version(name) for name in names}


def lay_out(prompts, padding, device, pad_id=0):
    """`ids` and `mask` [sequences, columns]; the mask is None without padding."""
    columns = max(len(prompt) for prompt in prompts)
    ragged = any(len(prompt) != columns for prompt in prompts)
    rows = [_row(prompt, columns - len(prompt), padding, pad_id) for prompt in prompts]
    ids = torch.tensor([ids for ids, _ in rows], device=device)
    mask = torch.tensor([mask for _, mask in rows], device=device) if ragged else None
    return SimpleNamespace(ids=ids, mask=mask, sequences=len(prompts), columns=columns)


def _row(prompt, missing, padding, pad_id):
    pads, masked = [pad_id] * missing, [0] * missing
    if padding == "left":
        return pads + prompt, masked + [1] * len(prompt)
    # Pads go to the right of the text but before its last token: `generate` reads the last column, and a pad there gives no
    # next token. Positions follow the mask, so each sequence computes as if it were alone.
    return prompt[:-1] + pads + prompt[-1:], [1] * (len(prompt) - 1) + masked + [1]


def mask_positions(mask):
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
