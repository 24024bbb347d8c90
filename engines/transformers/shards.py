"""Distributes a network over several devices. The plan uses only names and sizes, so its tests need no device."""

import torch

from engine_kit import Failed


def plan(parts, devices):
    """`parts`: names and bytes in the order of computation. Returns name -> device number. Neighbours stay together,
    so that a token crosses each border once, and the fullest device holds as little as possible."""
    if devices > len(parts):
        raise Failed("unsupported", f"`shard` {devices}: the network has {len(parts)} parts to distribute")
    low, high = max(size for _, size in parts), sum(size for _, size in parts)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _devices_for(parts, middle) <= devices else (middle + 1, high)
    return _fill(parts, low, devices)


def _devices_for(parts, capacity):
    used, remaining_bytes = 1, capacity
    for _, size in parts:
        if size > remaining_bytes:
            used, remaining_bytes = used + 1, capacity
        remaining_bytes -= size
    return used


def _fill(parts, capacity, devices):
    """Fills device after device, and leaves each later device at least one part."""
    placed, device, remaining_bytes = {}, 0, capacity
    for index, (name, size) in enumerate(parts):
        remaining = devices - 1 - device
        if device < devices - 1 and index and (size > remaining_bytes or len(parts) - index <= remaining):
            device, remaining_bytes = device + 1, capacity
        placed[name], remaining_bytes = device, remaining_bytes - size
    return placed


def network_parts(network):
    """Names and bytes of the movable parts: every layer, and the modules before and after the layers."""
    base, parts = network.base_model_prefix, []
    for name, child in network.named_children():
        inner = child.named_children() if name == base else [("", child)]
        for within, module in inner:
            path = f"{name}.{within}" if within else name
            if isinstance(module, torch.nn.ModuleList):
                parts += [(f"{path}.{index}", module_bytes(layer)) for index, layer in enumerate(module)]
            else:
                parts.append((path, module_bytes(module)))
    return parts


def module_bytes(module):
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def assign_devices(config, network_class, dtype, first, count):
    """The device map for `from_pretrained`, from device `first` on; and the bytes of weights on each device."""
    device_count = torch.cuda.device_count()
    if first.index + count > device_count:
        raise Failed("unsupported", f"`shard` {count} from `{first}` on: there are {device_count} CUDA devices", f"--set shard={device_count}")
    with torch.device("meta"):
        empty = network_class(config).to(dtype)
    placed, sizes = place_parts(empty, count)
    named = {name: torch.device("cuda", first.index + number) for name, number in placed.items()}
    return named, {torch.device("cuda", first.index + number): size for number, size in enumerate(sizes)}


def place_parts(network, count):
    """Names of parts to device numbers, and the bytes on each. A tied head shares the embedding's device and memory,
    so it is not in the plan."""
    parts = dict(network_parts(network))
    head, embedding = tied_head(network)
    if shared := head in parts and embedding in parts:
        del parts[head]
    placed, sizes = plan(list(parts.items()), count), [0] * count
    for name, size in parts.items():
        sizes[placed[name]] += size
    if shared:
        placed[head] = placed[embedding]
    return placed, sizes


def tied_head(network):
    """The names of the head and of the embedding if both are one tensor; else none."""
    embedding, head = network.get_input_embeddings(), network.get_output_embeddings()
    if head is None or not network.config.get_text_config(decoder=True).tie_word_embeddings:
        return None, None
    names = {id(module): name for name, module in network.named_modules()}
    return names.get(id(head)), names.get(id(embedding))
