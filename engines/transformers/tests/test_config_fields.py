"""Tests that the committed list of config fields is that of the installed library: model-files must handle each new field."""

import json
import runpy
import unittest

from support import ENGINE

ROOT = ENGINE.parents[1]


class ConfigFields(unittest.TestCase):
    def test_the_committed_list_of_config_fields_equals_the_fields_of_the_installed_library(self):
        derived = runpy.run_path(str(ROOT / "scripts" / "config-fields.py"))["result"]
        committed = json.loads((ROOT / "models" / "files" / "tests" / "config-fields.json").read_text())
        self.assertEqual(committed, derived, "scripts/python-of transformers scripts/config-fields.py > models/files/tests/config-fields.json")

    def test_fields_of_the_class_of_its_base_classes_and_of_shared_functions_are_found(self):
        committed = json.loads((ROOT / "models" / "files" / "tests" / "config-fields.json").read_text())
        gpt2, rope = committed["architectures"]["gpt2"], committed["rope"]
        # A field of the class, an alias, a field of the base class, and one that only the cache reads.
        for field in ("scale_attn_by_inverse_layer_idx", "hidden_size", "is_encoder_decoder", "attention_chunk_size"):
            self.assertIn(field, gpt2)
        self.assertIn("use_bidirectional_attention", committed["architectures"]["gemma"])
        self.assertLessEqual({"attention_factor", "beta_fast", "beta_slow", "mscale", "truncate"}, set(rope))


if __name__ == "__main__":
    unittest.main()
