//! The context of a load: the requested tokens, or the model's context as far as memory allows.

use protocol::Failed;

use crate::cache::Cache;
use crate::kernels::attention::{Stored, TILE};
use crate::shape::Shape;
use crate::weights::Plan;

/// The tokens, and a note if they are fewer than the model's context.
pub fn context(
    shape: &Shape,
    stored: Stored,
    plan: &Plan,
    asked: Option<u32>,
    available_bytes: Option<u64>,
) -> Result<(usize, Option<String>), Failed> {
    let whole = shape.context;
    let bytes = |tokens| Cache::bytes_for(shape, tokens, stored) as u64;
    // A cache is touched as it fills, so without an explicit request its full memory is not required.
    let Some(asked) = asked else {
        plan.expect_room(0, available_bytes)?;
        let left = available_bytes.map_or(u64::MAX, |available| available.saturating_sub(plan.bytes()));
        let tokens = longest(whole, |tokens| bytes(tokens) <= left);
        let why = || {
            format!(
                "a context of {tokens} tokens, of the model's {whole}: their keys and values would take {} bytes, and {left} \
                 are left; `context_tokens` asks for another",
                bytes(whole)
            )
        };
        return Ok((tokens, (tokens < whole).then(why)));
    };
    let tokens = whole.min(asked as usize);
    plan.expect_room(bytes(tokens), available_bytes)?;
    Ok((tokens, None))
}

/// All tokens, or the largest power of two that fits: free memory changes from load to load, and the context should not.
fn longest(whole: usize, fits: impl Fn(usize) -> bool) -> usize {
    if fits(whole) {
        return whole;
    }
    let mut tokens = whole.next_power_of_two();
    while tokens > TILE && (tokens >= whole || !fits(tokens)) {
        tokens /= 2;
    }
    tokens.min(whole)
}

#[cfg(test)]
mod tests {
    use model_files::{Dtype, Format, Goal, ModelFolder};

    use super::*;
    use crate::weights::Asked;

    #[test]
    fn all_is_offered_where_it_fits_and_else_a_power_of_two_that_does() {
        let longest = |whole, room| longest(whole, |tokens| tokens <= room);
        assert_eq!((longest(131_072, 131_072), longest(7_900_000, usize::MAX)), (131_072, 7_900_000));
        assert_eq!((longest(131_072, 131_071), longest(131_072, 40_000)), (65_536, 32_768));
        assert_eq!((longest(7_900_000, 7_899_999), longest(5000, 4500)), (4_194_304, 4096));
        // The kit reports texts that do not fit; a load with room for no token would be useless.
        assert_eq!((longest(5000, 0), longest(40, 0)), (TILE, 40));
    }

    #[test]
    fn what_the_weights_take_is_not_left_to_keys_and_values() {
        let (folder, model) = (env!("CARGO_MANIFEST_DIR"), tempfile::tempdir().unwrap());
        let config = std::path::Path::new(folder).join("tests/golden/configs/llama.json");
        let (out, dtype) = (model.path().join("model"), Dtype::BF16);
        let goal = Goal { format: Format::Safetensors, dtype, out: out.clone() };
        let numbers = model_files::Shape::of_config(&config).unwrap();
        model_files::synthesise(&numbers, 7, &goal, &|_, _| Ok(())).unwrap();
        let folder = ModelFolder::open(&out).unwrap();
        let shape = Shape { context: 1 << 20, ..Shape::of(&folder).unwrap() };
        let plan = Plan::of(&folder, &shape, Asked::Own).unwrap();
        let told = |asked, available| {
            context(&shape, Stored::F16, &plan, asked, Some(available)).map(|(tokens, _)| tokens).ok()
        };
        let all = plan.bytes() + Cache::bytes_for(&shape, 4096, Stored::F16) as u64;
        assert_eq!((told(None, all), told(None, all - 1)), (Some(4096), Some(2048)));
        assert_eq!((told(Some(4096), all), told(Some(4096), all - 1)), (Some(4096), None));
        assert_eq!((told(None, plan.bytes()), told(None, plan.bytes() - 1)), (Some(TILE), None));
    }
}
