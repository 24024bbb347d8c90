//! The modules directly under `src`, by the graph of `modules.rs`. Such a module may use those below it in LAYERS, and
//! none above. No modules need each other in a circle, a parent and its children included: a parent that declares a type
//! or a function for the children that it uses has it in a child of its own. Nor do folders need each other in a circle.
//! The same holds in the crate `stats`.

use std::collections::BTreeSet;

use crate::modules::{Graph, Module, Scope, circles};
use crate::support::tree::{text, tracked};

/// From the top to the bottom. `src/README.md` describes each.
const LAYERS: &[&str] = &[
    "commands", "cli", "report", "run", "analysis", "record", "plan", "engines", "machine", "shell", "text",
];

/// Files of `run` that use `analysis`, with the reason. A measurement must not depend on its analysis.
const RUN_USES_ANALYSIS: &[(&str, &str)] =
    &[("run/schedule.rs", "interim analyses say whether a workload has blocks enough")];

/// Modules that need each other, with the reason.
const CIRCLES: &[(&[&str], &str)] = &[];

/// Inherent `impl`s of a type that a neighbouring module declares, with the reason. A parent and its own child are one subject.
const APART: &[(&str, &str, &str)] = &[
    (
        "commands::check::asking",
        "Subject",
        "checks send requests by these; its own module keeps the process, and sends nothing by itself",
    ),
    (
        "run::measured_tokens",
        "OutputChecks",
        "the output checks after the last block, a subject of their own",
    ),
    ("run::held_out", "OutputChecks", "the output checks before the first block, likewise"),
    ("run::checks", "Launched", "the requests of output checks alone; measured ones have no part in them"),
];

fn in_src(path: &str) -> Option<String> {
    text(&format!("src/{path}"))
}

/// The crate `stats`; its root stands for that of a program.
fn in_stats(path: &str) -> Option<String> {
    text(&format!("src/stats/{}", if path == "main.rs" { "lib.rs" } else { path }))
}

/// The circles of modules and those of folders, with the names of modules after this beginning.
fn circles_of(crate_name: &str, read: &dyn Fn(&str) -> Option<String>) -> BTreeSet<BTreeSet<String>> {
    let graph = Graph::new(Scope::Program, read);
    let folders = graph.side_by_side();
    let all = folders.values().flat_map(circles).chain(circles(&graph.edges()));
    let name = |module: Module| format!("{crate_name}{}", module.join("::"));
    all.map(|circle| circle.into_iter().map(name).collect()).collect()
}

#[test]
fn every_layer_exists_and_every_module_is_in_a_layer() {
    let graph = Graph::new(Scope::Program, &in_src);
    let found: BTreeSet<&str> =
        graph.files().filter_map(|(module, _)| module.first()).map(String::as_str).collect();
    let listed: BTreeSet<&str> = LAYERS.iter().copied().collect();
    assert_eq!(found, listed, "the layers have changed: bring LAYERS and src/README.md up to date");
}

#[test]
fn every_source_file_is_a_module() {
    let graph = Graph::new(Scope::ProgramAndTests, &in_src);
    let reached: BTreeSet<String> = graph.files().map(|(_, file)| file.to_string()).collect();
    let files = tracked().into_iter().filter_map(|path| path.strip_prefix("src/").map(String::from));
    // `src/stats/` is a crate of its own.
    let files: BTreeSet<_> =
        files.filter(|path| path.ends_with(".rs") && !path.starts_with("stats/")).collect();
    let orphans: Vec<_> = files.difference(&reached).collect();
    assert!(orphans.is_empty(), "no `mod` names these files; delete them or name them: {orphans:#?}");
    assert_eq!(reached, files, "the module graph reaches files that git ignores");
}

#[test]
fn each_layer_uses_only_layers_below_it() {
    let graph = Graph::new(Scope::ProgramAndTests, &in_src);
    let rank = |module: &Module| LAYERS.iter().position(|layer| module.first().is_some_and(|it| it == layer));
    let edges = graph.edges();
    let mut upward = Vec::new();
    for (module, file) in graph.files() {
        for other in &edges[module] {
            // The root dispatches; nothing may need it.
            let is_up = other.is_empty() || (!module.is_empty() && rank(other) < rank(module));
            if is_up {
                upward.push(format!("src/{file} needs `{}`", other.join("::")));
            }
        }
    }
    assert!(
        upward.is_empty(),
        "modules use a layer above them; move what both need down:\n{}",
        upward.join("\n")
    );
}

#[test]
fn only_the_schedule_of_a_run_uses_the_analysis() {
    let graph = Graph::new(Scope::Program, &in_src);
    let is_in = |module: &Module, layer: &str| module.first().is_some_and(|it| it == layer);
    let edges = graph.edges();
    let uses = |module: &Module| edges[module].iter().any(|other| is_in(other, "analysis"));
    let run = graph.files().filter(|(module, _)| is_in(module, "run"));
    let found: BTreeSet<&str> = run.filter(|(module, _)| uses(module)).map(|(_, file)| file).collect();
    let listed: BTreeSet<&str> = RUN_USES_ANALYSIS.iter().map(|(file, _)| *file).collect();
    assert_eq!(
        found, listed,
        "move what both layers need down, to `record`, `plan` or `machine`, or give a reason here"
    );
    assert!(RUN_USES_ANALYSIS.iter().all(|(_, reason)| !reason.is_empty()));
}

#[test]
fn modules_form_no_circles_without_a_stated_reason() {
    let found = &circles_of("", &in_src) | &circles_of("stats::", &in_stats);
    let known: BTreeSet<BTreeSet<String>> =
        CIRCLES.iter().map(|(modules, _)| modules.iter().map(|it| it.to_string()).collect()).collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(
        new.is_empty(),
        "modules need each other; move what both need into a third, or say why here: {new:#?}"
    );
    let stale: Vec<_> = known.difference(&found).collect();
    assert!(stale.is_empty(), "these circles are no more: take them off the list: {stale:#?}");
    assert!(CIRCLES.iter().all(|(_, reason)| !reason.is_empty()));
}

#[test]
fn methods_are_near_their_type_or_have_a_stated_reason() {
    let graph = Graph::new(Scope::ProgramAndTests, &in_src);
    let apart = graph.apart().into_iter().filter(|it| !it.is_parent_or_child());
    let found: BTreeSet<(String, String)> = apart.map(|it| (it.at.join("::"), it.of)).collect();
    let known: BTreeSet<(String, String)> =
        APART.iter().map(|(at, of, _)| (at.to_string(), of.to_string())).collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(new.is_empty(), "write functions, move these methods to their type, or say why here: {new:#?}");
    let stale: Vec<_> = known.difference(&found).collect();
    assert!(stale.is_empty(), "these are no more: take them off the list: {stale:#?}");
    assert!(APART.iter().all(|(.., reason)| !reason.is_empty()));
}
