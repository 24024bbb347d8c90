"""Classes of the stand-in: arguments that refuse unknown fields, and an engine that answers from a thread."""

import asyncio
import collections
import dataclasses
import json
import math
import os
import random
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

from . import FAULTS, SETTINGS


def record_call(**facts):
    """Records an event for the test."""
    if (path := SETTINGS.get("record")) is not None:
        with open(path, "a") as file:
            file.write(json.dumps(facts, default=vars) + "\n")


class Strict:
    """Like a pydantic model that forbids unknown fields."""

    model_fields = {}

    def __init__(self, **fields):
        for name in fields:
            if name not in self.model_fields:
                raise ValueError(f"1 validation error for {type(self).__name__}: {name}: Extra inputs are not permitted")
        self.__dict__.update({**self.model_fields, **fields})


class KvCacheConfig(Strict):
    model_fields = {
        "enable_block_reuse": True,
        "max_tokens": None,
        "max_attention_window": None,
        "free_gpu_memory_fraction": 0.9,
        "host_cache_size": None,
        "enable_partial_reuse": True,
        "dtype": "auto",
        "tokens_per_block": 32,
    }


class CudaGraphConfig(Strict):
    model_fields = {"batch_sizes": None, "max_batch_size": 0, "enable_padding": False}


class BuildConfig(Strict):
    model_fields = {
        "max_input_len": 1024,
        "max_seq_len": None,
        "max_batch_size": 2048,
        "max_num_tokens": 8192,
        "gather_context_logits": False,
    }


class _Args(Strict):
    shared = {
        "kv_cache_config": None,
        "enable_chunked_prefill": False,
        "max_batch_size": None,
        "max_seq_len": None,
        "max_num_tokens": 8192,
        "scheduler_config": None,
    }


class TorchLlmArgs(_Args):
    model_fields = {
        **_Args.shared,
        "cuda_graph_config": None,
        "disable_overlap_scheduler": False,
        "stream_interval": 1,
        "enable_iter_perf_stats": False,
    }


class TrtLlmArgs(_Args):
    model_fields = {**_Args.shared, "build_config": None, "fast_build": False}


@dataclasses.dataclass(kw_only=True)
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    stop_token_ids: list | None = None
    include_stop_str_in_output: bool = False
    n: int = 1
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    prompt_logprobs: int | None = None
    return_context_logits: bool = False
    ignore_eos: bool = False
    detokenize: bool = True

    @property
    def greedy(self):
        """The library also treats a request with neither `top_k` nor `top_p` as greedy."""
        return self.top_k == 1 or (self.top_k is None and self.top_p is None)


@dataclasses.dataclass
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list = dataclasses.field(default_factory=list)
    logprobs: list = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    last: int = 0

    @property
    def token_ids_diff(self):
        return self.token_ids[self.last :]


class RequestError(RuntimeError):
    """Like the library's own error of one request."""


class RequestOutput:
    """One request; its responses come through a queue of the loop in which it was made. Like the library's queue, it
    keeps each response, wakes its reader only while that loop runs, and does not try again."""

    def __init__(self, prompt_token_ids):
        self.prompt_token_ids = prompt_token_ids
        self.outputs, self.finished, self.cached_tokens = [CompletionOutput(0)], False, 0
        self.aborted, self._logits = threading.Event(), None
        self._loop, self._kept, self._event = asyncio.get_running_loop(), collections.deque(), asyncio.Event()

    @property
    def finished(self):
        return self._done

    @finished.setter
    def finished(self, done):
        self._done = done

    @property
    def context_logits(self):
        return self._logits

    @property
    def outputs(self):
        return self._outputs

    @outputs.setter
    def outputs(self, outputs):
        self._outputs = outputs

    def abort(self):
        record_call(aborted=self.prompt_token_ids)
        self.aborted.set()

    def put(self, **response):
        self._kept.append(response)
        if not self._loop.is_running():
            # The library's dispatching thread logs this and continues.
            return record_call(lost_wake=self.prompt_token_ids)
        asyncio.run_coroutine_threadsafe(self._wake(), self._loop)

    async def _wake(self):
        if self._kept:
            self._event.set()

    async def _get(self):
        while not self._kept:
            await self._event.wait()
        response = self._kept.popleft()
        if not self._kept:
            self._event.clear()
        return response

    async def aresult(self):
        while not self.finished:
            await self.__anext__()
        return self

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.finished:
            raise StopAsyncIteration
        response = await self._get()
        if "error" in response:
            self.finished = True
            raise RequestError(response["error"])
        output = self.outputs[0]
        output.last = len(output.token_ids)
        output.token_ids.extend(response["ids"])
        if (reason := response.get("reason")) is not None:
            output.finish_reason, output.stop_reason = reason, response.get("stop")
            self._logits, self.finished = response.get("logits"), True
        return self


class LLM:
    arguments = TorchLlmArgs

    def __init__(
        self,
        model,
        tokenizer=None,
        tokenizer_mode="auto",
        skip_tokenizer_init=False,
        trust_remote_code=False,
        tensor_parallel_size=1,
        dtype="auto",
        revision=None,
        tokenizer_revision=None,
        **kwargs,
    ):
        record_call(
            made=type(self).__name__,
            module=type(self).__module__,
            model=model,
            skip_tokenizer_init=skip_tokenizer_init,
            trust_remote_code=trust_remote_code,
            tensor_parallel_size=tensor_parallel_size,
            dtype=dtype,
            kwargs=kwargs,
            visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        )
        for name in kwargs:
            if name not in self.arguments.model_fields:
                raise ValueError(f"LLM got invalid argument: {name}")
        self.args = self.arguments(**kwargs)
        self.args.__dict__["tensor_parallel_size"] = tensor_parallel_size
        config = json.loads(Path(model, "config.json").read_text())
        self._vocabulary = config.get("vocab_size") or 64
        if "out_of_memory" in FAULTS:
            try:
                raise RuntimeError("CUDA out of memory. Tried to allocate 48.00 GiB. GPU 0 has 3.00 GiB free.")
            except RuntimeError as error:
                raise RuntimeError("Executor worker returned error") from error
        if config.get("architectures") == ["MadeUpForCausalLM"]:
            try:
                raise ValueError("Unknown architecture for AutoModelForCausalLM: MadeUpForCausalLM")
            except ValueError as error:
                raise RuntimeError("Executor worker returned error") from error
        self._workers = [start_worker() for _ in range(tensor_parallel_size)]
        record_call(workers=self._workers)

    def generate_async(
        self,
        inputs,
        sampling_params=None,
        lora_request=None,
        prompt_adapter_request=None,
        streaming=False,
        kv_cache_retention_config=None,
        disaggregated_params=None,
        _postproc_params=None,
        scheduling_params=None,
        cache_salt=None,
    ):
        if sampling_params.end_id is None:
            raise ValueError("tokenizer is required to reset end_id if it is None")
        if len(inputs) > self.args.max_num_tokens and not self.args.enable_chunked_prefill:
            raise ValueError(f"The sum of prompt length ({len(inputs)}) should not exceed max_num_tokens")
        if inputs == SETTINGS.get("refused"):
            raise ValueError("a prompt that the library does not take")
        record_call(requested=inputs, params=vars(sampling_params), streaming=streaming)
        result = RequestOutput(inputs)
        threading.Thread(target=self._answer, args=(result, sampling_params, streaming), daemon=True).start()
        return result

    def _answer(self, result, params, streaming):
        if "worker_dies" in FAULTS:
            for pid in self._workers:
                os.kill(pid, 9)
            return
        if "request_fails" in FAULTS:
            return result.put(error="CUDA error: an illegal memory access was encountered")
        ids = list(result.prompt_token_ids)
        logits = None
        if params.return_context_logits:
            import torch

            logits = torch.Tensor([row(ids[: end + 1], self._vocabulary) for end in range(len(ids))])
            if SETTINGS.get("few_logits"):
                logits = logits[:1]
        stops = [] if params.ignore_eos else [params.end_id, *(params.stop_token_ids or [])]
        draw, new, chunk, reason = random.Random(params.seed), 0, [], None
        while reason is None:
            time.sleep(SETTINGS.get("token_s", 0.0))
            if "never_answers" in FAULTS and new == 2:
                result.aborted.wait()
            if result.aborted.is_set():
                return result.put(ids=[], reason="cancelled")
            id = pick(row(ids, self._vocabulary), params, draw)
            if SETTINGS.get("ends_after") == new:
                # The model's output is made up, and so is its end.
                id = (stops or [id])[-1]
            ids.append(id)
            new += 1
            if id in stops:
                reason = "stop"
                if "cuts_the_end" in FAULTS:
                    return result.put(ids=chunk, reason=reason, stop=None if id == params.end_id else id)
            elif new == params.max_tokens - ("ends_early" in FAULTS):
                reason = "length"
            chunk.append(id)
            if streaming and (len(chunk) == SETTINGS.get("chunk", 1) and reason is None):
                result.put(ids=chunk)
                chunk = []
        stop = id if reason == "stop" and id != params.end_id else None
        extra = [id] if "gives_too_much" in FAULTS else []
        result.put(ids=chunk + extra, reason=reason, stop=stop, logits=logits)

    def shutdown(self):
        record_call(shut_down=True)
        if "does_not_shut_down" in FAULTS:
            time.sleep(60)
        for pid in self._workers:
            try:
                os.kill(pid, 9)
            except OSError:
                pass


def row(ids, vocabulary):
    """Logits after these ids: not like a model's, but deterministic, and different after different ids."""
    seed = zlib.crc32(b"".join(id.to_bytes(4, "little") for id in ids)) | 1
    return [((seed * (2 * id + 1)) >> 4) % 997 / 100 for id in range(vocabulary)]


def pick(logits, params, draw):
    if params.greedy:
        return max(range(len(logits)), key=logits.__getitem__)
    order = sorted(range(len(logits)), key=lambda id: -logits[id])[: params.top_k or None]
    weights = [math.exp((logits[id] - logits[order[0]]) / (params.temperature or 1.0)) for id in order]
    if params.top_p is not None and params.top_p < 1:
        remainder, count = params.top_p * sum(weights), 0
        while remainder > 0:
            remainder -= weights[count]
            count += 1
        order, weights = order[:count], weights[:count]
    return draw.choices(order, weights)[0]


def start_worker():
    """A process that computes nothing and is no descendant: like MPI's workers, its parent ends at once."""
    sleeper = "import sys, time\ntime.sleep(600)"
    if "detached_worker" in FAULTS:
        quiet = "stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True"
        script = f"import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', {sleeper!r}], {quiet}).pid)"
        return int(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout)
    return subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True).pid
