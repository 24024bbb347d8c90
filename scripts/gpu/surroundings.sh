# What scripts/gpu-check finds on the machine: programs, a Python with PyTorch, CUDA's libraries, the GPU. Sourced by it.

# From the packed folder, into a folder of this run's own; else those that were built here.
find_programs() {
    packed=false
    if [[ -f $folder/manifest ]]; then
        packed=true
        programs=$scratch/target/release
        unpack
        # The orchestrator prefers what is in the target folder: there may be other builds in the checkout's own.
        export CARGO_TARGET_DIR=$scratch/target
        # So that records name it by its name, not by a folder that is gone when they are read.
        export PATH=$programs:$PATH
    else
        programs=${CARGO_TARGET_DIR:-$PWD/target}/release
        [[ -x $programs/orchestrate ]] ||
            die "no packed programs in \`$folder\`, and none were built here" "scripts/gpu-check --pack, where there is Rust"
        say "those that were built here, in $programs"
    fi
    orchestrate=$programs/orchestrate
    local said
    said=$("$orchestrate" --version 2>&1) || die "\`$orchestrate\` does not run here: $said" "pack it on a machine whose libc is no newer than this one's"
    say "$said"
}

unpack() {
    command -v python3 >/dev/null || die "no \`python3\` on PATH" "install Python 3"
    mkdir -p "$programs"
    say "packed in $folder:"
    local key rest name digest
    while read -r key rest; do
        if [[ $key != program ]]; then
            say "$key $rest"
            continue
        fi
        read -r name digest _ <<<"$rest"
        if command -v xz >/dev/null; then
            xz -dc "$folder/$name.xz"
        else
            python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)' "$folder/$name.xz"
        fi >"$programs/$name" || true
        [[ $(sha256sum <"$programs/$name") == "$digest  -" ]] ||
            die "\`$folder/$name.xz\` is damaged" "carry the folder here once more"
        chmod +x "$programs/$name"
        say "$name"
    done <"$folder/manifest"
    local packed here
    packed=$(sed -n 's/^commit //p' "$folder/manifest")
    here=$(git rev-parse --short=12 HEAD 2>/dev/null) || return 0
    [[ ${packed%%-*} == "$here" ]] || say "warning: packed from $packed, and this checkout is $here"
}

# One Python for all engines that need one, unless somebody has named one. Without PyTorch in it, engines have the
# environments that were set up for them, or are rows that say what is missing.
find_python() {
    if [[ -n ${ORCHESTRATE_PYTHON-} ]]; then
        say "Python: $ORCHESTRATE_PYTHON, as ORCHESTRATE_PYTHON says"
    elif python3 -c 'import importlib.util as it, sys; sys.exit(it.find_spec("torch") is None)' 2>/dev/null; then
        ORCHESTRATE_PYTHON=$(python3 -c 'import sys; print(sys.executable)')
        export ORCHESTRATE_PYTHON
        say "Python: $ORCHESTRATE_PYTHON"
    else
        say "Python: no PyTorch in $(command -v python3); engines that need one have the environments that were set up here, if any"
        say "hint: python3 -m pip install torch safetensors tokenizers, or the Python that has them first on PATH"
        return 0
    fi
    # Of their metadata: importing them takes long.
    "$ORCHESTRATE_PYTHON" - <<'END' || say "warning: \`$ORCHESTRATE_PYTHON\` does not run"
import importlib.metadata as metadata, platform
found = ["Python " + platform.python_version()]
missing = []
for name in ("torch", "safetensors", "tokenizers", "transformers", "triton", "tensorrt_llm"):
    try:
        found.append(name + " " + metadata.version(name))
    except metadata.PackageNotFoundError:
        missing.append(name)
print("  has " + ", ".join(found))
if missing:
    print("  has not: " + ", ".join(missing))
END
}

# Programs may need CUDA's libraries, which lie where a loader does not look: in Python's packages, or in a toolkit. Only
# folders that have something that is missing are named to the loader: what PyTorch finds by itself must stay what it is.
find_libraries() {
    local name place places
    mapfile -t places < <(places_of_libraries)
    # One that is found may need others, which are missing only then.
    while place=$(place_of_a_missing_one); do
        export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$place
        say "libraries: $place"
    done
    for name in $(missing_libraries); do
        say "missing: $name ($(needed_by "$name"))"
        [[ $device == cpu ]] || say "  hint: $(who_brings "$name")"
    done
}

# The first of the folders that has a library that is missing, and is not named to the loader yet.
place_of_a_missing_one() {
    local name place
    for name in $(missing_libraries); do
        for place in "${places[@]}"; do
            if [[ -e $place/$name && :${LD_LIBRARY_PATH-}: != *:$place:* ]]; then
                echo "$place"
                return
            fi
        done
    done
    return 1
}

who_brings() {
    case $1 in
        libcuda.so.* | libnvidia-ml.so.*) echo "NVIDIA's driver brings it; into a container, \`--gpus all\` does" ;;
        *) echo "python3 -m pip install nvidia-cublas nvidia-curand nvidia-cuda-runtime, or CUDA_HOME=/a/toolkit" ;;
    esac
}

# Of the programs, and the driver's own, which the orchestrator asks what the GPU does.
missing_libraries() {
    {
        for program in "$programs"/*; do not_found "$program"; done
        for name in libcuda.so.1 libnvidia-ml.so.1; do is_loadable "$name" || echo "$name"; done
    } | sort -u
}

# A script has none, and is no trouble.
not_found() { { ldd "$1" 2>/dev/null || true; } | sed -n 's/^[[:space:]]*\([^ ]*\) => not found$/\1/p'; }

is_loadable() { python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$1" 2>/dev/null; }

needed_by() {
    local program found=()
    for program in "$programs"/*; do
        if [[ " $(not_found "$program" | tr '\n' ' ')" == *" $1 "* ]]; then found+=("${program##*/}"); fi
    done
    echo "${found[*]:-to ask the driver}"
}

places_of_libraries() {
    if [[ -n ${ORCHESTRATE_PYTHON-} ]]; then
        "$ORCHESTRATE_PYTHON" -c 'import glob, sys; print("\n".join(at for path in sys.path if path for at in sorted(glob.glob(path + "/nvidia/*/lib"))))'
    fi
    printf '%s\n' ${CUDA_HOME:+"$CUDA_HOME/lib64"} /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/local/cuda*/lib64 /usr/local/cuda*/lib /opt/cuda/lib64
}

# What every record says of it, and what it can do at most.
describe_machine() {
    "$orchestrate" machine --no-probe --format json 2>/dev/null |
        python3 scripts/gpu/outcome.py --gpus "$(sed -n 's/^compute-capability //p' "$folder/manifest" 2>/dev/null)" || true
    bounded 75 "$orchestrate" machine || say "what this machine can do at most was not found out"
}
