"""From a request to a loaded model, phase by phase. Imports what is heavy, so that the import falls into a load."""

from types import SimpleNamespace

import torch
import transformers.modeling_utils  # noqa: F401  What a first model would import is part of the import.

from devices import DTYPES, check_room, find_device, saying_memory, set_threads, wait_for
from generating import Generating
from held import count_parameters, what_is_held
from looping import Looping
from network import read_config, read_network
from options import STATIC
from static import Static
from text import read_tokenizer

MODELS = {"generate": Generating, "loop": Looping, **dict.fromkeys(STATIC, Static)}


def load(request, folder, options, phases):
    device, dtype = find_device(request.device), DTYPES[request.dtype]
    set_threads(request.threads)
    with phases.time("tokenizer"):
        tokenizer = read_tokenizer(folder)
    check_room(folder.tensors, dtype, [device])
    with phases.time("weights"), saying_memory("weights", device):
        config, network_class = read_config(folder)
        network = read_network(folder, config, network_class, dtype, options)
    with phases.time("device"), saying_memory("moving the weights", device):
        network = network.to(device)
        wait_for(device)
    parameters = count_parameters(network)
    held = what_is_held(network, dtype)
    held.parameters = parameters
    loaded = SimpleNamespace(
        folder=folder,
        network=network,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        options=options,
        context_tokens=request.context_tokens or folder.context_tokens,
        held=held,
        libraries={},
    )
    model = MODELS[options.path](loaded)
    with torch.no_grad(), saying_memory(f"preparing path `{options.path}`", device):
        model.prepare(phases)
    return model
