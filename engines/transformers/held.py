"""What a network holds: bytes and dtypes of its weights as they are in memory, whatever wraps them."""

from types import SimpleNamespace

import torch

from devices import NAMES


def what_is_held(network, dtype, quantised=None):
    """`quantised`: from `quantize.py`: the dtypes that its weights and its products have; None where nothing is."""
    seen, held = set(), 0
    for tensor in tensors_of(network):
        # A tensor that two modules share is there once.
        if tensor.data_ptr() not in seen or not tensor.data_ptr():
            seen.add(tensor.data_ptr())
            held += tensor.numel() * tensor.element_size()
    weights = quantised.weights_dtype if quantised else widest_part(network)
    compute = quantised.compute_dtype if quantised else NAMES[dtype]
    return SimpleNamespace(weights_bytes=held, weights_dtype=weights, compute_dtype=compute)


def widest_part(network):
    """The dtype that most of the parameters have."""
    counts = {}
    for parameter in network.parameters():
        counts[parameter.dtype] = counts.get(parameter.dtype, 0) + parameter.numel()
    most = max(counts, key=counts.__getitem__)
    return NAMES.get(most, str(most).removeprefix("torch."))


def count_parameters(network):
    """Numbers that were learnt, shared ones once."""
    return sum(parameter.numel() for parameter in network.parameters())


def tensors_of(network):
    """Plain tensors that hold the weights: of wrapped ones what is inside."""
    for parameter in network.parameters():
        yield from plain(parameter)
    for module in network.modules():
        packed = getattr(module, "_packed_params", None)
        if isinstance(packed, torch.nn.Module):
            # PyTorch's own dynamic quantisation keeps weights where no parameter is.
            yield packed._weight_bias()[0].int_repr()


def plain(tensor):
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain(getattr(tensor, name))
    elif getattr(tensor, "quant_state", None) is not None:
        # bitsandbytes: blocks of codes, and their scales beside them.
        yield tensor
        yield from (part for part in (tensor.quant_state.absmax, tensor.quant_state.code) if part is not None)
    else:
        yield tensor
