//! RoPE scaling, which stretches positions beyond the trained context: its settings in config.json and in GGUF.
//!
//! config.json names a rule and its numbers. GGUF has names for some rules, and stores the rule of Llama 3 as a tensor of
//! factors.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

use super::metadata::shortest_decimal;
use crate::Config;
use crate::gguf::{self, ValueToWrite};
use crate::text::{json_text, printable};

/// GGUF's tensor with a divisor for each frequency.
pub const FACTORS: &str = "rope_freqs.weight";

/// Llama 3.1 and later: `factor` divides low frequencies. High frequencies stay as they are, and the divisors between are
/// interpolated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Llama3 {
    pub factor: f64,
    /// `low_freq_factor`.
    pub low: f64,
    /// `high_freq_factor`.
    pub high: f64,
    /// `original_max_position_embeddings`.
    pub original_context: f64,
}

impl Llama3 {
    /// One divisor for each pair of a head's dimensions.
    pub fn factors(&self, theta: f64, head_dim: u32) -> Vec<f32> {
        let pairs = 0..head_dim / 2;
        let factors = pairs.map(|pair| {
            // libm's power gives the same last bit on every machine.
            let inverse_frequency = libm::pow(theta, f64::from(pair) * 2.0 / f64::from(head_dim));
            // The number of full rotations within the original context decides how much of the frequency stays unscaled.
            let rotations = self.original_context / (inverse_frequency * std::f64::consts::TAU);
            let unscaled_share = ((rotations - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
            (1.0 / ((1.0 - unscaled_share) / self.factor + unscaled_share)) as f32
        });
        factors.collect()
    }
}

/// GGUF's metadata for the scaling. A rule that GGUF cannot express is refused.
pub(super) fn to_gguf(prefix: &str, config: &Config) -> Result<Vec<(String, ValueToWrite)>> {
    check_settings(config)?;
    let Some((kind, rule)) = scaling(config) else { return Ok(Vec::new()) };
    // The library transformers reads `yarn` as `longrope` for this architecture, and refuses the other rules.
    ensure!(prefix != "phi3", "rope scaling `{}` of phi3 cannot be written to GGUF", printable(kind));
    let key = |name: &str, value| (format!("{prefix}.rope.scaling.{name}"), value);
    let number = |name: &str| {
        let value = rule.get(name).and_then(Value::as_f64);
        value.with_context(|| format!("rope scaling `{kind}`: `{name}` is missing"))
    };
    match kind {
        // GGUF stores this rule as the tensor `rope_freqs.weight`.
        "llama3" => llama3(config).map(|_| Vec::new()),
        "linear" => Ok(vec![
            key("type", ValueToWrite::Text("linear".into())),
            key("factor", ValueToWrite::F32(number("factor")? as f32)),
        ]),
        "yarn" => Ok(vec![
            key("type", ValueToWrite::Text("yarn".into())),
            key("factor", ValueToWrite::F32(expressible_yarn_factor(rule, number("factor")?)? as f32)),
            key(
                "original_context_length",
                ValueToWrite::U32(number("original_max_position_embeddings")? as u32),
            ),
        ]),
        other => bail!("rope scaling `{}` cannot be written to GGUF", printable(other)),
    }
}

/// Refuses RoPE settings that this crate would read wrongly.
fn check_settings(config: &Config) -> Result<()> {
    let Some(fields) = config.fields() else { return Ok(()) };
    for name in ["rope_scaling", "rope_parameters"] {
        let Some(value) = fields.get(name).filter(|value| !value.is_null()) else { continue };
        let rule = value.as_object();
        let rule =
            rule.with_context(|| format!("`{name}`: expected an object, found {}", json_text(value)))?;
        ensure!(
            !rule.values().any(Value::is_object),
            "`{name}` has a rule for each kind of layer, and GGUF can express one rule"
        );
    }
    // If the number is both in the rule and outside, the library `transformers` uses the one outside. llama.cpp would get the
    // other one.
    let name = "original_max_position_embeddings";
    if let (Some((kind, rule)), Some(outside)) = (scaling(config), fields.get(name))
        && let Some(inside) = rule.get(name)
    {
        ensure!(
            inside.as_f64() == outside.as_f64(),
            "`{name}` is {} in the rope scaling `{}` and {} outside",
            json_text(inside),
            printable(kind),
            json_text(outside)
        );
    }
    Ok(())
}

/// The factor of a rule `yarn`. Some numbers of the rule have no effect in llama.cpp for these architectures: it computes with
/// the defaults of the library `transformers`. So values other than these defaults are refused.
fn expressible_yarn_factor(rule: &Map<String, Value>, factor: f64) -> Result<f64> {
    let number = |name: &str| {
        let Some(value) = rule.get(name).filter(|value| !value.is_null()) else { return Ok(None) };
        let number = value.as_f64();
        number.map(Some).with_context(|| {
            format!("rope scaling `yarn`: `{name}`: expected a number, found {}", json_text(value))
        })
    };
    let attention_scale = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
    let attention_factor = number("attention_factor")?;
    let (mscale, mscale_all_dim) =
        (number("mscale")?.unwrap_or(0.0), number("mscale_all_dim")?.unwrap_or(0.0));
    let has_mscales = attention_factor.is_none() && mscale != 0.0 && mscale_all_dim != 0.0;
    let attention_factor = if has_mscales {
        Some(attention_scale(mscale) / attention_scale(mscale_all_dim))
    } else {
        attention_factor
    };
    let name = if has_mscales { "mscale" } else { "attention_factor" };
    for (name, given, default) in [
        (name, attention_factor, attention_scale(1.0)),
        // `transformers` treats 0 as an absent number.
        ("beta_fast", number("beta_fast")?.filter(|beta| *beta != 0.0), 32.0),
        ("beta_slow", number("beta_slow")?.filter(|beta| *beta != 0.0), 1.0),
    ] {
        ensure!(
            given.is_none_or(|given| (given - default).abs() <= 1e-6 * default),
            "rope scaling `yarn`: `{name}` is not the default, and GGUF can express only the default"
        );
    }
    ensure!(
        rule.get("truncate").is_none_or(|truncate| *truncate == Value::Bool(true)),
        "rope scaling `yarn`: `truncate` is not the default, and GGUF can express only the default"
    );
    Ok(factor)
}

/// The rule of Llama 3, if a config.json has it.
pub fn llama3(config: &Config) -> Result<Option<Llama3>> {
    let Some(("llama3", rule)) = scaling(config) else { return Ok(None) };
    let number = |name: &str| {
        let value = rule.get(name).filter(|value| !value.is_null());
        let value = value.with_context(|| format!("rope scaling `llama3`: `{name}` is missing"))?;
        let number = value.as_f64().filter(|number| is_above_zero(*number));
        number.with_context(|| {
            format!(
                "rope scaling `llama3`: `{name}`: expected a number above 0 in the range of f32, found {}",
                json_text(value)
            )
        })
    };
    let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
    ensure!(
        low <= high,
        "rope scaling `llama3`: `high_freq_factor` is {high:?}, below `low_freq_factor`, {low:?}"
    );
    let original_context = number("original_max_position_embeddings")?;
    Ok(Some(Llama3 { factor: number("factor")?, low, high, original_context }))
}

/// Whether the number is finite and above 0 in f32, the type that engines compute with.
fn is_above_zero(number: f64) -> bool {
    (number as f32).is_finite() && number as f32 > 0.0
}

/// `rope_scaling` for config.json, from GGUF's metadata and its tensor of factors.
pub(crate) fn to_config_json(
    config: &Config,
    header: &gguf::Header,
    factors: Option<&[f32]>,
) -> Result<Option<Value>> {
    if let Some(factors) = factors {
        return find_llama3(config, factors).map(Some);
    }
    let key = |name: &str| header.metadata.get(&format!("{}.rope.{name}", config.architecture));
    let factor = match key("scaling.factor").or_else(|| key("scale_linear")) {
        Some(gguf::Value::Float(factor)) if is_above_zero(*factor) => Some(shortest_decimal(*factor as f32)),
        Some(found) => {
            bail!(
                "metadata `rope.scaling.factor`: expected a number above 0 in the range of f32, found {found}"
            )
        }
        None => None,
    };
    let kind = match key("scaling.type") {
        Some(gguf::Value::Text(kind)) => kind.as_str(),
        Some(found) => bail!("metadata `rope.scaling.type`: expected a text, found {found}"),
        // llama.cpp makes the same assumption.
        None if factor.is_some() => "linear",
        None => "none",
    };
    let factor = || factor.context("metadata `rope.scaling.factor` is missing");
    match kind {
        "none" => Ok(None),
        "linear" => Ok(Some(json!({ "rope_type": "linear", "factor": factor()? }))),
        "yarn" => {
            let original = key("scaling.original_context_length").and_then(gguf::Value::as_u64);
            let original = original.context("metadata `rope.scaling.original_context_length` is missing")?;
            Ok(Some(json!({
                "rope_type": "yarn", "factor": factor()?, "original_max_position_embeddings": original
            })))
        }
        other => bail!("unknown rope scaling `{}`", printable(other)),
    }
}

/// Finds the numbers of Llama 3's rule from GGUF's factors. The largest factor is `factor`; the other three numbers are assumed
/// to be those of the known models. Refuses factors that do not follow from these numbers.
fn find_llama3(config: &Config, factors: &[f32]) -> Result<Value> {
    let factor = factors.iter().copied().fold(1.0_f32, f32::max);
    let rule = Llama3 { factor: shortest_decimal(factor), low: 1.0, high: 4.0, original_context: 8192.0 };
    let expected = rule.factors(config.rope_theta.unwrap_or(10_000.0), config.head_dim);
    let is_close = |(stored, expected): (&f32, &f32)| (stored - expected).abs() <= 1e-4 * expected.abs();
    if expected.len() != factors.len() || !factors.iter().zip(&expected).all(is_close) {
        bail!("tensor `{FACTORS}`: config.json has no rule for its {} factors", factors.len());
    }
    Ok(json!({
        "rope_type": "llama3", "factor": rule.factor, "low_freq_factor": rule.low,
        "high_freq_factor": rule.high, "original_max_position_embeddings": rule.original_context as u64
    }))
}

/// The RoPE settings of a config, from one of two objects. An empty object counts as absent.
pub(crate) fn settings(fields: &Map<String, Value>) -> Option<&Map<String, Value>> {
    let mut rules =
        ["rope_scaling", "rope_parameters"].iter().filter_map(|name| fields.get(*name)?.as_object());
    rules.find(|rule| !rule.is_empty())
}

/// The name and the numbers of the scaling rule. `None` if there is no rule, or if the rule changes nothing.
fn scaling(config: &Config) -> Option<(&str, &Map<String, Value>)> {
    let rule = settings(config.fields()?)?;
    let kind = rule.get("rope_type").or_else(|| rule.get("type"))?.as_str()?;
    (kind != "default").then_some((kind, rule))
}
