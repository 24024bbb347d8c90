"""Reads the header of a GGUF file, and checks it before tinygrad reads the file: tinygrad ignores every field and every tensor
that its graph does not use, so that a model of another kind would give wrong tokens without an error."""

import math
import struct
from types import SimpleNamespace

import numpy
from engine_kit import Failed

# The dtypes of tensors by GGUF's number: the name, the weights of a block, and its bytes.
DTYPES = {
    0: ("f32", 1, 4), 1: ("f16", 1, 2), 30: ("bf16", 1, 2), 2: ("q4_0", 32, 18), 8: ("q8_0", 32, 34), 12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176), 14: ("q6_k", 256, 210),
}

# The places of a block's scales, which are in f16: the half words of a block, and the slice of those that are scales.
SCALES = {"q4_0": (9, slice(0, 1)), "q8_0": (17, slice(0, 1)), "q4_k": (72, slice(0, 2)), "q5_k": (88, slice(0, 2)), "q6_k": (105, slice(104, 105))}

# The least bits, without the sign, of a number that f16 cannot hold, and of an infinite number or NaN.
TOO_LARGE_FOR_F16 = {"f32": 0x477F_F000, "bf16": 0x4780, "f16": 0x7C00}
NOT_FINITE = {"f32": 0x7F80_0000, "bf16": 0x7F80, "f16": 0x7C00}

# The architectures whose graph in tinygrad is compared with the reference engine.
ARCHITECTURES = ["llama", "qwen2", "qwen3"]

# The fields of an architecture that tinygrad or this engine obeys, and those without effect on the tokens. tinygrad ignores all
# other fields.
KNOWN_FIELDS = {
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv",
    "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon", "attention.sliding_window",
    "rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
    "vocab_size",
}

# The fields with numbers that a model must have, and may have.
COUNTS = ("context_length", "block_count", "embedding_length", "attention.head_count", "attention.head_count_kv")
OPTIONAL_COUNTS = ("attention.key_length", "attention.value_length", "rope.dimension_count", "attention.sliding_window")

# GGUF's types of metadata values by number, as formats of `struct`. 8 is a text, 9 an array.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

# The most dimensions of a tensor in GGUF.
MAX_RANK = 4

# Bytes of a header; longer ones are damaged files.
MAX_HEADER_BYTES = 1 << 30


class GgufFile:
    """The header of a GGUF file: `metadata` by key, and `tensors` by name with `dtype`, `shape`, `offset` and `bytes`. The texts
    of the vocabulary are not kept, only their number."""

    def __init__(self, path):
        self.path = path
        try:
            with path.open("rb") as file:
                self._read(file, path.stat().st_size)
        except OSError as error:
            raise Failed("model", f"`{path}`: {error.strerror or error}") from None
        except (struct.error, KeyError, ValueError, OverflowError, TypeError, ZeroDivisionError) as error:
            raise self.damaged(f"its header cannot be read ({error})") from None

    def damaged(self, problem):
        return Failed("model", f"`{self.path}` is not a complete GGUF file: {problem}", "fetch or copy this file again")

    def _read(self, file, size):
        magic, version, tensor_count, field_count = struct.unpack("<4sIQQ", file.read(24))
        if magic != b"GGUF" or version not in (2, 3):
            raise Failed("model", f"`{self.path}` is not a GGUF file of version 2 or 3", "fetch or copy this file again")
        self.metadata = {}
        for _ in range(field_count):
            key = _text(file)
            (kind,) = struct.unpack("<I", file.read(4))
            self.metadata[key] = _value(file, kind)
        entries = []
        for _ in range(tensor_count):
            name = _text(file)
            (rank,) = struct.unpack("<I", file.read(4))
            if rank > MAX_RANK:
                raise ValueError(f"a tensor of {rank} dimensions")
            shape = struct.unpack(f"<{rank}Q", file.read(8 * rank))
            entries.append((name, tuple(reversed(shape)), *struct.unpack("<IQ", file.read(12))))
        if not entries:
            raise ValueError("no tensors")
        alignment = self.metadata.get("general.alignment", 32)
        start = -(-file.tell() // alignment) * alignment
        self.tensors = {name: self._tensor(name, shape, kind, start + offset, size) for name, shape, kind, offset in entries}

    def _tensor(self, name, shape, kind, offset, size):
        if kind not in DTYPES:
            raise Failed("unsupported", f"`{self.path}`: tensor `{name[:120]}` has GGUF's dtype {kind}, which this engine does not read")
        dtype, weights, block_bytes = DTYPES[kind]
        count = math.prod(shape)
        tensor = SimpleNamespace(dtype=dtype, shape=shape, offset=offset, bytes=count // weights * block_bytes)
        if offset + tensor.bytes > size:
            raise self.damaged(f"tensor `{name[:120]}` ends at byte {offset + tensor.bytes} of {size}")
        return tensor

    def field(self, name, default=None):
        """The value of a field of the architecture: `context_length`."""
        return self.metadata.get(f"{self.architecture}.{name}", default)

    @property
    def architecture(self):
        return self.metadata.get("general.architecture")

    def main_dtype(self):
        """The dtype of most bytes of the file."""
        bytes_by_dtype = {}
        for tensor in self.tensors.values():
            bytes_by_dtype[tensor.dtype] = bytes_by_dtype.get(tensor.dtype, 0) + tensor.bytes
        return max(bytes_by_dtype, key=bytes_by_dtype.get)

    def weights_bytes(self):
        return sum(tensor.bytes for tensor in self.tensors.values())

    def context_limit(self):
        """The longest context, and the reason if it is shorter than the model's. tinygrad computes without sliding windows: up to
        the length of the window, it hides no token."""
        limit, window = self.field("context_length"), self.field("attention.sliding_window")
        if window and window < limit:
            return window, ": tinygrad ignores its sliding window"
        return limit, ""

    def eos_ids(self):
        names = ("eos_token_id", "eot_token_id", "eom_token_id")
        ids = [self.metadata.get(f"tokenizer.ggml.{name}") for name in names]
        return list(dict.fromkeys(id for id in ids if id is not None))

    def refuse_unsupported(self):
        """Refuses a model that tinygrad would compute wrongly. A tensor that tinygrad's model has no place for is refused later."""
        architecture = self.architecture
        if architecture not in ARCHITECTURES:
            names = ", ".join(f"`{name}`" for name in ARCHITECTURES)
            raise self.unsupported(f"architecture `{str(architecture)[:80]}`: expected one of {names}")
        prefix = f"{architecture}."
        for key in self.metadata:
            if key.startswith(prefix) and key.removeprefix(prefix) not in KNOWN_FIELDS:
                raise self.unsupported(f"tinygrad ignores its field `{key[:120]}`")
        for names, least in ((COUNTS, 1), (OPTIONAL_COUNTS, 0)):
            for name in names:
                value = self.field(name, None if least else 0)
                if type(value) is not int or value < least:
                    problem = f"expected a whole number of at least {least}, found `{str(value)[:80]}`"
                    raise Failed("model", f"`{self.path}`: `{prefix}{name}`: {problem}")
        if not isinstance(self.field("rope.freq_base"), float):
            raise Failed("model", f"`{self.path}`: no number `{prefix}rope.freq_base`")
        if not self.metadata.get("tokenizer.ggml.tokens"):
            hint = "orchestrate model convert FOLDER --to gguf    # FOLDER has the original weights and `tokenizer.json`"
            raise Failed("model", f"`{self.path}` has no tokenizer, and tinygrad counts its tokens", hint)
        head_dim = self.field("attention.key_length", self.field("embedding_length") // self.field("attention.head_count"))
        rope_dim = self.field("rope.dimension_count", head_dim)
        if rope_dim != head_dim:
            raise self.unsupported(f"rotary embedding of {rope_dim} of {head_dim} dimensions")
        if self.field("attention.value_length", head_dim) != head_dim:
            raise self.unsupported("keys and values of different lengths")
        if architecture == "llama" and "blk.0.attn_q.bias" in self.tensors:
            # GGUF has the rows of q and k in another order for this architecture, and tinygrad reorders only the matrices.
            raise self.unsupported("tinygrad adds the biases of its queries and keys in the wrong order")
        if self.field("rope.scaling.type", "none") not in ("none", "linear"):
            raise self.unsupported(f"RoPE scaling `{str(self.field('rope.scaling.type'))[:40]}`")

    def unsupported(self, reason):
        return Failed("unsupported", f"model `{self.path.name}`: {reason}")

    def rope_factors(self):
        """The divisors of the RoPE frequencies, one for each pair of dimensions; None without scaling. Llama 3's scaling is a
        tensor of divisors."""
        if (tensor := self.tensors.get("rope_freqs.weight")) is not None:
            if tensor.dtype != "f32":
                raise self.unsupported(f"`rope_freqs.weight` in {tensor.dtype}")
            return numpy.fromfile(self.path, numpy.float32, math.prod(tensor.shape), offset=tensor.offset)
        if self.field("rope.scaling.type") == "linear":
            pairs = self.field("rope.dimension_count", self.field("embedding_length") // self.field("attention.head_count")) // 2
            return numpy.full(pairs, self.field("rope.scaling.factor", 1.0), numpy.float32)
        return None

    def refuse_numbers(self, rounds_to_f16, progress):
        """Refuses weights that are infinite or NaN, and those that become infinite in f16."""
        numbers = numpy.memmap(self.path, numpy.uint8, "r")
        for index, (name, tensor) in enumerate(self.tensors.items()):
            progress(index / len(self.tensors))
            data = numbers[tensor.offset : tensor.offset + tensor.bytes]
            if tensor.dtype in SCALES:
                words, scales = SCALES[tensor.dtype]
                bits, dtype = data.view(numpy.uint16).reshape(-1, words)[:, scales], "f16"
            else:
                bits, dtype = data.view(numpy.uint32 if tensor.dtype == "f32" else numpy.uint16), tensor.dtype
            largest = _largest_magnitude(bits)
            if largest >= NOT_FINITE[dtype]:
                message = f"model `{self.path.name}`: tensor `{name[:120]}` has weights that are NaN or infinite"
                raise Failed("model", message)
            if rounds_to_f16 and largest >= TOO_LARGE_FOR_F16[dtype]:
                message = f"model `{self.path.name}`: tensor `{name[:120]}` has weights above 65504, the largest number of f16"
                raise Failed("unsupported", message, "--set half=false")


def _largest_magnitude(bits):
    """The largest number by its bits without the sign. Works on slices, so that the copies stay small."""
    sign = numpy.array(1 << (8 * bits.itemsize - 1), bits.dtype)
    rows = len(bits)
    step = max(1, (4 << 20) // (bits[:1].nbytes or 1))
    return max((int((bits[start : start + step] & ~sign).max()) for start in range(0, rows, step)), default=0)


def _text(file):
    return _exactly(file, struct.unpack("<Q", file.read(8))[0]).decode("utf-8")


def _exactly(file, count):
    if count > MAX_HEADER_BYTES:
        raise ValueError(f"a text of {count} bytes")
    data = file.read(count)
    if len(data) != count:
        raise ValueError("the file ends in its header")
    return data


def _value(file, kind):
    """A value of the metadata; of an array, a range as long as the array."""
    if kind == 8:
        return _text(file)
    if kind == 9:
        element, count = struct.unpack("<IQ", file.read(12))
        if element == 8:
            for _ in range(count):
                _exactly(file, struct.unpack("<Q", file.read(8))[0])
        else:
            _exactly(file, struct.calcsize(NUMBERS[element]) * count)
        return range(count)
    return struct.unpack("<" + NUMBERS[kind], file.read(struct.calcsize(NUMBERS[kind])))[0]
