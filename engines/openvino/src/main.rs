//! `openvino`: OpenVINO GenAI on the CPU. This program starts `worker.py`, which speaks the protocol and inherits stdin and stdout.
//! It also runs the conversion of a model, `convert.py`, for the worker.

use std::process::ExitCode;

use engine_kit::python::{PythonEngine, host};

fn main() -> ExitCode {
    host(PythonEngine {
        name: "openvino",
        environment: "openvino",
        requirements: include_str!("../requirements.txt"),
        python: "3.11",
        install_hint: None,
        find_missing_requirement: None,
        files: &[
            ("worker.py", include_str!("../worker.py")),
            ("loading.py", include_str!("../loading.py")),
            ("model.py", include_str!("../model.py")),
            ("convert.py", include_str!("../convert.py")),
        ],
    })
}
