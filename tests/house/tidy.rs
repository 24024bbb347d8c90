//! Rules that no compiler checks: allowed dependencies, allowed side effects of each module, the form of files. Each
//! message says how to mend the violation; `src/README.md` has the reasons.

use std::collections::BTreeSet;

use crate::modules::{Graph, Scope, has_path_prefix};
use crate::support::tree::{
    contains_path, contains_word, engine_folders, manifests, sources, text, unignored_files, without_tests,
};
use crate::support::workspace::{Workspace, locked_in};
use crate::support::{Scratch, command, finish, root};

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
fn the_protocol_crate_depends_only_on_serde_and_schemars() {
    let allowed = ["serde", "serde_json", "serde_path_to_error", "schemars"];
    for dependency in Workspace::read().dependencies("protocol") {
        assert!(
            allowed.contains(&dependency.as_str()),
            "`protocol` depends on `{dependency}`: code with a clock, process, I/O or async belongs to another crate"
        );
    }
}

#[test]
fn the_orchestrator_depends_on_no_engine_no_kit_and_no_tensor_framework() {
    let workspace = Workspace::read();
    let reached = workspace.all_dependencies("orchestrate");
    assert!(reached.contains("tokio"), "the lock file was not read correctly: {reached:?}");
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
    for shared in
        ["engine-kit", "machine-limits", "model-files", "paths", "protocol", "server-client", "system"]
    {
        let reached = workspace.all_dependencies(shared);
        assert_no_tensors(shared, &reached);
        assert!(
            !reached.contains("tokio"),
            "`{shared}` depends on tokio: use threads, because any engine may use this crate"
        );
    }
}

#[test]
fn no_engine_depends_on_another() {
    let workspace = Workspace::read();
    let engines = workspace.engines();
    assert!(engines.len() > 1, "no engines found: {engines:?}");
    for engine in &engines {
        let reached = workspace.all_dependencies(engine);
        let others: Vec<_> =
            engines.iter().filter(|other| *other != engine && reached.contains(*other)).collect();
        assert!(
            others.is_empty(),
            "`{engine}` depends on {others:?}: share through engines/kit or models/files instead"
        );
    }
    // Engines in workspaces of their own, by their lock files.
    for path in
        unignored_files().iter().filter(|path| path.starts_with("engines/") && path.ends_with("/Cargo.lock"))
    {
        let locked = locked_in(path);
        assert!(locked.contains_key("engine-kit"), "`{path}` was not read correctly");
        let others: Vec<_> = engines.iter().filter(|other| locked.contains_key(*other)).collect();
        assert!(
            others.is_empty(),
            "`{path}` has {others:?}: share through engines/kit or models/files instead"
        );
    }
}

#[test]
fn a_plain_cargo_build_builds_no_tensor_framework() {
    let workspace = Workspace::read();
    let members = &workspace.default_members;
    assert!(members.contains(&"orchestrate".to_string()), "{members:?}");
    for member in members {
        assert_no_tensors(member, &workspace.all_dependencies(member));
    }
}

#[test]
fn crates_of_engines_are_compiled_with_the_full_optimisation() {
    let manifest: toml::Table = text("Cargo.toml").unwrap().parse().unwrap();
    let overrides = manifest["profile"]["release"]["package"].as_table().unwrap();
    let less_optimised: Vec<&String> =
        overrides.iter().filter(|(_, it)| it.get("opt-level").is_some()).map(|(name, _)| name).collect();
    assert!(less_optimised.len() > 1, "{less_optimised:?}");
    // The time of the null engine is compared with the times of engines.
    for engine in Workspace::read().engines().into_iter().chain(["null-engine".to_string()]) {
        let tree = compiled_into(&engine);
        assert!(tree.contains(&"serde_json".to_string()), "`cargo tree` was not read correctly: {tree:?}");
        for name in &less_optimised {
            assert!(
                !tree.contains(name),
                "`{engine}` is or uses `{name}`: remove its `opt-level` from `profile.release` in Cargo.toml"
            );
        }
    }
}

/// The crates that cargo compiles into a package, without those of unused features.
fn compiled_into(package: &str) -> Vec<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut tree = command(cargo);
    // Without `--offline`: `cargo tree` reads the crates of every engine, which a new machine must download first.
    tree.args(["tree", "--locked", "-p", package, "-e", "normal", "--prefix", "none"]).current_dir(root());
    let output = tree.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    tree.lines().filter_map(|line| Some(line.split(' ').next()?.to_string())).collect()
}

#[test]
fn every_crate_has_the_workspace_lints() {
    let workspace: toml::Table = text("Cargo.toml").unwrap().parse().unwrap();
    for manifest in unignored_files().iter().filter(|path| path.ends_with("Cargo.toml")) {
        let table: toml::Table = text(manifest).unwrap().parse().unwrap();
        let lints = &table["lints"];
        // An engine in a workspace of its own can inherit nothing.
        if manifest != "Cargo.toml" && table.contains_key("workspace") {
            for tool in ["rust", "clippy"] {
                let mut expected = workspace["workspace"]["lints"][tool].clone();
                // Only scripts/fuzz uses this one, on a crate of the workspace.
                expected.as_table_mut().unwrap().remove("unexpected_cfgs");
                assert_eq!(
                    lints[tool], expected,
                    "`{manifest}`: copy `workspace.lints.{tool}` of Cargo.toml"
                );
            }
            continue;
        }
        let inherits = lints.get("workspace").and_then(toml::Value::as_bool) == Some(true);
        assert!(inherits, "`{manifest}`: add `[lints]` with `workspace = true`");
    }
}

#[test]
fn every_rust_engine_is_built_with_one_release_profile() {
    let settings: toml::Table = text(".cargo/config.toml").unwrap().parse().unwrap();
    let profile = settings["profile"]["release"].as_table().unwrap();
    assert!(profile.contains_key("codegen-units"), "{profile:?}");
    for manifest in unignored_files().iter().filter(|path| path.ends_with("Cargo.toml")) {
        let table: toml::Table = text(manifest).unwrap().parse().unwrap();
        let release = table.get("profile").and_then(|it| it.get("release")?.as_table());
        let in_manifest: Vec<&String> = release.into_iter().flat_map(toml::Table::keys).collect();
        // Cargo ignores the profiles of members. The exceptions of the checkout's workspace concern no engine (see the test above).
        let allowed: &[&str] = if manifest == "Cargo.toml" { &["package"] } else { &[] };
        assert_eq!(in_manifest, allowed, "`{manifest}`: move `profile.release` to .cargo/config.toml");
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
/// Files in PURE modules that read or write files; `plan/mod.rs` and `record/mod.rs` have the reasons.
const IMPURE_EXCEPTIONS: &[&str] = &["plan/models.rs", "plan/prompts.rs", "plan/texts.rs", "record/file.rs"];
/// Paths of code that may use a clock, a process, a thread or a file.
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
    "system",
];
/// Pure names in the crates of IMPURE.
const PURE_NAMES: &[&str] = &[
    "machine_limits::Copies",
    "machine_limits::GpuLimits",
    "machine_limits::Limits",
    "machine_limits::Operations",
    "machine_limits::Reads",
    "machine_limits::names",
    "model_files::Dtype",
];
/// Methods of `std::path::Path` that access the disk.
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
fn pure_modules_use_no_clock_process_or_file() {
    for module in PURE {
        assert_pure("src", |file| is_in(file, module) && !IMPURE_EXCEPTIONS.contains(&file));
    }
    assert_pure("src/stats", |_| true);
}

/// Functions that only compute, in files of `machine` that have functions which read the machine too.
const PURE_OF_MACHINE: &[&str] =
    &["cpu::min_uncached_bytes_for_cache", "cpu::min_uncached_bytes", "cpu::last_level_cache_bytes"];

#[test]
fn pure_modules_call_no_function_that_reads_the_machine() {
    let reading = functions_that_read_the_machine();
    assert!(reading.iter().any(|(parent, name)| parent == "Machine" && name == "probe"), "{reading:?}");
    let mut found = Vec::new();
    for source in sources("src/") {
        let file = source.path.trim_start_matches("src/");
        // The test above checks pure files of `machine`.
        if file.starts_with("machine/") || !PURE.iter().any(|module| is_in(file, module)) {
            continue;
        }
        let is_called = |(parent, name): &&(String, String)| {
            let called = format!("{parent}::{name}");
            if PURE_OF_MACHINE.contains(&&*called) {
                return false;
            }
            let imported = format!("::{name}");
            let is_import = |line: &str| {
                line.trim_start().starts_with("use crate::machine::") && contains_word(line, name)
                    || line.contains("crate::machine::") && line.contains(&imported)
            };
            source.code.contains(&format!("{called}(")) || source.code.lines().any(is_import)
        };
        let calls = reading.iter().filter(is_called);
        found.extend(calls.map(|(parent, name)| format!("`{file}` calls `{parent}::{name}`")));
    }
    assert!(found.is_empty(), "these files are pure; pass the value in:\n{}", found.join("\n"));
}

/// Public functions without `self`, each with its module or type, in those files of `machine` that read files, clocks or
/// libraries.
fn functions_that_read_the_machine() -> BTreeSet<(String, String)> {
    let graph = Graph::new(Scope::Program, &in_src);
    let foreign = graph.foreign_paths();
    let mut found = BTreeSet::new();
    for (module, file) in graph.files().filter(|(_, file)| file.starts_with("machine/")) {
        let path = format!("src/{file}");
        if find_impure(&foreign[module]).is_none() && find_disk_access(&path).is_none() {
            continue;
        }
        let code =
            sources(&path).into_iter().find(|it| it.path == path).map(|it| it.code).unwrap_or_default();
        let module_name = module.last().cloned().unwrap_or_default();
        let mut type_name = module_name.clone();
        for line in code.lines() {
            if let Some(name) = line.strip_prefix("impl ") {
                type_name = name.trim_end_matches(" {").to_string();
            }
            let function = line.trim_start().strip_prefix("pub fn ").filter(|rest| !rest.contains("self"));
            if let Some((name, _)) = function.and_then(|rest| rest.split_once(['(', '<'])) {
                let parent = if line.starts_with(' ') { &type_name } else { &module_name };
                found.insert((parent.clone(), name.to_string()));
            }
        }
    }
    found
}

#[test]
fn exceptions_from_purity_exist_and_are_needed() {
    let graph = Graph::new(Scope::Program, &in_src);
    let foreign = graph.foreign_paths();
    for listed in IMPURE_EXCEPTIONS {
        let module = graph.files().find(|(_, file)| file == listed);
        let (module, _) =
            module.unwrap_or_else(|| panic!("`{listed}` has moved: update its path in this test"));
        assert!(
            find_impure(&foreign[module]).is_some() || find_disk_access(&format!("src/{listed}")).is_some(),
            "`{listed}` reads no file: remove it from IMPURE_EXCEPTIONS"
        );
    }
}

/// Checks that those files of the crate in `folder` that `must_be_pure` selects are pure.
fn assert_pure(folder: &str, must_be_pure: impl Fn(&str) -> bool) {
    let root_file = if folder == "src" { "main.rs" } else { "lib.rs" };
    let path = |file: &str| format!("{folder}/{}", if file == "main.rs" { root_file } else { file });
    let read = |file: &str| text(&path(file));
    let graph = Graph::new(Scope::Program, &read);
    let foreign = graph.foreign_paths();
    let files: Vec<_> = graph.files().filter(|(_, file)| must_be_pure(file)).collect();
    assert!(!files.is_empty(), "a pure module in `{folder}` has moved: update its path in this test");
    let found = files.into_iter().filter_map(|(module, file)| {
        let path = path(file);
        let name = find_impure(&foreign[module]).or_else(|| find_disk_access(&path))?;
        Some(format!("`{path}` uses `{name}`"))
    });
    let found: Vec<_> = found.collect();
    assert!(
        found.is_empty(),
        "these files are pure; pass the value in, so that a report can be repeated later:\n{}",
        found.join("\n")
    );
}

fn find_impure(paths: &BTreeSet<String>) -> Option<String> {
    let is_allowed =
        |path: &str| PURE_NAMES.iter().any(|pure| has_path_prefix(path, pure) && !path.ends_with('*'));
    let accesses_disk = |path: &str| {
        let method = path.strip_prefix("std::path::Path::").or(path.strip_prefix("std::path::PathBuf::"));
        method.is_some_and(|method| DISK_METHODS.contains(&method))
    };
    let is_impure = |path: &str| {
        accesses_disk(path) || IMPURE.iter().any(|it| has_path_prefix(path, it) && !is_allowed(path))
    };
    paths.iter().find(|path| is_impure(path)).cloned()
}

fn find_disk_access(path: &str) -> Option<String> {
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
            file.refuse("Command::new", "only src/run/process/ spawns; run one-shot commands with duct");
            file.refuse("process::Command", "only src/run/process/ spawns; run one-shot commands with duct");
        }
        if !file.path.starts_with("src/machine/")
            && !["src/engines/registry.rs", "src/engines/setup/step.rs"].contains(&&*file.path)
        {
            file.refuse("duct::", "only src/machine/, registry.rs and setup/step.rs run one-shot commands");
        }
    }
    for file in sources("engines/kit/src/") {
        file.refuse("Command::new", "the kit starts processes with duct");
        if !["python.rs", "conversion.rs", "child_server.rs"]
            .contains(&file.path.trim_start_matches("engines/kit/src/"))
        {
            file.refuse(
                "duct::",
                "in the kit only python.rs, conversion.rs and child_server.rs start processes",
            );
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
        "src/commands/core_lock.rs",
        "src/run/process/containment.rs",
        "src/run/dtype_costs.rs",
    ];
    for file in sources("src/").iter().filter(|file| !writers.contains(&&*file.path)) {
        for call in [
            "fs::write",
            "File::create",
            "OpenOptions",
            "fs::create_dir",
            "fs::remove",
            "fs::rename",
            "fs::copy",
        ] {
            file.refuse(call, "only the files listed in this test write to disk");
        }
    }
}

#[test]
fn only_one_file_writes_to_stdout() {
    for file in sources("src/").iter().filter(|file| file.path != "src/commands/output.rs") {
        for call in ["io::stdout", "println!", "print!"] {
            file.refuse_word(call, "only results go to stdout: pass the bytes to output::print");
        }
    }
}

#[test]
fn only_one_file_waits_by_sleeping() {
    for file in sources("src/").iter().filter(|file| file.path != "src/run/process/containment.rs") {
        for call in ["thread::sleep", "time::sleep", "spin_loop", "yield_now", "sleep(Duration"] {
            file.refuse(call, "wait for the event itself, with a deadline");
        }
    }
}

#[test]
fn no_engine_is_named_in_the_orchestrator() {
    let names_in = |(_, manifest): (String, toml::Table)| {
        let devices = devices(&manifest);
        let device_binaries = devices.filter_map(|(_, it)| Some(it.get("binary")?.as_str()?.to_string()));
        let engine_names = ["name", "binary"].map(|key| manifest[key].as_str().unwrap().to_string());
        engine_names.into_iter().chain(device_binaries).collect::<Vec<_>>()
    };
    let names: BTreeSet<String> = manifests().flat_map(names_in).collect();
    assert!(!names.is_empty());
    // Tests in `src` must use invented names too.
    for path in unignored_files().iter().filter(|path| path.starts_with("src/") && path.ends_with(".rs")) {
        let source = text(path).unwrap();
        for (number, line) in source.lines().enumerate() {
            let named = names.iter().find(|name| contains_word(line, name));
            let number = number + 1;
            assert!(
                named.is_none(),
                "`{path}` line {number} names an engine: put the fact into that engine's manifest\n{line}"
            );
        }
    }
}

/// Engines that `scripts/check` may name, with the reason; `engines/README.md` gives the same reason.
const NAMED_BY_CHECK_SCRIPT: &[(&str, &str)] = &[
    ("llama-cpp", "another build of llama.cpp reads the files that `orchestrate model` writes"),
    ("lmrs", "its kernels are compiled for other processors too"),
];

#[test]
fn scripts_check_takes_engines_from_their_manifests() {
    let (check, readme) = (text("scripts/check").unwrap(), text("engines/README.md").unwrap());
    let is_named =
        |name: &str| check.lines().any(|line| !line.trim().starts_with('#') && contains_word(line, name));
    for (name, manifest) in manifests() {
        let package = manifest["build"].get("package").and_then(toml::Value::as_str);
        let named = is_named(&name) || package.is_some_and(is_named);
        let reason = NAMED_BY_CHECK_SCRIPT.iter().find(|(known, _)| *known == name).map(|(_, reason)| reason);
        assert_eq!(
            named,
            reason.is_some(),
            "scripts/check and NAMED_BY_CHECK_SCRIPT differ on `{name}`: use scripts/engines-of, or change the list"
        );
        assert!(
            reason.is_none_or(|reason| readme.contains(reason)),
            "engines/README.md has no reason why scripts/check names `{name}`"
        );
    }
}

#[test]
fn the_script_that_lists_engines_agrees_with_the_manifests() {
    let workspace: toml::Table = text("Cargo.toml").unwrap().parse().unwrap();
    let lists = |key: &str, folder: &str| {
        let path = format!("engines/{folder}");
        workspace["workspace"][key].as_array().unwrap().iter().any(|it| it.as_str() == Some(&path))
    };
    let needs_driver =
        |manifest: &toml::Table| manifest.get("needs").is_some_and(|it| it.get("driver").is_some());
    let has_environment = |manifest: &toml::Table| manifest.contains_key("environment");
    type IsKind<'a> = &'a dyn Fn(&str, &toml::Table) -> bool;
    let has_cuda = |manifest: &toml::Table| {
        let devices = manifest.get("load").and_then(|load| load.get("devices")?.as_array());
        devices.is_some_and(|devices| devices.iter().any(|it| it.as_str() == Some("cuda")))
    };
    let kinds: [(&str, IsKind); 6] = [
        ("reference", &|_, it| it.get("reference").and_then(toml::Value::as_bool) == Some(true)),
        ("environment", &|_, it| has_environment(it) && !needs_driver(it)),
        ("driver", &|_, it| has_environment(it) && needs_driver(it)),
        ("heavy", &|folder, _| lists("members", folder) && !lists("default-members", folder)),
        ("separate", &|folder, _| lists("exclude", folder)),
        ("cuda", &|_, it| has_cuda(it)),
    ];
    for (kind, is_kind) in kinds {
        let script = finish(Scratch::new().command(root().join("scripts/engines-of")).arg(kind));
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
    let page = text("src/README.md").unwrap();
    for path in unignored_files().iter().filter_map(|path| path.strip_prefix("src/")) {
        let module = path.split('/').next().unwrap();
        let written = if path.contains('/') { format!("{module}/") } else { module.to_string() };
        let is_listed = page.contains(&format!("`{written}`")) || page.contains(&format!("`{}.rs`", module));
        assert!(
            is_listed || module == "README.md",
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
            "engines/{folder}/engine.toml: `name` must be the folder's name"
        );
        let readme = text(&format!("engines/{folder}/README.md"));
        let readme = readme.unwrap_or_else(|| {
            panic!("engines/{folder}: add README.md with the last section `## Decisions`")
        });
        let last = readme.lines().rfind(|line| line.starts_with("## "));
        assert_eq!(
            last,
            Some("## Decisions"),
            "engines/{folder}/README.md: the last section must be `## Decisions`"
        );
    }
}

#[test]
fn files_used_by_a_manifests_build_exist() {
    let workspace = Workspace::read();
    for (folder, manifest) in manifests() {
        let engine_build = manifest.get("build").map(|build| ("build".to_string(), build.clone()));
        let device_builds = devices(&manifest).filter_map(|(name, device)| {
            Some((format!("devices.{name}.build"), device.get("build")?.clone()))
        });
        for (table, build) in engine_build.into_iter().chain(device_builds) {
            let location = format!("engines/{folder}/engine.toml: `{table}`");
            if let Some(package) = build.get("package").and_then(toml::Value::as_str) {
                let own = text(&format!("engines/{folder}/Cargo.toml"));
                let own: Option<toml::Table> = own.map(|own| own.parse().unwrap());
                let is_own = own.is_some_and(|own| own["package"]["name"].as_str() == Some(package));
                let exists = is_own || workspace.packages.contains_key(package);
                assert!(exists, "{location}: no package `{package}`");
            }
            let command = build.get("command").and_then(|it| it.as_array()?.first()?.as_str());
            if let Some(program) = command.filter(|program| program.contains('/')) {
                assert!(root().join(program).is_file(), "{location}: no `{program}` in the checkout");
            }
        }
    }
}

#[test]
fn no_test_is_ignored() {
    for path in unignored_files().iter().filter(|path| path.ends_with(".rs")) {
        // In two parts, so that this line does not match.
        let attribute = ["#[", "ignore"].concat();
        let found = text(path).unwrap().contains(&attribute);
        assert!(!found, "`{path}` ignores a test: make it pass, put it behind a feature, or delete it");
    }
}

#[test]
fn no_file_has_a_path_of_one_machine() {
    let folders = ["work", "root"].map(|name| format!("/{name}/"));
    for path in unignored_files() {
        // Binary files are skipped.
        let Some(text) = text(&path) else { continue };
        for (number, line) in text.lines().enumerate() {
            let found = folders.iter().find(|folder| contains_path(line, folder));
            assert!(
                found.is_none(),
                "`{path}` line {}: the path exists only on one machine; make it relative\n{line}",
                number + 1
            );
        }
    }
}

#[test]
fn the_search_finds_names_and_paths_exactly() {
    assert!(
        contains_word("the `toy` engine", "toy")
            && contains_word("toy-core", "toy")
            && !contains_word("toys", "toy")
    );
    assert!(
        contains_path("cd /srv/x", "/srv/")
            && contains_path("`/srv/x`", "/srv/")
            && !contains_path("a/srv/x", "/srv/")
    );
    let source = "use a;\n#[cfg(test)]\nmod specimen;\nfn b() {}\n#[cfg(test)]\nmod tests {\n    fn c() {}\n}\nfn d() {}\n";
    assert_eq!(without_tests(source), "use a;\nfn b() {}\nfn d() {}\n");
}

#[test]
#[should_panic(expected = "no sources under `src/no-such-folder/`")]
fn a_house_rule_fails_if_its_folder_is_missing() {
    sources("src/no-such-folder/");
}

fn devices(manifest: &toml::Table) -> impl Iterator<Item = (String, toml::Value)> {
    let table = manifest.get("devices").and_then(toml::Value::as_table).cloned();
    table.unwrap_or_default().into_iter()
}

fn assert_no_tensors(package: &str, reached: &BTreeSet<String>) {
    let is_tensor_framework =
        |name: &&String| TENSOR_FRAMEWORKS.iter().any(|framework| name.starts_with(framework));
    let found: Vec<_> = reached.iter().filter(is_tensor_framework).collect();
    assert!(
        found.is_empty(),
        "`{package}` depends on {found:?}: only engines outside the default members may use tensor frameworks"
    );
}
