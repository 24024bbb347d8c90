"""Loads a model, phase by phase. It imports heavy libraries, so that the import happens in a load."""

from types import SimpleNamespace

import torch
import transformers.modeling_utils  # noqa: F401  A first model's imports belong to this phase.

from devices import DTYPES, bytes_as, check_room, find_device, saying_memory, set_threads, wait_for
from generating import Generating
from held import count_parameters, what_is_held
from looping import Looping
from network import read_config, read_network
from options import STATIC, by_inductor
from quantize import nf4_config, nf4_facts, quantise
from shards import share_out
from static import Static

MODELS = {"generate": Generating, "loop": Looping, **dict.fromkeys(STATIC, Static)}


def load(request, folder, options, phases):
    device, dtype = find_device(request.device), DTYPES[request.dtype]
    set_threads(request.threads)
    with phases.time("weights"), saying_memory("weights", device):
        config, network_class = read_config(folder)
        placement, needs = {}, {device: bytes_as(folder.tensors, dtype)}
        if options.quantize == "nf4":
            # The target device quantises the blocks.
            placement = {"device_map": {"": device}, "quantization_config": nf4_config(dtype)}
        elif options.shard > 1:
            placement["device_map"], needs = share_out(config, network_class, dtype, device, options.shard)
        devices = list(needs)
        if options.quantize != "nf4":
            check_room(needs, dtype)
        network = read_network(folder, config, network_class, dtype, options, **placement)
    if not placement:
        with phases.time("device"), saying_memory("moving the weights", device):
            network = network.to(device)
            wait_for(device)
    parameters, quantised = count_parameters(folder, network), None
    if options.quantize == "nf4":
        quantised = nf4_facts(dtype)
    elif options.quantize != "none":
        with phases.time("quantize"), saying_memory(f"quantising to `{options.quantize}`", device):
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
        held=what_is_held(network, dtype, parameters, quantised),
        choices=choices(options, quantised, devices),
    )
    model = MODELS[options.path](loaded)
    with torch.no_grad(), saying_memory(f"preparing path `{options.path}`", device):
        model.prepare(phases)
    return model


def choices(options, quantised, devices):
    """The effects of options and defaults, in words for a reader of the row."""
    said = {"attention": options.attention}
    if quantised is not None:
        said["quantized by"] = quantised.library
    if len(devices) > 1:
        said["devices"] = ", ".join(str(device) for device in devices)
    return said
