//! `pytorch-baseline`: the intentionally unoptimised reference. The engine itself is `worker.py`; this program starts it in
//! its pinned environment and hands it stdin and stdout.

use std::process::ExitCode;

use engine_kit::python::{PythonEngine, host};

fn main() -> ExitCode {
    host(PythonEngine {
        name: "pytorch-baseline",
        environment: "pytorch",
        requirements: include_str!("../../environments/pytorch/requirements.txt"),
        python: "3.11",
        otherwise: None,
        lacks: None,
        files: &[
            ("worker.py", include_str!("../worker.py")),
            ("baseline.py", include_str!("../baseline.py")),
            ("model.py", include_str!("../model.py")),
            ("qwen3.py", include_str!("../qwen3.py")),
            ("phi3.py", include_str!("../phi3.py")),
            ("gemma.py", include_str!("../gemma.py")),
            ("gpt2.py", include_str!("../gpt2.py")),
            ("folder.py", include_str!("../folder.py")),
            ("shape.py", include_str!("../shape.py")),
        ],
    })
}
