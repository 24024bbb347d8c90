"""A loaded model: generates and scores with requests to one pipeline of OpenVINO GenAI."""

import math
import sys

import numpy
import openvino
import openvino_genai
from openvino_genai.py_openvino_genai import GenerationStatus

from engine_kit import Failed, Model, check_logit
from model_folder import FolderTokenizerMixin

# The id that OpenVINO's greedy choice takes if every logit is NaN.
ID_OF_NAN = 0


class OpenVINOModel(FolderTokenizerMixin, Model):
    def __init__(self, folder, pipeline, facts):
        self._folder, self._pipeline, self._facts = folder, pipeline, facts
        self._embedding_rows = folder.vocabulary_size
        self._next_request = 0
        self._last_requests = None

    def facts(self):
        return dict(self._facts)

    def generate(self, job, tokens):
        if job.use_cache:
            self._generate(job, tokens)
        else:
            self._generate_without_cache(job, tokens)
        for sequence, prompt in enumerate(job.prompts):
            # GenAI draws any id if the logits are NaN. The check comes after the last token, so it delays none, and a greedy
            # request rarely needs it.
            if job.sampling is not None or ID_OF_NAN in tokens.ids(sequence):
                self.score([*prompt, *tokens.ids(sequence)])

    def _generate(self, job, tokens):
        requests = Requests(self, job.prompts, [config(job, sequence) for sequence in range(len(job.prompts))])
        with requests:
            while not tokens.all_done():
                for sequence, output in requests.step():
                    for id in output.generated_ids:
                        if not tokens.is_done(sequence) and tokens.push(sequence, id):
                            requests.end(sequence)
        self._last_requests = requests

    def _generate_without_cache(self, job, tokens):
        """Computes every whole sequence again for every token, as a new request."""
        sequences = [list(prompt) for prompt in job.prompts]
        while not tokens.all_done():
            active = [sequence for sequence in range(len(sequences)) if not tokens.is_done(sequence)]
            configs = [config(job, sequence, len(tokens.ids(sequence)), 1) for sequence in active]
            with Requests(self, [sequences[sequence] for sequence in active], configs) as requests:
                outputs = requests.finish()
            for sequence, (ids, _) in zip(active, outputs):
                tokens.push(sequence, ids[0])
                sequences[sequence].extend(ids)

    def score(self, ids):
        # The library returns a value for the first id too, which nothing precedes. It means nothing.
        scoring = generation_config(0)
        scoring.echo, scoring.logprobs = True, 1
        with Requests(self, [ids], [scoring]) as requests:
            ((_, logprobs),) = requests.finish()
        for logprob in logprobs[1:]:
            # NaN if any logit at the position is NaN.
            check_logit(logprob if logprob != -math.inf else 0.0, self._folder.name)
        return logprobs[1:]

    def perf_metrics(self):
        """GenAI's own counters of the last request with a cache, for each sequence. `compare_with_perf_metrics.py` reads them."""
        return self._last_requests.perf_metrics()

    def add(self, prompt, config):
        """The handle of a new request."""
        self._next_request += 1
        ids = openvino.Tensor(numpy.array([prompt], dtype=numpy.int64))
        return self._pipeline.add_request(self._next_request, ids, config)

    def step(self):
        self._pipeline.step()

    def is_busy(self):
        return self._pipeline.has_non_finished_requests()


class Requests:
    """Requests that the pipeline advances together, one for each prompt. At the end of `with`, the pipeline has none of them."""

    def __init__(self, model, prompts, configs):
        self._model = model
        self._handles = [model.add(prompt, config) for prompt, config in zip(prompts, configs)]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for sequence in range(len(self._handles)):
            self.end(sequence)
        # The pipeline drops ended requests in its next step, which computes nothing.
        while self._model.is_busy():
            self._model.step()

    def step(self):
        """Advances all requests. Yields the sequence and the output of each that has a new one."""
        self._model.step()
        has_output = False
        for sequence, handle in enumerate(self._handles):
            while handle.can_read():
                has_output = True
                for output in handle.read().values():
                    yield sequence, output
        if not has_output:
            self._check_progress()

    def _check_progress(self):
        """Fails if the pipeline cannot advance. Without output, it may have computed a part of a prompt."""
        if any(handle.get_status() == GenerationStatus.IGNORED for handle in self._handles):
            raise Failed("out_of_memory", "OpenVINO GenAI has no memory for the keys and values of this request")
        if not self._model.is_busy():
            raise Failed("internal", "OpenVINO GenAI ended its requests before their last token")

    def finish(self):
        """Advances all requests to their ends. Returns the ids and the log-probabilities of each."""
        outputs = [([], []) for _ in self._handles]
        while self._model.is_busy():
            for sequence, output in self.step():
                outputs[sequence][0].extend(output.generated_ids)
                outputs[sequence][1].extend(output.generated_log_probs)
        return outputs

    def end(self, sequence):
        if self._handles[sequence].get_status() == GenerationStatus.RUNNING:
            self._handles[sequence].cancel()

    def perf_metrics(self):
        return [handle.get_perf_metrics() for handle in self._handles]


def config(job, sequence, tokens=0, new_tokens=None):
    """The library's settings for one sequence of a job, from which `tokens` are generated already."""
    config = generation_config(new_tokens or job.max_new_tokens)
    if job.sampling is not None:
        config.do_sample = True
        config.temperature = job.sampling.temperature
        config.top_k = job.sampling.top_k or sys.maxsize
        config.top_p = 1.0 if job.sampling.top_p is None else job.sampling.top_p
        # The library seeds with 32 bits. Each sequence draws by its own seed, and without a cache each token does too.
        config.rng_seed = (job.sampling.seed + 0x9E3779B1 * sequence + 0x85EBCA6B * tokens) % 2**32
    return config


def generation_config(new_tokens):
    """Greedy, to exactly `new_tokens`. The kit ends a sequence at EOS, if the request does not ignore it."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = new_tokens
    config.ignore_eos = True
    config.do_sample = False
    return config
