//! `tensorrt-llm`: NVIDIA's TensorRT-LLM as a peer. The engine itself is `worker.py`; this program starts it in a Python that
//! has the library and hands it stdin and stdout.

use std::process::ExitCode;

use engine_kit::python::{PythonEngine, host};

fn main() -> ExitCode {
    host(PythonEngine {
        name: "tensorrt-llm",
        requirements: include_str!("../requirements.txt"),
        python: "3.12",
        files: &[
            ("worker.py", include_str!("../worker.py")),
            ("library.py", include_str!("../library.py")),
            ("expected.py", include_str!("../expected.py")),
            ("serving.py", include_str!("../serving.py")),
            ("reader.py", include_str!("../reader.py")),
            ("settings.py", include_str!("../settings.py")),
            ("model_folder.py", include_str!("../model_folder.py")),
            ("machine.py", include_str!("../machine.py")),
            ("visible.py", include_str!("../visible.py")),
            ("trouble.py", include_str!("../trouble.py")),
        ],
    })
}
