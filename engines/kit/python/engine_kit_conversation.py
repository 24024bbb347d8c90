"""Takes requests in their order, answers each once (a `cancel` has no answer), and converts errors to failures.

One thread answers all requests. Lines and their timestamps come through a queue. After every token, or every step of
overlapping requests, the thread checks the queue, so that a `cancel` has an effect. This module uses no file descriptor
and no process, so tests run in memory.
"""

import os
import sys
import threading
import time
from collections import deque
from types import SimpleNamespace

import engine_kit_checks as checks
from engine_kit_run import Run, prompt_texts
from engine_kit_summary import summary_lines
from engine_kit_tokens import Phases
from engine_kit_wire import MAX_LINE_BYTES, PROTOCOL, Failed, TooLong, encode, parse_request

# The last item of the queue, which marks the end of the input.
END = object()

# The most lines that a queue holds. When it is full, the reader stops, and later lines wait in the pipe.
MAX_WAITING_LINES = 1024


class Conversation:
    """Answers the requests of an inbox. Its items are `(read_ns, frame)`: the time at which a line was read, and the line as
    `Framer` returns it. The last item is END. `serve` connects the conversation to stdin and stdout."""

    def __init__(self, engine, inbox, write, environment=os.environ, stderr=sys.stderr, clock=time.perf_counter_ns):
        self._engine, self._inbox, self._write_line, self._stderr = engine, inbox, write, stderr
        self._environment, self._clock = environment, clock
        # `_waiting` has the parsed requests that have not started, failures of lines, and END.
        self._waiting, self._unanswered_ids, self._cancelled_ids = deque(), set(), set()
        # The overlapping requests: slot -> Run.
        self._slots = {}
        # The facts of hello are read once, because they do not change.
        self._hello_facts = None
        # `planted_delay_ns` is an artificial delay before each token but the first (load option `planted_delay_us`), to test
        # whether runs detect a slowdown.
        self._model, self.facts, self.planted_delay_ns = None, {}, 0
        # The first request with text opens the tokenizer of the model.
        self._tokenizer_open = False
        # The reason why a `load` left no model. The model of `ORCHESTRATE_MODEL` must not replace the requested model.
        self._load_failure = None
        # Set while an answer is in progress, for the thread that waits for a closed stdout.
        self.working = threading.Event()

    def run(self):
        """Answers until `shutdown` or the end of the input."""
        answer_by_type = {
            "hello": self._answer_hello,
            "load": self._answer_load,
            "generate": self._answer_generate,
            "score": self._answer_score,
            "facts": self._answer_facts,
        }
        while True:
            self._collect(wait=not self._waiting and not self._slots)
            while self._waiting and self._may_start(self._waiting[0]):
                request = self._waiting.popleft()
                if request is END:
                    return
                self.working.set()
                if isinstance(request, Failed):
                    self._fail(request, request.id)
                elif request.type == "shutdown":
                    self.write({"type": "bye"})
                    return
                else:
                    self._answer_or_fail(request, answer_by_type[request.type])
            if self._slots:
                self._step()

    def _answer_hello(self, request):
        self.write({"type": "hello", "protocol": PROTOCOL, **self._hello()})

    def _answer_load(self, request):
        self.write({"type": "loaded", **self._load(request, self.write)})

    def _answer_facts(self, request):
        self.write({"type": "facts", **(self._model.facts() if self._model else {})})

    def _answer_generate(self, request):
        run = Run(self, request, self._clock)
        if self.is_cancelled(request):
            return self._finish(run)
        checks.check_capabilities(request, self.capabilities())
        run.loaded = self._ensure_loaded()
        checks.check_use_cache(request, self.capabilities(), self.facts)
        if self._needs_tokenizer(request):
            self._open_tokenizer()
        if request.id is not None and self.capabilities()["concurrency"] > 1 and hasattr(self._model, "step"):
            return self._admit(run)
        while not run.is_finished():
            job, tokens = run.begin(check_cancel=self._check_cancel)
            self._model.generate(job, tokens)
            run.end()
        self._finish(run)

    def _answer_score(self, request):
        if not self.capabilities()["score"]:
            raise Failed("unsupported", "`score` is not supported by this engine")
        self._ensure_loaded()
        for index, ids in enumerate(request.sequences):
            checks.check_vocabulary(ids, self.facts, f"sequences[{index}]")
            context = self.facts.get("context_tokens")
            if context is not None and len(ids) > context:
                raise Failed("context", f"`sequences[{index}]`: {len(ids)} tokens exceed the context of {context}")
        most_likely = {}
        began_ns = self._clock()
        if request.most_likely and hasattr(self._model, "score_with_most_likely"):
            scored = [self._model.score_with_most_likely(ids) for ids in request.sequences]
            most_likely["most_likely_ids"] = [list(ids) for _, ids, _ in scored]
            most_likely["most_likely_logprobs"] = [list(values) for _, _, values in scored]
            scored = [list(values) for values, _, _ in scored]
        else:
            scored = [list(self._model.score(ids)) for ids in request.sequences]
        ns = self._clock() - began_ns
        pairs = enumerate(zip(scored, request.sequences))
        logprobs = [checks.check_logprobs(values, ids, index) for index, (values, ids) in pairs]
        self.write_for(request, {"type": "scored", "logprobs": logprobs, **most_likely, "ns": ns})

    def _hello(self):
        if self._hello_facts is None:
            facts = dict(self._engine.hello())
            options = {"options": list(self._engine.options)}
            facts["capabilities"] = {**checks.CAPABILITIES, **options, **facts.get("capabilities", {})}
            self._hello_facts = {"output": "ids", "stamp": "token", "deterministic": False, **facts}
        return self._hello_facts

    def capabilities(self):
        return self._hello()["capabilities"]

    def _load(self, request, progress=None):
        """Loads a model, and returns the fields of `loaded`. `progress` is None if the request is not a `load`."""
        began_ns = self._clock()
        failure_reason = f"the load of `{request.model}` failed" if progress is not None else None
        if self._model is None:
            self._load_failure = failure_reason
        checks.check_load(request, self.capabilities(), self._engine)
        # The old model is dropped, even if the load of the new model fails.
        self._model, self.facts, self._load_failure, self._tokenizer_open = None, {}, failure_reason, False
        self.planted_delay_ns = request.planted_delay_ns
        phases = Phases(progress)
        model = self._engine.load(request, phases)
        self.facts = model.facts()
        self._model = model
        return {"load_ns": self._clock() - began_ns, "phases": phases.times, **self.facts}

    def _ensure_loaded(self):
        """Loads the model of `ORCHESTRATE_MODEL` if no model is loaded and no `load` has failed. Returns the fields of `loaded`,
        or None if a model was loaded already."""
        if self._model is not None:
            return None
        if self._load_failure is not None:
            raise Failed("model", f"no model: {self._load_failure}", "send `load` again")
        model, device, dtype, threads = (
            self._environment.get(f"ORCHESTRATE_{name}") or None for name in ("MODEL", "DEVICE", "DTYPE", "THREADS")
        )
        if model is None:
            raise Failed("model", "no model: neither `load` nor `ORCHESTRATE_MODEL` names one", "send `load` first")
        if threads is not None and not (threads.isascii() and threads.isdecimal() and int(threads) > 0):
            raise Failed("bad_request", f"`ORCHESTRATE_THREADS`: expected a number of threads, found `{threads[:80]}`")
        settings = dict(device=device, dtype=dtype, threads=threads and int(threads), context_tokens=None, options={})
        return self._load(SimpleNamespace(model=model, **settings))

    def _needs_tokenizer(self, request):
        return not self._tokenizer_open and prompt_texts(request) is not None

    def _open_tokenizer(self):
        """Makes the model open its tokenizer, before any iteration starts. The text is empty: if it were the
        prompt, a library might tokenise the prompt faster in the measured iteration."""
        self._model.encode("")
        self._tokenizer_open = True

    def encode(self, text, request, index):
        """The ids of a text; an empty text gives BOS alone. `index` is its position among the prompts of the request."""
        ids = self._model.encode(text)
        if ids:
            return ids
        if self.facts.get("bos_id") is None:
            field = checks.prompt_field(request, index)
            raise Failed("bad_request", f"`{field}`: no tokens, and the model has no BOS token")
        return [self.facts["bos_id"]]

    def _finish(self, run):
        """Writes the answer of a finished request. A person may have typed a request without a type, so it also gets a
        summary on stderr."""
        memory = self._model.facts().get("device_memory") if self._model else None
        # Without a model no iteration has run, so there is no text to decode.
        answer = run.answer(self._model.decode if self._model else None, memory)
        self.write_for(run.request, answer)
        if not run.request.has_type:
            self._stderr.write(summary_lines(answer["summary"], answer["iterations"]))
            self._stderr.flush()

    # Overlapping requests: admitted when a slot is free, advanced together, answered when they are done.

    def _may_start(self, request):
        """Whether a request may start. While others run, only a request that may overlap starts; an invalid line is answered
        at once. A request that may not overlap waits, and all requests behind it wait too. A request that opens the tokenizer
        may not overlap, because the time to open it would count in the times of the running requests."""
        if not self._slots or isinstance(request, Failed):
            return True
        has_free_slot = len(self._slots) < self.capabilities()["concurrency"]
        may_overlap = request is not END and request.type == "generate" and request.id is not None
        return may_overlap and has_free_slot and not self._needs_tokenizer(request)

    def _admit(self, run):
        """Puts a request's next iteration into a free slot, or answers the request after its last iteration."""
        if run.is_finished():
            return self._finish(run)
        slot = next(slot for slot in range(len(self._slots) + 1) if slot not in self._slots)
        job, _ = run.begin(check_step=self._must_end_step)
        self._model.admit(slot, job)
        self._slots[slot] = run

    def _step(self):
        self._end_finished()
        if not self._slots:
            return
        # The answer to another request may have cleared `working`.
        self.working.set()
        tokens = [self._slots[slot].tokens if slot in self._slots else None for slot in range(max(self._slots) + 1)]
        try:
            self._model.step(tokens)
        except (Exception, SystemExit) as error:
            # The error does not name a request, so every request in the step fails.
            failed = checks.failure(error)
            for slot, run in list(self._slots.items()):
                self._leave(slot)
                self._fail(failed, run.request.id)
                self._release(run.request)
            return
        self._end_finished()

    def _must_end_step(self, run):
        """Whether a step of several tokens must end: its only request is cancelled, or the next line can be answered."""
        self._check_cancel(run)
        return run.tokens.cancelled or (bool(self._waiting) and self._may_start(self._waiting[0]))

    def _end_finished(self):
        """Ends all finished iterations first, then answers, then begins the next iterations: writing one request's answer
        must not count in the time of another iteration that begins or ends here."""
        ended = []
        for slot, run in self._slots.items():
            run.tokens.cancelled = self.is_cancelled(run.request)
            if run.tokens.cancelled or run.tokens.all_done():
                try:
                    run.end()
                    ended.append((slot, run, None))
                except (Exception, SystemExit) as error:
                    ended.append((slot, run, checks.failure(error)))
        unfinished = []
        for slot, run, failed in ended:
            leave_failed = self._leave(slot)
            failed = failed or leave_failed
            if failed is not None:
                self._fail(failed, run.request.id)
                self._release(run.request)
            elif run.is_finished():
                self._answer_or_fail(run.request, lambda _, run=run: self._finish(run))
            else:
                unfinished.append(run)
        for run in unfinished:
            self._answer_or_fail(run.request, lambda _, run=run: self._admit(run))

    def _leave(self, slot):
        """Removes a request from the model. Returns the failure if the model cannot free the slot."""
        del self._slots[slot]
        try:
            self._model.leave(slot)
        except (Exception, SystemExit) as error:
            return checks.failure(error)
        return None

    def _collect(self, wait=False):
        """Parses the lines in the inbox. With `wait` it first waits for a line."""
        while wait or (len(self._waiting) < MAX_WAITING_LINES and not self._inbox.empty()):
            wait = False
            item = self._inbox.get()
            if item is END:
                return self._waiting.append(END)
            read_ns, frame = item
            try:
                if isinstance(frame, TooLong):
                    raise Failed("bad_request", f"line of {frame.size} bytes is longer than {MAX_LINE_BYTES}")
                request = parse_request(frame)
                request.read_ns = read_ns
                self._accept(request)
            except Failed as failed:
                self._waiting.append(failed)

    def _accept(self, request):
        if request.type == "cancel":
            # A late cancel or an unknown id is ignored: a cancel has no answer, so it cannot fail.
            self._cancelled_ids.update({request.id} & self._unanswered_ids)
            return
        if request.type in ("generate", "score") and request.id is not None:
            if request.id in self._unanswered_ids:
                # This failure has no id, because the answer with that id belongs to the first request.
                raise Failed("bad_request", f"`id`: {request.id!r} belongs to a request that is not answered yet")
            self._unanswered_ids.add(request.id)
        self._waiting.append(request)

    def _check_cancel(self, run):
        if not self._inbox.empty():
            self._collect()
            run.tokens.cancelled = self.is_cancelled(run.request)

    def is_cancelled(self, request):
        return request.id in self._cancelled_ids

    def _answer_or_fail(self, request, answer):
        """Answers a request. Every exception becomes one `failed`, and the engine continues."""
        try:
            answer(request)
        except OutputClosed:
            raise
        except (Exception, SystemExit) as error:
            self._fail(checks.failure(error), request.id)
        if all(run.request is not request for run in self._slots.values()):
            self._release(request)

    def _release(self, request):
        self._unanswered_ids.discard(request.id)
        self._cancelled_ids.discard(request.id)

    def _fail(self, failed, id):
        fields = {"id": id, "kind": failed.kind, "message": failed.message, "hint": failed.hint}
        self.write({"type": "failed", **{name: value for name, value in fields.items() if value is not None}})

    def write_for(self, request, message):
        """Writes an answer, with the id of its request after its type."""
        self.write(message if request.id is None else {"type": message["type"], "id": request.id, **message})

    def write(self, message):
        line = encode(message)
        if len(line) > MAX_LINE_BYTES + 1:
            message = f"the answer of {len(line) - 1} bytes is longer than a line may be ({MAX_LINE_BYTES})"
            raise Failed("bad_request", message, "request fewer iterations or sequences")
        if message["type"] not in ("progress", "token") and not self._slots:
            # Cleared before the answer is sent: a reader that has its answer may close the pipe, and then the process must
            # continue.
            self.working.clear()
        try:
            self._write_line(line)
        except OSError as error:
            raise OutputClosed(str(error)) from error


class OutputClosed(Exception):
    """An answer cannot be written, usually because the reader has closed the pipe."""
