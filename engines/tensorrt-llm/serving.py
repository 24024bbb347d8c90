"""A running engine: requests go to the library as they come, and results go to the kit as they come."""

import threading
from functools import cached_property
from types import SimpleNamespace

import library
import machine
import errors
from engine_kit import Failed, Model
from model_folder import read_tokenizer
from reader import Reader

# The time for the library to end its worker processes. The orchestrator ends an engine five seconds after `shutdown`.
CLOSE_S = 3.0

# The slot of a request that runs alone.
SINGLE_SLOT = "alone"


class Serving(Model):
    def __init__(self, llm, folder, loaded, workers):
        self._llm, self._folder, self._loaded, self._workers = llm, folder, loaded, workers
        self._reader = Reader(llm)
        # Running sequences, by slot.
        self._flows = {}
        self._peak_bytes, self._worker_failure = 0, None

    # The kit's methods of a model.

    def generate(self, job, tokens):
        self.admit(SINGLE_SLOT, job)
        try:
            while not tokens.all_done():
                self._take(lambda slot: tokens)
        finally:
            self.leave(SINGLE_SLOT)

    def admit(self, slot, job):
        if self._worker_failure is not None:
            raise self._worker_failure
        if len(job.prompts) > self._loaded["max_batch"]:
            limit = self._loaded["max_batch"]
            raise Failed("unsupported", f"a batch of {len(job.prompts)}: `max_batch` of this load is {limit}")
        params = library.sampling_params(job, self._folder.eos_ids)
        flows = [
            SimpleNamespace(slot=slot, sequence=sequence, prompt=prompt, ignore_eos=job.ignore_eos, over=False, task=None)
            for sequence, prompt in enumerate(job.prompts)
        ]
        self._flows[slot] = flows
        try:
            self._reader.begin(flows, params, self._check_workers)
        except Failed:
            # Some sequences of a batch may have begun, and the kit does not call `leave` for a failed `admit`.
            self.leave(slot)
            raise

    def step(self, tokens):
        self._take(lambda slot: tokens[slot])

    def leave(self, slot):
        """Waits until every sequence has ended inside the library, before the next request begins."""
        running = [flow for flow in self._flows.pop(slot, []) if not flow.over]
        for flow in running:
            flow.over = True
        if running and self._worker_failure is None:
            self._reader.end(running)
        elif running:
            self._reader.end(running, 0)

    def score(self, ids):
        if self._worker_failure is not None:
            raise self._worker_failure
        if self._loaded["backend"] == "tensorrt" and not self._loaded["context_logits"]:
            message = "`score`: this TensorRT engine was built without context logits, which slow down every prompt"
            raise Failed("unsupported", message, "load with the option `context_logits = true`")
        if len(ids) - 1 > library.MAX_STEP_TOKENS:
            limit = library.MAX_STEP_TOKENS + 1
            raise Failed("unsupported", f"`score`: {len(ids)} ids, but one pass computes at most {limit}")
        # The logits at one id give the probabilities of the next, so the last id is not computed.
        logits = self._reader.context_logits(ids[:-1], self._end_id(), self._check_workers)
        return library.logprobs(logits, ids[1:], self._folder.vocabulary_size)

    @cached_property
    def _tokenizer(self):
        """Opened by the first text: ids need none."""
        return read_tokenizer(self._folder)

    def encode(self, text):
        if self._tokenizer is None:
            message = f"no tokenizer for model `{self._folder.name}`: it has no `tokenizer.json`"
            raise Failed("model", message, "send `prompt_ids`")
        return self._tokenizer.encode(text).ids

    def decode(self, ids):
        return None if self._tokenizer is None else self._tokenizer.decode(ids)

    def facts(self):
        facts = dict(self._loaded["facts"])
        used = machine.used_bytes(self._workers.all)
        if used is not None:
            self._peak_bytes = max(self._peak_bytes, used)
            # The KV pool is allocated at the load, so memory in use equals reserved memory.
            facts["device_memory"] = {"in_use_bytes": used, "peak_bytes": self._peak_bytes, "reserved_bytes": used}
        if self._workers.elsewhere:
            facts["pids"] = sorted(self._workers.elsewhere)
        return facts

    def close(self):
        """Gives the library time to shut down; then ends the remaining worker processes."""
        shutdown = threading.Thread(target=library.shutdown, args=(self._llm,), daemon=True)
        shutdown.start()
        shutdown.join(CLOSE_S)
        machine.end(self._workers)
        # Closed last: the library may send results as long as it lives.
        self._reader.close()

    # From the reader to the kit.

    def _take(self, slot_tokens):
        """Waits for results and passes all of them to the kit. Also returns after a moment without any, so that a
        cancel is noticed."""
        results = self._reader.take()
        if not results:
            self._check_workers()
        for flow, result in results:
            # A result of an abandoned sequence may come late.
            if not flow.over:
                self._push(flow, result, slot_tokens(flow.slot))

    def _push(self, flow, response, tokens):
        if response is None or isinstance(response, Exception):
            flow.over = True
            raise errors.failure(response, errors.GENERATING) if response else no_end()
        sequence, flow.over = flow.sequence, response.ended is not None
        done = tokens.is_done(sequence)
        for id in response.ids:
            if done and tokens.cancelled:
                return
            done = tokens.push(sequence, id, response.at_ns)
        if response.ended is None:
            return
        if response.cached is not None:
            tokens.set_cached_prompt_tokens(sequence, response.cached)
        if response.ended == "stop" and not done and not flow.ignore_eos:
            # The library may cut off the id that ended a sequence; it belongs to the sequence.
            done = tokens.push(sequence, self._end_id() if response.stop is None else response.stop, response.at_ns)
        if not done:
            count = f"{len(tokens.ids(sequence))} tokens of sequence {sequence}"
            raise Failed("device", f"TensorRT-LLM ended a request after {count}, as `{response.ended}`")

    def _check_workers(self):
        """Checks that the worker processes run: the library may wait forever for a dead one."""
        for pid in self._workers.watched:
            if not machine.is_alive(pid):
                message = f"a worker process of TensorRT-LLM (pid {pid}) has ended"
                self._worker_failure = Failed("device", message, "send `load` again")
                raise self._worker_failure

    def _end_id(self):
        return next(iter(self._folder.eos_ids), 0)


def no_end():
    return Failed("device", "TensorRT-LLM ended a request without a final response", "send `load` again")
