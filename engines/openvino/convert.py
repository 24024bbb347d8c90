"""The conversion of a model folder: `convert.py MODEL DTYPE OUTPUT` runs the exporter of optimum-intel, as `optimum-cli export
openvino` does, and writes OpenVINO's files into the folder OUTPUT.

The command uses no network. It converts no tokenizer, because the engine tokenises with the model's own `tokenizer.json`.
"""

import json
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

# A change in this file that changes the converted weights needs a new number: it is part of the key in the cache.
RULES = 2

# The packages that decide what a conversion contains. Their versions are part of the key in the cache.
PACKAGES = ("optimum-intel", "transformers", "torch", "nncf", "openvino")

# The format of floating-point weights that the exporter writes for each dtype. Its only format of 16 bits is f16, which keeps
# every bf16 weight from 6e-5 to 65,504; `check_weights` refuses larger ones.
EXPORT_FORMATS = {"f32": "fp32", "bf16": "fp16", "int8": "fp16", "int4": "fp16"}

# The weights that share a scale in 4 bits: the exporter's default. Rows that 128 does not divide get smaller groups.
GROUP_SIZE = 128

# The largest weight that f16 can hold.
LARGEST_F16 = 65504.0


def main(model, dtype, output):
    os.environ["HF_HUB_OFFLINE"] = "1"
    # OpenVINO and NNCF report their use over the network if this package can be imported.
    sys.modules["openvino_telemetry"] = None
    model, output = Path(model), Path(output)
    check_weights(model, dtype)
    if dtype in ("f32", "bf16"):
        export(model, dtype, output)
    else:
        with tempfile.TemporaryDirectory(dir=output.parent) as folder:
            export(model, dtype, Path(folder))
            quantize(Path(folder), dtype, output)


class Refused(Exception):
    """A model that is not converted, with the reason and perhaps a hint in a second line."""


def export(model, dtype, output):
    """Writes the model in floating point, with the function of `optimum-cli export openvino`."""
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig

    main_export(
        str(model),
        output,
        task="text-generation-with-past",
        library_name="transformers",
        ov_config=OVConfig(dtype=EXPORT_FORMATS[dtype]),
        stateful=True,
        convert_tokenizer=False,
    )


def quantize(exported, dtype, output):
    """Quantizes the weights with NNCF and the settings of `optimum-cli export openvino --weight-format int8` or `int4`. With 4
    bits, the embedding and the output matrix keep 8."""
    import nncf
    import openvino

    model = openvino.Core().read_model(exported / "openvino_model.xml")
    if dtype == "int8":
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    else:
        adjusted = nncf.AdvancedCompressionParameters(group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST)
        mode = nncf.CompressWeightsMode.INT4_ASYM
        model = nncf.compress_weights(model, mode=mode, ratio=1.0, group_size=GROUP_SIZE, advanced_parameters=adjusted)
    # The exporter keeps keys and values in f16 only for weights in floating point. For others OpenVINO chooses.
    settings = model.get_rt_info("runtime_options").value
    settings.pop("KV_CACHE_PRECISION", None)
    model.set_rt_info(settings, "runtime_options")
    output.mkdir(parents=True, exist_ok=True)
    openvino.save_model(model, output / "openvino_model.xml", compress_to_fp16=False)
    for file in exported.glob("*.json"):
        shutil.copy(file, output)


def weight_files(folder):
    """The files that transformers reads. A folder may have others."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [folder / "model.safetensors"]
    names = json.loads(index.read_text("utf-8"))["weight_map"].values()
    return [folder / name for name in sorted(set(names))]


def check_weights(folder, dtype):
    """Refuses weights that are NaN or infinite, or too large for f16. Quantization and OpenVINO's choice of a token hide them:
    its greedy choice is the id 0 if the logits are NaN."""
    import torch
    from safetensors import safe_open

    for file in weight_files(folder):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():
                tensor = tensors.get_tensor(name)
                if not tensor.is_floating_point() or tensor.numel() == 0:
                    continue
                # If a weight is NaN, the minimum and the maximum are NaN.
                largest = float(torch.stack(tensor.aminmax()).abs().max())
                if not largest < float("inf"):
                    raise Refused(f"tensor `{name}` has weights that are NaN or infinite")
                if dtype != "f32" and largest > LARGEST_F16:
                    raise Refused(f"tensor `{name}` has a weight of {largest:g}, too large for f16\nhint: --dtype f32")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Refused as refused:
        sys.exit(f"error: {refused}")
    except Exception as error:
        # The end of this output becomes the message of the load.
        traceback.print_exc()
        first_line = (str(error).strip() or "no message").splitlines()[0]
        sys.exit(f"error: {type(error).__name__}: {first_line}")
