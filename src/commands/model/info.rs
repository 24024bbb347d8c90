//! `orchestrate model info`.

use std::fmt::Write as _;

use std::path::Path;

use anyhow::{Result, bail, ensure};
use clap::Args;
use model_files::{Dtype, ModelFacts, ModelFolder, Problem, SHAPES, Shape, hint_of, size};

use crate::cli::exit_code::DONE;
use crate::commands::output;
use crate::shell::{Usage, did_you_mean, usage};
use crate::text;

#[derive(Debug, Args)]
pub struct InfoArgs {
    /// A model folder, a `.gguf` file, a repository that was pulled, `embedded`, or a shape of `model list`
    #[arg(value_name = "PATH", default_value = model_files::embedded::NAME)]
    pub model: String,
    /// Expected architecture, such as `llama` or `gpt2`; another one is an error
    #[arg(long, value_name = "ARCHITECTURE")]
    pub model_type: Option<String>,
    /// Also read all weights and print the hash that identifies them
    #[arg(long)]
    pub identity: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub fn info(arguments: &InfoArgs) -> Result<u8> {
    let facts = match model_files::resolve(Some(&arguments.model)) {
        Ok(path) => facts_of_model(&path, arguments)?,
        // A path takes precedence over a shape.
        Err(error) => match Shape::named(&arguments.model) {
            Ok(shape) => facts_of_shape(&shape, arguments)?,
            Err(_) => return Err(unknown_model(&arguments.model, error)),
        },
    };
    match arguments.json {
        true => output::print(serde_json::to_string_pretty(&facts)? + "\n")?,
        false => output::print_text(&page(&facts)?)?,
    }
    Ok(DONE)
}

/// The error of a name that is neither a model nor a shape. If a known name is similar, the hint proposes it.
fn unknown_model(name: &str, error: anyhow::Error) -> anyhow::Error {
    let known: Vec<&str> =
        SHAPES.iter().map(|(name, _)| *name).chain([model_files::embedded::NAME]).collect();
    match (error.downcast_ref(), did_you_mean(name, &known)) {
        (Some(Problem { message, .. }), Some(similar)) => Usage(format!("{message}\nhint: {similar}")).into(),
        (Some(Problem { message, hint }), None) => {
            let message = message.replacen("no model at", "no model and no shape named", 1);
            Usage(format!("{message}\nhint: {hint}")).into()
        }
        _ => Usage(format!("{error:#}")).into(),
    }
}

fn facts_of_model(path: &Path, arguments: &InfoArgs) -> Result<ModelFacts> {
    let model = ModelFolder::open(path).map_err(with_hint)?;
    if let Some(expected) = &arguments.model_type {
        model.expect_architecture(expected).map_err(usage)?;
    }
    let mut facts = ModelFacts::of(&model)?;
    if arguments.identity {
        facts.identity = Some(model.identity()?);
    }
    Ok(facts)
}

/// The error of a path that is no model, with the command that lists the models.
fn with_hint(error: anyhow::Error) -> anyhow::Error {
    match hint_of(&error) {
        Some(_) => error,
        None => Problem::new(format!("{error:#}"), "orchestrate model list").into(),
    }
}

/// The facts of a shape as `model synth` writes it by default. Nothing is written.
fn facts_of_shape(shape: &Shape, arguments: &InfoArgs) -> Result<ModelFacts> {
    let name = &shape.name;
    let no_weights = format!("`{name}` is a shape without weights, so there is no identity");
    let hint = format!("hint: orchestrate model synth {name} --out DIR");
    ensure!(!arguments.identity, Usage(format!("{no_weights}\n{hint}")));
    let facts = ModelFacts::of_shape(shape, Dtype::BF16)?;
    if let Some(expected) =
        arguments.model_type.as_ref().filter(|it| !it.eq_ignore_ascii_case(&facts.architecture))
    {
        bail!(Usage(format!("model type mismatch: expected `{expected}`, found `{}`", facts.architecture)));
    }
    Ok(facts)
}

/// Usual context lengths in tokens.
const CONTEXT_TOKENS: [u32; 5] = [512, 2048, 8192, 32_768, 131_072];

fn page(facts: &ModelFacts) -> Result<String> {
    let mut text = String::new();
    // Text from a model file may contain anything, even terminal escape sequences.
    let mut line = |name: &str, value: String| writeln!(text, "{name:<15}{}", text::line(&value));
    line("model", facts.name.clone())?;
    match &facts.path {
        Some(path) => {
            line("path", path.display().to_string())?;
            line("format", format!("{}, {}", facts.format, text::plural(facts.files, "file")))?;
        }
        None => {
            line("path", "none: a shape, which `orchestrate model synth` can write".into())?;
            line("format", facts.format.into())?;
        }
    }
    line("architecture", format!("{} (by {})", facts.architecture, facts.architecture_from))?;
    let (layers, hidden) = (facts.layers, facts.hidden_size);
    line("shape", format!("{layers} layers, hidden size {hidden}, {}", heads(facts)))?;
    line("parameters", text::with_commas(facts.parameters))?;
    let dtypes =
        facts.dtypes.iter().map(|(name, bytes)| format!("{} {}", name.to_ascii_lowercase(), size(*bytes)));
    line("weights", format!("{} ({})", size(facts.weights_bytes), dtypes.collect::<Vec<_>>().join(", ")))?;
    let context = facts.context_tokens.map_or("unknown".into(), |tokens| format!("{tokens} tokens"));
    line("context", context)?;
    let tied = if facts.tied_output { ", output tied to the embedding" } else { "" };
    line("vocabulary", format!("{}{tied}", facts.vocabulary_size))?;
    if facts.path.is_some() {
        line("tokenizer", tokenizer(facts))?;
        let not_computed = || "not computed yet (`--identity` reads all weights)".into();
        line("identity", facts.identity.clone().unwrap_or_else(not_computed))?;
    }
    if !facts.components.is_empty() {
        writeln!(text, "\n{:<15}{:>16}{:>12}{:>8}", "component", "parameters", "bytes", "share")?;
    }
    for component in &facts.components {
        let share = 100.0 * component.bytes as f64 / facts.weights_bytes.max(1) as f64;
        let (parameters, bytes) = (text::with_commas(component.parameters), size(component.bytes));
        writeln!(text, "{:<15}{parameters:>16}{bytes:>12}{share:>6.1} %", component.component)?;
    }
    writeln!(
        text,
        "\na decoded token reads {} of weights, and {} of keys and values\nfor each position before it (in 16 bits)",
        size(facts.weight_bytes_per_token),
        size(facts.kv_bytes_per_position)
    )?;
    writeln!(text, "\n{:<15}{:>16}{:>20}", "context", "memory needed", "read for a token")?;
    let max_context = facts.context_tokens.unwrap_or(u32::MAX);
    let lengths =
        CONTEXT_TOKENS.into_iter().filter(|length| *length < max_context).chain(facts.context_tokens);
    for length in lengths.map(u64::from) {
        let cache_bytes = facts.kv_bytes_per_position.saturating_mul(length);
        let read = size(facts.weight_bytes_per_token.saturating_add(cache_bytes));
        writeln!(text, "{length:<15}{:>16}{read:>20}", size(facts.memory_bytes(length)))?;
    }
    Ok(text)
}

fn heads(facts: &ModelFacts) -> String {
    let ModelFacts { heads, kv_heads, head_dim, .. } = facts;
    match heads == kv_heads {
        true => format!("{heads} heads of {head_dim}"),
        false => format!("{heads} query and {kv_heads} key heads of {head_dim}"),
    }
}

fn tokenizer(facts: &ModelFacts) -> String {
    let Some(tokenizer) = &facts.tokenizer else { return "none".into() };
    let template = if tokenizer.chat_template { "with" } else { "no" };
    format!("{}, {} entries, {template} chat template", tokenizer.kind, tokenizer.entries)
}
