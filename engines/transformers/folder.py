"""A model folder as this engine needs it: which files hold the weights and whether they are whole, the ids that begin and
end a text, the sizes that requests are checked against.

Knows no tensor library, so that what is wrong with a folder is said before anything heavy happens. What an architecture
is, `transformers` knows; here only those words of a config are read that every architecture has.
"""

import json
import struct
from pathlib import Path
from types import SimpleNamespace

from engine_kit import Failed, check_offered

FORMATS = ["safetensors"]
INDEX = "model.safetensors.index.json"

# A header longer than this is none: the format's own bound.
MOST_HEADER_BYTES = 100_000_000

# What the same thing is called in configs of different families.
CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
HIDDEN = ("hidden_size", "n_embd", "d_model")


def open_folder(path):
    """`name`, `path`, `config` (as it stands in the file), `architecture`, `weights` (paths), `tensors` (name to dtype and
    shape), `tokenizer` (a path or None), `context_tokens` (None where the config does not say), `vocabulary_size`,
    `hidden_size`, `bos_id`, `eos_ids`."""
    path = Path(path)
    weights = _weights(path)
    config = _read_json(path / "config.json")
    generation = path / "generation_config.json"
    said = _read_json(generation) if generation.is_file() else {}
    ids = {**config, **{name: value for name, value in said.items() if value is not None}}
    tokenizer = path / "tokenizer.json"
    architecture = config.get("model_type")
    if not isinstance(architecture, str):
        raise Failed("model", f"`{path / 'config.json'}`: `model_type` is missing")
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    tensors = {}
    for file in weights:
        tensors |= read_header(file)
    return SimpleNamespace(
        name=path.resolve().name,
        path=path,
        config=config,
        architecture=architecture,
        weights=weights,
        tensors=tensors,
        tokenizer=tokenizer if tokenizer.is_file() else None,
        context_tokens=_whole(text, CONTEXT),
        vocabulary_size=_whole(text, ("vocab_size",)),
        hidden_size=_whole(text, HIDDEN),
        bos_id=next(iter(_ids(ids.get("bos_token_id"))), None),
        eos_ids=_ids(ids.get("eos_token_id")),
    )


def read_header(path):
    """Names of the tensors in a safetensors file with their dtypes and shapes; the file is refused where it is not whole."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        first = file.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else None
        if length is None or not 2 <= length <= min(MOST_HEADER_BYTES, size - 8):
            raise _broken(path, f"its header would have {length} bytes in a file of {size}" if length else f"{size} bytes")
        header = file.read(length)
    try:
        tensors = json.loads(header)
        tensors.pop("__metadata__", None)
        tensors = {name: (it["dtype"], tuple(it["shape"]), it["data_offsets"]) for name, it in tensors.items()}
        end = 8 + length + max((offsets[1] for *_, offsets in tensors.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise _broken(path, f"its header is no list of tensors ({type(error).__name__})") from None
    if end != size:
        what = "truncated" if size < end else "longer than it says"
        raise _broken(path, f"{what}: {size} bytes, and its header speaks of {end}")
    return {name: (dtype, shape) for name, (dtype, shape, _) in tensors.items()}


def _broken(path, what):
    return Failed("model", f"`{path}` is no whole safetensors file: {what}", "fetch or copy this file again")


def _weights(path):
    if path.is_file():
        check_offered("format", path.suffix.removeprefix(".").lower() or "file", FORMATS)
        raise Failed("model", f"`{path}`: expected a model folder", f"give `{path.parent}`")
    found = sorted(path.glob("*.safetensors"))
    if (path / INDEX).is_file():
        names = _read_json(path / INDEX).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise Failed("model", f"`{path / INDEX}`: `weight_map` is missing")
        return [_shard(path, name) for name in sorted({str(name) for name in names.values()})]
    if not found:
        if any(path.glob("*.gguf")):
            check_offered("format", "gguf", FORMATS)
        raise Failed("model", f"no `*.safetensors` file in `{path}`")
    # `transformers` opens a file of this name, or an index, and nothing else.
    if path / "model.safetensors" not in found:
        raise Failed("model", f"`{path}` has `{found[0].name}`, and neither `model.safetensors` nor `{INDEX}`")
    return [path / "model.safetensors"]


def _shard(path, name):
    # A shard lies in the folder; an index that points elsewhere is broken or worse.
    if Path(name).name != name:
        raise Failed("model", f"`{path / INDEX}`: `{name[:120]}` is no file name")
    if not (path / name).is_file():
        raise Failed("model", f"`{path / INDEX}`: shard `{name}` is missing")
    return path / name


def _read_json(path):
    try:
        value = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise Failed("model", f"`{path}`: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise Failed("model", f"`{path}`: {error}") from None
    if not isinstance(value, dict):
        raise Failed("model", f"`{path}`: expected an object")
    return value


def _whole(config, names):
    """The first of these words that the config has; None where it has none of them."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if type(value) is not int or not 0 < value < 2**32:
            raise Failed("model", f"`config.json`: `{name}`: expected a whole number of at least 1, found `{str(value)[:80]}`")
        return value
    return None


def _ids(value):
    """One id, a list of them, or none."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(id) is not int or not 0 <= id < 2**32 for id in ids):
        raise Failed("model", f"`config.json`: expected token ids, found `{str(value)[:80]}`")
    return ids
