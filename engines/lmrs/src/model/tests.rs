//! Tests the model on a toy network without weights, whose answers are all known.

use engine_kit::sampling::{Rng, log_softmax_at, sample};
use engine_kit::{Job, Model, Slots, Tokens};
use protocol::{Facts, Failed, FailureKind, Padding, Sampling, Speculation};

use super::decoder::{Decoder, MAX_DECODE_ROWS, Predictions, Span, Wanted};
use super::step::MAX_ROWS_WHILE_DECODING;
use super::{LoadedModel, MAX_PASS_ROWS};
use crate::matrix::Rows;
use crate::pool::Pool;

/// The `memory` of a network whose next id depends on all earlier ids.
const ALL_IDS: usize = usize::MAX;

/// `lookup` is the most ids of a draft; 0 means no drafts.
fn model(toy: ToyNetwork, lookup: usize) -> LoadedModel<ToyNetwork> {
    LoadedModel::new(toy, Facts::default(), lookup)
}

/// Pseudo-random ids.
fn prompt(length: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..length).map(|_| (rng.next_f64() * VOCABULARY as f64) as u32).collect()
}

fn job(prompts: &[Vec<u32>], max_new_tokens: u32) -> Job {
    Job {
        prompts: prompts.to_vec(),
        max_new_tokens,
        sampling: None,
        ignore_eos: true,
        use_cache: true,
        prefix_cache: false,
        padding: Padding::Left,
        speculation: Speculation::PromptLookup,
    }
}

fn generate(model: &mut LoadedModel<ToyNetwork>, job: &Job, eos: &[u32]) -> Vec<Vec<u32>> {
    let mut tokens = Tokens::collecting(&job.prompts, job.max_new_tokens, eos);
    model.generate(job, &mut tokens).unwrap();
    assert!(tokens.all_done());
    (0..job.prompts.len()).map(|index| tokens.ids(index).to_vec()).collect()
}

fn sampling_of(seed: u64) -> Option<Sampling> {
    Some(Sampling { temperature: 1.5, top_k: 0, top_p: None, seed })
}

#[test]
fn greedy_takes_the_likeliest_id_at_every_step_for_prompts_of_any_length() {
    for length in [1, 2, 3, MAX_PASS_ROWS - 1, MAX_PASS_ROWS, MAX_PASS_ROWS + 1, 3 * MAX_PASS_ROWS] {
        let (mut model, prompt) = (model(ToyNetwork::new(ALL_IDS), 0), prompt(length, 1));
        let expected = model.decoder.expected(&prompt, 9);
        assert_eq!(
            generate(&mut model, &job(std::slice::from_ref(&prompt), 9), &[]),
            std::slice::from_ref(&expected)
        );
        let prefills = length.div_ceil(MAX_PASS_ROWS);
        assert_eq!(model.decoder.passes.len(), prefills + 8, "a pass for each token after the first");
        let without_cache = Job { use_cache: false, ..job(&[prompt], 9) };
        assert_eq!(generate(&mut model, &without_cache, &[]), [expected]);
    }
}

#[test]
fn a_batch_gives_the_ids_of_single_prompts_with_and_without_an_eos() {
    let prompts: Vec<_> = [5, 700, 1, 40, 513].iter().map(|&length| prompt(length, length as u64)).collect();
    let mut model = model(ToyNetwork::new(ALL_IDS), 0);
    let expected: Vec<_> = prompts.iter().map(|prompt| model.decoder.expected(prompt, 20)).collect();
    for padding in [Padding::Left, Padding::Right, Padding::Packed] {
        assert_eq!(generate(&mut model, &Job { padding, ..job(&prompts, 20) }, &[]), expected);
    }
    let eos = expected[3][4];
    let until_eos = |ids: &Vec<u32>| match ids.iter().position(|&id| id == eos) {
        Some(end) => ids[..=end].to_vec(),
        None => ids.clone(),
    };
    let expected: Vec<_> = expected.iter().map(until_eos).collect();
    model.decoder.passes.clear();
    assert_eq!(generate(&mut model, &job(&prompts, 20), &[eos]), expected);
    let rows: usize = model.decoder.passes.iter().flatten().sum();
    let needed = |(prompt, ids): (&Vec<u32>, &Vec<u32>)| prompt.len() + ids.len() - 1;
    let all_needed: usize = prompts.iter().zip(&expected).map(needed).sum();
    assert_eq!(rows, all_needed, "a sequence that has ended takes no more rows");
    assert!(model.decoder.passes.iter().all(|rows| rows.iter().sum::<usize>() <= MAX_PASS_ROWS));
}

#[test]
fn sampling_draws_from_the_logits_with_a_generator_for_each_sequence() {
    let prompts = [prompt(4, 1), prompt(9, 2)];
    let mut model = model(ToyNetwork::new(ALL_IDS), 4);
    let sampling = sampling_of(11);
    let expected = |index: usize| {
        let (mut ids, mut rng) = (prompts[index].clone(), Rng::for_sequence(&sampling, index));
        (0..12).for_each(|_| ids.push(sample(&model.decoder.logits(&ids), &sampling, &mut rng)));
        ids.split_off(prompts[index].len())
    };
    let expected = [expected(0), expected(1)];
    let job = Job { sampling, ..job(&prompts, 12) };
    assert_eq!(generate(&mut model, &job, &[]), expected);
    assert_eq!(generate(&mut model, &Job { use_cache: false, ..job.clone() }, &[]), expected);
    assert_ne!(generate(&mut model, &Job { sampling: sampling_of(12), ..job }, &[]), expected);
}

#[test]
fn prompt_lookup_changes_no_id_and_saves_passes_where_the_text_repeats_itself() {
    for (memory, repeats) in [(1, true), (2, true), (ALL_IDS, false)] {
        for lookup in [1, 2, 7] {
            let prompts = [prompt(30, 3), prompt(7, 4)];
            let (mut plain, mut drafting) =
                (model(ToyNetwork::new(memory), 0), model(ToyNetwork::new(memory), lookup));
            let job = job(&prompts, 300);
            // The longest sequence has 330 ids, and the last one never enters the network.
            drafting.decoder.context = 330 - 1;
            assert_eq!(generate(&mut drafting, &job, &[]), generate(&mut plain, &job, &[]));
            let (plain_passes, drafting_passes) = (plain.decoder.passes.len(), drafting.decoder.passes.len());
            // Accidental matches save fewer than 50 of 300 passes, repeated text more.
            assert_eq!(
                drafting_passes < plain_passes - 50,
                repeats,
                "{drafting_passes} passes with drafts, {plain_passes} without"
            );
            let eos = [drafting.decoder.expected(&prompts[0], 89)[88]];
            assert_eq!(generate(&mut drafting, &job, &eos), generate(&mut plain, &job, &eos));
        }
    }
}

#[test]
fn scores_are_the_log_probabilities_of_the_network_and_no_pass_exceeds_the_limit() {
    let ids = prompt(600, 5);
    let mut model = model(ToyNetwork::new(ALL_IDS), 0);
    let scores = model.score(&ids).unwrap();
    let expected = |at: usize| log_softmax_at(&model.decoder.logits(&ids[..at]), ids[at]);
    assert_eq!(scores, (1..ids.len()).map(expected).collect::<Vec<_>>());
    assert!(model.decoder.passes.iter().all(|rows| rows[0] <= MAX_PASS_ROWS));
    assert_eq!(model.score(&ids[..2]).unwrap(), scores[..1]);
}

#[test]
fn overlapping_requests_give_the_ids_of_single_requests() {
    let prompts: Vec<_> = [300, 2, 900, 17, 64].iter().map(|&length| prompt(length, length as u64)).collect();
    for lookup in [0, 3] {
        let mut model = model(ToyNetwork::new(2), lookup);
        let sampled = |slot: usize| if slot == 3 { sampling_of(5) } else { None };
        let request =
            |slot: usize| Job { sampling: sampled(slot), ..job(&prompts[slot..=slot], 10 + slot as u32) };
        let expected: Vec<_> =
            (0..prompts.len()).map(|slot| generate(&mut model, &request(slot), &[]).remove(0)).collect();
        let mut tokens: Vec<Option<Tokens>> = prompts.iter().map(|_| None).collect();
        let mut done = vec![Vec::new(); prompts.len()];
        for step in 0.. {
            // A new request every third step.
            if step % 3 == 0 && step / 3 < prompts.len() {
                let job = request(step / 3);
                tokens[step / 3] = Some(Tokens::collecting(&job.prompts, job.max_new_tokens, &[]));
                model.admit(step / 3, &job).unwrap();
            }
            model.step(&mut tokens).unwrap();
            for slot in 0..prompts.len() {
                if let Some(finished) = tokens[slot].take_if(|tokens| tokens.all_done()) {
                    done[slot] = finished.ids(0).to_vec();
                    model.leave(slot);
                }
            }
            if done.iter().all(|ids| !ids.is_empty()) {
                break;
            }
        }
        assert_eq!(done, expected);
        assert!(model.admitted.is_empty());
    }
}

#[test]
fn a_request_reuses_the_memory_of_a_cache_and_not_its_contents() {
    let mut model = model(ToyNetwork::new(ALL_IDS), 0);
    for seed in 0..5 {
        let prompt = prompt(6, seed);
        let expected = model.decoder.expected(&prompt, 4);
        assert_eq!(generate(&mut model, &job(&[prompt], 4), &[]), [expected]);
    }
    assert_eq!(model.decoder.caches, 1);
}

#[test]
fn a_prompt_that_begins_like_an_earlier_one_is_computed_from_there_if_both_requests_allow_it() {
    let (mut model, first) = (model(ToyNetwork::new(ALL_IDS), 0), prompt(40, 1));
    let allowed =
        |prompt: &[u32], new_tokens| Job { prefix_cache: true, ..job(&[prompt.to_vec()], new_tokens) };
    // The rows of the first pass: those of the prompt that were computed.
    let mut computed = |job: Job| {
        model.decoder.passes.clear();
        let expected = model.decoder.expected(&job.prompts[0], job.max_new_tokens as usize);
        assert_eq!(generate(&mut model, &job, &[]), std::slice::from_ref(&expected));
        (model.decoder.passes[0][0], expected)
    };
    let (rows, answer) = computed(allowed(&first, 60));
    assert_eq!(rows, 40);
    let second = [&first[..], &answer[..4], &prompt(30, 2)].concat();
    assert_eq!(computed(allowed(&second, 4)).0, 30);
    assert_eq!(computed(allowed(&second, 4)).0, 1);
    // A prompt with another start leaves the cache to others.
    assert_eq!(computed(allowed(&prompt(20, 3), 4)).0, 20);
    assert_eq!(computed(allowed(&second, 4)).0, 1);
    // A request without permission uses nothing and leaves nothing.
    for _ in 0..2 {
        assert_eq!(computed(job(std::slice::from_ref(&second), 4)).0, 74);
    }
    assert_eq!(computed(allowed(&second, 4)).0, 74);
    assert_eq!(computed(Job { use_cache: false, ..allowed(&second, 1) }).0, 74);
}

#[test]
fn the_oldest_caches_are_dropped_if_many_keep_their_contents() {
    let mut model = model(ToyNetwork::new(ALL_IDS), 0);
    let prompts: Vec<_> = (0..super::MAX_KEPT as u64 + 3).map(|seed| prompt(20, seed)).collect();
    for prompt in &prompts {
        generate(&mut model, &Job { prefix_cache: true, ..job(std::slice::from_ref(prompt), 2) }, &[]);
    }
    assert_eq!((model.decoder.caches, model.spare.len()), (super::MAX_KEPT, super::MAX_KEPT));
    model.decoder.passes.clear();
    for seed in [prompts.len() - 1, 0] {
        let job = Job { prefix_cache: true, ..job(&prompts[seed..=seed], 2) };
        generate(&mut model, &job, &[]);
    }
    let prompts_computed: Vec<usize> = model.decoder.passes.iter().map(|rows| rows[0]).collect();
    assert_eq!(prompts_computed, [1, 1, 20, 1]);
}

#[test]
fn a_request_longer_than_the_earlier_ones_replaces_their_memory() {
    let mut model = model(ToyNetwork::new(ALL_IDS), 0);
    // Without new tokens, the prompt is scored.
    for (length, new_tokens, caches) in [(6, 4, 1), (3, 7, 1), (6, 5, 2), (10, 1, 2), (1, 1, 2), (12, 0, 3)] {
        let prompt = prompt(length, 1);
        let expected = model.decoder.expected(&prompt, new_tokens as usize);
        match new_tokens {
            0 => assert_eq!(model.score(&prompt).unwrap().len(), length - 1),
            _ => assert_eq!(generate(&mut model, &job(&[prompt], new_tokens), &[]), [expected]),
        }
        assert_eq!((model.decoder.caches, model.spare.len()), (caches, 1), "{length} + {new_tokens} ids");
    }
    // The longest sequence of a batch sets the size for all.
    let batch = [prompt(1, 1), prompt(20, 2), prompt(2, 3)];
    (0..3).for_each(|_| drop(generate(&mut model, &job(&batch, 3), &[])));
    assert_eq!((model.decoder.caches, model.spare.len()), (6, 3));
}

#[test]
fn a_pass_of_a_large_batch_generates_at_most_eight_tokens() {
    for use_cache in [true, false] {
        let prompts: Vec<_> = (0..20).map(|index| prompt(1 + 37 * index % 90, index as u64)).collect();
        let mut model = model(ToyNetwork::new(ALL_IDS), 0);
        let expected: Vec<_> = prompts.iter().map(|prompt| model.decoder.expected(prompt, 5)).collect();
        assert_eq!(generate(&mut model, &Job { use_cache, ..job(&prompts, 5) }, &[]), expected);
        let decoding =
            model.decoder.passes.iter().rev().take_while(|rows| rows.iter().all(|rows| *rows == 1));
        assert!(!use_cache || decoding.count() >= 4 * 3, "four more tokens of 20 sequences, 8 in a pass");
    }
}

#[test]
fn one_pass_computes_the_first_tokens_of_at_most_eight_prompts() {
    // `ToyNetwork` checks the grouping of every pass.
    for lengths in [[20; 8].as_slice(), &[20; 9], &[20, 20, 20, 20, 20, 20, 20, 20, 300], &[9; 28]] {
        let prompts: Vec<_> = (0..).zip(lengths).map(|(seed, &length)| prompt(length, seed)).collect();
        let mut model = model(ToyNetwork::new(ALL_IDS), 0);
        let expected: Vec<_> = prompts.iter().map(|prompt| model.decoder.expected(prompt, 2)).collect();
        assert_eq!(generate(&mut model, &job(&prompts, 2), &[]), expected);
    }
}

/// Makes a model, and admits a request for each prompt length. Also returns the `Tokens` that collect each request's tokens.
fn model_with_requests(
    lengths: &[usize],
    max_new_tokens: u32,
) -> (LoadedModel<ToyNetwork>, Vec<Option<Tokens>>) {
    let mut model = model(ToyNetwork::new(ALL_IDS), 0);
    let admit = |(slot, length): (usize, &usize)| {
        let job = job(&[prompt(*length, slot as u64)], max_new_tokens);
        model.admit(slot, &job).unwrap();
        Some(Tokens::collecting(&job.prompts, max_new_tokens, &[]))
    };
    let tokens = lengths.iter().enumerate().map(admit).collect();
    (model, tokens)
}

fn generated_tokens(tokens: &[Option<Tokens>], slot: usize) -> usize {
    tokens[slot].as_ref().unwrap().ids(0).len()
}

#[test]
fn a_token_does_not_wait_for_the_long_prompt_of_another_request() {
    let (mut model, mut tokens) = model_with_requests(&[5, 4000], 100);
    for step in 1..=20 {
        model.decoder.passes.clear();
        model.step(&mut tokens).unwrap();
        assert_eq!((generated_tokens(&tokens, 0), generated_tokens(&tokens, 1)), (step, 0));
        let rows: usize = model.decoder.passes.iter().flatten().sum();
        assert!(step == 1 || rows <= MAX_ROWS_WHILE_DECODING + 1, "{rows} rows between two tokens");
    }
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let (mut model, mut tokens) = model_with_requests(&[9000, 60, 3], 4);
    model.step(&mut tokens).unwrap();
    assert_eq!([0, 1, 2].map(|slot| generated_tokens(&tokens, slot)), [0, 1, 1]);
}

#[test]
fn a_smaller_request_frees_the_memory_of_a_large_batch() {
    let prompts: Vec<_> = (0..9).map(|index| prompt(6, index)).collect();
    let mut model = model(ToyNetwork::new(ALL_IDS), 0);
    generate(&mut model, &job(&prompts, 2), &[]);
    generate(&mut model, &job(&prompts, 2), &[]);
    assert_eq!((model.decoder.caches, model.spare.len()), (9, 9));
    generate(&mut model, &job(&prompts[..2], 2), &[]);
    assert_eq!((model.decoder.caches, model.spare.len()), (9, 2));
    model.score(&prompts[0]).unwrap();
    assert_eq!((model.decoder.caches, model.spare.len()), (9, 1));
}

const VOCABULARY: usize = 29;

/// A network without weights: the next id is a hash of the last few ids, whichever passes they went through.
struct ToyNetwork {
    pool: Pool,
    /// The number of last ids that enter the hash. If it is small, a text soon repeats itself.
    memory: usize,
    context: usize,
    /// For each pass: the rows of each of its spans.
    passes: Vec<Vec<usize>>,
    /// Caches created so far.
    caches: usize,
}

impl ToyNetwork {
    fn new(memory: usize) -> Self {
        Self { pool: Pool::new(2), memory, context: usize::MAX, passes: Vec::new(), caches: 0 }
    }

    /// The logits of the id after these.
    fn logits(&self, ids: &[u32]) -> Vec<f32> {
        let last = &ids[ids.len().saturating_sub(self.memory)..];
        let mut hash = last.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &id| {
            (hash ^ u64::from(id + 1)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mut next = || {
            hash = (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (hash >> 40) as f32 / (1 << 22) as f32
        };
        (0..VOCABULARY).map(|_| next()).collect()
    }

    /// The greedy continuation of a prompt, computed id by id.
    fn expected(&self, prompt: &[u32], count: usize) -> Vec<u32> {
        let mut ids = prompt.to_vec();
        (0..count).for_each(|_| ids.push(engine_kit::sampling::greedy(&self.logits(&ids))));
        ids.split_off(prompt.len())
    }
}

impl Decoder for ToyNetwork {
    type Cache = Vec<u32>;

    fn new_cache(&mut self, ids: usize) -> Result<Vec<u32>, Failed> {
        self.caches += 1;
        Ok(Vec::with_capacity(ids))
    }

    fn capacity(&self, cache: &Vec<u32>) -> usize {
        cache.capacity()
    }

    fn forward(
        &mut self,
        spans: &mut [Span<'_, Vec<u32>>],
        predictions: &mut Predictions,
    ) -> Result<(), Failed> {
        assert!(!spans.is_empty() && spans.iter().all(|span| !span.ids.is_empty()), "a pass without rows");
        assert_grouping(spans);
        self.passes.push(spans.iter().map(|span| span.ids.len()).collect());
        predictions.ids.clear();
        let mut rows = Vec::new();
        for span in spans {
            assert!(span.cache.len() + span.ids.len() <= span.cache.capacity(), "the cache is too small");
            for (row, &id) in span.ids.iter().enumerate() {
                span.cache.push(id);
                let logits = self.logits(span.cache);
                let is_last = row + 1 == span.ids.len();
                match span.wanted {
                    Wanted::Largest if is_last => predictions.ids.push(engine_kit::sampling::greedy(&logits)),
                    Wanted::EveryLargest => predictions.ids.push(engine_kit::sampling::greedy(&logits)),
                    Wanted::Logits if is_last => rows.push(logits),
                    _ => {}
                }
            }
            if span.cache.len() > self.context {
                return Err(Failed::new(FailureKind::Internal, "beyond the context"));
            }
        }
        predictions.logits.reshape(rows.len(), VOCABULARY);
        rows.iter()
            .enumerate()
            .for_each(|(row, logits)| predictions.logits.row_mut(row).copy_from_slice(logits));
        Ok(())
    }

    fn forward_each(
        &mut self,
        cache: &mut Vec<u32>,
        ids: &[u32],
        on_logits: &mut dyn FnMut(&Pool, &Rows),
    ) -> Result<(), Failed> {
        self.passes.push(vec![ids.len()]);
        for ids in ids.chunks(7) {
            let mut logits = Rows::new(ids.len(), VOCABULARY); // a few rows at a time
            for (row, &id) in ids.iter().enumerate() {
                cache.push(id);
                logits.row_mut(row).copy_from_slice(&self.logits(cache));
            }
            on_logits(&self.pool, &logits);
        }
        Ok(())
    }

    fn truncate(&mut self, cache: &mut Vec<u32>, ids: usize) {
        assert!(ids <= cache.len(), "a truncation beyond the ids of the cache");
        cache.truncate(ids);
    }
}

/// Checks that a pass has only long spans, or at most `MAX_DECODE_ROWS` rows, and that at most `MAX_DECODE_ROWS` rows need
/// logits. Only then can a network guarantee that a row has the same bits in every pass.
fn assert_grouping(spans: &[Span<'_, Vec<u32>>]) {
    let rows = |span: &Span<'_, _>| span.ids.len();
    if spans.iter().any(|span| rows(span) > MAX_DECODE_ROWS) {
        assert!(spans.iter().all(|span| rows(span) > MAX_DECODE_ROWS && span.wanted != Wanted::EveryLargest));
    } else {
        assert!(spans.iter().map(rows).sum::<usize>() <= MAX_DECODE_ROWS);
    }
    assert!(spans.iter().map(|span| span.wanted_rows().len()).sum::<usize>() <= MAX_DECODE_ROWS);
}
