//! The program of the engine `tensorrt-llm`. It starts `worker.py`, which speaks the protocol, in a Python with NVIDIA's
//! TensorRT-LLM.

use std::path::Path;
use std::process::ExitCode;

use engine_kit::python::{PythonEngine, host};

/// The manifest and `library.py` have the same text. A test compares all three.
const INSTALL_HINT: &str = "export ORCHESTRATE_PYTHON_TENSORRT_LLM=/path/to/a/python/that/has/the/library  # see NVIDIA's `Installation Guide` of TensorRT-LLM, or use its container image `tensorrt-llm/release:1.2.1`";

/// The device files of a driver: on Linux, and on Linux under Windows (WSL).
const DRIVER_FILES: [&str; 2] = ["/dev/nvidiactl", "/dev/dxg"];

fn main() -> ExitCode {
    host(PythonEngine {
        name: "tensorrt-llm",
        environment: "tensorrt-llm",
        requirements: include_str!("../requirements.txt"),
        python: "3.12",
        install_hint: Some(INSTALL_HINT),
        find_missing_requirement: Some(missing_driver),
        files: &[
            ("worker.py", include_str!("../worker.py")),
            ("library.py", include_str!("../library.py")),
            ("interface.py", include_str!("../interface.py")),
            ("loaded_model.py", include_str!("../loaded_model.py")),
            ("reader.py", include_str!("../reader.py")),
            ("settings.py", include_str!("../settings.py")),
            ("folder.py", include_str!("../folder.py")),
            ("gpus.py", include_str!("../gpus.py")),
            ("processes.py", include_str!("../processes.py")),
        ],
    })
}

fn missing_driver() -> Option<&'static str> {
    let has_driver = DRIVER_FILES.iter().any(|file| Path::new(file).exists());
    (!has_driver).then_some("no NVIDIA driver found: TensorRT-LLM needs an NVIDIA GPU")
}
