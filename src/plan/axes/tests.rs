use super::*;
use crate::plan::texts::TextKind;

#[test]
fn the_points_are_the_cross_product_and_a_label_names_only_what_varies() {
    let axes = Axes {
        batch: &[4],
        use_cache: &[true, false],
        padding: &[Padding::Left, Padding::Packed],
        ..Axes::of(&[32], &[8, 16])
    };
    let labels: Vec<String> = axes
        .points()
        .iter()
        .map(|it| axes.words_of(it, &Axes { batch: &[4], ..Axes::default() }).join(" "))
        .collect();
    assert_eq!(labels.len(), 8);
    assert_eq!((labels[0].as_str(), labels[7].as_str()), ("new 8 cache on left", "new 16 cache off packed"));
    assert!(axes.points().iter().all(|it| it.shape.batch == 4 && it.prompt_tokens == 32));
}

#[test]
fn values_of_the_user_replace_those_of_the_scenario() {
    let set = AxisValues { prompt_tokens: vec![7], batch: vec![1, 2], ..AxisValues::default() };
    let axes = Axes::of(&[16, 128], &[1]).with(set.axes());
    let points: Vec<_> = axes.points().iter().map(|it| (it.prompt_tokens, it.shape.batch)).collect();
    assert_eq!(points, [(7, 1), (7, 2)]);
}

#[test]
fn two_shapes_may_differ_in_one_setting_only() {
    let plain = Shape::default();
    let batch = Shape { batch: 4, ..plain };
    let found = batch.only_difference(&plain).unwrap();
    assert_eq!(
        (found.setting, &*found.value, &*found.other, found.other_is_default),
        ("batch", "4", "1", true)
    );
    assert!(!plain.only_difference(&batch).unwrap().other_is_default);
    let uneven = Shape { padding: Some(Padding::Left), ..batch };
    let text = Shape { text: TextKind::Repeated, ..plain };
    for (a, b) in [(plain, plain), (uneven, plain), (text, plain)] {
        assert_eq!(a.only_difference(&b), None);
    }
}

#[test]
fn uneven_prompts_shrink_to_a_quarter_of_the_longest() {
    let lengths = |padding| Shape { batch: 5, padding, ..Shape::default() }.prompt_lengths(64);
    assert_eq!(lengths(Some(Padding::Left)), [64, 48, 32, 16, 64]);
    assert_eq!(lengths(None), [64; 5]);
}

#[test]
fn only_prompts_that_begin_alike_allow_prefix_caches() {
    let axes = Axes { requests: &[2], shared_prefix: &[0, 8], ..Axes::of(&[32], &[8]) };
    let points = axes.points();
    let found: Vec<_> = points
        .iter()
        .map(|it| {
            (it.all_prompt_tokens(), it.shape.prompt_lengths(it.all_prompt_tokens()), it.shape.prefix_cache)
        })
        .collect();
    assert_eq!(found, [(32, vec![32, 24], false), (40, vec![40, 32], true)]);
    let labels: Vec<String> = points.iter().map(|it| axes.words_of(it, &axes).join(" ")).collect();
    assert_eq!(labels, ["", "shared prefix 8"]);
    let stored = serde_json::to_string(&points[1].shape).unwrap();
    assert_eq!(stored, r#"{"shared_prefix":8,"prefix_cache":true,"requests":2}"#);
}

#[test]
fn a_file_of_lengths_has_the_longest_prompt_and_output_of_all_its_requests() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chat.csv").to_string_lossy().into_owned();
    std::fs::write(&path, "100,1\n2,90\n").unwrap();
    let lengths: [Lengths; 1] = [path.parse().unwrap()];
    let axes = Axes { requests: &[4], lengths: &lengths, shared_prefix: &[8], ..Axes::of(&[32], &[8]) };
    let point = axes.points()[0];
    assert_eq!((point.all_prompt_tokens(), point.new_tokens), (108, 90));
    assert_eq!(axes.words_of(&point, &axes).join(" "), "");
    assert_eq!(axes.words_of(&point, &Axes::of(&[32], &[8])), ["requests 4", "chat.csv", "shared prefix 8"]);
    let drawn = point.shape.with_drawn_lengths(1);
    let pairs = |most: u32| {
        let pair = |it| (drawn.prompt_length(108, it), drawn.output_length(most, it));
        let mut pairs: Vec<_> = (0..4).map(pair).collect();
        pairs.sort_unstable();
        pairs
    };
    assert_eq!(pairs(90), [(10, 90), (10, 90), (108, 1), (108, 1)]);
    // A warm-up may ask for fewer tokens.
    assert_eq!(pairs(4), [(10, 4), (10, 4), (108, 1), (108, 1)]);
    let largest = |shape: Shape| shape.largest_of_file().map(|it| (it.prompt_tokens, it.new_tokens));
    assert_eq!((largest(drawn), largest(Shape { turns: 2, ..drawn })), (Some((100, 1)), None));
    let set = AxisValues { prompt_tokens: vec![100], lengths: lengths.to_vec(), ..AxisValues::default() };
    assert_eq!(set.options(), [format!("--lengths {path}")]);
}

#[test]
fn a_round_has_whole_conversations() {
    let shape = |requests, concurrency| Shape { requests, concurrency, turns: 3, ..Shape::default() };
    let counts = |shape: Shape| (shape.sequences(), shape.conversations(), shape.most_at_once());
    assert_eq!(counts(shape(None, Some(2))), (9, 3, 2));
    assert_eq!((counts(shape(Some(6), Some(1))), counts(shape(Some(7), None))), ((6, 2, 1), (9, 3, 3)));
    let at_a_rate = Shape { request_rate: "2".parse().ok(), turns: 4, ..Shape::default() };
    assert_eq!(counts(at_a_rate), (16, 4, 4));
    let before: Vec<_> = (0..6).map(|it| shape(Some(6), None).turn_before(it)).collect();
    assert_eq!(before, [None, Some(0), Some(1), None, Some(3), Some(4)]);
    assert_eq!((Shape::default().turn_before(3), Shape::default().sequences()), (None, 1));
}

#[test]
fn a_default_shape_is_not_stored() {
    assert_eq!(serde_json::to_string(&Shape::default()).unwrap(), "{}");
    let shape = Shape {
        batch: 2,
        use_cache: false,
        padding: Some(Padding::Right),
        text: TextKind::Random,
        ..Shape::default()
    };
    let stored = serde_json::to_string(&shape).unwrap();
    assert_eq!(stored, r#"{"batch":2,"use_cache":false,"padding":"right","text":"random"}"#);
    assert_eq!(serde_json::from_str::<Shape>(&stored).unwrap(), shape);
    assert_eq!(serde_json::from_str::<Shape>("{}").unwrap(), Shape::default());
}
