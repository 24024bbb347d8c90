//! `llama-cpp`: llama.cpp through its library. The engine itself is `worker.py`; this program starts it in its pinned
//! environment, where it inherits stdin and stdout. It also converts models to GGUF for the worker.

mod convert;

use std::process::ExitCode;

use engine_kit::python::{PythonEngine, host};

fn main() -> ExitCode {
    if let Some(request) = convert::parse(std::env::args().skip(1)) {
        return convert::answer(&request);
    }
    host(PythonEngine {
        name: "llama-cpp",
        environment: "llama-cpp",
        requirements: concat!(
            include_str!("../requirements.txt"),
            include_str!("../build-requirements.txt"),
            include_str!("../build-settings.txt"),
            include_str!("../build-fixes.cmake"),
        ),
        python: "3.11",
        install_hint: None,
        missing_requirement: None,
        files: &[
            ("worker.py", include_str!("../worker.py")),
            ("options.py", include_str!("../options.py")),
            ("file.py", include_str!("../file.py")),
            ("library.py", include_str!("../library.py")),
            ("loading.py", include_str!("../loading.py")),
            ("model.py", include_str!("../model.py")),
            ("processors.py", include_str!("../processors.py")),
            ("threads.py", include_str!("../threads.py")),
            ("context.py", include_str!("../context.py")),
        ],
    })
}
