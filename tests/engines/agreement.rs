//! Output checks on real engines, and on programs around them that load, compute or report something else.
//!
//! `scripts/agreement/calibrate` prints the differences from which the bounds of each status were chosen.

use std::path::{Path, PathBuf};

use model_files::{Dtype, Format, Goal, ModelFolder, convert, embedded};
use serde_json::{Value, json};

use crate::engine::{Engine, assert_is_ready, binary, slot, with_user_setup};
use crate::support::models::with_header;
use crate::support::{DECODE, Outcome, Scratch, copy_folder, finish, root, write_program};

const ENGINE: &str = "candle";
const VERIFIER: &str = "pytorch-baseline";

/// An engine's result of the output checks in a run, with the exit code and the report.
struct CheckResult {
    output: Value,
    code: Option<i32>,
    report: Value,
}

impl CheckResult {
    fn status(&self) -> &str {
        self.output["status"].as_str().unwrap()
    }

    #[track_caller]
    fn assert_correct(&self, context: &str) {
        assert!(["exact", "agrees"].contains(&self.status()), "{context}: {}", self.output);
        // The checked text must be long enough to show errors that grow with the position.
        assert!(self.output["scores"]["tokens"].as_u64().unwrap() > 1_000, "{context}: {}", self.output);
        assert_eq!(self.code, Some(0), "{context}: {}", self.output);
    }

    #[track_caller]
    fn assert_wrong(&self, context: &str) {
        assert_eq!(self.status(), "wrong", "{context}: {}", self.output);
        assert_eq!(self.code, Some(4), "{context}: {}", self.output);
        assert_eq!(self.report["cases"][0]["output"], "wrong");
        assert_eq!(self.report["cases"][0]["times_reference"], Value::Null);
    }
}

/// Measures one engine, given by name or path, and checks its output with the verifier.
fn measure(scratch: &Scratch, engine: &str, model: &Path, dtype: Option<&str>) -> CheckResult {
    assert_is_ready(ENGINE);
    let (outcome, report) = run(scratch, &[engine], model, dtype);
    let output = report["outputs"][0].clone();
    assert!(output.is_object(), "{outcome:?}");
    CheckResult { output, code: outcome.code, report }
}

/// Runs these engines with the verifier, and returns the outcome and the report.
fn run(scratch: &Scratch, engines: &[&str], model: &Path, dtype: Option<&str>) -> (Outcome, Value) {
    assert_is_ready(VERIFIER);
    let mut command = with_user_setup(scratch.orchestrate());
    command.args(engines.iter().flat_map(|engine| ["-e", engine]));
    command.args([
        "--verifier",
        VERIFIER,
        "-s",
        "decode",
        "--depth",
        "0",
        "--blocks",
        "1",
        "--iterations",
        "1",
    ]);
    // A set budget gives the verifier more time on a busy machine.
    command.args(["--budget", "20m", "--no-setup", "--threads", "1", "--json", "-", "-m"]).arg(model);
    command.args(dtype.iter().flat_map(|dtype| ["--dtype", dtype]));
    command.arg("--results").arg(scratch.results()).current_dir(root());
    let outcome = finish(&mut command);
    let report = serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{outcome:?}"));
    (outcome, report)
}

fn quantized(scratch: &Scratch, model: &Path, name: &str, dtype: &str) -> PathBuf {
    let out = scratch.join(&format!("{name}-{dtype}.gguf"));
    let goal = Goal { format: Format::Gguf, dtype: Dtype::named(dtype).unwrap(), out: out.clone() };
    convert(&ModelFolder::open(model).unwrap(), &goal, &|_, _| Ok(())).unwrap();
    out
}

/// The path of a program that starts `ENGINE`, but always loads `model`.
fn engine_that_always_loads(scratch: &Scratch, model: &Path) -> String {
    let script = include_str!("loads-another.py")
        .replace("@ENGINE@", &binary(ENGINE).to_string_lossy())
        .replace("@MODEL@", &model.to_string_lossy());
    let path = scratch.join("mistaken");
    write_program(&path, &script);
    path.to_string_lossy().into_owned()
}

/// The path of a program that starts an engine, but computes only a part of each prompt.
fn engine_that_computes_a_part(scratch: &Scratch, engine: &str, part: &str, kind: &str) -> String {
    let script = include_str!("computes-part.py")
        .replace("@ENGINE@", &binary(engine).to_string_lossy())
        .replace("@PART@", part)
        .replace("@KIND@", kind);
    let path = scratch.join(if kind == "all" { part } else { kind });
    write_program(&path, &script);
    path.to_string_lossy().into_owned()
}

/// The path of a program that scores and generates in these dtypes with `lmrs`, and reports bf16.
fn engine_that_reports(
    scratch: &Scratch,
    name: &str,
    scores: &str,
    generates: &str,
    options: &str,
) -> String {
    let script = include_str!("reports-another-dtype.py")
        .replace("@ENGINE@", &binary("lmrs").to_string_lossy())
        .replace("@OPTIONS@", options)
        .replace("@SCORES@", scores)
        .replace("@GENERATES@", generates)
        .replace("@REPORTS@", "bf16");
    let path = scratch.join(name);
    write_program(&path, &script);
    path.to_string_lossy().into_owned()
}

/// Runs these engines on a model whose costs of dtypes are stored (`None`: the embedded model), and returns the outputs in the
/// report.
fn outputs_with_stored_costs(scratch: &Scratch, engines: &[&str], model: Option<&Path>) -> Vec<Value> {
    let mut command = with_user_setup(scratch.orchestrate());
    command.env_remove("ORCHESTRATE_VERIFIER").args(engines.iter().flat_map(|engine| ["-e", engine]));
    if let Some(model) = model {
        command.arg("-m").arg(model);
    }
    // A loss of few tokens may lie within the bound by chance, so one block is not enough.
    command.args(DECODE).args(["--blocks", "3", "--iterations", "4", "--no-setup", "--threads", "1"]);
    let outcome =
        finish(command.args(["--json", "-"]).arg("--results").arg(scratch.results()).current_dir(root()));
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{outcome:?}"));
    report["outputs"].as_array().unwrap().clone()
}

fn output_of<'o>(outputs: &'o [Value], engine: &str) -> &'o Value {
    outputs.iter().find(|it| it["engine"] == engine).unwrap_or_else(|| panic!("no `{engine}` in {outputs:?}"))
}

#[test]
fn an_engine_that_loads_4_bits_and_reports_bf16_is_wrong() {
    let (_slot, scratch) = (slot(), Scratch::new());
    ["lmrs", VERIFIER].into_iter().for_each(assert_is_ready);
    let relay = engine_that_reports(&scratch, "four-bits", "q4_0", "q4_0", "{}");
    let correct = ["lmrs", "lmrs:q8_0", "lmrs:q4_0"];
    let outputs = outputs_with_stored_costs(&scratch, &[&[relay.as_str()], &correct[..]].concat(), None);
    let wrong = output_of(&outputs, "four-bits");
    let (status, reason) = (&wrong["status"], wrong["reasons"][0].as_str().unwrap_or_default());
    assert_eq!(status, "wrong", "{wrong}");
    assert!(reason.contains(" costs ") && reason.ends_with(" nats on this model"), "{wrong}");
    for engine in correct {
        assert_ne!(output_of(&outputs, engine)["status"], "wrong", "{outputs:?}");
    }
}

/// The outputs of an engine that scores in bf16 and generates in 8 bits, and of one that does both in bf16, with these options.
fn outputs_of_8_bits_and_bf16(scratch: &Scratch, model: &Path, options: &str) -> [Value; 2] {
    let mut store = with_user_setup(scratch.orchestrate());
    store.args(["model", "reference-answers"]).arg(model).args(["--verifier", VERIFIER]);
    finish(store.arg("--results").arg(scratch.join("stored")).current_dir(root())).exits_with(0);
    assert!(model.join("dtype-costs.json").is_file());
    let relay = engine_that_reports(scratch, "relay", "bf16", "q8_0", options);
    let correct = engine_that_reports(scratch, "correct", "bf16", "bf16", options);
    let outputs = outputs_with_stored_costs(scratch, &[&relay, &correct], Some(model));
    let outputs = ["relay", "correct"].map(|engine| output_of(&outputs, engine).clone());
    assert_eq!(outputs[0]["scores"]["rms"], outputs[1]["scores"]["rms"]);
    outputs
}

fn tiny_llama(scratch: &Scratch) -> PathBuf {
    let model = scratch.join("tiny");
    let mut synth = scratch.orchestrate();
    finish(synth.args(["model", "synth", "tiny-llama", "--out"]).arg(&model)).exits_with(0);
    model
}

/// With portable kernels, lmrs rounds no activations of this model, whose weights are bf16. So the correct engine agrees.
#[test]
fn an_engine_that_scores_in_bf16_and_generates_in_8_bits_is_wrong() {
    let (_slot, scratch) = (slot(), Scratch::new());
    ["lmrs", VERIFIER].into_iter().for_each(assert_is_ready);
    let options = r#"{"kernels":"portable"}"#;
    let [wrong, right] = outputs_of_8_bits_and_bf16(&scratch, &tiny_llama(&scratch), options);
    assert_eq!(wrong["status"], "wrong", "{wrong}");
    assert!(wrong["reasons"].to_string().contains("nats less likely"), "{wrong}");
    assert!(["exact", "agrees"].contains(&right["status"].as_str().unwrap()), "{right}");
}

/// A limit of the check (docs/verification.md): rounding in all computations costs about as much as weights in 8 bits.
#[test]
fn an_engine_that_computes_in_bf16_leaves_the_record_of_one_that_generates_in_8_bits() {
    let (_slot, scratch) = (slot(), Scratch::new());
    ["lmrs", VERIFIER].into_iter().for_each(assert_is_ready);
    let model = tiny_llama(&scratch);
    let facts = Engine::start("lmrs").load(&model, Some("bf16")).unwrap().facts;
    if facts.compute_dtype.as_deref() != Some("bf16") {
        eprintln!("skipped: no kernel of this machine computes in bf16");
        return;
    }
    let [relay, correct] = outputs_of_8_bits_and_bf16(&scratch, &model, "{}");
    assert_ne!(correct["status"], "wrong", "{correct}");
    assert_eq!(relay["status"], correct["status"], "{relay}\n{correct}");
}

#[test]
fn engines_that_compute_a_part_of_each_prompt_are_wrong_and_correct_ones_in_any_precision_are_not() {
    let (_slot, scratch) = (slot(), Scratch::new());
    ["lmrs", ENGINE].into_iter().for_each(assert_is_ready);
    let parts = ["half", "start-and-half", "last-200", "last-64"];
    let partial = parts.map(|part| engine_that_computes_a_part(&scratch, "lmrs", part, "all"));
    let correct = ["lmrs", "lmrs:exact", "lmrs:q8_0", "lmrs:q4_0", ENGINE];
    let mut command = with_user_setup(scratch.orchestrate());
    command.env_remove("ORCHESTRATE_VERIFIER");
    for engine in partial.iter().map(String::as_str).chain(correct) {
        command.args(["-e", engine]);
    }
    // A set budget gives the verifier more time on a busy machine.
    command.args(["-s", "prefill", "--prompt-tokens", "512,1024", "--budget", "20m"]);
    command.args(["--blocks", "5", "--iterations", "4", "--no-setup", "--threads", "1", "--json", "-"]);
    let outcome = finish(command.arg("--results").arg(scratch.results()).current_dir(root()));
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{outcome:?}"));
    let outputs = report["outputs"].as_array().unwrap();
    for engine in parts.into_iter().chain(correct) {
        let output = outputs.iter().find(|it| it["engine"] == engine).unwrap();
        assert_eq!(output["status"] == "wrong", parts.contains(&engine), "{output}");
    }
}

#[test]
fn an_engine_that_computes_a_part_of_text_prompts_only_is_named_by_its_times() {
    let (_slot, scratch) = (slot(), Scratch::new());
    ["lmrs", ENGINE].into_iter().for_each(assert_is_ready);
    let text = engine_that_computes_a_part(&scratch, "lmrs", "last-64", "text");
    let mut command = with_user_setup(scratch.orchestrate());
    command.args(["-e", &text, "-e", "lmrs", "-s", "ttft,prefill", "--prompt-tokens", "1024"]);
    command.args(["--blocks", "5", "--no-setup", "--threads", "1", "--json", "-"]);
    let outcome = finish(command.arg("--results").arg(scratch.results()).current_dir(root()));
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{outcome:?}"));
    let contradictions = report["contradictions"].as_array().unwrap();
    let about = |engine: &str| -> Vec<&Value> {
        contradictions.iter().filter(|it| it["engine"] == engine).map(|it| &it["about"]).collect()
    };
    assert!(about("text").iter().any(|it| *it == "prompt_tokens"), "{}", report["warnings"]);
    assert_eq!(about("lmrs"), Vec::<&Value>::new(), "{}", report["warnings"]);
}

/// `scripts/accusation-rates` makes false claims on this wide copy and counts those that are found. A model with random weights
/// would generate text without sense.
#[test]
fn a_wide_copy_of_the_embedded_model_has_a_hundred_million_parameters_and_the_same_greedy_ids() {
    let (_slot, scratch) = (slot(), Scratch::new());
    let (embedded, wide) = (embedded::folder().unwrap(), scratch.join("wide"));
    let script = root().join("scripts/embedded-model/widen.py");
    finish(scratch.command("python3").arg(script).arg(&wide)).exits_with(0);
    let folder = ModelFolder::open(&wide).unwrap();
    let parameters = folder.parameters();
    assert!((100_000_000..110_000_000).contains(&parameters), "{parameters}");
    let text = folder.tokenizer().unwrap().encode(&embedded::heldout_text().unwrap()).unwrap();
    let mut engine = Engine::start("lmrs");
    let mut greedy_ids = |model: &Path| {
        engine.load(model, Some("f32")).unwrap();
        [0, 5_000, 15_000].map(|start| engine.generate(&text[start..start + 100]))
    };
    assert_eq!(greedy_ids(&wide), greedy_ids(&embedded));
}

#[test]
fn a_correct_engine_is_exact_in_f32_and_agrees_in_bf16_and_f16() {
    let _slot = slot();
    let scratch = Scratch::new();
    let model = embedded::folder().unwrap();
    let f32 = measure(&scratch, ENGINE, &model, Some("f32"));
    f32.assert_correct("f32");
    assert_eq!(f32.status(), "exact", "{}", f32.output);
    for dtype in ["bf16", "f16"] {
        measure(&scratch, ENGINE, &model, Some(dtype)).assert_correct(dtype);
    }
}

#[test]
fn an_engine_with_correct_quantized_weights_agrees() {
    let _slot = slot();
    let scratch = Scratch::new();
    for dtype in ["q8_0", "q4_0", "q4_k"] {
        let model = quantized(&scratch, &embedded::folder().unwrap(), "embedded", dtype);
        measure(&scratch, ENGINE, &model, None).assert_correct(dtype);
    }
}

#[test]
fn f32_presets_are_exact_and_quantized_presets_are_never_wrong() {
    let _slot = slot();
    ["lmrs", "llama-cpp"].into_iter().for_each(assert_is_ready);
    let exact = ["lmrs:exact", "llama-cpp:f32"];
    let lmrs = ["lmrs", "lmrs:q8_0", "lmrs:q4_0"];
    let llama_cpp = ["llama-cpp", "llama-cpp:q8_0", "llama-cpp:q4_0", "llama-cpp:q4_k"];
    let engines = [&exact[..], &lmrs, &llama_cpp].concat();
    let (outcome, report) = run(&Scratch::new(), &engines, &embedded::folder().unwrap(), None);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let outputs = report["outputs"].as_array().unwrap();
    for engine in engines {
        let output = outputs.iter().find(|output| output["engine"] == engine);
        let output = output.unwrap_or_else(|| panic!("no `{engine}` in {outputs:?}"));
        let accepted = if exact.contains(&engine) { &["exact"][..] } else { &["exact", "agrees", "drifts"] };
        assert!(accepted.contains(&output["status"].as_str().unwrap()), "{engine}: {output}");
        assert!(output["scores"]["tokens"].as_u64().unwrap() > 1_000, "{engine}: {output}");
    }
}

#[test]
fn a_model_with_one_layer_permuted_is_called_wrong() {
    let _slot = slot();
    let scratch = Scratch::new();
    let model = embedded::folder().unwrap();
    for layer in 0..4 {
        let permuted =
            ModelCopy::of(&model).with_layer_permuted(layer).write(&scratch.join(&format!("layer-{layer}")));
        let dtype = if layer % 2 == 0 { "f32" } else { "bf16" };
        let engine = engine_that_always_loads(&scratch, &permuted);
        measure(&scratch, &engine, &model, Some(dtype)).assert_wrong(&format!("layer {layer}, {dtype}"));
    }
    let permuted = quantized(&scratch, &scratch.join("layer-2"), "permuted", "q4_0");
    let engine = engine_that_always_loads(&scratch, &permuted);
    let model = quantized(&scratch, &model, "embedded", "q4_0");
    measure(&scratch, &engine, &model, None).assert_wrong("layer 2, q4_0");
}

#[test]
fn an_engine_that_ignores_rope_scaling_is_called_wrong_at_a_thousand_tokens() {
    let _slot = slot();
    let scratch = Scratch::new();
    let unscaled = embedded::folder().unwrap();
    for original_context in [256, 1024] {
        let scaled = ModelCopy::of(&unscaled).with_rope_scaling(original_context);
        let scaled = scaled.write(&scratch.join(&format!("scaled-{original_context}")));
        for dtype in ["f32", "bf16"] {
            let engine = engine_that_always_loads(&scratch, &unscaled);
            let context = format!("scaled from a context of {original_context}, {dtype}");
            measure(&scratch, &engine, &scaled, Some(dtype)).assert_wrong(&context);
            measure(&scratch, ENGINE, &scaled, Some(dtype)).assert_correct(&context);
        }
    }
}

// Models with one mistake. An engine that always loads such a model stands for an engine that reads a model wrongly.

/// A copy of a model folder in memory, which a test changes and writes elsewhere.
struct ModelCopy {
    from: PathBuf,
    config: Value,
    header: Value,
    data: Vec<u8>,
}

impl ModelCopy {
    fn of(folder: &Path) -> Self {
        let config = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        let weights = std::fs::read(folder.join("model.safetensors")).unwrap();
        let (size, rest) = weights.split_at(8);
        let (header, data) = rest.split_at(u64::from_le_bytes(size.try_into().unwrap()) as usize);
        let header = serde_json::from_slice(header).unwrap();
        Self { from: folder.into(), config, header, data: data.into() }
    }

    /// Reverses the rows of every matrix of one layer.
    fn with_layer_permuted(mut self, layer: u32) -> Self {
        let prefix = format!("model.layers.{layer}.");
        let tensors = self.header.as_object().unwrap().clone();
        let matrices = tensors.iter().filter(|(name, _)| name.starts_with(&prefix));
        let mut permuted = 0;
        for (_, tensor) in matrices.filter(|(_, it)| it["shape"].as_array().unwrap().len() == 2) {
            let number = |value: &Value| value.as_u64().unwrap() as usize;
            let (start, end) = (number(&tensor["data_offsets"][0]), number(&tensor["data_offsets"][1]));
            let row_bytes = (end - start) / number(&tensor["shape"][0]);
            let rows: Vec<Vec<u8>> = self.data[start..end].chunks(row_bytes).map(<[u8]>::to_vec).collect();
            self.data[start..end].copy_from_slice(&rows.into_iter().rev().collect::<Vec<_>>().concat());
            permuted += 1;
        }
        assert_eq!(permuted, 7, "a layer has the matrices q, k, v, o, gate, up and down");
        self
    }

    /// Adds Llama 3's RoPE scaling, for a model that was trained with a context of `original_context` tokens.
    fn with_rope_scaling(mut self, original_context: u32) -> Self {
        self.config["rope_scaling"] = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": original_context,
        });
        self
    }

    fn write(&self, to: &Path) -> PathBuf {
        copy_folder(&self.from, to);
        std::fs::write(to.join("config.json"), self.config.to_string()).unwrap();
        std::fs::write(to.join("model.safetensors"), with_header(&self.header, &self.data)).unwrap();
        to.into()
    }
}
