"""A loaded model: tinygrad's network with its weights. Generates with tinygrad's own function, scores ids, converts texts, and
reports the configuration in effect. Imports tinygrad."""

import contextlib
import functools
import importlib.metadata
import math
import os
import platform

import numpy
from tinygrad import Device, Tensor, TinyJit, UOp, dtypes, helpers, nn
from tinygrad.codegen.opt import search
from tinygrad.llm import model as library

from compiler import SETTINGS
from engine_kit import Failed, Model, check_logit
from gguf_model import tokenizer_json

# The tokens of a prompt that tinygrad computes in one call.
CHUNK = 32

# tinygrad compiles a function in its first call, captures its kernels in the second, and replays them from the third.
CALLS_TO_COMPILE = 3

NAMES = {dtypes.float32: "f32", dtypes.float16: "f16", dtypes.bfloat16: "bf16"}


def read_network(gguf, context_tokens, unpack):
    """tinygrad's network for a file, whose weights stay packed as in the file unless `unpack` is set."""
    try:
        network, _ = library.Transformer.from_gguf(gguf.path, context_tokens, realize=unpack)
    except (KeyError, ValueError, TypeError, AssertionError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise Failed("model", f"`{gguf.path}`: tinygrad cannot load it: {reason}") from None
    unused = set(gguf.tensors) - set(nn.state.get_state_dict(network)) - {"rope_freqs.weight"}
    if unused:
        raise gguf.unsupported(f"tinygrad ignores its tensor `{min(unused)[:120]}`")
    return network


@contextlib.contextmanager
def scaled_frequencies(factors):
    """Within this context, tinygrad divides the RoPE frequencies of its table by `factors`. It makes the table in the first call of
    a network, without the scaling of the file."""
    original = library.precompute_freqs_cis

    @functools.cache
    def precompute_freqs_cis(dim, end, theta=10000.0, device=None):
        # Constants as in tinygrad's table: a table from a buffer would be computed once, tinygrad's is computed for each token.
        divisors, index = float(factors[-1]), Tensor.arange(0, len(factors), device=device)
        for last in reversed((factors[1:] != factors[:-1]).nonzero()[0].tolist()):
            divisors = (index <= last).where(float(factors[last]), divisors)
        frequencies = 1.0 / (theta ** (Tensor.arange(0, dim, 2, device=device) / dim)) / divisors
        angles = Tensor.arange(end, device=device).unsqueeze(dim=1) * frequencies.unsqueeze(dim=0)  # [positions, pairs]
        return angles.cos().cat(angles.sin(), dim=-1).contiguous()

    if factors is not None:
        library.precompute_freqs_cis = precompute_freqs_cis
    try:
        yield
    finally:
        library.precompute_freqs_cis = original


@contextlib.contextmanager
def reported_searches(progress):
    """Reports progress at the start of each kernel's search. A search of all kernels takes longer than a run waits for a sign of
    a load."""
    original, count = search.beam_search, 0

    def beam_search(*arguments, **fields):
        nonlocal count
        count += 1
        progress(None, f"search of kernel {count}")
        return original(*arguments, **fields)

    search.beam_search = beam_search
    try:
        yield
    finally:
        search.beam_search = original


class TinygradModel(Model):
    def __init__(self, gguf, network, context_tokens, options):
        self._gguf, self._network, self._context_tokens, self._options = gguf, network, context_tokens, options
        self._vocabulary_size = network.token_embd.weight.shape[0]
        self._hidden_states_jit, self._logits_jit = TinyJit(self._hidden_states), TinyJit(self._logits)
        self._facts = None

    def compile(self, progress):
        """Runs every kernel of generation until tinygrad replays it, so that no request compiles. A search also happens here."""
        new_tokens = CALLS_TO_COMPILE + 1
        prompt = [0] * max(1, min((CALLS_TO_COMPILE - 1) * CHUNK + 1, self._context_tokens - new_tokens))
        stream = self._stream(prompt)
        with reported_searches(progress), scaled_frequencies(self._gguf.rope_factors()):
            for count in range(min(new_tokens, self._context_tokens - len(prompt))):
                next(stream)
                progress((count + 1) / new_tokens)
        self._facts = self._read_facts()

    def _stream(self, ids):
        """tinygrad's greedy tokens after these ids. It would keep the positions that two prompts share, so that it is told
        that its cache is empty."""
        self._network._cached_tokens = []
        return self._network.generate(list(ids), temperature=0.0)

    def generate(self, job, tokens):
        (sequence,) = (list(prompt) for prompt in job.prompts)
        stream = self._stream(sequence)
        tokens.set_cached_prompt_tokens(0, self._network.get_start_pos(sequence))
        while not tokens.push(0, self._checked(next(stream))):
            if not job.use_cache:
                stream = self._stream(sequence + tokens.ids(0))

    def _checked(self, id):
        # If every logit is NaN, tinygrad's `argmax` finds no largest one and gives an id beyond the vocabulary.
        if not 0 <= id < self._vocabulary_size:
            check_logit(math.nan, self._gguf.path.name)
        return id

    def _hidden_states(self, tokens, start):
        """The hidden states of a chunk, by the embedding and the blocks that a prompt has compiled already."""
        x = self._network.token_embd(tokens).float()
        for block in self._network.blk:
            x = block(x, start)
        # Chunks have different lengths, and the logits are computed for one length.
        return x.pad_to(1, CHUNK, None).contiguous().realize()

    def _logits(self, x):
        """The logits after every token of a chunk, [1, CHUNK, vocabulary]. tinygrad's `forward` computes those of the last one."""
        return self._network.output(self._network.output_norm(x)).float().realize()

    def score(self, ids):
        self._network._cached_tokens = []
        # The variables and the tensor of tokens are those of `generate`, so that its compiled kernels fit.
        context, count = self._network.max_context, len(ids) - 1
        position, length = UOp.variable("start_pos", 0, context - 1), UOp.variable("toks", 1, CHUNK)
        tokens = Tensor(ids[:-1] + [0] * (context - count), dtype=dtypes.int32).reshape(1, context)
        logprobs = []
        for start in range(0, count, CHUNK):
            first, size = position.bind(start), min(CHUNK, count - start)
            states = self._hidden_states_jit(tokens[:, first : first + length.bind(size)].contiguous(), first)
            # A search for fast kernels belongs to the load.
            with helpers.Context(BEAM=0):
                logits = self._logits_jit(states).numpy()[0, :size].astype(numpy.float64)
            check_logit(logits.max(), self._gguf.path.name)
            logits -= logits.max(axis=-1, keepdims=True)
            chosen = logits[range(size), ids[start + 1 : start + 1 + size]]
            logprobs += (chosen - numpy.log(numpy.exp(logits).sum(axis=-1))).tolist()
        return logprobs

    @functools.cached_property
    def _tokenizer(self):
        from tokenizers import Tokenizer

        return Tokenizer.from_str(tokenizer_json(self._gguf.path))

    def encode(self, text):
        return self._tokenizer.encode(text).ids

    def decode(self, ids):
        return self._tokenizer.decode(ids)

    def facts(self):
        return dict(self._facts)

    def _weights_bytes(self):
        """The bytes of the weights in memory. Packed weights are those of the file."""
        if not self._options.unpack:
            return self._gguf.weights_bytes()
        weights = nn.state.get_state_dict(self._network)
        buffers = {weights[name].uop.base.buffer for name in [*self._gguf.tensors, "output.weight"] if name in weights}
        return sum(buffer.nbytes for buffer in buffers)

    def _read_facts(self):
        network, gguf = self._network, self._gguf
        block, config = network.blk[0], network.blk[0].config
        renderer = Device["CPU"].renderer
        # Not computed: tinygrad derives the dtype of a product without its values.
        product = block.ffn_gate(Tensor.empty(1, 1, config.dim, dtype=dtypes.float32))
        weight_dtype = NAMES[block.ffn_gate.weight.dtype]
        facts = {
            "device": "cpu",
            # A packed weight is unpacked to `weight_dtype` in the kernel that uses it.
            "weights_dtype": weight_dtype if self._options.unpack else gguf.main_dtype(),
            "compute_dtype": NAMES[product.dtype],
            "kv_dtype": NAMES[block.cache_kv.dtype],
            "unpacked_dtype": weight_dtype,
            "architecture": gguf.architecture,
            "threads": renderer.global_max[0] if renderer.has_threads else 1,
            "context_tokens": self._context_tokens,
            "use_cache": True,
            "prefix_cache": False,
            "weights_bytes": self._weights_bytes(),
            "parameters": sum(math.prod(it.shape) for name, it in gguf.tensors.items() if name != "rope_freqs.weight"),
            "vocabulary_size": self._vocabulary_size,
            "hidden_size": config.dim,
            "layers": len(network.blk),
            "heads": config.n_heads,
            "kv_heads": config.n_kv_heads,
            "head_dim": config.head_dim,
            "intermediate_size": config.hidden_dim,
            "eos_ids": gguf.eos_ids(),
            "libraries": {
                "python": platform.python_version(),
                "tinygrad": importlib.metadata.version("tinygrad"),
                "clang": SETTINGS.clang_version,
            },
            "beam": helpers.BEAM.value,
            "jit": helpers.JIT.value,
            "renderer": type(renderer).__name__,
            "file": os.fspath(gguf.path),
        }
        if (bos_id := gguf.metadata.get("tokenizer.ggml.bos_token_id")) is not None:
            facts["bos_id"] = bos_id
        return facts
