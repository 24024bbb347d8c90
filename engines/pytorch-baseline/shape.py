"""Reads the sizes of a network from `config.json`, and refuses unsupported features by name.

This module imports no tensor library, so that a wrong config is reported before any heavy import.
"""

from types import SimpleNamespace

from engine_kit import Failed, check_offered

# Defaults of missing config fields for each architecture, as in Hugging Face `transformers`.
DEFAULTS = {
    "llama": {},
    "mistral": {"sliding_window": 4096},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "phi3": {"rms_norm_eps": 1e-5},
    "gemma": {"head_dim": 256, "tie_word_embeddings": True},
    "gpt2": {"tie_word_embeddings": True},
}
ARCHITECTURES = list(DEFAULTS)

# Supported activations. The first of each list is the default.
LLAMA_ACTIVATIONS = ["silu"]
GPT2_ACTIVATIONS = ["gelu_new", "gelu_pytorch_tanh"]
# `gelu` in a config of Gemma means the tanh form, with which Gemma was trained.
GEMMA_ACTIVATIONS = ["gelu_pytorch_tanh", "gelu"]

# More layers than any model has, but few enough to build before the weights are checked.
MAX_LAYERS = 4096


def read_shape(config):
    architecture = config.get("model_type")
    if not isinstance(architecture, str):
        raise Failed("model", "`config.json`: `model_type` is missing")
    check_offered("architecture", architecture, ARCHITECTURES)
    config = {**DEFAULTS[architecture], **config}
    shape = _read_gpt2_shape(config) if architecture == "gpt2" else _read_llama_shape(architecture, config)
    if shape.heads % shape.kv_heads:
        raise Failed("model", f"`config.json`: {shape.heads} heads cannot share {shape.kv_heads} key-value heads")
    return shape


def _read_llama_shape(architecture, config):
    """The shape of Llama and of the other architectures with Llama's config fields."""
    _check_activation(config, "hidden_act", GEMMA_ACTIVATIONS if architecture == "gemma" else LLAMA_ACTIVATIONS)
    _refuse_flag(config, "use_bidirectional_attention", "this engine attends to earlier tokens only")
    attention_bias = _read_attention_bias(architecture, config)
    heads, hidden_size = _read_integer(config, "num_attention_heads"), _read_integer(config, "hidden_size")
    head_dim = _read_integer(config, "head_dim", hidden_size // heads)
    if head_dim % 2:
        raise Failed("model", f"`config.json`: a head of {head_dim} dimensions cannot be rotated in pairs")
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise Failed("model", f"`config.json`: `rope_scaling`: expected an object, found `{str(rope)[:80]}`")
    for fields in (config, rope):
        if (factor := _read_number(fields, "partial_rotary_factor", 1.0)) != 1.0:
            raise Failed("unsupported", f"`partial_rotary_factor` {factor}: this engine rotates the whole head")
    return SimpleNamespace(
        architecture=architecture,
        context_tokens=_read_integer(config, "max_position_embeddings"),
        hidden_size=hidden_size,
        intermediate_size=_read_integer(config, "intermediate_size"),
        layers=_read_integer(config, "num_hidden_layers", largest=MAX_LAYERS),
        heads=heads,
        kv_heads=_read_integer(config, "num_key_value_heads", heads),
        head_dim=head_dim,
        vocabulary_size=_read_integer(config, "vocab_size"),
        norm_epsilon=_read_number(config, "rms_norm_eps", 1e-6),
        rope_theta=_read_number(rope if "rope_theta" in rope else config, "rope_theta", 10000.0),
        rope_scaling=_read_rope_scaling(rope),
        window=_read_window(architecture, config),
        # Qwen2 always has these biases. Its config has no field for them.
        qkv_bias=attention_bias or architecture == "qwen2",
        output_bias=attention_bias,
        mlp_bias=_read_flag(config, "mlp_bias"),
        tied_embeddings=_read_flag(config, "tie_word_embeddings"),
    )


def _read_gpt2_shape(config):
    """The shape of GPT-2. Its config has different field names."""
    _check_activation(config, "activation_function", GPT2_ACTIVATIONS)
    _refuse_flag(config, "scale_attn_by_inverse_layer_idx", "this engine scales all layers alike")
    _refuse_flag(config, "add_cross_attention", "this engine has no encoder to attend to")
    if not _read_flag(config, "scale_attn_weights", True):
        message = "`scale_attn_weights` false: this engine divides attention scores by the square root of the head dimension"
        raise Failed("unsupported", message)
    heads, hidden_size = _read_integer(config, "n_head"), _read_integer(config, "n_embd")
    if hidden_size % heads:
        raise Failed("model", f"`config.json`: {heads} heads cannot share a hidden size of {hidden_size}")
    return SimpleNamespace(
        architecture="gpt2",
        context_tokens=_read_integer(config, "n_positions"),
        hidden_size=hidden_size,
        intermediate_size=_read_integer(config, "n_inner", 4 * hidden_size),
        layers=_read_integer(config, "n_layer", largest=MAX_LAYERS),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden_size // heads,
        vocabulary_size=_read_integer(config, "vocab_size"),
        norm_epsilon=_read_number(config, "layer_norm_epsilon", 1e-5),
        tied_embeddings=_read_flag(config, "tie_word_embeddings"),
    )


def _read_window(architecture, config):
    """The number of tokens that a token attends to, including itself. None: no limit."""
    # With this field of Qwen, some layers have a window.
    _refuse_flag(config, "use_sliding_window", "this engine attends to the whole sequence")
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise Failed("unsupported", "`layer_types`: this engine computes `full_attention` in every layer")
    if architecture not in ("mistral", "phi3") or config.get("sliding_window") is None:
        return None
    return _read_integer(config, "sliding_window")


def _read_attention_bias(architecture, config):
    """Whether the config gives biases to all four attention projections. Refuses biases that the architecture cannot have."""
    if architecture != "llama":
        _refuse_flag(config, "mlp_bias", f"architecture `{architecture}` has no such biases")
    if architecture == "qwen2":
        return False
    if architecture in ("mistral", "phi3"):
        _refuse_flag(config, "attention_bias", f"architecture `{architecture}` has no such biases")
    return _read_flag(config, "attention_bias")


def _read_rope_scaling(rope):
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise Failed("unsupported", f"rope scaling `{str(kind)[:80]}`: expected one of `default`, `llama3`")
    low, high = _read_number(rope, "low_freq_factor"), _read_number(rope, "high_freq_factor")
    if high <= low:
        raise Failed("model", f"`config.json`: `high_freq_factor` {high} is not above `low_freq_factor` {low}")
    return SimpleNamespace(
        factor=_read_number(rope, "factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_context=_read_integer(rope, "original_max_position_embeddings"),
    )


def _check_activation(config, name, offered):
    activation = config.get(name)
    check_offered(f"`{name}`", offered[0] if activation is None else str(activation), offered)


def _refuse_flag(config, name, reason):
    if _read_flag(config, name):
        raise Failed("unsupported", f"`{name}`: {reason}")


def _read_flag(config, name, default=False):
    value = config.get(name)
    value = default if value is None else value
    if type(value) is not bool:
        raise Failed("model", f"`config.json`: `{name}`: expected true or false, found `{str(value)[:80]}`")
    return value


def _read_integer(config, name, default=None, largest=2**32 - 1):
    value = config.get(name)
    value = default if value is None else value
    if type(value) is not int or not 0 < value < 2**32:
        raise Failed("model", f"`config.json`: `{name}`: expected a whole number of at least 1, found `{str(value)[:80]}`")
    if value > largest:
        raise Failed("model", f"`config.json`: `{name}`: expected at most {largest}, found `{value}`")
    return value


def _read_number(config, name, default=None):
    value = config.get(name)
    value = default if value is None else value
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise Failed("model", f"`config.json`: `{name}`: expected a number above 0, found `{str(value)[:80]}`")
    return float(value)
