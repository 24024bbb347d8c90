"""One `generate`, from its first iteration to its answer: warm-up, iterations, and the clock of each. Single requests and
overlapping requests take the same steps."""

import engine_kit_checks as checks
from engine_kit_summary import summarise
from engine_kit_tokens import Job, Tokens, is_greedy


class Run:
    """A `generate` in progress. `conversation` tokenises, writes, and tracks cancels."""

    def __init__(self, conversation, request, clock):
        self._conversation, self.request, self._clock = conversation, request, clock
        # The prompts are texts or ids; the other field is None.
        self._texts = prompt_texts(request)
        self._ids = request.prompts_ids if request.prompt_ids is None else [request.prompt_ids]
        self._warmup, self._iterations = [], []
        self.loaded = self.tokens = None

    def begin(self, check_cancel=None, check_step=None):
        """Begins the next iteration: reads the clock, tokenises texts, then checks the ids."""
        request, conversation = self.request, self._conversation
        start_ns = self._clock() - request.read_ns
        prompts = self._ids
        if prompts is None:
            prompts = [conversation.encode(text, request, index) for index, text in enumerate(self._texts)]
        checks.check_prompts(prompts, request, conversation.capabilities(), conversation.facts)
        # Requests can express greedy decoding in several ways; an engine always gets None.
        sampling = None if is_greedy(request.sampling) else request.sampling
        job = Job(
            prompts,
            request.max_new_tokens,
            sampling,
            request.ignore_eos,
            request.use_cache,
            request.padding,
            request.speculation,
            request.prefix_cache,
        )
        self.tokens = Tokens(
            job,
            conversation.facts.get("eos_ids") or (),
            request.read_ns,
            start_ns,
            self._stream if request.stream and not self._is_warmup() else None,
            (lambda: check_cancel(self)) if check_cancel else None,
            self._clock,
            conversation.planted_delay_ns,
            (lambda: check_step(self)) if check_step else None,
        )
        return job, self.tokens

    def end(self):
        """Ends the current iteration. The caller calls this as soon as the engine is done."""
        (self._warmup if self._is_warmup() else self._iterations).append(self.tokens.iteration())

    def _is_warmup(self):
        return len(self._warmup) < self.request.warmup

    def is_finished(self):
        """Whether all iterations are done, or the request was cancelled."""
        return len(self._iterations) == self.request.iterations or self._conversation.is_cancelled(self.request)

    def answer(self, decode, device_memory):
        """The answer. It has text only for prompts in text, because ids need no tokenizer. If a cancel ended the request
        early, the last iteration in it is cancelled, and may have no tokens."""
        if self._texts is not None:
            self._write_texts(decode)
        if len(self._iterations) < self.request.iterations and not _has_cancelled(self._iterations[-1:]):
            self._iterations.append(self._empty_iteration())
        answer = {"type": "generated", "iterations": self._iterations}
        optional = {"warmup_iterations": self._warmup or None, "loaded": self.loaded, "device_memory": device_memory}
        answer.update({name: value for name, value in optional.items() if value is not None})
        return {**answer, "summary": summarise(self._iterations)}

    def _write_texts(self, decode):
        """Adds the text of each sequence, after the last iteration. A request that never ran has no iteration at this time,
        so it does not open the tokenizer."""
        for iteration in self._iterations:
            for sequence in iteration["sequences"]:
                if (text := decode(sequence["output_ids"])) is not None:
                    sequence["text"] = text

    def _stream(self, sequence, index, id, ns):
        position = {"iteration": len(self._iterations), "sequence": sequence, "index": index}
        self._conversation.write_for(self.request, {"type": "token", **position, "ids": [id], "ns": ns})

    def _empty_iteration(self):
        """An iteration that was cancelled before it began. Texts were not tokenised for it, so they count as 0 tokens."""
        now_ns = self._clock() - self.request.read_ns
        lengths = [len(ids) for ids in self._ids] if self._texts is None else [0] * len(self._texts)
        empty = {"output_ids": [], "token_ns": [], "finish": "cancelled"}
        sequences = [{"prompt_tokens": length, **empty} for length in lengths]
        return {"start_ns": now_ns, "end_ns": now_ns, "sequences": sequences}


def prompt_texts(request):
    """The prompts of a `generate`, if they are text."""
    return [request.prompt] if request.prompt is not None else request.prompts


def _has_cancelled(iterations):
    return any(sequence["finish"] == "cancelled" for iteration in iterations for sequence in iteration["sequences"])
