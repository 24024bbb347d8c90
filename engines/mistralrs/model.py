"""A loaded model: generates through mistral.rs's streams of chats, and reports the configuration in effect."""

import importlib.metadata
import queue
import threading
import time

import checkpoint
import id_folder
import library_log
from engine_kit import Failed, Model, count_threads
from model_folder import FolderTokenizerMixin

# The names of mistral.rs's threads that compute, as the kernel shows them.
COMPUTE_THREADS = "tokio-runtime-w"


class MistralRsModel(FolderTokenizerMixin, Model):
    def __init__(self, runner, folder, request, log_lines):
        self._runner, self._folder, self._embedding_rows = runner, folder, folder.vocabulary_size
        self._context_tokens = min(runner.max_sequence_length() or folder.context_tokens, folder.context_tokens)
        # The library's times of the latest request, for `compare_with_usage.py`.
        self.usage = []
        self._facts = self._read_facts(request, log_lines)

    def generate(self, job, tokens):
        self.usage = [None] * len(job.prompts)
        if len(job.prompts) == 1:
            # Without a second thread between the library and the clock.
            stream = self._send(job.prompts[0], job.max_new_tokens)
            for id in self._ids(0, len(job.prompts[0]), stream):
                if ends_early(tokens.push(0, id), job, tokens, 0):
                    break
            return
        self._generate_batch(job, tokens)

    def _generate_batch(self, job, tokens):
        """Sends all prompts at once. mistral.rs advances sequences of equal length together."""
        received = queue.SimpleQueue()

        # One thread sends, because the library refuses two calls at once.
        streams = [self._send(prompt, job.max_new_tokens) for prompt in job.prompts]

        def read(sequence, stream):
            try:
                for id in self._ids(sequence, len(job.prompts[sequence]), stream):
                    received.put((sequence, id, time.perf_counter_ns()))
                    if ended_early[sequence]:
                        break
            except BaseException as error:
                received.put((sequence, error, 0))
            received.put((sequence, None, 0))

        ended_early = [False] * len(job.prompts)
        threads = [threading.Thread(target=read, args=pair, daemon=True) for pair in enumerate(streams)]
        for thread in threads:
            thread.start()
        reading, error = len(threads), None
        while reading:
            sequence, id, at_ns = received.get()
            if id is None:
                reading -= 1
            elif isinstance(id, BaseException):
                error = error or id
            elif not ended_early[sequence]:
                is_done = tokens.push(sequence, id, at_ns)
                ended_early[sequence] = ends_early(is_done, job, tokens, sequence)
        if error is not None:
            raise error

    def _send(self, prompt, max_new_tokens):
        """Sends a greedy request, and returns the stream of its answer. mistral.rs ends no sequence at EOS: the kit does."""
        from mistralrs import ChatCompletionRequest

        request = ChatCompletionRequest(
            messages=id_folder.text_of(prompt),
            model="default",
            max_tokens=max_new_tokens,
            temperature=0.0,
            stream=True,
            ignore_eos=True,
        )
        try:
            return self._runner.send_chat_completion_request(request)
        except Exception as error:
            raise request_failure(self._folder, error) from None

    def _ids(self, sequence, prompt_tokens, stream):
        """The ids of an answer, one by one. If the caller stops early, mistral.rs sees the closed stream at its next token and ends
        the sequence."""
        count = 0
        try:
            for chunk in stream:
                for choice in chunk.choices:
                    for id in id_folder.ids_of(choice.delta.content or ""):
                        count += 1
                        yield id
                if chunk.usage is not None:
                    self._check_usage(sequence, chunk.usage, prompt_tokens, count)
            if self.usage[sequence] is None:
                raise Failed("internal", "mistral.rs ended its answer without the counts of its tokens")
        except (Failed, GeneratorExit):
            raise
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            raise request_failure(self._folder, error) from None

    def _check_usage(self, sequence, usage, prompt_tokens, new_tokens):
        """Refuses an answer to another prompt: the library counts the tokens that its model has seen."""
        if (usage.prompt_tokens, usage.completion_tokens) != (prompt_tokens, new_tokens):
            counted = f"{usage.prompt_tokens} tokens of the prompt and {usage.completion_tokens} new tokens"
            raise Failed("internal", f"mistral.rs counts {counted}, expected {prompt_tokens} and {new_tokens}")
        self.usage[sequence] = usage

    def facts(self):
        return dict(self._facts)

    def _read_facts(self, request, log_lines):
        folder = self._folder
        selected = selected_dtype(log_lines, request.dtype)
        rounded = library_log.find(log_lines, r"Quantizing model weights to (\w+)")
        weights = {"q4k": "q4_k", "q5k": "q5_k", "q6k": "q6_k"}.get(rounded, rounded) or selected
        if selected is None or weights != request.dtype:
            raise Failed("internal", f"mistral.rs chose the dtype `{weights}` for the requested `{request.dtype}`")
        # The library narrows only keys and values in f32.
        narrow_kv = library_log.find(library_log.all_lines, r"Using (\w+) KV cache on CPU")
        facts = {
            "device": "cpu",
            "weights_dtype": weights,
            "compute_dtype": compute_dtype(weights),
            "kv_dtype": narrow_kv if narrow_kv and selected == "f32" else selected,
            "use_cache": True,
            "prefix_cache": False,
            "libraries": {"mistralrs": importlib.metadata.version("mistralrs")},
            **checkpoint.facts(folder),
            "context_tokens": self._context_tokens,
        }
        # The library's pool has a thread for each that computes.
        if (threads := count_threads(COMPUTE_THREADS)) > 0:
            facts["threads"] = threads
        return facts


def selected_dtype(log_lines, requested):
    """The dtype of arithmetic that the library states in this load. If it states none now, because it did so in an earlier
    load: the requested one, if that load had it."""
    pattern = r"DType selected is (\w+)\."
    if (stated := library_log.find(log_lines, pattern)) is not None:
        return stated.lower()
    expected = requested if requested in ("bf16", "f16") else "f32"
    return expected if library_log.find(library_log.all_lines, rf"DType selected is ({expected.upper()})\.") else None


def ends_early(is_done, job, tokens, sequence):
    """Whether a sequence ended before the requested number of tokens. A complete one is read to its end, where the library
    reports its counts."""
    return is_done and len(tokens.ids(sequence)) < job.max_new_tokens


def compute_dtype(weights_dtype):
    """The dtype to which mistral.rs rounds the activations before a product with these weights."""
    if weights_dtype in ("f32", "f16", "bf16"):
        return weights_dtype
    return "q8_k" if weights_dtype.endswith("_k") else "q8_0"


def request_failure(folder, error):
    cause = str(error).split("\n")[0][:500]
    if "invalid logits" in cause or "no finite logits" in cause:
        return Failed("model", f"model `{folder.name}` gave logits that are not numbers: {cause}", "check its weights")
    return Failed("internal", f"mistral.rs: {cause}")
