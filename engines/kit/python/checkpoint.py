"""Checks the tensors of a model folder before another project's library or converter reads them: many ignore the tensors of
additional layers, and converters that use `transformers` fill missing tensors with random numbers.

This module imports no tensor library, so that a broken folder is reported before any conversion.
"""

import re
from types import SimpleNamespace

import model_folder
from engine_kit_checks import check_offered
from engine_kit_wire import Failed

# The class that each architecture has in the field `architectures` of its config.
CLASSES = {
    "gemma": "GemmaForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

# The sizes of heads that `transformers` assumes if the config has none.
DEFAULT_HEAD_DIM = {"gemma": 256, "qwen3": 128}

# Architectures whose output matrix is the embedding if the config does not say otherwise.
TIED_BY_DEFAULT = ("gemma", "gpt2")

# The architectures with one sliding window for all layers, and the window of `transformers` for a config without the field.
WITH_WINDOW = {"mistral": 4096, "phi3": None}

FLOATS = ("F32", "F16", "BF16")

LAYER_NUMBER = re.compile(r"(?:model|transformer)?\.?(?:layers|h)\.(\d+)\.")


def open_checkpoint(path, architectures):
    """The result of `model_folder.open_folder`, with `tensors`, `sizes` (see `read_sizes`), `context_tokens`, `vocabulary_size`
    and `parameters`. Refuses folders of other architectures, and tensors that are not those of the config."""
    folder = model_folder.open_folder(path)
    config = folder.config
    if folder.architecture is None:
        raise Failed("model", f"`{folder.path / 'config.json'}`: `model_type` is missing")
    check_offered("architecture", folder.architecture, architectures)
    check_offered("`architectures` in `config.json`", _class_of(folder), [CLASSES[folder.architecture]])
    if (quantization := config.get("quantization_config")) is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        quantized = f"`config.json`: the weights are already quantized (`{str(method)[:80]}`)"
        message = f"{quantized}, and this engine reads only unquantized weights"
        raise Failed("unsupported", message, "load the folder of the original weights")
    if not folder.is_indexed and folder.path / model_folder.SINGLE_FILE not in folder.weights:
        raise Failed("model", f"`{folder.path}` has neither `{model_folder.SINGLE_FILE}` nor `{model_folder.INDEX}`")
    if not folder.is_indexed:
        folder.weights = [folder.path / model_folder.SINGLE_FILE]
    folder.sizes = read_sizes(folder.architecture, config)
    folder.tensors = model_folder.read_tensors(folder.weights)
    folder.context_tokens, folder.vocabulary_size = folder.sizes.context_tokens, folder.sizes.vocabulary
    expected = expected_tensors(folder.architecture, folder.sizes)
    _check_tensors(folder, expected)
    if folder.sizes.tied:
        model_folder.refuse_second_output_matrix(folder)
    folder.parameters = sum(_product(shape) for shape in expected.values())
    return folder


def facts(folder):
    """The facts of a load that the folder states."""
    sizes = folder.sizes
    facts = {
        "architecture": folder.architecture,
        "context_tokens": folder.context_tokens,
        "parameters": folder.parameters,
        "vocabulary_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.inner,
        **{name: getattr(sizes, name) for name in ("layers", "heads", "kv_heads", "head_dim")},
        "eos_ids": folder.eos_ids,
    }
    return facts if folder.bos_id is None else {**facts, "bos_id": folder.bos_id}


def _class_of(folder):
    classes = folder.config.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else None
    if not isinstance(first, str):
        raise Failed("model", f"`{folder.path / 'config.json'}`: `architectures` is missing, and the library needs it")
    return first


def read_sizes(architecture, config):
    """The sizes of the network in a config: `hidden`, `inner`, `layers`, `heads`, `kv_heads`, `head_dim`, `vocabulary`,
    `context_tokens`; and whether it has the biases `attention_bias`, `mlp_bias`, and a `tied` output matrix."""

    def number(*names, default=None):
        value = model_folder.first_integer(config, names)
        if value is None and default is None:
            raise Failed("model", f"`config.json`: `{names[0]}` is missing")
        return value or default

    def flag(name, default=False):
        value = config.get(name)
        if value is not None and not isinstance(value, bool):
            raise Failed("model", f"`config.json`: `{name}`: expected true or false, found `{str(value)[:80]}`")
        return default if value is None else value

    hidden, heads = number("hidden_size", "n_embd"), number("num_attention_heads", "n_head")
    return SimpleNamespace(
        hidden=hidden,
        inner=number("intermediate_size", "n_inner", default=4 * hidden if architecture == "gpt2" else None),
        layers=number("num_hidden_layers", "n_layer"),
        heads=heads,
        kv_heads=number("num_key_value_heads", default=heads),
        head_dim=number("head_dim", default=DEFAULT_HEAD_DIM.get(architecture, hidden // heads)),
        vocabulary=number("vocab_size"),
        context_tokens=number("max_position_embeddings", "n_positions"),
        attention_bias=flag("attention_bias"),
        mlp_bias=flag("mlp_bias"),
        tied=flag("tie_word_embeddings", architecture in TIED_BY_DEFAULT),
    )


def expected_tensors(architecture, sizes):
    """The name and the shape of each tensor."""
    if architecture == "gpt2":
        return _gpt2_tensors(sizes)
    hidden, inner = sizes.hidden, sizes.inner
    query, key = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    attention = {"q_proj": (query, hidden), "k_proj": (key, hidden), "v_proj": (key, hidden), "o_proj": (hidden, query)}
    mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    if architecture == "phi3":
        attention = {"qkv_proj": (query + 2 * key, hidden), "o_proj": (hidden, query)}
        mlp = {"gate_up_proj": (2 * inner, hidden), "down_proj": (hidden, inner)}
    biases = ("q_proj", "k_proj", "v_proj") if architecture == "qwen2" else ()
    if sizes.attention_bias and architecture in ("llama", "qwen3", "gemma"):
        biases = tuple(attention)
    shapes = {"model.embed_tokens.weight": (sizes.vocabulary, hidden), "model.norm.weight": (hidden,)}
    for layer in (f"model.layers.{number}." for number in range(sizes.layers)):
        shapes |= {f"{layer}{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{layer}self_attn.{name}.weight": shape for name, shape in attention.items()}
        shapes |= {f"{layer}self_attn.{name}.bias": attention[name][:1] for name in biases}
        shapes |= {f"{layer}mlp.{name}.weight": shape for name, shape in mlp.items()}
        if sizes.mlp_bias and architecture == "llama":
            shapes |= {f"{layer}mlp.{name}.bias": shape[:1] for name, shape in mlp.items()}
        if architecture == "qwen3":
            shapes |= {f"{layer}self_attn.{norm}.weight": (sizes.head_dim,) for norm in ("q_norm", "k_norm")}
    return shapes if sizes.tied else {**shapes, "lm_head.weight": (sizes.vocabulary, hidden)}


def _gpt2_tensors(sizes):
    hidden, inner = sizes.hidden, sizes.inner
    shapes = {"transformer.wte.weight": (sizes.vocabulary, hidden), "transformer.wpe.weight": (sizes.context_tokens, hidden)}
    # GPT-2 stores its matrices with the inputs as rows.
    matrices = {
        "attn.c_attn": (hidden, 3 * hidden), "attn.c_proj": (hidden, hidden), "mlp.c_fc": (hidden, inner), "mlp.c_proj": (inner, hidden)
    }
    norms = ["transformer.ln_f"]
    for layer in (f"transformer.h.{number}." for number in range(sizes.layers)):
        norms += [f"{layer}ln_1", f"{layer}ln_2"]
        shapes |= {f"{layer}{name}.weight": shape for name, shape in matrices.items()}
        shapes |= {f"{layer}{name}.bias": shape[1:] for name, shape in matrices.items()}
    shapes |= {f"{norm}.{part}": (hidden,) for norm in norms for part in ("weight", "bias")}
    return shapes if sizes.tied else {**shapes, "lm_head.weight": (sizes.vocabulary, hidden)}


def rope_kind(config):
    """The kind of rope scaling in a config, `default` without scaling."""
    rope = _rope(config)
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _rope(config):
    """The rotations of positions in a config. `transformers` reads both fields."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise Failed("model", f"`config.json`: `rope_scaling`: expected an object, found `{str(rope)[:80]}`")
    if any(isinstance(value, dict) for value in rope.values()):
        raise Failed("unsupported", "`config.json`: `rope_parameters`: this engine supports only one rotation for all layers")
    return rope


def refuse_other_networks(config, activations):
    """Refuses fields of a config that change the network of the architecture: windows in some layers, rotations of a part of the
    head, attention to later tokens, other activations than `activations`."""
    for name in ("use_sliding_window", "use_bidirectional_attention", "scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if config.get(name):
            raise Failed("unsupported", f"`config.json`: `{name}`: this engine does not support it", "load another model")
    if config.get("scale_attn_weights") is False:
        raise Failed("unsupported", "`config.json`: `scale_attn_weights` false: this engine scales by the head's dimensions")
    for fields in (config, _rope(config)):
        if fields.get("partial_rotary_factor", 1.0) not in (None, 1.0):
            raise Failed("unsupported", "`config.json`: `partial_rotary_factor`: this engine rotates the whole head")
    # The window of an architecture with one window for all layers limits the context.
    kinds, known = config.get("layer_types"), ["full_attention"]
    if config.get("model_type") in WITH_WINDOW:
        known.append("sliding_attention")
    if kinds and not (isinstance(kinds, list) and kinds[0] in known and kinds == kinds[:1] * len(kinds)):
        raise Failed("unsupported", "`config.json`: `layer_types`: this engine supports only layers of one kind")
    for name in ("hidden_act", "hidden_activation", "activation_function"):
        if (activation := config.get(name)) is not None:
            check_offered(f"`{name}` in `config.json`", str(activation), activations)


def limit_context_to_window(folder):
    """Makes the sliding window the longest context: up to there the window hides no token."""
    window = folder.config.get("sliding_window", WITH_WINDOW.get(folder.architecture))
    if folder.architecture in WITH_WINDOW and type(window) is int and 0 < window < folder.context_tokens:
        folder.context_tokens = window


def _check_tensors(folder, expected):
    for name, shape in expected.items():
        # Checkpoints of the network without its output matrix have names without the prefix.
        tensor = folder.tensors.get(name) or folder.tensors.get(name.partition(".")[2])
        if tensor is None:
            raise Failed("model", f"model `{folder.name}` has no tensor `{name}`")
        if tensor.shape != shape:
            raise Failed("model", f"tensor `{name}`: expected the shape {list(shape)}, found {list(tensor.shape)}")
        if tensor.dtype not in FLOATS:
            raise Failed("unsupported", f"tensor `{name}` in {tensor.dtype}: expected one of `F32`, `F16`, `BF16`")
    for name in folder.tensors:
        layer = LAYER_NUMBER.match(name)
        if layer is not None and int(layer[1]) >= folder.sizes.layers:
            layers = f"the config has {folder.sizes.layers} layers"
            raise Failed("model", f"model `{folder.name}` has tensors of layer {layer[1]}, and {layers}")


def _product(shape):
    product = 1
    for size in shape:
        product *= size
    return product
