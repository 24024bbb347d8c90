"""Loads a model for all paths except `fast`, phase by phase, and counts its weights in memory.

The worker imports this module only in a load, because it imports heavy libraries.
"""

import math
from types import SimpleNamespace

import torch
import transformers.modeling_utils  # noqa: F401  Otherwise the phase `weights` would import it.

from devices import DTYPE_NAMES, DTYPES, bytes_as, check_free_memory, explain_memory_errors, find_device, set_threads, wait_for
from growing_cache import GeneratePath, LoopPath
from network import assign_devices, attention_window, read_config, read_network, uses_own_output_matrix
from options import STATIC_CACHE_PATHS, uses_torch_compile
from quantize import nf4_config, nf4_facts, quantize_network
from slots import Overlapping, reason_for_single_requests
from static_cache import StaticCachePath


class OverlappingGeneratePath(Overlapping, GeneratePath):
    pass


class OverlappingLoopPath(Overlapping, LoopPath):
    pass


SINGLE_REQUEST_CLASSES = {"generate": GeneratePath, "loop": LoopPath}
OVERLAPPING_CLASSES = {"generate": OverlappingGeneratePath, "loop": OverlappingLoopPath}


def load(request, folder, options, phases):
    device, dtype = find_device(request.device), DTYPES[request.dtype]
    set_threads(request.threads)
    with phases.time("weights"), explain_memory_errors("weights", device):
        config, network_class = read_config(folder)
        placement, needed_bytes = {}, {device: bytes_as(folder.tensors, dtype)}
        if options.quantize == "nf4":
            # The weights are quantized on their way to the device.
            placement = {"device_map": {"": device}, "quantization_config": nf4_config(dtype)}
        elif options.shard > 1:
            placement["device_map"], needed_bytes = assign_devices(config, network_class, dtype, device, options.shard)
        devices = list(needed_bytes)
        if options.quantize != "nf4":
            check_free_memory(needed_bytes, dtype)
        network = read_network(folder, config, network_class, dtype, options, **placement)
        # Checked now, because quantization may replace the output matrix.
        own_output_matrix = uses_own_output_matrix(network)
    if not placement:
        with phases.time("device"), explain_memory_errors("moving the weights", device):
            network = network.to(device)
            wait_for(device)
    parameters, quantized = count_parameters(folder, network), None
    if options.quantize == "nf4":
        quantized = nf4_facts(dtype)
    elif options.quantize != "none":
        with phases.time("quantize"), explain_memory_errors(f"quantizing to `{options.quantize}`", device):
            quantized = quantize_network(network, options.quantize, device, dtype, uses_torch_compile(options))
            wait_for(device)
    loaded = SimpleNamespace(
        folder=folder,
        network=network,
        device=device,
        devices=devices,
        dtype=dtype,
        options=options,
        context_tokens=folder.context_tokens,
        window=attention_window(config.get_text_config(decoder=True)),
        weights=weight_facts(network, dtype, parameters, quantized),
        effects=effects(options, quantized, devices, own_output_matrix),
    )
    model = make_path(loaded)
    with torch.no_grad(), explain_memory_errors(f"preparing path `{options.path}`", device):
        model.prepare(phases)
    return model


def make_path(loaded):
    """The path of a load. Requests overlap on the paths with a growing cache, if the network allows it."""
    options = loaded.options
    if options.path in STATIC_CACHE_PATHS:
        return StaticCachePath(loaded)
    if reason := reason_for_single_requests(loaded.network, options.attention, loaded.device):
        path = SINGLE_REQUEST_CLASSES[options.path](loaded)
        path.overlap = f"one at a time: {reason}"
        return path
    return OVERLAPPING_CLASSES[options.path](loaded)


def effects(options, quantized, devices, own_output_matrix):
    """The effects of options, defaults and the checkpoint, as text for the facts of the load."""
    effects = {"attention": options.attention}
    if own_output_matrix:
        effects["output matrix"] = "lm_head.weight, although tie_word_embeddings is true"
    if quantized is not None:
        effects["quantized by"] = quantized.library
    if len(devices) > 1:
        effects["devices"] = ", ".join(str(device) for device in devices)
    return effects


def weight_facts(network, dtype, parameters, quantized=None):
    """The facts of the weights for the answer to `load`. `quantized`: the facts from `quantize.py`, or None."""
    weights_bytes = sum(dict(tensor_sizes(network)).values())
    weights_dtype = quantized.weights_dtype if quantized else main_dtype(network)
    compute_dtype = quantized.compute_dtype if quantized else DTYPE_NAMES[dtype]
    return SimpleNamespace(
        parameters=parameters, weights_bytes=weights_bytes, weights_dtype=weights_dtype, compute_dtype=compute_dtype
    )


def main_dtype(network):
    """The dtype that most of the parameters have."""
    counts = {}
    for parameter in network.parameters():
        counts[parameter.dtype] = counts.get(parameter.dtype, 0) + parameter.numel()
    largest = max(counts, key=counts.__getitem__)
    return DTYPE_NAMES.get(largest, str(largest).removeprefix("torch."))


def count_parameters(folder, network):
    """The number of parameters; shared parameters count once."""
    # bitsandbytes packs parameters, so the checkpoint's are counted.
    if any(hasattr(parameter, "quant_state") for parameter in network.parameters()):
        return sum(math.prod(tensor.shape) for tensor in folder.tensors.values())
    return sum(parameter.numel() for parameter in network.parameters())


def tensor_sizes(network):
    """Pairs of a key and a size in bytes for each tensor in memory, including those inside quantized weights. A tensor that two
    modules share has one key."""
    for parameter in network.parameters():
        for tensor in plain_tensors(parameter):
            yield tensor.data_ptr(), tensor.numel() * tensor.element_size()
    for module in network.modules():
        packed = getattr(module, "_packed_params", None)
        if isinstance(packed, torch.nn.Module):
            # PyTorch's own dynamic quantization stores weights outside the parameters, with a scale of 8 bytes for each row.
            weight, bias = packed._weight_bias()
            yield packed, weight.numel() + 8 * weight.shape[0] + (0 if bias is None else 4 * bias.numel())


def plain_tensors(tensor):
    """The tensors of a parameter in memory: several, if a library has quantized the parameter."""
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain_tensors(getattr(tensor, name))
    elif getattr(tensor, "quant_state", None) is not None:
        # A parameter of bitsandbytes: codes, the scales of its quantization blocks, and the value of each code.
        yield tensor.data
        yield from (part for part in (tensor.quant_state.absmax, tensor.quant_state.code) if part is not None)
    else:
        yield tensor
