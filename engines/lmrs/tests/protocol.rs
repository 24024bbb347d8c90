//! The program itself, through its pipes, with the embedded model.
#![expect(clippy::unwrap_used, reason = "tests panic")]

use std::path::{Path, PathBuf};

use engine_kit::protocol::{Failed, FailureKind, Generated, Id, Loaded, Message, Scored, parse_message};
use lmrs::kernels::Level;
use lmrs::kernels::rows::has_pairs;
use model_files::{Dtype, Format, Goal, ModelFolder};
use serde_json::{Value, json};

/// The answers to these lines, without progress and hello.
fn answers_with_home(home: Option<&Path>, lines: &[&str]) -> Vec<Message> {
    let mut command = duct::cmd!(env!("CARGO_BIN_EXE_lmrs")).stdin_bytes(lines.join("\n"));
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
    let has_bf16_products = has_pairs(Level::best());
    let bf16 = if has_bf16_products { "bf16" } else { "f32" };
    let cases = [
        ("bf16", 16, bf16, "f16"),
        ("f32", 32, "f32", "f32"),
        ("bf16z", 12, bf16, "f16"),
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
        assert!(facts.libraries.contains_key("kernels") && !facts.libraries.contains_key("prompt-lookup"));
    }
}

/// A tiny llama in bf16, with this hidden size and this feed-forward size.
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

fn load_of(model: &Path, dtype: Option<&str>) -> String {
    json!({"type": "load", "model": model, "threads": 1, "dtype": dtype}).to_string()
}

#[test]
fn weights_in_f32_have_keys_and_values_in_f32_by_request_or_by_file() {
    let folder = tempfile::tempdir().unwrap();
    let narrow = tiny_llama(folder.path(), 64, 96);
    let wide = folder.path().join("f32");
    let goal = Goal { format: Format::Safetensors, dtype: Dtype::F32, out: wide.clone() };
    model_files::convert(&ModelFolder::open(&narrow).unwrap(), &goal, &|_, _| Ok(())).unwrap();
    for (model, dtype, kv) in [
        (&wide, None, "f32"),
        (&wide, Some("f32"), "f32"),
        (&wide, Some("bf16"), "f16"),
        (&narrow, None, "f16"),
        (&narrow, Some("f32"), "f32"),
    ] {
        let answers = answers_to(&[&load_of(model, dtype)]);
        let facts = &expect_loaded(&answers[0]).facts;
        assert_eq!(facts.kv_dtype.as_deref(), Some(kv), "{} as {dtype:?}", model.display());
    }
}

#[test]
fn a_load_reports_the_format_of_most_of_its_weights() {
    let folder = tempfile::tempdir().unwrap();
    // Rows have 48 or 64 numbers. Only rows of 64 divide into blocks, and they are the minority.
    let model = tiny_llama(folder.path(), 48, 64);
    let answers = answers_to(&[&load_of(&model, Some("q8_0"))]);
    let facts = &expect_loaded(&answers[0]).facts;
    assert_eq!(facts.weights_dtype.as_deref(), Some("bf16"));
    assert_eq!(facts.compute_dtype.as_deref(), Some("q8_0"), "some matrices are in q8_0");
}

#[test]
fn block_formats_that_fit_no_matrix_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_llama(folder.path(), 48, 80);
    for dtype in ["q8_0", "q4_0"] {
        let failed = failure(&[&load_of(&model, Some(dtype))]);
        assert_eq!(failed.kind, FailureKind::Unsupported, "{failed:?}");
        assert!(failed.message.contains("48, 48 and 80 numbers"), "{failed:?}");
        assert!(failed.hint.unwrap().contains("`dtype`"));
    }
    assert_eq!(
        expect_loaded(&answers_to(&[&load_of(&model, None)])[0]).facts.weights_dtype.as_deref(),
        Some("bf16")
    );
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
    let [(plain, ..), (packed, ..)] = results;
    // A row of 256 numbers has 8 lines in bf16; packed, one line of heads and six of numbers. Longer rows approach 0.76.
    assert!((0.84..0.88).contains(&(packed / plain)), "{packed} of {plain}");
    let [(_, recipe, prompt, scores), (_, same_recipe, same_prompt, same_scores)] = results;
    assert_eq!((recipe, prompt, scores), (same_recipe, same_prompt, same_scores));
}

/// A tiny llama with one matrix, `blk.0.ffn_up.weight`, whose first row has too many exponents for bf16z.
fn llama_with_an_unfit_matrix(folder: &Path) -> PathBuf {
    let model = tiny_llama(folder, 128, 256);
    let path = model.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let name = "model.layers.0.mlp.up_proj.weight";
    let offset = tensors[name]["data_offsets"][0].as_u64().unwrap() as usize;
    // The first row has 128 numbers with 64 exponents.
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

/// Packing reports progress up to 1.0; mapping a sidecar reports none.
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
    // The number of full packings, whether the load names the matrix, whether it writes a sidecar, and the ids.
    let summary = |messages: &[Message]| {
        let progress =
            || messages.iter().filter_map(|m| if let Message::Progress(p) = m { Some(p) } else { None });
        let packings = progress()
            .filter(|progress| progress.phase == "weights" && progress.fraction == Some(1.0))
            .count();
        let note = |note: &String| note.contains("blk.0.ffn_up.weight stays in bf16");
        let named = progress().any(|progress| progress.note.as_ref().is_some_and(note));
        let written =
            messages.iter().filter(|message| matches!(message, Message::Loaded(_))).map(expect_loaded);
        let written =
            written.flat_map(|loaded| &loaded.phases).filter(|phase| phase.name == "sidecar").count();
        let generated_ids = messages.iter().find(|message| matches!(message, Message::Generated(_))).map(ids);
        ((packings, named, written), generated_ids.unwrap())
    };
    let (first, second) = (summary(&load_and_generate()), summary(&load_and_generate()));
    assert_eq!(first.0, (2, true, 1), "the first load finds unfit matrices by packing, once");
    assert_eq!(second.0, (0, true, 0));
    assert_eq!(first.1, second.1);
    assert_eq!(std::fs::read_dir(home.path().join("packed")).unwrap().count(), 1);
    // Changed files invalidate the list of unfit matrices.
    let weights = std::fs::File::options().write(true).open(model.join("model.safetensors")).unwrap();
    weights.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(9)).unwrap();
    assert_eq!(summary(&load_and_generate()).0, (2, true, 1));
}

/// A GGUF of zeros in Q8_0 with the type number of Q5_0, whose blocks are smaller, so that every tensor is within the file.
fn gguf_of_q5_0(folder: &Path) -> PathBuf {
    let (model, path) = (tiny_llama(folder, 64, 96), folder.join("model.gguf"));
    let goal = Goal { format: Format::Gguf, dtype: Dtype::Q8_0, out: path.clone() };
    model_files::convert(&ModelFolder::open(&model).unwrap(), &goal, &|_, _| Ok(())).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    for tensor in &ModelFolder::open(&path).unwrap().tensors {
        let name = tensor.name.as_bytes();
        let at = bytes.windows(name.len()).position(|window| window == name).unwrap() + name.len();
        // After the name: the number of dimensions, the dimensions, and the type.
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
fn widened_blocks_are_reported_in_their_new_format() {
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
fn prompt_lookup_generates_the_same_ids_and_is_reported() {
    for dtype in ["f32", "bf16", "q8_0"] {
        let plain = answers_to(&[&load(&format!(r#","dtype":"{dtype}""#)), RECIPE_REQUEST, IDS_REQUEST]);
        for lookup in [1, 4, 7] {
            let options = format!(r#","dtype":"{dtype}","options":{{"lookup":{lookup}}}"#);
            let answers = answers_to(&[&load(&options), RECIPE_REQUEST, IDS_REQUEST]);
            let reported = &expect_loaded(&answers[0]).facts.libraries["prompt-lookup"];
            assert_eq!(*reported, format!("up to {lookup} drafted tokens"));
            assert_eq!(
                (ids(&answers[1]), ids(&answers[2])),
                (ids(&plain[1]), ids(&plain[2])),
                "{dtype} {lookup}"
            );
        }
    }
}

#[test]
fn a_batch_generates_the_ids_of_each_prompt_alone_with_any_padding() {
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
        let request_line = |index: usize, with_id: bool| {
            let mut request = request_fields.clone();
            request["prompt_ids"] = json!(prompts[index]);
            if with_id {
                request["id"] = json!(index);
            }
            if index % 4 == 3 {
                request["sampling"] = json!({"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": index});
            }
            request.to_string()
        };
        let mut batch_request = request_fields.clone();
        batch_request["prompts_ids"] = json!(prompts);
        let mut lines = vec![load(&format!(r#","dtype":"{dtype}""#))];
        lines.extend((0..prompts.len()).map(|index| request_line(index, false)));
        lines.push(batch_request.to_string());
        lines.extend((0..prompts.len()).map(|index| request_line(index, true)));
        let answers = answers_to(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        let single: Vec<_> = answers[1..=prompts.len()].iter().flat_map(ids).collect();
        let batch = ids(&answers[1 + prompts.len()]);
        for answer in &answers[2 + prompts.len()..] {
            let Some(Id::Number(index)) = expect_generated(answer).id else { panic!("{answer:?}") };
            assert_eq!(ids(answer), [single[index as usize].clone()], "{dtype}: {index} overlapping");
        }
        for index in (0..prompts.len()).filter(|index| index % 4 != 3) {
            assert_eq!(batch[index], single[index], "{dtype}: {index} in a batch");
        }
    }
}

/// A model whose embedding row of this id is NaN.
fn model_with_nan_embedding(id: usize, folder: &Path) -> PathBuf {
    let model = tiny_llama(folder, 64, 96);
    let opened = ModelFolder::open(&model).unwrap();
    let embedding = opened.tensors.iter().find(|tensor| tensor.name.contains("embed_tokens")).unwrap();
    let path = model.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let row = &mut bytes[embedding.offset as usize + id * 128..][..128];
    row.fill(0xff);
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
    // Later requests reuse the memory of the failed ones.
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
                assert_eq!(ids(answer), single[id as usize % 10], "{id} with failing requests");
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
fn impossible_requests_are_refused_by_name() {
    let unknown = failure(&[&load(r#","options":{"kernels":"mmx"}"#)]);
    assert!(unknown.message.contains("`mmx`") && unknown.hint.unwrap().contains("`portable`"));
    let failed = failure(&[&load(r#","options":{"speed":9}"#)]);
    assert_eq!((failed.kind, failed.message.as_str()), (FailureKind::BadRequest, "unknown option `speed`"));
    assert_eq!(failure(&[&load(r#","dtype":"q2_k""#)]).kind, FailureKind::Unsupported);
    assert_eq!(failure(&[&load(r#","device":"cuda""#)]).kind, FailureKind::Unsupported);
    assert_eq!(failure(&[r#"{"type":"load","model":"/nowhere"}"#]).kind, FailureKind::Model);
}
