"""Loads a checkpoint's files into the network of `compact.py`, and maps its tensors to the joined ones."""

import torch
from safetensors import SafetensorError, safe_open

from compact import Network
from compact_product import Int8Matrix
from engine_kit import Failed

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def read_network(folder, shape, dtype, int8, progress):
    network = Network(shape, dtype, int8)
    targets = tensor_targets(network)
    parameters, written = {**dict(network.named_parameters()), **dict(network.named_modules())}, {name: 0 for name in targets}
    for number, path in enumerate(folder.weights):
        progress(number / len(folder.weights), path.name)
        try:
            with safe_open(path, framework="pt") as file:
                names = file.keys()
            for name in names:
                # A checkpoint without the output matrix omits the prefix `model.`.
                known = name if name in targets else f"model.{name}"
                if known in targets:
                    # Opened again for each tensor: the pages of a file count for the process while it is open.
                    with safe_open(path, framework="pt") as file:
                        copy(name, file.get_tensor(name), parameters, targets[known], shape)
                    written[known] += 1
        except (SafetensorError, OSError) as error:
            raise Failed("model", f"`{path}`: {error}") from None
    for name, times in written.items():
        if not times:
            raise Failed("model", f"model `{folder.name}` has no tensor `{name}`")
    return network


def copy(name, tensor, parameters, target_rows, shape):
    parameter, first, rows = target_rows
    target = parameters[parameter]
    expected = [rows, *target.shape[1:]]
    if tensor.dtype not in DTYPES:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise Failed("unsupported", f"path `fast`: tensor `{name}` in {kind}: expected one of `float32`, `float16`, `bfloat16`")
    if list(tensor.shape) != expected:
        raise Failed("model", f"tensor `{name}`: expected the shape {expected}, found {list(tensor.shape)}")
    if isinstance(target, Int8Matrix):
        if not target.write(first, tensor):
            raise Failed("model", f"tensor `{name}`: it has a number that is not finite, which int8 cannot hold", "--set quantize=none")
        return
    target = target[first : first + rows]
    target.copy_(tensor)
    if parameter.endswith("norm"):
        target.add_(shape.norm_offset)


def tensor_targets(network):
    """The name of each tensor in a checkpoint -> (the network's own tensor, its first row there, its rows)."""
    shape = network.shape
    targets = {
        "model.embed_tokens.weight": ("embedding", 0, shape.vocabulary_size),
        "model.norm.weight": ("norm", 0, shape.hidden_size),
    }
    if network.head is not None:
        targets["lm_head.weight"] = ("head", 0, shape.vocabulary_size)
    for index, layer in enumerate(network.layers):
        prefix, path = f"model.layers.{index}.", f"layers.{index}."
        for parameter, rows in layer_parts(shape).items():
            if getattr(layer, parameter) is None:
                continue
            first = 0
            for name, count in rows:
                targets[prefix + name] = (path + parameter, first, count)
                first += count
    return targets


def layer_parts(shape):
    """The layer's own tensors, each with the checkpoint's names and row counts of its parts."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    qkv = {"q_proj": queries, "k_proj": keys, "v_proj": keys} if not shape.joined else {"qkv_proj": queries + 2 * keys}
    gate_up = {"gate_proj": inner, "up_proj": inner} if not shape.joined else {"gate_up_proj": 2 * inner}
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
