"""Tests the functions that compute a result without a conversation: options, the sampler, timestamps and the summary."""

import math
import sys
import threading
import unittest
from collections import Counter
from types import SimpleNamespace

from engine_kit import count_threads
from engine_kit_checks import choose_context, package_version, read_choice, read_flag
from engine_kit_summary import quantile, summarise
from engine_kit_tokens import GREEDY_BELOW, Job, Sampler, Tokens, uniforms
from engine_kit_wire import Failed


def sampling(**settings):
    return SimpleNamespace(**{"temperature": 1.0, "top_k": 0, "top_p": None, "seed": 1, **settings})


def shares(logits, draws=4000, **settings):
    """The share of the draws that has each id."""
    sampler = Sampler(sampling(**settings))
    return {id: count / draws for id, count in Counter(sampler.pick(logits) for _ in range(draws)).items()}


class Options(unittest.TestCase):
    def test_an_option_has_its_value_or_its_default(self):
        self.assertEqual(read_choice({}, "mode", ["plain", "fast"]), "plain")
        self.assertEqual(read_choice({"mode": None}, "mode", ["plain", "fast"], None), None)
        self.assertEqual(read_choice({"mode": "fast"}, "mode", ["plain", "fast"]), "fast")
        self.assertEqual([read_flag({"pin": value}, "pin", False) for value in (True, "true", "false")], [True, True, False])
        self.assertIs(read_flag({}, "pin", True), True)

    def test_an_invalid_option_is_refused_with_its_name(self):
        for read_option, message in (
            (lambda: read_choice({"mode": "slow"}, "mode", ["plain", "fast"]), "option `mode` `slow`: expected one of `plain`, `fast`"),
            (lambda: read_choice({"mode": 3}, "mode", ["plain", "fast"]), "option `mode`: expected a text, found `3`"),
            (lambda: read_flag({"pin": 1}, "pin", False), "option `pin`: expected true or false, found `1`"),
        ):
            with self.assertRaises(Failed) as caught:
                read_option()
            self.assertEqual(caught.exception.message, message)


class Context(unittest.TestCase):
    def test_a_load_has_the_requested_context_or_the_longest(self):
        self.assertEqual([choose_context(requested, 100, "m") for requested in (None, 7, 100)], [100, 7, 100])
        self.assertEqual((choose_context(7, None, "m"), choose_context(None, None, "m")), (7, None))

    def test_a_context_beyond_the_limit_is_refused_with_the_reason_of_the_limit(self):
        with self.assertRaises(Failed) as caught:
            choose_context(101, 100, "m", ": the library ignores its sliding window")
        message = "`context_tokens`: 101 is more than the 100 of model `m`: the library ignores its sliding window"
        self.assertEqual((caught.exception.kind, caught.exception.message), ("context", message))


class Packages(unittest.TestCase):
    def test_a_missing_package_is_unavailable_with_the_command_that_installs_it(self):
        with self.assertRaises(Failed) as caught:
            package_version("snake", "no-such-package")
        failed = caught.exception
        expected = f"no `no-such-package` in the Python that runs this engine (`{sys.executable}`)"
        self.assertEqual((failed.kind, failed.message), ("unavailable", expected))
        self.assertTrue(failed.hint.startswith("orchestrate setup snake "))


class Threads(unittest.TestCase):
    def test_threads_are_counted_with_and_without_a_name(self):
        end = threading.Event()
        thread = threading.Thread(target=end.wait)
        thread.start()
        try:
            self.assertGreaterEqual(count_threads(), 2)
            self.assertEqual(count_threads("no such name"), 0)
            with open("/proc/self/comm") as file:
                self.assertGreaterEqual(count_threads(file.read().strip()), 1)
        finally:
            end.set()
            thread.join()


class Sampling(unittest.TestCase):
    def test_greedy_takes_the_lowest_id_among_equals(self):
        self.assertEqual(Sampler(None).pick([0.0, 3.0, 3.0, -1.0]), 1)

    def test_a_temperature_too_small_to_divide_by_is_greedy(self):
        # The last two temperatures sample, but only one token has any weight.
        for temperature in (0.0, 5e-324, 1e-300, 1e-40, GREEDY_BELOW, 1e-20):
            for top_p in (None, 0.9):
                options = {"draws": 50, "temperature": temperature, "top_p": top_p}
                self.assertEqual(shares([-3e8, 1.0, 3e8, 0.5], **options), {2: 1.0}, temperature)
        # Greedy takes the lowest id among equals; a draw would sometimes take id 2.
        self.assertEqual(shares([0.0, 1.0, 1.0], temperature=1e-300), {1: 1.0})

    def test_the_random_numbers_equal_the_published_numbers_of_splitmix64(self):
        stream = uniforms(1234567, 0)
        published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
        self.assertEqual([next(stream) for _ in published], [(bits >> 11) / 2**53 for bits in published])

    def test_sampled_frequencies_follow_the_softmax_at_the_temperature(self):
        logits = [0.0, math.log(3.0)]
        # 0.03 is more than four standard deviations of 4000 draws. The seed is fixed, so the result never varies.
        self.assertAlmostEqual(shares(logits)[1], 0.75, delta=0.03)
        self.assertAlmostEqual(shares(logits, temperature=0.5)[1], 0.9, delta=0.03)

    def test_top_k_and_top_p_keep_the_most_probable_tokens(self):
        logits = [math.log(p) for p in (0.1, 0.5, 0.3, 0.1)]
        self.assertEqual(set(shares(logits, top_k=2)), {1, 2})
        self.assertEqual(set(shares(logits, top_p=0.5)), {1})
        # The token with which the sum reaches `top_p` stays.
        self.assertEqual(set(shares(logits, top_p=0.51)), {1, 2})

    def test_a_sequence_does_not_depend_on_the_other_sequences(self):
        logits = [0.0] * 50
        batch, alone = Sampler(sampling()), Sampler(sampling())
        pairs = [(batch.pick(logits, 0), batch.pick(logits, 1)) for _ in range(20)]
        self.assertEqual([second for _, second in pairs], [alone.pick(logits, 1) for _ in range(20)])
        self.assertNotEqual([first for first, _ in pairs], [second for _, second in pairs])


class Timestamps(unittest.TestCase):
    def token_ns(self, planted_delay_ns=0):
        tokens = Tokens(Job([[1]], 3), eos_ids=(), zero_ns=100, start_ns=0, clock=lambda: 900, planted_delay_ns=planted_delay_ns)
        tokens.push(0, 7, at_ns=140)
        tokens.push(0, 8, at_ns=170)
        self.assertTrue(tokens.push(0, 9))
        return tokens.iteration()["sequences"][0]["token_ns"]

    def test_the_timestamp_that_an_engine_gives_with_a_token_is_kept(self):
        self.assertEqual(self.token_ns(), [40, 70, 800])

    def test_the_first_token_of_a_coarse_clock_is_later_than_the_start(self):
        tokens = Tokens(Job([[1]], 2), eos_ids=(), zero_ns=0, start_ns=500, clock=lambda: 500)
        tokens.push(0, 7)
        tokens.push(0, 8)
        self.assertEqual(tokens.iteration()["sequences"][0]["token_ns"], [501, 501])

    def test_with_a_planted_delay_every_token_but_the_first_has_a_time_after_the_delay(self):
        self.assertEqual(self.token_ns(planted_delay_ns=1), [40, 800, 800])


class Summary(unittest.TestCase):
    def test_rates_are_computed_from_timestamps_by_the_documented_formulas(self):
        sequence = {"prompt_tokens": 4, "output_ids": [5, 6, 7], "token_ns": [3_000_000, 4_000_000, 5_000_000]}
        summary = summarise([{"start_ns": 1_000_000, "end_ns": 6_000_000, "sequences": [sequence]}])
        self.assertEqual((summary["first_token_ms"], summary["prefill_tokens_per_s"]), (2.0, 2000.0))
        self.assertEqual(summary["decode_tokens_per_s"], 1000.0)
        text = "1 iteration, 3 tokens; first token 2.00 ms (p95 2.00 ms); prefill 2000.0 tok/s; decode 1000.0 tok/s"
        self.assertEqual(summary["text"], text)

    def test_unknown_values_are_null(self):
        sequence = {"prompt_tokens": 4, "output_ids": [], "token_ns": []}
        summary = summarise([{"start_ns": 1, "end_ns": 1, "sequences": [sequence]}])
        self.assertEqual((summary["first_token_ms"], summary["decode_tokens_per_s"]), (None, None))
        self.assertEqual(summary["text"], "1 iteration, 0 tokens")

    def test_quantiles_are_interpolated(self):
        self.assertEqual((quantile([4, 1, 2, 3], 0.5), quantile([1, 2], 0.95), quantile([7], 0.95)), (2.5, 1.95, 7))
