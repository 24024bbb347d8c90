"""Reads a model folder for Python engines that read safetensors: its weight files, its BOS and EOS ids, and its
tokenizer.

This module imports no tensor library, so that a broken folder is reported before any heavy import. It imports
`tokenizers` only to read a tokenizer, because prompts of ids need none.
"""

import json
import math
import struct
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

from engine_kit_checks import check_offered
from engine_kit_wire import Failed

FORMATS = ["safetensors"]
INDEX = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

# The format's own limit on the size of a header.
MAX_HEADER_BYTES = 100_000_000

# The names of the embedding in the checkpoints of architectures like Llama, and of GPT-2.
EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight", "transformer.wte.weight", "wte.weight")

# The dimensions among the facts of a model, with the names that model families give to their fields of the config.
DIMENSIONS = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim"),
}

# The bytes of two tensors that are compared at once.
COMPARED_BYTES = 1 << 20

# The bytes of a number, by the name of the dtype in files. The sizes of tensors of other dtypes are not checked.
NUMBER_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), 1),
}


def open_folder(path):
    """Returns `path`, `name`, `config` (as in the file), `architecture` (None if the config has none), `weights`
    (the files in the index, else every safetensors file), `is_indexed`, `tokenizer` (a path or None), `bos_id` (or None),
    `eos_ids`."""
    path = Path(path)
    weights, is_indexed = _weights(path)
    config = read_json(path / "config.json")
    generation = path / "generation_config.json"
    generation_config = read_json(generation) if generation.is_file() else {}
    merged_config = {**config, **{name: value for name, value in generation_config.items() if value is not None}}
    tokenizer = path / "tokenizer.json"
    architecture = config.get("model_type")
    return SimpleNamespace(
        path=path,
        name=path.resolve().name,
        config=config,
        architecture=architecture if isinstance(architecture, str) else None,
        weights=weights,
        is_indexed=is_indexed,
        tokenizer=tokenizer if tokenizer.is_file() else None,
        bos_id=next(iter(_ids(merged_config.get("bos_token_id"))), None),
        eos_ids=_ids(merged_config.get("eos_token_id")),
    )


def read_tokenizer(folder, rows=None):
    """The tokenizer as an object of the library `tokenizers`; None if the folder has none. `rows` is the number of
    rows of the embedding: a tokenizer with an id outside the rows belongs to another model."""
    if folder.tokenizer is None:
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        message = f"no tokenizer for model `{folder.name}`: `tokenizers` is not installed"
        raise Failed("model", message, "send `prompt_ids`") from None
    try:
        tokenizer = Tokenizer.from_file(str(folder.tokenizer))
    except Exception as error:
        # The library raises `Exception` itself.
        raise Failed("model", f"`{folder.tokenizer}`: {str(error)[:300]}") from None
    if rows is not None:
        largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        if largest >= rows:
            problem = f"its ids reach {largest}, and the embedding of model `{folder.name}` has {rows} rows"
            raise Failed("model", f"`{folder.tokenizer}` is another model's tokenizer: {problem}")
    # A prompt must keep its length, even if the file requests truncation or padding.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class FolderTokenizerMixin:
    """A base class for models whose texts use the tokenizer of their folder, `_folder`. The tokenizer is read when the
    first text comes: token ids do not need it."""

    # The rows of the embedding, to refuse the tokenizer of another model; None accepts every tokenizer.
    _embedding_rows = None

    @cached_property
    def _tokenizer(self):
        return read_tokenizer(self._folder, self._embedding_rows)

    def encode(self, text):
        if self._tokenizer is None:
            message = f"model `{self._folder.name}` has no `tokenizer.json` in its folder"
            raise Failed("model", message, "send `prompt_ids`")
        return self._tokenizer.encode(text).ids

    def decode(self, ids):
        return None if self._tokenizer is None else self._tokenizer.decode(ids)


def read_tensors(files):
    """The tensors of these safetensors files by name: `dtype` (the name in files), `shape`, `bytes`, and their position: `file`,
    `offset`. Refuses an incomplete file."""
    tensors = {}
    for file in files:
        tensors |= _read_header(file)
    return tensors


def refuse_second_output_matrix(folder):
    """Refuses a checkpoint with an output matrix that differs from the embedding, for a model whose config ties the two:
    programs do not agree on the matrix to use. If the two are equal, the checkpoint has the embedding twice, and is accepted."""
    tensors = read_tensors(folder.weights)
    output = tensors.get("lm_head.weight")
    name = next((name for name in EMBEDDINGS if name in tensors), None)
    if output is not None and name is not None and not _are_equal(output, tensors[name]):
        message = f"model `{folder.name}`: `tie_word_embeddings` is true, and `lm_head.weight` differs from `{name}`"
        raise Failed("model", message, "set `tie_word_embeddings` to false in `config.json` to use `lm_head.weight`")


def _are_equal(first, second):
    """Whether two tensors have the same dtype, shape and bytes."""
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    with first.file.open("rb") as first_file, second.file.open("rb") as second_file:
        first_file.seek(first.offset)
        second_file.seek(second.offset)
        for start in range(0, first.bytes, COMPARED_BYTES):
            length = min(COMPARED_BYTES, first.bytes - start)
            if first_file.read(length) != second_file.read(length):
                return False
    return True


def _read_header(path):
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length_bytes = file.read(8)
            length = struct.unpack("<Q", length_bytes)[0] if len(length_bytes) == 8 else None
            if length is None or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                problem = f"its header would have {length} bytes in a file of {size}" if length else f"it has {size} bytes"
                raise _incomplete(path, problem)
            header = file.read(length)
    except OSError as error:
        raise Failed("model", f"`{path}`: {error.strerror or error}") from None
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        tensors = {name: _tensor(path, 8 + length, entry) for name, entry in entries.items()}
        spans = sorted((*entry["data_offsets"], name) for name, entry in entries.items())
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise _incomplete(path, f"its header is not a list of tensors ({type(error).__name__})") from None
    end = 8 + length + max((end for _, end, _ in spans), default=0)
    if end != size:
        problem = "truncated" if size < end else "too long"
        raise _incomplete(path, f"{problem}: {size} bytes, and its header states {end}")
    for (_, end, previous_name), (begin, _, name) in zip(spans, spans[1:]):
        if begin < end:
            raise _incomplete(path, f"tensor `{name[:120]}` begins at byte {begin}, before tensor `{previous_name[:120]}` ends at byte {end}")
    for name, tensor in tensors.items():
        expected_bytes = math.prod(tensor.shape) * NUMBER_BYTES.get(tensor.dtype, 0)
        if tensor.dtype in NUMBER_BYTES and expected_bytes != tensor.bytes:
            shape = str(list(tensor.shape))[:80]
            sizes = f"{tensor.dtype} of shape {shape} is {expected_bytes} bytes, but it has {tensor.bytes}"
            raise _incomplete(path, f"tensor `{name[:120]}`: {sizes}")
    return tensors


def _tensor(file, start, entry):
    (begin, end), dtype, shape = entry["data_offsets"], entry["dtype"], tuple(entry["shape"])
    if any(type(count) is not int or count < 0 for count in (begin, end, *shape)) or end < begin or not isinstance(dtype, str):
        raise ValueError("invalid count")
    return SimpleNamespace(dtype=dtype, shape=shape, bytes=end - begin, file=file, offset=start + begin)


def _incomplete(path, problem):
    return Failed("model", f"`{path}` is not a complete safetensors file: {problem}", "fetch or copy this file again")


def _weights(path):
    """The paths of the weight files, and whether an index names the files."""
    if not path.is_dir():
        if not path.is_file():
            raise Failed("model", f"`{path}` is neither a folder nor a file")
        check_offered("format", path.suffix.removeprefix(".").lower() or "file", FORMATS)
        raise Failed("model", f"`{path}`: expected a model folder", f"use `{path.parent}`")
    files = sorted(path.glob("*.safetensors"))
    if (path / INDEX).is_file():
        names = read_json(path / INDEX).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise Failed("model", f"`{path / INDEX}`: `weight_map` is missing")
        return [_shard(path, name) for name in sorted({str(name) for name in names.values()})], True
    if not files:
        if any(path.glob("*.gguf")):
            check_offered("format", "gguf", FORMATS)
        raise Failed("model", f"no `*.safetensors` file in `{path}`")
    return files, False


def _shard(path, name):
    # A shard must be in the folder; an index that points elsewhere is broken or malicious.
    if Path(name).name != name:
        raise Failed("model", f"`{path / INDEX}`: `{name[:120]}` is not a file name")
    if not (path / name).is_file():
        raise Failed("model", f"`{path / INDEX}`: shard `{name[:120]}` is missing")
    return path / name


def read_json(path):
    """Reads a JSON object; a failure names the file and the problem."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise Failed("model", f"`{path}`: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise Failed("model", f"`{path}`: {error}") from None
    if not isinstance(value, dict):
        raise Failed("model", f"`{path}`: expected an object")
    return value


def first_integer(config, names):
    """The value of the first of these fields that a config has; None if it has none of them."""
    for name in names:
        if (value := config.get(name)) is not None:
            if type(value) is not int or not 0 < value < 2**32:
                problem = f"expected a whole number of at least 1, found `{str(value)[:80]}`"
                raise Failed("model", f"`config.json`: `{name}`: {problem}")
            return value
    return None


def dimensions(config):
    """The dimensions of a model, for the facts of a load. A field that the config lacks, or has in another form, is left out."""
    found = {fact: next((config[name] for name in names if name in config), None) for fact, names in DIMENSIONS.items()}
    return {fact: value for fact, value in found.items() if type(value) is int and 0 < value < 2**32}


def _ids(value):
    """The ids as a list. A config has one id, a list of ids, or none."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(id) is not int or not 0 <= id < 2**32 for id in ids):
        raise Failed("model", f"`config.json`: expected token ids, found `{str(value)[:80]}`")
    return ids
