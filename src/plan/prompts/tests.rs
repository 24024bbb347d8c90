use protocol::Padding;

use super::*;
use crate::plan::axes::Shape;

fn prompts() -> Prompts {
    Prompts::open(&model_files::resolve(None).unwrap().to_string_lossy()).unwrap()
}

fn key(block: u32, kind: RequestKind, index: u32) -> PromptKey {
    PromptKey { seed: 0, nonce: None, block, kind, index, sequence: 0 }
}

/// The only prompt of a request.
fn one(prompts: &Prompts, workload: &Workload, key: PromptKey) -> Vec<u32> {
    let [ids] = &prompts.batch(workload, key).unwrap()[..] else { panic!("a batch") };
    ids.clone()
}

#[test]
fn the_prompts_of_a_batch_differ_and_the_first_is_the_prompt_of_a_single_request() {
    let prompts = prompts();
    let mut workload = Workload::specimen(Prompt::Tokens(64));
    let key = key(1, RequestKind::Measured, 2);
    let alone = one(&prompts, &workload, key);
    workload.shape = Shape { batch: 5, padding: Some(Padding::Left), ..Shape::default() };
    let batch = prompts.batch(&workload, key).unwrap();
    assert_eq!(batch.iter().map(Vec::len).collect::<Vec<_>>(), [64, 48, 32, 16, 64]);
    assert_eq!(batch[0], alone);
    assert_ne!(batch[4], alone);
    assert_ne!(hash_of_batch(&batch), hash(&alone));
    let capabilities = Capabilities { prompt_ids: true, ..Capabilities::default() };
    let request = prompts.request(&workload, &batch, Some(&capabilities), 1);
    assert_eq!((request.prompts_ids, request.prompt_ids), (Some(batch), None));
}

#[test]
fn the_prompts_of_a_window_may_share_their_beginning_and_nothing_else() {
    let (prompts, nothing_shared) = (prompts(), Workload::specimen(Prompt::Tokens(64)));
    let shape = Shape { requests: Some(5), ..Shape::default() };
    let with_prefix = |tokens| Workload {
        shape: Shape { shared_prefix: tokens, ..shape },
        prompt: Prompt::Tokens(64 + tokens),
        ..nothing_shared.clone()
    };
    let windows: Vec<_> = [0, 1]
        .into_iter()
        .map(|it| prompts.batch(&with_prefix(32), key(1, RequestKind::Measured, it)).unwrap())
        .collect();
    let starts_of = |batch: &[Vec<u32>], tokens: usize| -> std::collections::BTreeSet<Vec<u32>> {
        batch.iter().map(|ids| ids[..tokens].to_vec()).collect()
    };
    for batch in &windows {
        assert_eq!(batch.iter().map(Vec::len).collect::<Vec<_>>(), [96, 80, 64, 48, 96]);
        assert_eq!((starts_of(batch, 32).len(), starts_of(batch, 36).len()), (1, 5));
        let bos = prompts.bos.len();
        assert!(batch.iter().all(|ids| ids[..bos] == prompts.bos && !ids[bos..].contains(&prompts.bos[0])));
    }
    assert_ne!(windows[0][0][..32], windows[1][0][..32]);
    let alone = prompts.batch(&with_prefix(0), key(1, RequestKind::Measured, 0)).unwrap();
    assert_eq!(starts_of(&alone, 5).len(), 5);
    // The user's own texts follow the same prefix.
    let own = Workload { prompt: Prompt::Text("Hello there".into()), ..with_prefix(32) };
    let texts = prompts.batch(&own, key(1, RequestKind::Measured, 0)).unwrap();
    assert_eq!(texts[0][..32], windows[0][0][..32]);
    assert_eq!(texts[0][32..], prompts.tokenizer.encode("Hello there").unwrap()[prompts.bos.len()..]);
    assert!(prompts.text(&own, &texts[0]).ends_with("Hello there"), "{}", prompts.text(&own, &texts[0]));
    assert_eq!(own.longest_prompt(|_| Some(7)), Some(39));
}

#[test]
fn each_nonce_gives_other_prompts_of_the_same_lengths_and_repeats_its_own() {
    let (prompts, workload) = (prompts(), Workload::specimen(Prompt::Tokens(64)));
    let nonces = [None, Some(0), Some(1), Some(2), Some(protocol::MAX_INTEGER)];
    for kind in [RequestKind::Warmup, RequestKind::Discarded, RequestKind::Measured] {
        let with = |nonce| one(&prompts, &workload, PromptKey { nonce, ..key(0, kind, 0) });
        let all: std::collections::BTreeSet<Vec<u32>> = nonces.into_iter().map(with).collect();
        assert!(all.len() == nonces.len() && all.iter().all(|ids| ids.len() == 64), "{kind:?}");
        assert_eq!(with(Some(7)), with(Some(7)));
        let of_recipe = PromptKey { nonce: Some(7), ..key(0, kind, 0) }.without_nonce();
        assert_eq!(one(&prompts, &workload, of_recipe), with(None));
    }
}

#[test]
fn all_requests_except_identical_warm_ups_have_different_random_numbers() {
    let kinds = [RequestKind::Warmup, RequestKind::Discarded, RequestKind::Measured];
    let numbers = kinds.into_iter().flat_map(|kind| {
        (0..3).flat_map(move |block| {
            (IDENTICAL_WARM_UPS..20).map(move |index| random("decode", key(block, kind, index), 0))
        })
    });
    let distinct: std::collections::BTreeSet<u64> = numbers.collect();
    assert_eq!(distinct.len(), kinds.len() * 3 * (IDENTICAL_WARM_UPS..20).len());
    assert_eq!(
        random("decode", key(1, RequestKind::Warmup, 0), 0),
        random("decode", key(1, RequestKind::Warmup, 1), 0)
    );
}

#[test]
fn no_prompt_of_the_default_suite_is_a_prefix_of_another() {
    let prompts = prompts();
    let mut all: Vec<Vec<u32>> = Vec::new();
    for scenario in crate::plan::scenario::named("default").unwrap() {
        for tokens in scenario.axes.prompt_tokens {
            let mut workload = Workload::specimen(Prompt::Tokens(*tokens));
            workload.label = format!("{} {tokens}", scenario.name);
            let keys = [
                key(0, RequestKind::Warmup, 0),
                key(0, RequestKind::Warmup, 2),
                key(0, RequestKind::Measured, 0),
            ];
            all.extend(keys.map(|key| one(&prompts, &workload, key)));
        }
    }
    let bos = prompts.bos.len();
    for (index, ids) in all.iter().enumerate() {
        for other in &all[..index] {
            let shared = ids[bos..].iter().zip(&other[bos..]).take_while(|(id, other)| id == other).count();
            assert!(shared < SALT_TOKENS, "{shared} tokens are shared: {ids:?} {other:?}");
        }
    }
}

#[test]
fn each_prompt_has_its_own_salt_except_identical_warm_ups() {
    let prompts = prompts();
    let workload = Workload::specimen(Prompt::Tokens(64));
    let ids = |block, kind, index| one(&prompts, &workload, key(block, kind, index));
    let bos = prompts.bos.len();
    let starts: std::collections::BTreeSet<Vec<u32>> = (0..5)
        .flat_map(|block| (0..10).map(move |index| (block, index)))
        .map(|(block, index)| ids(block, RequestKind::Measured, index)[bos..bos + SALT_TOKENS].to_vec())
        .collect();
    assert_eq!(starts.len(), 5 * 10);
    assert_eq!(ids(2, RequestKind::Warmup, 0), ids(2, RequestKind::Warmup, 1));
    assert_ne!(ids(2, RequestKind::Warmup, 1), ids(2, RequestKind::Warmup, 2));
    assert_ne!(ids(2, RequestKind::Warmup, 0), ids(3, RequestKind::Warmup, 0));
}

#[test]
fn no_prompt_of_an_odd_text_repeats_within_a_run() {
    let prompts = prompts();
    for text in [TextKind::Special, TextKind::Random, TextKind::Whitespace, TextKind::Repeated] {
        let shape = Shape { text, ..Shape::default() };
        let workload = Workload { shape, ..Workload::specimen(Prompt::Tokens(128)) };
        let keys = (0..5).flat_map(|block| (0..20).map(move |index| (block, index)));
        let all: std::collections::BTreeSet<Vec<u32>> = keys
            .map(|(block, index)| one(&prompts, &workload, key(block, RequestKind::Measured, index)))
            .map(|ids| ids[..40].to_vec())
            .collect();
        assert_eq!(all.len(), 5 * 20, "{text:?}");
    }
}

#[test]
fn special_prompts_have_only_special_tokens_and_random_ones_have_none() {
    let prompts = prompts();
    let special = prompts.tokenizer.special_ids();
    assert!(!special.is_empty() && prompts.bos.iter().all(|id| special.contains(id)), "{special:?}");
    let ids = |text| {
        let shape = Shape { text, ..Shape::default() };
        let workload = Workload { shape, ..Workload::specimen(Prompt::Tokens(512)) };
        one(&prompts, &workload, key(0, RequestKind::Measured, 0))[prompts.bos.len()..].to_vec()
    };
    assert!(ids(TextKind::Special).iter().all(|id| special.contains(id)));
    assert!(!ids(TextKind::Random).iter().any(|id| special.contains(id)));
}

#[test]
fn a_text_without_tokens_is_an_error_that_names_its_kind() {
    let prompts = prompts();
    prompts.ids_of_texts[TextKind::Special as usize].set(Vec::new()).unwrap();
    let shape = Shape { text: TextKind::Special, ..Shape::default() };
    let workload = Workload { shape, ..Workload::specimen(Prompt::Tokens(8)) };
    let error = prompts.batch(&workload, key(0, RequestKind::Measured, 0)).unwrap_err();
    assert_eq!(error.to_string(), "the tokenizer has no tokens for prompts of `special`");
}

#[test]
fn a_prompt_has_the_requested_length_and_the_tokenizers_bos() {
    let prompts = prompts();
    let workload = Workload::specimen(Prompt::Tokens(128));
    let ids = one(&prompts, &workload, key(0, RequestKind::Measured, 3));
    assert_eq!(ids.len(), 128);
    assert_eq!(ids[..prompts.bos.len()], prompts.bos[..]);
    assert_ne!(ids, one(&prompts, &workload, key(0, RequestKind::Measured, 4)));
    assert_eq!(ids, one(&prompts, &workload, key(0, RequestKind::Measured, 3)));
}
