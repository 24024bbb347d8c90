"""Does llama.cpp open what `orchestrate` writes as GGUF, and does it compute the same as the safetensors beside it?

Log-probabilities of the same ids, from llama.cpp on the file and from the reference engine on the same numbers in f32; the
ids of texts, from llama.cpp and from `tokenizers`; every tensor, through the reader that llama.cpp publishes. Models of all
small shapes, and the embedded one, which is trained."""

import argparse
import statistics
import sys
import tempfile
import traceback
from pathlib import Path

from tokenizers import Tokenizer

import official
import spoiled
from programs import Failed, LlamaCpp, Orchestrate, Reference

ROOT = Path(__file__).resolve().parents[2]
EMBEDDED = ROOT / "models/embedded"

# Median and largest difference of a log-probability. On both sides of a row are the same numbers, so what differs is
# llama.cpp's arithmetic: against weights in f16 and bf16 it rounds the activations to the same type, against blocks to 8
# bits with a scale for 32 or 256 of them. Two to seven times what was seen.
BOUNDS = {
    "f32": (1e-5, 1e-4),
    "f16": (1e-3, 1e-2),
    "bf16": (1e-2, 8e-2),
    "q8_0": (3e-2, 3e-1),
    "q4_0": (3e-2, 3e-1),
    "q6_k": (4e-2, 5e-1),
    "q4_k": (4e-2, 5e-1),
}
# ggml looks GELU up in a table of f16, whatever the weights are.
GELU_BY_TABLE = {"tiny-gpt2", "tiny-gemma"}
GELU_BOUNDS = (5e-4, 3e-3)

# What blocks lose, root mean square of a tensor, divided by what llama.cpp's own blocks of the same tensor lose. The simple
# ones leave no choice; of the others, ours may be no worse.
BLOCKS = {"q8_0": "same bytes", "q4_0": "same bytes", "q6_k": "no worse", "q4_k": "no worse"}

TEXTS = [
    "Hello world, the old keeper's 42 lanterns;\n\n  naïve 😀 été",
    "",
    " ",
    "a",
    "   three before, two after  ",
    "tabs\tand\r\nreturns\n\n\n\nand lines \n",
    "I'LL they're we've it's DON'T",
    "1 12 123 1234 12345678 3.14 1,000,000 ½ ² ٣٤",
    "snake_case camelCase <html> && || != ... --- ###",
    "ÀÉÎ ﬁ e\u0301 \u00a0nbsp\u3000wide \u200bzero",
    "Привет, мир! 你好，世界。 こんにちは العربية हिन्दी",
    "👩‍👩‍👧‍👦🏳️‍🌈",
    # No spaces after them: llama.cpp takes those away where a model's name is that of Phi-3, without asking the file.
    "<s><bos><|endoftext|></s>[INST]<|x|>",
]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--programs", type=Path, required=True, help="the folder of the built programs")
    arguments.add_argument("models", nargs="*", help="only these: `tiny-llama`, `embedded`")
    arguments = arguments.parse_args()
    shapes = sorted(path.stem for path in (ROOT / "models/shapes").glob("tiny-*.json"))
    unknown = set(arguments.models) - {*shapes, "embedded"}
    if unknown:
        print(f"error: no model {', '.join(f'`{name}`' for name in sorted(unknown))}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="gguf-against-llama-cpp-") as folder:
        check = Check(arguments.programs, Path(folder))
        for name in arguments.models or [*shapes, "embedded"]:
            check.model(name)
        check.end()
    for line in check.failures:
        print(f"error: {line}", file=sys.stderr)
    print(f"{check.rows} comparisons, {len(check.failures)} failed")
    return 1 if check.failures else 0


class Check:
    def __init__(self, programs: Path, folder: Path):
        self.folder, self.failures, self.rows = folder, [], 0
        self.orchestrate = Orchestrate(programs / "orchestrate")
        self.reference = Reference([programs / "pytorch-baseline"], folder / "reference.log")
        self.llama_cpp = LlamaCpp(folder / "llama.cpp.log")
        print(f"{'model':<14}{'dtype':<6}{'compared':<21}{'median':>9}{'largest':>10}{'bounds':>20}")

    def model(self, name: str) -> None:
        with self.subject(name, "", "made"):
            folder = self.made(name)
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            sequences = sequences_of(tokenizer)
            expected = self.reference.scores(folder, sequences)
            for dtype in BOUNDS:
                with self.subject(name, dtype, "opened"):
                    self.dtype(name, dtype, folder, sequences, expected, tokenizer)
            for mistake in spoiled.MISTAKES.get(name, []):
                label = mistake.__name__.replace("_", " ")
                with self.subject(name, "f32", label):
                    file = spoiled.spoiled(self.folder / f"{name}-f32.gguf", mistake, self.folder)
                    scores = self.llama_cpp.ask(file, sequences=sequences)["scores"]
                    self.spoiled(name, label, scores, expected)

    def made(self, name: str) -> Path:
        """The model in f32, which is what its GGUF files are made from."""
        folder = self.folder / name
        if name == "embedded":
            self.orchestrate("model", "convert", EMBEDDED, "--to", "safetensors", "--dtype", "f32", "--out", folder)
        else:
            self.orchestrate("model", "synth", name, "--dtype", "f32", "--out", folder)
        return folder

    def dtype(self, name, dtype, folder, sequences, expected, tokenizer) -> None:
        file = self.folder / f"{name}-{dtype}.gguf"
        self.orchestrate("model", "convert", folder, "--to", "gguf", "--dtype", dtype, "--out", file)
        if name != "embedded":
            again = self.folder / "synthesised.gguf"
            self.orchestrate("model", "synth", name, "--format", "gguf", "--dtype", dtype, "--out", again)
            if again.read_bytes() != file.read_bytes():
                self.fail(name, dtype, "synthesised and converted are not the same bytes")
            again.unlink()
        # What the file holds, in f32. For floats that is the model itself.
        held = self.folder / f"{name}-{dtype}"
        self.orchestrate("model", "convert", file, "--to", "safetensors", "--dtype", "f32", "--out", held)
        for fault in official.faults(file, held, dtype):
            self.fail(name, dtype, fault)
        if dtype in BLOCKS:
            expected = self.reference.scores(held, sequences)
            self.blocks(name, dtype, file)
        # GGUF has no word for a normaliser (Qwen's: NFC), and llama.cpp has none: it gets the text as it comes out of it.
        texts = [tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text for text in TEXTS]
        told = self.llama_cpp.ask(file, sequences=sequences, texts=texts)
        bounds = BOUNDS[dtype]
        if name in GELU_BY_TABLE:
            bounds = tuple(map(max, bounds, GELU_BOUNDS))
        self.row(name, dtype, "llama.cpp", told["scores"], expected, bounds)
        for text, ids in zip(texts, told["ids"], strict=True):
            wanted = tokenizer.encode(text).ids
            if ids != wanted:
                self.fail(name, dtype, f"the ids of {text!r} are {ids}, expected {wanted}")
        # Random weights leave the choice between ids nearly even; the trained model's own text must be the same.
        if name == "embedded" and dtype == "f32":
            prompt = sequences[0][:16]
            ids = self.llama_cpp.ask(file, greedy=[prompt, 32])["greedy"]
            wanted = self.reference.greedy(held, prompt, 32)
            if ids != wanted:
                self.fail(name, dtype, f"its greedy ids are {ids}, expected {wanted}")

    def blocks(self, name, dtype, file) -> None:
        before, theirs = self.folder / f"{name}-f32.gguf", self.folder / f"{name}-{dtype}-theirs.gguf"
        self.llama_cpp.ask(before, quantise=[dtype, str(theirs)])
        lost = official.lost(before, file, theirs)
        ratios = [ours / llama for ours, llama, _ in lost]
        median, largest = statistics.median(ratios), max(ratios)
        wanted = BLOCKS[dtype]
        self.print(name, dtype, "loss / llama.cpp's", f"{median:.3f}", f"{largest:.3f}", wanted)
        good = all(same for _, _, same in lost) if wanted == "same bytes" else largest <= 1
        if not good:
            self.fail(name, dtype, f"its blocks lose {largest:.3f} times what llama.cpp's lose: {wanted} expected")

    def row(self, name, dtype, compared, scores, expected, bounds) -> None:
        median, largest = differences(scores, expected)
        self.print(name, dtype, compared, f"{median:.1e}", f"{largest:.1e}", f"{bounds[0]:.0e} {bounds[1]:.0e}")
        # Written so that a NaN fails.
        if not (median <= bounds[0] and largest <= bounds[1]):
            said = f"{median:.1e} and {largest:.1e}, bounds {bounds[0]:.0e} and {bounds[1]:.0e}"
            self.fail(name, dtype, f"log-probabilities differ by {said}")

    def spoiled(self, name, mistake, scores, expected) -> None:
        """Ten times the bound, so that a bound which is moved a little still tells a mistake."""
        bounds = GELU_BOUNDS if name in GELU_BY_TABLE else BOUNDS["f32"]
        median, largest = differences(scores, expected)
        self.print(name, "f32", mistake, f"{median:.1e}", f"{largest:.1e}", f"must be over {10 * bounds[1]:.0e}")
        if not largest > 10 * bounds[1]:
            self.fail(name, "f32", f"{mistake}: {largest:.1e} is too near to the bound of {bounds[1]:.0e} to be found")

    def print(self, name, dtype, compared, median, largest, bounds) -> None:
        self.rows += 1
        print(f"{name:<14}{dtype:<6}{compared:<21}{median:>9}{largest:>10}{bounds:>20}", flush=True)

    def fail(self, name, dtype, why) -> None:
        self.failures.append(f"{name} {dtype}: {why}".replace(" :", ":"))

    def subject(self, name, dtype, what):
        return Subject(self, name, dtype, what)

    def end(self) -> None:
        self.reference.end()
        self.llama_cpp.end()


class Subject:
    """What is looked at just now: an error in it is a failure of it, and the next one gets its turn."""

    def __init__(self, check: Check, name: str, dtype: str, what: str):
        self.check, self.name, self.dtype, self.what = check, name, dtype, what

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        said = str(error) if isinstance(error, Failed) else "".join(traceback.format_exception(error)).strip()
        self.check.fail(self.name, self.dtype, f"{self.what}: {said}")
        return True


def sequences_of(tokenizer: Tokenizer) -> list[list[int]]:
    """Real text, long enough for slow rotations to show, and ids from all over the vocabulary."""
    text = (EMBEDDED / "heldout.txt").read_text(encoding="utf-8")
    real = tokenizer.encode(text[:4000]).ids[:400]
    assert len(real) == 400
    size = tokenizer.get_vocab_size()
    scattered = [(7919 * place * place + 104729 * place) % size for place in range(1, 201)]
    return [real, scattered]


def differences(scores, expected) -> tuple[float, float]:
    """The median and the largest."""
    pairs = [(a, b) for ours, theirs in zip(scores, expected, strict=True) for a, b in zip(ours, theirs, strict=True)]
    # None stands for minus infinity, and a NaN must not hide behind a comparison.
    apart = [abs(a - b) if a is not None and b is not None else float("inf") for a, b in pairs]
    if any(value != value for value in apart):
        return float("nan"), float("nan")
    return statistics.median(apart), max(apart)


if __name__ == "__main__":
    sys.exit(main())
