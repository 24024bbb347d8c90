use std::collections::BTreeMap;

use super::*;
use crate::engines::Start;
use crate::plan::axes::AxisValues;

fn selection() -> Selection {
    let candidate = |name: &str| Candidate {
        engine: name.into(),
        default_start: Start::program(name),
        ..Default::default()
    };
    Selection {
        candidates: vec![candidate("a"), candidate("b")],
        models: vec![Model { name: "m".into(), path: "/m".into(), ..Model::default() }],
        scenarios: crate::plan::scenario::named("default").unwrap(),
        devices: vec!["cpu".into()],
        dtypes: vec![None],
        threads: vec![1, 2],
        reference: "a".into(),
        ..Selection::default()
    }
}

/// The labels of the rows: of the configurations without a role.
fn labels(plan: &Plan) -> Vec<&str> {
    plan.configurations.iter().filter(|it| it.role.is_none()).map(|it| it.label.as_str()).collect()
}

#[test]
fn lists_make_the_cross_product_and_labels_show_the_differences() {
    let plan = Plan::new(&selection());
    assert_eq!(labels(&plan), ["a 1 thread", "b 1 thread", "a 2 threads", "b 2 threads"]);
    assert_eq!(plan.cases.len(), (4 + 2) * 5, "four rows and two twins, in five workloads");
}

#[test]
fn a_selection_and_its_plan_have_the_same_labels() {
    let mut selection = selection();
    // Two engines have the same name.
    selection.candidates.push(selection.candidates[0].clone());
    selection.dtypes = vec![None, Some("f32".into())];
    let plan = Plan::new(&selection);
    assert_eq!(selection.labels(), labels(&plan));
    let first = ["a default dtype 1 thread", "b default dtype 1 thread", "a default dtype 1 thread #2"];
    assert_eq!(labels(&plan)[..3], first);
}

#[test]
fn each_device_has_its_program_or_the_reason_why_it_has_none() {
    let mut selection = selection();
    (selection.devices, selection.threads) = (vec!["cpu".into(), "cuda:1".into(), "metal".into()], vec![2]);
    selection.candidates[0].devices = BTreeMap::from([("cuda".into(), Start::program("a-cuda"))]);
    let missing = Unavailable { reason: "no driver".into(), hint: None };
    selection.candidates[1].devices = BTreeMap::from([("cuda".into(), Start::unavailable(missing.clone()))]);
    let plan = Plan::new(&selection);
    let row = |label: &str| plan.configurations.iter().find(|it| it.label == label).unwrap();
    let started = |label: &str| row(label).command.first().map(String::as_str);
    assert_eq!(
        ["a cpu", "a cuda:1", "a metal", "b cpu", "b cuda:1"].map(started),
        [Some("a"), Some("a-cuda"), Some("a"), Some("b"), None]
    );
    assert_eq!((&row("b cuda:1").unavailable, &row("b cpu").unavailable), (&Some(missing), &None));
    // On a GPU each runs alone, because a paused process keeps its device memory.
    assert_eq!(["a cpu", "a cuda:1", "a metal"].map(|label| row(label).alone), [false, true, true]);
}

#[test]
fn the_verifier_is_planned_on_the_cpu_in_f32_for_every_device() {
    let mut selection = selection();
    (selection.devices, selection.threads) = (vec!["cuda".into()], vec![2]);
    selection.candidates[0].devices = BTreeMap::from([("cuda".into(), Start::program("a-cuda"))]);
    selection.verifier = Some(selection.candidates[0].clone());
    let plan = Plan::new(&selection);
    let verifier = &plan.configurations[plan.verifier_of(&selection.models[0]).unwrap()];
    assert_eq!(verifier.role, Some(Role::Verifier));
    assert_eq!((verifier.device.as_str(), verifier.dtype.as_deref()), ("cpu", Some("f32")));
    assert_eq!(verifier.command, ["a"]);
    // The engine's own row on the CPU is then the verifier, so no configuration is added.
    selection.devices.push("cpu".into());
    let plan = Plan::new(&selection);
    let verifier = &plan.configurations[plan.verifier_of(&selection.models[0]).unwrap()];
    assert_eq!((verifier.label.as_str(), verifier.role), ("a cpu", None));
}

#[test]
fn every_block_launches_each_configuration_once_and_none_is_always_first() {
    let plan = Plan::new(&selection());
    let all = [0, 1, 2, 3];
    let mut firsts: Vec<usize> = (0..4).map(|block| plan.order_of(&all, block)[0]).collect();
    firsts.sort();
    assert_eq!(firsts, all);
    let mut order_of_block_2 = plan.order_of(&all, 2);
    order_of_block_2.sort();
    assert_eq!(order_of_block_2, all);
    assert_eq!(plan.order_of(&all, 1), plan.order_of(&all, 5), "the order repeats after four blocks");
}

#[test]
fn a_reference_of_all_rows_is_named_by_its_label() {
    let mut selection = selection();
    assert_eq!(Plan::new(&selection).reference_label(), "a", "a row for each number of threads");
    selection.candidates.truncate(1);
    assert_eq!(Plan::new(&selection).reference_label(), "a 1 thread", "threads are compared with each other");
}

#[test]
fn each_reference_has_a_twin_when_verdicts_are_possible() {
    let plan = Plan::new(&selection());
    assert_eq!(plan.pairs(), [(1, 0), (3, 2)]);
    assert_eq!((plan.twin_of(0), plan.twin_of(2), plan.twin_of(1)), (Some(4), Some(5), None));
    assert_eq!(plan.configurations[5].label, "a 2 threads (twin)");
    let quick = Selection { extent: Extent { blocks: Some(1), ..Extent::default() }, ..selection() };
    assert_eq!(Plan::new(&quick).configurations.len(), 4);
    let no_reference = Plan::new(&Selection { reference: "absent".into(), ..selection() });
    assert_eq!((no_reference.pairs(), no_reference.configurations.len()), (vec![], 4));
}

#[test]
fn the_scenario_load_comes_first_even_when_it_is_selected_last() {
    let mut selection = selection();
    selection.scenarios.reverse();
    let plan = Plan::new(&selection);
    assert_eq!(plan.cases[plan.cases_of(1)[0]].workload.scenario, "load");
}

#[test]
fn the_same_engine_twice_gets_two_labels() {
    let mut selection = selection();
    selection.threads = vec![2];
    selection.candidates[1].engine = "a".into();
    let plan = Plan::new(&selection);
    assert_eq!(plan.configurations[1].label, "a #2");
}

#[test]
fn command_line_settings_apply_to_decode_and_load_keeps_one_round() {
    let mut selection = selection();
    (selection.prompt, selection.rounds) = (Some("Hello".into()), Some(7));
    selection.axes = AxisValues::with_new_tokens(9);
    let plan = Plan::new(&selection);
    let decode = plan.cases.iter().find(|case| case.workload.scenario == "decode").unwrap();
    assert_eq!(decode.workload.prompt, Prompt::Text("Hello".into()));
    assert_eq!((decode.workload.rounds, decode.workload.max_new_tokens), (7, 9));
    let load = plan.cases.iter().find(|case| case.workload.scenario == "load").unwrap();
    assert_eq!(load.workload.rounds, 1);
}

#[test]
fn the_engine_argument_of_a_configuration_is_its_path_or_its_engine_and_preset() {
    let engine_argument = |engine: &str, preset: Option<&str>, program: &str| {
        let (engine, preset, command) = (engine.into(), preset.map(String::from), vec![program.into()]);
        Configuration { label: "a label #2".into(), engine, preset, command, ..Default::default() }
            .engine_argument()
    };
    assert_eq!(engine_argument("mine", None, "/my/engines/mine"), "/my/engines/mine");
    assert_eq!(engine_argument("mine", None, "/my own/mine"), "'/my own/mine'");
    assert_eq!(engine_argument("known", None, "/built/known-engine"), "known");
    assert_eq!(engine_argument("known", Some("fast"), "/built/known"), "known:fast");
    // An engine with a manifest is given by its name, even where its program file has that name too.
    for engine in manifest::embedded().unwrap() {
        let name = &engine.manifest.name;
        assert_eq!(&engine_argument(name, None, &format!("/built/{name}")), name);
    }
    let unavailable = Configuration { engine: "known".into(), ..Default::default() };
    assert_eq!(unavailable.engine_argument(), "known");
}

#[test]
fn a_preset_sets_its_default_dtype_and_its_comparison() {
    let mut selection = selection();
    selection.threads = vec![1, 2];
    let against = PresetComparison { preset: "default".into(), effect: "precision impact".into() };
    selection.candidates[1] = Candidate {
        engine: "a".into(),
        preset: Some("half".into()),
        dtype: Some("bf16".into()),
        against: Some(against),
        default_start: Start::program("a"),
        ..Candidate::default()
    };
    let plan = Plan::new(&selection);
    let label = |index: usize| plan.configurations[index].label.as_str();
    let comparisons = plan.preset_comparisons();
    let compared: Vec<_> =
        comparisons.iter().map(|it| (label(it.configuration), label(it.against))).collect();
    assert_eq!(compared, [("a:half 1 thread", "a 1 thread"), ("a:half 2 threads", "a 2 threads")]);
    assert!(comparisons.iter().all(|it| it.effect == "precision impact"));
    let half = plan.configurations.iter().find(|it| it.label == "a:half 1 thread").unwrap();
    assert_eq!(half.dtype.as_deref(), Some("bf16"));
    selection.dtypes = vec![Some("f16".into())];
    assert!(Plan::new(&selection).configurations.iter().all(|it| it.dtype.as_deref() == Some("f16")));
    selection.candidates.remove(0);
    assert_eq!(Plan::new(&selection).preset_comparisons(), []);
}

#[test]
fn a_suite_and_its_scenario_together_measure_the_values_of_both() {
    let names = ["default", "ttft"].map(String::from);
    let registry = crate::engines::registry::Registry::open().unwrap();
    let scenarios = crate::plan::selection::scenarios(&registry, &names, &[]).unwrap();
    let selection = Selection { scenarios, ..selection() };
    let plan = Plan::new(&selection);
    let labels: Vec<&str> = plan.cases.iter().map(|case| case.workload.label.as_str()).collect();
    for label in ["ttft 10", "ttft 128", "ttft 400", "ttft 512", "prefill", "decode"] {
        assert!(labels.contains(&label), "{label}: {labels:?}");
    }
}

#[test]
fn a_scenario_without_any_request_is_refused_with_the_reason() {
    let refusal = |scenario: &str, text: &str, context: Option<u32>| {
        let scenarios = crate::plan::scenario::named(scenario).unwrap();
        let mut selection = Selection { scenarios, ..selection() };
        selection.axes.prompts = vec![text.parse().unwrap()];
        selection.models[0].context_tokens = context;
        let limit = context::ContextLimit { tokens: context, ..Default::default() };
        context::check(&selection, &[scenario.into()], |_, _| limit).map_err(|error| error.to_string())
    };
    let unknown = refusal("prefill", "long", None).unwrap_err();
    let expected = "`prefill` has no prompt `long` or `beyond`: the context of `m` is unknown\nhint: ";
    assert!(unknown.starts_with(expected), "{unknown}");
    let no_depth = refusal("depth", "short", Some(16384)).unwrap_err();
    let expected =
        "`depth`: each of its requests has a depth, and the prompts of `--prompts` have none\nhint: ";
    assert!(no_depth.starts_with(expected), "{no_depth}");
    assert_eq!(refusal("decode", "short", Some(16384)), Ok(()));
    assert_eq!(refusal("prefill", "long", Some(2048)), Ok(()));
}

#[test]
fn a_long_prompt_without_room_for_the_output_is_no_empty_prompt() {
    let mut selection = Selection { scenarios: crate::plan::scenario::named("edge").unwrap(), ..selection() };
    selection.axes = AxisValues::with_new_tokens(2048);
    selection.models[0].context_tokens = Some(2048);
    let plan = Plan::new(&selection);
    let long = plan.cases.iter().find(|case| case.workload.label.ends_with(" long")).unwrap();
    assert_eq!(long.workload.prompt, Prompt::Tokens(1));
}

#[test]
fn the_widest_precision_is_the_reference_of_each_model_and_number_of_threads() {
    let mut selection = selection();
    selection.models.push(Model { name: "n".into(), path: "/n".into(), ..Model::default() });
    selection.dtypes = vec![Some("bf16".into()), Some("f32".into())];
    selection.reference = selection.widest_precision("a").unwrap();
    assert_eq!(selection.reference, "a f32");
    let plan = Plan::new(&selection);
    let label = |index: usize| plan.configurations[index].label.as_str();
    let reference_of = |row: &str| {
        let index = plan.configurations.iter().position(|it| it.label == row).unwrap();
        plan.reference_of(index).map(label)
    };
    assert_eq!(reference_of("b m bf16 1 thread"), Some("a m f32 1 thread"));
    assert_eq!(reference_of("a n bf16 2 threads"), Some("a n f32 2 threads"));
    // The name of a preset that is measured in one dtype needs none.
    let candidate = |preset: &str, dtype: &str| Candidate {
        preset: Some(preset.into()),
        dtype: Some(dtype.into()),
        ..selection.candidates[0].clone()
    };
    let candidates = vec![candidate("packed", "bf16z"), candidate("exact", "f32")];
    let mut presets = Selection { candidates, dtypes: vec![None], ..selection.clone() };
    assert_eq!(presets.widest_precision("a").unwrap(), "a:exact");
    // Nothing differs from the preset `exact` only in the precision, now that it has an option.
    presets.candidates.push(candidate("half", "bf16"));
    presets.candidates[1].options.insert("pin".into(), false.into());
    assert_eq!(presets.widest_precision("a").unwrap(), "a:half");
}
