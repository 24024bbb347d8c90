"""llama.cpp's contexts. A context has the KV cache for a number of sequences and positions. The function `llama_decode`
computes tokens in a context."""

import ctypes

import llama_cpp.llama_cpp as bindings
import numpy

import library
from engine_kit import Failed

# The sizes of llama-bench: the most tokens of one call, and of one pass through the layers within a call.
BATCH_TOKENS, PASS_TOKENS = 2048, 512

# The positions of the first context if the load requests no number.
DEFAULT_POSITIONS = 2048

# Numbers of llama.h and, for the dtypes, of ggml.h; the bindings lack some.
ATTENTION = {"auto": -1, "plain": 0, "fused": 1}
KV_DTYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}


class Contexts:
    """A context for requests of one sequence, made at the load, and a context for batches, made on demand. A request that
    needs more sequences or positions replaces its context by a new one."""

    def __init__(self, weights, options, threads, max_tokens, requested_tokens):
        self._weights, self._options, self._max_tokens = weights, options, max_tokens
        self._pool = library.ThreadPool(threads, options.pin)
        self._contexts = {}
        self.empty_context(1, requested_tokens or min(DEFAULT_POSITIONS, max_tokens))

    @property
    def single(self):
        """The context for requests of one sequence."""
        return self._contexts["single"]

    def empty_context(self, sequences, positions):
        """An empty context for at least this many sequences, each of at least this many positions."""
        kind = "single" if sequences == 1 else "batch"
        context = self._contexts.get(kind)
        if context is None or context.sequences < sequences or context.positions < positions:
            # The old context is dropped first, so that memory never has to hold both.
            self._contexts[kind] = context = None
            self._contexts[kind] = context = self._new_context(sequences, self._rounded_up(positions))
        context.clear()
        return context

    def scoring_context(self, positions):
        """A context for one request. It has logits of every token, which take much memory."""
        return self._new_context(1, positions, every_logit=True)

    def _rounded_up(self, positions):
        """The next power of two, from 256 to `max_tokens`, so that not every longer request makes a new context."""
        return min(self._max_tokens, max(256, 1 << (positions - 1).bit_length()))

    def _new_context(self, sequences, positions, every_logit=False):
        return Context(self._weights, self._options, self._pool, sequences, positions, every_logit)


class Context:
    """A context of llama.cpp. With `every_logit` it has the logits of every token, else those of each sequence's last token."""

    def __init__(self, weights, options, pool, sequences, positions, every_logit):
        self._weights, self._pool, self.sequences, self.positions, self.handle = weights, pool, sequences, positions, None
        settings = bindings.llama_context_default_params()
        settings.n_ctx = positions * sequences
        settings.n_batch, settings.n_ubatch = BATCH_TOKENS, PASS_TOKENS
        settings.n_seq_max = sequences
        # Each sequence has its own cache. In a shared cache, llama.cpp computes and masks positions of other sequences.
        settings.kv_unified = False
        settings.n_outputs_max = PASS_TOKENS if every_logit else 0
        settings.n_outputs_max_per_seq = 0 if every_logit else 1
        settings.n_threads = settings.n_threads_batch = pool.threads
        settings.flash_attn_type = ATTENTION[options.attention]
        settings.type_k = settings.type_v = KV_DTYPES[options.kv]
        settings.swa_full = False
        library.clear_messages()
        self.handle = bindings.llama_init_from_model(weights.handle, settings)
        if not self.handle:
            cause = library.last_error()
            kind = "out_of_memory" if "alloc" in cause else "unsupported"
            size = f"{positions} tokens" + (f" in each of {sequences} sequences" if sequences > 1 else "")
            raise Failed(kind, f"cannot make a context of {size}: {cause}")
        pool.attach(self.handle)
        self.memory = bindings.llama_get_memory(self.handle)
        # llama.cpp lowers the requested numbers for a small context. With `every_logit`, logits of only one pass have room.
        self.batch_tokens = PASS_TOKENS if every_logit else bindings.llama_n_batch(self.handle)
        self.pass_tokens = bindings.llama_n_ubatch(self.handle)
        self._logits_by_address = {}
        self._make_batch(self.batch_tokens)

    def _make_batch(self, size):
        """Makes llama.cpp's batch structure over numpy arrays, which every call fills again."""
        self._token, self._position = numpy.zeros(size, numpy.int32), numpy.zeros(size, numpy.int32)
        self._sequence, self._sequence_count = numpy.zeros(size, numpy.int32), numpy.ones(size, numpy.int32)
        self._with_logits = numpy.zeros(size, numpy.int8)
        # llama.cpp reads the sequence of each token through a pointer: here, to the element of `_sequence`.
        self._sequence_pointers = numpy.arange(size, dtype=numpy.uintp) * 4 + self._sequence.ctypes.data
        batch = self._batch = bindings.llama_batch()
        fields = [
            ("token", self._token), ("pos", self._position), ("n_seq_id", self._sequence_count),
            ("seq_id", self._sequence_pointers), ("logits", self._with_logits),
        ]
        types = dict(bindings.llama_batch._fields_)
        for name, array in fields:
            setattr(batch, name, ctypes.cast(array.ctypes.data, types[name]))

    def clear(self):
        """Frees every position, so that no request depends on an earlier one."""
        bindings.llama_memory_clear(self.memory, False)

    def fill(self, prompts, on_logits=None):
        """Computes prompts, each as a new sequence, in as few calls as possible. Returns the logits after the last token of
        each prompt. With `on_logits`, there is one prompt: calls `on_logits(index, logits)` for each of its tokens instead."""
        lengths = [len(prompt) for prompt in prompts]
        token = numpy.concatenate([numpy.array(prompt, numpy.int32) for prompt in prompts])
        position = numpy.concatenate([numpy.arange(length, dtype=numpy.int32) for length in lengths])
        sequence = numpy.repeat(numpy.arange(len(prompts), dtype=numpy.int32), lengths)
        last_tokens = numpy.cumsum(lengths) - 1
        with_logits = numpy.zeros(len(token), numpy.int8)
        with_logits[slice(None) if on_logits else last_tokens] = 1
        last_logits = [None] * len(prompts)
        for start in range(0, len(token), self.batch_tokens):
            end = min(start + self.batch_tokens, len(token))
            count = end - start
            self._token[:count], self._position[:count] = token[start:end], position[start:end]
            self._sequence[:count], self._with_logits[:count] = sequence[start:end], with_logits[start:end]
            self._decode(count)
            for index in with_logits[start:end].nonzero()[0].tolist():
                logits = self._logits(index)
                if on_logits:
                    on_logits(start + index, logits)
                else:
                    # The next call overwrites this memory.
                    last_logits[sequence[start + index]] = logits if end == len(token) else logits.copy()
        return last_logits

    def step(self, tokens):
        """Adds a token to some sequences; each token is `(sequence, position, id)`. Returns the logits after each token."""
        for index, (sequence, position, id) in enumerate(tokens):
            self._sequence[index], self._position[index], self._token[index] = sequence, position, id
            self._with_logits[index] = 1
        self._decode(len(tokens))
        return [self._logits(index) for index in range(len(tokens))]

    def _decode(self, count):
        self._batch.n_tokens = count
        code = bindings.llama_decode(self.handle, self._batch)
        if code != 0:
            raise Failed("internal", f"`llama_decode` of {count} tokens returned {code}: {library.last_error()}")

    def _logits(self, index):
        """The logits of the token at this index of the last call. The next call overwrites them."""
        pointer = bindings.llama_get_logits_ith(self.handle, index)
        if not pointer:
            raise Failed("internal", f"no logits at {index}: {library.last_error()}")
        # The same few addresses repeat, and a lookup is faster than making an array.
        address = ctypes.addressof(pointer.contents)
        logits = self._logits_by_address.get(address)
        if logits is None:
            logits = self._logits_by_address[address] = numpy.ctypeslib.as_array(pointer, (self._weights.vocabulary_size,))
        return logits  # [vocabulary]

    def threads(self):
        return bindings.llama_n_threads(self.handle)

    def __del__(self):
        if self.handle:
            bindings.llama_free(self.handle)
            self.handle = None
