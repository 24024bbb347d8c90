//! Rules for the modules of `src`, checked on the graph of `modules.rs`. A module directly under `src` may use only modules
//! below it in LAYERS. Modules must not need each other in a cycle, and folders must not either. A parent and its children
//! count too: if a parent and its children need the same type or function, a child module declares it. The crate `stats` has
//! the same rules about cycles.

use std::collections::BTreeSet;

use crate::modules::{Graph, Module, Scope, cycles};
use crate::support::tree::{text, unignored_files};

/// The layers from top to bottom; `src/README.md` describes them.
const LAYERS: &[&str] = &[
    "commands", "cli", "report", "run", "analysis", "record", "plan", "engines", "machine", "shell", "text",
];

/// Files of `run` that use `analysis`, with the reason. Other files of `run` must not use it, because a measurement must not
/// depend on its analysis.
const RUN_USES_ANALYSIS: &[(&str, &str)] = &[
    ("run/serve.rs", "a search for the highest rate must have the arithmetic of the share within the limits"),
    ("run/schedule.rs", "interim analyses decide whether a workload has enough blocks"),
    (
        "run/dtype_costs.rs",
        "the costs of dtypes are stored, and must have the arithmetic of the check that uses them",
    ),
];

/// Modules that need each other, with the reason.
const CYCLES: &[(&[&str], &str)] = &[(
    &["plan::prompts", "plan::prompts::dependent"],
    "prompts choose a dependent prompt, and a dependent prompt is made of the text and the random numbers of prompts",
)];

/// Inherent `impl`s of a type that another module declares, with the reason. `impl`s in a parent or a child are allowed.
const OUTSIDE_IMPLS: &[(&str, &str, &str)] = &[
    (
        "commands::check::requests",
        "CheckedEngine",
        "checks send requests with these methods; the type's own module only manages the process",
    ),
    ("run::measured_tokens", "OutputChecks", "the output checks after the last block are a separate subject"),
    ("run::held_out", "OutputChecks", "the output checks before the first block are a separate subject"),
    ("run::checks", "Launched", "only output checks send these requests; measured requests do not use them"),
];

fn in_src(path: &str) -> Option<String> {
    text(&format!("src/{path}"))
}

/// Reads a file of the crate `stats`. Its `lib.rs` takes the place of `main.rs`.
fn in_stats(path: &str) -> Option<String> {
    text(&format!("src/stats/{}", if path == "main.rs" { "lib.rs" } else { path }))
}

/// The cycles of modules and the cycles of folders. Each name begins with `prefix`.
fn cycles_of(prefix: &str, read: &dyn Fn(&str) -> Option<String>) -> BTreeSet<BTreeSet<String>> {
    let graph = Graph::new(Scope::Program, read);
    let folders = graph.sibling_edges();
    let all = folders.values().flat_map(cycles).chain(cycles(&graph.edges()));
    let name = |module: Module| format!("{prefix}{}", module.join("::"));
    all.map(|cycle| cycle.into_iter().map(name).collect()).collect()
}

#[test]
fn every_layer_exists_and_every_module_is_in_a_layer() {
    let graph = Graph::new(Scope::Program, &in_src);
    let found: BTreeSet<&str> =
        graph.files().filter_map(|(module, _)| module.first()).map(String::as_str).collect();
    let listed: BTreeSet<&str> = LAYERS.iter().copied().collect();
    assert_eq!(found, listed, "the layers have changed: update LAYERS and src/README.md");
}

#[test]
fn every_source_file_is_a_module() {
    let graph = Graph::new(Scope::ProgramAndTests, &in_src);
    let reached: BTreeSet<String> = graph.files().map(|(_, file)| file.to_string()).collect();
    let files = unignored_files().into_iter().filter_map(|path| path.strip_prefix("src/").map(String::from));
    // These folders are crates of their own.
    let is_in_crate = |path: &str| ["null-engine/", "stats/"].iter().any(|it| path.starts_with(it));
    let files: BTreeSet<_> = files.filter(|path| path.ends_with(".rs") && !is_in_crate(path)).collect();
    let orphans: Vec<_> = files.difference(&reached).collect();
    assert!(orphans.is_empty(), "no `mod` declares these files; declare or delete them: {orphans:#?}");
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
            // The root dispatches the commands; no module may need it.
            let is_upward = other.is_empty() || (!module.is_empty() && rank(other) < rank(module));
            if is_upward {
                upward.push(format!("src/{file} needs `{}`", other.join("::")));
            }
        }
    }
    assert!(
        upward.is_empty(),
        "modules use a layer above them; move the shared part to a lower layer:\n{}",
        upward.join("\n")
    );
}

#[test]
fn only_listed_files_of_run_use_the_analysis() {
    let graph = Graph::new(Scope::Program, &in_src);
    let is_in = |module: &Module, layer: &str| module.first().is_some_and(|it| it == layer);
    let edges = graph.edges();
    let uses = |module: &Module| edges[module].iter().any(|other| is_in(other, "analysis"));
    let run = graph.files().filter(|(module, _)| is_in(module, "run"));
    let found: BTreeSet<&str> = run.filter(|(module, _)| uses(module)).map(|(_, file)| file).collect();
    let listed: BTreeSet<&str> = RUN_USES_ANALYSIS.iter().map(|(file, _)| *file).collect();
    assert_eq!(
        found, listed,
        "move the shared part to `record`, `plan` or `machine`, or give a reason in RUN_USES_ANALYSIS"
    );
    assert!(RUN_USES_ANALYSIS.iter().all(|(_, reason)| !reason.is_empty()));
}

#[test]
fn modules_form_no_cycles_without_a_stated_reason() {
    let found = &cycles_of("", &in_src) | &cycles_of("stats::", &in_stats);
    let known: BTreeSet<BTreeSet<String>> =
        CYCLES.iter().map(|(modules, _)| modules.iter().map(|it| it.to_string()).collect()).collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(
        new.is_empty(),
        "modules need each other; move the shared part to a third module, or give a reason in CYCLES: {new:#?}"
    );
    let stale: Vec<_> = known.difference(&found).collect();
    assert!(stale.is_empty(), "these cycles do not exist: remove them from CYCLES: {stale:#?}");
    assert!(CYCLES.iter().all(|(_, reason)| !reason.is_empty()));
}

#[test]
fn methods_are_in_their_types_module_or_have_a_stated_reason() {
    let graph = Graph::new(Scope::ProgramAndTests, &in_src);
    let outside = graph.outside_impls().into_iter().filter(|it| !it.is_parent_or_child());
    let found: BTreeSet<(String, String)> = outside.map(|it| (it.module.join("::"), it.type_name)).collect();
    let known: BTreeSet<(String, String)> =
        OUTSIDE_IMPLS.iter().map(|(module, name, _)| (module.to_string(), name.to_string())).collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(
        new.is_empty(),
        "methods outside their type's module; move them, write functions, or give a reason in OUTSIDE_IMPLS: {new:#?}"
    );
    let stale: Vec<_> = known.difference(&found).collect();
    assert!(stale.is_empty(), "these `impl`s do not exist: remove them from OUTSIDE_IMPLS: {stale:#?}");
    assert!(OUTSIDE_IMPLS.iter().all(|(.., reason)| !reason.is_empty()));
}
