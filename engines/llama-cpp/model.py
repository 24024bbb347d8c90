"""A loaded model: greedy or sampled tokens one at a time, scores, texts, and the facts in effect."""

import os

import llama_cpp.llama_cpp as bindings
import numpy

import library
from engine_kit import Model, Sampler

# The dtype to which llama.cpp rounds activations for weights of a dtype; products use both unchanged.
COMPUTED_IN = {"f32": "f32", "f16": "f16", "bf16": "bf16"}


class LlamaModel(Model):
    def __init__(self, weights, text, contexts, options, context_tokens):
        self._weights, self._text, self._contexts = weights, text, contexts
        self._options, self._context_tokens = options, context_tokens
        self._facts = self._known_facts()

    def generate(self, job, tokens):
        choose = self._choice(job)
        longest = max(map(len, job.prompts)) + job.max_new_tokens
        context = self._contexts.empty(len(job.prompts), longest)
        if not job.use_cache:
            return recompute(context, job, tokens, choose)
        lengths = [len(prompt) for prompt in job.prompts]
        rows, active = context.fill(job.prompts), range(len(job.prompts))
        while True:
            next_tokens = []
            for sequence, logits in zip(active, rows):
                id = choose(logits, sequence)
                if not tokens.push(sequence, id):
                    next_tokens.append((sequence, lengths[sequence], id))
                    lengths[sequence] += 1
            if not next_tokens:
                return
            active = [sequence for sequence, _, _ in next_tokens]
            rows = context.step(next_tokens)

    def _choice(self, job):
        if job.sampling is None:
            # Among equal logits `argmax` takes the first, which is the lowest id.
            return lambda logits, sequence: int(logits.argmax())
        sampler = Sampler(job.sampling)
        return lambda logits, sequence: sampler.pick(logits.tolist(), sequence)

    def score(self, ids):
        logprobs = [0.0] * (len(ids) - 1)

        def add(position, logits):
            wide = logits.astype(numpy.float64)
            largest = wide.max()
            logprobs[position] = float(wide[ids[position + 1]] - largest - numpy.log(numpy.exp(wide - largest).sum()))

        # The last token needs no logits.
        self._contexts.for_scores(len(ids)).fill([ids[:-1]], every=add)
        return logprobs

    def encode(self, text):
        return self._text.encode(text)

    def decode(self, ids):
        return self._text.decode(ids)

    def facts(self):
        return dict(self._facts)

    def _known_facts(self):
        weights, context = self._weights, self._contexts.single
        handle, dtype = weights.handle, weights.dtype()
        facts = {
            "device": "cpu",
            "weights_dtype": dtype,
            "compute_dtype": COMPUTED_IN.get(dtype, "q8_k" if "_k" in dtype else "q8_0"),
            "kv_dtype": self._options.kv,
            "architecture": weights.metadata("general.architecture"),
            "threads": context.threads(),
            "context_tokens": self._context_tokens,
            "use_cache": True,
            "prefix_cache": False,
            "weights_bytes": bindings.llama_model_size(handle),
            "parameters": bindings.llama_model_n_params(handle),
            "vocabulary_size": weights.vocabulary_size,
            "hidden_size": bindings.llama_model_n_embd(handle),
            "eos_ids": self._text.eos_ids,
            "libraries": library.versions(),
            "batch_tokens": context.batch_tokens,
            "pass_tokens": context.pass_tokens,
            "attention": self._options.attention,
            "repack": self._options.repack,
            "pin": self._options.pin,
            "file": os.fspath(weights.file),
        }
        if self._text.bos_id is not None:
            facts["bos_id"] = self._text.bos_id
        return facts


def recompute(context, job, tokens, choose):
    """Computes every whole sequence again for every token."""
    sequences = [list(prompt) for prompt in job.prompts]
    active = list(range(len(sequences)))
    while active:
        context.clear()
        # Unfinished sequences take the slots of finished ones.
        rows = context.fill([sequences[sequence] for sequence in active])
        unfinished = []
        for sequence, logits in zip(active, rows):
            id = choose(logits, sequence)
            sequences[sequence].append(id)
            if not tokens.push(sequence, id):
                unfinished.append(sequence)
        active = unfinished


class Text:
    """Texts and ids, by the vocabulary in the file."""

    def __init__(self, weights):
        self._weights, vocabulary = weights, weights.vocabulary
        valid = lambda id: id if id >= 0 else None
        self.bos_id = valid(bindings.llama_vocab_bos(vocabulary))
        ends = (valid(bindings.llama_vocab_eos(vocabulary)), valid(bindings.llama_vocab_eot(vocabulary)))
        self.eos_ids = list(dict.fromkeys(id for id in ends if id is not None))

    def encode(self, text):
        """Ids with the special tokens that the file adds; special tokens spelled in a text become their ids."""
        utf8 = text.encode()
        size = len(utf8) + 8
        while True:
            ids = (bindings.llama_token * size)()
            count = bindings.llama_tokenize(self._weights.vocabulary, utf8, len(utf8), ids, size, True, True)
            if count >= 0:
                return list(ids[:count])
            size = -count

    def decode(self, ids):
        """The text of ids without special tokens, as in every tokenizer here."""
        tokens = (bindings.llama_token * len(ids))(*ids)
        size = 16 * len(ids) + 16
        while True:
            text = bindings.ctypes.create_string_buffer(size)
            count = bindings.llama_detokenize(self._weights.vocabulary, tokens, len(ids), text, size, True, False)
            if count >= 0:
                return text.raw[:count].decode("utf-8", "replace")
            size = -count
