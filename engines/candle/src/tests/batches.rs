//! Tests batches: each sequence has the ids that it has alone.

use candle_core::Device;
use candle_core::quantized::GgmlDType;
use engine_kit::{Job, Model, Tokens};
use protocol::Sampling;

use super::running::{all_models, load_gguf};
use super::{LLAMA, QWEN3, greedy, job, load_safetensors, message, run, run_batch};

/// Prompts of one length, and prompts of several lengths; the shortest is not the first.
fn batches() -> [Vec<Vec<u32>>; 2] {
    let prompt = |start: u32, length: u32| (0..length).map(|index| (start + index * 31) % 97).collect();
    [vec![prompt(5, 6), prompt(40, 6), prompt(71, 6)], vec![prompt(5, 9), prompt(8, 2), prompt(40, 17)]]
}

fn batch(prompts: &[Vec<u32>], max_new_tokens: u32) -> Job {
    Job { prompts: prompts.to_vec(), ..job(&[], max_new_tokens) }
}

#[test]
fn each_sequence_of_a_batch_has_the_ids_that_it_has_alone() {
    for (name, mut model) in all_models(48) {
        let decoder = &model.network.decoder;
        let (keeps_masks, computes_batches) = (decoder.keeps_masks(), decoder.computes_batches(&Device::Cpu));
        if !computes_batches {
            assert_eq!(name, "qwen3 from GGUF");
            continue;
        }
        // With one new token, a sequence that is done no longer delays the longer prompts.
        for (prompts, new_tokens) in batches().iter().flat_map(|prompts| [(prompts, 16), (prompts, 1)]) {
            let alone: Vec<_> = prompts.iter().map(|prompt| greedy(&mut model, prompt, new_tokens)).collect();
            let job = batch(prompts, new_tokens);
            assert_eq!(run_batch(&mut model, &job, &[]), alone, "{name}");
            if !keeps_masks {
                let job = Job { use_cache: false, ..job };
                assert_eq!(run_batch(&mut model, &job, &[]), alone, "{name} without the cache");
            }
        }
    }
}

#[test]
fn a_sequence_that_ends_early_does_not_change_the_others() {
    let mut model = load_safetensors(LLAMA);
    for prompts in batches() {
        let alone: Vec<_> = prompts.iter().map(|prompt| greedy(&mut model, prompt, 16)).collect();
        let is_of_one = |id: &&u32| alone.iter().filter(|ids| ids.contains(id)).count() == 1;
        let eos = *alone[1].iter().take(4).find(is_of_one).unwrap();
        let end = alone[1].iter().position(|&id| id == eos).unwrap() + 1;
        let outputs = run_batch(&mut model, &batch(&prompts, 16), &[eos]);
        assert_eq!(outputs, [alone[0].clone(), alone[1][..end].to_vec(), alone[2].clone()]);
    }
}

#[test]
fn each_sequence_of_a_batch_is_sampled_with_its_own_random_numbers() {
    let mut model = load_safetensors(LLAMA);
    let sampling = Some(Sampling { temperature: 2.0, seed: 3, ..Sampling::default() });
    let prompt = vec![0, 5, 9];
    let alone = run(&mut model, &Job { sampling, ..job(&prompt, 16) });
    let job = Job { sampling, ..batch(&[prompt.clone(), prompt], 16) };
    let together = run_batch(&mut model, &job, &[]);
    assert_eq!(together[0], alone);
    assert_ne!(together[1], alone);
}

#[test]
fn a_batch_is_refused_for_a_qwen3_gguf_on_a_cpu() {
    let (mut model, job) = (load_gguf(QWEN3, GgmlDType::F32), batch(&[vec![1], vec![2]], 2));
    let mut tokens = Tokens::collecting(&job.prompts, 2, &[]);
    let failure = message(model.generate(&job, &mut tokens));
    assert_eq!(failure, "unsupported: a batch on this GGUF: candle computes one sequence at a time on a CPU");
}
