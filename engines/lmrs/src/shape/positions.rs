//! The rotation of each pair of head dimensions, from the fields of a config.

use engine_kit::OrFail;
use model_files::{FileWeights, Format, Tensor};
use protocol::{Failed, FailureKind};
use serde_json::Value;

use super::architectures::Architecture;
use super::fields::Fields;
use crate::network::Rotation;

/// The GGUF tensor with a divisor for each frequency.
const FACTORS_TENSOR: &str = "rope_freqs.weight";

pub fn rotation(fields: &Fields, architecture: &Architecture) -> Result<Rotation, Failed> {
    let config = &fields.folder.config;
    let theta = config.rope_theta.unwrap_or(10_000.0);
    let rotated = rotated_dims(fields, architecture)?;
    let mut rotation = Rotation::new(theta, rotated);
    refuse_infinite_angles(fields, &rotation, fields.name("rope_theta", "rope.freq_base"))?;
    match fields.folder.format {
        Format::Safetensors => scale_by_config(fields, &mut rotation)?,
        Format::Gguf => scale_by_metadata(fields, &mut rotation)?,
    }
    refuse_infinite_angles(fields, &rotation, fields.name("rope_scaling", "rope.scaling"))?;
    Ok(rotation)
}

/// Refuses a `rope_theta` or a scaling factor so small that the last position's angle overflows f32.
fn refuse_infinite_angles(fields: &Fields, rotation: &Rotation, name: &str) -> Result<(), Failed> {
    let last_position = fields.folder.config.context_tokens.unwrap_or_default() as f32;
    match rotation.frequencies.iter().all(|frequency| (frequency * last_position).is_finite()) {
        true => Ok(()),
        false => Err(fields.invalid(format!("`{name}` leads to infinite angles"))),
    }
}

/// The number of rotated dimensions of each head.
fn rotated_dims(fields: &Fields, architecture: &Architecture) -> Result<usize, Failed> {
    let head_dim = fields.folder.config.head_dim as usize;
    let name = fields.name("partial_rotary_factor", "rope.dimension_count");
    let rotated = match fields.folder.format {
        Format::Safetensors => {
            let share =
                rope_field(fields, "partial_rotary_factor").or_else(|| fields.get("partial_rotary_factor"));
            // For other architectures, the library transformers ignores the field and other programs apply it. lmrs refuses it.
            if let Some(share) =
                share.filter(|it| !architecture.may_rotate_partly && it.as_f64() != Some(1.0))
            {
                return Err(fields.unsupported(name, share));
            }
            let share = share.map_or(Some(1.0), Value::as_f64);
            share.map(|share| (share * head_dim as f64) as usize)
        }
        Format::Gguf => fields
            .metadata("rope.dimension_count")
            .map_or(Some(head_dim), |value| value.as_u64().and_then(|count| usize::try_from(count).ok())),
    };
    match rotated {
        Some(rotated) if rotated > 0 && rotated <= head_dim && rotated % 2 == 0 => Ok(rotated),
        _ => Err(fields
            .invalid(format!("`{name}`: expected an even number of rotated dimensions, at most {head_dim}"))),
    }
}

fn scale_by_config(fields: &Fields, rotation: &mut Rotation) -> Result<(), Failed> {
    for name in ["rope_scaling", "rope_parameters"] {
        match fields.get(name).map(|value| (value, value.as_object())) {
            None => {}
            Some((value, None)) => return Err(fields.expected("an object", name, value)),
            // An object that contains objects has a rule for each kind of layer. lmrs has one rule for all layers.
            Some((value, Some(rule))) if rule.values().any(Value::is_object) => {
                return Err(fields.unsupported(name, value));
            }
            Some(_) => {}
        }
    }
    let Some(kind) = rope_field(fields, "rope_type").or_else(|| rope_field(fields, "type")) else {
        return Ok(());
    };
    let number = |name: &str| {
        let value = rope_field(fields, name);
        let value = value.ok_or_else(|| fields.invalid(format!("`rope_scaling.{name}` is missing")))?;
        number_above_zero(fields, &format!("rope_scaling.{name}"), value)
    };
    match kind.as_str() {
        Some("default") => {}
        Some("linear") => rotation.divide_all(number("factor")?),
        Some("llama3") => rotation.scale_as_llama3(
            number("factor")?,
            number("low_freq_factor")?,
            number("high_freq_factor")?,
            number("original_max_position_embeddings")?,
        ),
        _ => return Err(fields.unsupported("rope_scaling.rope_type", kind)),
    }
    Ok(())
}

/// A number above 0, also after rounding to f32, because angles are computed in f32.
fn number_above_zero(fields: &Fields, name: &str, value: &Value) -> Result<f64, Failed> {
    let number = value.as_f64().filter(|number| (*number as f32).is_finite() && *number as f32 > 0.0);
    number.ok_or_else(|| fields.expected("a number above 0 in the range of f32", name, value))
}

/// Newer configs keep all rotation fields in `rope_parameters`. An empty object counts as absent.
fn rope_field<'a>(fields: &'a Fields, name: &str) -> Option<&'a Value> {
    let nonempty_object =
        |name| fields.get(name).filter(|rope| rope.as_object().is_some_and(|rope| !rope.is_empty()));
    nonempty_object("rope_scaling")
        .or_else(|| nonempty_object("rope_parameters"))?
        .get(name)
        .filter(|value| !value.is_null())
}

fn scale_by_metadata(fields: &Fields, rotation: &mut Rotation) -> Result<(), Failed> {
    if let Some(tensor) = fields.folder.tensors.iter().find(|tensor| tensor.name.starts_with("rope_factors_"))
    {
        return Err(fields.unsupported("longrope", &Value::String(tensor.name.clone())));
    }
    if let Some(value) =
        fields.metadata("rope.scaling.attn_factor").filter(|value| value.as_f64() != Some(1.0))
    {
        return Err(fields.unsupported("rope.scaling.attn_factor", value));
    }
    let factor = ["rope.scaling.factor", "rope.scale_linear"];
    let factor = factor.iter().find_map(|name| Some((*name, fields.metadata(name)?)));
    let kind = fields.metadata("rope.scaling.type");
    match (kind.map(|kind| (kind, kind.as_str())), factor) {
        (None, None) | (Some((_, Some("none"))), _) => {}
        // Older files have no type: llama.cpp assumes linear.
        (None | Some((_, Some("linear"))), Some((name, value))) => {
            rotation.divide_all(number_above_zero(fields, name, value)?);
        }
        (Some((_, Some("linear"))), None) => {
            return Err(fields.missing("rope_scaling.factor", "rope.scaling.factor"));
        }
        (Some((kind, _)), _) => return Err(fields.unsupported("rope.scaling.type", kind)),
    }
    let pairs = rotation.frequencies.len() as u64;
    let factor_count =
        fields.folder.tensors.iter().find(|tensor| tensor.name == FACTORS_TENSOR).map(Tensor::elements);
    if let Some(value) = factor_count.filter(|value| *value != pairs) {
        return Err(fields.invalid(format!("tensor `{FACTORS_TENSOR}`: {value} factors, expected {pairs}")));
    }
    let factors =
        FileWeights::open(fields.folder).and_then(|weights| weights.values_of(FACTORS_TENSOR, pairs));
    let Some(factors) = factors.or_fail(FailureKind::Model)? else { return Ok(()) };
    if let Some(factor) = factors.iter().find(|factor| !factor.is_finite() || **factor <= 0.0) {
        let message = format!("tensor `{FACTORS_TENSOR}`: expected numbers above 0, found `{factor:?}`");
        return Err(fields.invalid(message));
    }
    rotation.divide_each(&factors);
    Ok(())
}
