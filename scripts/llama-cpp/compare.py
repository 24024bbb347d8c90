"""Checks that llama.cpp opens the GGUF files of `orchestrate`, and computes the same as the verifier.

For each file, the check compares log-probabilities of the same ids: llama.cpp reads the file, and the verifier
(`pytorch-baseline`) reads safetensors with the same weights in f32. It also compares the ids of texts with those of
`tokenizers`, and checks every tensor with the reader that llama.cpp publishes. The models are every shape `tiny-*` with
random weights, and the embedded model, which is trained."""

import argparse
import math
import statistics
import sys
import tempfile
import traceback
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer

import converter_mistakes
import official
from programs import Failed, LlamaCpp, Orchestrate, ProtocolEngine

ROOT = Path(__file__).resolve().parents[2]
EMBEDDED = ROOT / "models/embedded"

# Bounds for the median and the largest difference of a log-probability. Both sides have the same weights, so differences come
# from llama.cpp's arithmetic. llama.cpp rounds activations: for weights in f16 and bf16 to the same dtype, for quantized
# weights to 8 bits with one scale for each 32 or 256 activations. The bounds are two to seven times the observed differences.
BOUNDS = {
    "f32": (1e-5, 1e-4),
    "f16": (1e-3, 1e-2),
    "bf16": (1e-2, 8e-2),
    "q8_0": (3e-2, 3e-1),
    "q4_0": (3e-2, 3e-1),
    "q6_k": (4e-2, 5e-1),
    "q4_k": (4e-2, 5e-1),
}
# The models with GELU, which ggml looks up in a table of f16 values.
GELU_MODELS = {"tiny-gpt2", "tiny-gemma"}
GELU_BOUNDS = (5e-4, 3e-3)

# The rule for the quantization blocks of `orchestrate`, compared with llama.cpp's. q8_0 and q4_0 have only one possible
# result. In q6_k and q4_k, the root mean square error of a tensor by `orchestrate` may not be larger.
BLOCK_RULES = {"q8_0": "same bytes", "q4_0": "same bytes", "q6_k": "no worse", "q4_k": "no worse"}

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
    # Special tokens without spaces after them: llama.cpp removes such spaces for every model with the name of Phi-3.
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
            check.check_model(name)
        check.end()
    for line in check.failures:
        print(f"error: {line}", file=sys.stderr)
    print(f"{check.rows} comparisons, {len(check.failures)} failed")
    return 1 if check.failures else 0


class Check:
    def __init__(self, programs: Path, folder: Path):
        self.folder, self.failures, self.rows = folder, [], 0
        self.orchestrate = Orchestrate(programs / "orchestrate")
        self.verifier = ProtocolEngine([programs / "pytorch-baseline"], folder / "verifier.log")
        self.llama_cpp = LlamaCpp(folder / "llama.cpp.log")
        print(f"{'model':<14}{'dtype':<6}{'compared':<21}{'median':>9}{'largest':>10}{'bounds':>20}")

    def check_model(self, name: str) -> None:
        with self.step(name, "", "making"):
            folder = self.make_model(name)
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            sequences = score_sequences(tokenizer)
            expected = self.verifier.scores(folder, sequences)
            for dtype in BOUNDS:
                with self.step(name, dtype, "opening"):
                    self.check_dtype(name, dtype, folder, sequences, expected, tokenizer)
            for mistake in converter_mistakes.MISTAKES.get(name, []):
                label = mistake.__name__.replace("_", " ")
                with self.step(name, "f32", label):
                    file = converter_mistakes.copy_with(self.folder / f"{name}-f32.gguf", mistake, self.folder)
                    scores = self.llama_cpp.request(file, sequences=sequences)["scores"]
                    self.check_mistake(name, label, scores, expected)

    def make_model(self, name: str) -> Path:
        """Makes the model in f32, the source of its GGUF files."""
        folder = self.folder / name
        if name == "embedded":
            self.orchestrate("model", "convert", EMBEDDED, "--to", "safetensors", "--dtype", "f32", "--out", folder)
        else:
            self.orchestrate("model", "synth", name, "--dtype", "f32", "--out", folder)
        return folder

    def check_dtype(self, name, dtype, folder, sequences, expected, tokenizer) -> None:
        file = self.folder / f"{name}-{dtype}.gguf"
        self.orchestrate("model", "convert", folder, "--to", "gguf", "--dtype", dtype, "--out", file)
        if name != "embedded":
            synthesised = self.folder / "synthesised.gguf"
            self.orchestrate("model", "synth", name, "--format", "gguf", "--dtype", dtype, "--out", synthesised)
            if synthesised.read_bytes() != file.read_bytes():
                self.fail(name, dtype, "the synthesised and the converted file differ")
            synthesised.unlink()
        # A folder with the file's weights in f32. Quantized weights differ from those of `folder`.
        f32_folder = self.folder / f"{name}-{dtype}"
        self.orchestrate("model", "convert", file, "--to", "safetensors", "--dtype", "f32", "--out", f32_folder)
        for problem in official.problems(file, f32_folder, dtype):
            self.fail(name, dtype, problem)
        if dtype in BLOCK_RULES:
            expected = self.verifier.scores(f32_folder, sequences)
            self.check_blocks(name, dtype, file)
        # GGUF has no field for a normaliser (Qwen's: NFC), and llama.cpp has no normaliser, so the texts are normalised here.
        texts = [tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text for text in TEXTS]
        answer = self.llama_cpp.request(file, sequences=sequences, texts=texts)
        bounds = BOUNDS[dtype]
        if name in GELU_MODELS:
            bounds = tuple(map(max, bounds, GELU_BOUNDS))
        self.check_scores(name, dtype, "llama.cpp", answer["scores"], expected, bounds)
        for text, ids in zip(texts, answer["ids"], strict=True):
            expected_ids = tokenizer.encode(text).ids
            if ids != expected_ids:
                self.fail(name, dtype, f"the ids of {text!r} are {ids}, expected {expected_ids}")
        # Random weights make several ids nearly equally likely, so only the trained model must choose the same ids.
        if name == "embedded" and dtype == "f32":
            prompt = sequences[0][:16]
            ids = self.llama_cpp.request(file, greedy=[prompt, 32])["greedy"]
            expected_ids = self.verifier.greedy(f32_folder, prompt, 32)
            if ids != expected_ids:
                self.fail(name, dtype, f"its greedy ids are {ids}, expected {expected_ids}")

    def check_blocks(self, name, dtype, file) -> None:
        f32_file, llama_cpp_file = self.folder / f"{name}-f32.gguf", self.folder / f"{name}-{dtype}-llama-cpp.gguf"
        self.llama_cpp.request(f32_file, quantize=[dtype, str(llama_cpp_file)])
        errors = official.errors(f32_file, file, llama_cpp_file)
        ratios = [our_error / their_error for our_error, their_error, _ in errors]
        median, largest = statistics.median(ratios), max(ratios)
        rule = BLOCK_RULES[dtype]
        self.print(name, dtype, "error / llama.cpp's", f"{median:.3f}", f"{largest:.3f}", rule)
        passed = all(same_bytes for _, _, same_bytes in errors) if rule == "same bytes" else largest <= 1
        if not passed:
            self.fail(name, dtype, f"the error of its blocks is {largest:.3f} times that of llama.cpp's: expected {rule}")

    def check_scores(self, name, dtype, compared, scores, expected, bounds) -> None:
        median, largest = differences(scores, expected)
        self.print(name, dtype, compared, f"{median:.1e}", f"{largest:.1e}", f"{bounds[0]:.0e} {bounds[1]:.0e}")
        # Every comparison with NaN is false, so a NaN fails too.
        if not (median <= bounds[0] and largest <= bounds[1]):
            values = f"{median:.1e} and {largest:.1e}, bounds {bounds[0]:.0e} and {bounds[1]:.0e}"
            self.fail(name, dtype, f"log-probabilities differ by {values}")

    def check_mistake(self, name, mistake, scores, expected) -> None:
        """Checks that the largest difference exceeds ten times its bound, so that a slightly different bound finds it too."""
        bound = (GELU_BOUNDS if name in GELU_MODELS else BOUNDS["f32"])[1]
        median, largest = differences(scores, expected)
        self.print(name, "f32", mistake, f"{median:.1e}", f"{largest:.1e}", f"must be over {10 * bound:.0e}")
        if not largest > 10 * bound:
            self.fail(name, "f32", f"{mistake}: {largest:.1e} is too near to the bound of {bound:.0e}")

    def print(self, name, dtype, compared, median, largest, bounds) -> None:
        self.rows += 1
        print(f"{name:<14}{dtype:<6}{compared:<21}{median:>9}{largest:>10}{bounds:>20}", flush=True)

    def fail(self, name, dtype, problem) -> None:
        self.failures.append(f"{name} {dtype}".strip() + f": {problem}")

    @contextmanager
    def step(self, name, dtype, label):
        """A step of the check. An exception in the step becomes a failure, and the check continues."""
        try:
            yield
        except Exception as error:
            text = str(error) if isinstance(error, Failed) else traceback.format_exc().strip()
            self.fail(name, dtype, f"{label}: {text}")

    def end(self) -> None:
        self.verifier.end()
        self.llama_cpp.end()


def score_sequences(tokenizer: Tokenizer) -> list[list[int]]:
    """The ids of a real text, long enough to test slow rotations, and ids that two primes scatter over the vocabulary."""
    text = (EMBEDDED / "heldout.txt").read_text(encoding="utf-8")
    ids_of_text = tokenizer.encode(text[:4000]).ids[:400]
    assert len(ids_of_text) == 400
    size = tokenizer.get_vocab_size()
    scattered_ids = [(7919 * index * index + 104729 * index) % size for index in range(1, 201)]
    return [ids_of_text, scattered_ids]


def differences(scores, expected) -> tuple[float, float]:
    """The median and the largest difference."""
    pairs = [(a, b) for pair in zip(scores, expected, strict=True) for a, b in zip(*pair, strict=True)]
    # None means minus infinity.
    absolute = [abs(a - b) if a is not None and b is not None else float("inf") for a, b in pairs]
    # `median` and `max` may miss a NaN.
    if any(map(math.isnan, absolute)):
        return float("nan"), float("nan")
    return statistics.median(absolute), max(absolute)


if __name__ == "__main__":
    sys.exit(main())
