"""The decoder of Llama and Qwen2, written out in plain eager PyTorch, in the order in which a textbook says it.

Deliberately slow, and only in ways that are stated: no cache, no fused kernel, no compiler, logits of every position, a
device synchronisation after every layer. It knows no file and no protocol: numbers and tensors come in.
"""

import math

import torch
from torch import nn


class Decoder(nn.Module):
    """Token ids to logits. Names follow the checkpoints, so that weights need no renaming."""

    def __init__(self, shape):
        super().__init__()
        self.model = nn.ModuleDict(
            {
                "embed_tokens": Embedding(shape.vocabulary_size, shape.hidden_size),
                "layers": nn.ModuleList(Layer(shape) for _ in range(shape.layers)),
                "norm": RMSNorm(shape.hidden_size, shape.norm_epsilon),
            }
        )
        self.lm_head = Linear(shape.hidden_size, shape.vocabulary_size, bias=False)
        if shape.tied_embeddings:
            self.lm_head.weight = self.model["embed_tokens"].weight

    def forward(self, ids, frequencies):
        x = self.model["embed_tokens"](ids)  # [tokens, hidden]
        for layer in self.model["layers"]:
            x = layer(x, frequencies)
            if x.is_cuda:
                # Part of what this engine stands for: a program that waits for the device at every step.
                torch.cuda.synchronize(x.device)
        return self.lm_head(self.model["norm"](x))  # [tokens, vocabulary]


# The checkpoint brings the numbers: PyTorch's own start values would only cost time, and drag in half of its compiler.


class Linear(nn.Linear):
    def reset_parameters(self):
        pass


class Embedding(nn.Embedding):
    def reset_parameters(self):
        pass


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.norm_epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.norm_epsilon)
        self.mlp = MLP(shape)

    def forward(self, x, frequencies):
        x = x + self.self_attn(self.input_layernorm(x), frequencies)
        return x + self.mlp(self.post_attention_layernorm(x))


class RMSNorm(nn.Module):
    def __init__(self, size, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x):
        mean_square = x.pow(2).mean(dim=-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(mean_square + self.epsilon))


class Attention(nn.Module):
    """Grouped-query attention over the whole sequence: scores, mask, softmax and sum as separate steps."""

    def __init__(self, shape):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = Linear(shape.hidden_size, queries, bias=shape.qkv_bias)
        self.k_proj = Linear(shape.hidden_size, keys, bias=shape.qkv_bias)
        self.v_proj = Linear(shape.hidden_size, keys, bias=shape.qkv_bias)
        self.o_proj = Linear(queries, shape.hidden_size, bias=shape.output_bias)

    def forward(self, x, frequencies):
        tokens = x.shape[0]
        q = self.q_proj(x).view(tokens, self.heads, self.head_dim).transpose(0, 1)  # [heads, tokens, head_dim]
        k = self.k_proj(x).view(tokens, self.kv_heads, self.head_dim).transpose(0, 1)
        v = self.v_proj(x).view(tokens, self.kv_heads, self.head_dim).transpose(0, 1)
        q, k = rotate(q, frequencies), rotate(k, frequencies)
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=0)
        v = v.repeat_interleave(self.heads // self.kv_heads, dim=0)
        scores = torch.matmul(q, k.transpose(1, 2)) / math.sqrt(self.head_dim)  # [heads, tokens, tokens]
        future = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(diagonal=1)
        shares = torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1)
        mixed = torch.matmul(shares, v)  # [heads, tokens, head_dim]
        return self.o_proj(mixed.transpose(0, 1).reshape(tokens, -1))


class MLP(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = Linear(shape.hidden_size, shape.intermediate_size, bias=shape.mlp_bias)
        self.up_proj = Linear(shape.hidden_size, shape.intermediate_size, bias=shape.mlp_bias)
        self.down_proj = Linear(shape.intermediate_size, shape.hidden_size, bias=shape.mlp_bias)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def rotate(x, frequencies):
    """Rotary positions; the halves of a head turn against each other (not neighbours), as the checkpoints expect."""
    # x: [heads, tokens, head_dim]
    positions = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)  # [tokens, head_dim / 2]
    cos, sin = torch.cat([angles.cos()] * 2, dim=-1), torch.cat([angles.sin()] * 2, dim=-1)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def rotary_frequencies(shape):
    """One per pair of a head's dimensions, slowed down for long contexts where the checkpoint was trained so (Llama 3.1)."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    frequencies = 1.0 / shape.rope_theta**exponents
    scaling = shape.rope_scaling
    if scaling is None:
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    # 0 where a wave turns so slowly that it is stretched by the whole factor, 1 where it stays as it is.
    kept = (scaling.original_context / wavelengths - scaling.low) / (scaling.high - scaling.low)
    kept = kept.clamp(0.0, 1.0)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies
