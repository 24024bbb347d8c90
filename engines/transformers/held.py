"""The memory of a network's weights: bytes and dtypes, including wrapped weights."""

import math
from types import SimpleNamespace

import torch

from devices import NAMES


def what_is_held(network, dtype, parameters, quantised=None):
    """The facts of the weights. `quantised` (from `quantize.py`) has the dtypes of weights and products; None without
    quantisation."""
    # A tensor that two modules share counts once.
    held = sum(dict(sizes_of(network)).values())
    weights = quantised.weights_dtype if quantised else widest_part(network)
    compute = quantised.compute_dtype if quantised else NAMES[dtype]
    return SimpleNamespace(parameters=parameters, weights_bytes=held, weights_dtype=weights, compute_dtype=compute)


def widest_part(network):
    """The dtype of most of the parameters."""
    counts = {}
    for parameter in network.parameters():
        counts[parameter.dtype] = counts.get(parameter.dtype, 0) + parameter.numel()
    most = max(counts, key=counts.__getitem__)
    return NAMES.get(most, str(most).removeprefix("torch."))


def count_parameters(folder, network):
    """The number of parameters, shared ones once; from the checkpoint if wrapped weights do not give it."""
    wrapped = any(hasattr(parameter, "quant_state") for parameter in network.parameters())
    if wrapped:
        return sum(math.prod(tensor.shape) for tensor in folder.tensors.values())
    return sum(parameter.numel() for parameter in network.parameters())


def sizes_of(network):
    """A key for each plain tensor, and its bytes; for wrapped weights those of the tensors inside."""
    for parameter in network.parameters():
        for tensor in plain(parameter):
            yield tensor.data_ptr(), tensor.numel() * tensor.element_size()
    for module in network.modules():
        packed = getattr(module, "_packed_params", None)
        if isinstance(packed, torch.nn.Module):
            # PyTorch's own dynamic quantisation keeps weights outside the parameters, with a scale for each row.
            weight, bias = packed._weight_bias()
            yield packed, weight.numel() + 8 * weight.shape[0] + (0 if bias is None else 4 * bias.numel())


def plain(tensor):
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain(getattr(tensor, name))
    elif getattr(tensor, "quant_state", None) is not None:
        # bitsandbytes: blocks of codes, and their scales.
        yield tensor.data
        yield from (part for part in (tensor.quant_state.absmax, tensor.quant_state.code) if part is not None)
    else:
        yield tensor
