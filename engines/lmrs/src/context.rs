//! The longest context that the available memory allows.

use protocol::Failed;

use crate::cache::Cache;
use crate::kernels::attention::{BLOCK_POSITIONS, KvDtype};
use crate::shape::Shape;
use crate::weights::Plan;

/// Chooses the context of a load. Returns its tokens, and a note if the memory is too small for the model's context.
pub fn choose_context(
    shape: &Shape,
    kv_dtype: KvDtype,
    plan: &Plan,
    requested: Option<u32>,
    available_bytes: Option<u64>,
) -> Result<(usize, Option<String>), Failed> {
    let model_context = shape.context;
    let bytes = |tokens| Cache::bytes_for(shape, tokens, kv_dtype) as u64;
    // A cache takes memory only as it fills, so without an explicit request its full memory is not required.
    let Some(requested) = requested else {
        plan.refuse_if_too_large(0, available_bytes)?;
        let left_bytes = available_bytes.map_or(u64::MAX, |available| available.saturating_sub(plan.bytes()));
        let tokens = longest_context(model_context, |tokens| bytes(tokens) <= left_bytes);
        let note = || {
            format!(
                "context limited to {tokens} of {model_context} tokens: the keys and values of all tokens need {} bytes, and \
                 {left_bytes} are available (a `load` with `context_tokens` can request another limit)",
                bytes(model_context)
            )
        };
        return Ok((tokens, (tokens < model_context).then(note)));
    };
    let tokens = model_context.min(requested as usize);
    plan.refuse_if_too_large(bytes(tokens), available_bytes)?;
    Ok((tokens, None))
}

/// The whole context, or the largest power of two that fits, but at least one block. Powers of two keep the result the same
/// when the free memory differs a little from load to load.
fn longest_context(context: usize, fits: impl Fn(usize) -> bool) -> usize {
    if fits(context) {
        return context;
    }
    let mut tokens = context.next_power_of_two();
    while tokens > BLOCK_POSITIONS && (tokens >= context || !fits(tokens)) {
        tokens /= 2;
    }
    tokens.min(context)
}

#[cfg(test)]
mod tests {
    use model_files::{Dtype, Format, Goal, ModelFolder};

    use super::*;
    use crate::weights::RequestedFormat;

    #[test]
    fn the_default_context_is_that_of_the_model_or_else_the_largest_power_of_two_that_fits() {
        let longest_context = |context, fitting| longest_context(context, |tokens| tokens <= fitting);
        assert_eq!(
            (longest_context(131_072, 131_072), longest_context(7_900_000, usize::MAX)),
            (131_072, 7_900_000)
        );
        assert_eq!((longest_context(131_072, 131_071), longest_context(131_072, 40_000)), (65_536, 32_768));
        assert_eq!((longest_context(7_900_000, 7_899_999), longest_context(5000, 4500)), (4_194_304, 4096));
        // The result is one block, or all of a shorter context, even if nothing fits.
        assert_eq!((longest_context(5000, 0), longest_context(40, 0)), (BLOCK_POSITIONS, 40));
    }

    #[test]
    fn the_memory_of_the_weights_is_not_available_to_keys_and_values() {
        let (folder, model) = (env!("CARGO_MANIFEST_DIR"), tempfile::tempdir().unwrap());
        let config = std::path::Path::new(folder).join("tests/golden/configs/llama.json");
        let (out, dtype) = (model.path().join("model"), Dtype::BF16);
        let goal = Goal { format: Format::Safetensors, dtype, out: out.clone() };
        let file_shape = model_files::Shape::of_config(&config).unwrap();
        model_files::synthesise(&file_shape, 7, &goal, &|_, _| Ok(())).unwrap();
        let folder = ModelFolder::open(&out).unwrap();
        let shape = Shape { context: 1 << 20, ..Shape::of(&folder).unwrap() };
        let plan = Plan::of(&folder, &shape, RequestedFormat::File).unwrap();
        let chosen = |requested, available| {
            choose_context(&shape, KvDtype::F16, &plan, requested, Some(available))
                .map(|(tokens, _)| tokens)
                .ok()
        };
        let needed = plan.bytes() + Cache::bytes_for(&shape, 4096, KvDtype::F16) as u64;
        assert_eq!((chosen(None, needed), chosen(None, needed - 1)), (Some(4096), Some(2048)));
        assert_eq!((chosen(Some(4096), needed), chosen(Some(4096), needed - 1)), (Some(4096), None));
        assert_eq!(
            (chosen(None, plan.bytes()), chosen(None, plan.bytes() - 1)),
            (Some(BLOCK_POSITIONS), None)
        );
    }
}
