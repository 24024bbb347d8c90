"""Trains the model and writes config.json, generation_config.json and model.safetensors."""

import json
import math
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from llama import CONFIG, Llama

SEED = 1
# Short windows first, because most dependencies are short; then the whole context.
# (steps, sequences in a batch, length of a sequence)
PHASES = [(2300, 8, 256), (500, 4, 512), (150, 1, 2048)]
# The last learning rate is a share of the peak.
PEAK_LEARNING_RATE, LAST_RATE_SHARE, WARMUP_STEPS = 2e-3, 0.02, 100
WEIGHT_DECAY, MAX_GRADIENT_NORM = 0.05, 1.0


def learning_rate(step: int, steps: int) -> float:
    """A linear warm-up, then a cosine from the peak to `LAST_RATE_SHARE` of it."""
    if step < WARMUP_STEPS:
        return PEAK_LEARNING_RATE * (step + 1) / WARMUP_STEPS
    done = (step - WARMUP_STEPS) / (steps - WARMUP_STEPS)
    return PEAK_LEARNING_RATE * (LAST_RATE_SHARE + (1 - LAST_RATE_SHARE) * 0.5 * (1 + math.cos(math.pi * done)))


def batches(stream, rng):
    """Each phase divides an unused part of the stream into windows, and takes each once in random order."""
    offset = 0
    for steps, count, length in PHASES:
        size = steps * count * length
        assert offset + size < len(stream), f"the text is too short: {len(stream)} tokens"
        starts = offset + length * rng.permutation(steps * count)
        offset += size
        for step in range(steps):
            windows = np.stack([stream[s:s + length + 1] for s in starts[step * count:(step + 1) * count]])
            yield torch.from_numpy(windows.astype(np.int64))  # [B, T + 1]


def batch_loss(model: Llama, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(batch[:, :-1])  # [B, T, V]
    return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def compile_if_possible(function):
    """Fused kernels make training about a third faster; they need a C++ compiler, and training also works without them."""
    if shutil.which("g++") or shutil.which("clang++"):
        return torch.compile(function, dynamic=False)
    print("no C++ compiler found: training without torch.compile", file=sys.stderr)
    return function


def save(model: Llama, folder: Path) -> None:
    config = json.dumps(CONFIG, indent=2) + "\n"
    generation = {"bos_token_id": CONFIG["bos_token_id"], "eos_token_id": CONFIG["eos_token_id"], "do_sample": False}
    (folder / "config.json").write_text(config)
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    weights = {name: w.detach().to(torch.bfloat16).contiguous() for name, w in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def main(stream_path: str, model_folder: str) -> None:
    folder = Path(model_folder)
    torch.manual_seed(SEED)
    # With one thread, sums have a fixed order. With several, each operation would wait for the slowest core.
    torch.set_num_threads(1)
    stream, rng = np.load(stream_path), np.random.default_rng(SEED)
    model = Llama(CONFIG)
    matrices = [w for w in model.parameters() if w.dim() == 2]
    vectors = [w for w in model.parameters() if w.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}],
                                  betas=(0.9, 0.95), fused=True)
    step_loss = compile_if_possible(batch_loss)
    steps = sum(n for n, _, _ in PHASES)
    started, token_count, recent = time.monotonic(), 0, []
    print(f"{sum(w.numel() for w in model.parameters())} parameters, {steps} steps, "
          f"{sum(math.prod(p) for p in PHASES)} of {len(stream)} tokens, torch {torch.__version__}", file=sys.stderr)
    for step, batch in enumerate(batches(stream, rng)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        loss = step_loss(model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()
        token_count += batch[:, 1:].numel()
        recent = (recent + [loss.item()])[-50:]
        if (step + 1) % 25 == 0:
            seconds = time.monotonic() - started
            print(f"step {step + 1}/{steps}  loss {sum(recent) / len(recent):.3f}  {token_count} tokens  {seconds:.0f} s  "
                  f"{token_count / seconds:.0f} tokens/s", file=sys.stderr, flush=True)
        if (step + 1) % 500 == 0:
            save(model, folder)
    save(model, folder)
    print(f"trained on {token_count} tokens in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
