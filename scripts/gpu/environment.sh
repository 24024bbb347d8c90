# Finds the programs, a Python with PyTorch, CUDA's libraries and the GPU for scripts/gpu-check, which sources this file.

# Unpacks the programs of the folder into a temporary folder, or else takes the programs that were built here.
find_programs() {
    packed=false
    if [[ -f $folder/manifest ]]; then
        packed=true
        programs=$scratch/target/release
        unpack
        # The orchestrator prefers programs in the target folder, and the checkout's own may have other builds.
        export CARGO_TARGET_DIR=$scratch/target
        # So that records have the program's name and not its temporary folder.
        export PATH=$programs:$PATH
    else
        programs=${CARGO_TARGET_DIR:-$PWD/target}/release
        [[ -x $programs/orchestrate ]] ||
            die "no packed programs in \`$folder\`, and none built here" "scripts/gpu-check --pack, where there is Rust"
        info "programs built here, in $programs"
    fi
    orchestrate=$programs/orchestrate
    local version
    version=$("$orchestrate" --version 2>&1) || die "\`$orchestrate\` does not run here: $version" "pack the programs on a machine whose libc is not newer than the libc here"
    info "$version"
}

unpack() {
    command -v python3 >/dev/null || die "no \`python3\` on PATH" "install Python 3"
    mkdir -p "$programs"
    info "packed in $folder:"
    local key value name digest
    while read -r key value; do
        if [[ $key != program ]]; then
            info "$key $value"
            continue
        fi
        read -r name digest _ <<<"$value"
        if command -v xz >/dev/null; then
            xz -dc "$folder/$name.xz"
        else
            python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)' "$folder/$name.xz"
        fi >"$programs/$name" || true
        [[ $(sha256sum <"$programs/$name") == "$digest  -" ]] ||
            die "\`$folder/$name.xz\` is damaged" "copy the folder to this machine again"
        chmod +x "$programs/$name"
        info "$name"
    done <"$folder/manifest"
    local packed_commit checkout
    packed_commit=$(sed -n 's/^commit //p' "$folder/manifest")
    checkout=$(git rev-parse --short=12 HEAD 2>/dev/null) || return 0
    [[ ${packed_commit%%-*} == "$checkout" ]] || info "warning: packed from $packed_commit, and this checkout is $checkout"
}

# Selects the Python of all engines that need one: ORCHESTRATE_PYTHON, else `python3` if it has PyTorch. Without either, each
# engine uses its own environment, if that is set up.
find_python() {
    if [[ -n ${ORCHESTRATE_PYTHON-} ]]; then
        info "Python: $ORCHESTRATE_PYTHON, from ORCHESTRATE_PYTHON"
    elif python3 -c 'import importlib.util as it, sys; sys.exit(it.find_spec("torch") is None)' 2>/dev/null; then
        ORCHESTRATE_PYTHON=$(python3 -c 'import sys; print(sys.executable)')
        export ORCHESTRATE_PYTHON
        info "Python: $ORCHESTRATE_PYTHON"
    else
        info "Python: no PyTorch in $(command -v python3); engines use the environments that are set up here"
        info "hint: python3 -m pip install torch safetensors tokenizers, or put the Python that has them first on PATH"
        return 0
    fi
    # Reads the versions from metadata, because importing the packages takes long.
    "$ORCHESTRATE_PYTHON" - <<'END' || info "warning: \`$ORCHESTRATE_PYTHON\` does not run"
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
    print("  missing: " + ", ".join(missing))
END
}

# Programs may need CUDA's libraries, which may be in Python's packages or in a toolkit, outside the loader's path. Only folders
# that contain a missing library are added to the path, so that PyTorch finds its own libraries as before.
find_libraries() {
    local name found folders
    mapfile -t folders < <(library_folders)
    # A library that is found may need others.
    while found=$(find_library_folder); do
        export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$found
        info "libraries: $found"
    done
    for name in $(missing_libraries); do
        info "missing: $name ($(programs_needing "$name"))"
        [[ $device == cpu ]] || info "  hint: $(install_hint "$name")"
    done
}

# The first folder that contains a missing library and is not on the loader's path yet.
find_library_folder() {
    local name candidate
    for name in $(missing_libraries); do
        for candidate in "${folders[@]}"; do
            if [[ -e $candidate/$name && :${LD_LIBRARY_PATH-}: != *:$candidate:* ]]; then
                echo "$candidate"
                return
            fi
        done
    done
    return 1
}

install_hint() {
    case $1 in
        libcuda.so.* | libnvidia-ml.so.*) echo "it comes with NVIDIA's driver; in a container, use \`--gpus all\`" ;;
        *) echo "python3 -m pip install nvidia-cublas nvidia-curand nvidia-cuda-runtime, or CUDA_HOME=/a/toolkit" ;;
    esac
}

# The libraries that the loader does not find: those of the programs, and the driver's, which the orchestrator opens.
missing_libraries() {
    {
        for program in "$programs"/*; do unresolved_libraries "$program"; done
        for name in libcuda.so.1 libnvidia-ml.so.1; do is_loadable "$name" || echo "$name"; done
    } | sort -u
}

# The libraries of a program that the loader does not find. A script has none, and ldd fails for a script.
unresolved_libraries() { { ldd "$1" 2>/dev/null || true; } | sed -n 's/^[[:space:]]*\([^ ]*\) => not found$/\1/p'; }

is_loadable() { python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$1" 2>/dev/null; }

programs_needing() {
    local program found=()
    for program in "$programs"/*; do
        if [[ " $(unresolved_libraries "$program" | tr '\n' ' ')" == *" $1 "* ]]; then found+=("${program##*/}"); fi
    done
    echo "${found[*]:-orchestrate, for the driver}"
}

library_folders() {
    if [[ -n ${ORCHESTRATE_PYTHON-} ]]; then
        "$ORCHESTRATE_PYTHON" -c 'import glob, sys; print("\n".join(folder for path in sys.path if path for folder in sorted(glob.glob(path + "/nvidia/*/lib"))))'
    fi
    printf '%s\n' ${CUDA_HOME:+"$CUDA_HOME/lib64"} /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/local/cuda*/lib64 /usr/local/cuda*/lib /opt/cuda/lib64
}

# Prints the facts of the machine and its limits.
describe_machine() {
    "$orchestrate" machine --no-probe --format json 2>/dev/null |
        python3 scripts/gpu/outcome.py --gpus "$(sed -n 's/^compute-capability //p' "$folder/manifest" 2>/dev/null)" || true
    run_limited 75 "$orchestrate" machine || info "the limits of this machine could not be probed"
}
