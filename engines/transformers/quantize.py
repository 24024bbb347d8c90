"""Quantises loaded weights with the libraries that PyTorch's users use. The facts name the library.

Every linear layer is quantised; embeddings are looked up and keep their dtype. The output head is a linear layer:
`int8-dynamic` includes it like PyTorch's recipe does, 4 bits exclude it like `transformers` does.
"""

import math
from importlib.metadata import version
from types import SimpleNamespace

import torch

from devices import NAMES
from engine_kit import Failed

# Group sizes of 4-bit formats; the first that divides every layer is used.
GROUPS = (128, 64, 32)


def quantise(network, kind, device, dtype, by_inductor=False):
    """Quantises in place. `library` describes the library; `weights_dtype` and `compute_dtype` are those in effect.
    `by_inductor`: the step will be compiled, which fuses torchao's operations but not PyTorch's own."""
    if kind == "int8-dynamic":
        return _int8_dynamic(network, device, dtype, by_inductor)
    if kind == "int4":
        return _int4(network, device, dtype)
    raise ValueError(f"`{kind}` quantises while weights are read")


def nf4_config(dtype):
    """The config for bitsandbytes, which quantises weights on their way to the device."""
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


def nf4_facts(dtype):
    return SimpleNamespace(library=f"bitsandbytes {version('bitsandbytes')}, nf4", weights_dtype="nf4", compute_dtype=NAMES[dtype])


def _int8_dynamic(network, device, dtype, by_inductor):
    """Quantises weights to int8 once, and activations for every product. On a CPU in f32 it uses PyTorch's own
    recipe, with a scale for each row of a matrix; its kernels take only f32. Otherwise it uses torchao's, which on a
    CPU without a compiler takes a hundred times as long."""
    if device.type == "cpu" and dtype == torch.float32 and not by_inductor:
        scaled = {torch.nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig}
        torch.ao.quantization.quantize_dynamic(network, scaled, mapping={torch.nn.Linear: DynamicLinear}, inplace=True)
        bits = "7 of 8 bits (no VNNI)" if reduces_range() else "8 bits"
        details = f"{torch.backends.quantized.engine}, activations in {bits}, a scale for each token"
        library = f"torch.ao.quantization.quantize_dynamic, {details}"
    else:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

        quantize_(network, Int8DynamicActivationInt8WeightConfig(set_inductor_config=False))
        library = f"torchao {version('torchao')}, Int8DynamicActivationInt8Weight"
    return SimpleNamespace(library=library, weights_dtype="int8", compute_dtype="int8")


class DynamicLinear(torch.ao.nn.quantized.dynamic.Linear):
    """PyTorch's own product, with a scale for each token. Its operator has one scale for all rows, so one large
    number in a prompt would zero the small ones of every token. So each row is divided by its largest number first,
    and the result is multiplied by it again."""

    def __init__(self, *sizes, **further):
        super().__init__(*sizes, **further)
        self._reduces_range = reduces_range()
        self.register_parameter("added", None)

    def set_weight_bias(self, weight, bias):
        # The bias is added after the rows are scaled back, so it is not packed.
        super().set_weight_bias(weight, None)
        self.added = bias

    def forward(self, x):
        if x.numel() == x.shape[-1]:
            result = self._product(x)
        else:
            largest = torch.linalg.vector_norm(x, math.inf, -1, keepdim=True).clamp_min_(torch.finfo(x.dtype).tiny)
            result = self._product(x / largest).mul_(largest)
        return result if self.added is None else result.add_(self.added)

    def _product(self, x):
        return torch.ops.quantized.linear_dynamic(x, self._packed_params._packed_params, reduce_range=self._reduces_range)


def reduces_range():
    """Whether activations must use 7 bits: without VNNI, 8-bit products are summed in 16 bits and can overflow. The
    engine of ARM processors has wider sums."""
    return torch.backends.quantized.engine != "qnnpack" and not torch.cpu._is_vnni_supported()


def _int4(network, device, dtype):
    """Weights in 4 bits with a scale and a zero for each group, products in the dtype of the load."""
    from torchao.quantization import quantize_

    head = network.get_output_embeddings()
    layers = [module for module in network.modules() if _is_linear(module, head)]
    group = next((group for group in GROUPS if all(layer.in_features % group == 0 for layer in layers)), None)
    if group is None or not layers:
        widths = sorted({layer.in_features for layer in layers})
        raise Failed("unsupported", f"quantize `int4`: layers of {widths} inputs cannot be divided into groups of {GROUPS[-1]}")
    if device.type == "cpu":
        # The only packing with a kernel on CPUs.
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
    skipped = [layer for layer in layers if type(layer.weight.data) is torch.Tensor and type(layer.weight) is torch.nn.Parameter]
    if skipped:
        # torchao skips layers that it cannot group, with only a log message.
        raise Failed("unsupported", f"quantize `int4`: torchao did not quantise {len(skipped)} of {len(layers)} layers")
    library = f"torchao {version('torchao')}, int4 weight-only, {packing}, groups of {group}"
    return SimpleNamespace(library=library, weights_dtype="int4", compute_dtype=NAMES[dtype])


def _is_linear(module, head):
    return isinstance(module, torch.nn.Linear) and module is not head
