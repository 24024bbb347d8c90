"""The sizes of `compact.py`, from a config; unsupported features are refused by name.

It imports no tensor library, so that an unsupported model is refused before any heavy import.
"""

import math
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
}
ARCHITECTURES = list(DEFAULTS)


def read_shape(config):
    architecture = config.get("model_type")
    check_computed("architecture", architecture, ARCHITECTURES, library_architectures)
    config = {**DEFAULTS[architecture], **{name: value for name, value in config.items() if value is not None}}
    gemma, joined = architecture == "gemma", architecture == "phi3"
    # `gelu` in a config of Gemma means the tanh form, with which it was trained.
    activations = ["gelu_pytorch_tanh", "gelu"] if gemma else ["silu"]
    check_computed("`hidden_act`", str(config.get("hidden_act", activations[0])), activations, library_activations)
    for field in ("use_bidirectional_attention", "use_sliding_window"):
        if config.get(field):
            raise Failed("unsupported", f"path `fast`: `{field}`", "--set path=loop")
    if any(kind != "full_attention" for kind in config.get("layer_types") or []):
        raise Failed("unsupported", "path `fast`: `layer_types` other than `full_attention`", "--set path=loop")
    heads, hidden_size = integer(config, "num_attention_heads"), integer(config, "hidden_size")
    kv_heads = integer(config, "num_key_value_heads", heads)
    head_dim = integer(config, "head_dim", hidden_size // heads)
    if heads % kv_heads:
        raise Failed("model", f"`config.json`: {heads} heads cannot share {kv_heads} key-value heads")
    if head_dim % 2:
        raise Failed("model", f"`config.json`: a head of {head_dim} dimensions cannot be rotated in pairs")
    # Newer configs keep all RoPE fields in one object, including the base.
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    rope = {**config.get("rope_parameters", {}), **rope}
    if (part := rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))) != 1.0:
        raise Failed("unsupported", f"path `fast`: `partial_rotary_factor` {part}", "--set path=loop")
    return SimpleNamespace(
        architecture=architecture,
        hidden_size=hidden_size,
        intermediate_size=integer(config, "intermediate_size"),
        layers=integer(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary_size=integer(config, "vocab_size"),
        context_tokens=integer(config, "max_position_embeddings"),
        norm_epsilon=number(config, "rms_norm_eps", 1e-6),
        rope_theta=number(rope, "rope_theta", number(config, "rope_theta", 10000.0)),
        rope_scaling=read_rope_scaling(rope),
        window=integer(config, "sliding_window") if "sliding_window" in config and architecture in ("mistral", "phi3") else None,
        # Qwen2 has these biases, but no config field for them.
        qkv_bias=architecture == "qwen2" or (not joined and bool(config.get("attention_bias"))),
        output_bias=architecture in ("llama", "qwen3", "gemma") and bool(config.get("attention_bias")),
        mlp_bias=architecture == "llama" and bool(config.get("mlp_bias")),
        head_norms=architecture == "qwen3",
        joined=joined,
        gelu=gemma,
        # Gemma's norms are stored minus one, and its embeddings are scaled at the input.
        norm_offset=1.0 if gemma else 0.0,
        embedding_scale=math.sqrt(hidden_size) if gemma else None,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def check_computed(field, value, offered, library_values):
    """Refuses an unsupported value. The hint names another path, unless the library does not support the value
    either."""
    try:
        check_offered(f"path `fast`: {field}", value, offered)
    except Failed as failed:
        hint = "--set path=loop" if value in library_values() else None
        raise Failed(failed.kind, failed.message, hint) from None


def library_architectures():
    # Imported only for a refusal.
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
    low, high = number(rope, "low_freq_factor"), number(rope, "high_freq_factor")
    if high <= low:
        raise Failed("model", f"`config.json`: `high_freq_factor` {high} is not above `low_freq_factor` {low}")
    original_context = integer(rope, "original_max_position_embeddings")
    return SimpleNamespace(factor=number(rope, "factor"), low=low, high=high, original_context=original_context)


def integer(config, name, default=None):
    value = config.get(name, default)
    if type(value) is not int or not 0 < value < 2**32:
        raise Failed("model", f"`config.json`: `{name}`: expected a whole number of at least 1, found `{str(value)[:80]}`")
    return value


def number(config, name, default=None):
    value = config.get(name, default)
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise Failed("model", f"`config.json`: `{name}`: expected a number above 0, found `{str(value)[:80]}`")
    return float(value)
