"""The decoder of Llama, Mistral and Qwen2 in eager PyTorch, written as in a textbook. Subclasses add the differences of
Qwen3, Phi-3 and Gemma.

The decoder is deliberately slow: no KV cache unless a load asks for it, no fused kernel, no compiler, logits of every
position, a device synchronisation after every layer. README.md lists everything that makes it slow.
"""

import math

import torch
from torch import nn


class Decoder(nn.Module):
    """Computes the logits of a batch. Parameters have the names of the checkpoints, so that weights need no renaming."""

    # Some checkpoints without the output matrix omit this prefix in every tensor name.
    prefix = "model."

    def __init__(self, shape):
        super().__init__()
        norm, attention, mlp = self.layer_classes()
        self.model = nn.ModuleDict(
            {
                "embed_tokens": Embedding(shape.vocabulary_size, shape.hidden_size),
                "layers": nn.ModuleList(Layer(shape, norm, attention, mlp) for _ in range(shape.layers)),
                "norm": norm(shape.hidden_size, shape.norm_epsilon),
            }
        )
        self.lm_head = None if shape.tied_embeddings else Linear(shape.hidden_size, shape.vocabulary_size, bias=False)
        self.register_buffer("frequencies", rotary_frequencies(shape), persistent=False)

    def layer_classes(self):
        """The classes of the norm, the attention and the MLP. Subclasses for other architectures override this method."""
        return RMSNorm, Attention, MLP

    def embed(self, ids):
        return self.model["embed_tokens"](ids)

    def forward(self, batch):
        x = self.embed(batch.ids)  # [rows, columns, hidden]
        for layer in self.model["layers"]:
            x = layer(x, batch, self.frequencies)
            wait_for_device(x)
        x = self.model["norm"](x)
        return compute_logits(x, self.lm_head or self.model["embed_tokens"])  # [rows, columns, vocabulary]


class Layer(nn.Module):
    def __init__(self, shape, norm, attention, mlp):
        super().__init__()
        self.input_layernorm = norm(shape.hidden_size, shape.norm_epsilon)
        self.self_attn = attention(shape)
        self.post_attention_layernorm = norm(shape.hidden_size, shape.norm_epsilon)
        self.mlp = mlp(shape)

    def forward(self, x, batch, frequencies):
        x = x + self.self_attn(self.input_layernorm(x), batch, frequencies)
        return x + self.mlp(self.post_attention_layernorm(x))


class RMSNorm(nn.Module):
    def __init__(self, size, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x):
        return self.weight * self.normed(x).to(x.dtype)

    def normed(self, x):
        """The numbers before the multiplication by the weight, in f32 for every dtype: in f16, squares would overflow."""
        x = x.float()
        mean_square = x.pow(2).mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.epsilon)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.head_dim, self.window = shape.head_dim, shape.window
        q_size, kv_size = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = Linear(shape.hidden_size, q_size, bias=shape.qkv_bias)
        self.k_proj = Linear(shape.hidden_size, kv_size, bias=shape.qkv_bias)
        self.v_proj = Linear(shape.hidden_size, kv_size, bias=shape.qkv_bias)
        self.o_proj = Linear(q_size, shape.hidden_size, bias=shape.output_bias)

    def forward(self, x, batch, frequencies):
        q = split_heads(self.q_proj(x), self.head_dim)  # [rows, heads, columns, head_dim]
        k = split_heads(self.k_proj(x), self.head_dim)  # [rows, kv_heads, columns, head_dim]
        v = split_heads(self.v_proj(x), self.head_dim)
        q, k = rotate(q, batch.positions, frequencies), rotate(k, batch.positions, frequencies)
        return self.o_proj(attend(self, q, k, v, batch, self.window))


class MLP(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = Linear(shape.hidden_size, shape.intermediate_size, bias=shape.mlp_bias)
        self.up_proj = Linear(shape.hidden_size, shape.intermediate_size, bias=shape.mlp_bias)
        self.down_proj = Linear(shape.intermediate_size, shape.hidden_size, bias=shape.mlp_bias)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def attend(layer, q, k, v, batch, window=None):
    """Grouped-query attention of a layer: scores, mask, softmax and sum as separate steps."""
    k, v = batch.all_keys(layer, k, v)
    rows, heads, columns, head_dim = q.shape
    k = k.repeat_interleave(heads // k.shape[1], dim=1)  # [rows, heads, keys, head_dim]
    v = v.repeat_interleave(heads // v.shape[1], dim=1)
    scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(head_dim)  # [rows, heads, columns, keys]
    masked = ~batch.visible_keys(window)[:, None]  # [rows, 1, columns, keys]
    scores = scores.masked_fill(masked, float("-inf"))
    probabilities = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    output = torch.matmul(probabilities, v)  # [rows, heads, columns, head_dim]
    return output.transpose(1, 2).reshape(rows, columns, -1)  # [rows, columns, heads * head_dim]


def split_heads(x, head_dim):
    """Reshapes [rows, columns, heads * head_dim] to [rows, heads, columns, head_dim]."""
    rows, columns, _ = x.shape
    return x.view(rows, columns, -1, head_dim).transpose(1, 2)


def rotate(x, positions, frequencies):
    """Applies rotary positions, [rows, columns], to `x`, [rows, heads, columns, head_dim]. As in the checkpoints, dimension i
    forms a pair with dimension i + head_dim / 2."""
    angles = positions[:, None, :, None] * frequencies  # [rows, 1, columns, head_dim / 2]
    cos, sin = (torch.cat([part] * 2, dim=-1).to(x.dtype) for part in (angles.cos(), angles.sin()))
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def rotary_frequencies(shape):
    """Returns the frequency of each pair of a head's dimensions, in radians a token. Llama 3.1 lowers some of them."""
    # No checkpoint contains this tensor, so it needs a real device even if the network is built on device `meta`.
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device="cpu") / shape.head_dim
    frequencies = 1.0 / shape.rope_theta**exponents
    scaling = shape.rope_scaling
    if scaling is None:
        return frequencies
    wavelengths = 2 * math.pi / frequencies  # in tokens
    # Weight 1 leaves a frequency unchanged (short wavelengths). Weight 0 divides it by the factor (long wavelengths).
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    weight = ((scaling.original_context / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - weight) * frequencies / scaling.factor + weight * frequencies


def compute_logits(x, head):
    """Multiplies by the output matrix. `head` is its module: a separate one, or the embedding if the matrix is shared."""
    return nn.functional.linear(x, head.weight)


def wait_for_device(x):
    """Waits until the device has computed `x`. The wait is deliberate: it makes the engine slow."""
    if x.is_cuda:
        torch.cuda.synchronize(x.device)


# `Linear` and `Embedding` skip PyTorch's initialisation, because the checkpoint provides the weights. The initialisation
# would take time and import half of PyTorch's compiler.


class Linear(nn.Linear):
    def reset_parameters(self):
        pass


class Embedding(nn.Embedding):
    def reset_parameters(self):
        pass


class Qwen3(Decoder):
    """Llama with a norm of each head of queries and keys before the rotation."""

    def layer_classes(self):
        return RMSNorm, NormedAttention, MLP


class NormedAttention(Attention):
    def __init__(self, shape):
        super().__init__(shape)
        self.q_norm = RMSNorm(shape.head_dim, shape.norm_epsilon)
        self.k_norm = RMSNorm(shape.head_dim, shape.norm_epsilon)

    def forward(self, x, batch, frequencies):
        q = self.q_norm(split_heads(self.q_proj(x), self.head_dim))  # [rows, heads, columns, head_dim]
        k = self.k_norm(split_heads(self.k_proj(x), self.head_dim))  # [rows, kv_heads, columns, head_dim]
        v = split_heads(self.v_proj(x), self.head_dim)
        q, k = rotate(q, batch.positions, frequencies), rotate(k, batch.positions, frequencies)
        return self.o_proj(attend(self, q, k, v, batch, self.window))


class Phi3(Decoder):
    """Llama with one matrix for queries, keys and values, and one matrix for gate and up."""

    def layer_classes(self):
        return RMSNorm, JoinedAttention, JoinedMLP


class JoinedAttention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.head_dim, self.window = shape.head_dim, shape.window
        q_size, kv_size = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.qkv_sizes = [q_size, kv_size, kv_size]
        self.qkv_proj = Linear(shape.hidden_size, sum(self.qkv_sizes), bias=False)
        self.o_proj = Linear(q_size, shape.hidden_size, bias=False)

    def forward(self, x, batch, frequencies):
        joined = self.qkv_proj(x).split(self.qkv_sizes, dim=-1)
        q, k, v = (split_heads(part, self.head_dim) for part in joined)  # [rows, heads or kv_heads, columns, head_dim]
        q, k = rotate(q, batch.positions, frequencies), rotate(k, batch.positions, frequencies)
        return self.o_proj(attend(self, q, k, v, batch, self.window))


class JoinedMLP(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_up_proj = Linear(shape.hidden_size, 2 * shape.intermediate_size, bias=False)
        self.down_proj = Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)  # [tokens, intermediate] each
        return self.down_proj(nn.functional.silu(gate) * up)


class Gemma(Decoder):
    """Llama with norm weights stored minus one, GELU in place of SiLU, and scaled embeddings at the input. The output
    matrix is not scaled."""

    def layer_classes(self):
        return OneCentredNorm, Attention, GeluMLP

    def embed(self, ids):
        # Gemma's authors round this factor to the dtype of the computation. This engine does not round it, in any dtype.
        x = super().embed(ids)
        return x * math.sqrt(x.shape[-1])


class OneCentredNorm(RMSNorm):
    def forward(self, x):
        return ((1.0 + self.weight.float()) * self.normed(x)).to(x.dtype)


class GeluMLP(MLP):
    def forward(self, x):
        # Gemma was trained with the tanh form, even where its config says `gelu`.
        gate = nn.functional.gelu(self.gate_proj(x), approximate="tanh")
        return self.down_proj(gate * self.up_proj(x))
