"""Reads a checkpoint for path `fast`: the shape of the network from the config, and the tensors into the joined tensors of
`fast_network.py`. Features that the path does not support are refused by name."""

import math
from types import SimpleNamespace

import torch
from safetensors import SafetensorError, safe_open

from engine_kit import Failed, check_offered
from fast_network import Int8Matrix, Network

# The architectures, each with the defaults of missing config fields, as in Hugging Face `transformers`. `pytorch-baseline`, the
# verifier, has its own table: an error in a shared table would make both engines wrong in the same way.
DEFAULTS = {
    "llama": {},
    "mistral": {"sliding_window": 4096},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "phi3": {"rms_norm_eps": 1e-5},
    "gemma": {"head_dim": 256, "tie_word_embeddings": True},
}
ARCHITECTURES = list(DEFAULTS)

CHECKPOINT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def read_shape(config):
    architecture = config.get("model_type")
    check_supported("architecture", architecture, ARCHITECTURES, library_architectures)
    # A field with null counts as missing, except Mistral's `sliding_window`: null means no window there.
    given = {name: value for name, value in config.items() if value is not None or name == "sliding_window"}
    config = {**DEFAULTS[architecture], **given}
    is_gemma, joined = architecture == "gemma", architecture == "phi3"
    # In a config of Gemma `gelu` means the tanh form, with which Gemma was trained.
    activations = ["gelu_pytorch_tanh", "gelu"] if is_gemma else ["silu"]
    check_supported("`hidden_act`", str(config.get("hidden_act", activations[0])), activations, library_activations)
    for field in ("use_bidirectional_attention", "use_sliding_window"):
        if config.get(field):
            raise Failed("unsupported", f"path `fast`: `{field}`", "--set path=loop")
    if any(kind != "full_attention" for kind in config.get("layer_types") or []):
        raise Failed("unsupported", "path `fast`: `layer_types` other than `full_attention`", "--set path=loop")
    heads, hidden_size = read_integer(config, "num_attention_heads"), read_integer(config, "hidden_size")
    kv_heads = read_integer(config, "num_key_value_heads", heads)
    head_dim = read_integer(config, "head_dim", hidden_size // heads)
    if heads % kv_heads:
        raise Failed("model", f"`config.json`: {heads} heads cannot share {kv_heads} key-value heads")
    if head_dim % 2:
        raise Failed("model", f"`config.json`: a head of {head_dim} dimensions cannot be rotated in pairs")
    # Newer configs have all RoPE fields in one object, including the base.
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    rope = {**config.get("rope_parameters", {}), **rope}
    if (part := rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))) != 1.0:
        raise Failed("unsupported", f"path `fast`: `partial_rotary_factor` {part}", "--set path=loop")
    return SimpleNamespace(
        architecture=architecture,
        hidden_size=hidden_size,
        intermediate_size=read_integer(config, "intermediate_size"),
        layers=read_integer(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary_size=read_integer(config, "vocab_size"),
        context_tokens=read_integer(config, "max_position_embeddings"),
        norm_epsilon=read_number(config, "rms_norm_eps", 1e-6),
        rope_theta=read_number(rope, "rope_theta", read_number(config, "rope_theta", 10000.0)),
        rope_scaling=read_rope_scaling(rope),
        window=read_window(architecture, config),
        # Qwen2 has these biases without a config field.
        qkv_bias=architecture == "qwen2" or (not joined and bool(config.get("attention_bias"))),
        output_bias=architecture in ("llama", "qwen3", "gemma") and bool(config.get("attention_bias")),
        mlp_bias=architecture == "llama" and bool(config.get("mlp_bias")),
        head_norms=architecture == "qwen3",
        # Whether the checkpoint has queries, keys and values in one tensor, and gate and up in another.
        joined=joined,
        uses_gelu=is_gemma,
        # Gemma's checkpoints store the weights of norms minus one, and Gemma scales the embeddings of its input.
        norm_offset=1.0 if is_gemma else 0.0,
        embedding_scale=math.sqrt(hidden_size) if is_gemma else None,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def read_window(architecture, config):
    has_window = architecture in ("mistral", "phi3") and config.get("sliding_window") is not None
    return read_integer(config, "sliding_window") if has_window else None


def check_supported(field, value, supported, library_values):
    """Refuses an unsupported value. The hint names path `loop` if `transformers` supports the value."""
    try:
        check_offered(f"path `fast`: {field}", value, supported)
    except Failed as failed:
        hint = "--set path=loop" if value in library_values() else None
        raise Failed(failed.kind, failed.message, hint) from None


def library_architectures():
    # Imported only to refuse a model.
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def library_activations():
    from transformers.activations import ACT2CLS

    return ACT2CLS


def read_rope_scaling(rope):
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        message = f"path `fast`: rope scaling `{str(kind)[:80]}`: expected one of `default`, `llama3`"
        raise Failed("unsupported", message, "--set path=loop")
    low, high = read_number(rope, "low_freq_factor"), read_number(rope, "high_freq_factor")
    if high <= low:
        raise Failed("model", f"`config.json`: `high_freq_factor` {high} is not above `low_freq_factor` {low}")
    original_context = read_integer(rope, "original_max_position_embeddings")
    return SimpleNamespace(factor=read_number(rope, "factor"), low=low, high=high, original_context=original_context)


def read_integer(config, name, default=None):
    value = config.get(name, default)
    if type(value) is not int or not 0 < value < 2**32:
        raise Failed("model", f"`config.json`: `{name}`: expected a whole number of at least 1, found `{str(value)[:80]}`")
    return value


def read_number(config, name, default=None):
    value = config.get(name, default)
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise Failed("model", f"`config.json`: `{name}`: expected a number above 0, found `{str(value)[:80]}`")
    return float(value)


def read_network(folder, shape, dtype, is_int8, progress):
    network = Network(shape, dtype, is_int8)
    targets = tensor_targets(network)
    joined_tensors, missing = {**dict(network.named_parameters()), **dict(network.named_modules())}, dict.fromkeys(targets)
    for number, path in enumerate(folder.weights):
        progress(number / len(folder.weights), path.name)
        try:
            with safe_open(path, framework="pt") as file:
                names = file.keys()
            for name in names:
                # Some checkpoints without the output matrix omit the prefix `model.`.
                full_name = name if name in targets else f"model.{name}"
                if full_name in targets:
                    # Opened again for each tensor: while a file is open, its pages that were read count as memory of the process.
                    with safe_open(path, framework="pt") as file:
                        copy_tensor(name, file.get_tensor(name), joined_tensors, targets[full_name], shape)
                    missing.pop(full_name, None)
        except (SafetensorError, OSError) as error:
            raise Failed("model", f"`{path}`: {error}") from None
    if missing:
        raise Failed("model", f"model `{folder.name}` has no tensor `{next(iter(missing))}`")
    return network


def copy_tensor(name, tensor, joined_tensors, target_rows, shape):
    joined_name, first, rows = target_rows
    target = joined_tensors[joined_name]
    expected = [rows, *target.shape[1:]]
    if tensor.dtype not in CHECKPOINT_DTYPES:
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise Failed("unsupported", f"path `fast`: tensor `{name}` in {dtype}: expected one of `float32`, `float16`, `bfloat16`")
    if list(tensor.shape) != expected:
        raise Failed("model", f"tensor `{name}`: expected the shape {expected}, found {list(tensor.shape)}")
    if isinstance(target, Int8Matrix):
        if not target.write(first, tensor):
            raise Failed("model", f"tensor `{name}` has a number that is not finite, and int8 has no code for it", "--set quantize=none")
        return
    target = target[first : first + rows]
    target.copy_(tensor)
    if joined_name.endswith("norm"):
        target.add_(shape.norm_offset)


def tensor_targets(network):
    """Name of each tensor in a checkpoint -> (joined tensor of the network, first row there, number of rows)."""
    shape = network.shape
    targets = {
        "model.embed_tokens.weight": ("embedding", 0, shape.vocabulary_size),
        "model.norm.weight": ("norm", 0, shape.hidden_size),
    }
    if network.head is not None:
        targets["lm_head.weight"] = ("head", 0, shape.vocabulary_size)
    for index, layer in enumerate(network.layers):
        prefix, path = f"model.layers.{index}.", f"layers.{index}."
        for parameter, parts in layer_parts(shape).items():
            if getattr(layer, parameter) is None:
                continue
            first = 0
            for name, rows in parts:
                targets[prefix + name] = (path + parameter, first, rows)
                first += rows
    return targets


def layer_parts(shape):
    """Tensor of a layer -> its parts in the checkpoint, each with its name and number of rows."""
    hidden, intermediate = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    qkv = {"q_proj": queries, "k_proj": keys, "v_proj": keys} if not shape.joined else {"qkv_proj": queries + 2 * keys}
    gate_up = {"gate_proj": intermediate, "up_proj": intermediate} if not shape.joined else {"gate_up_proj": 2 * intermediate}
    parts = {
        "attention_norm": [("input_layernorm.weight", hidden)],
        "mlp_norm": [("post_attention_layernorm.weight", hidden)],
        "q_norm": [("self_attn.q_norm.weight", shape.head_dim)],
        "k_norm": [("self_attn.k_norm.weight", shape.head_dim)],
    }
    products = {"qkv": ("self_attn", qkv), "output": ("self_attn", {"o_proj": hidden})}
    products |= {"gate_up": ("mlp", gate_up), "down": ("mlp", {"down_proj": hidden})}
    for parameter, (module, rows) in products.items():
        parts[parameter] = [(f"{module}.{name}.weight", count) for name, count in rows.items()]
        parts[f"{parameter}_bias"] = [(f"{module}.{name}.bias", count) for name, count in rows.items()]
    return parts
