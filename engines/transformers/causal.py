"""A loaded model: the common part of every path. A path implements its own `generate` loop."""

import importlib.metadata
from contextlib import contextmanager
from functools import cached_property

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from devices import NAMES, device_memory, saying_memory
from engine_kit import Failed, Model
from model_folder import read_tokenizer

LIBRARIES = ("torch", "transformers", "safetensors", "tokenizers")

# Logits are wide, so only this many positions are converted to f64 probabilities at a time.
SCORED_TOGETHER = 128


class Causal(Model):
    def __init__(self, loaded):
        """`loaded`: folder, network, device, devices, dtype, options, context_tokens, held (from `held.py`), choices."""
        self.loaded = loaded
        self.network, self.device = loaded.network, loaded.device

    @torch.no_grad()
    def generate(self, job, tokens):
        prompt = max(len(prompt) for prompt in job.prompts)
        what = f"generate ({len(job.prompts)} x {prompt} tokens and {job.max_new_tokens} new ones)"
        with saying_memory(what, self.device), self.attention():
            self.run(job, tokens)

    def run(self, job, tokens):
        """Brings every sequence of the job to its end."""
        raise NotImplementedError

    def check_numbers(self, logits):
        """Checks the logits of the first token of each request [sequences, vocabulary], because weights with NaN
        would still give ids. The maximum is NaN if any logit is; -inf is allowed, because some models use it to
        exclude ids."""
        if not bool(torch.isfinite(logits.amax(-1)).all()):
            what = f"its weights lead to logits that are no numbers, in {NAMES[logits.dtype]}"
            # An f16 overflow may not be the weights' fault.
            widened = logits.dtype != torch.float32 and self.loaded.options.quantize == "none"
            raise Failed("model", f"model `{self.loaded.folder.name}`: {what}", "--dtype f32" if widened else None)

    def prepare(self, phases):
        """Prepares this path once, at the load."""

    @contextmanager
    def attention(self):
        """`flash` is PyTorch's own flash kernel only: if it cannot serve, there is no fallback."""
        if self.loaded.options.attention != "flash":
            yield
            return
        try:
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
                yield
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            what = f"attention `flash`: PyTorch's flash kernel serves neither pads nor f32 on {self.device}"
            raise Failed("unsupported", what, "--set attention=sdpa") from None

    @torch.no_grad()
    def score(self, ids):
        with saying_memory(f"score ({len(ids)} tokens)", self.device), self.attention():
            sequence = torch.tensor([ids], device=self.device)
            logits = self.network(input_ids=sequence, use_cache=False).logits[0, :-1]  # [tokens - 1, vocabulary]
            targets = torch.tensor(ids[1:], device=logits.device)[:, None]
            values = []
            for rows, wanted in zip(logits.split(SCORED_TOGETHER), targets.split(SCORED_TOGETHER)):
                values += torch.log_softmax(rows.double(), -1).gather(1, wanted)[:, 0].tolist()
        return values

    @cached_property
    def _tokenizer(self):
        """Opened by the first text: ids need none."""
        return read_tokenizer(self.loaded.folder, self.loaded.folder.vocabulary_size)

    def encode(self, text):
        if self._tokenizer is None:
            message = f"model `{self.loaded.folder.name}` has no `tokenizer.json` beside its weights"
            raise Failed("model", message, "send `prompt_ids`")
        return self._tokenizer.encode(text).ids

    def decode(self, ids):
        return None if self._tokenizer is None else self._tokenizer.decode(ids)

    def facts(self):
        loaded = self.loaded
        facts = {
            "device": str(self.device),
            "weights_dtype": loaded.held.weights_dtype,
            "compute_dtype": loaded.held.compute_dtype,
            "kv_dtype": NAMES[loaded.dtype],
            "threads": torch.get_num_threads(),
            "architecture": loaded.folder.architecture,
            "context_tokens": loaded.context_tokens,
            "use_cache": True,
            "prefix_cache": False,
            "weights_bytes": loaded.held.weights_bytes,
            "parameters": loaded.held.parameters,
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
        """The effects of options and defaults, in words for a reader of the row."""
        return {**self.loaded.choices, "inter-op threads": str(torch.get_num_interop_threads())}


def libraries(names=LIBRARIES):
    return {name: importlib.metadata.version(name) for name in names}
