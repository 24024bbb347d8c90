"""Tests the arithmetic of the n-gram baseline. Skipped without numpy."""

import unittest

try:
    import numpy as np

    from ngram import BITS, BOS, Ngrams, discounts, ngram_keys, nats
except ImportError:
    np = None


def random_stream(seed: int, length: int, vocab_size: int):
    """Documents over a small vocabulary. Some tokens are rare, so that n-grams occur once, twice and more often."""
    rng = np.random.RandomState(seed)
    stream = 1 + (rng.rand(length) ** 2 * (vocab_size - 1)).astype(int)
    stream[::37] = BOS
    return stream


@unittest.skipIf(np is None, "numpy is not installed")
class NgramArithmetic(unittest.TestCase):
    def test_probabilities_of_all_continuations_sum_to_one(self):
        vocab_size = 12
        model = Ngrams(random_stream(1, 4000, vocab_size), vocab_size)
        for history in ([BOS], [BOS, 3], [BOS, 5, 2, 2, 7], [BOS, 1, 1, 1, 1, 1, 1, 4], [BOS, 11, 10, 11, 10, 11]):
            for order in range(1, 6):
                # BOS is never counted as a next token, so its probability comes only from the uniform part of the lowest order.
                total = sum(model.probabilities(np.array(history + [w]), order)[-1] for w in range(1, vocab_size))
                bos = model.probabilities(np.array(history + [BOS]), order)[-1]
                self.assertAlmostEqual(total + bos, 1.0, places=9, msg=f"order {order}, history {history}")

    def test_n_grams_do_not_cross_from_one_document_into_the_next(self):
        stream = np.array([BOS, 1, 2, BOS, 3, 4])
        unpack = lambda key: (int(key) >> BITS, int(key) & ((1 << BITS) - 1))
        self.assertEqual([unpack(k) for k in ngram_keys(stream, 2)], [(BOS, 1), (1, 2), (BOS, 3), (3, 4)])
        self.assertEqual(len(ngram_keys(stream, 4)), 0)

    def test_a_hand_counted_bigram_has_the_probability_of_the_formula(self):
        # 1 is followed twice by 2 and once by 3. In a text this small, every discount is one half.
        stream = np.array([BOS, 1, 2, BOS, 1, 2, BOS, 1, 3])
        model = Ngrams(stream, vocab_size=4, highest=2)
        # Left neighbours: 1 has only BOS, 2 has only 1, 3 has only 1; so 3 kinds of bigram in all.
        unigram = (1 - 0.5) / 3 + (3 * 0.5 / 3) * 0.25
        bigram = (2 - 0.5) / 3 + (2 * 0.5 / 3) * unigram
        self.assertAlmostEqual(model.probabilities(np.array([BOS, 1, 2]), 2)[1], bigram, places=12)

    def test_discounts_follow_the_counts_of_counts(self):
        counts = np.array([1] * 8 + [2] * 4 + [3] * 2 + [4])
        y = 8 / 16
        self.assertTrue(np.allclose(discounts(counts), [0, 1 - 2 * y * 4 / 8, 2 - 3 * y * 2 / 4, 3 - 4 * y * 1 / 2]))

    def test_higher_orders_predict_a_repeating_text(self):
        stream = np.array(([BOS] + [1, 2, 3, 1, 3, 2, 1, 1, 2] * 6) * 20)
        model = Ngrams(stream, vocab_size=8)
        document = stream[:55]
        losses = [nats(model, [document], order) for order in range(1, 6)]
        self.assertEqual(losses, sorted(losses, reverse=True))
        self.assertLess(losses[4], 0.2 * losses[0])


if __name__ == "__main__":
    unittest.main()
