//! Tests the conversion of every field of config.json that the library transformers reads: GGUF carries the field, or a
//! conversion with another value is refused, or the field does not change the result.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{TensorSpec, rope};
use crate::convert::{Content, metadata};
use crate::gguf::ValueToWrite;
use crate::{Architecture, Config, Dtype, SHAPES};

use Outcome::{Carried, NoEffect, Refused};

/// The effect of another value of a field on a conversion.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Outcome {
    /// The GGUF file differs.
    Carried,
    /// The conversion fails, and the error has these words.
    Refused(&'static str),
    /// The GGUF file is the same, because the value changes no logits. The text says why.
    NoEffect(&'static str),
}

/// Another value for a field.
#[derive(Debug, Clone, Copy)]
enum Other {
    /// In JSON.
    Json(&'static str),
    /// Twice the number.
    Double,
    /// The opposite: false if the value is true, true if it is false.
    Opposite,
}

use Other::{Double, Json, Opposite};

const TRAINING: &str = "training alone uses it";
const TASK: &str = "other tasks than text generation use it";
const ANSWER: &str = "it selects what a call of the library returns, not the logits";
const KERNEL: &str = "it selects a kernel, not the numbers";
const STORAGE: &str = "tensors have their dtype in the weight file";
const NAME: &str = "a name";
const LEARNED: &str = "positions are learned";

/// Each field, for all architectures (an empty name) or for one, whose entry takes precedence.
const FIELDS: &[(&str, &str, Other, Outcome)] = &[
    ("activation_function", "", Json("\"relu\""), Refused("`activation_function`")),
    ("add_cross_attention", "", Json("true"), Refused("`add_cross_attention`")),
    ("architectures", "", Json("[\"Another\"]"), NoEffect(NAME)),
    ("attention_bias", "", Json("true"), Refused("`attention_bias`")),
    ("attention_bias", "llama", Json("true"), Carried),
    ("attention_chunk_size", "", Json("8"), Refused("`attention_chunk_size`")),
    ("attention_dropout", "", Json("0.5"), NoEffect(TRAINING)),
    ("attn_implementation", "", Json("\"eager\""), NoEffect(KERNEL)),
    ("attn_pdrop", "", Json("0.5"), NoEffect(TRAINING)),
    ("bos_token_id", "", Json("7"), Carried),
    ("chunk_size_feed_forward", "", Json("4"), NoEffect(KERNEL)),
    ("dtype", "", Json("\"float64\""), NoEffect(STORAGE)),
    ("embd_pdrop", "", Json("0.5"), NoEffect(TRAINING)),
    ("eos_token_id", "", Json("[7, 8, 9]"), Carried),
    ("experts_implementation", "", Json("\"eager\""), NoEffect(KERNEL)),
    ("head_dim", "", Json("32"), Carried),
    ("head_dim", "phi3", Json("32"), Refused("`head_dim`")),
    ("hidden_act", "", Json("\"relu\""), Refused("`hidden_act`")),
    ("hidden_size", "", Double, Carried),
    ("hidden_size", "gpt2", Json("512"), Carried),
    ("id2label", "", Json("{\"0\": \"a\"}"), NoEffect(TASK)),
    ("initializer_range", "", Json("0.5"), NoEffect(TRAINING)),
    ("intermediate_size", "", Double, Carried),
    ("is_causal", "", Json("false"), Refused("`is_causal`")),
    ("is_encoder_decoder", "", Json("true"), Refused("`is_encoder_decoder`")),
    ("kv_sharing_modes", "", Json("[\"x\", \"x\"]"), Refused("`kv_sharing_modes`")),
    ("label2id", "", Json("{\"a\": 0}"), NoEffect(TASK)),
    ("layer_norm_epsilon", "", Json("0.5"), Carried),
    ("layer_types", "", Json("[\"full_attention\", \"sliding_attention\"]"), Refused("`layer_types`")),
    ("max_position_embeddings", "", Double, Carried),
    ("max_position_embeddings", "gpt2", Json("512"), Carried),
    ("max_window_layers", "", Json("1"), NoEffect("windows need `use_sliding_window`")),
    ("mlp_bias", "", Json("true"), Carried),
    ("n_embd", "", Double, Carried),
    ("n_head", "", Double, Carried),
    ("n_inner", "", Json("64"), Carried),
    ("n_layer", "", Double, Carried),
    ("n_positions", "", Double, Carried),
    ("name_or_path", "", Json("\"x\""), NoEffect(NAME)),
    ("num_attention_heads", "", Double, Carried),
    ("num_attention_heads", "gpt2", Json("8"), Carried),
    ("num_hidden_layers", "", Double, Carried),
    ("num_hidden_layers", "gpt2", Json("3"), Carried),
    ("num_key_value_heads", "", Json("4"), Carried),
    ("num_key_value_heads", "phi3", Json("2"), Carried),
    ("num_labels", "", Json("3"), NoEffect(TASK)),
    ("number_of_conv_states", "", Json("3"), NoEffect("only layers of another kind have such states")),
    ("original_max_position_embeddings", "", Json("64"), NoEffect("without a RoPE rule")),
    ("original_max_position_embeddings", "phi3", Json("64"), Carried),
    ("output_attentions", "", Json("true"), NoEffect(ANSWER)),
    ("output_hidden_states", "", Json("true"), NoEffect(ANSWER)),
    ("pad_token_id", "", Json("7"), NoEffect(TRAINING)),
    ("partial_rotary_factor", "", Json("0.5"), Refused("`partial_rotary_factor`")),
    ("per_layer_config", "", Json("{}"), Refused("`per_layer_config`")),
    ("pretraining_tp", "", Json("2"), NoEffect(KERNEL)),
    ("problem_type", "", Json("\"regression\""), NoEffect(TASK)),
    ("reorder_and_upcast_attn", "", Json("true"), NoEffect(KERNEL)),
    ("resid_pdrop", "", Json("0.5"), NoEffect(TRAINING)),
    ("return_dict", "", Json("false"), NoEffect(ANSWER)),
    ("rms_norm_eps", "", Json("0.5"), Carried),
    ("rope_parameters", "", Json(LINEAR), Carried),
    ("rope_parameters", "gpt2", Json(LINEAR), NoEffect(LEARNED)),
    ("rope_parameters", "phi3", Json(LINEAR), Refused("rope scaling `linear`")),
    ("rope_scaling", "", Json(LINEAR), Carried),
    ("rope_scaling", "gpt2", Json(LINEAR), NoEffect(LEARNED)),
    ("rope_scaling", "phi3", Json(LINEAR), Refused("rope scaling `linear`")),
    ("rope_theta", "", Json("77.0"), Carried),
    ("rope_theta", "gpt2", Json("77.0"), NoEffect(LEARNED)),
    ("scale_attn_by_inverse_layer_idx", "", Json("true"), Refused("`scale_attn_by_inverse_layer_idx`")),
    ("scale_attn_weights", "", Json("false"), Refused("`scale_attn_weights`")),
    ("sliding_window", "", Json("16"), Refused("`sliding_window` 16")),
    ("sliding_window", "phi3", Json("16"), Carried),
    ("sliding_window", "qwen2", Json("16"), NoEffect("windows need `use_sliding_window`")),
    ("sliding_window", "qwen3", Json("16"), NoEffect("windows need `use_sliding_window`")),
    ("summary_activation", "", Json("\"tanh\""), NoEffect(TASK)),
    ("summary_first_dropout", "", Json("0.5"), NoEffect(TASK)),
    ("summary_proj_to_labels", "", Json("false"), NoEffect(TASK)),
    ("summary_type", "", Json("\"last\""), NoEffect(TASK)),
    ("summary_use_proj", "", Json("false"), NoEffect(TASK)),
    ("tie_word_embeddings", "", Opposite, Carried),
    ("torch_dtype", "", Json("\"float64\""), NoEffect(STORAGE)),
    ("transformers_version", "", Json("\"1.0\""), NoEffect(NAME)),
    ("use_bidirectional_attention", "", Json("true"), Refused("`use_bidirectional_attention`")),
    ("use_cache", "", Json("false"), NoEffect(KERNEL)),
    ("use_sliding_window", "", Json("true"), Refused("`use_sliding_window`")),
    ("vocab_size", "", Double, Carried),
];

const LINEAR: &str = r#"{"rope_type": "linear", "factor": 2.0}"#;
const LLAMA3: &str = r#"{
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128
}"#;
const YARN: &str = r#"{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}"#;
const MULTIMODAL: &str = "only models of images and text have such sections";

/// Each field of the RoPE settings: a rule, the changed fields, and the outcome.
const ROPE: &[(&str, &str, &str, Outcome)] = &[
    ("attention_factor", YARN, r#"{"attention_factor": 1.5}"#, Refused("`attention_factor`")),
    ("attention_factor", YARN, r#"{"attention_factor": 1.1386294361119891}"#, NoEffect("the default")),
    ("beta_fast", YARN, r#"{"beta_fast": 16}"#, Refused("`beta_fast`")),
    ("beta_fast", YARN, r#"{"beta_fast": 32.0}"#, NoEffect("the default")),
    ("beta_slow", YARN, r#"{"beta_slow": 2}"#, Refused("`beta_slow`")),
    ("factor", LINEAR, r#"{"factor": 3.0}"#, Carried),
    ("factor", LLAMA3, r#"{"factor": 4.0}"#, Carried),
    ("factor", YARN, r#"{"factor": 2.0}"#, Carried),
    ("high_freq_factor", LLAMA3, r#"{"high_freq_factor": 8.0}"#, Carried),
    ("long_factor", YARN, r#"{"rope_type": "longrope", "long_factor": [1.0]}"#, Refused("`longrope`")),
    ("low_freq_factor", LLAMA3, r#"{"low_freq_factor": 2.0}"#, Carried),
    ("mrope_section", YARN, r#"{"mrope_section": [8, 8]}"#, NoEffect(MULTIMODAL)),
    ("mscale", YARN, r#"{"mscale": 0.7, "mscale_all_dim": 1.0}"#, Refused("`mscale`")),
    ("mscale", YARN, r#"{"mscale": 0.7}"#, NoEffect("both numbers are needed")),
    ("mscale_all_dim", YARN, r#"{"mscale_all_dim": 0.7, "mscale": 1.0}"#, Refused("`mscale`")),
    ("original_max_position_embeddings", LLAMA3, r#"{"original_max_position_embeddings": 64}"#, Carried),
    ("original_max_position_embeddings", YARN, r#"{"original_max_position_embeddings": 64}"#, Carried),
    (
        "partial_rotary_factor",
        LINEAR,
        r#"{"partial_rotary_factor": 0.5}"#,
        Refused("`partial_rotary_factor`"),
    ),
    ("rope_theta", LINEAR, r#"{"rope_theta": 77.0}"#, Carried),
    ("rope_type", LINEAR, r#"{"rope_type": "default"}"#, Carried),
    ("rope_type", LINEAR, r#"{"rope_type": "dynamic"}"#, Refused("`dynamic`")),
    ("short_factor", YARN, r#"{"rope_type": "longrope", "short_factor": [1.0]}"#, Refused("`longrope`")),
    ("truncate", YARN, r#"{"truncate": false}"#, Refused("`truncate`")),
    (
        "type",
        LINEAR,
        r#"{"rope_type": null, "type": "yarn", "original_max_position_embeddings": 9}"#,
        Carried,
    ),
];

/// The fields that `scripts/config-fields.py` derived from the library.
fn read_fields() -> Value {
    serde_json::from_str(include_str!("../../tests/config-fields.json")).unwrap()
}

fn names(fields: &Value) -> impl Iterator<Item = &str> {
    fields.as_array().unwrap().iter().map(|name| name.as_str().unwrap())
}

/// The config of a small model, without a RoPE rule.
fn small_config(architecture: &str) -> Map<String, Value> {
    let name = format!("tiny-{architecture}");
    let (_, text) = SHAPES.iter().find(|(shape, _)| *shape == name).unwrap();
    let shape: Value = serde_json::from_str(text).unwrap();
    let mut config = shape["config"].as_object().unwrap().clone();
    config.remove("rope_scaling");
    config
}

/// The content of a GGUF file that depends on the config.
type Converted = (BTreeMap<String, ValueToWrite>, Vec<TensorSpec>, Option<rope::Llama3>);

fn convert(config: &Map<String, Value>) -> Result<Converted, String> {
    let convert = || {
        let config = Config::from_json(Value::Object(config.clone()), &Value::Null)?;
        let architecture = Architecture::named(&config.architecture).unwrap();
        let (specs, rule) = (architecture.tensor_specs(&config)?, rope::llama3(&config)?);
        let name = String::new();
        let content =
            Content { name, architecture, config, generation: None, tokenizer: None, copied: Vec::new() };
        Ok((metadata(&content, Dtype::F32)?.into_iter().collect(), specs, rule))
    };
    convert().map_err(|error: anyhow::Error| format!("{error:#}"))
}

#[track_caller]
fn check(case: &str, before: &Map<String, Value>, after: &Map<String, Value>, expected: Outcome) {
    assert_ne!(before, after, "{case}: the value is the same");
    let (before, after) = (convert(before).unwrap(), convert(after));
    match (expected, after) {
        (Carried, Ok(after)) => assert!(before != after, "{case}: the file is the same"),
        (NoEffect(_), Ok(after)) => assert!(before == after, "{case}: the file differs"),
        (Refused(words), Err(error)) => assert!(error.contains(words), "{case}: {error}"),
        (expected, Err(error)) => panic!("{case}: expected {expected:?}, found {error}"),
        (expected, Ok(_)) => panic!("{case}: expected {expected:?}, and the conversion succeeds"),
    }
}

#[test]
fn every_field_that_transformers_reads_is_carried_or_refused_or_without_effect() {
    let fields = read_fields();
    for (architecture, fields) in fields["architectures"].as_object().unwrap() {
        for field in names(fields) {
            let case = format!("`{field}` of {architecture}");
            let of = |wanted: &str| FIELDS.iter().find(|(name, of, ..)| *name == field && *of == wanted);
            let (_, _, other, outcome) =
                of(architecture).or_else(|| of("")).unwrap_or_else(|| panic!("{case}: unknown"));
            let before = small_config(architecture);
            let value = before.get(field).cloned().unwrap_or(Value::Null);
            let tied = Architecture::named(architecture).unwrap().tied;
            let other = match other {
                Json(text) => serde_json::from_str(text).unwrap(),
                Double => json!(value.as_u64().unwrap_or_else(|| panic!("{case}: {value}")) * 2),
                Opposite => json!(!value.as_bool().unwrap_or(tied)),
            };
            let mut after = before.clone();
            after.insert(field.into(), other);
            check(&case, &before, &after, *outcome);
        }
    }
}

#[test]
fn every_rope_setting_that_transformers_reads_is_carried_or_refused_or_without_effect() {
    let fields = read_fields();
    let known: Vec<&str> = ROPE.iter().map(|(field, ..)| *field).collect();
    assert_eq!(names(&fields["rope"]).find(|field| !known.contains(field)), None);
    for (field, rule, changes, outcome) in ROPE {
        let mut before = small_config("llama");
        before.insert("rope_scaling".into(), serde_json::from_str(rule).unwrap());
        let mut after = before.clone();
        let changes: Map<String, Value> = serde_json::from_str(changes).unwrap();
        after["rope_scaling"].as_object_mut().unwrap().extend(changes);
        check(&format!("`{field}` of {rule}"), &before, &after, *outcome);
    }
}

fn error_of(architecture: &str, changes: &Value) -> Option<String> {
    let mut config = small_config(architecture);
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::String(text) if text == "absent" => drop(config.remove(name)),
            value => drop(config.insert(name.clone(), value.clone())),
        }
    }
    convert(&config).err()
}

#[test]
fn a_window_is_refused_if_it_is_narrower_than_the_context_also_as_a_default() {
    let absent = |context: u32| json!({"sliding_window": "absent", "max_position_embeddings": context});
    assert_eq!(error_of("mistral", &absent(4096)), None);
    let error = error_of("mistral", &absent(8192)).unwrap();
    assert!(
        error.starts_with("`sliding_window` 4096, the default of this architecture, is narrower"),
        "{error}"
    );
    assert_eq!(error_of("mistral", &json!({"sliding_window": 1024})), None);
    // Only qwen2 and qwen3 have the switch.
    let switched_off = json!({"sliding_window": 16, "use_sliding_window": false});
    assert!(error_of("mistral", &switched_off).unwrap().starts_with("`sliding_window` 16 is narrower"));
    assert_eq!(error_of("qwen2", &switched_off), None);
}

#[test]
fn rope_rules_of_several_kinds_of_layers_are_refused() {
    let rules = json!({"full_attention": {"rope_type": "linear", "factor": 2.0}});
    let error = error_of("qwen3", &json!({"rope_parameters": rules})).unwrap();
    assert!(error.contains("`rope_parameters` has a rule for each kind of layer"), "{error}");
    let outside = json!({"rope_scaling": serde_json::from_str::<Value>(YARN).unwrap(), "original_max_position_embeddings": 64});
    let error = error_of("llama", &outside).unwrap();
    assert!(error.contains("`original_max_position_embeddings` is `256` in the rope scaling"), "{error}");
}

#[test]
fn other_names_of_the_same_activation_are_accepted() {
    for (architecture, field, name, expected) in [
        ("gemma", "hidden_act", "gelu", true),
        ("gemma", "hidden_act", "gelu_new", true),
        ("gemma", "hidden_act", "silu", false),
        ("llama", "hidden_act", "swish", true),
        ("llama", "hidden_act", "gelu", false),
        ("gpt2", "activation_function", "gelu_pytorch_tanh", true),
        ("gpt2", "activation_function", "gelu", false),
    ] {
        let error = error_of(architecture, &json!({ field: name }));
        assert_eq!(error.is_none(), expected, "{architecture}: {name}: {error:?}");
    }
}

#[test]
fn more_eos_ids_than_gguf_has_keys_for_are_refused() {
    assert_eq!(error_of("llama", &json!({"eos_token_id": [2, 7, 8]})), None);
    let error = error_of("llama", &json!({"eos_token_id": [2, 7, 8, 9]})).unwrap();
    assert_eq!(error, "`eos_token_id` has 4 ids, and GGUF can express 3");
}
