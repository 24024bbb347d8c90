"""Loads the weights to the device and runs the unoptimised loop over tokens.

Only the load imports this module, so that hello does not import PyTorch.
"""

import importlib.metadata
import platform

import torch
from safetensors import SafetensorError, safe_open

from batch import Batch, Cache
from engine_kit import Failed, Model, Sampler, check_logit
from gpt2 import GPT2
from model import Decoder, Gemma, Phi3, Qwen3
from model_folder import DIMENSIONS, FolderTokenizerMixin

NETWORKS = {
    "llama": Decoder,
    "mistral": Decoder,
    "qwen2": Decoder,
    "qwen3": Qwen3,
    "phi3": Phi3,
    "gemma": Gemma,
    "gpt2": GPT2,
}

# PyTorch's default number of threads, read before a load changes the number.
DEFAULT_THREADS = torch.get_num_threads()

# The dtypes of weights and of arithmetic, by name. Weights in files may have the same dtypes.
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def load(request, folder, keeps_cache, phases):
    device = find_device(request.device)
    torch.set_num_threads(request.threads or DEFAULT_THREADS)
    with phases.time("weights"):
        decoder = read_decoder(folder, phases, DTYPES[request.dtype])
    with phases.time("device"):
        decoder.to(device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return Baseline(folder, decoder, device, request.dtype, keeps_cache)


class Baseline(FolderTokenizerMixin, Model):
    def __init__(self, folder, decoder, device, dtype, keeps_cache):
        self._folder, self._decoder, self._keeps_cache = folder, decoder, keeps_cache
        self._device, self._dtype = device, dtype
        self._parameters = sum(parameter.numel() for parameter in decoder.parameters())

    @torch.no_grad()
    def generate(self, job, tokens):
        sequences, sampler = [list(prompt) for prompt in job.prompts], Sampler(job.sampling)
        cache = Cache() if self._keeps_cache and job.use_cache else None
        while not tokens.all_done():
            batch = Batch(sequences, job.padding, self._device, cache)
            logits = self._decoder(batch)[batch.last]  # [sequences, vocabulary]
            check_logit(float(logits.max()), self._folder.name)
            if job.sampling is None:
                # Among equal logits `argmax` takes the lowest id.
                ids = logits.argmax(dim=-1).tolist()
            else:
                ids = [sampler.pick(row, number) for number, row in enumerate(logits.tolist())]
            for number, id in enumerate(ids):
                # The batch keeps its shape: a sequence that is done is still computed, and its tokens are ignored.
                if not tokens.is_done(number):
                    tokens.push(number, id)
                sequences[number].append(id)

    @torch.no_grad()
    def score(self, ids):
        return self.score_with_most_likely(ids)[0]

    @torch.no_grad()
    def score_with_most_likely(self, ids):
        logits = self._logits(ids)[:-1]  # [tokens - 1, vocabulary]
        check_logit(float(logits.max()), self._folder.name)
        logprobs = torch.log_softmax(logits.double(), dim=-1)
        targets = torch.tensor(ids[1:], device=self._device)
        # Among equal logits `argmax` takes the lowest id, as in `generate`.
        most_likely = logits.argmax(dim=-1)
        values = [logprobs.gather(1, chosen[:, None])[:, 0].tolist() for chosen in (targets, most_likely)]
        return values[0], most_likely.tolist(), values[1]

    def _logits(self, ids):
        return self._decoder(Batch([ids], "left", self._device))[0]  # [tokens, vocabulary]

    def facts(self):
        facts = {
            "device": str(self._device),
            "weights_dtype": self._dtype,
            "compute_dtype": self._dtype,
            "threads": torch.get_num_threads(),
            "architecture": self._folder.architecture,
            "context_tokens": self._folder.context_tokens,
            "use_cache": self._keeps_cache,
            "prefix_cache": False,
            "weights_bytes": DTYPES[self._dtype].itemsize * self._parameters,
            "parameters": self._parameters,
            "vocabulary_size": self._folder.shape.vocabulary_size,
            "hidden_size": self._folder.shape.hidden_size,
            **{name: getattr(self._folder.shape, name) for name in DIMENSIONS},
            "eos_ids": self._folder.eos_ids,
            "libraries": library_versions(),
        }
        if self._keeps_cache:
            facts["kv_dtype"] = self._dtype
        if self._folder.bos_id is not None:
            facts["bos_id"] = self._folder.bos_id
        if self._device.type == "cuda":
            facts["device_memory"] = {
                "in_use_bytes": torch.cuda.memory_allocated(self._device),
                "peak_bytes": torch.cuda.max_memory_allocated(self._device),
                "reserved_bytes": torch.cuda.memory_reserved(self._device),
            }
        return facts


def find_device(name):
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise Failed("device", f"no CUDA device for `{name}`: PyTorch {torch.__version__} finds none", "--device cpu")
    number = name.removeprefix("cuda").removeprefix(":") or "0"
    if not number.isdecimal() or int(number) >= torch.cuda.device_count():
        raise Failed("device", f"no CUDA device `{name}`: PyTorch finds {torch.cuda.device_count()}", "--device cuda:0")
    return torch.device("cuda", int(number))


def read_decoder(folder, phases, dtype):
    """Reads the weights and copies them in this dtype, so that a measurement reads no page of a mapped file."""
    with torch.device("meta"):
        decoder = NETWORKS[folder.architecture](folder.shape)
    expected_shapes = {name: parameter.shape for name, parameter in decoder.named_parameters()}
    weights = {}
    for index, path in enumerate(folder.weights):
        phases.progress("weights", index / len(folder.weights), path.name)
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():
                    full_name = name if name in expected_shapes else decoder.prefix + name
                    if full_name in expected_shapes:
                        weights[full_name] = converted(name, file.get_tensor(name), dtype)
        except (SafetensorError, OSError) as error:
            raise Failed("model", f"`{path}`: {error}") from None
    for name, shape in expected_shapes.items():
        if name not in weights:
            raise Failed("model", f"model `{folder.name}` has no tensor `{name}`")
        if weights[name].shape != shape:
            shapes = f"expected the shape {list(shape)}, found {list(weights[name].shape)}"
            raise Failed("model", f"tensor `{name}`: {shapes}")
    decoder.load_state_dict(weights, assign=True)
    return decoder.requires_grad_(False)


def converted(name, tensor, dtype):
    if tensor.dtype not in DTYPES.values():
        found = str(tensor.dtype).removeprefix("torch.")
        raise Failed("unsupported", f"tensor `{name}` in {found}: expected one of `float32`, `float16`, `bfloat16`")
    return tensor.to(dtype, copy=True)


def library_versions():
    versions = {name: importlib.metadata.version(name) for name in ("torch", "safetensors", "tokenizers")}
    if torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
    return {"python": platform.python_version(), **versions}
