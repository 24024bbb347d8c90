//! Rules that no compiler checks: allowed dependencies, allowed side effects of each module, the form of files. Each
//! message has the remedy; `src/README.md` has the reasons.

use std::collections::BTreeSet;

use crate::modules::{Graph, Scope, goes_through};
use crate::support::tree::{
    engine_folders, has_path, has_word, manifests, sources, text, tracked, without_tests,
};
use crate::support::workspace::Workspace;
use crate::support::{Scratch, finish, root};

/// Prefixes of the names of crates that compute with tensors.
const TENSOR_FRAMEWORKS: &[&str] = &[
    "candle-",
    "burn",
    "tch",
    "torch-sys",
    "ort",
    "tract-",
    "dfdx",
    "cudarc",
    "gemm",
    "mistralrs",
    "llama-cpp",
];

// Dependencies.

#[test]
fn the_protocol_crate_depends_only_on_serde() {
    let allowed = ["serde", "serde_json", "serde_path_to_error", "schemars"];
    for dependency in Workspace::read().dependencies("protocol") {
        assert!(
            allowed.contains(&dependency.as_str()),
            "`protocol` depends on `{dependency}`: it has no clock, process, I/O or async; put what needs that elsewhere"
        );
    }
}

#[test]
fn the_orchestrator_depends_on_no_engine_no_kit_and_no_tensor_framework() {
    let workspace = Workspace::read();
    let reached = workspace.reached("orchestrate");
    assert!(reached.contains("tokio"), "the lock file is not read as it should be: {reached:?}");
    assert_no_tensors("orchestrate", &reached);
    for forbidden in workspace.engines().into_iter().chain(["engine-kit".to_string()]) {
        assert!(
            !reached.contains(&forbidden),
            "`orchestrate` depends on `{forbidden}`: talk to it through the protocol"
        );
    }
}

#[test]
fn shared_engine_crates_use_no_tensor_framework_and_no_tokio() {
    let workspace = Workspace::read();
    for shared in ["engine-kit", "machine-limits", "model-files", "paths", "protocol"] {
        let reached = workspace.reached(shared);
        assert_no_tensors(shared, &reached);
        assert!(
            !reached.contains("tokio"),
            "`{shared}` depends on tokio: use threads, any engine may sit on this crate"
        );
    }
}

#[test]
fn no_engine_depends_on_another() {
    let workspace = Workspace::read();
    let engines = workspace.engines();
    assert!(engines.len() > 1, "no engines found: {engines:?}");
    for engine in &engines {
        let reached = workspace.reached(engine);
        let others: Vec<_> =
            engines.iter().filter(|other| *other != engine && reached.contains(*other)).collect();
        assert!(
            others.is_empty(),
            "`{engine}` depends on {others:?}: share through engines/kit or models/files instead"
        );
    }
}

#[test]
fn a_plain_cargo_build_builds_nothing_heavy() {
    let workspace = Workspace::read();
    assert!(
        workspace.default_members.contains(&"orchestrate".to_string()),
        "{:?}",
        workspace.default_members
    );
    for member in &workspace.default_members {
        assert_no_tensors(member, &workspace.reached(member));
    }
}

#[test]
fn every_crate_inherits_the_workspace_lints() {
    for manifest in tracked().iter().filter(|path| path.ends_with("Cargo.toml")) {
        let manifest_text = text(manifest).unwrap();
        let inherits = manifest_text.contains("[lints]\nworkspace = true");
        assert!(inherits, "`{manifest}`: add `[lints]` with `workspace = true`");
    }
}

// Side effects.

/// Modules that only compute: their inputs are passed in.
const PURE: &[&str] = &[
    "analysis",
    "plan",
    "record",
    "report",
    "machine/gpu/samples",
    "machine/gpu/warnings",
    "machine/used_gpus",
];
/// Files of these modules that read or write; `plan/mod.rs` and `record/mod.rs` have the reasons.
const READERS: &[&str] = &["plan/models.rs", "plan/prompts.rs", "record/file.rs"];
/// Paths that lead to a clock, a process, a thread or a file.
const IMPURE: &[&str] = &[
    "tokio",
    "duct",
    "libc",
    "rustix",
    "std::process",
    "std::fs",
    "std::env",
    "std::net",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "model_files",
    "paths",
    "machine_limits",
];
/// Pure types of these crates.
const PURE_TYPES: &[&str] = &[
    "machine_limits::Copies",
    "machine_limits::GpuLimits",
    "machine_limits::Limits",
    "machine_limits::Operations",
    "machine_limits::Reads",
    "machine_limits::names",
    "model_files::Dtype",
];
/// Methods of a path that access the disk.
const DISK_METHODS: &[&str] = &[
    "is_file",
    "is_dir",
    "is_symlink",
    "exists",
    "try_exists",
    "canonicalize",
    "metadata",
    "symlink_metadata",
    "read_dir",
    "read_link",
];

#[test]
fn analysis_and_reports_use_no_clock_process_or_file() {
    for module in PURE {
        assert_pure("src", |file| is_in(file, module) && !READERS.contains(&file));
    }
    assert_pure("src/stats", |_| true);
}

/// Functions that only compute, in files of `machine` that also read.
const PURE_OF_MACHINE: &[&str] =
    &["cpu::min_uncached_bytes_for_cache", "cpu::min_uncached_bytes", "cpu::last_level_cache_bytes"];

#[test]
fn analysis_and_reports_call_no_function_that_reads_the_machine() {
    let reading = functions_that_read_the_machine();
    assert!(reading.iter().any(|(of, name)| of == "Machine" && name == "probe"), "{reading:?}");
    let mut found = Vec::new();
    for source in sources("src/") {
        let file = source.path.trim_start_matches("src/");
        // Those of `machine` itself are pure by their own files.
        if file.starts_with("machine/") || !PURE.iter().any(|module| is_in(file, module)) {
            continue;
        }
        let calls = |(of, name): &&(String, String)| {
            let called = format!("{of}::{name}");
            if PURE_OF_MACHINE.contains(&&*called) {
                return false;
            }
            let imported = format!("::{name}");
            let is_import = |line: &str| {
                line.trim_start().starts_with("use crate::machine::") && has_word(line, name)
                    || line.contains("crate::machine::") && line.contains(&imported)
            };
            source.code.contains(&format!("{called}(")) || source.code.lines().any(is_import)
        };
        found.extend(reading.iter().filter(calls).map(|(of, name)| format!("`{file}` calls `{of}::{name}`")));
    }
    assert!(found.is_empty(), "these files are pure; pass the value in:\n{}", found.join("\n"));
}

/// The functions without `self` in the files of `machine` that read files, clocks or libraries, each with its module or type.
fn functions_that_read_the_machine() -> BTreeSet<(String, String)> {
    let graph = Graph::new(Scope::Program, &in_src);
    let foreign = graph.foreign();
    let mut found = BTreeSet::new();
    for (module, file) in graph.files().filter(|(_, file)| file.starts_with("machine/")) {
        let path = format!("src/{file}");
        if impure(&foreign[module]).is_none() && reads_disk(&path).is_none() {
            continue;
        }
        let code =
            sources(&path).into_iter().find(|it| it.path == path).map(|it| it.code).unwrap_or_default();
        let mut of = module.last().cloned().unwrap_or_default();
        for line in code.lines() {
            if let Some(name) = line.strip_prefix("impl ") {
                of = name.trim_end_matches(" {").to_string();
            }
            let function = line.trim_start().strip_prefix("pub fn ").filter(|rest| !rest.contains("self"));
            if let Some((name, _)) = function.and_then(|rest| rest.split_once(['(', '<'])) {
                let free = !line.starts_with(' ');
                let of = if free { module.last().cloned().unwrap_or_default() } else { of.clone() };
                found.insert((of, name.to_string()));
            }
        }
    }
    found
}

#[test]
fn exceptions_from_purity_exist_and_are_needed() {
    let graph = Graph::new(Scope::Program, &in_src);
    let foreign = graph.foreign();
    for reader in READERS {
        let module = graph.files().find(|(_, file)| file == reader);
        let (module, _) = module.unwrap_or_else(|| panic!("`{reader}` has moved: tell this test where to"));
        assert!(
            impure(&foreign[module]).is_some() || reads_disk(&format!("src/{reader}")).is_some(),
            "`{reader}` reads nothing any more: take it off READERS"
        );
    }
}

/// Checks the files of the crate in a folder that `is_pure` selects.
fn assert_pure(folder: &str, is_pure: impl Fn(&str) -> bool) {
    let root = if folder == "src" { "main.rs" } else { "lib.rs" };
    let path = |file: &str| format!("{folder}/{}", if file == "main.rs" { root } else { file });
    let read = |file: &str| text(&path(file));
    let graph = Graph::new(Scope::Program, &read);
    let foreign = graph.foreign();
    let files: Vec<_> = graph.files().filter(|(_, file)| is_pure(file)).collect();
    assert!(!files.is_empty(), "a pure module in `{folder}` has moved: tell this test where to");
    let found = files.into_iter().filter_map(|(module, file)| {
        let path = path(file);
        let what = impure(&foreign[module]).or_else(|| reads_disk(&path))?;
        Some(format!("`{path}` uses `{what}`"))
    });
    let found: Vec<_> = found.collect();
    assert!(
        found.is_empty(),
        "these files are pure; pass the value in, so that any report can be made again years later:\n{}",
        found.join("\n")
    );
}

fn impure(paths: &BTreeSet<String>) -> Option<String> {
    let is_excused =
        |path: &str| PURE_TYPES.iter().any(|pure| goes_through(path, pure) && !path.ends_with('*'));
    let asks = |path: &str| {
        let method = path.strip_prefix("std::path::Path::").or(path.strip_prefix("std::path::PathBuf::"));
        method.is_some_and(|method| DISK_METHODS.contains(&method))
    };
    let is_impure =
        |path: &str| asks(path) || IMPURE.iter().any(|it| goes_through(path, it) && !is_excused(path));
    paths.iter().find(|path| is_impure(path)).cloned()
}

fn reads_disk(path: &str) -> Option<String> {
    let code = sources(path).into_iter().find(|it| it.path == path)?.code;
    DISK_METHODS.iter().map(|method| format!(".{method}(")).find(|call| code.contains(call))
}

fn is_in(file: &str, module: &str) -> bool {
    file == format!("{module}.rs") || file.starts_with(&format!("{module}/"))
}

fn in_src(path: &str) -> Option<String> {
    text(&format!("src/{path}"))
}

#[test]
fn only_listed_files_start_processes() {
    for file in sources("src/") {
        if !file.path.starts_with("src/run/process/") {
            file.refuse("Command::new", "only src/run/process/ spawns; ask questions with duct");
            file.refuse("process::Command", "only src/run/process/ spawns; ask questions with duct");
        }
        if !file.path.starts_with("src/machine/")
            && !["src/engines/registry.rs", "src/engines/setup/step.rs"].contains(&&*file.path)
        {
            file.refuse("duct::", "only machine/, registry and set-up run one-shot commands");
        }
    }
    for file in sources("engines/kit/src/") {
        file.refuse("Command::new", "the kit's hosts spawn with duct");
        if !["python.rs", "server.rs"].iter().any(|host| file.path.ends_with(host)) {
            file.refuse("duct::", "in the kit only the Python worker host and the server host spawn");
        }
    }
}

#[test]
fn only_listed_files_write_to_disk() {
    let writers = [
        "src/record/file.rs",
        "src/commands/output.rs",
        "src/engines/setup/environment.rs",
        "src/commands/baseline/store.rs",
        "src/commands/noise_floors.rs",
    ];
    for file in sources("src/").iter().filter(|file| !writers.contains(&&*file.path)) {
        for writes in [
            "fs::write",
            "File::create",
            "OpenOptions",
            "fs::create_dir",
            "fs::remove",
            "fs::rename",
            "fs::copy",
        ] {
            file.refuse(
                writes,
                "files are written by record/ (results), commands/output.rs (--json), engines/setup/environment.rs, commands/baseline/store.rs and commands/noise_floors.rs",
            );
        }
    }
}

#[test]
fn stdout_has_one_writer() {
    for file in sources("src/").iter().filter(|file| file.path != "src/commands/output.rs") {
        for writes in ["io::stdout", "println!", "print!"] {
            file.refuse_word(writes, "stdout is for results alone: pass the bytes to output::print");
        }
    }
}

#[test]
fn no_code_sleeps_to_be_correct() {
    for file in sources("src/").iter().filter(|file| file.path != "src/run/process/keeper.rs") {
        for waits in ["thread::sleep", "time::sleep", "spin_loop", "yield_now", "sleep(Duration"] {
            file.refuse(waits, "wait for the event itself, with a deadline");
        }
    }
}

#[test]
fn no_engine_is_named_in_the_orchestrator() {
    let programs = |(_, manifest): (String, toml::Table)| {
        let devices = devices(&manifest);
        let others = devices.filter_map(|(_, device)| Some(device.get("binary")?.as_str()?.to_string()));
        let own = ["name", "binary"].map(|key| manifest[key].as_str().unwrap().to_string());
        own.into_iter().chain(others).collect::<Vec<_>>()
    };
    let names: BTreeSet<String> = manifests().flat_map(programs).collect();
    assert!(!names.is_empty());
    // Tests too: their names are invented.
    for path in tracked().iter().filter(|path| path.starts_with("src/") && path.ends_with(".rs")) {
        let source = text(path).unwrap();
        for (number, line) in source.lines().enumerate() {
            let named = names.iter().find(|name| has_word(line, name));
            let number = number + 1;
            assert!(
                named.is_none(),
                "`{path}` line {number} names an engine: say it in that one's manifest\n{line}"
            );
        }
    }
}

/// Engines that code of `scripts/check` names, with the reason; `engines/README.md` has it too.
const NAMED_BY_THE_CHECK: &[(&str, &str)] = &[
    ("llama-cpp", "its library reads the files that `orchestrate model` writes"),
    ("lmrs", "its kernels are compiled for other processors too"),
];

#[test]
fn scripts_check_takes_engines_from_their_manifests() {
    let (check, readme) = (text("scripts/check").unwrap(), text("engines/README.md").unwrap());
    let is_named =
        |name: &str| check.lines().any(|line| !line.trim().starts_with('#') && has_word(line, name));
    for (name, manifest) in manifests() {
        let package = manifest["build"].get("package").and_then(toml::Value::as_str);
        let named = is_named(&name) || package.is_some_and(is_named);
        let reason = NAMED_BY_THE_CHECK.iter().find(|(known, _)| *known == name).map(|(_, reason)| reason);
        assert_eq!(named, reason.is_some(), "scripts/check and `{name}`: take it from scripts/engines-of");
        assert!(
            reason.is_none_or(|reason| readme.contains(reason)),
            "engines/README.md: why `{name}` is named"
        );
    }
}

#[test]
fn the_script_that_lists_engines_agrees_with_the_manifests() {
    let workspace: toml::Table = text("Cargo.toml").unwrap().parse().unwrap();
    let has = |key: &str, folder: &str| {
        let path = format!("engines/{folder}");
        workspace["workspace"][key].as_array().unwrap().iter().any(|it| it.as_str() == Some(&path))
    };
    let needs = |manifest: &toml::Table| manifest.get("needs").is_some_and(|it| it.get("driver").is_some());
    let hosted = |manifest: &toml::Table| manifest.contains_key("environment");
    type IsKind<'a> = &'a dyn Fn(&str, &toml::Table) -> bool;
    let kinds: [(&str, IsKind); 4] = [
        ("reference", &|_, it| it.get("reference").and_then(toml::Value::as_bool) == Some(true)),
        ("environment", &|_, it| hosted(it) && !needs(it)),
        ("driver", &|_, it| hosted(it) && needs(it)),
        ("heavy", &|folder, _| has("members", folder) && !has("default-members", folder)),
    ];
    for (kind, is_kind) in kinds {
        let script = finish(Scratch::new().marked(root().join("scripts/engines-of")).arg(kind));
        let listed: BTreeSet<String> = script.stdout.lines().map(String::from).collect();
        let expected =
            manifests().filter(|(folder, it)| is_kind(folder, it)).map(|(folder, it)| match kind {
                "heavy" => format!("{folder}:{}", it["build"]["package"].as_str().unwrap()),
                _ => folder,
            });
        assert_eq!(listed, expected.collect(), "scripts/engines-of {kind}: {script:?}");
    }
}

#[test]
fn the_overview_of_src_lists_every_module() {
    let map = text("src/README.md").unwrap();
    for path in tracked().iter().filter_map(|path| path.strip_prefix("src/")) {
        let module = path.split('/').next().unwrap();
        let written = if path.contains('/') { format!("{module}/") } else { module.to_string() };
        let known = map.contains(&format!("`{written}`")) || map.contains(&format!("`{}.rs`", module));
        assert!(
            known || module == "README.md",
            "src/README.md does not say what `{written}` is for: add it to the table"
        );
    }
}

// The form of engines and files.

#[test]
fn every_engine_folder_has_a_manifest_and_a_readme_that_ends_with_decisions() {
    for folder in engine_folders() {
        let manifest = text(&format!("engines/{folder}/engine.toml"));
        let manifest =
            manifest.unwrap_or_else(|| panic!("engines/{folder}: add engine.toml (see engines/README.md)"));
        let manifest: toml::Table = manifest.parse().unwrap();
        assert_eq!(
            manifest["name"].as_str(),
            Some(&*folder),
            "engines/{folder}/engine.toml: `name` is the folder's name"
        );
        let readme = text(&format!("engines/{folder}/README.md"));
        let readme =
            readme.unwrap_or_else(|| panic!("engines/{folder}: add README.md, ending with `## Decisions`"));
        let last = readme.lines().rfind(|line| line.starts_with("## "));
        assert_eq!(
            last,
            Some("## Decisions"),
            "engines/{folder}/README.md: its last section says what was decided"
        );
    }
}

#[test]
fn files_used_by_a_manifests_build_exist() {
    let workspace = Workspace::read();
    for (folder, manifest) in manifests() {
        let own = manifest.get("build").map(|build| ("build".to_string(), build.clone()));
        let of_devices = devices(&manifest).filter_map(|(name, device)| {
            Some((format!("devices.{name}.build"), device.get("build")?.clone()))
        });
        for (table, build) in own.into_iter().chain(of_devices) {
            let place = format!("engines/{folder}/engine.toml: `{table}`");
            if let Some(package) = build.get("package").and_then(toml::Value::as_str) {
                assert!(workspace.direct.contains_key(package), "{place}: no package `{package}`");
            }
            let command = build.get("command").and_then(|it| it.as_array()?.first()?.as_str());
            if let Some(program) = command.filter(|program| program.contains('/')) {
                assert!(root().join(program).is_file(), "{place}: no `{program}` in the checkout");
            }
        }
    }
}

#[test]
fn no_test_is_switched_off() {
    for path in tracked().iter().filter(|path| path.ends_with(".rs")) {
        // In two parts, so that this line does not match.
        let switched_off = ["#[", "ignore"].concat();
        let found = text(path).unwrap().contains(&switched_off);
        assert!(!found, "`{path}` switches a test off: make it pass, put it behind a feature, or delete it");
    }
}

#[test]
fn no_file_names_the_machine_of_its_author() {
    let folders = ["work", "root"].map(|name| format!("/{name}/"));
    for path in tracked() {
        // A file that is no text has no paths.
        let Some(text) = text(&path) else { continue };
        for (number, line) in text.lines().enumerate() {
            let found = folders.iter().find(|folder| has_path(line, folder));
            assert!(
                found.is_none(),
                "`{path}` line {}: a path of one machine; make it relative\n{line}",
                number + 1
            );
        }
    }
}

#[test]
fn the_search_finds_names_and_paths_exactly() {
    assert!(has_word("the `toy` engine", "toy") && has_word("toy-core", "toy") && !has_word("toys", "toy"));
    assert!(has_path("cd /srv/x", "/srv/") && has_path("`/srv/x`", "/srv/") && !has_path("a/srv/x", "/srv/"));
    let source = "use a;\n#[cfg(test)]\nmod specimen;\nfn b() {}\n#[cfg(test)]\nmod tests {\n    fn c() {}\n}\nfn d() {}\n";
    assert_eq!(without_tests(source), "use a;\nfn b() {}\nfn d() {}\n");
}

#[test]
#[should_panic(expected = "no sources under `src/no-such-folder/`")]
fn a_rule_about_a_missing_folder_fails() {
    sources("src/no-such-folder/");
}

fn devices(manifest: &toml::Table) -> impl Iterator<Item = (String, toml::Value)> {
    let table = manifest.get("devices").and_then(toml::Value::as_table).cloned();
    table.unwrap_or_default().into_iter()
}

fn assert_no_tensors(package: &str, reached: &BTreeSet<String>) {
    let is_one = |name: &&String| TENSOR_FRAMEWORKS.iter().any(|framework| name.starts_with(framework));
    let found: Vec<_> = reached.iter().filter(is_one).collect();
    assert!(
        found.is_empty(),
        "`{package}` reaches {found:?}: tensors belong to an engine, and no default member is one"
    );
}
