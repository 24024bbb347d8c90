"""The stand-in's LLM API: arguments that refuse unknown fields, and an `LLM` that sends responses from a thread."""

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


def record_call(**fields):
    """Appends a call to the file that the test reads."""
    if (path := SETTINGS.get("record")) is not None:
        with open(path, "a") as file:
            file.write(json.dumps(fields, default=vars) + "\n")


class StrictModel:
    """Like a pydantic model that forbids unknown fields."""

    model_fields = {}

    def __init__(self, **fields):
        for name in fields:
            if name not in self.model_fields:
                raise ValueError(f"1 validation error for {type(self).__name__}: {name}: Extra inputs are not permitted")
        self.__dict__.update({**self.model_fields, **fields})


class KvCacheConfig(StrictModel):
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


class CudaGraphConfig(StrictModel):
    model_fields = {"batch_sizes": None, "max_batch_size": 0, "enable_padding": False}


class BuildConfig(StrictModel):
    model_fields = {
        "max_input_len": 1024,
        "max_seq_len": None,
        "max_batch_size": 2048,
        "max_num_tokens": 8192,
        "gather_context_logits": False,
    }


class _Args(StrictModel):
    common_fields = {
        "kv_cache_config": None,
        "enable_chunked_prefill": False,
        "max_batch_size": None,
        "max_seq_len": None,
        "max_num_tokens": 8192,
        "scheduler_config": None,
    }


class TorchLlmArgs(_Args):
    model_fields = {
        **_Args.common_fields,
        "cuda_graph_config": None,
        "disable_overlap_scheduler": False,
        "stream_interval": 1,
        "enable_iter_perf_stats": False,
    }


class TrtLlmArgs(_Args):
    model_fields = {**_Args.common_fields, "build_config": None, "fast_build": False}


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
        """As in the library, a request with neither `top_k` nor `top_p` is greedy."""
        return self.top_k == 1 or (self.top_k is None and self.top_p is None)


@dataclasses.dataclass
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list = dataclasses.field(default_factory=list)
    logprobs: list = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    previous_count: int = 0  # The number of ids before the last response.

    @property
    def token_ids_diff(self):
        return self.token_ids[self.previous_count :]


class RequestError(RuntimeError):
    """The library's error type for one request."""


class RequestOutput:
    """One request and the queue of its responses. Like the library's queue, it keeps each response, but wakes the reader
    only while the reader's event loop runs. A lost wake is not repeated."""

    # The engine's check of the interface looks for these attributes in the class.
    outputs, finished, context_logits = (), False, None

    def __init__(self, prompt_token_ids):
        self.prompt_token_ids = prompt_token_ids
        self.outputs, self.cached_tokens, self.aborted = [CompletionOutput(0)], 0, threading.Event()
        self._loop, self._waiting, self._event = asyncio.get_running_loop(), collections.deque(), asyncio.Event()

    def abort(self):
        record_call(aborted=self.prompt_token_ids)
        self.aborted.set()

    def put(self, **response):
        self._waiting.append(response)
        if not self._loop.is_running():
            # The library logs the lost wake and continues.
            return record_call(lost_wake=self.prompt_token_ids)
        asyncio.run_coroutine_threadsafe(self._wake(), self._loop)

    async def _wake(self):
        if self._waiting:
            self._event.set()

    async def _get(self):
        while not self._waiting:
            await self._event.wait()
        response = self._waiting.popleft()
        if not self._waiting:
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
        output.previous_count = len(output.token_ids)
        output.token_ids.extend(response["ids"])
        if (reason := response.get("reason")) is not None:
            output.finish_reason, output.stop_reason = reason, response.get("stop_id")
            self.context_logits, self.finished = response.get("logits"), True
        return self


class LLM:
    args_class = TorchLlmArgs

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
            llm_class=type(self).__name__,
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
            if name not in self.args_class.model_fields:
                raise ValueError(f"LLM got invalid argument: {name}")
        self.args = self.args_class(**kwargs)
        self.args.__dict__["tensor_parallel_size"] = tensor_parallel_size
        config = json.loads(Path(model, "config.json").read_text())
        self._vocabulary = config.get("vocab_size") or 64
        if "out_of_memory" in FAULTS:
            try:
                raise RuntimeError("CUDA out of memory. Tried to allocate 48.00 GiB. GPU 0 has 3.00 GiB free.")
            except RuntimeError as error:
                raise RuntimeError("Executor worker returned error") from error
        if config.get("architectures") == ["InventedForCausalLM"]:
            try:
                raise ValueError("Unknown architecture for AutoModelForCausalLM: InventedForCausalLM")
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
        if inputs == SETTINGS.get("refused_prompt"):
            raise ValueError("the library refuses this prompt")
        record_call(prompt_ids=inputs, params=vars(sampling_params), streaming=streaming)
        result = RequestOutput(inputs)
        threading.Thread(target=self._respond, args=(result, sampling_params, streaming), daemon=True).start()
        return result

    def _respond(self, result, params, streaming):
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

            logits = torch.Tensor([logits_after(ids[: end + 1], self._vocabulary) for end in range(len(ids))])
            if SETTINGS.get("few_logits"):
                logits = logits[:1]
        eos_ids = [] if params.ignore_eos else [params.end_id, *(params.stop_token_ids or [])]
        generator, count, chunk, reason = random.Random(params.seed), 0, [], None
        while reason is None:
            time.sleep(SETTINGS.get("token_s", 0.0))
            if "stops_responding" in FAULTS and count == 2:
                result.aborted.wait()
            if result.aborted.is_set():
                return result.put(ids=[], reason="cancelled")
            id = choose_id(logits_after(ids, self._vocabulary), params, generator)
            if SETTINGS.get("eos_after") == count:  # The next id is an EOS id.
                id = (eos_ids or [id])[-1]
            ids.append(id)
            count += 1
            if id in eos_ids:
                reason = "stop"
                if "removes_eos" in FAULTS:
                    return result.put(ids=chunk, reason=reason, stop_id=None if id == params.end_id else id)
            elif count == params.max_tokens - ("ends_early" in FAULTS):
                reason = "length"
            chunk.append(id)
            if streaming and (len(chunk) == SETTINGS.get("chunk", 1) and reason is None):
                result.put(ids=chunk)
                chunk = []
        stop_id = id if reason == "stop" and id != params.end_id else None
        extra_ids = [id] if "extra_token" in FAULTS else []
        result.put(ids=chunk + extra_ids, reason=reason, stop_id=stop_id, logits=logits)

    def shutdown(self):
        record_call(shut_down=True)
        if "does_not_shut_down" in FAULTS:
            time.sleep(60)
        for pid in self._workers:
            try:
                os.kill(pid, 9)
            except OSError:
                pass


def logits_after(ids, vocabulary):
    """The logits of the invented model after these ids. They are deterministic, and different after different ids."""
    seed = zlib.crc32(b"".join(id.to_bytes(4, "little") for id in ids)) | 1
    return [((seed * (2 * id + 1)) >> 4) % 997 / 100 for id in range(vocabulary)]


def choose_id(logits, params, generator):
    if params.greedy:
        return max(range(len(logits)), key=logits.__getitem__)
    order = sorted(range(len(logits)), key=lambda id: -logits[id])[: params.top_k or None]
    weights = [math.exp((logits[id] - logits[order[0]]) / (params.temperature or 1.0)) for id in order]
    if params.top_p is not None and params.top_p < 1:
        remaining_weight, count = params.top_p * sum(weights), 0
        while remaining_weight > 0:
            remaining_weight -= weights[count]
            count += 1
        order, weights = order[:count], weights[:count]
    return generator.choices(order, weights)[0]


# A program that starts a worker process and ends, so that the worker process is no descendant of the engine. The program
# waits for a line of the worker process: before its start, /proc does not have its environment variables.
DETACHED_START = """
import subprocess, sys
options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "start_new_session": True}
worker = subprocess.Popen([sys.executable, "-c", "print(flush=True)\\n" + sys.argv[1]], **options)
worker.stdout.readline()
print(worker.pid)
"""


def start_worker():
    """Starts a worker process that computes nothing. A detached one is no descendant of the engine, like MPI's."""
    script = "import time\ntime.sleep(600)"
    if "detached_worker" in FAULTS:
        starter = [sys.executable, "-c", DETACHED_START, script]
        return int(subprocess.run(starter, capture_output=True, check=True).stdout)
    return subprocess.Popen([sys.executable, "-c", script], start_new_session=True).pid
