//! `ctranslate2`: CTranslate2. The engine itself is `worker.py`. This program starts the worker in its pinned environment, with the
//! same stdin and stdout, and runs the conversions of models to CTranslate2's format.

use std::process::ExitCode;

use engine_kit::python::{PythonEngine, host};

fn main() -> ExitCode {
    host(PythonEngine {
        name: "ctranslate2",
        environment: "ctranslate2",
        requirements: include_str!("../requirements.txt"),
        python: "3.11",
        install_hint: None,
        find_missing_requirement: None,
        files: &[
            ("worker.py", include_str!("../worker.py")),
            ("convert.py", include_str!("../convert.py")),
            ("loading.py", include_str!("../loading.py")),
            ("model.py", include_str!("../model.py")),
        ],
    })
}
