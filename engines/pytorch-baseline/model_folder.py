"""A model folder as this engine reads it: the numbers of `config.json`, and which files hold the weights.

Knows no tensor library, so that what is wrong with a folder is said before anything heavy happens.
"""

import json
from pathlib import Path
from types import SimpleNamespace

from engine_kit import Failed, check_offered

FORMATS = ["safetensors"]
ARCHITECTURES = ["llama", "qwen2"]

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
    return SimpleNamespace(
        name=path.resolve().name,
        architecture=config.get("model_type"),
        weights=weights,
        tokenizer=tokenizer if tokenizer.is_file() else None,
        shape=_shape(config),
        context_tokens=_whole(config, "max_position_embeddings"),
        bos_id=next(iter(_ids(ids.get("bos_token_id"))), None),
        eos_ids=_ids(ids.get("eos_token_id")),
    )


def _shape(config):
    """The network in numbers; what this engine does not compute is refused by name."""
    architecture = config.get("model_type")
    if not isinstance(architecture, str):
        raise Failed("model", "`config.json`: `model_type` is missing")
    check_offered("architecture", architecture, ARCHITECTURES)
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise Failed("unsupported", f"`hidden_act` `{activation}`: offered are `silu`")
    if config.get("use_sliding_window"):
        raise Failed("unsupported", "`use_sliding_window`: this engine attends to the whole sequence")
    heads, hidden_size = _whole(config, "num_attention_heads"), _whole(config, "hidden_size")
    kv_heads = _whole(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise Failed("model", f"`config.json`: {heads} heads cannot share {kv_heads} key-value heads")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    bias = bool(config.get("attention_bias", False))
    return SimpleNamespace(
        hidden_size=hidden_size,
        intermediate_size=_whole(config, "intermediate_size"),
        layers=_whole(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_whole(config, "head_dim", hidden_size // heads),
        vocabulary_size=_whole(config, "vocab_size"),
        norm_epsilon=_number(config, "rms_norm_eps", 1e-6),
        rope_theta=_number(rope if "rope_theta" in rope else config, "rope_theta", 10000.0),
        rope_scaling=_rope_scaling(rope),
        # Qwen2 has these biases and its config has no word for them.
        qkv_bias=bias or architecture == "qwen2",
        output_bias=bias and architecture == "llama",
        mlp_bias=bool(config.get("mlp_bias", False)),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def _rope_scaling(rope):
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise Failed("unsupported", f"rope scaling `{kind}`: offered are `default`, `llama3`")
    return SimpleNamespace(
        factor=_number(rope, "factor"),
        low=_number(rope, "low_freq_factor"),
        high=_number(rope, "high_freq_factor"),
        original_context=_whole(rope, "original_max_position_embeddings"),
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


def _whole(config, name, default=None):
    value = config.get(name)
    value = default if value is None else value
    if type(value) is not int or not 0 < value < 2**32:
        raise Failed("model", f"`config.json`: `{name}`: expected a whole number of at least 1, found `{value}`")
    return value


def _number(config, name, default=None):
    value = config.get(name)
    value = default if value is None else value
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise Failed("model", f"`config.json`: `{name}`: expected a number above 0, found `{value}`")
    return float(value)


def _ids(value):
    """One id, a list of them, or none."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(id) is not int or not 0 <= id < 2**32 for id in ids):
        raise Failed("model", f"`config.json`: expected token ids, found `{value}`")
    return ids
