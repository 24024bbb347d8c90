"""The common part of all decode paths: makes batches of prompts, chooses tokens from logits, and has scores and facts. The
decode loops are in the modules of the paths."""

import importlib.metadata
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from devices import DTYPE_NAMES, device_memory, explain_memory_errors
from engine_kit import Failed, Model, Sampler
from model_folder import FolderTokenizerMixin

# The most positions whose logits are converted to f64 at once, to save memory: a position has a logit for every id.
MAX_SCORE_ROWS = 128


class DecodePath(FolderTokenizerMixin, Model):
    # The libraries whose versions the facts report.
    LIBRARIES = ("torch", "transformers", "safetensors", "tokenizers")
    # Whether the path can draft tokens.
    DRAFTS = False
    # How many requests overlap, or the reason for one at a time, for the facts.
    overlap = "one at a time: a step has a fixed number of sequences"

    def __init__(self, loaded):
        """`loaded`: folder, network, device, devices, dtype, options, context_tokens, window (in tokens, or None), weights
        (their facts), effects."""
        self.loaded = loaded
        self.network, self.device = loaded.network, loaded.device
        self._folder, self._embedding_rows = loaded.folder, loaded.folder.vocabulary_size
        # Each version is read from a file, and a query for the facts should not wait for files.
        self._versions = {name: importlib.metadata.version(name) for name in self.LIBRARIES}

    @torch.no_grad()
    def generate(self, job, tokens):
        self.check_job(job)
        with explain_memory_errors(work_of(job), self.device), self.restrict_attention():
            return self.run(job, tokens)

    def check_job(self, job):
        """Refuses a job that this path cannot compute."""
        self._refuse_pads_in_window(job)
        self._refuse_drafts(job)

    def _refuse_pads_in_window(self, job):
        """With padding `right`, pads are between the tokens of a sequence. Refuses them if the batch has more columns than the
        sliding window: the library counts a window in columns, so pads would take the places of tokens."""
        # The last new token is no input, so it needs no column.
        longest = max(len(prompt) for prompt in job.prompts)
        window, columns = self.loaded.window, longest + job.max_new_tokens - 1
        if job.padding != "right" or window is None or columns <= window:
            return
        if any(len(prompt) != longest for prompt in job.prompts):
            problem = f"pads would take places of tokens in its sliding window of {window}"
            raise Failed("unsupported", f"padding `right` with model `{self._folder.name}`: {problem}", 'send `"padding": "left"`')

    def _refuse_drafts(self, job):
        if job.speculation == "off":
            return
        if not self.DRAFTS:
            message = f"`speculation` with path `{self.loaded.options.path}`: only the library's `generate` drafts tokens"
            raise Failed("unsupported", message, "--set path=generate")
        if len(job.prompts) > 1:
            raise Failed("unsupported", "`speculation` in a batch: the library drafts tokens of one sequence only")

    def run(self, job, tokens):
        """Generates all tokens of the job. A path that takes overlapping requests also returns at `tokens.must_end_step()`, with an
        `Unfinished`."""
        raise NotImplementedError

    def check_finite(self, logits):
        """Refuses NaN and infinity in the logits of a request's first token, because `argmax` would still return ids.
        `logits`: [sequences, vocabulary]."""
        # The maximum is NaN if any logit is NaN. Some models exclude ids with -inf, which is allowed.
        if not bool(torch.isfinite(logits.amax(-1)).all()):
            problem = f"its weights lead to logits that are not finite, in {DTYPE_NAMES[logits.dtype]}"
            # The cause may be an overflow of a narrow dtype.
            f32_may_help = logits.dtype != torch.float32 and self.loaded.options.quantize == "none"
            raise Failed("model", f"model `{self.loaded.folder.name}`: {problem}", "--dtype f32" if f32_may_help else None)

    def prepare(self, phases):
        """Prepares this path once, at the load."""

    @contextmanager
    def restrict_attention(self):
        """With attention `flash`, allows only PyTorch's own flash kernel; there is no fallback."""
        if self.loaded.options.attention != "flash":
            yield
            return
        try:
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
                yield
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            cause = f"PyTorch's flash kernel cannot compute this on {self.device}; on CUDA it supports neither pads nor f32"
            raise Failed("unsupported", f"attention `flash`: {cause}", "--set attention=sdpa") from None

    @torch.no_grad()
    def score(self, ids):
        with explain_memory_errors(f"score ({len(ids)} tokens)", self.device), self.restrict_attention():
            sequence = torch.tensor([ids], device=self.device)
            logits = self.network(input_ids=sequence, use_cache=False).logits[0, :-1]  # [tokens - 1, vocabulary]
            targets = torch.tensor(ids[1:], device=logits.device)
            values = []
            for rows, row_targets in zip(logits.split(MAX_SCORE_ROWS), targets.split(MAX_SCORE_ROWS)):
                values += logprobs(rows, row_targets)
        return values

    def facts(self):
        loaded = self.loaded
        facts = {
            "device": str(self.device),
            "weights_dtype": loaded.weights.weights_dtype,
            "compute_dtype": loaded.weights.compute_dtype,
            "kv_dtype": DTYPE_NAMES[loaded.dtype],
            "threads": torch.get_num_threads(),
            "architecture": loaded.folder.architecture,
            "context_tokens": loaded.context_tokens,
            "use_cache": True,
            "prefix_cache": False,
            "weights_bytes": loaded.weights.weights_bytes,
            "parameters": loaded.weights.parameters,
            "vocabulary_size": loaded.folder.vocabulary_size,
            "hidden_size": loaded.folder.hidden_size,
            **loaded.folder.dimensions,
            "eos_ids": loaded.folder.eos_ids,
            "bos_id": loaded.folder.bos_id,
            "libraries": {**self._versions, **self.effects()},
        }
        if self.device.type == "cuda":
            facts["device_memory"] = device_memory(loaded.devices)
        return {name: value for name, value in facts.items() if value is not None}

    def effects(self):
        """The effects of options and defaults as texts, such as the kind of decode step. The facts have no field for them, so
        they are in `libraries`, beside the versions."""
        threads = str(torch.get_num_interop_threads())
        return {**self.loaded.effects, "overlapping requests": self.overlap, "inter-op threads": threads}


def work_of(job):
    """The work of a job, for messages about memory."""
    longest = max(len(prompt) for prompt in job.prompts)
    return f"generate ({len(job.prompts)} x {longest} tokens and {job.max_new_tokens} new ones)"


def logprobs(logits, ids):
    """The log-probability of one id in each row of logits."""
    return torch.log_softmax(logits.double(), -1).gather(1, ids[:, None])[:, 0].tolist()


def make_batch(prompts, padding, device, pad_id=0):
    """The prompts as tensors `ids` and `mask` [sequences, columns]; the mask is None without padding."""
    columns = max(len(prompt) for prompt in prompts)
    is_ragged = any(len(prompt) != columns for prompt in prompts)
    rows = [_pad(prompt, columns - len(prompt), padding, pad_id) for prompt in prompts]
    ids = torch.tensor([ids for ids, _ in rows], device=device)
    mask = torch.tensor([mask for _, mask in rows], device=device) if is_ragged else None
    return SimpleNamespace(ids=ids, mask=mask, sequences=len(prompts), columns=columns)


def _pad(prompt, pad_count, padding, pad_id):
    pads, masked = [pad_id] * pad_count, [0] * pad_count
    if padding == "left":
        return pads + prompt, masked + [1] * len(prompt)
    # The last token stays in the last column, from which `generate` predicts the next token. Positions follow the mask,
    # so each sequence is computed as if it were alone.
    return prompt[:-1] + pads + prompt[-1:], [1] * (len(prompt) - 1) + masked + [1]


def mask_positions(mask):
    """The position of each token in its sequence, without the pads."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


class TokenChooser:
    """Chooses ids from logits [sequences, vocabulary]: the lowest id among the largest logits, or by the kit's sampler
    on the host."""

    def __init__(self, job, tokens):
        self._sampler = None if job.sampling is None else Sampler(job.sampling)
        self._tokens = tokens

    @property
    def is_sampling(self):
        return self._sampler is not None

    def __call__(self, logits):
        if self._sampler is None:
            # `argmax` returns the first of equal logits, which has the lowest id.
            return logits.argmax(-1)
        rows = logits.float().tolist()
        return torch.tensor([self.sample(sequence, row) for sequence, row in enumerate(rows)], device=logits.device)

    def sample(self, sequence, row):
        """The next id of one sequence. `row`: its logits as a list."""
        # A finished sequence uses no random number, as if it were absent.
        return 0 if self._tokens.is_done(sequence) else self._sampler.pick(row, sequence)


def push_ids(tokens, ids):
    """Pushes one new id to each unfinished sequence. Returns whether all sequences are done."""
    for sequence, id in enumerate(ids):
        if not tokens.is_done(sequence):
            tokens.push(sequence, id)
    return tokens.all_done()
