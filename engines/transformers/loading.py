"""Loads a model, phase by phase, and counts its weights in memory. It imports heavy libraries, so that the import happens
in a load.
"""

import math
from types import SimpleNamespace

import torch
import transformers.modeling_utils  # noqa: F401  A first model's imports belong to this phase.

from devices import DTYPES, NAMES, bytes_as, check_free_memory, find_device, explaining_memory, set_threads, wait_for
from growing import Generating, Looping
from network import read_config, read_network
from options import STATIC, by_inductor
from quantize import nf4_config, nf4_facts, quantise
from shards import assign_devices
from static import Static

MODELS = {"generate": Generating, "loop": Looping, **dict.fromkeys(STATIC, Static)}


def load(request, folder, options, phases):
    device, dtype = find_device(request.device), DTYPES[request.dtype]
    set_threads(request.threads)
    with phases.time("weights"), explaining_memory("weights", device):
        config, network_class = read_config(folder)
        placement, needs = {}, {device: bytes_as(folder.tensors, dtype)}
        if options.quantize == "nf4":
            # The target device quantises the blocks.
            placement = {"device_map": {"": device}, "quantization_config": nf4_config(dtype)}
        elif options.shard > 1:
            placement["device_map"], needs = assign_devices(config, network_class, dtype, device, options.shard)
        devices = list(needs)
        if options.quantize != "nf4":
            check_free_memory(needs, dtype)
        network = read_network(folder, config, network_class, dtype, options, **placement)
    if not placement:
        with phases.time("device"), explaining_memory("moving the weights", device):
            network = network.to(device)
            wait_for(device)
    parameters, quantised = count_parameters(folder, network), None
    if options.quantize == "nf4":
        quantised = nf4_facts(dtype)
    elif options.quantize != "none":
        with phases.time("quantize"), explaining_memory(f"quantising to `{options.quantize}`", device):
            quantised = quantise(network, options.quantize, device, dtype, by_inductor(options))
            wait_for(device)
    loaded = SimpleNamespace(
        folder=folder,
        network=network,
        device=device,
        devices=devices,
        dtype=dtype,
        options=options,
        context_tokens=request.context_tokens or folder.context_tokens,
        weights=weight_facts(network, dtype, parameters, quantised),
        choices=choices(options, quantised, devices),
    )
    model = MODELS[options.path](loaded)
    with torch.no_grad(), explaining_memory(f"preparing path `{options.path}`", device):
        model.prepare(phases)
    return model


def choices(options, quantised, devices):
    """The effects of options and defaults, as text for the row."""
    effects = {"attention": options.attention}
    if quantised is not None:
        effects["quantized by"] = quantised.library
    if len(devices) > 1:
        effects["devices"] = ", ".join(str(device) for device in devices)
    return effects


def weight_facts(network, dtype, parameters, quantised=None):
    """The facts of the weights. `quantised` (from `quantize.py`) has the dtypes of weights and products; None without
    quantisation."""
    # A tensor that two modules share counts once.
    count = sum(dict(tensor_sizes(network)).values())
    weights = quantised.weights_dtype if quantised else main_dtype(network)
    compute = quantised.compute_dtype if quantised else NAMES[dtype]
    return SimpleNamespace(parameters=parameters, weights_bytes=count, weights_dtype=weights, compute_dtype=compute)


def main_dtype(network):
    """The dtype of most of the parameters."""
    counts = {}
    for parameter in network.parameters():
        counts[parameter.dtype] = counts.get(parameter.dtype, 0) + parameter.numel()
    largest = max(counts, key=counts.__getitem__)
    return NAMES.get(largest, str(largest).removeprefix("torch."))


def count_parameters(folder, network):
    """The number of parameters, shared ones once; from the checkpoint if wrapped weights do not give it."""
    wrapped = any(hasattr(parameter, "quant_state") for parameter in network.parameters())
    if wrapped:
        return sum(math.prod(tensor.shape) for tensor in folder.tensors.values())
    return sum(parameter.numel() for parameter in network.parameters())


def tensor_sizes(network):
    """A key for each plain tensor, and its bytes; for wrapped weights those of the tensors inside."""
    for parameter in network.parameters():
        for tensor in plain_tensors(parameter):
            yield tensor.data_ptr(), tensor.numel() * tensor.element_size()
    for module in network.modules():
        packed = getattr(module, "_packed_params", None)
        if isinstance(packed, torch.nn.Module):
            # PyTorch's own dynamic quantisation keeps weights outside the parameters, with a scale for each row.
            weight, bias = packed._weight_bias()
            yield packed, weight.numel() + 8 * weight.shape[0] + (0 if bias is None else 4 * bias.numel())


def plain_tensors(tensor):
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain_tensors(getattr(tensor, name))
    elif getattr(tensor, "quant_state", None) is not None:
        # bitsandbytes: blocks of codes, and their scales.
        yield tensor.data
        yield from (part for part in (tensor.quant_state.absmax, tensor.quant_state.code) if part is not None)
    else:
        yield tensor
