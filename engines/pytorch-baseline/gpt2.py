"""GPT-2: learned positions, norms with a mean and a bias, a plain MLP, and transposed matrices."""

import torch
from torch import nn

from model import Embedding, Linear, attend, compute_logits, split_heads, wait_for_device


class GPT2(nn.Module):
    """Computes the logits of a batch. Parameters have the names of the checkpoints."""

    # The first checkpoints omit this prefix in every tensor name.
    prefix = "transformer."

    def __init__(self, shape):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": Embedding(shape.vocabulary_size, shape.hidden_size),
                "wpe": Embedding(shape.context_tokens, shape.hidden_size),
                "h": nn.ModuleList(Layer(shape) for _ in range(shape.layers)),
                "ln_f": LayerNorm(shape.hidden_size, shape.norm_epsilon),
            }
        )
        self.lm_head = None if shape.tied_embeddings else Linear(shape.hidden_size, shape.vocabulary_size, bias=False)

    def forward(self, batch):
        x = self.transformer["wte"](batch.ids) + self.transformer["wpe"](batch.positions)  # [rows, columns, hidden]
        for layer in self.transformer["h"]:
            x = layer(x, batch)
            wait_for_device(x)
        x = self.transformer["ln_f"](x)
        return compute_logits(x, self.lm_head or self.transformer["wte"])  # [rows, columns, vocabulary]


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.ln_1 = LayerNorm(shape.hidden_size, shape.norm_epsilon)
        self.attn = Attention(shape)
        self.ln_2 = LayerNorm(shape.hidden_size, shape.norm_epsilon)
        self.mlp = MLP(shape)

    def forward(self, x, batch):
        x = x + self.attn(self.ln_1(x), batch)
        return x + self.mlp(self.ln_2(x))


class LayerNorm(nn.Module):
    def __init__(self, size, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.epsilon = epsilon

    def forward(self, x):
        # As in `RMSNorm`, squares are f32 in every dtype.
        centred = x.float() - x.float().mean(dim=-1, keepdim=True)
        variance = centred.pow(2).mean(dim=-1, keepdim=True)
        return self.weight * (centred * torch.rsqrt(variance + self.epsilon)).to(x.dtype) + self.bias


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.head_dim = shape.head_dim
        self.c_attn = Conv1D(shape.hidden_size, 3 * shape.hidden_size)
        self.c_proj = Conv1D(shape.hidden_size, shape.hidden_size)

    def forward(self, x, batch):
        q, k, v = (split_heads(part, self.head_dim) for part in self.c_attn(x).chunk(3, dim=-1))
        return self.c_proj(attend(self, q, k, v, batch))


class MLP(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.c_fc = Conv1D(shape.hidden_size, shape.intermediate_size)
        self.c_proj = Conv1D(shape.intermediate_size, shape.hidden_size)

    def forward(self, x):
        return self.c_proj(nn.functional.gelu(self.c_fc(x), approximate="tanh"))


class Conv1D(nn.Module):
    """A linear layer with a matrix of shape [in, out]. The class has the name of GPT-2's code."""

    def __init__(self, size_in, size_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size_in, size_out))
        self.bias = nn.Parameter(torch.empty(size_out))

    def forward(self, x):
        return torch.matmul(x, self.weight) + self.bias
