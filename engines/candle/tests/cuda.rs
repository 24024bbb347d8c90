//! Tests `candle-cuda` on a machine without a GPU: the program runs with stand-ins for CUDA's libraries, which count calls
//! and compute nothing. The tests cover the facts of a load, the refusals, and the launches per token, never a GPU's answers.
//! Only scripts/check-cuda runs them, in a separate target directory: Cargo.toml has the reason.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_candle-cuda");
/// CUDA's number for `not supported`.
const NOT_SUPPORTED: i32 = 801;

/// The driver, cuBLAS and cuRAND in one library, under the names that the program loads.
struct StandIn {
    folder: tempfile::TempDir,
}

impl StandIn {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path_of = |name: &str| folder.path().join(name);
        let undefined = run("nm", &["-D", "--undefined-only", PROGRAM]);
        let names = undefined.lines().filter_map(|line| line.split_whitespace().last()?.split('@').next());
        let cuda_names = names.filter(|name| {
            ["cu", "cublas", "curand"].iter().any(|prefix| {
                name.strip_prefix(prefix)
                    .is_some_and(|suffix| suffix.starts_with(|first: char| first.is_ascii_uppercase()))
            })
        });
        // Functions that stand-in.c does not define return an error.
        let refusals: String = cuda_names
            .map(|name| format!("__attribute__((weak)) int {name}() {{ return {NOT_SUPPORTED}; }}\n"))
            .collect();
        std::fs::write(path_of("refusals.c"), refusals).unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stand-in.c");
        let (refusals, library) = (path_of("refusals.c"), path_of("libcuda.so.1"));
        let [refusals, library] = [&refusals, &library].map(|path| path.to_str().unwrap());
        run("cc", &["-w", "-std=gnu17", "-shared", "-fPIC", "-O1", "-o", library, source, refusals]);
        for name in ["libcublas.so.13", "libcurand.so.10"] {
            std::os::unix::fs::symlink("libcuda.so.1", path_of(name)).unwrap();
        }
        Self { folder }
    }

    /// The answers to these requests, without progress messages, and the counts of calls.
    fn answers(&self, variables: &[(&str, &str)], requests: &[Value]) -> (Vec<Value>, Counts) {
        let counts = self.folder.path().join("counts");
        let lines: String = requests.iter().map(|request| format!("{request}\n")).collect();
        #[expect(clippy::disallowed_methods, reason = "a test of this program alone")]
        let mut command = std::process::Command::new(PROGRAM);
        command.env("LD_LIBRARY_PATH", self.folder.path()).env("STAND_IN_COUNTS", &counts);
        for variable in
            ["ORCHESTRATE_MODEL", "ORCHESTRATE_DEVICE", "ORCHESTRATE_DTYPE", "ORCHESTRATE_THREADS"]
        {
            command.env_remove(variable);
        }
        command.envs(variables.iter().copied()).stdin(std::process::Stdio::piped());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let answers = String::from_utf8(output.stdout).unwrap();
        let answers = answers.lines().map(|line| serde_json::from_str(line).unwrap());
        (answers.filter(|answer: &Value| answer["type"] != "progress").collect(), Counts::read(&counts))
    }

    fn answer(&self, variables: &[(&str, &str)], request: Value) -> Value {
        let (mut answers, _) = self.answers(variables, &[request]);
        answers.pop().unwrap()
    }
}

/// The numbers of calls that the stand-ins got. `kernels` includes copies and fills within the GPU's memory; `products` are
/// matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    kernels: u64,
    products: u64,
    to_device: u64,
    to_host: u64,
    events: u64,
    /// The number of operations that the host has not waited for at the end.
    pending: u64,
}

impl Counts {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let mut numbers = text.split(' ').map(|number| number.parse().unwrap());
        let mut next = || numbers.next().unwrap();
        Self {
            kernels: next(),
            products: next(),
            to_device: next(),
            to_host: next(),
            events: next(),
            pending: next(),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            kernels: self.kernels - other.kernels,
            products: self.products - other.products,
            to_device: self.to_device - other.to_device,
            to_host: self.to_host - other.to_host,
            events: self.events - other.events,
            pending: 0,
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    #[expect(clippy::disallowed_methods, reason = "a test of this program alone")]
    let output = std::process::Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn load(fields: Value) -> Value {
    let mut load =
        json!({"type": "load", "model": concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/embedded")});
    load.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    load
}

fn texts(answer: &Value) -> HashMap<&str, &str> {
    let text = |name| Some((name, answer[name].as_str()?));
    ["type", "kind", "message", "hint"].into_iter().filter_map(text).collect()
}

#[test]
fn hello_states_the_target_architecture_on_a_machine_without_a_gpu() {
    let hello = StandIn::new().answer(&[("STAND_IN_GPUS", "0")], json!({"type": "hello", "protocol": 1}));
    let features = hello["build"]["features"].as_array().unwrap();
    assert!(features.contains(&json!("cuda")) && features.contains(&json!("sm_90a")), "{hello}");
    assert_eq!(hello["capabilities"]["devices"], json!(["cuda", "cpu"]));
    assert_eq!(hello["capabilities"]["dtypes"][0], "bf16");
}

#[test]
fn a_load_states_dtype_device_libraries_and_memory() {
    let stand_in = StandIn::new();
    let (answers, _) =
        stand_in.answers(&[], &[load(json!({})), json!({"prompt_ids": [0, 5], "max_new_tokens": 2})]);
    let [loaded, generated] = &answers[..] else { panic!("{answers:?}") };
    for (fact, expected) in [("device", "cuda:0"), ("weights_dtype", "bf16"), ("compute_dtype", "bf16")] {
        assert_eq!(loaded[fact], expected, "{loaded}");
    }
    let libraries = &loaded["libraries"];
    assert_eq!((&libraries["cuda-driver"], &libraries["cublas"]), (&json!("13.0"), &json!("13.1.0")));
    assert!(libraries["cuda-runtime"].as_str().unwrap().starts_with("13."), "{libraries}");
    let memory = |answer: &Value, name: &str| answer["device_memory"][name].as_u64().unwrap();
    let weights = loaded["weights_bytes"].as_u64().unwrap();
    assert!(memory(loaded, "in_use_bytes") >= weights, "{loaded}");
    assert!(memory(loaded, "peak_bytes") >= memory(loaded, "in_use_bytes"));
    assert!(memory(generated, "peak_bytes") > memory(loaded, "in_use_bytes"), "{generated}");
}

#[test]
fn a_load_ends_when_the_device_has_finished_its_work() {
    let (_, counts) = StandIn::new().answers(&[], &[load(json!({}))]);
    assert!(counts.to_device > 0 && counts.kernels > 0, "{counts:?}");
    assert_eq!(counts.pending, 0, "{counts:?}");
}

#[test]
fn the_second_load_states_only_its_own_memory() {
    let loads = [load(json!({"dtype": "f32"})), load(json!({}))];
    let (answers, _) = StandIn::new().answers(&[], &loads);
    let peak = |answer: &Value| answer["device_memory"]["peak_bytes"].as_u64().unwrap();
    assert!(peak(&answers[1]) < peak(&answers[0]), "{answers:?}");
}

#[test]
fn a_token_of_a_llama_takes_the_kernel_launches_that_the_readme_states() {
    let stand_in = StandIn::new();
    let counts = |tokens: u32| {
        let request = json!({"prompt_ids": [0, 5], "max_new_tokens": tokens, "ignore_eos": true});
        stand_in.answers(&[], &[load(json!({})), request]).1
    };
    let token = counts(11).minus(counts(10));
    // The embedded model: 4 layers, 2 query heads for each key-value head, so 2 copies of keys and 2 of values.
    let (layers, head_copies) = (4, 2 * 2);
    assert_eq!(token.products, layers * 9 + 1, "{token:?}");
    assert_eq!(token.kernels, layers * (18 + head_copies) + 4, "{token:?}");
    assert_eq!((token.to_device, token.to_host), (3, 1), "only the id is copied back: {token:?}");
}

#[test]
fn a_gpu_of_another_architecture_is_refused_with_the_command_that_builds_for_it() {
    let answer = StandIn::new().answer(&[("STAND_IN_CAPABILITY", "86")], load(json!({})));
    let texts = texts(&answer);
    assert_eq!((texts["type"], texts["kind"]), ("failed", "unavailable"));
    let expected = "`cuda:0` (Stand-In) has compute capability 8.6, and this build is for sm_90a";
    assert_eq!(texts["message"], expected);
    assert_eq!(texts["hint"], "CUDA_COMPUTE_CAP=86 orchestrate setup candle --device cuda");
}

#[test]
fn an_unknown_gpu_number_and_a_machine_without_gpu_are_refused() {
    let stand_in = StandIn::new();
    let answer = stand_in.answer(&[("STAND_IN_GPUS", "2")], load(json!({"device": "cuda:2"})));
    assert_eq!(texts(&answer)["message"], "no `cuda:2`: CUDA sees 2 GPUs here, the first is `cuda:0`");
    let answer = stand_in.answer(&[("STAND_IN_GPUS", "0")], load(json!({})));
    let texts = texts(&answer);
    assert_eq!(texts["kind"], "unavailable");
    assert!(
        texts["message"].starts_with("cannot open `cuda:0`: DriverError(CUDA_ERROR_NO_DEVICE"),
        "{texts:?}"
    );
    assert!(texts["hint"].contains("nvidia-smi"), "{texts:?}");
}

#[test]
fn weights_that_do_not_fit_fail_as_out_of_memory_before_or_during_the_copy() {
    let stand_in = StandIn::new();
    let answer = stand_in.answer(&[("STAND_IN_FREE", "1000000")], load(json!({})));
    let refused = texts(&answer);
    assert_eq!(refused["kind"], "out_of_memory");
    assert!(refused["message"].ends_with("`cuda:0` has 0.00 GB free of 85.00 GB"), "{refused:?}");
    // The free memory that the driver states suffices, but an allocation fails. candle's llama panics then, and the engine
    // answers with the text of the panic.
    let answer = stand_in.answer(&[("STAND_IN_AVAILABLE", "2000000")], load(json!({})));
    let failed = texts(&answer);
    assert_eq!(failed["kind"], "out_of_memory", "{failed:?}");
    assert!(failed["message"].contains("CUDA_ERROR_OUT_OF_MEMORY"), "{failed:?}");
}

#[test]
fn the_program_also_loads_on_the_cpu_in_f32() {
    let answer = StandIn::new().answer(&[("STAND_IN_GPUS", "0")], load(json!({"device": "cpu"})));
    assert_eq!((&answer["device"], &answer["weights_dtype"]), (&json!("cpu"), &json!("f32")), "{answer}");
    assert_eq!(answer["device_memory"], Value::Null);
}
