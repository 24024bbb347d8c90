//! Output checks on real engines: models that they read correctly, and models with a mistake.
//!
//! Needs the engines built in release and set up, which `scripts/check --full` does first; so this is behind the feature
//! `full`. `scripts/agreement/calibrate` prints the distances behind the bounds of each status.

use std::path::{Path, PathBuf};

use model_files::{Dtype, Format, Goal, ModelFolder, convert, embedded};
use serde_json::{Value, json};

use crate::engine::{assert_is_ready, at_home, binary, slot};
use crate::support::models::with_header;
use crate::support::{Outcome, Scratch, copy_folder, finish, root, write_program};

const ENGINE: &str = "candle";
const VERIFIER: &str = "pytorch-baseline";

/// The output status of an engine in a run, and the exit status.
struct Said {
    output: Value,
    code: Option<i32>,
    report: Value,
}

impl Said {
    fn status(&self) -> &str {
        self.output["status"].as_str().unwrap()
    }

    #[track_caller]
    fn assert_right(&self, what: &str) {
        assert!(["exact", "agrees"].contains(&self.status()), "{what}: {}", self.output);
        // The status rests on more than the tokens: the text is long enough for errors that grow with the position.
        assert!(self.output["scores"]["tokens"].as_u64().unwrap() > 1_000, "{what}: {}", self.output);
        assert_eq!(self.code, Some(0), "{what}: {}", self.output);
    }

    #[track_caller]
    fn assert_wrong(&self, what: &str) {
        assert_eq!(self.status(), "wrong", "{what}: {}", self.output);
        assert_eq!(self.code, Some(4), "{what}: {}", self.output);
        assert_eq!(self.report["cases"][0]["output"], "wrong");
        assert_eq!(self.report["cases"][0]["times_reference"], Value::Null);
    }
}

/// Measures one engine, by name or path, with the reference engine.
fn measured(scratch: &Scratch, engine: &str, model: &Path, dtype: Option<&str>) -> Said {
    assert_is_ready(ENGINE);
    let (outcome, report) = ran(scratch, &[engine], model, dtype);
    let output = report["outputs"][0].clone();
    assert!(output.is_object(), "{outcome:?}");
    Said { output, code: outcome.code, report }
}

/// A run of these rows with the reference engine, and its report.
fn ran(scratch: &Scratch, rows: &[&str], model: &Path, dtype: Option<&str>) -> (Outcome, Value) {
    assert_is_ready(VERIFIER);
    let mut command = at_home(scratch.orchestrate());
    command.args(rows.iter().flat_map(|row| ["-e", row]));
    command.args(["--verifier", VERIFIER, "-s", "decode", "--blocks", "1", "--iterations", "1"]);
    command.args(["--no-setup", "--threads", "1", "--json", "-", "-m"]).arg(model);
    command.args(dtype.iter().flat_map(|dtype| ["--dtype", dtype]));
    command.arg("--results").arg(scratch.results()).current_dir(root());
    let outcome = finish(&mut command);
    let report = serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{outcome:?}"));
    (outcome, report)
}

fn quantised(scratch: &Scratch, model: &Path, name: &str, dtype: &str) -> PathBuf {
    let out = scratch.join(&format!("{name}-{dtype}.gguf"));
    let goal = Goal { format: Format::Gguf, dtype: Dtype::named(dtype).unwrap(), out: out.clone() };
    convert(&ModelFolder::open(model).unwrap(), &goal, &|_, _| Ok(())).unwrap();
    out
}

fn wrong_engine(scratch: &Scratch, model: &Path) -> String {
    loads_another(scratch, "mistaken", &binary(ENGINE), model).to_string_lossy().into_owned()
}

#[test]
fn a_correct_f32_is_exact_and_a_correct_bf16_agrees() {
    let _slot = slot();
    let scratch = Scratch::new();
    let model = embedded::folder().unwrap();
    let f32 = measured(&scratch, ENGINE, &model, Some("f32"));
    f32.assert_right("f32");
    assert_eq!(f32.status(), "exact", "{}", f32.output);
    for dtype in ["bf16", "f16"] {
        measured(&scratch, ENGINE, &model, Some(dtype)).assert_right(dtype);
    }
}

#[test]
fn a_correct_q8_0_and_a_correct_q4_0_are_never_called_wrong() {
    let _slot = slot();
    let scratch = Scratch::new();
    for dtype in ["q8_0", "q4_0", "q4_k"] {
        let model = quantised(&scratch, &embedded::folder().unwrap(), "embedded", dtype);
        measured(&scratch, ENGINE, &model, None).assert_right(dtype);
    }
}

#[test]
fn f32_presets_are_exact_and_quantized_presets_are_never_wrong() {
    let _slot = slot();
    ["lmrs", "llama-cpp"].into_iter().for_each(assert_is_ready);
    let exact = ["lmrs:exact", "llama-cpp:f32"];
    let lmrs = ["lmrs", "lmrs:q8_0", "lmrs:q4_0"];
    let llama_cpp = ["llama-cpp", "llama-cpp:q8_0", "llama-cpp:q4_0", "llama-cpp:q4_k"];
    let rows = [&exact[..], &lmrs, &llama_cpp].concat();
    let (outcome, report) = ran(&Scratch::new(), &rows, &embedded::folder().unwrap(), None);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let outputs = report["outputs"].as_array().unwrap();
    for row in rows {
        let output = outputs.iter().find(|output| output["engine"] == row);
        let output = output.unwrap_or_else(|| panic!("no `{row}` in {outputs:?}"));
        let right = if exact.contains(&row) { &["exact"][..] } else { &["exact", "agrees", "drifts"] };
        assert!(right.contains(&output["status"].as_str().unwrap()), "{row}: {output}");
        assert!(output["scores"]["tokens"].as_u64().unwrap() > 1_000, "{row}: {output}");
    }
}

#[test]
fn a_model_with_one_layer_permuted_is_called_wrong() {
    let _slot = slot();
    let scratch = Scratch::new();
    let model = embedded::folder().unwrap();
    for layer in 0..4 {
        let permuted =
            Copy::of(&model).with_layer_permuted(layer).write(&scratch.join(&format!("layer-{layer}")));
        let dtype = if layer % 2 == 0 { "f32" } else { "bf16" };
        let engine = wrong_engine(&scratch, &permuted);
        measured(&scratch, &engine, &model, Some(dtype)).assert_wrong(&format!("layer {layer}, {dtype}"));
    }
    let permuted = quantised(&scratch, &scratch.join("layer-2"), "permuted", "q4_0");
    let engine = wrong_engine(&scratch, &permuted);
    let model = quantised(&scratch, &model, "embedded", "q4_0");
    measured(&scratch, &engine, &model, None).assert_wrong("layer 2, q4_0");
}

#[test]
fn an_engine_that_ignores_rope_scaling_is_called_wrong_at_a_thousand_tokens() {
    let _slot = slot();
    let scratch = Scratch::new();
    let ignorant = embedded::folder().unwrap();
    for original in [256, 1024] {
        let scaled = Copy::of(&ignorant).with_rope_scaling(original);
        let scaled = scaled.write(&scratch.join(&format!("scaled-{original}")));
        for dtype in ["f32", "bf16"] {
            let engine = wrong_engine(&scratch, &ignorant);
            let what = format!("scaled from {original}, {dtype}");
            measured(&scratch, &engine, &scaled, Some(dtype)).assert_wrong(&what);
            measured(&scratch, ENGINE, &scaled, Some(dtype)).assert_right(&what);
        }
    }
}

// Models with one mistake, and an engine that always loads such a model: a stand-in for an engine that reads a model wrongly.

/// A model folder to be changed and written elsewhere.
struct Copy {
    from: PathBuf,
    config: Value,
    header: Value,
    numbers: Vec<u8>,
}

impl Copy {
    fn of(folder: &Path) -> Self {
        let config = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        let weights = std::fs::read(folder.join("model.safetensors")).unwrap();
        let (size, rest) = weights.split_at(8);
        let (header, numbers) = rest.split_at(u64::from_le_bytes(size.try_into().unwrap()) as usize);
        let header = serde_json::from_slice(header).unwrap();
        Self { from: folder.into(), config, header, numbers: numbers.into() }
    }

    /// Reverses the rows of every matrix of one layer.
    fn with_layer_permuted(mut self, layer: u32) -> Self {
        let begins = format!("model.layers.{layer}.");
        let tensors = self.header.as_object().unwrap().clone();
        let matrices = tensors.iter().filter(|(name, _)| name.starts_with(&begins));
        let mut permuted = 0;
        for (_, tensor) in matrices.filter(|(_, it)| it["shape"].as_array().unwrap().len() == 2) {
            let number = |value: &Value| value.as_u64().unwrap() as usize;
            let (start, end) = (number(&tensor["data_offsets"][0]), number(&tensor["data_offsets"][1]));
            let row = (end - start) / number(&tensor["shape"][0]);
            let rows: Vec<Vec<u8>> = self.numbers[start..end].chunks(row).map(<[u8]>::to_vec).collect();
            self.numbers[start..end].copy_from_slice(&rows.into_iter().rev().collect::<Vec<_>>().concat());
            permuted += 1;
        }
        assert_eq!(permuted, 7);
        self
    }

    /// Adds Llama 3's scaling of rotations, for texts longer than `original`.
    fn with_rope_scaling(mut self, original: u32) -> Self {
        self.config["rope_scaling"] = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": original,
        });
        self
    }

    fn write(&self, to: &Path) -> PathBuf {
        copy_folder(&self.from, to);
        std::fs::write(to.join("config.json"), self.config.to_string()).unwrap();
        std::fs::write(to.join("model.safetensors"), with_header(&self.header, &self.numbers)).unwrap();
        to.into()
    }
}

/// A program called `name`: it is `engine`, but always loads `model`.
fn loads_another(scratch: &Scratch, name: &str, engine: &Path, model: &Path) -> PathBuf {
    let script = include_str!("loads-another.py")
        .replace("@ENGINE@", &engine.to_string_lossy())
        .replace("@MODEL@", &model.to_string_lossy());
    let path = scratch.join(name);
    write_program(&path, &script);
    path
}
