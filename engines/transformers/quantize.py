"""Weights made narrower after they were loaded, by the libraries that PyTorch's users do it with. Each says which one did it.

What is quantised is every linear layer; what is looked up and not multiplied (embeddings) keeps its dtype. The output head
is a linear layer: `int8-dynamic` takes it along as PyTorch's recipe does, 4 bits leave it alone as `transformers` does.
"""

from importlib.metadata import version
from types import SimpleNamespace

import torch

from devices import NAMES
from engine_kit import Failed

# Weights that share a scale in 4-bit formats; the first that every layer can be cut into.
GROUPS = (128, 64, 32)


def quantise(network, kind, device, dtype, by_inductor=False):
    """Quantises in place. `library` is what did it, in words; `weights_dtype` and `compute_dtype` are what is true now.
    `by_inductor`: the step will go through a compiler, which fuses torchao's parts and cannot look into PyTorch's own."""
    if kind == "int8-dynamic":
        return _int8_dynamic(network, device, dtype, by_inductor)
    if kind == "int4":
        return _int4(network, device, dtype)
    raise ValueError(f"`{kind}` is done while weights are read")


def nf4_config(dtype):
    """For bitsandbytes, which quantises as the weights come to the device."""
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


def nf4_facts(dtype):
    return SimpleNamespace(library=f"bitsandbytes {version('bitsandbytes')}, nf4", weights_dtype="nf4", compute_dtype=NAMES[dtype])


def _int8_dynamic(network, device, dtype, by_inductor):
    """Weights in int8 once, activations in int8 for every product. On a CPU in f32 that is PyTorch's own recipe, with a
    scale for each row of a matrix; its kernels take f32 alone. Elsewhere it is torchao's, which rounds less, and on a CPU
    without a compiler takes a hundred times as long."""
    if device.type == "cpu" and dtype == torch.float32 and not by_inductor:
        engine = torch.backends.quantized.engine
        scaled = {torch.nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig}
        torch.ao.quantization.quantize_dynamic(network, scaled, inplace=True)
        library = f"torch.ao.quantization.quantize_dynamic, {engine}"
    else:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

        quantize_(network, Int8DynamicActivationInt8WeightConfig(set_inductor_config=False))
        library = f"torchao {version('torchao')}, Int8DynamicActivationInt8Weight"
    return SimpleNamespace(library=library, weights_dtype="int8", compute_dtype="int8")


def _int4(network, device, dtype):
    """Weights in 4 bits with a scale and a zero for each group, products in the dtype of the load."""
    from torchao.quantization import quantize_

    head = network.get_output_embeddings()
    layers = [module for module in network.modules() if _is_linear(module, head)]
    group = next((group for group in GROUPS if all(layer.in_features % group == 0 for layer in layers)), None)
    if group is None or not layers:
        widths = sorted({layer.in_features for layer in layers})
        raise Failed("unsupported", f"quantize `int4`: layers of {widths} inputs cannot be cut into groups of {GROUPS[-1]}")
    if device.type == "cpu":
        # The one packing that has a kernel on CPUs.
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

        config, packing = PrototypeInt4WeightOnlyConfig(group_size=group, set_inductor_config=False), "opaque"
    else:
        from torchao.quantization import Int4WeightOnlyConfig
        from torchao.quantization.quantize_.workflows.int4.int4_packing_format import Int4PackingFormat

        if dtype != torch.bfloat16:
            raise Failed("unsupported", f"quantize `int4` in {NAMES[dtype]}: its CUDA kernel takes bf16", "--dtype bf16")
        packing = Int4PackingFormat.TILE_PACKED_TO_4D
        config = Int4WeightOnlyConfig(group_size=group, int4_packing_format=packing, set_inductor_config=False)
        packing = packing.value
    quantize_(network, config, filter_fn=lambda module, name: _is_linear(module, head))
    left = [layer for layer in layers if type(layer.weight.data) is torch.Tensor and type(layer.weight) is torch.nn.Parameter]
    if left:
        # torchao passes over what it cannot cut, with a remark in a log.
        raise Failed("unsupported", f"quantize `int4`: torchao left {len(left)} of {len(layers)} layers as they were")
    library = f"torchao {version('torchao')}, int4 weight-only, {packing}, groups of {group}"
    return SimpleNamespace(library=library, weights_dtype="int4", compute_dtype=NAMES[dtype])


def _is_linear(module, head):
    return isinstance(module, torch.nn.Linear) and module is not head
