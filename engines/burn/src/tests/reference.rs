//! A second implementation of the network: loops in f64, on the tensors as the files store them. It shares no code with the engine.

use std::collections::HashMap;

use model_files::{Dtype, FileWeights, Format, ModelFolder, Weights};
use serde_json::{Value, json};

use super::{SHAPES, Tiny, largest_difference, logits, prompt};

struct Reference {
    config: Value,
    tensors: HashMap<String, Vec<f64>>,
}

impl Reference {
    fn open(folder: &ModelFolder) -> Self {
        let files = FileWeights::open(folder).unwrap();
        let read = |spec: &model_files::TensorSpec| {
            let mut bytes = vec![0; spec.elements() as usize * 4];
            let rows = spec.rows_in(Format::Safetensors).0;
            files.encode(spec, Format::Safetensors, 0..rows, Dtype::F32, &mut bytes).unwrap();
            let numbers = bytes.chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().unwrap()));
            (spec.name.clone(), numbers.map(f64::from).collect())
        };
        Self {
            config: folder.config.raw.clone(),
            tensors: folder.tensor_specs().unwrap().iter().map(read).collect(),
        }
    }

    fn number(&self, name: &str) -> usize {
        self.config[name].as_u64().unwrap() as usize
    }

    fn linear(&self, name: &str, input: &[f64]) -> Vec<f64> {
        let weights = &self.tensors[&format!("{name}.weight")];
        let product = |row: &[f64]| row.iter().zip(input).map(|(weight, input)| weight * input).sum::<f64>();
        let mut outputs: Vec<f64> = weights.chunks_exact(input.len()).map(product).collect();
        if let Some(bias) = self.tensors.get(&format!("{name}.bias")) {
            outputs.iter_mut().zip(bias).for_each(|(output, bias)| *output += bias);
        }
        outputs
    }

    fn norm(&self, name: &str, input: &[f64]) -> Vec<f64> {
        let Some(weights) = self.tensors.get(name) else { return input.to_vec() };
        let squares = input.iter().map(|it| it * it).sum::<f64>() / input.len() as f64;
        let scale = 1.0 / (squares + self.config["rms_norm_eps"].as_f64().unwrap()).sqrt();
        input.iter().zip(weights).map(|(input, weight)| input * scale * weight).collect()
    }

    /// Rotates the two halves of a head against each other.
    fn rotate(&self, head: &mut [f64], position: usize) {
        let half = head.len() / 2;
        for pair in 0..half {
            let exponent = 2.0 * pair as f64 / head.len() as f64;
            let mut frequency = self.config["rope_theta"].as_f64().unwrap().powf(-exponent);
            let rule = &self.config["rope_scaling"];
            if rule["rope_type"] == json!("llama3") {
                let number = |name: &str| rule[name].as_f64().unwrap();
                let wavelength = std::f64::consts::TAU / frequency;
                let context = number("original_max_position_embeddings");
                let (low, high) = (number("low_freq_factor"), number("high_freq_factor"));
                if wavelength > context / low {
                    frequency /= number("factor");
                } else if wavelength > context / high {
                    let smooth = (context / wavelength - low) / (high - low);
                    frequency = (1.0 - smooth) * frequency / number("factor") + smooth * frequency;
                }
            }
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            let (first, second) = (head[pair], head[pair + half]);
            (head[pair], head[pair + half]) = (first * cos - second * sin, second * cos + first * sin);
        }
    }

    /// The logits after the last id.
    fn logits(&self, ids: &[u32]) -> Vec<f32> {
        let (width, heads) = (self.number("hidden_size"), self.number("num_attention_heads"));
        let kv_heads = self.number("num_key_value_heads");
        let head_dim = self.config["head_dim"].as_u64().map_or(width / heads, |it| it as usize);
        let embedding = &self.tensors["model.embed_tokens.weight"];
        let mut states: Vec<Vec<f64>> =
            ids.iter().map(|&id| embedding[id as usize * width..][..width].to_vec()).collect();
        for layer in 0..self.number("num_hidden_layers") {
            let name = |it: &str| format!("model.layers.{layer}.{it}");
            let projected = |it: &str, norm: &str, states: &[Vec<f64>], rotates: bool| -> Vec<Vec<f64>> {
                let of_state = |(position, state): (usize, &Vec<f64>)| {
                    let output = self.linear(&name(it), &self.norm(&name("input_layernorm.weight"), state));
                    let of_head = |head: &[f64]| {
                        let mut head = self.norm(&name(norm), head);
                        if rotates {
                            self.rotate(&mut head, position);
                        }
                        head
                    };
                    output.chunks_exact(head_dim).flat_map(of_head).collect()
                };
                states.iter().enumerate().map(of_state).collect()
            };
            let queries = projected("self_attn.q_proj", "self_attn.q_norm.weight", &states, true);
            let keys = projected("self_attn.k_proj", "self_attn.k_norm.weight", &states, true);
            let values = projected("self_attn.v_proj", "no norm", &states, false);
            for (position, state) in states.iter_mut().enumerate() {
                let mut mixed = vec![0.0; heads * head_dim];
                for head in 0..heads {
                    let of_head = |row: &[f64], head: usize| row[head * head_dim..][..head_dim].to_vec();
                    let (query, kv_head) = (of_head(&queries[position], head), head * kv_heads / heads);
                    let score = |key: &Vec<f64>| {
                        let key = of_head(key, kv_head);
                        query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>() / (head_dim as f64).sqrt()
                    };
                    let weights: Vec<f64> = keys[..=position].iter().map(|key| score(key).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    for (weight, value) in weights.iter().zip(&values) {
                        let value = of_head(value, kv_head);
                        let mixed = &mut mixed[head * head_dim..][..head_dim];
                        mixed.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight / total * value);
                    }
                }
                let output = self.linear(&name("self_attn.o_proj"), &mixed);
                state.iter_mut().zip(output).for_each(|(state, output)| *state += output);
                let input = self.norm(&name("post_attention_layernorm.weight"), state);
                let gate = self.linear(&name("mlp.gate_proj"), &input);
                let up = self.linear(&name("mlp.up_proj"), &input);
                let inner: Vec<f64> =
                    gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
                let output = self.linear(&name("mlp.down_proj"), &inner);
                state.iter_mut().zip(output).for_each(|(state, output)| *state += output);
            }
        }
        let last = self.norm("model.norm.weight", states.last().unwrap());
        let output =
            if self.tensors.contains_key("lm_head.weight") { "lm_head" } else { "model.embed_tokens" };
        self.linear(output, &last).into_iter().map(|logit| logit as f32).collect()
    }
}

fn assert_agrees(tiny: &Tiny, what: &str) {
    let (reference, model) = (Reference::open(&tiny.folder()), tiny.load());
    let ids = prompt(40);
    let expected = reference.logits(&ids);
    let spread = expected.iter().fold(0_f32, |largest, logit| largest.max(logit.abs()));
    assert!(spread > 0.5, "{what}: logits up to {spread} test little");
    let difference = largest_difference(&logits(&model, &ids), &expected);
    assert!(difference < 2e-5, "{what} is off by {difference}");
}

#[test]
fn every_architecture_has_the_logits_of_a_second_implementation() {
    for shape in SHAPES {
        assert_agrees(&Tiny::new(shape), shape);
    }
}

#[test]
fn features_of_a_config_have_the_logits_of_a_second_implementation() {
    let cases: [(&str, &str, Value); 6] = [
        ("tiny-llama", "attention_bias", json!(true)),
        ("tiny-llama", "mlp_bias", json!(true)),
        ("tiny-llama", "tie_word_embeddings", json!(true)),
        ("tiny-llama", "num_key_value_heads", json!(1)),
        ("tiny-mistral", "head_dim", json!(32)),
        ("tiny-qwen3", "num_key_value_heads", json!(4)),
    ];
    for (shape, field, value) in cases {
        let what = format!("{shape} with `{field}` {value}");
        assert_agrees(&Tiny::with(shape, &[(field, value)]), &what);
    }
}

#[test]
fn the_frequencies_of_llama_3_have_the_logits_of_a_second_implementation_where_they_are_interpolated() {
    let rule = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    });
    assert_agrees(&Tiny::with("tiny-llama", &[("rope_scaling", rule)]), "a short original context");
}
