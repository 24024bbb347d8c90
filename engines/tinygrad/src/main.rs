//! `tinygrad`: tinygrad's own LLM program as a library. The engine itself is `worker.py`. This program starts the worker with
//! the engine's pinned Python packages, or with the user's own Python. The worker inherits stdin and stdout.
//!
//! The worker reads GGUF. It runs this program for conversions and for the tokenizer of a GGUF file (`engine_kit::gguf`).

use std::process::ExitCode;

use engine_kit::gguf;
use engine_kit::python::{PythonEngine, host};

fn main() -> ExitCode {
    if let Some(command) = gguf::Command::parse(std::env::args().skip(1)) {
        return command.run();
    }
    host(PythonEngine {
        name: "tinygrad",
        environment: "tinygrad",
        requirements: include_str!("../requirements.txt"),
        python: "3.11",
        install_hint: None,
        find_missing_requirement: None,
        files: &[
            ("worker.py", include_str!("../worker.py")),
            ("loading.py", include_str!("../loading.py")),
            ("gguf_file.py", include_str!("../gguf_file.py")),
            ("compiler.py", include_str!("../compiler.py")),
            ("model.py", include_str!("../model.py")),
        ],
    })
}
