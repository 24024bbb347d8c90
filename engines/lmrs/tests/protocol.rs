//! Tests the program `lmrs` through its pipes, with the embedded model or a tiny one.
#![expect(clippy::unwrap_used, reason = "tests panic")]

use std::path::{Path, PathBuf};

use engine_kit::protocol::{Failed, FailureKind, Generated, Id, Loaded, Message, Scored, parse_message};
use lmrs::kernels::Level;
use lmrs::kernels::rows::has_pairs;
use model_files::{Dtype, Format, Goal, ModelFolder};
use serde_json::{Value, json};

/// Runs the program with these requests. Returns its answers, without progress and streamed tokens. `home` is the data
/// directory.
fn answers_with_home(home: Option<&Path>, lines: &[&str]) -> Vec<Message> {
    // No test here uses a GPU, also where there is one.
    let command = duct::cmd!(env!("CARGO_BIN_EXE_lmrs")).env("CUDA_VISIBLE_DEVICES", "");
    let mut command = command.stdin_bytes(lines.join("\n"));
    command = command.stdout_capture().stderr_null();
    if let Some(home) = home {
        command = command.env("ORCHESTRATE_HOME", home);
    }
    let output = command.unchecked().run().unwrap();
    assert!(output.status.success());
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let messages = lines.map(|line| parse_message(line).unwrap());
    messages.filter(|message| !matches!(message, Message::Progress(_) | Message::Token(_))).collect()
}

fn answers_to(lines: &[&str]) -> Vec<Message> {
    answers_with_home(None, lines)
}

/// Makes a request that loads the embedded model.
fn load(fields: &str) -> String {
    format!(r#"{{"type":"load","model":"embedded","threads":2{fields}}}"#)
}

fn expect_loaded(message: &Message) -> &Loaded {
    match message {
        Message::Loaded(loaded) => loaded,
        other => panic!("not loaded: {other:?}"),
    }
}

fn expect_generated(message: &Message) -> &Generated {
    match message {
        Message::Generated(generated) => generated,
        other => panic!("not generated: {other:?}"),
    }
}

fn ids(message: &Message) -> Vec<Vec<u32>> {
    let sequences = &expect_generated(message).iterations[0].sequences;
    sequences.iter().map(|sequence| sequence.output_ids.clone().unwrap()).collect()
}

fn expect_scored(message: &Message) -> &Scored {
    match message {
        Message::Scored(scored) => scored,
        other => panic!("not scored: {other:?}"),
    }
}

fn failure(lines: &[&str]) -> Failed {
    match answers_to(lines).remove(0) {
        Message::Failed(failed) => failed,
        other => panic!("not failed: {other:?}"),
    }
}

const RECIPE_REQUEST: &str = r#"{"prompt":"You need:\n- 1 cup of cinnamon\n- 1 cup of cabbage\n- 1 cup","max_new_tokens":64,"ignore_eos":true}"#;
const IDS_REQUEST: &str =
    r#"{"prompt_ids":[0,88,13,396,1670,800,347],"max_new_tokens":24,"ignore_eos":true}"#;

#[test]
fn a_load_reports_its_dtypes_its_context_and_the_size_of_its_weights() {
    // Some levels multiply pairs of bf16; the others convert bf16 to f32.
    let compute_of_bf16 = if has_pairs(Level::best()) { "bf16" } else { "f32" };
    let cases = [
        ("bf16", 16, compute_of_bf16, "f16"),
        ("f32", 32, "f32", "f32"),
        ("bf16z", 12, compute_of_bf16, "f16"),
        ("f16", 16, "f32", "f16"),
        ("q8_0", 9, "q8_0", "f16"),
        ("q4_0", 5, "q8_0", "f16"),
    ];
    for (dtype, expected_bits, compute, kv) in cases {
        let answers = answers_to(&[&load(&format!(r#","dtype":"{dtype}","context_tokens":100"#))]);
        let facts = &expect_loaded(&answers[0]).facts;
        assert_eq!(facts.weights_dtype.as_deref(), Some(dtype));
        assert_eq!((facts.compute_dtype.as_deref(), facts.kv_dtype.as_deref()), (Some(compute), Some(kv)));
        assert_eq!((facts.context_tokens, facts.vocabulary_size), (Some(100), Some(2048)));
        let bits = facts.weights_bytes.unwrap() as f64 * 8.0 / facts.parameters.unwrap() as f64;
        assert!((0.8..1.2).contains(&(bits / f64::from(expected_bits))), "{dtype}: {bits} bits a weight");
        assert!(facts.libraries.contains_key("kernels"));
    }
}

/// Makes a tiny llama in bf16, with this hidden size and feed-forward size.
fn tiny_llama(folder: &Path, hidden: u32, inner: u32) -> PathBuf {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/configs/llama.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let heads = json!(hidden / 16);
    let fields = [
        ("hidden_size", json!(hidden)),
        ("intermediate_size", json!(inner)),
        ("num_attention_heads", heads.clone()),
        ("num_key_value_heads", heads),
    ];
    fields.into_iter().for_each(|(name, value)| config[name] = value);
    let (path, out) = (folder.join("config.json"), folder.join("model"));
    std::fs::write(&path, config.to_string()).unwrap();
    let shape = model_files::Shape::of_config(&path).unwrap();
    let goal = Goal { format: Format::Safetensors, dtype: Dtype::BF16, out: out.clone() };
    model_files::synthesise(&shape, 7, &goal, &|_, _| Ok(())).unwrap();
    out
}

/// A request that loads this model.
fn load_of(model: &Path, dtype: Option<&str>) -> String {
    json!({"type": "load", "model": model, "threads": 1, "dtype": dtype}).to_string()
}

#[test]
fn keys_and_values_are_in_f32_if_the_loaded_weights_are() {
    let folder = tempfile::tempdir().unwrap();
    let bf16_model = tiny_llama(folder.path(), 64, 96);
    let f32_model = folder.path().join("f32");
    let goal = Goal { format: Format::Safetensors, dtype: Dtype::F32, out: f32_model.clone() };
    model_files::convert(&ModelFolder::open(&bf16_model).unwrap(), &goal, &|_, _| Ok(())).unwrap();
    for (model, dtype, kv) in [
        (&f32_model, None, "f32"),
        (&f32_model, Some("f32"), "f32"),
        (&f32_model, Some("bf16"), "f16"),
        (&bf16_model, None, "f16"),
        (&bf16_model, Some("f32"), "f32"),
    ] {
        let answers = answers_to(&[&load_of(model, dtype)]);
        let facts = &expect_loaded(&answers[0]).facts;
        assert_eq!(facts.kv_dtype.as_deref(), Some(kv), "{} as {dtype:?}", model.display());
    }
}

#[test]
fn a_load_reports_the_format_of_most_of_its_weights() {
    let folder = tempfile::tempdir().unwrap();
    // Most rows have 48 numbers and stay in bf16. Rows of 64 are quantized: 64 is a multiple of a quantization block (32).
    let model = tiny_llama(folder.path(), 48, 64);
    let answers = answers_to(&[&load_of(&model, Some("q8_0"))]);
    let facts = &expect_loaded(&answers[0]).facts;
    assert_eq!(facts.weights_dtype.as_deref(), Some("bf16"));
    assert_eq!(facts.compute_dtype.as_deref(), Some("q8_0"), "some matrices are in q8_0");
}

#[test]
fn quantized_formats_that_fit_no_matrix_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_llama(folder.path(), 48, 80);
    for dtype in ["q8_0", "q4_0"] {
        let failed = failure(&[&load_of(&model, Some(dtype))]);
        assert_eq!(failed.kind, FailureKind::Unsupported, "{failed:?}");
        assert!(failed.message.contains("48, 48 and 80 numbers"), "{failed:?}");
        assert!(failed.hint.unwrap().starts_with("--dtype "));
    }
    let answers = answers_to(&[&load_of(&model, None)]);
    assert_eq!(expect_loaded(&answers[0]).facts.weights_dtype.as_deref(), Some("bf16"));
}

#[test]
fn packed_weights_give_the_same_ids_and_scores_as_bf16_in_less_memory() {
    let score = r#"{"type":"score","sequences":[[0,88,13,396,1670,800,347,5,6,7,8,9,10]]}"#;
    let results = ["bf16", "bf16z"].map(|dtype| {
        let answers =
            answers_to(&[&load(&format!(r#","dtype":"{dtype}""#)), RECIPE_REQUEST, IDS_REQUEST, score]);
        let bytes = expect_loaded(&answers[0]).facts.weights_bytes.unwrap();
        (bytes as f64, ids(&answers[1]), ids(&answers[2]), expect_scored(&answers[3]).logprobs.clone())
    });
    let [(bf16_bytes, ..), (packed_bytes, ..)] = results;
    // A row of 256 numbers has 512 bytes in bf16, and 448 packed: a ratio of 0.875. Longer rows approach 0.77.
    assert!((0.84..0.88).contains(&(packed_bytes / bf16_bytes)), "{packed_bytes} of {bf16_bytes}");
    let [bf16, packed] = results.map(|(_, recipe_ids, other_ids, scores)| (recipe_ids, other_ids, scores));
    assert_eq!(packed, bf16);
}

/// Makes a tiny llama whose matrix `blk.0.ffn_up.weight` cannot be packed: its first row has too many exponents for bf16z.
fn llama_with_an_unfit_matrix(folder: &Path) -> PathBuf {
    let model = tiny_llama(folder, 128, 256);
    let path = model.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let name = "model.layers.0.mlp.up_proj.weight";
    let offset = tensors[name]["data_offsets"][0].as_u64().unwrap() as usize;
    // The first row has 128 numbers with 64 different exponents. A header of bf16z has room for 16, and for 11 exceptions.
    for at in 0..128 {
        let bits = ((at as u16 % 64 + 60) << 7).to_le_bytes();
        bytes[header + offset + 2 * at..][..2].copy_from_slice(&bits);
    }
    std::fs::write(&path, bytes).unwrap();
    model
}

#[test]
fn a_matrix_that_cannot_be_packed_stays_in_bf16_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let model = llama_with_an_unfit_matrix(folder.path());
    let load = |dtype| load_of(&model, Some(dtype));
    let prompt = r#"{"prompt_ids":[0,88,13,39],"max_new_tokens":24,"ignore_eos":true}"#;
    let lines = [&load("bf16"), prompt, &load("bf16z"), prompt].join("\n");
    let command = duct::cmd!(env!("CARGO_BIN_EXE_lmrs")).stdin_bytes(lines);
    let output = command.stdout_capture().run().unwrap().stdout;
    let text = String::from_utf8(output).unwrap();
    assert!(text.contains("blk.0.ffn_up.weight stays in bf16"), "{text}");
    let answers: Vec<Message> = text.lines().map(|line| parse_message(line.as_bytes()).unwrap()).collect();
    let generated_ids: Vec<_> =
        answers.iter().filter(|answer| matches!(answer, Message::Generated(_))).map(ids).collect();
    assert_eq!(generated_ids[0], generated_ids[1]);
}

/// A sidecar is a file of packed weights, which later loads map. Packing reports progress up to 1.0; mapping reports none.
#[test]
fn the_sidecar_of_a_model_with_an_unfit_matrix_is_used_without_packing() {
    let (folder, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let model = llama_with_an_unfit_matrix(folder.path());
    let mut load: Value = serde_json::from_str(&load_of(&model, Some("bf16z"))).unwrap();
    load["options"] = json!({ "sidecar": true });
    let prompt = r#"{"prompt_ids":[0,88,13,39],"max_new_tokens":24,"ignore_eos":true}"#;
    let load_and_generate = || {
        let command =
            duct::cmd!(env!("CARGO_BIN_EXE_lmrs")).stdin_bytes([&load.to_string(), prompt].join("\n"));
        let output = command.env("ORCHESTRATE_HOME", home.path()).stdout_capture().run().unwrap().stdout;
        let lines = output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| parse_message(line).unwrap()).collect::<Vec<Message>>()
    };
    // Returns how often the load packs all matrices, whether it names the unfit one, how often it writes a sidecar, and the ids.
    let summary = |messages: &[Message]| {
        let progress =
            || messages.iter().filter_map(|m| if let Message::Progress(p) = m { Some(p) } else { None });
        let packings = progress()
            .filter(|progress| progress.phase == "weights" && progress.fraction == Some(1.0))
            .count();
        let note = |note: &String| note.contains("blk.0.ffn_up.weight stays in bf16");
        let names_unfit = progress().any(|progress| progress.note.as_ref().is_some_and(note));
        let loaded =
            messages.iter().filter(|message| matches!(message, Message::Loaded(_))).map(expect_loaded);
        let sidecars =
            loaded.flat_map(|loaded| &loaded.phases).filter(|phase| phase.name == "sidecar").count();
        let generated_ids = messages.iter().find(|message| matches!(message, Message::Generated(_))).map(ids);
        ((packings, names_unfit, sidecars), generated_ids.unwrap())
    };
    let (first, second) = (summary(&load_and_generate()), summary(&load_and_generate()));
    assert_eq!(first.0, (2, true, 1), "the first packing finds the unfit matrix, the second is without it");
    assert_eq!(second.0, (0, true, 0));
    assert_eq!(first.1, second.1);
    assert_eq!(std::fs::read_dir(home.path().join("packed")).unwrap().count(), 1);
    // Changed files invalidate the list of unfit matrices.
    let weights = std::fs::File::options().write(true).open(model.join("model.safetensors")).unwrap();
    weights.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(9)).unwrap();
    assert_eq!(summary(&load_and_generate()).0, (2, true, 1));
}

/// Makes a GGUF of zeros in Q5_0, by changing the type numbers of a GGUF in Q8_0. Quantization blocks of Q8_0 have more bytes,
/// so every tensor is within the file.
fn gguf_of_q5_0(folder: &Path) -> PathBuf {
    let (model, path) = (tiny_llama(folder, 64, 96), folder.join("model.gguf"));
    let goal = Goal { format: Format::Gguf, dtype: Dtype::Q8_0, out: path.clone() };
    model_files::convert(&ModelFolder::open(&model).unwrap(), &goal, &|_, _| Ok(())).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    for tensor in &ModelFolder::open(&path).unwrap().tensors {
        let name = tensor.name.as_bytes();
        let at = bytes.windows(name.len()).position(|window| window == name).unwrap() + name.len();
        // After the name: the number of dimensions, the dimensions, and the type (8 is Q8_0, 6 is Q5_0).
        let kind = at + 4 + 8 * usize::from(bytes[at]);
        if bytes[kind] == 8 {
            bytes[kind] = 6;
            bytes[tensor.offset as usize..][..tensor.bytes as usize].fill(0);
        }
    }
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_load_reports_the_f16_to_which_it_widens_q5_0() {
    let folder = tempfile::tempdir().unwrap();
    let model = gguf_of_q5_0(folder.path());
    assert_eq!(model_files::own_dtype(&ModelFolder::open(&model).unwrap()).unwrap(), Dtype::Q5_0);
    let answers = answers_to(&[&load_of(&model, None)]);
    assert_eq!(expect_loaded(&answers[0]).facts.weights_dtype.as_deref(), Some("f16"));
}

#[test]
fn every_level_of_this_machine_generates_the_same_ids_in_f32() {
    let expected =
        ids(&answers_to(&[&load(r#","dtype":"f32","options":{"kernels":"portable"}"#), IDS_REQUEST])[1]);
    for level in Level::available() {
        let options = format!(r#","dtype":"f32","options":{{"kernels":"{level}"}}"#);
        let answers = answers_to(&[&load(&options), IDS_REQUEST]);
        assert_eq!(expect_loaded(&answers[0]).facts.libraries["kernels"], level.to_string());
        assert_eq!(ids(&answers[1]), expected, "{level}");
    }
}

#[test]
fn prompt_lookup_on_request_generates_the_same_ids_and_counts_its_drafts() {
    let drafting = |request: &str| request.replacen('{', r#"{"speculation":"prompt_lookup","#, 1);
    let (recipe, from_ids) = (drafting(RECIPE_REQUEST), drafting(IDS_REQUEST));
    let sampled = drafting(&RECIPE_REQUEST.replacen('{', r#"{"sampling":{"temperature":1.0,"seed":7},"#, 1));
    let drafts = |message: &Message| {
        let sequence = &expect_generated(message).iterations[0].sequences[0];
        (sequence.drafted_tokens, sequence.accepted_tokens)
    };
    for dtype in ["f32", "bf16", "q8_0"] {
        let plain = answers_to(&[&load(&format!(r#","dtype":"{dtype}""#)), RECIPE_REQUEST, IDS_REQUEST]);
        assert_eq!(drafts(&plain[1]), (None, None));
        for lookup in [1, 4, 7] {
            let options = format!(r#","dtype":"{dtype}","options":{{"lookup":{lookup}}}"#);
            let answers = answers_to(&[&load(&options), &recipe, &from_ids, &sampled, RECIPE_REQUEST]);
            for (drafted, plain) in [(1, 1), (2, 2), (4, 1)].map(|(a, b)| (&answers[a], &plain[b])) {
                assert_eq!(ids(drafted), ids(plain), "{dtype} {lookup}");
            }
            // The recipe repeats itself. A sampled request has no drafts. A request without `speculation` has no counts.
            let (drafted, accepted) = drafts(&answers[1]);
            assert!(drafted >= accepted && accepted.unwrap() > 4, "{drafted:?} {accepted:?}");
            assert_eq!((drafts(&answers[3]), drafts(&answers[4])), ((Some(0), Some(0)), (None, None)));
        }
    }
}

#[test]
fn with_any_padding_a_batch_generates_the_ids_that_each_prompt_generates_alone() {
    let prompts = ["[0,88,13,396]", "[0,5,9,17,200,265,34,1000,7]", "[0]"];
    let single =
        |prompt: &&str| format!(r#"{{"prompt_ids":{prompt},"max_new_tokens":16,"ignore_eos":true}}"#);
    let batch = |padding: &str| {
        let prompts = prompts.join(",");
        format!(
            r#"{{"prompts_ids":[{prompts}],"max_new_tokens":16,"ignore_eos":true,"padding":"{padding}"}}"#
        )
    };
    let mut lines = vec![load(r#","dtype":"f32""#)];
    lines.extend(prompts.iter().map(single).chain(["left", "right", "packed"].map(batch)));
    let answers = answers_to(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let expected: Vec<_> = answers[1..4].iter().flat_map(ids).collect();
    assert!(answers[4..].iter().all(|answer| ids(answer) == expected));
}

/// Random ids unlike any text, so that no token is certain and any rounding shows.
fn random_ids(length: usize, seed: usize) -> Vec<usize> {
    (0..length).map(|at| (at * at * 31 + at * (7 + seed) + seed * 977) % 2000).collect()
}

#[test]
fn the_ids_of_a_request_do_not_depend_on_other_requests() {
    let lengths = [3, 9, 40, 300, 1, 8, 17, 262, 5, 70, 30, 12];
    let prompts: Vec<_> =
        lengths.iter().enumerate().map(|(seed, length)| random_ids(*length, seed)).collect();
    for dtype in ["bf16", "bf16z", "q8_0", "q4_0", "f32"] {
        let request_fields = json!({"max_new_tokens": 24, "ignore_eos": true});
        // Every fourth request samples. Requests with an id overlap.
        let samples = |index: usize| index % 4 == 3;
        let request_line = |index: usize, id: Option<usize>| {
            let mut request = request_fields.clone();
            request["prompt_ids"] = json!(prompts[index]);
            if let Some(id) = id {
                request["id"] = json!(id);
            }
            if samples(index) {
                request["sampling"] = json!({"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": index});
            }
            request.to_string()
        };
        let mut batch_request = request_fields.clone();
        batch_request["prompts_ids"] = json!(prompts);
        let mut lines = vec![load(&format!(r#","dtype":"{dtype}""#))];
        lines.extend((0..prompts.len()).map(|index| request_line(index, None)));
        lines.push(batch_request.to_string());
        lines.extend((0..prompts.len()).map(|index| request_line(index, Some(index))));
        let answers = answers_to(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        let single: Vec<_> = answers[1..=prompts.len()].iter().flat_map(ids).collect();
        let batch = ids(&answers[1 + prompts.len()]);
        for answer in &answers[2 + prompts.len()..] {
            let Some(Id::Number(index)) = expect_generated(answer).id else { panic!("{answer:?}") };
            assert_eq!(ids(answer), [single[index as usize].clone()], "{dtype}: request {index}");
        }
        for index in (0..prompts.len()).filter(|index| !samples(*index)) {
            assert_eq!(batch[index], single[index], "{dtype}: request {index}, in a batch");
        }
    }
}

/// Makes a model in which the embedding row of this id is NaN.
fn model_with_nan_embedding(id: usize, folder: &Path) -> PathBuf {
    let model = tiny_llama(folder, 64, 96);
    let opened = ModelFolder::open(&model).unwrap();
    let embedding = opened.tensors.iter().find(|tensor| tensor.name.contains("embed_tokens")).unwrap();
    let path = model.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let row_bytes = 2 * 64;
    bytes[embedding.offset as usize + id * row_bytes..][..row_bytes].fill(0xff);
    std::fs::write(&path, bytes).unwrap();
    model
}

#[test]
fn a_request_with_nan_logits_does_not_fail_other_requests() {
    let folder = tempfile::tempdir().unwrap();
    let nan_id = 319;
    let model = load_of(&model_with_nan_embedding(nan_id, folder.path()), None);
    let sampling = r#","sampling":{"temperature":1.0,"top_k":9,"seed":4}"#;
    let request = |id: usize, (length, last, sampling): (usize, usize, &str)| {
        let ids: Vec<usize> = (0..length).map(|at| (at * 7 + last) % 300).chain([last]).collect();
        format!(r#"{{"id":{id},"prompt_ids":{ids:?},"max_new_tokens":12,"ignore_eos":true{sampling}}}"#)
    };
    let good = [(2, 8, ""), (30, 9, sampling), (300, 10, ""), (0, 11, "")];
    let bad = [(3, nan_id, ""), (20, nan_id, sampling)];
    let single = |id: usize| ids(&answers_to(&[&model, &request(id, good[id])])[1]);
    let single: Vec<_> = (0..good.len()).map(single).collect();
    let requests = |first: usize| (0..good.len()).map(move |id| request(first + id, good[id]));
    let mut lines: Vec<String> = [model.clone()].into_iter().chain(requests(0)).collect();
    lines.insert(2, request(91, bad[0]));
    lines.insert(4, request(92, bad[1]));
    // Requests 10 to 13 and 20 to 23 repeat requests 0 to 3, and reuse the memory of the failed ones.
    lines.extend(requests(10).chain(requests(20)));
    let answers = answers_to(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let mut failed = Vec::new();
    for answer in &answers[1..] {
        match answer {
            Message::Failed(answer) => {
                assert_eq!(answer.kind, FailureKind::Model, "{answer:?}");
                failed.push(answer.id.clone().unwrap());
            }
            answer => {
                let Some(Id::Number(id)) = expect_generated(answer).id else { panic!("{answer:?}") };
                assert_eq!(ids(answer), single[id as usize % 10], "request {id}, beside failing requests");
            }
        }
    }
    failed.sort_by_key(|id| format!("{id:?}"));
    assert_eq!((failed, answers.len()), (vec![Id::Number(91), Id::Number(92)], lines.len()));
}

#[test]
fn scores_agree_with_generation() {
    let score = |ids: &[u32]| format!(r#"{{"type":"score","sequences":[{ids:?}]}}"#);
    let prompt = [0, 88, 13, 396, 1670, 800, 347];
    let answers = answers_to(&[&load(r#","dtype":"f32""#), IDS_REQUEST]);
    let text = [prompt.as_slice(), &ids(&answers[1])[0]].concat();
    let answers = answers_to(&[&load(r#","dtype":"f32""#), &score(&text)]);
    let logprobs = &expect_scored(&answers[1]).logprobs[0];
    assert_eq!(logprobs.len(), text.len() - 1);
    // Each of the 24 ids was the likeliest of 2,048.
    assert!(logprobs[prompt.len() - 1..].iter().all(|logprob| logprob.unwrap() > -(2048_f64).ln()));
}

#[test]
fn packed_weights_are_cached_reused_and_replaced_when_damaged() {
    let home = tempfile::tempdir().unwrap();
    let lines = [load(r#","dtype":"q8_0","options":{"sidecar":true}"#), IDS_REQUEST.to_string()];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let writes_sidecar = |message: &Message| {
        expect_loaded(message).phases.iter().filter(|phase| phase.name == "sidecar").count() == 1
    };
    let first = answers_with_home(Some(home.path()), &lines);
    let second = answers_with_home(Some(home.path()), &lines);
    assert_eq!((writes_sidecar(&first[0]), writes_sidecar(&second[0])), (true, false), "written once");
    assert_eq!(ids(&second[1]), ids(&first[1]));
    let packed = std::fs::read_dir(home.path().join("packed")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&packed).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&packed, bytes).unwrap();
    let third = answers_with_home(Some(home.path()), &lines);
    assert!(writes_sidecar(&third[0]), "written again");
    assert_eq!(ids(&third[1]), ids(&first[1]));
}

#[test]
fn loads_with_unknown_options_dtypes_devices_or_models_are_refused() {
    let unknown = failure(&[&load(r#","options":{"kernels":"mmx"}"#)]);
    assert!(unknown.message.contains("`mmx`") && unknown.hint.unwrap().contains("`portable`"));
    let failed = failure(&[&load(r#","options":{"speed":9}"#)]);
    assert_eq!((failed.kind, failed.message.as_str()), (FailureKind::BadRequest, "unknown option `speed`"));
    assert_eq!(failure(&[&load(r#","dtype":"q2_k""#)]).kind, FailureKind::Unsupported);
    assert_eq!(failure(&[&load(r#","device":"tpu""#)]).kind, FailureKind::Unsupported);
    assert_eq!(failure(&[r#"{"type":"load","model":"/nowhere"}"#]).kind, FailureKind::Model);
}

#[test]
#[cfg(target_os = "linux")]
fn without_a_gpu_the_device_cuda_is_unavailable_and_the_cpu_still_works() {
    let lines = [load(r#","device":"cuda""#), load(""), IDS_REQUEST.into()];
    let answers = answers_to(&lines.each_ref().map(String::as_str));
    let Message::Failed(failed) = &answers[0] else { panic!("not failed: {:?}", answers[0]) };
    // Without a driver, the message names its library. With a driver, `CUDA_VISIBLE_DEVICES` hides all GPUs.
    assert_eq!(failed.kind, FailureKind::Unavailable, "{failed:?}");
    assert!(failed.hint.as_ref().is_some_and(|hint| hint.contains("nvidia-smi")), "{failed:?}");
    assert_eq!(expect_loaded(&answers[1]).facts.device.as_deref(), Some("cpu"));
    assert_eq!(ids(&answers[2])[0].len(), 24);
}

#[test]
#[cfg(target_os = "linux")]
fn a_load_that_only_the_cpu_computes_is_refused_on_a_gpu_by_name() {
    let refused = failure(&[&load(r#","device":"cuda","dtype":"q8_0""#)]);
    assert_eq!(refused.kind, FailureKind::Unsupported);
    assert_eq!(refused.message, "lmrs computes q8_0 weights only on a CPU");
    assert_eq!(refused.hint.as_deref(), Some("--dtype bf16, or --device cpu"));
    let refused = failure(&[&load(r#","device":"cuda","options":{"pin":false}"#)]);
    assert_eq!(refused.kind, FailureKind::Unsupported);
    assert_eq!(refused.message, "option `pin`: only the device `cpu` has it");
}
