"""Plants a conversion of other weights in the cache, and sees the run call the engine's output wrong. Needs the programs of a
release build and the environment of `pytorch-baseline`, and takes a run of the program, so it runs only in the full tests."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from support import EMBEDDED, PROGRAMS, ROOT

from engine_kit import Phases
from gguf_model import convert
from model_folder import read_tensors


def copy_with_reversed_rows(folder):
    """A copy of the embedded model in which one matrix has its rows in the reverse order."""
    copy = folder / "embedded"
    shutil.copytree(EMBEDDED, copy)
    file = copy / "model.safetensors"
    tensor = read_tensors([file])["model.layers.2.mlp.up_proj.weight"]
    content = bytearray(file.read_bytes())
    row = tensor.bytes // tensor.shape[0]
    rows = [content[tensor.offset + index * row : tensor.offset + (index + 1) * row] for index in range(tensor.shape[0])]
    content[tensor.offset : tensor.offset + tensor.bytes] = b"".join(reversed(rows))
    file.write_bytes(content)
    return copy


@unittest.skipUnless(os.environ.get("ORCHESTRATE_FULL_TESTS"), "ORCHESTRATE_FULL_TESTS is not set")
class WrongConversion(unittest.TestCase):
    def test_a_conversion_of_other_weights_is_called_wrong(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        home = folder / "home"
        home.mkdir()
        user_data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "orchestrate"
        # The run uses a cache of conversions of its own, and the environments of the user.
        os.symlink(user_data / "environments", home / "environments")
        environment = {"ORCHESTRATE_HOME": str(home), "ORCHESTRATE_PYTHON_TINYGRAD": sys.executable}
        self.enterContext(mock.patch.dict(os.environ, environment))
        planted, other = (convert(model, "f32", Phases()) for model in (EMBEDDED, copy_with_reversed_rows(folder)))
        self.assertEqual(planted.stat().st_size, other.stat().st_size)
        shutil.copyfile(other, planted)
        command = [
            PROGRAMS / "orchestrate", "-e", "tinygrad", "-m", EMBEDDED, "--dtype", "f32", "-s", "decode", "--depth", "0",
            "--blocks", "1", "--iterations", "1", "--budget", "20m", "--no-setup", "--anyway", "--threads", "1", "--json", "-",
            "--results", folder / "results",
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500)
        self.assertTrue(done.stdout.startswith("{"), done.stderr)
        (output,) = json.loads(done.stdout)["outputs"]
        self.assertEqual((output["status"], done.returncode), ("wrong", 4), output)


if __name__ == "__main__":
    unittest.main()
