"""Tests that the text depends only on its seed, that its counts and sums are right, and that its English is correct."""

import hashlib
import re
import unittest

from draw import Draw, a, counted, listing, plural
from text import HELDOUT_BYTES, HELDOUT_SEED, KINDS, TRAIN_SEED, document, documents, split


class Text(unittest.TestCase):
    def test_the_same_seed_gives_the_same_bytes_on_every_python(self):
        first = "\n\n".join(documents(TRAIN_SEED, 50_000)).encode()
        self.assertEqual(first, "\n\n".join(documents(TRAIN_SEED, 50_000)).encode())
        self.assertEqual(hashlib.sha256(first).hexdigest(), "3e5757a63602dac50a3c802c0ede2814e6abc7dc9192e2d4436edf368e474885")

    def test_a_draw_gives_the_known_random_numbers_of_its_key(self):
        d = Draw(1, 2)
        self.assertEqual([d.below(1000) for _ in range(6)], [64, 916, 411, 261, 457, 844])

    def test_another_seed_gives_other_documents(self):
        train = {document(TRAIN_SEED, i) for i in range(500)}
        self.assertFalse(train & {document(HELDOUT_SEED, i) for i in range(500)})

    def test_joined_documents_are_split_unchanged(self):
        texts = list(documents(HELDOUT_SEED, HELDOUT_BYTES))
        self.assertEqual(split("\n\n".join(texts) + "\n"), texts)

    def test_every_kind_writes_plain_lines_of_ascii(self):
        for kind, _ in KINDS:
            for i in range(40):
                text = kind(Draw(9, i))
                self.assertTrue(text.isascii())
                self.assertNotRegex(text, r"\n\n|  |\{|\}|None|<")
                self.assertNotRegex(text, r"\b[Aa] [aeio][a-z]")

    def test_the_count_in_a_document_of_kind_shed_is_right(self):
        shed = dict((kind.__name__, kind) for kind, _ in KINDS)["shed"]
        for i in range(50):
            text = shed(Draw(3, i))
            counted_lines = re.findall(r"there were (.*?\d.*?)\. ?(?:That|\n|$)", text.replace("\n", " \n"))
            total = sum(int(n) for n in re.findall(r"\d+", text.split("Now there were ")[-1].split(".")[0]))
            self.assertIn(f"counted {total} things", text)
            self.assertTrue(counted_lines)

    def test_the_sums_in_a_document_of_kind_shop_are_right(self):
        shop = dict((kind.__name__, kind) for kind, _ in KINDS)["shop"]
        for i in range(50):
            text = shop(Draw(4, i))
            last = text.split("\n")[-1]
            *parts, total = [int(n) for n in re.findall(r"(\d+) pence", last)]
            self.assertEqual(sum(parts), total)
            paid, back = map(int, re.search(r"paid with (\d+) pence, and \w+ gave (\d+) pence", text).groups())
            self.assertEqual(paid - total, back)


class English(unittest.TestCase):
    def test_plurals_articles_and_lists_are_correct_english(self):
        self.assertEqual([plural(n) for n in ("box", "knife", "berry", "key", "loaf of bread", "box of figs")],
                         ["boxes", "knives", "berries", "keys", "loaves of bread", "boxes of figs"])
        self.assertEqual((a("owl"), a("hen")), ("an owl", "a hen"))
        self.assertEqual((counted(1, "cup"), counted(3, "cup")), ("1 cup", "3 cups"))
        self.assertEqual(listing(["a", "b", "c"]), "a, b and c")


if __name__ == "__main__":
    unittest.main()
