"""Compares path `fast` with Hugging Face's classes, and tests its requests. These tests run the step uncompiled, which
takes seconds. `test_fast_compiled.py` compiles the step."""

import unittest
from types import SimpleNamespace
from unittest import mock

from support import CONFIG, load, random_weights, write_folder

from checkout import EMBEDDED
from engine_tests import generate
import torch

import fast
from fast_checkpoint import ARCHITECTURES, read_shape
from engine_kit import Failed, Job, Sampler, Tokens
from fast_support import CONFIGS, FAST, load_hugging_face, write_model

IDS = [5, 17, 3, 60, 22, 9, 41, 8, 33, 12, 50, 2, 27, 19]


@mock.patch.object(fast.CompiledStep, "_compile", lambda self, step: step)
class Results(unittest.TestCase):
    def test_every_architecture_gives_the_log_probabilities_and_the_ids_of_transformers(self):
        for name in CONFIGS:
            with self.subTest(name):
                path = write_model(self, name)
                hugging_face, model = load_hugging_face(path), load(path, FAST, dtype="f32")
                expected = torch.log_softmax(hugging_face.logits(IDS).double(), -1)[range(len(IDS) - 1), IDS[1:]]
                difference = (torch.tensor(model.score(IDS), dtype=torch.float64) - expected).abs().max()
                self.assertLess(difference, 1e-4)
                self.assertEqual(generate(model, [IDS], 24, ignore_eos=True), [hugging_face.greedy_ids(IDS, 24)])

    def test_every_supported_architecture_has_a_config(self):
        self.assertEqual({config["model_type"] for config in CONFIGS.values()}, set(ARCHITECTURES))

    def test_the_embedded_model_gives_the_ids_of_transformers(self):
        hugging_face, model = load_hugging_face(EMBEDDED), load(EMBEDDED, FAST, dtype="f32")
        prompt = model.encode("Once upon a time there was a fiddle.")
        self.assertEqual(generate(model, [prompt], 64, ignore_eos=True), [hugging_face.greedy_ids(prompt, 64)])

    def test_the_step_and_the_prefill_give_the_same_score(self):
        model = load(write_model(self, "qwen3"), FAST, dtype="f32")
        step_scores = model.score(IDS)
        with mock.patch.object(fast, "SCORED_BY_STEPS", 0):
            prefill_scores = model.score(IDS)
        for left, right in zip(step_scores, prefill_scores, strict=True):
            self.assertAlmostEqual(left, right, delta=2e-5)

    def test_a_score_of_two_ids_has_one_log_probability(self):
        model = load(write_model(self, "llama"), FAST, dtype="f32")
        self.assertEqual(len(model.score(IDS[:2])), 1)

    def test_a_sequence_gets_the_same_ids_in_a_batch_and_alone(self):
        model = load(write_model(self, "qwen2"), FAST, dtype="f32")
        prompts = [IDS, IDS[:1], IDS[2:7]]
        separate_ids = [generate(model, [prompt], 12, ignore_eos=True)[0] for prompt in prompts]
        for padding in ("left", "right"):
            self.assertEqual(generate(model, prompts, 12, ignore_eos=True, padding=padding), separate_ids)
        self.assertEqual(generate(model, [IDS, IDS], 12, ignore_eos=True), [separate_ids[0]] * 2)

    def test_half_precision_scores_are_near_the_scores_in_f32(self):
        path = write_model(self, "llama")
        f32_scores = load(path, FAST, dtype="f32").score(IDS)
        for dtype, max_difference in (("bf16", 0.2), ("f16", 0.02)):
            model = load(path, FAST, dtype=dtype)
            self.assertEqual([model.facts()[f"{name}_dtype"] for name in ("weights", "compute", "kv")], [dtype] * 3)
            for score, f32_score in zip(model.score(IDS), f32_scores, strict=True):
                self.assertAlmostEqual(score, f32_score, delta=max_difference)


@mock.patch.object(fast.CompiledStep, "_compile", lambda self, step: step)
class Requests(unittest.TestCase):
    def load(self, changes=None, options=None, **fields):
        return load(write_folder(self, changes), {**FAST, **(options or {})}, **{"dtype": "f32", **fields})

    def failure(self, kind, *args, **fields):
        with self.assertRaises(Failed) as caught:
            self.load(*args, **fields)
        self.assertEqual(caught.exception.kind, kind)
        return caught.exception.message

    def test_the_lowest_id_among_equal_logits_is_taken(self):
        model = self.load()
        model.network.head.zero_()
        self.assertEqual(generate(model, [IDS], 3, ignore_eos=True), [[0, 0, 0]])
        chosen = set()
        for sign in (1.0, -1.0):
            model.network.head[[37, 61]] = sign
            chosen.update(generate(model, [IDS], 1, ignore_eos=True)[0])
        # With one sign, ids 37 and 61 have the highest logit. With the opposite sign, all other ids have the highest logit.
        self.assertEqual(chosen, {0, 37})

    def test_eos_ends_a_sequence_unless_the_request_ignores_it(self):
        path = write_folder(self)
        ids = generate(load(path, FAST, dtype="f32"), [IDS], 12, ignore_eos=True)[0]
        (path / "generation_config.json").write_text(f'{{"eos_token_id": {ids[5]}}}')
        model = load(path, FAST, dtype="f32")
        self.assertEqual(generate(model, [IDS], 12)[0], ids[: ids.index(ids[5]) + 1])
        self.assertEqual(generate(model, [IDS], 12, ignore_eos=True)[0], ids)

    def test_a_cancelled_request_ends_with_its_current_token(self):
        model = self.load()
        job = Job([IDS], 50, ignore_eos=True)
        tokens = Tokens(job, [], 0, 0, check_cancel=lambda: setattr(tokens, "cancelled", len(tokens.ids(0)) == 4))
        model.generate(job, tokens)
        self.assertEqual(tokens.iteration()["sequences"][0]["finish"], "cancelled")
        self.assertEqual(len(tokens.ids(0)), 4)

    def test_the_whole_context_can_be_filled(self):
        model = self.load()
        self.assertEqual(model.facts()["context_tokens"], 128)
        self.assertEqual(len(generate(model, [IDS], 128 - len(IDS), ignore_eos=True)[0]), 128 - len(IDS))
        self.assertEqual(len(model.score(IDS * 9)), len(IDS * 9) - 1)
        self.assertEqual(len(generate(model, [IDS, IDS], 128 - len(IDS), ignore_eos=True)[1]), 128 - len(IDS))

    def test_sampling_uses_the_kits_random_numbers(self):
        model = self.load()
        sampling = SimpleNamespace(temperature=1.5, top_k=20, top_p=None, seed=7)
        sampled_ids = generate(model, [IDS], 8, ignore_eos=True, sampling=sampling)[0]
        sampler, sequence = Sampler(sampling), list(IDS)
        decoder, _ = model._decoder_and_step(1, 64)
        for id in sampled_ids:
            decoder.prefill(torch.tensor([sequence]))
            self.assertEqual(sampler.pick(decoder.logits[0].tolist()), id)
            sequence.append(id)

    def test_a_request_does_not_change_the_next_answer(self):
        model = self.load()
        first_ids = generate(model, [IDS[:3]], 6, ignore_eos=True)
        generate(model, [IDS * 4], 40, ignore_eos=True)
        generate(model, [IDS * 4, IDS], 40, ignore_eos=True)
        self.assertEqual(generate(model, [IDS[:3]], 6, ignore_eos=True), first_ids)

    def test_the_refusal_of_an_unsupported_feature_names_the_feature(self):
        self.assertIn("architecture `gpt_neox`", self.failure("unsupported", {"model_type": "gpt_neox"}))
        self.assertIn("`yarn`", self.failure("unsupported", {"rope_scaling": {"rope_type": "yarn"}}))
        self.assertIn("`gelu`", self.failure("unsupported", {"hidden_act": "gelu"}))
        window = {"model_type": "mistral", "sliding_window": 50}
        self.assertIn("sliding window is 50", self.failure("unsupported", window))
        self.assertEqual(self.load(window, context_tokens=50).facts()["context_tokens"], 50)
        # A null in Mistral's config means no window, and a missing field the window of the first version, 4096.
        later_version = {"model_type": "mistral", "sliding_window": None}
        self.assertIsNone(read_shape({**CONFIG, **later_version}).window)
        self.assertEqual(read_shape({**CONFIG, "model_type": "mistral"}).window, 4096)
        with self.assertRaises(Failed) as caught:
            generate(self.load(), [IDS], 4, use_cache=False)
        self.assertEqual((caught.exception.kind, caught.exception.hint), ("unsupported", "--set path=loop"))

    def test_a_missing_tensor_and_a_tensor_of_another_shape_are_named(self):
        missing_name, cut_name = "model.layers.1.self_attn.v_proj.weight", "model.layers.0.mlp.up_proj.weight"
        weights = random_weights(CONFIG)
        for changed, text in [
            ({name: weights[name] for name in weights if name != missing_name}, f"`{missing_name}`"),
            ({**weights, cut_name: weights[cut_name][:3].clone()}, f"`{cut_name}`: expected the shape [64, 32], found [3, 32]"),
        ]:
            with self.assertRaises(Failed) as caught:
                load(write_folder(self, weights=changed), FAST, dtype="f32")
            self.assertEqual(caught.exception.kind, "model")
            self.assertIn(text, caught.exception.message)

    def test_a_checkpoint_in_shards_or_without_the_prefix_of_names_is_read(self):
        weights = random_weights(CONFIG)
        expected = load(write_folder(self, weights=weights), FAST, dtype="f32").score(IDS)
        self.assertEqual(load(write_folder(self, weights=weights, shards=3), FAST, dtype="f32").score(IDS), expected)
        without_prefix = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
        self.assertEqual(load(write_folder(self, weights=without_prefix), FAST, dtype="f32").score(IDS), expected)

    def test_the_default_context_is_halved_until_its_cache_fits_into_half_of_the_free_memory(self):
        shape = SimpleNamespace(context_tokens=4096, window=None, layers=2, kv_heads=4, head_dim=8)
        # A key and a value, layers, heads, numbers of a head, bytes of an f32.
        token_bytes = 2 * 2 * 4 * 8 * 4

        def context(requested, free_tokens):
            return fast.context_in_effect(requested, shape, torch.float32, None, free_on=lambda _: token_bytes * free_tokens)

        self.assertEqual(context(None, 8192), 4096)
        self.assertEqual(context(None, 8191), 2048)
        self.assertEqual(context(4096, 10), 4096)


class CapturedStepsStandIn(fast.GraphsByLength):
    """A stand-in for captured CUDA graphs. The replay of a graph runs the step with the captured length."""

    lengths = []

    def _capture(self, length):
        self.lengths.append(length)
        with self._decoder.restore_state():
            self._run(length)
        return SimpleNamespace(replay=lambda: self._run(length))


class IdTransferStandIn:
    """A stand-in for pinned memory and events. An id can be read at once, and every call is recorded."""

    calls = []

    def __init__(self, sequences, device):
        self._ids = {}

    def send(self, index, ids):
        self._ids[index] = ids.tolist()
        self.calls.append(f"send {index}")

    def receive(self, index):
        self.calls.append(f"receive {index}")
        return self._ids[index]

    def wait(self):
        self.calls.append("wait")


@mock.patch.object(fast.CompiledStep, "_compile", lambda self, step: step)
class FastOnCuda(unittest.TestCase):
    """Tests how path `fast` decodes on CUDA, with stand-ins for graphs and transfers, on the CPU."""

    def load(self, path):
        model = load(path, {**FAST, "cache_tokens": 32}, dtype="f32")
        for name, stand_in in (("GraphsByLength", CapturedStepsStandIn), ("IdTransfer", IdTransferStandIn)):
            patch = mock.patch.object(fast, name, stand_in)
            patch.start()
            self.addCleanup(patch.stop)
        CapturedStepsStandIn.lengths.clear()
        IdTransferStandIn.calls.clear()
        model._decoders.clear()
        model._uses_graphs = True
        model.prepare()
        return model

    def test_steps_of_captured_lengths_give_the_ids_of_uncaptured_steps_for_a_sequence_and_a_batch(self):
        path = write_model(self, "qwen3")
        uncaptured, model = load(path, FAST, dtype="f32"), self.load(path)
        self.assertEqual(CapturedStepsStandIn.lengths, [32, 64, 128])
        expected = generate(uncaptured, [IDS], 100, ignore_eos=True)
        self.assertEqual(generate(model, [IDS], 100, ignore_eos=True), expected)
        # A shorter request must not read keys and values of the longer request before it.
        expected = generate(uncaptured, [IDS[:2]], 20, ignore_eos=True)
        self.assertEqual(generate(model, [IDS[:2]], 20, ignore_eos=True), expected)
        self.assertEqual(CapturedStepsStandIn.lengths, [32, 64, 128])
        for score, expected in zip(model.score(IDS), uncaptured.score(IDS), strict=True):
            self.assertAlmostEqual(score, expected, delta=2e-5)
        prompts = [IDS, IDS[:3]]
        for padding in ("left", "right"):
            expected = generate(uncaptured, prompts, 40, ignore_eos=True, padding=padding)
            self.assertEqual(generate(model, prompts, 40, ignore_eos=True, padding=padding), expected)

    def test_each_step_starts_before_the_previous_id_is_read_and_no_step_follows_the_last_token(self):
        model = self.load(write_model(self, "llama"))
        generate(model, [IDS], 3, ignore_eos=True)
        expected = ["send 0", "send 1", "receive 0", "send 2", "receive 1", "receive 2", "wait"]
        self.assertEqual(IdTransferStandIn.calls, expected)

    def test_a_request_with_an_early_end_waits_for_the_running_step(self):
        model = self.load(write_model(self, "llama"))
        (ids,) = generate(model, [IDS], 8, ignore_eos=True)
        IdTransferStandIn.calls.clear()
        model.loaded.folder.eos_ids = [ids[0]]
        self.assertEqual(generate(model, [IDS], 8), [ids[:1]])
        self.assertEqual(IdTransferStandIn.calls, ["send 0", "send 1", "receive 0", "wait"])


class Compiling(unittest.TestCase):
    def failure(self, **patched):
        with self.assertRaises(Failed) as caught, mock.patch.object(torch, "compile", **patched):
            load(write_folder(self), FAST, dtype="f32")
        return caught.exception

    def test_a_step_that_cannot_be_compiled_fails_the_load(self):
        def compile(step, **options):
            def fail(span):
                raise RuntimeError("\nno register left\nmore about it")

            return fail

        failed = self.failure(new=compile)
        self.assertEqual(failed.kind, "internal")
        self.assertIn("cannot compile the step: RuntimeError: no register left", failed.message)
        self.assertEqual(failed.hint, "--set path=loop")

    def test_a_wrongly_compiled_step_fails_the_load(self):
        def compile(step, **options):
            def negate_logits(span):
                step(span)
                step.__self__.logits.mul_(-1.0)

            return negate_logits

        self.assertIn("path `fast`: the decode step computes something else", self.failure(new=compile).message)

    def test_a_step_with_a_constant_from_its_first_call_fails_the_load(self):
        for part in ("ids", "positions", "column"):

            def compile(step, **options):
                state = getattr(step.__self__, part)
                states = []

                def step_from_first_state(span):
                    states.append(state.clone())
                    state.copy_(states[0])
                    step(span)

                return step_from_first_state

            self.assertIn("computes something else", self.failure(new=compile).message, part)

    def test_logits_that_are_not_finite_fail_the_load(self):
        weights = random_weights(CONFIG)
        weights["lm_head.weight"][3] = float("inf")
        with self.assertRaises(Failed) as caught, mock.patch.object(torch, "compile", lambda step, **options: step):
            load(write_folder(self, weights=weights), FAST, dtype="f32")
        self.assertEqual((caught.exception.kind, caught.exception.hint), ("model", None))

    def test_a_machine_without_a_compiler_is_reported(self):
        with mock.patch.dict("os.environ", {"PATH": "", "CXX": ""}), self.assertRaises(Failed) as caught:
            load(write_folder(self), FAST, dtype="f32")
        self.assertEqual((caught.exception.kind, caught.exception.hint), ("unavailable", "apt-get install g++"))
        self.assertIn("`g++`", caught.exception.message)


if __name__ == "__main__":
    unittest.main()
