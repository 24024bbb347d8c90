"""Path `fast`: PyTorch at its fastest. It has a network of its own (`fast_network.py`), a decode step that is compiled as a
whole at the load, and a KV cache at a fixed address. In greedy requests, only token ids cross between host and device."""

import math
import os
import shutil
from types import SimpleNamespace

import torch
import torch._dynamo

from decode_path import MAX_SCORE_ROWS, DecodePath, TokenChooser, logprobs, make_batch, push_ids
from decode_steps import compare_logits, compile_cache_state, end_compilers, expected_logits
from devices import DTYPES, bytes_as, check_free_memory, explain_memory_errors, find_device, free_bytes, set_threads, wait_for
from engine_kit import Failed
from fast_checkpoint import read_network, read_shape
from fast_network import Decoder
from model_folder import refuse_second_output_matrix

# The number of log-probabilities at the end of a score that the compiled step computes, so that output checks verify the
# measured kernels. The prefill, which is measured too, computes the earlier ones.
SCORED_BY_STEPS = 16

# The largest share of free memory for keys and values, if the request names no context.
MAX_CACHE_SHARE = 0.5

QUANTIZED_BY = "this engine itself (fast_network.py), int8 weight-only, a scale for each row"


def load(request, folder, options, phases):
    device, dtype = find_device(request.device), DTYPES[request.dtype]
    set_threads(request.threads)
    # Frees compiled code of an earlier model, which would keep that model's weights in memory.
    torch._dynamo.reset()
    check_options(request.options)
    shape = read_shape(folder.config)
    if shape.tied_embeddings:
        refuse_second_output_matrix(folder)
    check_compiler(device)
    is_int8 = options.quantize == "int8"
    weights_dtype = torch.int8 if is_int8 else dtype
    check_free_memory({device: bytes_as(folder.tensors, weights_dtype)}, weights_dtype)
    with phases.time("weights"), explain_memory_errors("weights", device):
        network = read_network(folder, shape, dtype, is_int8, lambda share, file: phases.progress("weights", share, file))
    with phases.time("device"), explain_memory_errors("moving the weights", device):
        network = network.to(device)
        wait_for(device)
    loaded = SimpleNamespace(
        folder=folder,
        network=network,
        device=device,
        dtype=dtype,
        options=options,
        context_tokens=context_in_effect(request.context_tokens, shape, dtype, device),
        devices=[device],
        window=shape.window,
        weights=weight_facts(network, request.dtype, is_int8),
        effects={"quantized by": QUANTIZED_BY} if is_int8 else {},
    )
    model = FastPath(loaded)
    with phases.time("compile"), torch.no_grad(), explain_memory_errors("compiling the step", device):
        model.prepare()
    return model


class FastPath(DecodePath):
    LIBRARIES = ("torch", "safetensors", "tokenizers")

    def __init__(self, loaded):
        super().__init__(loaded)
        self.network.prepare(loaded.context_tokens)
        self._decoders, self._uses_graphs = {}, loaded.device.type == "cuda"

    def prepare(self):
        """Compiles the step of one sequence at the load. The step of each batch size and cache length is compiled at its
        first use."""
        self._decoder_and_step(1, self.loaded.context_tokens)

    def run(self, job, tokens):
        if not job.use_cache:
            raise Failed("unsupported", "`use_cache` false: the step of path `fast` needs its cache", "--set path=loop")
        batch, chooser = make_batch(job.prompts, job.padding, self.device), TokenChooser(job, tokens)
        decoder, step = self._decoder_and_step(batch.sequences, batch.columns + job.max_new_tokens)
        decoder.prefill(batch.ids, None if batch.mask is None else batch.mask.bool())
        if chooser.is_sampling:
            self._sample(decoder, step, batch.columns, chooser, tokens)
        elif self._uses_graphs:
            self._decode_ahead(decoder, step, batch.columns, job.max_new_tokens, tokens)
        else:
            cached_tokens = batch.columns
            while not push_ids(tokens, decoder.ids.tolist()):
                cached_tokens += 1
                step(cached_tokens)

    def _sample(self, decoder, step, cached_tokens, chooser, tokens):
        """Copies logits to the host, which samples by the protocol's rules."""
        while True:
            decoder.ids.copy_(chooser(decoder.logits))
            if push_ids(tokens, decoder.ids.tolist()):
                return
            cached_tokens += 1
            step(cached_tokens)

    def _decode_ahead(self, decoder, step, cached_tokens, new_tokens, tokens):
        """Submits the next step to the device before the host has read the last id."""
        transfer = IdTransfer(len(decoder.ids), self.device)
        transfer.send(0, decoder.ids)
        for index in range(new_tokens):
            if index + 1 < new_tokens:
                cached_tokens += 1
                step(cached_tokens)
                transfer.send(index + 1, decoder.ids)
            if push_ids(tokens, transfer.receive(index)):
                break
        # After an early end one step is still running. Its time belongs to this request.
        transfer.wait()

    @torch.no_grad()
    def score(self, ids):
        with explain_memory_errors(f"score ({len(ids)} tokens)", self.device):
            decoder, step = self._decoder_and_step(1, len(ids))
            first = max(1, len(ids) - 1 - SCORED_BY_STEPS)
            sequence = torch.tensor(ids, device=self.device)
            x = decoder.prefill(sequence[None, :first])[0]  # [first, hidden]
            values = []
            for rows, targets in zip(x.split(MAX_SCORE_ROWS), sequence[1 : first + 1].split(MAX_SCORE_ROWS)):
                values += logprobs(self.network.logits(rows), targets)
            for index in range(first, len(ids) - 1):
                decoder.ids.copy_(sequence[index : index + 1])
                step(index + 1)
                values += logprobs(decoder.logits, sequence[index + 1 : index + 2])
        return values

    def _decoder_and_step(self, sequences, tokens):
        """Returns a decoder for this many sequences and tokens, and its step. For a single sequence the cache has the whole
        context. Of the decoders for batches, only the last one is kept."""
        length = self.loaded.context_tokens if sequences == 1 else self._cache_length(tokens)
        if (sequences, length) not in self._decoders:
            self._decoders = {key: pair for key, pair in self._decoders.items() if key[0] == 1}
            decoder = Decoder(self.network, sequences, length, reads_only_written=not self._uses_graphs)
            step = GraphsByLength(decoder, self._cache_length) if self._uses_graphs else CompiledStep(decoder)
            step.prepare()
            self._decoders[sequences, length] = decoder, step
        return self._decoders[sequences, length]

    def _cache_length(self, tokens):
        """The smallest sufficient cache length: `cache_tokens`, twice as many, four times, ..."""
        smallest = self.loaded.options.cache_tokens
        doublings = max(0, math.ceil(math.log2(tokens / smallest)))
        return min(smallest << doublings, self.loaded.context_tokens)

    def effects(self):
        graphs = "captured in CUDA graphs by length" if self._uses_graphs else "one step for every length"
        effects = {
            "decode": f"own loop and network, static cache, torch.compile (inductor), {graphs}",
            "prefill": "eager, scaled_dot_product_attention",
        }
        if (cache_state := compile_cache_state()) is not None:
            effects["inductor cache"] = cache_state
        return {**super().effects(), **effects}


class CompiledStep:
    """A decode step that is compiled once for every length. The caller passes the number of cached tokens, including the
    token that the step adds."""

    # The length for which the compiler tunes its loops, in tokens. Other lengths run the same code.
    TYPICAL_TOKENS = 512

    COMPILE_OPTIONS = {
        # Fused multiply-add, as in PyTorch's own kernels.
        "cpp.enable_floating_point_contract_flag": "fast",
        # Computes the input of a product once, not again for every row of the matrix.
        "realize_reads_threshold": 1,
    }

    def __init__(self, decoder):
        self._decoder = decoder
        self._spans = torch.empty(decoder.context_tokens + 1, dtype=torch.bool, device=decoder.ids.device)
        self._step = self._compile(decoder.step)

    def __call__(self, tokens):
        self._run(tokens)

    def _compile(self, step):
        return torch.compile(step, fullgraph=True, options=self.COMPILE_OPTIONS)

    def prepare(self):
        """Compiles at a typical length, and compares the result with the plain step. Compares again at other lengths with
        other ids: these runs must neither need another compilation nor use constants of the first run."""
        typical = min(self.TYPICAL_TOKENS, self._decoder.context_tokens)
        self._compare_at(typical, self._first_run)
        for tokens in (max(2, typical // 16), 2):
            self._compare_at(tokens, self._run)
        end_compilers()

    def _compare_at(self, tokens, run):
        """Compares `run` with the plain step, for the step that adds the last of this many tokens."""
        decoder = self._decoder
        decoder.fill_cache(tokens - 1)
        ids = torch.arange(tokens, tokens + len(decoder.ids), device=decoder.ids.device)
        decoder.ids.copy_(ids % decoder.logits.shape[-1])
        with decoder.restore_state():
            decoder.step(self._span(tokens))
            expected = expected_logits(decoder.logits)
        # Clears the position that the plain step wrote: a step that writes elsewhere must not read the plain step's result.
        for buffers in (decoder.keys, decoder.values):
            for index in range(len(decoder.network.layers)):
                buffers[index][:, :, tokens - 1].zero_()
        run(tokens)
        compare_logits(expected, decoder.logits, "fast")

    def _first_run(self, tokens):
        try:
            self._run(tokens)
        except (MemoryError, torch.OutOfMemoryError, Failed):
            raise
        except Exception as error:
            raise compiler_failure(error) from error

    def _run(self, tokens):
        self._step(self._span(tokens))

    def _span(self, tokens):
        """A tensor of this length. To the compiler a length can be a symbol, so all lengths have one step."""
        span = self._spans[:tokens]
        torch._dynamo.mark_dynamic(span, 0)
        return span


class GraphsByLength(CompiledStep):
    """A compiled step, captured as a CUDA graph for each of a few lengths. `length_for` gives the captured length for a
    number of tokens. A graph always reads that length, and a mask hides unwritten tokens. The state is on the device, so a
    replay needs no arguments."""

    # With this option the compiler also writes products with one row itself, at the speed of memory.
    COMPILE_OPTIONS = {"coordinate_descent_tuning": True}

    def __init__(self, decoder, length_for):
        super().__init__(decoder)
        self._length_for, self._graphs, self._pool = length_for, {}, None

    def __call__(self, tokens):
        length = self._length_for(tokens)
        if length not in self._graphs:
            self._graphs[length] = self._capture(length)
        self._graphs[length].replay()

    def prepare(self):
        """Captures every length of the cache, so that no request of a single sequence waits for a capture."""
        super().prepare()
        length = 0
        while length < self._decoder.context_tokens:
            length = self._length_for(length + 1)
            self._compare_at(length, self)

    def _capture(self, length):
        with self._decoder.restore_state():
            # The first call compiles and tunes, which must happen outside the graph.
            warm_up, current = torch.cuda.Stream(), torch.cuda.current_stream()
            warm_up.wait_stream(current)
            with torch.cuda.stream(warm_up):
                self._run(length)
            current.wait_stream(warm_up)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                self._run(length)
            self._pool = self._pool or graph.pool()
        return graph


class IdTransfer:
    """Copies the ids of each step to the host asynchronously. Two buffers in pinned memory are used in turn, each with an
    event for which the host waits before it reads."""

    def __init__(self, sequences, device):
        self._device = device
        self._ids = torch.empty(2, sequences, dtype=torch.long, pin_memory=True)
        self._events = [torch.cuda.Event(), torch.cuda.Event()]

    def send(self, index, ids):
        self._ids[index % 2].copy_(ids, non_blocking=True)
        self._events[index % 2].record(torch.cuda.current_stream(self._device))

    def receive(self, index):
        self._events[index % 2].synchronize()
        return self._ids[index % 2].tolist()

    def wait(self):
        torch.cuda.current_stream(self._device).synchronize()


def check_options(options):
    """Refuses an option without effect."""
    if options.get("attention") is not None:
        raise Failed("unsupported", "option `attention` has no effect with path `fast`", "--set path=loop")


def check_compiler(device):
    """Checks for a C++ compiler, with which Inductor compiles the loops of a CPU step."""
    compiler = os.environ.get("CXX") or "g++"
    if device.type == "cpu" and shutil.which(compiler) is None:
        message = f"path `fast` compiles its step, and the C++ compiler `{compiler}` is missing"
        raise Failed("unavailable", message, "apt-get install g++")


def compiler_failure(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0][:300] if lines else type(error).__name__
    return Failed("internal", f"path `fast`: cannot compile the step: {type(error).__name__}: {first}", "--set path=loop")


def weight_facts(network, dtype, is_int8):
    """The facts of the weights. The scales of int8 rows count as bytes, but not as parameters of the checkpoint."""
    size = sum(parameter.nbytes for parameter in network.parameters())
    numbers = sum(parameter.numel() for name, parameter in network.named_parameters() if not name.endswith(".scales"))
    return SimpleNamespace(parameters=numbers, weights_bytes=size, weights_dtype="int8" if is_int8 else dtype, compute_dtype=dtype)


def context_in_effect(requested, shape, dtype, device, free_on=free_bytes):
    """The requested context. Without a request: the model's, halved until keys and values fit into `MAX_CACHE_SHARE` of free
    memory."""
    context = requested or shape.context_tokens
    if shape.window is not None and context > shape.window:
        message = f"path `fast`: a context of {context} tokens, and the model's sliding window is {shape.window}"
        raise Failed("unsupported", message, "--set path=loop")
    if requested is None and (unused := free_on(device)) is not None:
        token_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * dtype.itemsize
        while context * token_bytes > MAX_CACHE_SHARE * unused and context > 1:
            context //= 2
    return context
