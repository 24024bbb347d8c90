"""A loaded model: passes requests to the library, and the library's responses to the kit."""

import threading
from types import SimpleNamespace

import library
import processes
from engine_kit import Failed, Model
from model_folder import FolderTokenizerMixin
from reader import Reader

# The time for the library to shut down. The orchestrator ends an engine five seconds after its `bye`.
SHUTDOWN_TIMEOUT_S = 3.0

# The slot of a request that runs alone. The kit gives slots only to requests that may overlap others.
SINGLE_SLOT = "single"


class LoadedModel(FolderTokenizerMixin, Model):
    def __init__(self, llm, folder, settings, facts, workers):
        self._llm, self._folder, self._settings, self._facts, self._workers = llm, folder, settings, facts, workers
        self._reader = Reader(llm)
        # The sequences of each slot. Responses of closed sequences are no longer passed on.
        self._sequences = {}
        self._peak_bytes, self._worker_failure = 0, None

    # The methods that the kit calls.

    def generate(self, job, tokens):
        self.admit(SINGLE_SLOT, job)
        try:
            while not tokens.all_done():
                self._push_responses(lambda slot: tokens)
        finally:
            self.leave(SINGLE_SLOT)

    def admit(self, slot, job):
        if self._worker_failure is not None:
            raise self._worker_failure
        max_batch = self._settings.max_batch
        if len(job.prompts) > max_batch:
            raise Failed("unsupported", f"a batch of {len(job.prompts)}: `max_batch` of this load is {max_batch}")
        params = library.sampling_params(job, self._folder.eos_ids)
        sequences = [
            SimpleNamespace(
                slot=slot, index=index, prompt=prompt, ignore_eos=job.ignore_eos, is_closed=False, reader_task=None
            )
            for index, prompt in enumerate(job.prompts)
        ]
        self._sequences[slot] = sequences
        try:
            self._reader.submit(sequences, params, self._check_workers)
        except Failed:
            # Some sequences of a batch may run already, and the kit does not call `leave` for a failed `admit`.
            self.leave(slot)
            raise

    def step(self, tokens):
        self._push_responses(lambda slot: tokens[slot])

    def leave(self, slot):
        """Waits until every sequence has ended inside the library, before the next request begins."""
        running = [sequence for sequence in self._sequences.pop(slot, []) if not sequence.is_closed]
        for sequence in running:
            sequence.is_closed = True
        if running and self._worker_failure is None:
            self._reader.abort(running)
        elif running:  # Without its worker processes the library ends no sequence, so waiting would be useless.
            self._reader.abort(running, timeout_s=0)

    def score(self, ids):
        if self._worker_failure is not None:
            raise self._worker_failure
        if self._settings.backend == "tensorrt" and not self._settings.context_logits:
            message = "`score`: this TensorRT engine was built without context logits, which slow down every prompt"
            raise Failed("unsupported", message, "--set context_logits=true")
        if len(ids) - 1 > library.MAX_STEP_TOKENS:
            limit = library.MAX_STEP_TOKENS + 1
            raise Failed("unsupported", f"`score`: {len(ids)} ids, but one pass computes at most {limit}")
        # The logits at one id give the probabilities of the next, so the last id is not computed.
        logits = self._reader.context_logits(ids[:-1], self._first_eos_id_or_zero(), self._check_workers)
        return library.logprobs(logits, ids[1:], self._folder.vocabulary_size)

    def facts(self):
        facts = dict(self._facts)
        used = processes.used_bytes(self._workers.all)
        if used is not None:
            self._peak_bytes = max(self._peak_bytes, used)
            # The KV pool is allocated at the load, so memory in use equals reserved memory.
            facts["device_memory"] = {"in_use_bytes": used, "peak_bytes": self._peak_bytes, "reserved_bytes": used}
        # The orchestrator itself finds the descendants of this process.
        if self._workers.non_descendants:
            facts["pids"] = sorted(self._workers.non_descendants)
        return facts

    def close(self):
        """Gives the library time to shut down, then kills the remaining worker processes."""
        shutdown = threading.Thread(target=library.shutdown, args=(self._llm,), daemon=True)
        shutdown.start()
        shutdown.join(SHUTDOWN_TIMEOUT_S)
        processes.kill(self._workers)
        # The reader is closed last: the library may send responses until its processes have ended.
        self._reader.close()

    # The responses, from the reader to the kit.

    def _push_responses(self, tokens_of_slot):
        """Waits for responses, and pushes all that have arrived. Returns after at most a second, so that the kit can cancel a
        request."""
        responses = self._reader.take()
        if not responses:
            self._check_workers()
        for sequence, response in responses:
            # A response may arrive after its sequence was aborted.
            if not sequence.is_closed:
                self._push(sequence, response, tokens_of_slot(sequence.slot))

    def _push(self, sequence, response, tokens):
        if response is None:
            sequence.is_closed = True
            raise Failed("device", "TensorRT-LLM ended a request without a final response", "send `load` again")
        if isinstance(response, Exception):
            sequence.is_closed = True
            raise library.failure(response, library.GENERATING)
        index, sequence.is_closed = sequence.index, response.finish_reason is not None
        kit_is_done = tokens.is_done(index)
        for id in response.ids:
            if kit_is_done and tokens.cancelled:
                return
            kit_is_done = tokens.push(index, id, response.at_ns)
        if response.finish_reason is None:
            return
        if response.cached_tokens is not None:
            tokens.set_cached_prompt_tokens(index, response.cached_tokens)
        if response.finish_reason == "stop" and not kit_is_done and not sequence.ignore_eos:
            # The library may remove the EOS id, which belongs to the sequence.
            eos_id = self._first_eos_id_or_zero() if response.stop_id is None else response.stop_id
            kit_is_done = tokens.push(index, eos_id, response.at_ns)
        if not kit_is_done:
            count = f"{len(tokens.ids(index))} tokens of sequence {index}"
            raise Failed("device", f"TensorRT-LLM ended a request after {count}, as `{response.finish_reason}`")

    def _check_workers(self):
        """Fails if a worker process that may use a GPU has ended: the library may wait for its response forever."""
        for pid in self._workers.watched:
            if not processes.is_alive(pid):
                message = f"a worker process of TensorRT-LLM (pid {pid}) has ended"
                self._worker_failure = Failed("device", message, "send `load` again")
                raise self._worker_failure

    def _first_eos_id_or_zero(self):
        """Zero for a model without EOS ids: its sequences do not stop at an EOS id, and `score` uses only the logits."""
        return next(iter(self._folder.eos_ids), 0)
