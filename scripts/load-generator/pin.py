"""Writes `requirements.txt` with the hashes of the wheels for CPython 3.11 on Linux on x86-64: a tenth of all hashes.

    uv pip compile --format pylock.toml --python-version 3.11 --only-binary :all: --no-annotate --no-header \
        scripts/load-generator/requirements.in -o pylock.toml && python3 scripts/load-generator/pin.py pylock.toml
"""

import re
import sys
import tomllib
from pathlib import Path


def main():
    lock = tomllib.loads(Path(sys.argv[1]).read_text())
    lines = []
    for package in lock["packages"]:
        names = {wheel.get("name") or wheel["url"].rsplit("/", 1)[1]: wheel["hashes"]["sha256"] for wheel in package["wheels"]}
        hashes = sorted(digest for name, digest in names.items() if fits(name))
        if not hashes:
            sys.exit(f"error: `{package['name']}` has no wheel for CPython 3.11 on Linux on x86-64")
        lines.append(" \\\n    ".join([f"{package['name']}=={package['version']}", *(f"--hash=sha256:{it}" for it in hashes)]))
    (Path(__file__).parent / "requirements.txt").write_text("\n".join(lines) + "\n")


def fits(wheel):
    python, abi, platform = wheel.removesuffix(".whl").split("-")[-3:]
    versions = [int(found[1]) for found in re.finditer(r"cp3(\d+)", python)]
    is_of_python = "py3" in python or 11 in versions or abi == "abi3" and min(versions, default=12) <= 11
    is_of_platform = platform == "any" or "manylinux" in platform and "x86_64" in platform
    return is_of_python and is_of_platform and abi in ("none", "abi3", "cp311")


if __name__ == "__main__":
    main()
