"""Quantizes loaded weights with the usual libraries of PyTorch. The facts name the library.

Linear layers are quantized, and embeddings are not. `int8-dynamic` also quantizes the output head, as PyTorch does;
`int4` and `nf4` do not, as in `transformers`.
"""

import math
from importlib.metadata import version
from types import SimpleNamespace

import torch

from devices import DTYPE_NAMES
from engine_kit import Failed

# The sizes of groups of 4-bit weights. The first size that divides the number of inputs of every layer is used.
GROUP_SIZES = (128, 64, 32)


def quantize_network(network, kind, device, dtype, for_compiler=False):
    """Quantizes in place. Returns the facts `library`, `weights_dtype` and `compute_dtype`. `for_compiler`: `torch.compile`
    will compile the step, and Inductor fuses only torchao's operations."""
    if kind == "int8-dynamic":
        return _quantize_to_int8(network, device, dtype, for_compiler)
    if kind == "int4":
        return _quantize_to_int4(network, device, dtype)
    raise ValueError(f"`{kind}` quantizes while weights are read")


def nf4_config(dtype):
    """The config for bitsandbytes, which quantizes weights on their way to the device."""
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


def nf4_facts(dtype):
    return SimpleNamespace(library=f"bitsandbytes {version('bitsandbytes')}, nf4", weights_dtype="nf4", compute_dtype=DTYPE_NAMES[dtype])


def _quantize_to_int8(network, device, dtype, for_compiler):
    """Quantizes weights to int8 once, and activations for every product. PyTorch's own function supports only f32 on a CPU.
    Elsewhere torchao quantizes; on a CPU without a compiler its products take many times as long as f32."""
    if device.type == "cpu" and dtype == torch.float32 and not for_compiler:
        qconfigs = {torch.nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig}
        torch.ao.quantization.quantize_dynamic(network, qconfigs, mapping={torch.nn.Linear: DynamicLinear}, inplace=True)
        bits = "7 of 8 bits (no VNNI)" if reduces_range() else "8 bits"
        details = f"{torch.backends.quantized.engine}, activations in {bits}, a scale for each token"
        library = f"torch.ao.quantization.quantize_dynamic, {details}"
    else:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

        quantize_(network, Int8DynamicActivationInt8WeightConfig(set_inductor_config=False))
        library = f"torchao {version('torchao')}, Int8DynamicActivationInt8Weight"
    return SimpleNamespace(library=library, weights_dtype="int8", compute_dtype="int8")


class DynamicLinear(torch.ao.nn.quantized.dynamic.Linear):
    """Adds a scale for each token to PyTorch's int8 product, which has only one scale for the activations of all tokens.
    With one scale, a large number in one token would round small numbers of other tokens to zero. Here each token's row is
    divided by its largest number, and the result is multiplied by that number."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._reduces_range = reduces_range()
        self.register_parameter("unpacked_bias", None)

    def set_weight_bias(self, weight, bias):
        # The bias is added after the multiplication, so PyTorch must not pack it with the weight.
        super().set_weight_bias(weight, None)
        self.unpacked_bias = bias

    def forward(self, x):
        if x.numel() == x.shape[-1]:
            result = self._product(x)
        else:
            largest = torch.linalg.vector_norm(x, math.inf, -1, keepdim=True).clamp_min_(torch.finfo(x.dtype).tiny)
            result = self._product(x / largest).mul_(largest)
        return result if self.unpacked_bias is None else result.add_(self.unpacked_bias)

    def _product(self, x):
        return torch.ops.quantized.linear_dynamic(x, self._packed_params._packed_params, reduce_range=self._reduces_range)


def reduces_range():
    """Whether activations must use 7 bits: without VNNI, the sums of 8-bit products have 16 bits and can overflow. ARM
    processors (`qnnpack`) have wider sums."""
    return torch.backends.quantized.engine != "qnnpack" and not torch.cpu._is_vnni_supported()


def _quantize_to_int4(network, device, dtype):
    """Quantizes weights to 4 bits, with a scale and a zero point for each group. Products are in the dtype of the load."""
    from torchao.quantization import quantize_

    head = network.get_output_embeddings()
    layers = [module for module in network.modules() if _is_linear_except(module, head)]
    group = next((size for size in GROUP_SIZES if all(layer.in_features % size == 0 for layer in layers)), None)
    if group is None or not layers:
        widths = sorted({layer.in_features for layer in layers})
        raise Failed("unsupported", f"quantize `int4`: layers of {widths} inputs cannot be divided into groups of {GROUP_SIZES[-1]}")
    if device.type == "cpu":
        # Only this packing has a kernel on CPUs.
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

        config, packing = PrototypeInt4WeightOnlyConfig(group_size=group, set_inductor_config=False), "opaque"
    else:
        from torchao.quantization import Int4WeightOnlyConfig
        from torchao.quantization.quantize_.workflows.int4.int4_packing_format import Int4PackingFormat

        if dtype != torch.bfloat16:
            raise Failed("unsupported", f"quantize `int4` in {DTYPE_NAMES[dtype]}: its CUDA kernel takes bf16", "--dtype bf16")
        packing = Int4PackingFormat.TILE_PACKED_TO_4D
        config = Int4WeightOnlyConfig(group_size=group, int4_packing_format=packing, set_inductor_config=False)
        packing = packing.value
    quantize_(network, config, filter_fn=lambda module, name: _is_linear_except(module, head))
    skipped = [layer for layer in layers if type(layer.weight.data) is torch.Tensor and type(layer.weight) is torch.nn.Parameter]
    if skipped:
        # If torchao cannot group a layer, it only logs a message.
        raise Failed("unsupported", f"quantize `int4`: torchao did not quantize {len(skipped)} of {len(layers)} layers")
    library = f"torchao {version('torchao')}, int4 weight-only, {packing}, groups of {group}"
    return SimpleNamespace(library=library, weights_dtype="int4", compute_dtype=DTYPE_NAMES[dtype])


def _is_linear_except(module, head):
    return isinstance(module, torch.nn.Linear) and module is not head
