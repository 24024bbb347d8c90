//! Facts that every engine reports in the same way.

use protocol::{Build, Capabilities, Facts, HelloFacts, IgnoreEos, version};

/// Default facts of an engine on this kit: output in ids, a timestamp for each token, greedy and deterministic, one request
/// and one sequence at a time, on the CPU in f32 from safetensors. The engine sets its own fields and takes the others with
/// `..hello(...)`.
pub fn hello(engine: &str, version_of_engine: &str) -> HelloFacts {
    HelloFacts {
        protocol: version::CURRENT,
        engine: engine.into(),
        version: version_of_engine.into(),
        deterministic: true,
        build: Some(build()),
        capabilities: capabilities(),
        ..HelloFacts::default()
    }
}

/// The default capabilities of an engine on this kit. The engine replaces values and adds its own.
pub fn capabilities() -> Capabilities {
    Capabilities {
        dtypes: vec!["f32".into()],
        formats: vec!["safetensors".into()],
        stream: true,
        prompt_ids: true,
        ignore_eos: IgnoreEos::Exact,
        facts: true,
        ..Capabilities::default()
    }
}

/// The build of this program: `target-cpu`, and the instruction sets that the compiler could use.
pub fn build() -> Build {
    Build {
        features: instruction_sets().iter().map(|name| (*name).to_string()).collect(),
        target_cpu: option_env!("ENGINE_KIT_TARGET_CPU").map(str::to_string),
        commit: None,
    }
}

/// The default number of threads: the CPUs that the process may use.
pub fn default_threads() -> u32 {
    std::thread::available_parallelism().map_or(1, |threads| u32::try_from(threads.get()).unwrap_or(u32::MAX))
}

/// Fills in facts from the model's files where the engine reports none.
pub(crate) fn fill(facts: &mut Facts, folder: &model_files::ModelFolder, requested_context: Option<u32>) {
    let config = &folder.config;
    facts.architecture.get_or_insert_with(|| config.architecture.clone());
    facts.vocabulary_size.get_or_insert(config.vocabulary_size);
    facts.hidden_size.get_or_insert(config.hidden_size);
    facts.layers.get_or_insert(config.layers);
    facts.heads.get_or_insert(config.heads);
    facts.kv_heads.get_or_insert(config.kv_heads);
    facts.head_dim.get_or_insert(config.head_dim);
    facts.intermediate_size = facts.intermediate_size.or(config.intermediate_size);
    facts.parameters.get_or_insert_with(|| folder.parameters());
    facts.eos_ids.get_or_insert_with(|| config.eos_ids.clone());
    facts.bos_id = facts.bos_id.or(config.bos_id);
    // The kit refuses a requested context above the model's, so the requested context is in effect.
    facts.context_tokens = facts.context_tokens.or(requested_context).or(config.context_tokens);
    let bytes_per_weight = match facts.weights_dtype.as_deref() {
        Some("f32") => Some(4),
        Some("f16" | "bf16") => Some(2),
        _ => None,
    };
    facts.weights_bytes = facts.weights_bytes.or_else(|| Some(facts.parameters? * bytes_per_weight?));
}

/// Instruction sets by name, with whether the compiler could use each.
macro_rules! sets {
    ($($name:tt),* $(,)?) => { &[$(($name, cfg!(target_feature = $name))),*] };
}

/// The instruction sets that matter to dense arithmetic on the supported architectures.
fn instruction_sets() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    const SETS: &[(&str, bool)] = sets!(
        "sse4.2",
        "avx",
        "f16c",
        "fma",
        "avx2",
        "avx512f",
        "avx512bw",
        "avx512dq",
        "avx512vl",
        "avx512vnni",
        "avx512bf16",
        "avx512fp16",
    );
    #[cfg(target_arch = "aarch64")]
    const SETS: &[(&str, bool)] = sets!("neon", "dotprod", "fp16", "bf16", "i8mm", "sve", "sve2");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    const SETS: &[(&str, bool)] = &[];
    SETS.iter().filter(|(_, enabled)| *enabled).map(|(name, _)| *name).collect()
}
