//! `llama-cpp`: llama.cpp through its library. The engine itself is `worker.py`; this program starts it in its pinned
//! environment and hands it stdin and stdout. It also converts models to GGUF for the worker.

mod convert;

use std::process::ExitCode;

use engine_kit::python::{PythonEngine, host};

fn main() -> ExitCode {
    if let Some(asked) = convert::asked(std::env::args().skip(1)) {
        return convert::answer(&asked);
    }
    host(PythonEngine {
        name: "llama-cpp",
        environment: "llama-cpp",
        requirements: concat!(
            include_str!("../requirements.txt"),
            include_str!("../build-requirements.txt"),
            include_str!("../build-settings.txt"),
            include_str!("../at-its-best.cmake"),
        ),
        python: "3.11",
        otherwise: None,
        lacks: None,
        files: &[
            ("worker.py", include_str!("../worker.py")),
            ("options.py", include_str!("../options.py")),
            ("file.py", include_str!("../file.py")),
            ("library.py", include_str!("../library.py")),
            ("loading.py", include_str!("../loading.py")),
            ("model.py", include_str!("../model.py")),
            ("pool.py", include_str!("../pool.py")),
            ("processors.py", include_str!("../processors.py")),
            ("room.py", include_str!("../room.py")),
            ("text.py", include_str!("../text.py")),
        ],
    })
}
