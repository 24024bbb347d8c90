"""A loaded engine at work: requests go to the library as they come, and what it gives is handed to the kit as it comes.

The library answers through an event loop. That loop runs in this thread and only while the kit waits for tokens, so that
nothing stands between a response and its stamp but the loop itself.
"""

import asyncio
import threading
from types import SimpleNamespace

import library
import machine
import trouble
from engine_kit import Failed, Model

# How often to look whether the worker processes are still there, while none of them says anything.
LOOK_S = 1.0
# How long a request that was given up may take to end inside the library.
END_S = 10.0
# How long the library may take to end its worker processes.
CLOSE_S = 3.0

# The slot of a request that runs alone.
ALONE = "alone"


class Serving(Model):
    def __init__(self, llm, folder, tokenizer, stated, workers):
        self._llm, self._folder, self._tokenizer, self._stated, self._workers = llm, folder, tokenizer, stated, workers
        self._loop = asyncio.new_event_loop()
        # Sequences under way by slot; what came of them and is not handed over yet; whom to wake when something comes.
        self._flows, self._came, self._waiting = {}, [], None
        self._peak_bytes, self._lost = 0, None

    # What the kit asks of a model.

    def generate(self, job, tokens):
        self.admit(ALONE, job)
        try:
            while not tokens.all_done():
                self._take(lambda slot: tokens)
        finally:
            self.leave(ALONE)

    def admit(self, slot, job):
        if self._lost is not None:
            raise self._lost
        if len(job.prompts) > self._stated["max_batch"]:
            most = self._stated["max_batch"]
            raise Failed("unsupported", f"a batch of {len(job.prompts)}: this load was given `max_batch` {most}")
        params = library.sampling_params(job, self._folder.eos_ids)
        flows = [
            SimpleNamespace(slot=slot, sequence=sequence, prompt=prompt, ignore_eos=job.ignore_eos, ended=False, task=None)
            for sequence, prompt in enumerate(job.prompts)
        ]
        self._flows[slot] = flows
        self._run(self._begin(flows, params))

    def step(self, tokens):
        self._take(lambda slot: tokens[slot])

    def leave(self, slot):
        flows = self._flows.pop(slot, [])
        self._run(self._end(flows))
        self._came = [news for news in self._came if news.flow.slot != slot]

    def score(self, ids):
        if self._lost is not None:
            raise self._lost
        if self._stated["backend"] == "tensorrt" and not self._stated["context_logits"]:
            message = "`score`: this TensorRT engine was built without context logits, which make every prompt dearer"
            raise Failed("unsupported", message, "load with the option `context_logits = true`")
        if len(ids) - 1 > library.TOKENS_AT_ONCE:
            raise Failed("unsupported", f"`score`: {len(ids)} ids, at most {library.TOKENS_AT_ONCE + 1} in one piece")
        # The logits at one id are the probabilities of the next, so the last id is not computed.
        logits = self._run(self._watched(library.context_logits(self._llm, ids[:-1], self._end_id())))
        return library.logprobs(logits, ids[1:], self._folder.vocabulary_size)

    def encode(self, text):
        if self._tokenizer is None:
            why = "it has no `tokenizer.json`" if self._folder.tokenizer is None else "`tokenizers` is not installed"
            raise Failed("model", f"no tokenizer for model `{self._folder.name}`: {why}", "send `prompt_ids`")
        return self._tokenizer.encode(text).ids

    def decode(self, ids):
        return None if self._tokenizer is None else self._tokenizer.decode(ids)

    def facts(self):
        facts = dict(self._stated["facts"])
        held = machine.held_bytes(self._workers.all)
        if held is not None:
            self._peak_bytes = max(self._peak_bytes, held)
            # The pool of keys and values is taken from the start, so what is held is what is reserved.
            facts["device_memory"] = {"in_use_bytes": held, "peak_bytes": self._peak_bytes, "reserved_bytes": held}
        if self._workers.elsewhere:
            facts["pids"] = sorted(self._workers.elsewhere)
        return facts

    def close(self):
        """The library's farewell has its time; a worker process that is still there after it is ended."""
        farewell = threading.Thread(target=library.shutdown, args=(self._llm,), daemon=True)
        farewell.start()
        farewell.join(CLOSE_S)
        machine.end(self._workers)

    # The loop.

    def _run(self, coroutine):
        try:
            return self._loop.run_until_complete(coroutine)
        except Exception as error:
            raise trouble.explained(error, trouble.GENERATING) from error

    async def _begin(self, flows, params):
        for flow in flows:
            flow.result = library.submit(self._llm, flow.prompt, params)
            flow.task = asyncio.ensure_future(self._follow(flow))

    async def _follow(self, flow):
        """Collects what comes of one sequence, in the order in which it comes."""
        try:
            async for ids, ended, stop in library.news(flow.result):
                flow.ended = flow.ended or ended is not None
                self._came.append(SimpleNamespace(flow=flow, ids=ids, ended=ended, stop=stop))
                self._wake()
        finally:
            self._wake()

    def _wake(self):
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _take(self, tokens_of):
        """Waits for news, and gives all that there are to the kit, which stamps them now."""
        self._run(self._wait())
        came, self._came = self._came, []
        for news in came:
            self._hand_over(news, tokens_of(news.flow.slot))

    async def _wait(self):
        """Until something came, or for a moment: whoever gave up waiting must be heard too."""
        for flow in [flow for flows in self._flows.values() for flow in flows if flow.task.done() and not flow.ended]:
            # An error ends a sequence without news of it.
            flow.task.result()
            raise Failed("device", "TensorRT-LLM left a request without an end", "send `load` again")
        if self._came:
            return
        self._waiting = self._loop.create_future()
        look = self._loop.call_later(LOOK_S, self._wake)
        await self._waiting
        look.cancel()
        if not self._came:
            self._look()

    def _hand_over(self, news, tokens):
        sequence = news.flow.sequence
        done = tokens.is_done(sequence)
        for id in news.ids:
            if done and tokens.cancelled:
                return
            done = tokens.push(sequence, id)
        if news.ended is None:
            return
        if (cached := library.cached_tokens(news.flow.result)) is not None:
            tokens.set_cached_prompt_tokens(sequence, cached)
        if news.ended == "stop" and not done and not news.flow.ignore_eos:
            # The library may cut off what ended a sequence, which belongs to it.
            done = tokens.push(sequence, self._end_id() if news.stop is None else news.stop)
        if not done:
            count = f"{len(tokens.ids(sequence))} tokens of sequence {sequence}"
            raise Failed("device", f"TensorRT-LLM ended a request after {count}, as `{news.ended}`")

    async def _end(self, flows):
        """Every sequence is over inside the library too before the next request begins."""
        for flow in flows:
            if flow.task is not None and not flow.task.done():
                library.abort(flow.result)
        tasks = [flow.task for flow in flows if flow.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=0 if self._lost else END_S)
            for task in late:
                task.cancel()
            # What became of them was seen, or nobody asks any more.
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watched(self, coroutine):
        task = asyncio.ensure_future(coroutine)
        while not (await asyncio.wait([task], timeout=LOOK_S))[0]:
            self._look()
        return task.result()

    def _look(self):
        """A worker process that died says nothing any more, and the library may wait for it for ever."""
        for pid in self._workers.computing:
            if not machine.is_alive(pid):
                message = f"a worker process of TensorRT-LLM (pid {pid}) has ended"
                self._lost = Failed("device", message, "send `load` again")
                raise self._lost

    def _end_id(self):
        return next(iter(self._folder.eos_ids), 0)
