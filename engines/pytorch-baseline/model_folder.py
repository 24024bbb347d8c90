"""A model folder as this engine reads it: which files hold the weights, and the ids that begin and end a text.

Knows no tensor library, so that what is wrong with a folder is said before anything heavy happens.
"""

import json
from pathlib import Path
from types import SimpleNamespace

from engine_kit import Failed, check_offered
from shape import read_shape

FORMATS = ["safetensors"]

INDEX = "model.safetensors.index.json"


def open_folder(path):
    """Paths of the weights and of the tokenizer (or None), the network's shape, the ids that begin and end a text."""
    path = Path(path)
    weights = _weights(path)
    config = _read_json(path / "config.json")
    generation = path / "generation_config.json"
    said = _read_json(generation) if generation.is_file() else {}
    ids = {**config, **{name: value for name, value in said.items() if value is not None}}
    tokenizer = path / "tokenizer.json"
    shape = read_shape(config)
    return SimpleNamespace(
        name=path.resolve().name,
        architecture=shape.architecture,
        weights=weights,
        tokenizer=tokenizer if tokenizer.is_file() else None,
        shape=shape,
        context_tokens=shape.context_tokens,
        bos_id=next(iter(_ids(ids.get("bos_token_id"))), None),
        eos_ids=_ids(ids.get("eos_token_id")),
    )


def _weights(path):
    if path.is_file():
        check_offered("format", path.suffix.removeprefix(".").lower() or "file", FORMATS)
        raise Failed("model", f"`{path}`: expected a model folder", f"give `{path.parent}`")
    found = sorted(path.glob("*.safetensors"))
    if not found:
        if any(path.glob("*.gguf")):
            check_offered("format", "gguf", FORMATS)
        raise Failed("model", f"no `*.safetensors` file in `{path}`")
    if (path / INDEX).is_file():
        names = _read_json(path / INDEX).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise Failed("model", f"`{path / INDEX}`: `weight_map` is missing")
        return [_shard(path, name) for name in sorted({str(name) for name in names.values()})]
    whole = path / "model.safetensors"
    if len(found) > 1 and whole not in found:
        raise Failed("model", f"{len(found)} safetensors files and no `{INDEX}` in `{path}`")
    return [whole if whole in found else found[0]]


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


def _ids(value):
    """One id, a list of them, or none."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(id) is not int or not 0 <= id < 2**32 for id in ids):
        raise Failed("model", f"`config.json`: expected token ids, found `{value}`")
    return ids
