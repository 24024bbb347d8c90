//! Tests that each sequence of a batch has the ids that it has alone.

use super::{SHAPES, Tiny, job, prompt, run};

#[test]
fn each_sequence_of_a_batch_has_the_ids_that_it_has_alone() {
    // One prompt has a single id, so its row is almost all pads.
    let prompts: Vec<Vec<u32>> =
        [9, 1, 30, 17].into_iter().map(|length| prompt(length + 5)[5..].to_vec()).collect();
    for shape in SHAPES {
        let mut model = Tiny::new(shape).load();
        let alone: Vec<Vec<u32>> = prompts
            .iter()
            .map(|prompt| run(&mut model, &job(std::slice::from_ref(prompt), 12)).remove(0))
            .collect();
        assert_eq!(run(&mut model, &job(&prompts, 12)), alone, "{shape}");
        let without_cache = engine_kit::Job { use_cache: false, ..job(&prompts, 12) };
        assert_eq!(run(&mut model, &without_cache), alone, "{shape} without a cache");
    }
}

#[test]
fn a_sequence_that_ends_early_does_not_change_the_others() {
    let mut model = Tiny::new("tiny-llama").load();
    let prompts = [prompt(7), prompt(12)];
    let alone =
        prompts.each_ref().map(|prompt| run(&mut model, &job(std::slice::from_ref(prompt), 10)).remove(0));
    let job = job(&prompts, 10);
    let eos = alone[0][2];
    assert!(!alone[1].contains(&eos), "the second sequence would end too");
    let mut tokens = engine_kit::Tokens::collecting(&job.prompts, 10, &[eos]);
    engine_kit::Model::generate(&mut model, &job, &mut tokens).unwrap();
    assert_eq!(tokens.ids(0).last(), Some(&eos));
    assert!(tokens.ids(0).len() <= 3);
    assert_eq!(tokens.ids(1), alone[1]);
}
