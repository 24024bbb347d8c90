//! Tests of every engine in the tree that computes on the CPU, with a small model of every architecture, in every format that
//! the engine reads. An engine must load the models that it claims, and all engines must compute the same.
//!
//! Engines are the folders with a manifest, their claims are in their `hello`, and shapes and architectures are tables of
//! `model-files`. A new engine or shape `tiny-*` gets all these tests, and no engine is named here.

use std::path::{Path, PathBuf};

use model_files::{
    ARCHITECTURES, Architecture, Dtype, Format, Goal, ModelFolder, SHAPES, Shape, Tokenizer, convert,
    embedded, synthesise,
};
use protocol::{Failed, FailureKind, Generate};

use crate::engine::{
    Difference, Engine, QUANTIZED, assert_agree, float_bounds, least_precise, slot, with_user_setup,
};
use crate::support::record::Record;
use crate::support::{Scratch, finish, root};

// The same computation.

#[test]
fn every_architecture_has_a_tiny_shape_and_an_engine_that_claims_it() {
    let _slot = slot();
    let engines = Engine::start_all();
    for name in ARCHITECTURES.iter().map(|architecture| architecture.name) {
        assert!(
            tiny_shapes().iter().any(|shape| architecture_of(shape).name == name),
            "no shape `tiny-*` has the architecture `{name}`"
        );
        assert!(engines.iter().any(|engine| engine.claims(name)), "no engine claims `{name}`");
    }
}

#[test]
fn engines_that_claim_an_architecture_agree_on_it_in_log_probability_and_greedy_ids() {
    let _slot = slot();
    let (mut engines, scratch) = (Engine::start_all(), Scratch::new());
    engines.retain(|engine| engine.reads(Format::Safetensors));
    for shape in tiny_shapes() {
        let model = TinyModel::of(&shape, &scratch);
        let (ids, safetensors) = (model.ids(200), model.safetensors("f32"));
        let architecture = architecture_of(&shape).name;
        let mut claiming: Vec<_> = engines.iter_mut().filter(|engine| engine.claims(architecture)).collect();
        claiming.retain_mut(|engine| {
            let context = format!("{} claims the architecture of {}", engine.name, shape.name);
            match engine.load(&safetensors, Some("f32")) {
                Ok(loaded) => assert_eq!(loaded.facts.compute_dtype.as_deref(), Some("f32"), "{context}"),
                Err(refused) => {
                    assert_names_what_is_unsupported(&refused, architecture, &context);
                    return false;
                }
            }
            true
        });
        let Some((first, others)) = claiming.split_first_mut() else { continue };
        assert!(
            first.scores() && first.uses_ids(),
            "{} must score and use ids, because the other engines are compared with it",
            first.name
        );
        let (expected, expected_ids) = (first.score(&ids), first.generate(&ids[..100]));
        assert_varied(&expected_ids, &shape);
        for engine in others {
            let context = format!("{} and {} on {}", first.name, engine.name, shape.name);
            if engine.scores() {
                assert_agree(&expected, &engine.score(&ids), float_bounds("f32"), &context);
            }
            if engine.uses_ids() {
                let ids_of_other = engine.generate(&ids[..100]);
                let position = (0..expected_ids.len())
                    .find(|&position| expected_ids[position] != ids_of_other[position]);
                let difference = position.map(|position| {
                    let after = [&ids[..100], &expected_ids[..position]].concat();
                    let difference =
                        first.logprob_difference(&after, expected_ids[position], ids_of_other[position]);
                    (position, difference)
                });
                assert_eq!(
                    difference, None,
                    "{context}: the first position with different ids, and the difference of their log-probabilities"
                );
            }
        }
    }
}

#[test]
fn a_gguf_gives_the_reference_output_for_the_same_weights() {
    let _slot = slot();
    let (mut engines, scratch) = (Engine::start_all(), Scratch::new());
    let (mut reference, mut engines) = (engines.remove(0), engines);
    // An engine that lists no architectures has a test of its own, which compares it with its library.
    let lists_architectures = |engine: &Engine| !engine.hello.capabilities.architectures.is_empty();
    engines.retain(|it| it.reads(Format::Gguf) && it.scores() && it.uses_ids() && lists_architectures(it));
    let mut computed = vec![0; engines.len()];
    for shape in &tiny_shapes() {
        if !reference.claims(architecture_of(shape).name) {
            continue;
        }
        let (model, architecture) = (TinyModel::of(shape, &scratch), architecture_of(shape).gguf);
        let ids = model.ids(200);
        for dtype in ["f32", "bf16", "q8_0", "q4_0", "q4_k"] {
            let is_float = Dtype::named(dtype).unwrap().is_float();
            let reference_model = if is_float { model.safetensors(dtype) } else { model.as_f32(dtype) };
            reference.load(&reference_model, Some("f32")).unwrap();
            let expected = reference.score(&ids);
            for (engine, computed) in engines.iter_mut().zip(&mut computed) {
                let context = format!("{} on {} in {dtype}", engine.name, shape.name);
                if !engine.claims(architecture) {
                    continue;
                }
                let loaded = match engine.load(&model.gguf(dtype), None) {
                    Ok(loaded) => loaded,
                    Err(refused) => {
                        assert_names_what_is_unsupported(&refused, architecture, &context);
                        continue;
                    }
                };
                let bounds = if is_float { float_bounds(least_precise(&loaded.facts)) } else { QUANTIZED };
                let logprobs = engine.score(&ids);
                if loaded.reports_different_outputs() {
                    // The engine reported different outputs, so the results for float weights must differ.
                    let difference = Difference::of(&expected, &logprobs);
                    assert!(!is_float || !difference.is_within(bounds), "{context}: {difference:?}");
                    continue;
                }
                assert_agree(&expected, &logprobs, bounds, &context);
                // An engine may compute a whole prompt and a single token with different kernels.
                for prompt in [&ids[..20], &ids[..100], &ids] {
                    let [likeliest, chosen] =
                        [&mut reference, &mut *engine].map(|engine| engine.next_token(prompt));
                    let difference = reference.logprob_difference(prompt, likeliest, chosen);
                    // Each of the two log-probabilities may differ by the bound.
                    assert!(
                        difference <= 2.0 * bounds.max,
                        "{context}: after {} ids, the log-probability of the engine's token is lower by {difference}",
                        prompt.len()
                    );
                }
                *computed += 1;
            }
        }
    }
    for (engine, computed) in engines.iter().zip(computed) {
        assert!(computed > 0, "{} computed no GGUF model of this test", engine.name);
    }
}

#[test]
fn an_engine_in_bf16_or_f16_scores_close_to_f32() {
    let _slot = slot();
    let (mut engines, scratch) = (Engine::start_all(), Scratch::new());
    engines.retain(|engine| engine.reads(Format::Safetensors) && engine.scores());
    for shape in tiny_shapes() {
        let (model, architecture) = (TinyModel::of(&shape, &scratch), architecture_of(&shape).name);
        let ids = model.ids(200);
        for engine in engines.iter_mut().filter(|engine| engine.claims(architecture)) {
            let dtypes = engine.hello.capabilities.dtypes.clone();
            for dtype in ["bf16", "f16"].into_iter().filter(|it| dtypes.iter().any(|dtype| dtype == it)) {
                let context = format!("{} on {} in {dtype}", engine.name, shape.name);
                if let Err(refused) = engine.load(&model.safetensors("f32"), Some("f32")) {
                    assert_names_what_is_unsupported(&refused, architecture, &context);
                    continue;
                }
                let expected = engine.score(&ids);
                let loaded = match engine.load(&model.safetensors(dtype), Some(dtype)) {
                    Ok(loaded) => loaded,
                    Err(refused) => {
                        assert_names_what_is_unsupported(&refused, architecture, &context);
                        continue;
                    }
                };
                assert_eq!(loaded.facts.weights_dtype.as_deref(), Some(dtype), "{context}");
                assert_agree(&expected, &engine.score(&ids), float_bounds(dtype), &context);
            }
        }
    }
}

// The same text.

#[test]
fn every_engine_gives_a_text_the_same_ids_in_both_formats() {
    let _slot = slot();
    let (mut engines, scratch) = (Engine::start_all(), Scratch::new());
    engines.retain(Engine::uses_ids);
    let short = || Generate { max_new_tokens: 4, ignore_eos: true, ..Generate::default() };
    for shape in tiny_shapes() {
        let (model, architecture) = (TinyModel::of(&shape, &scratch), architecture_of(&shape));
        let tokenizer = model.tokenizer();
        let special = shape.tokenizer.specials.last().map_or("", |special| &special.content);
        let special = format!("before {special} after");
        let models = [
            (Format::Safetensors, architecture.name, model.safetensors("f32")),
            (Format::Gguf, architecture.gguf, model.gguf("f32")),
        ];
        for (format, name, path) in models {
            for engine in engines.iter_mut().filter(|engine| engine.reads(format) && engine.claims(name)) {
                let context = format!("{} on {} in {}", engine.name, shape.name, format.as_str());
                if let Err(refused) = engine.load(&path, None) {
                    assert_names_what_is_unsupported(&refused, name, &context);
                    continue;
                }
                for text in TEXTS.into_iter().chain([special.as_str()]) {
                    let ids = tokenizer.encode(text).unwrap();
                    let by_text =
                        engine.prompt_tokens_and_ids(Generate { prompt: Some(text.into()), ..short() });
                    let by_ids = engine.prompt_tokens_and_ids(Generate { prompt_ids: Some(ids), ..short() });
                    assert_eq!(by_text, by_ids, "{context}: {text:?}");
                }
            }
        }
    }
}

const TEXTS: [&str; 7] = [
    "Hello",
    "The old  keeper; naïve, 47 times.\n",
    "   before, after   ",
    "tabs\tand\r\n\n\nlines",
    "1234567890 12 345",
    "they'LL say it's DON'T",
    "日本語 und Ωmega, e\u{301} 🙂",
];

// Measurement on one model.

#[test]
fn a_model_is_converted_for_an_engine_and_the_record_has_the_conversion() {
    let _slot = slot();
    let scratch = Scratch::new();
    let shapes = tiny_shapes();
    let (model, engines) = model_of_most_engines(&shapes, &scratch);
    let home = home_without_conversions(&scratch);
    let mut is_read_directly = Vec::new();
    for (format, path) in
        [(Format::Gguf, model.gguf("bf16")), (Format::Safetensors, model.safetensors("bf16"))]
    {
        let results = scratch.join(format.as_str());
        let mut command = with_user_setup(scratch.orchestrate());
        command.env("ORCHESTRATE_HOME", &home).current_dir(root());
        command.arg("-m").arg(&path).arg("--results").arg(&results);
        command.args([
            "-s",
            "ttft",
            "--prompt-tokens",
            "16,128,512",
            "--no-setup",
            "--blocks",
            "1",
            "--iterations",
            "2",
            "--threads",
            "1",
        ]);
        command.args(engines.iter().flat_map(|engine| ["-e", &engine.name]));
        let outcome = finish(&mut command).exits_with(0);
        let record = Record::only_one_in(&results);
        for Engine { name, hello, .. } in &engines {
            let context = format!("{name} on {}", path.display());
            assert!(outcome.stdout.lines().any(|line| line.contains(name)), "{context}:\n{}", outcome.stdout);
            assert_eq!(record.failures_of(name), Vec::<&serde_json::Value>::new(), "{context}");
            // Two samples of each of three prompt lengths.
            assert_eq!(record.samples_of(name).len(), 6, "{context}");
            let [launch] = record.launches_of(name)[..] else { panic!("{context}: not one launch") };
            let reads = hello.capabilities.formats.iter().any(|it| it == format.as_str());
            match launch.get("converted") {
                None => assert!(reads, "{context}: {launch}"),
                Some(converted) => {
                    assert!(!reads, "{context}: {launch}");
                    // The conversion keeps the dtype, so it rounds no weight.
                    assert_eq!(converted["dtype"], "bf16", "{context}");
                    let path = Path::new(converted["path"].as_str().unwrap());
                    assert!(path.starts_with(&home), "{context}: {}", path.display());
                }
            }
            is_read_directly.push(reads);
        }
    }
    assert!(
        is_read_directly.contains(&true) && is_read_directly.contains(&false),
        "some engines must need a conversion and some must not: {is_read_directly:?}"
    );
}

/// The model that the largest number of engines can load, and those engines. An engine that reads GGUF must load the GGUF file
/// without different outputs.
fn model_of_most_engines<'a>(shapes: &'a [Shape], scratch: &Scratch) -> (TinyModel<'a>, Vec<Engine>) {
    let mut engines = Engine::start_all();
    let loads = |engine: &mut Engine, shape: &Shape, model: &TinyModel| {
        engine.claims(architecture_of(shape).name)
            && match engine.reads(Format::Gguf) {
                true => {
                    engine.load(&model.gguf("bf16"), None).is_ok_and(|it| !it.reports_different_outputs())
                }
                false => engine.load(&model.safetensors("bf16"), None).is_ok(),
            }
    };
    let mut most = (0, &shapes[0]);
    for shape in shapes {
        let model = TinyModel::of(shape, scratch);
        let loading = engines.iter_mut().filter_map(|engine| loads(engine, shape, &model).then_some(()));
        most = std::cmp::max_by_key(most, (loading.count(), shape), |(count, _)| *count);
    }
    let model = TinyModel::of(most.1, scratch);
    engines.retain_mut(|engine| loads(engine, most.1, &model));
    (model, engines)
}

/// A data directory with the user's set-up and without the cache of conversions.
fn home_without_conversions(scratch: &Scratch) -> PathBuf {
    let home = scratch.join("own-home");
    std::fs::create_dir_all(&home).unwrap();
    for entry in std::fs::read_dir(paths::data_dir().unwrap()).unwrap().flatten() {
        if entry.file_name() != "conversions" {
            std::os::unix::fs::symlink(entry.path(), home.join(entry.file_name())).unwrap();
        }
    }
    home
}

/// Checks a refusal. An engine may lack a part of an architecture that it lists; then its error must name the
/// architecture, and its hint must say what can be loaded.
#[track_caller]
fn assert_names_what_is_unsupported(refused: &Failed, architecture: &str, context: &str) {
    assert_eq!(refused.kind, FailureKind::Unsupported, "{context}: {refused:?}");
    assert!(refused.message.contains(architecture), "{context}: {refused:?}");
    // The hint is the option itself, or a sentence.
    let names_what_loads = |hint: &String| hint.starts_with("--dtype ") || hint.contains("load");
    assert!(refused.hint.as_ref().is_some_and(names_what_loads), "{context}: {refused:?}");
}

/// Checks that the output is not almost constant, because constant outputs agree too easily.
#[track_caller]
fn assert_varied(ids: &[u32], shape: &Shape) {
    let mut distinct = ids.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() >= 10, "{}: {} distinct ids: {ids:?}", shape.name, distinct.len());
}

// The small shapes of `model-files` in the formats that engines read.

/// All shapes that are small enough for a test.
fn tiny_shapes() -> Vec<Shape> {
    let names = SHAPES.iter().map(|(name, _)| *name).filter(|name| name.starts_with("tiny-"));
    names.map(|name| Shape::named(name).unwrap()).collect()
}

fn architecture_of(shape: &Shape) -> &'static Architecture {
    let name = shape.config["model_type"].as_str().unwrap();
    Architecture::named(name).unwrap_or_else(|| panic!("{}: no architecture `{name}`", shape.name))
}

/// A shape's model on disk. Each format is made at its first use.
struct TinyModel<'a> {
    shape: &'a Shape,
    folder: PathBuf,
}

impl<'a> TinyModel<'a> {
    fn of(shape: &'a Shape, scratch: &Scratch) -> Self {
        Self { shape, folder: scratch.join("models").join(&shape.name) }
    }

    /// A folder with synthesised weights in safetensors.
    fn safetensors(&self, dtype: &str) -> PathBuf {
        let goal = self.goal(Format::Safetensors, dtype, &format!("safetensors-{dtype}"));
        if !goal.out.exists() {
            synthesise(self.shape, SEED, &goal, &|_, _| Ok(())).unwrap();
        }
        goal.out
    }

    /// A converted GGUF file, without a `tokenizer.json` next to it.
    fn gguf(&self, dtype: &str) -> PathBuf {
        let from = if dtype == "bf16" { dtype } else { "f32" };
        let goal = self.goal(Format::Gguf, dtype, &format!("{dtype}.gguf"));
        converted(&self.safetensors(from), goal)
    }

    /// The weights of the GGUF file of this dtype, in safetensors as f32.
    fn as_f32(&self, dtype: &str) -> PathBuf {
        let goal = self.goal(Format::Safetensors, "f32", &format!("as-f32-{dtype}"));
        converted(&self.gguf(dtype), goal)
    }

    fn tokenizer(&self) -> Tokenizer {
        ModelFolder::open(self.safetensors("f32")).unwrap().tokenizer().unwrap()
    }

    /// The first `count` token ids of the held-out text.
    fn ids(&self, count: usize) -> Vec<u32> {
        let text = embedded::heldout_text().unwrap();
        // 40 characters for each id are more than enough.
        let start: String = text.chars().take(40 * count).collect();
        let mut ids = self.tokenizer().encode(&start).unwrap();
        assert!(ids.len() >= count);
        ids.truncate(count);
        ids
    }

    fn goal(&self, format: Format, dtype: &str, name: &str) -> Goal {
        Goal { format, dtype: Dtype::named(dtype).unwrap(), out: self.folder.join(name) }
    }
}

/// Converts the model unless the output exists, and returns the output's path.
fn converted(from: &Path, goal: Goal) -> PathBuf {
    if !goal.out.exists() {
        convert(&ModelFolder::open(from).unwrap(), &goal, &|_, _| Ok(())).unwrap();
    }
    goal.out
}

const SEED: u64 = 0;
