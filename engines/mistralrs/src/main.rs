//! `mistralrs`: mistral.rs through its Python package. This program starts `worker.py`, which speaks the protocol and inherits
//! stdin and stdout.

use std::process::ExitCode;

use engine_kit::python::{PythonEngine, host};

fn main() -> ExitCode {
    host(PythonEngine {
        name: "mistralrs",
        environment: "mistralrs",
        requirements: include_str!("../requirements.txt"),
        python: "3.11",
        install_hint: None,
        find_missing_requirement: None,
        files: &[
            ("worker.py", include_str!("../worker.py")),
            ("loading.py", include_str!("../loading.py")),
            ("id_folder.py", include_str!("../id_folder.py")),
            ("library_log.py", include_str!("../library_log.py")),
            ("model.py", include_str!("../model.py")),
        ],
    })
}
