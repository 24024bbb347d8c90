//! Batches of real engines: each sequence has the ids that it has alone.

use std::path::Path;

use model_files::{Dtype, Format, Goal, ModelFolder, convert, embedded};
use protocol::{Generate, Generated, Padding};

use crate::engine::{Engine, GENERATED_TOKENS, slot};
use crate::support::Scratch;

fn ids_of_batch(engine: &mut Engine, prompts: &[Vec<u32>], padding: Padding) -> Vec<Vec<u32>> {
    let request = Generate {
        prompts_ids: Some(prompts.to_vec()),
        max_new_tokens: GENERATED_TOKENS,
        ignore_eos: true,
        padding,
        ..Generate::default()
    };
    let Generated { mut iterations, .. } = engine.generated(request);
    iterations.remove(0).sequences.into_iter().map(|sequence| sequence.output_ids.unwrap()).collect()
}

#[test]
fn each_sequence_of_a_batch_has_the_ids_that_it_has_alone_in_f32() {
    let (_slot, scratch) = (slot(), Scratch::new());
    let (folder, gguf) = (embedded::folder().unwrap(), scratch.join("f32.gguf"));
    let goal = Goal { format: Format::Gguf, dtype: Dtype::named("f32").unwrap(), out: gguf.clone() };
    convert(&ModelFolder::open(&folder).unwrap(), &goal, &|_, _| Ok(())).unwrap();
    let text: Vec<u32> = (0..200).map(|index| 3 + index * 37 % 1500).collect();
    let even: Vec<Vec<u32>> = (0..4).map(|index| text[index * 20..][..40].to_vec()).collect();
    let uneven: Vec<Vec<u32>> = [3, 64, 17, 40].map(|length| text[..length].to_vec()).to_vec();
    let mut tested = 0;
    for mut engine in Engine::start_all() {
        let capabilities = engine.hello.capabilities.clone();
        if capabilities.batch < 4 || !engine.uses_ids() {
            continue;
        }
        let model: &Path = if engine.reads(Format::Safetensors) { &folder } else { &gguf };
        engine.load_in_f32(model).unwrap_or_else(|refused| panic!("{}: {refused:?}", engine.name));
        let alone: Vec<Vec<u32>> = even.iter().map(|prompt| engine.generate(prompt)).collect();
        assert_eq!(ids_of_batch(&mut engine, &even, Padding::Left), alone, "{}", engine.name);
        let alone: Vec<Vec<u32>> = uneven.iter().map(|prompt| engine.generate(prompt)).collect();
        for &padding in &capabilities.padding_sides {
            let together = ids_of_batch(&mut engine, &uneven, padding);
            assert_eq!(together, alone, "{} with padding {padding:?}", engine.name);
        }
        tested += 1;
    }
    assert!(tested > 1, "{tested}");
}
