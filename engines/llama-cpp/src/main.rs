//! `llama-cpp`: llama.cpp through its library. The engine itself is `worker.py`. This program starts the worker with the
//! engine's pinned Python packages, or with the user's own Python. The worker inherits stdin and stdout.
//!
//! The worker runs this program for conversions: `llama-cpp-engine convert MODEL [DTYPE]` (`engine_kit::gguf`).

use std::process::ExitCode;

use engine_kit::gguf;
use engine_kit::python::{PythonEngine, host};

fn main() -> ExitCode {
    if let Some(command) = gguf::Command::parse(std::env::args().skip(1)) {
        return command.run();
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
        find_missing_requirement: None,
        files: &[
            ("worker.py", include_str!("../worker.py")),
            ("loading.py", include_str!("../loading.py")),
            ("library.py", include_str!("../library.py")),
            ("slots.py", include_str!("../slots.py")),
            ("context.py", include_str!("../context.py")),
            ("model.py", include_str!("../model.py")),
        ],
    })
}
