//! `transformers`: Hugging Face's model classes on PyTorch. The engine itself is `worker.py`; this program starts it in its
//! pinned environment, where it inherits stdin and stdout.

use std::process::ExitCode;

use engine_kit::python::{PythonEngine, host};

fn main() -> ExitCode {
    host(PythonEngine {
        name: "transformers",
        environment: "pytorch",
        requirements: include_str!("../../environments/pytorch/requirements.txt"),
        python: "3.11",
        install_hint: None,
        missing_requirement: None,
        files: &[
            ("worker.py", include_str!("../worker.py")),
            ("causal.py", include_str!("../causal.py")),
            ("compact.py", include_str!("../compact.py")),
            ("compact_product.py", include_str!("../compact_product.py")),
            ("compact_shape.py", include_str!("../compact_shape.py")),
            ("compact_weights.py", include_str!("../compact_weights.py")),
            ("decode_state.py", include_str!("../decode_state.py")),
            ("devices.py", include_str!("../devices.py")),
            ("environment.py", include_str!("../environment.py")),
            ("fast.py", include_str!("../fast.py")),
            ("fast_step.py", include_str!("../fast_step.py")),
            ("folder.py", include_str!("../folder.py")),
            ("growing.py", include_str!("../growing.py")),
            ("loading.py", include_str!("../loading.py")),
            ("network.py", include_str!("../network.py")),
            ("options.py", include_str!("../options.py")),
            ("quantize.py", include_str!("../quantize.py")),
            ("shards.py", include_str!("../shards.py")),
            ("static.py", include_str!("../static.py")),
            ("steps.py", include_str!("../steps.py")),
        ],
    })
}
