"""A model folder as this engine hands it over: what its files say of it, so that facts are stated and mistakes are named
before the library takes minutes to find them. Knows no tensor library.
"""

import json
from pathlib import Path
from types import SimpleNamespace

from engine_kit import Failed, check_offered

FORMATS = ["safetensors"]
INDEX = "model.safetensors.index.json"

# As files call them, and as they are called here.
DTYPES = {"BF16": "bf16", "F16": "f16", "F32": "f32", "F8_E4M3": "fp8", "I8": "int8", "U8": "u8"}
BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2}
OF_CONFIG = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}

# A header of more than this is no header.
MOST_HEADER_BYTES = 100_000_000


def open_folder(path):
    path = Path(path)
    files = _weights(path)
    config = _read_json(path / "config.json")
    generation = path / "generation_config.json"
    said = _read_json(generation) if generation.is_file() else {}
    ids = {**config, **{name: value for name, value in said.items() if value is not None}}
    weights = _measure(files)
    quantised = _quantisation(path, config)
    tokenizer = path / "tokenizer.json"
    return SimpleNamespace(
        path=path.resolve(),
        name=path.resolve().name,
        architecture=config.get("model_type") if isinstance(config.get("model_type"), str) else None,
        tokenizer=tokenizer if tokenizer.is_file() else None,
        context_tokens=_first_whole(config, ("max_position_embeddings", "n_positions")),
        vocabulary_size=_first_whole(config, ("vocab_size",)),
        hidden_size=_first_whole(config, ("hidden_size", "n_embd")),
        bos_id=next(iter(_ids(ids.get("bos_token_id"))), None),
        eos_ids=_ids(ids.get("eos_token_id")),
        compute_dtype=OF_CONFIG.get(_word(config, ("dtype", "torch_dtype"))),
        weights_dtype=weights.dtype,
        weights_bytes=weights.bytes,
        parameters=None if quantised.any else weights.numbers,
        is_quantised=quantised.any,
        is_fp8=quantised.fp8,
        has_fp8_pool=quantised.fp8_pool,
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
    return found


def _shard(path, name):
    # A shard lies in the folder; an index that points elsewhere is broken or worse.
    if Path(name).name != name:
        raise Failed("model", f"`{path / INDEX}`: `{name[:120]}` is no file name")
    if not (path / name).is_file():
        raise Failed("model", f"`{path / INDEX}`: shard `{name[:120]}` is missing")
    return path / name


def _measure(files):
    """Bytes and numbers of all tensors, by the files' headers, and the dtype of most of the bytes."""
    by_dtype, numbers = {}, 0
    for file in files:
        for name, tensor in _header(file).items():
            if name == "__metadata__":
                continue
            try:
                dtype, (begin, end) = tensor["dtype"], tensor["data_offsets"]
                size = int(end) - int(begin)
            except (TypeError, KeyError, ValueError):
                raise Failed("model", f"`{file}`: tensor `{name[:120]}` is described wrongly") from None
            by_dtype[dtype] = by_dtype.get(dtype, 0) + size
            numbers += size // BYTES.get(dtype, 1)
    most = max(by_dtype, key=by_dtype.get, default=None)
    return SimpleNamespace(dtype=DTYPES.get(most), bytes=sum(by_dtype.values()), numbers=numbers)


def _header(path):
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MOST_HEADER_BYTES:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(file.read(length))
    except OSError as error:
        raise Failed("model", f"`{path}`: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise Failed("model", f"`{path}`: no safetensors file: {error}") from None
    if not isinstance(header, dict):
        raise Failed("model", f"`{path}`: no safetensors file: its header is no object")
    return header


def _quantisation(path, config):
    """How the checkpoint was quantised, in the two places where checkpoints say so."""
    beside = path / "hf_quant_config.json"
    said = _read_json(beside).get("quantization") if beside.is_file() else config.get("quantization_config")
    said = said if isinstance(said, dict) else {}
    how = str(said.get("quant_algo") or said.get("quant_method") or "").lower()
    pool = str(said.get("kv_cache_quant_algo") or "").lower()
    return SimpleNamespace(any=bool(how), fp8=how.startswith("fp8"), fp8_pool=pool.startswith("fp8"))


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


def _first_whole(config, names):
    for name in names:
        if type(config.get(name)) is int and config[name] > 0:
            return config[name]
    return None


def _word(config, names):
    return next((config[name] for name in names if isinstance(config.get(name), str)), None)


def _ids(value):
    """One id, a list of them, or none."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(id) is not int or not 0 <= id < 2**32 for id in ids):
        raise Failed("model", f"`config.json`: expected token ids, found `{value}`")
    return ids
