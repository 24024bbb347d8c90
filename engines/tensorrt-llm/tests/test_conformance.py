"""Runs `orchestrate check` on this engine, with the stand-in in place of the library."""

import importlib.util
import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

from support import ENGINE, KIT, STAND_IN, packages_folder, temporary_folder

ROOT = ENGINE.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROGRAMS = [path for path in (TARGET / profile / "orchestrate" for profile in ("release", "debug")) if path.is_file()]
HAS_TOKENIZERS = importlib.util.find_spec("tokenizers") is not None


class Conformance(unittest.TestCase):
    @unittest.skipUnless(PROGRAMS and HAS_TOKENIZERS, "needs a built `orchestrate`, and `tokenizers` in this Python")
    def test_the_engine_conforms_to_the_protocol(self):
        folder = temporary_folder(self)
        engine = folder / "engine"
        packages = os.pathsep.join([str(KIT), str(STAND_IN), packages_folder(self)])
        settings = json.dumps({"record": str(folder / "record")})
        engine.write_text(
            f"#!/bin/sh\nexport PYTHONPATH='{packages}' PYTHONDONTWRITEBYTECODE=1 STAND_IN='{settings}'\n"
            f"exec '{sys.executable}' -s '{ENGINE / 'worker.py'}'\n"
        )
        engine.chmod(0o755)
        environment = {**os.environ, "ORCHESTRATE_HOME": str(folder / "home")}
        check = subprocess.run(
            [PROGRAMS[0], "check", engine], env=environment, capture_output=True, text=True, timeout=300, cwd=ROOT
        )
        self.assertEqual((check.returncode, " 0 wrong" in check.stdout), (0, True), check.stdout + check.stderr)


if __name__ == "__main__":
    unittest.main()
