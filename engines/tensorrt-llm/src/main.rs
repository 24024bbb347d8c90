//! `tensorrt-llm`: NVIDIA's TensorRT-LLM. The engine itself is `worker.py`; this program starts it in a Python with the
//! library, where it inherits stdin and stdout.

use std::path::Path;
use std::process::ExitCode;

use engine_kit::python::{PythonEngine, host};

/// The same text as in the manifest and in the worker: a test compares them.
const INSTALL_HINT: &str = "export ORCHESTRATE_PYTHON_TENSORRT_LLM=/path/to/a/python/that/has/it  # NVIDIA's TensorRT LLM `Installation Guide`, or its container image `tensorrt-llm/release:1.2.1`";

/// The device files of a driver, on Linux and on Linux under Windows.
const DRIVER: [&str; 2] = ["/dev/nvidiactl", "/dev/dxg"];

fn main() -> ExitCode {
    host(PythonEngine {
        name: "tensorrt-llm",
        environment: "tensorrt-llm",
        requirements: include_str!("../requirements.txt"),
        python: "3.12",
        install_hint: Some(INSTALL_HINT),
        missing_requirement: Some(no_driver),
        files: &[
            ("worker.py", include_str!("../worker.py")),
            ("library.py", include_str!("../library.py")),
            ("expected.py", include_str!("../expected.py")),
            ("serving.py", include_str!("../serving.py")),
            ("reader.py", include_str!("../reader.py")),
            ("settings.py", include_str!("../settings.py")),
            ("folder.py", include_str!("../folder.py")),
            ("machine.py", include_str!("../machine.py")),
            ("visible.py", include_str!("../visible.py")),
            ("errors.py", include_str!("../errors.py")),
        ],
    })
}

fn no_driver() -> Option<&'static str> {
    let has_driver = DRIVER.iter().any(|file| Path::new(file).exists());
    (!has_driver).then_some("no NVIDIA driver found: it needs an NVIDIA GPU")
}
