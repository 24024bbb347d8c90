"""What a network holds: bytes and dtypes of its weights as they are in memory, whatever wraps them."""

import math
from types import SimpleNamespace

import torch

from devices import NAMES


def what_is_held(network, dtype, parameters, quantised=None):
    """`quantised`: from `quantize.py`: the dtypes that its weights and its products have; None where nothing is."""
    # A tensor that two modules share is there once.
    held = sum(dict(sizes_of(network)).values())
    weights = quantised.weights_dtype if quantised else widest_part(network)
    compute = quantised.compute_dtype if quantised else NAMES[dtype]
    return SimpleNamespace(parameters=parameters, weights_bytes=held, weights_dtype=weights, compute_dtype=compute)


def widest_part(network):
    """The dtype that most of the parameters have."""
    counts = {}
    for parameter in network.parameters():
        counts[parameter.dtype] = counts.get(parameter.dtype, 0) + parameter.numel()
    most = max(counts, key=counts.__getitem__)
    return NAMES.get(most, str(most).removeprefix("torch."))


def count_parameters(folder, network):
    """Numbers that were learnt, shared ones once; of a checkpoint where wrapped weights do not tell."""
    wrapped = any(hasattr(parameter, "quant_state") for parameter in network.parameters())
    if wrapped:
        return sum(math.prod(tensor.shape) for tensor in folder.tensors.values())
    return sum(parameter.numel() for parameter in network.parameters())


def sizes_of(network):
    """What tells a plain tensor from others, and its bytes; of wrapped weights what is inside them."""
    for parameter in network.parameters():
        for tensor in plain(parameter):
            yield tensor.data_ptr(), tensor.numel() * tensor.element_size()
    for module in network.modules():
        packed = getattr(module, "_packed_params", None)
        if isinstance(packed, torch.nn.Module):
            # PyTorch's own dynamic quantisation keeps weights where no parameter is, with a scale for each row.
            weight, bias = packed._weight_bias()
            yield packed, weight.numel() + 8 * weight.shape[0] + (0 if bias is None else 4 * bias.numel())


def plain(tensor):
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain(getattr(tensor, name))
    elif getattr(tensor, "quant_state", None) is not None:
        # bitsandbytes: blocks of codes, and their scales beside them.
        yield tensor.data
        yield from (part for part in (tensor.quant_state.absmax, tensor.quant_state.code) if part is not None)
    else:
        yield tensor
