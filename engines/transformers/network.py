"""Hugging Face's network from a folder, with weights only from the folder, on one device or divided over several."""

import logging
import warnings

import torch
import transformers
from transformers import AutoConfig, GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from devices import requested_bytes
from engine_kit import Failed

# The library's name of each value of the option `attention`; `decode_path.py` restricts `flash` to one kernel.
LIBRARY_ATTENTION = {"sdpa": "sdpa", "eager": "eager", "flash": "sdpa"}

# Each kind of layer with a limited window, and the config field with the length of that window in tokens.
WINDOW_FIELDS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}

# The libraries warn of their own deprecations, and of settings that are deliberate here.
for category in (DeprecationWarning, FutureWarning, UserWarning):
    warnings.filterwarnings("ignore", category=category)
for name in ("torch", "torchao", "transformers"):
    logging.getLogger(name).setLevel(logging.ERROR)


def read_config(folder):
    """The config as `transformers` reads it, and the class of the network that the config names."""
    architecture = folder.architecture
    if architecture not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        cause = f"transformers {transformers.__version__} has no causal language model of that name"
        raise Failed("unsupported", f"architecture `{architecture[:80]}`: {cause}")
    try:
        config = AutoConfig.from_pretrained(folder.path, local_files_only=True, trust_remote_code=False)
        network_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except Exception as error:
        # The library uses the values of a config unchecked, so any exception is possible.
        raise broken_config(folder, error) from None
    return config, network_class


def read_network(folder, config, network_class, dtype, options, **placement):
    """The network in evaluation mode, with every tensor from the folder."""
    try:
        network, report = network_class.from_pretrained(
            folder.path,
            config=config,
            dtype=dtype,
            attn_implementation=LIBRARY_ATTENTION[options.attention],
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            # Otherwise the library prints every tensor with a wrong shape; the message below names one.
            ignore_mismatched_sizes=True,
            **placement,
        )
    except Exception as error:
        if isinstance(error, MemoryError) or requested_bytes(error) is not None:
            raise
        if "attention" in str(error) and "support" in str(error):
            message = f"attention `{options.attention}` of architecture `{folder.architecture}`: {one_line(error)}"
            raise Failed("unsupported", message, "--set attention=eager") from None
        try:
            with torch.device("meta"):
                network_class(config)
        except Exception as config_error:
            raise broken_config(folder, config_error) from None
        raise Failed("model", f"model `{folder.name}`: {error_and_class(error)}") from None
    if report["mismatched_keys"]:
        raise Failed("model", shape_difference(folder, *min(report["mismatched_keys"])))
    # `transformers` would fill missing weights with random numbers.
    if missing := sorted(report["missing_keys"]):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise Failed("model", f"model `{folder.name}` has no tensor `{missing[0]}`{more}")
    if report["error_msgs"]:
        raise Failed("model", f"model `{folder.name}`: {report['error_msgs'][0][:300]}")
    # A request has all generation settings, so those of the folder must have no effect.
    network.generation_config = GenerationConfig()
    return network.eval().requires_grad_(False)


def shape_difference(folder, name, shape, expected):
    """The config field that causes a mismatch, if known; else the tensor and both shapes."""
    rows = {tensor.shape[0] for name, tensor in folder.tensors.items() if "embed" in name or "wte" in name}
    if folder.vocabulary_size and rows and folder.vocabulary_size not in rows:
        return f"model `{folder.name}`: its `vocab_size` is {folder.vocabulary_size}, and its embedding has {max(rows)} rows"
    return f"tensor `{name}`: expected the shape {list(expected)}, found {list(shape)}"


def layer_kinds(config):
    """The kind of every layer: from the config's list, or from its field for windows."""
    if (kinds := getattr(config, "layer_types", None)) is not None:
        return list(kinds)
    kind = next((kind for kind, field in WINDOW_FIELDS.items() if getattr(config, field, None) is not None), "full_attention")
    return [kind] * config.num_hidden_layers


def attention_window(config):
    """The smallest number of last tokens that a layer attends to; None if every layer attends to all tokens."""
    kinds = set(layer_kinds(config))
    return min((getattr(config, field) for kind, field in WINDOW_FIELDS.items() if kind in kinds), default=None)


def broken_config(folder, error):
    return Failed("model", f"`{folder.path / 'config.json'}`: {error_and_class(error)}")


def error_and_class(error):
    """The class and the message of an error: the message of a `KeyError` is only a key."""
    text = one_line(error)
    return text if text == type(error).__name__ else f"{type(error).__name__}: {text}"


def one_line(error):
    # PyTorch's compiler appends advice on debugging.
    text = " ".join(str(error).partition("Set TORCHDYNAMO_VERBOSE")[0].split())
    return (text or type(error).__name__)[:300]


def divide_parts(parts, device_count):
    """Divides `parts` (names and bytes in the order of computation) over this many devices. Returns name -> device number.
    Parts keep their order, so that a token visits each device once. The fullest device gets as few bytes as possible."""
    if device_count > len(parts):
        raise Failed("unsupported", f"`shard` {device_count}: the network has {len(parts)} parts to distribute")
    low, high = max(size for _, size in parts), sum(size for _, size in parts)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _count_devices(parts, middle) <= device_count else (middle + 1, high)
    return _fill(parts, low, device_count)


def _count_devices(parts, capacity):
    """The number of devices that the parts need in their order, with at most `capacity` bytes on each."""
    used, remaining_bytes = 1, capacity
    for _, size in parts:
        if size > remaining_bytes:
            used, remaining_bytes = used + 1, capacity
        remaining_bytes -= size
    return used


def _fill(parts, capacity, device_count):
    """Fills device after device, and leaves each later device at least one part."""
    placed, device, remaining_bytes = {}, 0, capacity
    for index, (name, size) in enumerate(parts):
        later_devices = device_count - 1 - device
        if later_devices and index and (size > remaining_bytes or len(parts) - index <= later_devices):
            device, remaining_bytes = device + 1, capacity
        placed[name], remaining_bytes = device, remaining_bytes - size
    return placed


def network_parts(network):
    """Names and bytes of the movable parts: every layer, and the modules before and after the layers."""
    base, parts = network.base_model_prefix, []
    for name, child in network.named_children():
        inner = child.named_children() if name == base else [("", child)]
        for inner_name, module in inner:
            path = f"{name}.{inner_name}" if inner_name else name
            if isinstance(module, torch.nn.ModuleList):
                parts += [(f"{path}.{index}", module_bytes(layer)) for index, layer in enumerate(module)]
            else:
                parts.append((path, module_bytes(module)))
    return parts


def module_bytes(module):
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def assign_devices(config, network_class, dtype, first_device, count):
    """The device map for `from_pretrained`, with `count` devices from `first_device` on, and the bytes of weights by device."""
    available = torch.cuda.device_count()
    if first_device.index + count > available:
        raise Failed("unsupported", f"`shard` {count} from `{first_device}` on: there are {available} CUDA devices", f"--set shard={available - first_device.index}")
    with torch.device("meta"):
        empty = network_class(config).to(dtype)
    placed, sizes = place_parts(empty, count)
    device_map = {name: torch.device("cuda", first_device.index + number) for name, number in placed.items()}
    return device_map, {torch.device("cuda", first_device.index + number): size for number, size in enumerate(sizes)}


def place_parts(network, count):
    """Returns name -> device number for each part, and the bytes on each device. A tied head is placed with the embedding,
    whose memory it shares."""
    parts = dict(network_parts(network))
    head, embedding = tied_head(network)
    if is_tied := head in parts and embedding in parts:
        del parts[head]
    placed, sizes = divide_parts(list(parts.items()), count), [0] * count
    for name, size in parts.items():
        sizes[placed[name]] += size
    if is_tied:
        placed[head] = placed[embedding]
    return placed, sizes


def uses_own_output_matrix(network):
    """Whether the config ties the output matrix to the embedding, and the library does not: the checkpoint has an output
    matrix with other numbers, and the library uses it."""
    embedding, head = network.get_input_embeddings(), network.get_output_embeddings()
    is_tied = network.config.get_text_config(decoder=True).tie_word_embeddings
    return bool(is_tied) and head is not None and head.weight is not embedding.weight


def tied_head(network):
    """The names of the head and of the embedding if they share one tensor; else (None, None)."""
    embedding, head = network.get_input_embeddings(), network.get_output_embeddings()
    if head is None or not network.config.get_text_config(decoder=True).tie_word_embeddings:
        return None, None
    names = {id(module): name for name, module in network.named_modules()}
    return names.get(id(head)), names.get(id(embedding))
