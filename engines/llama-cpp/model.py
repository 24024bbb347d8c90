"""A loaded model: generates in slots, scores ids, converts texts, and reports the configuration in effect."""

import os

import llama_cpp.llama_cpp as bindings
import numpy

import library
from engine_kit import Model, Sampler, check_logit
from slots import Slots


class LlamaModel(Model):
    def __init__(self, weights, tokenizer, contexts, options, max_tokens):
        self._weights, self._tokenizer, self._contexts, self._slots = weights, tokenizer, contexts, Slots(contexts)
        self._options, self._max_tokens = options, max_tokens
        self._facts = self._read_facts()

    def generate(self, job, tokens):
        self.admit(0, job)
        try:
            while not tokens.all_done():
                self.step([tokens])
        finally:
            self.leave(0)

    def admit(self, slot, job):
        self._slots.admit(slot, job, self._chooser(job))

    def step(self, tokens):
        self._slots.step(tokens)

    def leave(self, slot):
        self._slots.leave(slot)

    def _chooser(self, job):
        """The function that chooses an id from the logits of a sequence."""
        name, sampler = self._weights.file.name, Sampler(job.sampling)

        def choose(logits, sequence):
            # Among equal logits `argmax` takes the first, which is the lowest id. If a logit is NaN, `argmax` takes it.
            largest = int(logits.argmax())
            check_logit(logits[largest], name)
            return largest if job.sampling is None else sampler.pick(logits.tolist(), sequence)

        return choose

    def score(self, ids):
        # No id follows the last one, so its logits are not computed.
        context, logprobs, name = self._contexts.scoring_context(len(ids)), [], self._weights.file.name
        for start in range(0, len(ids) - 1, context.batch_tokens):
            part = ids[start : min(start + context.batch_tokens, len(ids) - 1)]
            for next_id, logits in zip(ids[start + 1 :], context.compute([(0, start, part, len(part))])):
                largest = logits.max()
                check_logit(largest, name)
                shifted = logits.astype(numpy.float64) - largest
                logprobs.append(float(shifted[next_id] - numpy.log(numpy.exp(shifted).sum())))
        return logprobs

    def encode(self, text):
        return self._tokenizer.encode(text)

    def decode(self, ids):
        return self._tokenizer.decode(ids)

    def facts(self):
        return dict(self._facts)

    def _read_facts(self):
        weights, context = self._weights, self._contexts.single
        handle, dtype = weights.handle, weights.dtype()
        facts = {
            "device": "cpu",
            "weights_dtype": dtype,
            "compute_dtype": compute_dtype(dtype),
            "kv_dtype": self._options.kv,
            "architecture": weights.metadata("general.architecture"),
            "threads": context.threads(),
            "context_tokens": self._max_tokens,
            "use_cache": True,
            "prefix_cache": False,
            "weights_bytes": bindings.llama_model_size(handle),
            "parameters": bindings.llama_model_n_params(handle),
            "vocabulary_size": weights.vocabulary_size,
            "hidden_size": bindings.llama_model_n_embd(handle),
            "layers": bindings.llama_model_n_layer(handle),
            "heads": bindings.llama_model_n_head(handle),
            "kv_heads": bindings.llama_model_n_head_kv(handle),
            "eos_ids": self._tokenizer.eos_ids,
            "libraries": library.versions(),
            "batch_tokens": context.batch_tokens,
            "pass_tokens": context.pass_tokens,
            "attention": self._options.attention,
            "repack": self._options.repack,
            "pin": self._options.pin,
            "file": os.fspath(weights.file),
        }
        if self._tokenizer.bos_id is not None:
            facts["bos_id"] = self._tokenizer.bos_id
        return facts


def compute_dtype(weights_dtype):
    """The dtype to which llama.cpp rounds the activations before a product with these weights."""
    if weights_dtype in ("f32", "f16", "bf16"):
        return weights_dtype
    return "q8_k" if "_k" in weights_dtype else "q8_0"


class Tokenizer:
    """Converts between texts and ids by the vocabulary in the file."""

    def __init__(self, weights):
        self._weights, vocabulary = weights, weights.vocabulary
        # llama.cpp returns a negative id for a token that the vocabulary lacks.
        bos_id = bindings.llama_vocab_bos(vocabulary)
        self.bos_id = bos_id if bos_id >= 0 else None
        ends = [bindings.llama_vocab_eos(vocabulary), bindings.llama_vocab_eot(vocabulary)]
        # llama.cpp also stops at the end of a message, and has no function for its id.
        end_of_message = weights.metadata("tokenizer.ggml.eom_token_id")
        if end_of_message is not None and end_of_message.isdecimal():
            ends.append(int(end_of_message))
        # Several of these may be the same token.
        self.eos_ids = list(dict.fromkeys(id for id in ends if 0 <= id < weights.vocabulary_size))

    def encode(self, text):
        """The ids of a text, with the special tokens that the file adds. A special token spelled in the text becomes its id."""
        utf8 = text.encode()
        size = len(utf8) + 8
        while True:
            ids = (bindings.llama_token * size)()
            count = bindings.llama_tokenize(self._weights.vocabulary, utf8, len(utf8), ids, size, True, True)
            if count >= 0:
                return list(ids[:count])
            # A negative count is the required size.
            size = -count

    def decode(self, ids):
        """The text of ids, without special tokens."""
        tokens = (bindings.llama_token * len(ids))(*ids)
        size = 16 * len(ids) + 16
        while True:
            text = bindings.ctypes.create_string_buffer(size)
            count = bindings.llama_detokenize(self._weights.vocabulary, tokens, len(ids), text, size, True, False)
            if count >= 0:
                return text.raw[:count].decode("utf-8", "replace")
            size = -count
