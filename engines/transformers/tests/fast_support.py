"""Small models of every architecture of path `fast`, and their results in Hugging Face's classes."""

import torch

from support import write_network

FAST = {"path": "fast"}

# The epsilon of norms is large, so that a wrong epsilon changes the logits.
COMMON = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 0.01,
    "rope_theta": 5000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS = {
    "llama": {"model_type": "llama"},
    "llama with scaled positions": {"model_type": "llama", "rope_scaling": LLAMA3_SCALING, "tie_word_embeddings": True},
    "llama with biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "mistral": {"model_type": "mistral", "head_dim": 24, "sliding_window": None},
    "qwen2": {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 50},
    "qwen3": {"model_type": "qwen3", "head_dim": 24, "tie_word_embeddings": True},
    "qwen3 with biases": {"model_type": "qwen3", "head_dim": 24, "attention_bias": True},
    "phi3": {"model_type": "phi3", "sliding_window": None},
    "gemma": {"model_type": "gemma", "head_dim": 32, "num_key_value_heads": 1, "hidden_act": "gelu_pytorch_tanh"},
}
CONFIGS = {name: {**COMMON, **config} for name, config in CONFIGS.items()}
# Without this field, Gemma ties its embeddings.
del CONFIGS["gemma"]["tie_word_embeddings"]


def write_model(test, name):
    """Writes a model folder with random weights."""
    return write_network(test, CONFIGS[name])


def load_hugging_face(path):
    from transformers import AutoModelForCausalLM

    return HuggingFaceModel(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True))


class HuggingFaceModel:
    """A model in Hugging Face's class, which computes the whole sequence for every token."""

    def __init__(self, network):
        self._network = network

    @torch.no_grad()
    def logits(self, ids):
        return self._network(torch.tensor([ids]), use_cache=False).logits[0]  # [tokens, vocabulary]

    def greedy_ids(self, prompt, new_tokens):
        sequence = list(prompt)
        for _ in range(new_tokens):
            sequence.append(int(self.logits(sequence)[-1].argmax()))
        return sequence[len(prompt) :]
