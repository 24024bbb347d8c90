"""A load: checks the model folder, sets the environment that mistral.rs reads, and makes its runner."""

import os
import tempfile

import checkpoint
import id_folder
import library_log
from engine_kit import Failed, check_offered, choose_context
from model import MistralRsModel

# mistral.rs reads each of these variables once in a process.
THREAD_VARIABLES = ("RAYON_NUM_THREADS", "CANDLE_NUM_THREADS")
KV_VARIABLE = "MISTRALRS_CPU_KV_F32"

# The architectures whose biases mistral.rs reads.
WITH_BIASES = ("qwen2",)

# The rotations of positions and the activations that were compared with a reference.
ROTATIONS = ["default", "llama3"]
ACTIVATIONS = {"gemma": ["gelu", "gelu_pytorch_tanh"]}

# Parts of mistral.rs's messages, for a model that it does not support and for too little memory.
UNSUPPORTED = ("unsupported", "not supported", "unknown variant")
NO_MEMORY = ("out of memory", "memory allocation", "cannot allocate")

# The environment of the first load of this process.
_environment = {}


def open_folder(request):
    """Opens the model folder. Refuses a folder that mistral.rs would read wrongly, or only after minutes."""
    folder = checkpoint.open_checkpoint(request.model, id_folder.ARCHITECTURES)
    checkpoint.refuse_other_networks(folder.config, ACTIVATIONS.get(folder.architecture, ["silu"]))
    check_offered("rope scaling", checkpoint.rope_kind(folder.config), ROTATIONS)
    bias = next((name for name in folder.tensors if name.endswith(".bias")), None)
    if bias is not None and folder.architecture not in WITH_BIASES:
        raise Failed("unsupported", f"mistral.rs reads no biases of `{folder.architecture}`, and the model has `{bias[:120]}`")
    folder.context_tokens = choose_context(request.context_tokens, folder.context_tokens, folder.name)
    return folder


def set_environment(threads, kv):
    """Sets the variables of this load. A later load with other values is refused, because mistral.rs would ignore them."""
    wanted = {KV_VARIABLE: "1" if kv == "f32" else "0"}
    if threads is not None:
        wanted.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    if _environment and _environment != wanted:
        message = "mistral.rs reads the number of threads and the dtype of keys and values once in a process"
        raise Failed("unsupported", f"{message}, and an earlier load had other values", "start the engine again")
    _environment.update(wanted)
    # No file comes from a network, and the log has the lines that `facts` needs.
    os.environ.update(wanted, HF_HUB_OFFLINE="1", RUST_LOG="info")


def load(request, folder, rounded_dtypes, max_sequences, phases):
    from mistralrs import ModelDType, Runner, Which

    rounded = rounded_dtypes.get(request.dtype)
    dtype = ModelDType.F32 if rounded else getattr(ModelDType, request.dtype.upper())
    lines = []
    # In a run the current folder is that of the launch, which the run removes even if this process is killed.
    with tempfile.TemporaryDirectory(prefix="ids-", dir=os.getcwd()) as ids:
        with phases.time("tokenizer of ids"):
            id_folder.write(ids, folder, folder.vocabulary_size)
        with phases.time("weights"), library_log.captured(lines):
            try:
                runner = Runner(
                    which=Which.Plain(model_id=ids, dtype=dtype),
                    max_seqs=max_sequences,
                    prefix_cache_n=0,
                    token_source="none",
                    no_paged_attn=True,
                    in_situ_quant=rounded,
                )
            except BaseException as error:
                # A panic of the library is no `Exception`.
                if isinstance(error, (KeyboardInterrupt, SystemExit)):
                    raise
                raise load_failure(folder, error) from None
    return MistralRsModel(runner, folder, request, lines)


def load_failure(folder, error):
    cause = str(error).split("\n")[0][:500]
    lower = cause.lower()
    if any(part in lower for part in NO_MEMORY):
        return Failed("out_of_memory", f"model `{folder.name}`: {cause}")
    kind = "unsupported" if any(part in lower for part in UNSUPPORTED) else "model"
    return Failed(kind, f"mistral.rs cannot load model `{folder.name}`: {cause}")
