//! Batches of real engines: each sequence has the ids that it has alone.

use std::path::Path;

use model_files::{Dtype, Format, Goal, ModelFolder, convert, embedded};
use protocol::{Generate, Generated, Padding};

use crate::engine::{Engine, GENERATED_TOKENS, slot};
use crate::support::Scratch;

/// Two tokens whose log-probabilities differ by less than this are equally likely: sums in another order decide between them.
const EQUALLY_LIKELY: f64 = 1e-3;

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
    let mut tested = Vec::new();
    for mut engine in Engine::start_all() {
        let capabilities = engine.hello.capabilities.clone();
        if capabilities.batch < 4 || !engine.uses_ids() {
            continue;
        }
        let (model, dtype): (&Path, _) =
            if engine.reads(Format::Safetensors) { (&folder, Some("f32")) } else { (&gguf, None) };
        engine.load(model, dtype).unwrap_or_else(|refused| panic!("{}: {refused:?}", engine.name));
        let layouts = std::iter::once((&even, Padding::Left));
        for (prompts, padding) in
            layouts.chain(capabilities.padding_sides.iter().map(|&side| (&uneven, side)))
        {
            let alone: Vec<Vec<u32>> = prompts.iter().map(|prompt| engine.generate(prompt)).collect();
            let together = ids_of_batch(&mut engine, prompts, padding);
            for ((prompt, alone), together) in prompts.iter().zip(&alone).zip(&together) {
                let Some(at) = alone.iter().zip(together).position(|(a, b)| a != b) else {
                    assert_eq!(alone.len(), together.len(), "{}", engine.name);
                    continue;
                };
                let after = [prompt, &alone[..at]].concat();
                let difference = engine.logprob_difference(&after, alone[at], together[at]);
                assert!(
                    difference.abs() < EQUALLY_LIKELY,
                    "{} with padding {padding:?}: token {at} after {} tokens is {} alone and {} in a batch, and their \
                     log-probabilities differ by {difference}",
                    engine.name,
                    prompt.len(),
                    alone[at],
                    together[at]
                );
            }
        }
        tested.push(engine.name.clone());
    }
    println!("batches of {tested:?}");
    assert!(tested.len() > 1, "{tested:?}");
}
