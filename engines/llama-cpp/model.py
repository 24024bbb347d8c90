"""A loaded model: greedy or sampled tokens one at a time, scores, and the facts in effect."""

import os

import llama_cpp.llama_cpp as bindings
import numpy

import library
from engine_kit import Model, Sampler

# The dtype to which llama.cpp rounds activations for weights of a dtype; products use both unchanged.
COMPUTED_IN = {"f32": "f32", "f16": "f16", "bf16": "bf16"}


class LlamaModel(Model):
    def __init__(self, weights, text, rooms, options, context_tokens):
        self._weights, self._text, self._rooms = weights, text, rooms
        self._options, self._context_tokens = options, context_tokens
        self._facts = self._stated()

    def generate(self, job, tokens):
        pick = self._picking(job)
        longest = max(map(len, job.prompts)) + job.max_new_tokens
        room = self._rooms.of(len(job.prompts), longest)
        if not job.use_cache:
            return recompute(room, job, tokens, pick)
        lengths = [len(prompt) for prompt in job.prompts]
        rows, alive = room.fill(job.prompts), range(len(job.prompts))
        while True:
            following = []
            for sequence, logits in zip(alive, rows):
                id = pick(logits, sequence)
                if not tokens.push(sequence, id):
                    following.append((sequence, lengths[sequence], id))
                    lengths[sequence] += 1
            if not following:
                return
            alive = [sequence for sequence, _, _ in following]
            rows = room.step(following)

    def _picking(self, job):
        if job.sampling is None:
            # Among equal logits `argmax` takes the first, which is the lowest id.
            return lambda logits, sequence: int(logits.argmax())
        sampler = Sampler(job.sampling)
        return lambda logits, sequence: sampler.pick(logits.tolist(), sequence)

    def score(self, ids):
        logprobs = [0.0] * (len(ids) - 1)

        def take(position, logits):
            wide = logits.astype(numpy.float64)
            largest = wide.max()
            logprobs[position] = float(wide[ids[position + 1]] - largest - numpy.log(numpy.exp(wide - largest).sum()))

        # The last token needs no logits.
        self._rooms.for_scores(len(ids)).fill([ids[:-1]], every=take)
        return logprobs

    def encode(self, text):
        return self._text.encode(text)

    def decode(self, ids):
        return self._text.decode(ids)

    def facts(self):
        return dict(self._facts)

    def _stated(self):
        weights, room = self._weights, self._rooms.one
        handle, dtype = weights.handle, weights.dtype()
        facts = {
            "device": "cpu",
            "weights_dtype": dtype,
            "compute_dtype": COMPUTED_IN.get(dtype, "q8_k" if "_k" in dtype else "q8_0"),
            "kv_dtype": self._options.kv,
            "architecture": weights.metadata("general.architecture"),
            "threads": room.threads(),
            "context_tokens": self._context_tokens,
            "use_cache": True,
            "prefix_cache": False,
            "weights_bytes": bindings.llama_model_size(handle),
            "parameters": bindings.llama_model_n_params(handle),
            "vocabulary_size": weights.vocabulary_size,
            "hidden_size": bindings.llama_model_n_embd(handle),
            "eos_ids": self._text.eos_ids,
            "libraries": library.versions(),
            "batch_tokens": room.batch_tokens,
            "pass_tokens": room.pass_tokens,
            "attention": self._options.attention,
            "repack": self._options.repack,
            "pin": self._options.pin,
            "file": os.fspath(weights.file),
        }
        if self._text.bos_id is not None:
            facts["bos_id"] = self._text.bos_id
        return facts


def recompute(room, job, tokens, pick):
    """Computes every whole sequence again for every token."""
    whole = [list(prompt) for prompt in job.prompts]
    alive = list(range(len(whole)))
    while alive:
        room.clear()
        # The slots of finished sequences go to others.
        rows = room.fill([whole[sequence] for sequence in alive])
        going = []
        for sequence, logits in zip(alive, rows):
            id = pick(logits, sequence)
            whole[sequence].append(id)
            if not tokens.push(sequence, id):
                going.append(sequence)
        alive = going
