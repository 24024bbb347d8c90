"""The network for `path=fast`: the decoder of Llama and similar models, its KV cache, and its products in several dtypes.

Matrices with the same input are joined. The cache has a fixed address, and the step itself advances the decode state, so that
the step can be compiled whole and replayed. Norms, rotations and the step's attention are computed in f32 in every load. A
prompt's attention and the results of products are in the dtype of the load, even with int8 matrices.
"""

import math
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention, silu

# The weights of norms are in f32 in every load: they are few, and the input of a norm is converted to f32.
NORM_DTYPE = torch.float32

# The product of a matrix and one row of activations is bound by memory, and the compiler writes it as a loop over the matrix's
# rows. The matrix is divided into this many panels (2 or 1 if its rows cannot be divided by 4), and the loop takes one row of
# each panel at a time. So the processor prefetches several streams, and computes independent sums. More panels are slower.
PANELS = 4

# The most columns in one sum. For a longer sum the compiler uses a more precise method at half the speed.
MAX_SUM_COLUMNS = 4096

# The number of weights of an int8 matrix that are converted at once. On a CPU they fit into the caches; on CUDA they are
# enough work for a kernel. Weights are quantized on the CPU, and dequantized on the device of the product.
WEIGHTS_PER_PIECE = {"cpu": 2**20, "cuda": 2**26}

# The most rows of activations that a compiled loop multiplies with an int8 matrix. More rows are faster with the dequantized
# matrix. On CUDA the loop supports only one row.
MAX_LOOP_ROWS = {"cpu": 8, "cuda": 1}

# The largest int8 code. -128 is unused, so that the range is symmetric.
MAX_CODE = 127


class Network(nn.Module):
    """Computes hidden states from token ids and their positions. The caller provides the attention."""

    def __init__(self, shape, dtype, is_int8=False):
        """With `is_int8`, the matrices, including the embeddings, are `Int8Matrix`."""
        super().__init__()
        self.shape, self.dtype = shape, dtype
        make_matrix = Int8Matrix if is_int8 else partial(empty_parameter, dtype)
        self.embedding = make_matrix(shape.vocabulary_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape, dtype, make_matrix) for _ in range(shape.layers))
        self.norm = empty_parameter(NORM_DTYPE, shape.hidden_size)
        self.head = None if shape.tied_embeddings else make_matrix(shape.vocabulary_size, shape.hidden_size)
        # Rounded to the dtype of the load, as in Gemma's own code.
        scale = shape.embedding_scale
        self.embedding_scale = None if scale is None else float(torch.tensor(scale, dtype=dtype, device="cpu"))

    def prepare(self, context_tokens):
        """Computes the rotations of all positions, and stores them on the device of the weights."""
        cosines, sines = rotations(self.shape, context_tokens, self.norm.device)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)

    def forward(self, ids, positions, attend):
        """`ids`, `positions`: [rows]. `attend(layer index, q, k, v)` gets [rows, heads, head_dim], with `kv_heads` in `k` and
        `v`, and returns [rows, heads * head_dim]."""
        table = self.embedding
        x = table.lookup(ids, self.dtype) if isinstance(table, Int8Matrix) else table[ids]  # [rows, hidden]
        if self.embedding_scale is not None:
            x = x * self.embedding_scale
        cosines, sines = self.cosines[positions], self.sines[positions]  # [rows, 1, head_dim / 2]
        for index, layer in enumerate(self.layers):
            q, k, v = layer.attention_inputs(x, cosines, sines)
            x = layer.add_outputs(x, attend(index, q, k, v))
        return rms_norm(x, self.norm, self.shape.norm_epsilon)  # [rows, hidden]

    def logits(self, x):
        return product(x, self.embedding if self.head is None else self.head)  # [rows, vocabulary]


class Layer(nn.Module):
    def __init__(self, shape, dtype, make_matrix):
        super().__init__()
        self.shape = shape
        hidden, intermediate = shape.hidden_size, shape.intermediate_size
        q_size, kv_size = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.attention_norm, self.mlp_norm = empty_parameter(NORM_DTYPE, hidden), empty_parameter(NORM_DTYPE, hidden)
        self.qkv = make_matrix(q_size + 2 * kv_size, hidden)
        self.qkv_bias = empty_parameter(dtype, q_size + 2 * kv_size) if shape.qkv_bias else None
        self.q_norm = empty_parameter(NORM_DTYPE, shape.head_dim) if shape.head_norms else None
        self.k_norm = empty_parameter(NORM_DTYPE, shape.head_dim) if shape.head_norms else None
        self.output = make_matrix(hidden, q_size)
        self.output_bias = empty_parameter(dtype, hidden) if shape.output_bias else None
        self.gate_up = make_matrix(2 * intermediate, hidden)
        self.gate_up_bias = empty_parameter(dtype, 2 * intermediate) if shape.mlp_bias else None
        self.down = make_matrix(hidden, intermediate)
        self.down_bias = empty_parameter(dtype, hidden) if shape.mlp_bias else None

    def attention_inputs(self, x, cosines, sines):
        """The queries [rows, heads, head_dim], and the keys and values [rows, kv_heads, head_dim]."""
        shape = self.shape
        joined = product(rms_norm(x, self.attention_norm, shape.norm_epsilon), self.qkv, self.qkv_bias)
        joined = joined.view(x.shape[0], -1, shape.head_dim)  # [rows, heads + 2 kv_heads, head_dim]
        q, k, v = joined.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        if shape.head_norms:
            q, k = rms_norm(q, self.q_norm, shape.norm_epsilon), rms_norm(k, self.k_norm, shape.norm_epsilon)
        return rotate(q, cosines, sines), rotate(k, cosines, sines), v

    def add_outputs(self, x, attended):
        """Adds the outputs of the attention and of the MLP."""
        x = x + product(attended, self.output, self.output_bias)  # [rows, hidden]
        normed = rms_norm(x, self.mlp_norm, self.shape.norm_epsilon)
        gate, up = product(normed, self.gate_up, self.gate_up_bias).chunk(2, dim=-1)  # [rows, intermediate]
        gate = gelu(gate, approximate="tanh") if self.shape.uses_gelu else silu(gate)
        return x + product(gate * up, self.down, self.down_bias)


class Decoder(nn.Module):
    """A network with its KV cache and the state of its decode loop, for a fixed number of sequences and a fixed context."""

    def __init__(self, network, sequences, context_tokens, reads_only_written):
        """`reads_only_written`: a step reads only written tokens of the cache. Otherwise a step, such as a captured
        graph, may read more, and a mask hides unwritten tokens. Several sequences have the mask in any case: it also
        hides their pads."""
        super().__init__()
        self.network, self.context_tokens = network, context_tokens
        self.is_masked = not reads_only_written or sequences > 1
        shape, dtype = network.shape, network.dtype
        on_device = dict(device=network.norm.device)
        # The cache has one position more than the context, and no step writes this position. Without it, the compiler would
        # treat a view of the whole cache as a special case. And heads would often be a power of two apart in memory, so that
        # they would compete for the same lines of the processor's cache.
        size = (sequences, shape.kv_heads, context_tokens + 1, shape.head_dim)
        # Masked values are multiplied by zero, so they must be finite.
        make = torch.empty if reads_only_written else torch.zeros
        self.keys, self.values = Buffers(), Buffers()
        for index in range(shape.layers):
            self.keys.register_buffer(str(index), make(size, dtype=dtype, **on_device))
            self.values.register_buffer(str(index), make(size, dtype=dtype, **on_device))
        # The ids that the next step reads, their positions, and their column of the cache. A pad has a column but no position.
        self.register_buffer("ids", torch.zeros(sequences, dtype=torch.long, **on_device))
        self.register_buffer("positions", torch.zeros(sequences, dtype=torch.long, **on_device))
        self.register_buffer("column", torch.zeros(1, dtype=torch.long, **on_device))
        self.register_buffer("logits", torch.zeros(sequences, shape.vocabulary_size, dtype=dtype, **on_device))
        # Added to the scores of attention: 0 for a visible token, -inf for a hidden token.
        mask = torch.full((sequences, context_tokens + 1), -math.inf, **on_device) if self.is_masked else None
        self.register_buffer("mask", mask)

    def prefill(self, ids, is_token=None):
        """Runs whole prompts: `ids` [sequences, columns]; `is_token` is False at pads, and None without pads. Chooses the
        first new ids, and returns the hidden states."""
        sequences, columns = ids.shape
        if is_token is None:
            positions = torch.arange(columns, device=ids.device).expand(sequences, columns)
            allowed = None
        else:
            positions = (is_token.cumsum(-1) - 1).clamp(min=0)
            is_not_later = torch.ones(columns, columns, dtype=torch.bool, device=ids.device).tril()
            # A pad attends to itself: the softmax of a fully masked row is undefined.
            is_itself = torch.eye(columns, dtype=torch.bool, device=ids.device)
            allowed = (is_not_later & is_token[:, None, :] | is_itself)[:, None]  # [sequences, 1, columns, columns]

        def attend(index, q, k, v):
            q, k, v = (part.view(sequences, columns, -1, part.shape[-1]).transpose(1, 2) for part in (q, k, v))
            self.keys[index][:, :, :columns] = k  # [sequences, kv_heads, columns, head_dim]
            self.values[index][:, :, :columns] = v
            group = q.shape[1] // k.shape[1]  # query heads that share a key head
            if group > 1:
                k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
            attended = scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=allowed is None)
            return attended.transpose(1, 2).reshape(sequences * columns, -1)  # [rows, heads * head_dim]

        x = self.network(ids.reshape(-1), positions.reshape(-1), attend)
        self.column.fill_(columns)
        self.positions.copy_(positions[:, -1] + 1)
        if self.is_masked:
            self.mask.fill_(-math.inf)
            self.mask[:, :columns] = 0.0 if is_token is None else torch.where(is_token, 0.0, -math.inf)
        x = x.view(sequences, columns, -1)
        self.logits.copy_(self.network.logits(x[:, -1]))
        self.ids.copy_(self.logits.argmax(-1))
        return x

    def fill_cache(self, tokens):
        """Sets the cache and the state as after a prompt of this many tokens, with random keys and values, to try a step."""
        for buffers in (self.keys, self.values):
            for index in range(len(self.network.layers)):
                buffers[index][:, :, :tokens].normal_()
        for state, value in ((self.column, tokens), (self.positions, tokens), (self.ids, 0)):
            state.fill_(value)
        if self.is_masked:
            self.mask.fill_(-math.inf)
            self.mask[:, :tokens] = 0.0

    @contextmanager
    def restore_state(self):
        """Restores the state after a `with` block. Keys and values of the block's steps stay until steps overwrite them."""
        states = [state for state in (self.column, self.positions, self.ids, self.logits, self.mask) if state is not None]
        copies = [state.clone() for state in states]
        yield
        for state, value in zip(states, copies):
            state.copy_(value)

    def step(self, span):
        """Adds the last token of each sequence to the cache, and replaces its id by the next id. The length of `span` is the
        number of cached tokens to read: a compiler can keep a length variable. The content of `span` is unused. Among equal
        logits `argmax` takes the lowest id."""
        tokens = span.shape[0]
        if self.is_masked:
            self.mask.index_fill_(1, self.column, 0.0)

        def attend(index, q, k, v):
            keys, values = self.keys[index], self.values[index]
            keys.index_copy_(2, self.column, k[:, :, None])  # [sequences, kv_heads, 1, head_dim]
            values.index_copy_(2, self.column, v[:, :, None])
            mask = self.mask.narrow(1, 0, tokens)[:, None] if self.is_masked else None
            return attend_to_cache(q, keys.narrow(2, 0, tokens), values.narrow(2, 0, tokens), mask)

        x = self.network(self.ids, self.positions, attend)
        self.logits.copy_(self.network.logits(x))
        self.ids.copy_(self.logits.argmax(-1))
        self.positions.add_(1)
        self.column.add_(1)


class Buffers(nn.Module):
    """Tensors by layer number. A compiler may assume that the address of a registered buffer is fixed."""

    def __getitem__(self, index):
        return getattr(self, str(index))


def attend_to_cache(q, keys, values, mask):
    """Attention of one new token of each sequence. `q` [sequences, heads, head_dim]; `keys` and `values` [sequences,
    kv_heads, tokens, head_dim]; `mask` [sequences, 1, tokens] or None. The compiler turns the sums into loops over the
    cache. The division of the softmax comes last, where there are the fewest numbers to divide."""
    sequences, heads, head_dim = q.shape
    dtype, (keys, values) = values.dtype, (keys.float(), values.float())
    q = q.float().view(sequences, keys.shape[1], -1, 1, head_dim) / math.sqrt(head_dim)
    if q.is_cuda:
        scores = (q * keys[:, :, None]).sum(-1)  # [sequences, kv_heads, group, tokens]
    else:
        # Queries that share a key are stacked in one loop, so that each key is read once.
        scores = torch.stack([(query * keys).sum(-1) for query in q.unbind(2)], 2)
    if mask is not None:
        scores = scores + mask[:, :, None]
    exponentials = torch.exp(scores - scores.amax(-1, keepdim=True))
    if q.is_cuda:
        attended = (exponentials[..., None] * values[:, :, None]).sum(3)  # [sequences, kv_heads, group, head_dim]
    else:
        attended = torch.stack([(part[..., None] * values).sum(2) for part in exponentials.unbind(2)], 2)
    attended = attended / exponentials.sum(-1, keepdim=True)
    return attended.to(dtype).view(sequences, -1)  # [sequences, heads * head_dim]


def rms_norm(x, weight, epsilon):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    return (wide * weight).to(x.dtype)


def rotate(x, cosines, sines):
    """Rotates pairs of numbers by their position. `x`: [rows, heads, head_dim]. The number at index i of a head's first half
    and the number at index i of its second half are a pair, as the checkpoints expect."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1).to(x.dtype)


def rotations(shape, context_tokens, device):
    """Cosines and sines of every position [positions, 1, head_dim / 2], with the RoPE scaling of the checkpoint."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    frequencies = 1.0 / shape.rope_theta**exponents
    if (scaling := shape.rope_scaling) is not None:
        wavelengths = 2 * math.pi / frequencies
        # The share of the unscaled frequency in the result: 0 at the longest wavelengths, 1 at the shortest.
        unscaled_share = (scaling.original_context / wavelengths - scaling.low) / (scaling.high - scaling.low)
        unscaled_share = unscaled_share.clamp(0.0, 1.0)
        frequencies = (1 - unscaled_share) * frequencies / scaling.factor + unscaled_share * frequencies
    angles = torch.outer(torch.arange(context_tokens, dtype=torch.float32), frequencies)[:, None]
    return angles.cos().to(device), angles.sin().to(device)


def empty_parameter(dtype, *size):
    return nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)


def product(x, matrix, bias=None):
    """`x` [rows, in] times `matrix` [out, in], which is in the dtype of the load or in int8. In the dtype of the load, a compiled
    product of one row on a CPU is a loop over the matrix, because memory limits its speed. All others use `linear`."""
    if isinstance(matrix, Int8Matrix):
        return int8_product(x, matrix.codes, matrix.scales, bias)
    if x.is_cuda or x.shape[0] > 1 or not torch.compiler.is_compiling():
        return linear(x, matrix, bias)
    out = panel_sums(x, matrix)
    return (out if bias is None else out + bias).to(matrix.dtype)


def int8_product(x, codes, scales, bias=None):
    """Multiplies with the unscaled codes, and scales each sum. For many rows, or uncompiled, dequantizes the matrix piece by
    piece."""
    is_compiling = torch.compiler.is_compiling()
    if not is_compiling or x.shape[0] > MAX_LOOP_ROWS[x.device.type]:
        # On a CPU the compiler would unroll the many pieces, so a custom operation hides them from the compiler.
        return (linear_in_pieces if not is_compiling or x.is_cuda else opaque_linear)(x, codes, scales, bias)
    sums = (x.float() * codes.float()).sum(-1)[None] if x.is_cuda else panel_sums(x, codes)
    out = sums * scales
    return (out if bias is None else out + bias).to(x.dtype)


def panel_sums(x, matrix):
    """The product [rows, out] in f32, with all rows of `x` in one loop. `matrix` may have any dtype."""
    out, columns = matrix.shape
    panels = next(count for count in (PANELS, 2, 1) if out % count == 0)
    parts = next(count for count in range(1, columns + 1) if columns % count == 0 and columns // count <= MAX_SUM_COLUMNS)
    x = x.float().view(-1, parts, columns // parts)
    matrix = matrix.view(panels, out // panels, parts, -1)
    sums = [torch.cat([(panel.float() * row).sum(-1) for panel in matrix.unbind(0)]) for row in x.unbind(0)]  # [out, parts]
    return torch.stack([part_sums.sum(-1) if parts > 1 else part_sums[:, 0] for part_sums in sums])


def linear_in_pieces(x, codes, scales, bias):
    rows = max(1, WEIGHTS_PER_PIECE[x.device.type] // codes.shape[1])
    biases = [None] * len(codes) if bias is None else bias.split(rows)
    pieces = zip(codes.split(rows), scales.split(rows), biases)
    return torch.cat([linear(x, dequantize(*piece, x.dtype), piece_bias) for *piece, piece_bias in pieces], dim=-1)


@torch.library.custom_op("orchestrate_transformers::int8_linear", mutates_args=())
def opaque_linear(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return linear_in_pieces(x, codes, scales, bias)


@opaque_linear.register_fake
def _(x, codes, scales, bias):
    return x.new_empty(x.shape[0], codes.shape[0])


def dequantize(codes, scales, dtype):
    return codes.float().mul_(scales[:, None]).to(dtype)


class Int8Matrix(nn.Module):
    """Weights in int8 with an f32 scale for each row: the number with the largest magnitude has the code 127 or -127."""

    def __init__(self, rows, columns):
        super().__init__()
        self.shape = torch.Size((rows, columns))
        self.codes = nn.Parameter(torch.empty(rows, columns, dtype=torch.int8), requires_grad=False)
        self.scales = nn.Parameter(torch.empty(rows, dtype=torch.float32), requires_grad=False)

    def write(self, first, tensor):
        """Quantizes `tensor` into the rows from `first` on, in pieces. Returns False if `tensor` has NaN or infinity,
        which have no code."""
        is_finite = True
        for rows in tensor.split(max(1, WEIGHTS_PER_PIECE["cpu"] // self.shape[1])):
            rows, target = rows.float(), slice(first, first + len(rows))
            first += len(rows)
            scales = rows.abs().amax(-1) / MAX_CODE
            is_finite = is_finite and bool(scales.isfinite().all())
            # A row of zeros has the scale 0, which cannot divide.
            self.codes[target] = (rows / torch.where(scales > 0, scales, 1.0)[:, None]).round_().clamp_(-MAX_CODE, MAX_CODE)
            self.scales[target] = scales
        return is_finite

    def lookup(self, ids, dtype):
        return dequantize(self.codes[ids], self.scales[ids], dtype)  # [ids, in]
