"""The kit's objects for an engine: the job, the receiver of tokens, the timer of a load, and a plain sampler.

This code runs inside the measured time, so it does as little as possible.
"""

import math
import operator
import time
from contextlib import contextmanager

from engine_kit_wire import Failed


class Job:
    """One iteration of a request: the engine generates once for every prompt.

    `prompts`: lists of token ids; no list is empty. `sampling`: None is greedy, else `temperature`, `top_k` (0 keeps all),
    `top_p` (None keeps all) and `seed`. `ignore_eos`: whether sequences continue after EOS. `Tokens.push` obeys it; only an
    engine that masks EOS reads it. `max_new_tokens`, `use_cache`, `padding`, `speculation` and `prefix_cache` are those of the
    request.
    """

    def __init__(self, prompts, max_new_tokens, sampling=None, ignore_eos=False, use_cache=True, padding="left",
                 speculation="off", prefix_cache=False):
        self.prompts, self.max_new_tokens, self.sampling = prompts, max_new_tokens, sampling
        self.ignore_eos, self.use_cache, self.padding, self.speculation = ignore_eos, use_cache, padding, speculation
        self.prefix_cache = prefix_cache


class Tokens:
    """Receives and timestamps the new tokens, and decides when a sequence is done. Timestamps count from `zero_ns`, the time
    at which the request was read."""

    def __init__(self, job, eos_ids, zero_ns, start_ns, stream=None, check_cancel=None, clock=time.perf_counter_ns,
                 planted_delay_ns=0, check_step=None):
        self._eos_ids = frozenset() if job.ignore_eos else frozenset(eos_ids)
        self._max_new_tokens, self._zero_ns, self._clock = job.max_new_tokens, zero_ns, clock
        self._start_ns, self._stream, self._check_cancel, self._contract_error = start_ns, stream, check_cancel, None
        self._check_step, self._error = check_step, None
        # The sequences of the answer, except that `finish` is None until a sequence is done.
        empty = ({"prompt_tokens": len(prompt), "output_ids": [], "token_ns": [], "finish": None} for prompt in job.prompts)
        self._sequences = list(empty)
        self._planted_delay_ns = planted_delay_ns
        # Set when the request is cancelled. `push` checks this; an engine checks only in long work without a `push`.
        self.cancelled = False

    def push(self, sequence, id, at_ns=None):
        """Takes a new token of `sequence`, as soon as the host can use its id. Returns True if the sequence is done.
        `at_ns` is the time at which another thread received the token, by `time.perf_counter_ns`."""
        if type(id) is not int:
            # The conversion may wait for a device, so it comes before the timestamp.
            id = operator.index(id)
        state = self._sequences[sequence]
        ids = state["output_ids"]
        if self._planted_delay_ns and ids:
            _wait(self._planted_delay_ns)
            at_ns = None
        ns = (self._clock() if at_ns is None else at_ns) - self._zero_ns
        # With a coarse clock, the first token may have the time of the start. The protocol requires a later time.
        ns = max(ns, state["token_ns"][-1] if ids else self._start_ns + 1)
        if state["finish"] is not None:
            self._contract_error = self._contract_error or f"a token for sequence {sequence} after it was done"
            return True
        ids.append(id)
        state["token_ns"].append(ns)
        if self._check_cancel is not None:
            self._check_cancel()
        if id in self._eos_ids:
            state["finish"] = "eos"
        elif len(ids) == self._max_new_tokens:
            state["finish"] = "length"
        elif self.cancelled:
            state["finish"] = "cancelled"
        # The token is written after its timestamp, so the time of writing counts in the time of the next token.
        if self._stream is not None:
            self._stream(sequence, len(ids) - 1, id, ns)
        return state["finish"] is not None

    def is_done(self, sequence):
        return self._sequences[sequence]["finish"] is not None

    def all_done(self):
        return self._error is not None or all(state["finish"] is not None for state in self._sequences)

    def must_end_step(self):
        """Whether a `step` that pushes several tokens of its only request must return: the request is cancelled, or another one
        can start."""
        return self._check_step is not None and self._check_step()

    def fail(self, error):
        """Ends this request with an exception, while the other requests in the step continue."""
        self._error = error

    def ids(self, sequence):
        """The tokens of a sequence so far."""
        return self._sequences[sequence]["output_ids"]

    def set_cached_prompt_tokens(self, sequence, tokens):
        """Sets the number of prompt tokens that came from the cache of an earlier request."""
        self._sequences[sequence]["cached_prompt_tokens"] = tokens

    def set_drafts(self, sequence, drafted, accepted):
        """Sets how many tokens of a sequence were drafted so far, and how many of these were accepted. An engine calls this for a
        request with `speculation`."""
        self._sequences[sequence].update(drafted_tokens=drafted, accepted_tokens=accepted)

    def iteration(self):
        """Ends the iteration and returns its object for the answer. Raises the exception of `fail`, or `Failed` if the engine broke
        the contract, for example if it returned before a sequence was done."""
        if self._error is not None:
            raise self._error
        last_ns = [state["token_ns"][-1] for state in self._sequences if state["token_ns"]]
        end_ns = max([self._clock() - self._zero_ns, *last_ns])
        if self._contract_error is not None:
            raise Failed("internal", f"the engine returned {self._contract_error}")
        for index, state in enumerate(self._sequences):
            if state["finish"] is None and not self.cancelled:
                count = f"{len(state['output_ids'])} of {self._max_new_tokens} tokens of sequence {index}"
                raise Failed("internal", f"the engine returned {count} and stopped")
            state["finish"] = state["finish"] or "cancelled"
        return {"start_ns": self._start_ns, "end_ns": end_ns, "sequences": self._sequences}


def _wait(ns):
    """Waits `ns` nanoseconds. A sleep ends about 0.1 ms late, so the last 0.2 ms are a busy wait."""
    until_ns = time.perf_counter_ns() + ns
    time.sleep(max(0, ns - 200_000) / 1e9)
    while time.perf_counter_ns() < until_ns:
        pass


class Phases:
    """Times the parts of a load, and reports progress: `with phases.time("weights"): ...`."""

    def __init__(self, progress=None):
        self.times, self._progress = [], progress

    @contextmanager
    def time(self, name):
        self.progress(name)
        start = time.perf_counter_ns()
        yield
        self.times.append({"name": name, "ns": time.perf_counter_ns() - start})

    def progress(self, phase, fraction=None, note=None):
        if self._progress is not None:
            facts = {"type": "progress", "phase": phase, "fraction": fraction, "note": note}
            self._progress({name: value for name, value in facts.items() if value is not None})


# The lowest temperature that samples. Below this temperature, a logit divided by the temperature can overflow an f32, and only
# the largest logit has any weight.
GREEDY_BELOW = 1e-30


def is_greedy(sampling):
    """Whether there is no sampling, or its temperature is 0 or so small that it counts as 0."""
    return sampling is None or sampling.temperature < GREEDY_BELOW


class Sampler:
    """Picks a token from logits (any sequence of numbers). The Rust kit picks the same token from the same seed and the
    same logits, unless these have NaN. Greedy takes the lowest id among equals.

    Every sequence of a batch has its own random numbers, so that its tokens do not depend on the other sequences. An engine
    makes a sampler for each call of `generate`, so that every iteration begins with the seed again.
    """

    def __init__(self, sampling):
        self._sampling, self._uniforms = sampling, {}

    def pick(self, logits, sequence=0):
        if is_greedy(self._sampling):
            # `max` keeps the first of equals, which is the lowest id.
            return max(range(len(logits)), key=logits.__getitem__)
        if sequence not in self._uniforms:
            self._uniforms[sequence] = uniforms(self._sampling.seed, sequence)
        return _draw(logits, self._sampling, next(self._uniforms[sequence]))


_LOW_64_BITS = 2**64 - 1


def uniforms(seed, sequence):
    """Numbers in [0, 1) by SplitMix64: the same seed gives the same numbers everywhere."""
    state = seed ^ (sequence * 0xD1B5_4A32_D192_ED03 & _LOW_64_BITS)
    while True:
        state = state + 0x9E37_79B9_7F4A_7C15 & _LOW_64_BITS
        bits = (state ^ state >> 30) * 0xBF58_476D_1CE4_E5B9 & _LOW_64_BITS
        bits = (bits ^ bits >> 27) * 0x94D0_49BB_1331_11EB & _LOW_64_BITS
        yield ((bits ^ bits >> 31) >> 11) / 2**53


def _draw(logits, sampling, uniform):
    """Draws a token: temperature, then the `top_k` most probable tokens, then as few of them as reach `top_p`."""
    largest = max(logits)
    weights = [(id, math.exp((logit - largest) / sampling.temperature)) for id, logit in enumerate(logits)]
    by_probability = lambda pair: (-pair[1], pair[0])
    if sampling.top_k:
        weights.sort(key=by_probability)
        del weights[sampling.top_k :]
    if sampling.top_p is not None and sampling.top_p < 1:
        target, total = sampling.top_p * _sum(weights), 0.0
        weights.sort(key=by_probability)
        for count, (_, weight) in enumerate(weights, 1):
            total += weight
            if total >= target:
                # The token with which the sum reaches the target stays.
                del weights[count:]
                break
    remainder = uniform * _sum(weights)
    for id, weight in weights:
        remainder -= weight
        if remainder < 0:
            return id
    # Rounding can leave a small remainder. It goes to the last token with any weight.
    return next(id for id, weight in reversed(weights) if weight > 0)


def _sum(weights):
    # A plain loop, because Python's `sum` rounds less from 3.12 on. A sum that differs can pick another token.
    total = 0.0
    for _, weight in weights:
        total += weight
    return total
