//! Finds the architecture of a model: from its config, else from the class that it names, else from its tensors' names.

use serde_json::Value;

use crate::architecture::{ARCHITECTURES, Architecture};

/// The architecture and its source. `folder` is the model's name; it decides between architectures with the same tensors.
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
    let (candidates, folder) = (family(tensors), folder.to_ascii_lowercase());
    match candidates.iter().find(|candidate| folder.contains(candidate.name)) {
        Some(candidate) if candidates.len() > 1 => {
            Some((candidate.name.into(), "the names of its tensors and of its folder"))
        }
        _ => candidates.first().map(|candidate| (candidate.name.into(), "the names of its tensors")),
    }
}

/// The architectures that match the tensors' names: all of their own marks occur, and no mark that they cannot have. The
/// one with most marks comes first.
pub(crate) fn family<'a>(tensors: impl Iterator<Item = &'a str> + Clone) -> Vec<&'static Architecture> {
    let all = ARCHITECTURES.iter().flat_map(|architecture| architecture.marks);
    let mut found: Vec<&str> =
        all.copied().filter(|mark| tensors.clone().any(|name| name.ends_with(mark))).collect();
    found.sort_unstable();
    found.dedup();
    let fits = |it: &&&Architecture| {
        let allowed = |mark: &&str| it.marks.contains(mark) || it.may_have.contains(mark);
        it.marks.iter().all(|mark| found.contains(mark)) && found.iter().all(allowed)
    };
    let mut fitting: Vec<_> = ARCHITECTURES.iter().filter(fits).copied().collect();
    fitting.sort_by_key(|architecture| std::cmp::Reverse(architecture.marks.len()));
    fitting
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

    #[test]
    fn the_architecture_with_most_marks_comes_first_and_none_has_a_mark_that_it_cannot_have() {
        let named = |ends: &[&str]| {
            let names = ends.iter().map(|end| format!("model.layers.0.self_attn.{end}")).collect::<Vec<_>>();
            let found = family(names.iter().map(String::as_str));
            found.iter().map(|architecture| architecture.name).collect::<Vec<_>>()
        };
        assert_eq!(named(&["q_proj.weight"]), ["llama", "mistral", "gemma"]);
        assert_eq!(named(&["q_proj.weight", "q_proj.bias"]), ["qwen2", "llama", "gemma"]);
        assert_eq!(named(&["q_proj.weight", "q_norm.weight"]), ["qwen3"]);
        assert_eq!(named(&["q_proj.weight", "q_proj.bias", "q_norm.weight"]), ["qwen3"]);
        assert_eq!(named(&["qkv_proj.weight"]), ["phi3"]);
    }

    #[test]
    fn the_parts_of_every_architecture_have_its_marks() {
        for (name, text) in crate::SHAPES.iter().filter(|(name, _)| name.starts_with("tiny-")) {
            let shape: Value = serde_json::from_str(text).unwrap();
            let config = crate::Config::from_json(shape["config"].clone(), &Value::Null).unwrap();
            let architecture = Architecture::named(&config.architecture).unwrap();
            let parts = architecture.parts(&config).unwrap();
            let found = family(parts.iter().map(|part| part.name.as_str()));
            assert!(found.iter().any(|found| found.name == architecture.name), "{name}");
        }
    }
}
