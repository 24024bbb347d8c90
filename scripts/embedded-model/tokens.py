"""Makes tokenizer.json, a byte-level BPE of about 2,048 entries that adds `<s>` before every text.

Then encodes the training text and the held-out text, stores the ids of the training text, and prints the sizes of both in tokens.
"""

import json
import random
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from text import split

VOCAB_SIZE, BOS, EOS = 2048, 0, 1
CONTEXT = 2048
SAMPLE_CHARACTERS = 8_000_000  # enough: the merges do not change with a longer text


def make(train_text: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    # All 256 bytes are in the alphabet, so that every text can be encoded.
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=["<s>", "</s>"], show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(train_text[:SAMPLE_CHARACTERS].split("\n\n"), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", BOS)])
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list) -> list:
    """The ids of each text, with a BOS in front."""
    return [np.array(e.ids, dtype=np.uint16) for e in tokenizer.encode_batch(texts)]


def bundles(texts: list, seed: int = 5) -> list:
    """Bundles of texts: 70 of 100 are a single text, the others are 2 to 13 texts separated by blank lines.

    So the model learns single documents and long parts of the file.
    """
    rng, remaining, out = random.Random(seed), list(texts), []
    while remaining:
        count = 1 if rng.random() < 0.7 else 2 + int(rng.random() * 12)
        out.append("\n\n".join(remaining[-count:]))
        del remaining[-count:]
    return out


def main(train_path: str, heldout_path: str, model_folder: str, work: str) -> None:
    folder, work = Path(model_folder), Path(work)
    train, heldout = Path(train_path).read_text(), Path(heldout_path).read_text()
    tokenizer = make(train)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
                "add_bos_token": True, "add_eos_token": False, "model_max_length": CONTEXT,
                "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    # The input of training: bundles with BOS before and EOS after, one stream.
    bundle_ids = [np.append(ids, EOS) for ids in encode(tokenizer, bundles(split(train)))]
    np.save(work / "train-stream.npy", np.concatenate(bundle_ids).astype(np.uint16))
    # The text on which `evaluate.py` counts its n-grams: every document with BOS.
    separate = encode(tokenizer, split(train))
    np.save(work / "train-documents.npy", np.concatenate(separate))
    bytes_per_token = len(train.encode()) / sum(len(ids) - 1 for ids in separate)
    heldout_ids = encode(tokenizer, split(heldout))
    sizes = sorted(len(ids) for ids in heldout_ids)
    print(f"tokenizer: {tokenizer.get_vocab_size()} entries; train {sum(map(len, bundle_ids))} tokens, {bytes_per_token:.3f} bytes a "
          f"token; held out {sum(sizes)} tokens in {len(sizes)} documents of {sizes[0]} to {sizes[-1]} tokens")


if __name__ == "__main__":
    main(*sys.argv[1:5])
