//! `transformers`: Hugging Face's model classes on PyTorch. The engine itself is `worker.py`. This program starts the worker
//! in its pinned environment, with the same stdin and stdout.

use std::process::ExitCode;

use engine_kit::python::{PythonEngine, host};

fn main() -> ExitCode {
    host(PythonEngine {
        name: "transformers",
        environment: "pytorch",
        requirements: include_str!("../../environments/pytorch/requirements.txt"),
        python: "3.11",
        install_hint: None,
        find_missing_requirement: None,
        files: &[
            ("worker.py", include_str!("../worker.py")),
            ("decode_path.py", include_str!("../decode_path.py")),
            ("decode_steps.py", include_str!("../decode_steps.py")),
            ("devices.py", include_str!("../devices.py")),
            ("environment.py", include_str!("../environment.py")),
            ("fast.py", include_str!("../fast.py")),
            ("fast_checkpoint.py", include_str!("../fast_checkpoint.py")),
            ("fast_network.py", include_str!("../fast_network.py")),
            ("folder.py", include_str!("../folder.py")),
            ("growing_cache.py", include_str!("../growing_cache.py")),
            ("loading.py", include_str!("../loading.py")),
            ("network.py", include_str!("../network.py")),
            ("options.py", include_str!("../options.py")),
            ("quantize.py", include_str!("../quantize.py")),
            ("slots.py", include_str!("../slots.py")),
            ("static_cache.py", include_str!("../static_cache.py")),
        ],
    })
}
