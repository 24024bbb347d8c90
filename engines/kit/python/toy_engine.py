"""An engine for the kit's tests: greedily, every token is the previous token plus one. Special ids select other behaviour."""

import sys
import threading

import engine_kit

BOS, EOS, VOCABULARY = 1, 2, 300

# Each id selects a behaviour of the toy: in `generate`, as the first id of a prompt; in `SlotsModel.step`, as the latest id (not
# STOPS_EARLY and PUSHES_AFTER_END). `SlotsModel.admit` fails if FAILS is the first id of a prompt.
RAISES, FAILS, RUNS_OUT_OF_MEMORY, STOPS_EARLY, PRINTS, EXITS, PUSHES_AFTER_END, HANGS = 290, 291, 292, 293, 294, 295, 296, 297
# In `SlotsModel.step`, only the request with this latest id fails.
FAILS_ALONE = 285
# A request whose last token has this id cannot leave its slot.
STAYS_IN_SLOT = 280


class ToyEngine(engine_kit.Engine):
    options = ("speed",)

    def __init__(self, **capabilities):
        self.capabilities = capabilities
        self.load_requests = []

    def hello(self):
        return {
            "engine": "toy",
            "version": "1.0",
            "deterministic": True,
            "build": {"features": [], "target_cpu": "native", "commit": "0123abc"},
            "capabilities": {
                "devices": ["cpu", "cuda"],
                "dtypes": ["f32", "bf16"],
                "formats": ["safetensors"],
                "architectures": ["llama"],
                "batch": 4,
                "padding_sides": ["left", "packed"],
                "speculation": ["prompt_lookup"],
                "ignore_eos": "exact",
                "sampling": True,
                "score": True,
                **self.capabilities,
            },
        }

    def load(self, request, phases):
        self.load_requests.append(request)
        with phases.time("weights"):
            phases.progress("weights", 0.5, "half of the weights")
        if request.options.get("speed") == "none":
            raise ValueError("no speed")
        return ToyModel(request)


class ToyModel(engine_kit.Model):
    def __init__(self, request):
        self.request = request

    def facts(self):
        return {
            "device": self.request.device,
            **dict.fromkeys(("weights_dtype", "compute_dtype", "kv_dtype"), self.request.dtype),
            "threads": self.request.threads or 1,
            "architecture": "llama",
            "context_tokens": self.request.context_tokens or 64,
            "use_cache": True,
            "weights_bytes": 1200,
            "parameters": 300,
            "vocabulary_size": VOCABULARY,
            "hidden_size": 1,
            **dict.fromkeys(("layers", "heads", "kv_heads", "head_dim", "intermediate_size"), 1),
            "eos_ids": [EOS],
            "bos_id": BOS,
            "prefix_cache": False,
            "libraries": {"toy": "1.0"},
            "device_memory": {"in_use_bytes": 1200, "peak_bytes": 1300, "reserved_bytes": 2000},
            "pids": [],
        }

    def encode(self, text):
        return [BOS, *(byte + 3 for byte in text.encode())] if text else []

    def decode(self, ids):
        return bytes(id - 3 for id in ids if 3 <= id < 256).decode("utf-8", "replace")

    def generate(self, job, tokens):
        act_on_special_id(job.prompts[0][0])
        sampler = engine_kit.Sampler(job.sampling)
        for sequence, prompt in enumerate(job.prompts):
            tokens.set_cached_prompt_tokens(sequence, 0)
            if job.speculation != "off":
                tokens.set_drafts(sequence, 2, 1)
            id, done = prompt[-1], False
            while not done:
                # Greedy takes the next id; sampling draws from the next two.
                id = (id + 1 + sampler.pick([0.0, 0.0], sequence)) % VOCABULARY
                done = tokens.push(sequence, id)
                if prompt[0] == STOPS_EARLY:
                    return
            if prompt[0] == PUSHES_AFTER_END:
                tokens.push(sequence, id)

    def score(self, ids):
        return [float("-inf") if id == EOS else -float(id) for id in ids[1:]]


class SlotsEngine(ToyEngine):
    """Like `ToyEngine`, but advances two requests at once. `taken_slots` counts the taken slots after each admission, and
    `calls` names the calls of `admit`, `leave` and `facts`."""

    def __init__(self):
        super().__init__(concurrency=2)
        self.taken_slots, self.calls = [], []

    def load(self, request, phases):
        return SlotsModel(request, self)


class SlotsModel(ToyModel):
    def __init__(self, request, engine):
        super().__init__(request)
        self._slots, self._taken_slots, self._calls = {}, engine.taken_slots, engine.calls

    def facts(self):
        self._calls.append("facts")
        return super().facts()

    def admit(self, slot, job):
        assert slot not in self._slots
        self._calls.append("admit")
        if job.prompts[0][0] == FAILS:
            raise engine_kit.Failed("device", "the device has no free memory")
        self._slots[slot] = [prompt[-1] for prompt in job.prompts]
        self._taken_slots.append(len(self._slots))

    def step(self, tokens):
        for slot, last_ids in self._slots.items():
            act_on_special_id(last_ids[0])
            if last_ids[0] == FAILS_ALONE:
                tokens[slot].fail(ValueError("only this one"))
                continue
            for sequence in range(len(last_ids)):
                if not tokens[slot].is_done(sequence):
                    last_ids[sequence] += 1
                    tokens[slot].push(sequence, last_ids[sequence])

    def leave(self, slot):
        self._calls.append("leave")
        if STAYS_IN_SLOT in self._slots.pop(slot):
            raise RuntimeError("the slot is still in use")


class LongStepsModel(SlotsModel):
    """Advances a request alone by several tokens in a step. `steps` gets the number of its tokens at the end of each step."""

    steps = []

    def step(self, tokens):
        running = [receiver for receiver in tokens if receiver is not None]
        super().step(tokens)
        while len(running) == 1 and not running[0].all_done() and not running[0].must_end_step():
            super().step(tokens)
        self.steps.append([len(receiver.ids(0)) for receiver in running])


def act_on_special_id(id):
    if id == RAISES:
        raise ValueError("something\nunexpected")
    if id == FAILS:
        raise engine_kit.Failed("device", "the device was removed", "plug it in")
    if id == RUNS_OUT_OF_MEMORY:
        raise MemoryError("9 GB were requested")
    if id == PRINTS:
        print("library output")
    if id == EXITS:
        sys.exit(3)
    if id == HANGS:
        print("hanging", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    print("output before the first request")
    engine_kit.serve(ToyEngine())
