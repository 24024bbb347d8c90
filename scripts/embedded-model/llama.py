"""The Llama architecture in plain PyTorch, as short as possible, with the tensor names of Hugging Face.

Sizes in shapes: B batch, T positions, D hidden size, H query heads, K key heads, d size of a head, V vocabulary.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "initializer_range": 0.02,
    "pretraining_tp": 1,
    "tie_word_embeddings": True,
    "use_cache": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def rotary(positions: int, head_dim: int, theta: float):
    """Cosines and sines of every position, in the convention that pairs dimension i with i + d/2."""
    frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)  # [d/2]
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)  # [T, d/2]
    angles = torch.cat([angles, angles], dim=-1)  # [T, d]
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.q_proj = linear(c["hidden_size"], self.heads * self.head_dim)
        self.k_proj = linear(c["hidden_size"], self.kv_heads * self.head_dim)
        self.v_proj = linear(c["hidden_size"], self.kv_heads * self.head_dim)
        self.o_proj = linear(self.heads * self.head_dim, c["hidden_size"])

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        by_head = lambda y, n: y.view(batch, length, n, self.head_dim).transpose(1, 2)
        q = rotate(by_head(self.q_proj(x), self.heads), cos, sin)  # [B, H, T, d]
        k = rotate(by_head(self.k_proj(x), self.kv_heads), cos, sin)  # [B, K, T, d]
        v = by_head(self.v_proj(x), self.kv_heads)  # [B, K, T, d]
        # Query head h reads key head h // (H / K).
        k, v = (y.repeat_interleave(self.heads // self.kv_heads, dim=1) for y in (k, v))  # [B, H, T, d]
        y = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)  # [B, H, T, d]
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        self.gate_proj = linear(c["hidden_size"], c["intermediate_size"])
        self.up_proj = linear(c["hidden_size"], c["intermediate_size"])
        self.down_proj = linear(c["intermediate_size"], c["hidden_size"])

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), Mlp(c)
        self.input_layernorm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Inner(nn.Module):
    """The part that Hugging Face calls `model`. It exists for the names of the tensors."""

    def __init__(self, c: dict):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])


class Llama(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        self.model = Inner(c)
        cos, sin = rotary(c["max_position_embeddings"], c["head_dim"], c["rope_theta"])
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # The two matrices that add to the residual start smaller, as each layer adds twice.
                onto_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = (2 * c["num_hidden_layers"]) ** -0.5 if onto_residual else 1.0
                nn.init.normal_(weight, std=c["initializer_range"] * scale)

    def forward(self, tokens):  # [B, T] -> [B, T, V]
        length = tokens.shape[1]
        x = self.model.embed_tokens(tokens)  # [B, T, D]
        for layer in self.model.layers:
            x = layer(x, self.cos[:length], self.sin[:length])
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)


def load(folder: Path) -> Llama:
    """Loads the model, with its bf16 weights widened to f32."""
    from safetensors.torch import load_file

    model = Llama(json.loads((folder / "config.json").read_text()))
    stored = load_file(folder / "model.safetensors")
    model.load_state_dict({name: weight.float() for name, weight in stored.items()})
    return model.eval()
