"""llama.cpp's contexts. A context holds the KV cache of a number of sequences and positions. `llama_decode` does all
the work.
"""

import ctypes

import llama_cpp.llama_cpp as bindings
import numpy

import library
from engine_kit import Failed
from threads import Pool

# The sizes of llama-bench: tokens of one call, and tokens of one pass through the layers within it.
BATCH_TOKENS, PASS_TOKENS = 2048, 512

# The default positions of a load; llama-bench allocates exactly what it needs.
FIRST_POSITIONS = 2048

ATTENTION = {"auto": -1, "plain": 0, "fused": 1}
# Type numbers of ggml.h; the bindings lack some.
KV = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}


class Contexts:
    """One context for requests of one sequence, made at the load, and one for batches, made on demand. A request that
    needs more positions replaces its context by a larger one."""

    def __init__(self, weights, options, threads, context_tokens, requested_tokens):
        self._weights, self._options, self._max_tokens = weights, options, context_tokens
        self._pool = Pool(threads, options.pin)
        self._contexts = {}
        self.empty(1, requested_tokens or min(FIRST_POSITIONS, context_tokens))

    @property
    def single(self):
        return self._contexts["single"]

    def empty(self, sequences, positions):
        """An empty context of at least this size."""
        kind = "single" if sequences == 1 else "batch"
        context = self._contexts.get(kind)
        if context is None or context.sequences < sequences or context.positions < positions:
            # Dropped first, so that both never exist at once.
            self._contexts[kind] = context = None
            self._contexts[kind] = context = self._make(sequences, self._rounded(positions))
        context.clear()
        return context

    def for_scores(self, positions):
        """A single-use context with logits for every token, which need much memory."""
        return self._make(1, positions, every_logit=True)

    def _rounded(self, positions):
        """Rounds to powers of two, so that growing requests do not each make a new context."""
        return min(self._max_tokens, max(256, 1 << (positions - 1).bit_length()))

    def _make(self, sequences, positions, every_logit=False):
        return Context(self._weights, self._options, self._pool, sequences, positions, every_logit)


class Context:
    def __init__(self, weights, options, pool, sequences, positions, every_logit):
        self._weights, self._pool, self.sequences, self.positions, self.handle = weights, pool, sequences, positions, None
        settings = bindings.llama_context_default_params()
        settings.n_ctx = positions * sequences
        settings.n_batch, settings.n_ubatch = BATCH_TOKENS, PASS_TOKENS
        settings.n_seq_max = sequences
        # Each sequence has its own cache: in a shared one, rows of other sequences would be computed and masked.
        settings.kv_unified = False
        settings.n_outputs_max = PASS_TOKENS if every_logit else 0
        settings.n_outputs_max_per_seq = 0 if every_logit else 1
        settings.n_threads = settings.n_threads_batch = pool.threads
        settings.flash_attn_type = ATTENTION[options.attention]
        settings.type_k = settings.type_v = KV[options.kv]
        settings.swa_full = False
        library.clear_messages()
        self.handle = bindings.llama_init_from_model(weights.handle, settings)
        if not self.handle:
            cause = library.last_error("llama.cpp gives no reason")
            kind = "out_of_memory" if "alloc" in cause else "unsupported"
            size = f"{positions} tokens" + (f" in each of {sequences} sequences" if sequences > 1 else "")
            raise Failed(kind, f"no context for {size}: {cause}")
        pool.attach(self.handle)
        self.memory = bindings.llama_get_memory(self.handle)
        # A small model allows fewer tokens in a call than requested.
        self.batch_tokens = PASS_TOKENS if every_logit else bindings.llama_n_batch(self.handle)
        self.pass_tokens = bindings.llama_n_ubatch(self.handle)
        self._arrays = {}
        self._make_batch(self.batch_tokens)

    def _make_batch(self, size):
        """Makes llama.cpp's batch structure over numpy arrays, which every call fills again."""
        self._token, self._position = numpy.zeros(size, numpy.int32), numpy.zeros(size, numpy.int32)
        self._sequence, self._count = numpy.zeros(size, numpy.int32), numpy.ones(size, numpy.int32)
        self._with_logits = numpy.zeros(size, numpy.int8)
        # One sequence for each token: a pointer to each element of the array above.
        self._sequences = numpy.arange(size, dtype=numpy.uintp) * 4 + self._sequence.ctypes.data
        batch = self._batch = bindings.llama_batch()
        fields = [
            ("token", self._token), ("pos", self._position), ("n_seq_id", self._count),
            ("seq_id", self._sequences), ("logits", self._with_logits),
        ]
        types = dict(bindings.llama_batch._fields_)
        for name, array in fields:
            setattr(batch, name, ctypes.cast(array.ctypes.data, types[name]))

    def clear(self):
        """Frees every position, so that no request depends on an earlier one."""
        bindings.llama_memory_clear(self.memory, False)

    def fill(self, prompts, every=False):
        """Computes prompts, each as a new sequence, in as few calls as possible. Returns for each the logits after
        its last token. With `every`, for one sequence, it also calls `every(index, logits)` for each token."""
        lengths = [len(prompt) for prompt in prompts]
        token = numpy.concatenate([numpy.array(prompt, numpy.int32) for prompt in prompts])
        position = numpy.concatenate([numpy.arange(length, dtype=numpy.int32) for length in lengths])
        sequence = numpy.repeat(numpy.arange(len(prompts), dtype=numpy.int32), lengths)
        ends = numpy.cumsum(lengths) - 1
        with_logits = numpy.zeros(len(token), numpy.int8)
        with_logits[slice(None) if every else ends] = 1
        rows = [None] * len(prompts)
        for start in range(0, len(token), self.batch_tokens):
            end = min(start + self.batch_tokens, len(token))
            for array, column in self._columns(token, position, sequence, with_logits):
                array[: end - start] = column[start:end]
            self._decode(end - start)
            for index in with_logits[start:end].nonzero()[0].tolist():
                logits = self._logits(index)
                if every:
                    every(start + index, logits)
                else:
                    # The next call overwrites this memory.
                    rows[sequence[start + index]] = logits if end == len(token) else logits.copy()
        return rows

    def _columns(self, token, position, sequence, with_logits):
        return zip((self._token, self._position, self._sequence, self._with_logits), (token, position, sequence, with_logits))

    def step(self, tokens):
        """Adds one token to some sequences: `(sequence, position, id)` each. Returns the logits after each."""
        count = len(tokens)
        for index, (sequence, position, id) in enumerate(tokens):
            self._sequence[index], self._position[index], self._token[index], self._with_logits[index] = sequence, position, id, 1
        self._decode(count)
        return [self._logits(index) for index in range(count)]

    def _decode(self, count):
        self._batch.n_tokens = count
        code = bindings.llama_decode(self.handle, self._batch)
        if code != 0:
            cause = library.last_error("llama.cpp gives no reason")
            raise Failed("internal", f"`llama_decode` of {count} tokens returned {code}: {cause}")

    def _logits(self, index):
        """The logits of the token at this index of the last call; valid until the next."""
        pointer = bindings.llama_get_logits_ith(self.handle, index)
        if not pointer:
            raise Failed("internal", f"no logits at {index}: {library.last_error('llama.cpp gives no reason')}")
        # The same few addresses repeat, and a lookup is faster than making an array.
        address = ctypes.addressof(pointer.contents)
        known = self._arrays.get(address)
        if known is None:
            known = self._arrays[address] = numpy.ctypeslib.as_array(pointer, (self._weights.vocabulary_size,))
        return known  # [vocabulary]

    def threads(self):
        return bindings.llama_n_threads(self.handle)

    def __del__(self):
        if self.handle:
            bindings.llama_free(self.handle)
            self.handle = None
