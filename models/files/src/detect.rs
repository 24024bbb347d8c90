//! Which architecture a model is of: what its config says, else the class it names, else how its tensors are named.

use serde_json::Value;

use crate::architecture::ARCHITECTURES;

/// By a name that only tensors of this family have. Families come before those that lack what marks them.
const MARKS: [(&str, &[&str]); 5] = [
    ("attn.c_attn.weight", &["gpt2"]),
    ("self_attn.qkv_proj.weight", &["phi3"]),
    ("self_attn.q_norm.weight", &["qwen3"]),
    ("self_attn.q_proj.bias", &["qwen2", "llama", "gemma"]),
    ("self_attn.q_proj.weight", &["llama", "mistral", "gemma"]),
];

/// The architecture, and what told it. `folder` is the model's name, which helps among those that look the same.
pub(crate) fn architecture<'a>(
    config: &Value,
    tensors: impl Iterator<Item = &'a str> + Clone,
    folder: &str,
) -> Option<(String, &'static str)> {
    if let Some(said) = config.get("model_type").or_else(|| config.pointer("/text_config/model_type")) {
        return Some((said.as_str()?.into(), "`model_type` of config.json"));
    }
    let classes = config.get("architectures").and_then(Value::as_array);
    let class = classes.and_then(|classes| classes.first()).and_then(Value::as_str);
    if let Some(known) = ARCHITECTURES.iter().find(|architecture| Some(architecture.class) == class) {
        return Some((known.name.into(), "`architectures` of config.json"));
    }
    let candidates = family(tensors)?;
    let folder = folder.to_ascii_lowercase();
    match candidates.iter().find(|name| folder.contains(*name)) {
        Some(name) if candidates.len() > 1 => {
            Some((name.to_string(), "the names of its tensors and of its folder"))
        }
        _ => Some((candidates[0].into(), "the names of its tensors")),
    }
}

/// Architectures whose tensors are named so.
pub(crate) fn family<'a>(tensors: impl Iterator<Item = &'a str> + Clone) -> Option<&'static [&'static str]> {
    let found = MARKS.iter().find(|(mark, _)| tensors.clone().any(|name| name.ends_with(mark)));
    found.map(|(_, candidates)| *candidates)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn detect(config: &Value, tensor: &str, folder: &str) -> Option<String> {
        architecture(config, std::iter::once(tensor), folder).map(|(name, _)| name)
    }

    #[test]
    fn what_config_says_comes_first_then_its_class_then_tensor_names_then_the_folders_name() {
        let plain = "model.layers.0.self_attn.q_proj.weight";
        let says = json!({ "model_type": "falcon", "architectures": ["LlamaForCausalLM"] });
        assert_eq!(detect(&says, plain, "x").as_deref(), Some("falcon"));
        let class = json!({ "architectures": ["Phi3ForCausalLM"] });
        assert_eq!(detect(&class, plain, "x").as_deref(), Some("phi3"));
        assert_eq!(detect(&json!({}), plain, "x").as_deref(), Some("llama"));
        assert_eq!(detect(&json!({}), plain, "My-Gemma-2b").as_deref(), Some("gemma"));
        assert_eq!(detect(&json!({}), "h.0.attn.c_attn.weight", "llama").as_deref(), Some("gpt2"));
        assert_eq!(detect(&json!({}), "something.else", "llama"), None);
    }
}
