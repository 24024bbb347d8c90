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
    """The contexts of a load. For a request that runs alone: one for a single sequence, made at the load, and one for batches, made
    on demand; a request that needs more sequences or positions replaces its context by a new one. For requests that overlap: a
    shared context, made on demand, and a context for each request that is too large for it."""

    def __init__(self, weights, options, threads, max_tokens, requested_tokens):
        self._weights, self._options, self._max_tokens = weights, options, max_tokens
        self._pool = library.ThreadPool(threads, options.pin)
        self._contexts = {}
        # The positions of each sequence in the shared context. They are few, because its memory has several sequences.
        self.shared_positions = min(DEFAULT_POSITIONS, max_tokens)
        self.empty_context(1, requested_tokens or self.shared_positions)

    @property
    def single(self):
        """The context for requests of one sequence."""
        return self._contexts["single"]

    @property
    def shared(self):
        """The context of overlapping requests; None before the first of them."""
        return self._contexts.get("shared")

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

    def shared_context(self, sequences):
        """The context of overlapping requests, made now if there is none."""
        if self.shared is None:
            self._contexts["shared"] = self._new_context(sequences, self.shared_positions)
        return self.shared

    def own_context(self, sequences, positions):
        """A new context, which ends when the caller drops it."""
        return self._new_context(sequences, self._rounded_up(positions))

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

    def remove(self, sequence):
        """Frees the positions of a sequence."""
        bindings.llama_memory_seq_rm(self.memory, sequence, -1, -1)

    def move(self, sequence, number):
        """Gives a sequence another number, which is free. The next call copies its keys and values."""
        bindings.llama_memory_seq_cp(self.memory, sequence, number, -1, -1)
        self.remove(sequence)

    def compute(self, parts):
        """Computes parts of sequences in one call, at most `batch_tokens` ids. A part is `(sequence, start, ids, wanted)`: the ids
        have the positions from `start` on, and `wanted` counts those at the end whose logits are needed. Returns the needed
        logits in the order of the ids. The next call overwrites them."""
        end, indices = 0, []
        for sequence, start, ids, wanted in parts:
            begin, end = end, end + len(ids)
            if len(ids) == 1:
                # To assign an element is faster than to assign a slice, and this is every step of decoding.
                self._token[begin], self._position[begin], self._sequence[begin] = ids[0], start, sequence
                self._with_logits[begin] = wanted
            else:
                self._token[begin:end], self._sequence[begin:end] = ids, sequence
                self._position[begin:end] = numpy.arange(start, start + len(ids))
                self._with_logits[begin : end - wanted], self._with_logits[end - wanted : end] = 0, 1
            indices.extend(range(end - wanted, end))
        self._decode(end)
        return [self._logits(index) for index in indices]

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
