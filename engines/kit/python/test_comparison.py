"""Tests the rules that decide whether an engine's times agree with counters or with another program, with invented times."""

import math
import unittest

from comparison import find_counter_fault, find_paired_fault, paired_interval, random_prompt


def ratios_around(ratio, deviation, count=10):
    """Ratios with this geometric mean, alternately above and below it."""
    return [ratio * math.exp(deviation if index % 2 else -deviation) for index in range(count)]


class PairedRatios(unittest.TestCase):
    def test_the_interval_is_students_on_the_logarithms(self):
        ratio, low, high = paired_interval([math.exp(value) for value in (0.1, 0.2, 0.3)])
        # The standard deviation is 0.1, and t with 2 degrees of freedom is 4.303.
        half_width = 4.303 * 0.1 / math.sqrt(3)
        for found, expected in ((ratio, 0.2), (low, 0.2 - half_width), (high, 0.2 + half_width)):
            self.assertAlmostEqual(math.log(found), expected)

    def test_a_narrow_interval_around_1_has_no_fault(self):
        for ratio in (0.98, 1.0, 1.02):
            self.assertIsNone(find_paired_fault("TTFT", ratios_around(ratio, 0.01)))

    def test_an_interval_that_excludes_the_allowed_difference_is_a_fault(self):
        for ratio in (0.9, 1.1):
            for deviation in (0.01, 0.06):
                fault = find_paired_fault("TTFT", ratios_around(ratio, deviation))
                self.assertIn(f"TTFT: the two differ by more than 3%: the ratio is {ratio:.3f} [", fault)

    def test_a_comparison_may_allow_another_difference(self):
        ratios = ratios_around(0.96, 0.005)
        self.assertIn("more than 3%", find_paired_fault("TTFT", ratios))
        self.assertIsNone(find_paired_fault("TTFT", ratios, 0.05))

    def test_an_interval_that_is_too_wide_is_inconclusive_and_names_the_rounds_to_measure(self):
        fault = find_paired_fault("TTFT", ratios_around(1.0, 0.2))
        self.assertIn("TTFT: inconclusive: the interval [0.860, 1.163] is wider than ±3%; repeat with --rounds ", fault)
        rounds = int(fault.partition("--rounds ")[2].split()[0])
        self.assertIsNone(find_paired_fault("TTFT", ratios_around(1.0, 0.2, rounds)))

    def test_a_wide_interval_with_a_mean_far_from_1_is_not_accepted(self):
        self.assertIn("inconclusive", find_paired_fault("TTFT", ratios_around(1.1, 0.2)))

    def test_every_round_has_its_own_prompt_of_the_vocabulary(self):
        prompts = [random_prompt(50, 20, number) for number in (0, 1, 1)]
        self.assertEqual(prompts[1], prompts[2])
        self.assertNotEqual(prompts[0], prompts[1])
        self.assertTrue(all(0 <= id < 50 for id in prompts[0]))


class Counters(unittest.TestCase):
    def test_counters_of_the_same_requests_agree_within_the_bound(self):
        self.assertIsNone(find_counter_fault("TTFT", [(102, 100), (51, 50), (9, 10)]))
        for own in (96, 104):
            fault = find_counter_fault("TTFT", [(own, 100)] * 3)
            self.assertEqual(fault, f"TTFT: the engine's time is {own / 100:.3f} times the library's counter, and 3% are allowed")

    def test_a_difference_below_the_resolution_of_the_counters_is_no_fault(self):
        self.assertIsNone(find_counter_fault("TTFT", [(4.6, 4.0)] * 3, resolution_ms=1.0))
        self.assertIsNotNone(find_counter_fault("TTFT", [(5.6, 4.0)] * 3, resolution_ms=1.0))

    def test_a_counter_of_zero_or_nan_is_a_fault(self):
        for counter in (0.0, math.nan):
            self.assertIsNotNone(find_counter_fault("TTFT", [(5.0, counter)] * 3))


if __name__ == "__main__":
    unittest.main()
