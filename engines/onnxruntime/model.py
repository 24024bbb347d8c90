"""A loaded model: tokens, scores, facts. The library's object `Generator` has the KV cache of one request."""

from typing import NamedTuple

import numpy
import onnxruntime_genai as genai

from engine_kit import Failed, Model, Sampler, check_logit
from model_folder import FolderTokenizerMixin

# The rows of logits whose log-probabilities are computed at once, in f64.
SCORED_ROWS = 32


class Special(NamedTuple):
    """The ids to which the library gives a meaning of its own. It must have an id that ends a sequence, and the model must have
    this id, so `end` is an id that models hardly ever generate. Requests that end at EOS end by the kit."""

    pad: int
    end: int


class OnnxModel(FolderTokenizerMixin, Model):
    def __init__(self, folder, model, special, facts):
        self._folder, self._model, self._special, self._facts = folder, model, special, facts
        self._embedding_rows = folder.vocabulary_size

    def facts(self):
        return dict(self._facts)

    def generate(self, job, tokens):
        sequences = [list(prompt) for prompt in job.prompts]
        sampler = None if job.sampling is None else Sampler(job.sampling)
        generator = None
        for remaining in range(job.max_new_tokens, 0, -1):
            if generator is None:
                generator = self._new_generator(sequences, remaining if job.use_cache else 1)
            if sampler is not None:
                self._choose_by(sampler, generator, tokens)
            if remaining == 1:
                # Weights that are not finite give such logits for every later token, so one check is enough.
                self._check(generator.get_logits())
            generator.generate_next_token()
            ids = generator.get_next_tokens().tolist()
            for sequence, id in enumerate(ids):
                sequences[sequence].append(id)
                if not tokens.is_done(sequence):
                    tokens.push(sequence, id)
            if tokens.all_done():
                if remaining > 1:
                    self._check(generator.get_output("logits")[:, -1])
                return
            generator = self._continued(generator, ids, tokens) if job.use_cache else None

    def _continued(self, generator, ids, tokens):
        """The generator after these ids. The library ends a sequence at the id `end`."""
        ended = [sequence for sequence, id in enumerate(ids) if id == self._special.end and not tokens.is_done(sequence)]
        if not ended:
            return generator
        if len(ids) == 1:
            # An appended token makes the library continue. It computes what it would have computed for the next token.
            generator.append_tokens(numpy.array(ids, numpy.int32))
            return generator
        # The library cannot continue a sequence of a batch, so the next step computes all sequences again.
        return None

    def _new_generator(self, sequences, new_tokens):
        """A generator that has computed these sequences."""
        lengths = [len(ids) for ids in sequences]
        if len(sequences) > 1 and any(ids[-1] == self._special.pad for ids in sequences):
            # The library takes these ids at the end of a sequence of a batch for padding.
            message = f"a batch with a sequence that ends with id {self._special.pad}: the library takes it for padding"
            raise Failed("unsupported", message, "send this prompt alone")
        rows = numpy.full((len(sequences), max(lengths)), self._special.pad, numpy.int32)
        for row, ids in zip(rows, sequences):
            row[: len(ids)] = ids
        parameters = genai.GeneratorParams(self._model)
        parameters.set_search_options(max_length=max(lengths) + new_tokens, batch_size=len(sequences), do_sample=False)
        generator = genai.Generator(self._model, parameters)
        generator.append_tokens(rows if len(sequences) > 1 else rows[0])
        return generator

    def score(self, ids):
        # No id follows the last one, so its logits are not computed.
        logits = self._new_generator([ids[:-1]], 1).get_output("logits")[0]  # [tokens, vocabulary]
        following = numpy.array(ids[1:])
        logprobs = []
        for start in range(0, len(following), SCORED_ROWS):
            rows, chosen = logits[start : start + SCORED_ROWS].astype(numpy.float64), following[start : start + SCORED_ROWS]
            self._check(rows)
            rows -= rows.max(axis=-1, keepdims=True)
            logprobs += (rows[numpy.arange(len(chosen)), chosen] - numpy.log(numpy.exp(rows).sum(axis=-1))).tolist()
        return logprobs

    def _check(self, logits):
        check_logit(float(logits.max()), self._folder.name)

    def _choose_by(self, sampler, generator, tokens):
        """Replaces the logits by others that are largest at the sampled id, so that the library takes it."""
        logits = generator.get_logits()  # [sequences, 1, vocabulary]
        self._check(logits)
        chosen = numpy.zeros_like(logits)
        for sequence, row in enumerate(logits[:, -1]):
            if not tokens.is_done(sequence):
                chosen[sequence, -1, sampler.pick(row.tolist(), sequence)] = 1
        generator.set_logits(chosen)
