//! `pytorch-baseline`: the intentionally unoptimised reference. This program starts `worker.py`, which speaks the protocol and
//! inherits stdin and stdout.

use std::process::ExitCode;

use engine_kit::python::{PythonEngine, host};

fn main() -> ExitCode {
    host(PythonEngine {
        name: "pytorch-baseline",
        environment: "pytorch",
        requirements: include_str!("../../environments/pytorch/requirements.txt"),
        python: "3.11",
        install_hint: None,
        find_missing_requirement: None,
        files: &[
            ("worker.py", include_str!("../worker.py")),
            ("baseline.py", include_str!("../baseline.py")),
            ("batch.py", include_str!("../batch.py")),
            ("model.py", include_str!("../model.py")),
            ("gpt2.py", include_str!("../gpt2.py")),
            ("shape.py", include_str!("../shape.py")),
        ],
    })
}
