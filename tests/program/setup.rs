//! Tests of the set-up of engines in a source tree: manifests, presets, builds and environments. The tree and its
//! engines are invented.

use crate::support::record::{Record, case_of, files};
use crate::support::snapshot::assert_snapshot;
use crate::support::{
    Outcome, Running, Scratch, build_command, driver, fake_engine, finish, root, write_program,
};

/// A tree of four engines: one can be built, one has a build that fails, one is for another system, one has an environment.
fn tree() -> Scratch {
    let scratch = Scratch::outside_checkout();
    let build = |name: &str| format!("[build]\n{}note = \"a moment\"\n", build_command(name));
    let environment = "[environment]\npython = \"3.11\"\nrequirements = \"requirements.txt\"\ndownload_mb = 2900\ninstalled_mb = 5400\n";
    let presets = "[presets.default]\nabout = \"as it comes\"\n[presets.late]\nabout = \"takes its time\"\noptions = { per_token_ns = 9000 }\n";
    let broken = "[build]\ncommand = [\"sh\", \"-c\", \"echo error: no compiler here; exit 1\"]\n";
    scratch.write_tree(&[
        (
            "able",
            &format!(
                "about = \"can be built\"\nbinary = \"able-engine\"\nreference = true\n{}{presets}",
                build("able-engine")
            ),
        ),
        ("broken", &format!("about = \"does not build\"\nbinary = \"broken-engine\"\n{broken}")),
        ("foreign", "about = \"runs elsewhere\"\nbinary = \"foreign-engine\"\n[needs]\nos = [\"plan9\"]\n"),
        (
            "heavy",
            &format!(
                "about = \"needs much\"\nbinary = \"heavy-engine\"\n{}{environment}",
                build("heavy-engine")
            ),
        ),
    ]);
    scratch
}

const DECODE: &[&str] =
    &["-s", "decode", "--depth", "0", "--blocks", "1", "--iterations", "1", "--json", "-"];

fn measure(scratch: &Scratch, arguments: &[&str]) -> (Outcome, Record) {
    let mut command = scratch.orchestrate_without_checkout();
    command.args(DECODE).args(arguments).arg("-m").arg(root().join("models/embedded"));
    let outcome = finish(command.arg("--results").arg(scratch.results()));
    let record = Record::only_one_in(&scratch.results());
    (outcome, record)
}

fn snapshot(name: &str, scratch: &Scratch, arguments: &[&str]) {
    assert_snapshot(name, scratch, scratch.orchestrate_without_checkout().args(arguments));
}

fn failure<'a>(record: &'a Record, label: &str) -> (&'a str, &'a str, Option<&'a str>) {
    let failure = record.failure_of(label);
    (failure["kind"].as_str().unwrap(), failure["message"].as_str().unwrap(), failure["hint"].as_str())
}

#[test]
fn engines_are_listed_with_missing_requirements_and_the_command_that_helps() {
    let scratch = tree();
    snapshot("engines", &scratch, &["engines"]);
    snapshot("setup-list", &scratch, &["setup", "--list"]);
}

#[test]
fn an_unused_environment_is_listed_with_its_size_and_the_command_that_removes_it() {
    let scratch = tree();
    let environments = scratch.join("home/environments");
    let (old, incomplete) = (environments.join("heavy-0123456789abcdef"), environments.join("half-made"));
    std::fs::create_dir_all(old.join("bin")).unwrap();
    std::fs::create_dir_all(incomplete.join("bin")).unwrap();
    for file in ["bin/python", "orchestrate-ready"] {
        std::fs::write(old.join(file), vec![1; 300_000]).unwrap();
    }
    let listed = finish(scratch.orchestrate_without_checkout().args(["setup", "--list"])).stdout;
    let (_, rest) = listed
        .split_once("unused environments (of older requirements, other checkouts or scripts):")
        .unwrap();
    let words: Vec<&str> = rest.split_whitespace().collect();
    let old = old.display().to_string();
    assert_eq!(
        (words[0], &words[2..]),
        (old.as_str(), ["kB", "on", "disk)", "hint:", "rm", "-r", &old].as_slice())
    );
    assert!(words[1].trim_start_matches('(').parse::<f64>().unwrap() >= 600.0, "{rest}");
}

#[test]
fn removing_a_shared_environment_names_its_other_engines() {
    let scratch = Scratch::outside_checkout();
    let python = "[environment]\npython = \"3.11\"\nrequirements = \"../environments/snake/requirements.txt\"\n\
                  download_mb = 1\ninstalled_mb = 1\n";
    let engine = |binary: &str| format!("about = \"x\"\nbinary = \"{binary}\"\n{python}");
    scratch.write_tree(&[("one", &engine("one-engine")), ("other", &engine("other-engine"))]);
    let shared = scratch.join("engines/environments/snake");
    std::fs::create_dir_all(&shared).unwrap();
    std::fs::write(shared.join("requirements.txt"), "no-such-package==1.0\n").unwrap();
    let environment = scratch.join("home/environments/snake-0123456789abcdef");
    std::fs::create_dir_all(&environment).unwrap();
    let removed = finish(scratch.orchestrate_without_checkout().args(["setup", "one", "--remove"])).stdout;
    assert_eq!(removed, format!("removed {}\n`other` used it too\n", environment.display()));
    assert!(!environment.exists());
}

/// The rows that a run with these arguments would have.
fn rows(scratch: &Scratch, arguments: &[&str]) -> Vec<String> {
    let mut command = scratch.orchestrate_without_checkout();
    command.args(arguments).args([
        "--no-setup",
        "--verifier",
        "none",
        "--dry-run",
        "-s",
        "decode",
        "--depth",
        "0",
        "-m",
    ]);
    let outcome = finish(command.arg(root().join("models/embedded"))).exits_with(0);
    let rows = outcome.stdout.lines().filter_map(|line| line.split_once(" on embedded"));
    rows.map(|(label, _)| label.trim().to_string()).filter(|label| !label.contains("twin")).collect()
}

fn tree_with_presets() -> Scratch {
    let scratch = Scratch::outside_checkout();
    let preset = |name: &str, per_token_ns: u32| {
        format!("[presets.{name}]\nabout = \"x\"\noptions = {{ per_token_ns = {per_token_ns} }}\n")
    };
    let presets = [preset("default", 5), preset("other", 9), preset("same", 5)].concat();
    let bare =
        format!("about = \"x\"\nbinary = \"bare\"\n[presets.usual]\nabout = \"x\"\n{}", preset("late", 9));
    let toy = format!("about = \"x\"\nbinary = \"toy-engine\"\n{presets}");
    scratch.write_tree(&[("bare", &bare), ("toy", &toy)]);
    scratch
}

#[test]
fn a_preset_equal_to_the_default_is_measured_only_if_named() {
    let scratch = tree_with_presets();
    assert_eq!(rows(&scratch, &["--all", "--presets"]), ["bare", "bare:late", "toy", "toy:other"]);
    assert_eq!(
        rows(&scratch, &["--all", "--presets", "-e", "toy:other"]),
        ["toy:other", "bare", "bare:late", "toy"]
    );
    assert_eq!(rows(&scratch, &["-e", "toy", "-e", "toy:same"]), ["toy", "toy:same"]);
    assert_eq!(rows(&scratch, &["-e", "bare", "--presets"]), ["bare", "bare:late"]);
}

#[test]
fn an_engines_own_suite_adds_its_rows_to_the_named_engines() {
    let scratch = Scratch::outside_checkout();
    let toy = [
        "about = \"x\"\nbinary = \"toy-engine\"\n",
        "[suites.toy-parts]\nabout = \"one choice at a time\"\nscenarios = [\"prefill\"]\n",
        "[presets.late]\noptions = { per_token_ns = 9 }\n",
        "[presets.later]\noptions = { per_token_ns = 90 }\nsuite = \"toy-parts\"\n",
        "against = { preset = \"late\", effect = \"later\" }\n",
    ];
    scratch.write_tree(&[("bare", "about = \"x\"\nbinary = \"bare\"\n"), ("toy", &toy.concat())]);
    assert_eq!(rows(&scratch, &["-s", "toy-parts"]), ["toy:late", "toy:later"]);
    assert_eq!(rows(&scratch, &["-s", "toy-parts", "-e", "bare"]), ["bare", "toy:late", "toy:later"]);
    assert_eq!(rows(&scratch, &["--all", "--presets"]), ["bare", "toy", "toy:late"]);
    let listed = finish(scratch.orchestrate_without_checkout().arg("scenarios")).stdout;
    let expected = "toy-parts\n    one choice at a time (prefill 1024)\n    rows: toy:late, toy:later\n";
    assert!(listed.contains(expected), "{listed}");
    let outcome =
        finish(scratch.orchestrate_without_checkout().args(["-e", "bare", "-s", "nowhere"])).exits_with(2);
    outcome.assert_stderr(&["`full`, `toy-parts`"]);
}

#[test]
fn a_value_that_is_listed_twice_is_one_row() {
    let scratch = tree_with_presets();
    let twice = ["-e", "toy", "--device", "cpu,cpu", "--dtype", "f32,f32", "--threads", "1,1"];
    assert_eq!(rows(&scratch, &twice), ["toy"]);
    if std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1) {
        assert_eq!(rows(&scratch, &["-e", "toy", "--threads", "2,1,2"]), ["toy 2 threads", "toy 1 thread"]);
    }
}

#[test]
fn an_unknown_engine_or_preset_is_refused_with_the_known_ones() {
    let scratch = tree();
    snapshot("unknown-engine", &scratch, &["-e", "no-such-engine"]);
    snapshot("unknown-preset", &scratch, &["-e", "able:no-such-preset"]);
    let reference = ["-e", "able", "--no-setup", "--reference", "no-such-engine"];
    snapshot("unknown-reference", &scratch, &reference);
}

#[test]
fn an_unknown_name_is_refused_before_any_build() {
    let scratch = tree();
    for option in ["--reference", "--verifier"] {
        let outcome =
            finish(scratch.orchestrate_without_checkout().args(["-e", "able", option, "no-such-engine"]))
                .exits_with(2);
        assert!(
            outcome.stderr.starts_with(&format!("error: {option}: no engine named `no-such-engine`")),
            "{outcome:?}"
        );
        assert!(!scratch.join("target/release/able-engine").exists(), "{outcome:?}");
    }
}

#[test]
fn set_up_builds_an_engine_and_can_be_repeated() {
    let scratch = tree();
    for name in ["setup-able", "setup-able-again"] {
        snapshot(name, &scratch, &["setup", "able"]);
        assert!(scratch.join("target/release/able-engine").is_file());
    }
    snapshot("setup-remove-nothing", &scratch, &["setup", "able", "--remove"]);
    scratch.assert_no_processes_left();
}

#[test]
fn set_up_builds_a_default_member_like_cargo_run_and_an_excluded_engine_in_its_own_workspace() {
    let scratch = Scratch::outside_checkout();
    let manifest = |name: &str| {
        format!("about = \"a package\"\nbinary = \"{name}-bin\"\n[build]\npackage = \"{name}-package\"\n")
    };
    let names = ["light", "heavy", "separate"];
    let manifests = names.map(manifest);
    scratch.write_tree(&[0, 1, 2].map(|index: usize| (names[index], manifests[index].as_str())));
    let members = "[workspace]\nmembers = [\"engines/heavy\"]\ndefault-members = [\".\", \"engines/light\"]\n\
                   exclude = [\"engines/separate\"]\n";
    std::fs::write(scratch.join("Cargo.toml"), members).unwrap();
    let built = "mkdir -p target/release && cd target/release && touch light-bin heavy-bin separate-bin";
    let cargo = scratch.script("cargo", &format!("echo \"$*\" >>\"$0.calls\"; {built}"));
    let path = format!("{}:/usr/bin:/bin", cargo.parent().unwrap().display());
    for engine in names {
        finish(scratch.orchestrate_without_checkout().args(["setup", engine, "--yes"]).env("PATH", &path))
            .exits_with(0);
    }
    let calls = std::fs::read_to_string(scratch.join("cargo.calls")).unwrap();
    let expected = "build --release --bin light-bin\nbuild --release -p heavy-package\n\
                    build --release --manifest-path engines/separate/Cargo.toml -p separate-package\n";
    assert_eq!(calls, expected);
}

#[test]
fn a_failed_set_up_prints_the_builders_output_and_its_command() {
    let scratch = tree();
    snapshot("setup-broken", &scratch, &["setup", "broken"]);
    snapshot("setup-foreign", &scratch, &["setup", "foreign"]);
}

#[test]
fn a_build_that_waits_for_another_cargo_prints_what_it_waits_for() {
    let scratch = Scratch::outside_checkout();
    let line = "    Blocking waiting for file lock on build directory";
    let build = format!("[build]\ncommand = [\"sh\", \"-c\", \"echo '{line}'; exit 1\"]\n");
    let manifest = format!("about = \"waits\"\nbinary = \"late-engine\"\n{build}");
    scratch.write_tree(&[("late", &manifest)]);
    let outcome = finish(scratch.orchestrate_without_checkout().args(["setup", "late", "--yes"]));
    outcome.assert_stderr(&["late: waiting: another cargo uses the build directory; "]);
}

#[test]
fn a_failed_environment_ends_with_another_way_to_get_its_library() {
    let scratch = tree();
    let manifest = scratch.join("engines/heavy/engine.toml");
    let install_hint = "installed_mb = 1\ninstall_hint = \"heavy's own guide says where it comes from\"\n";
    let text = std::fs::read_to_string(&manifest).unwrap().replace("installed_mb = 5400\n", install_hint);
    std::fs::write(&manifest, text.replace("download_mb = 2900", "download_mb = 1")).unwrap();
    let uv = scratch.script("uv", "echo 'error: a placeholder that downloads the real one' >&2\nexit 1\n");
    let path = format!("{}:{}", uv.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let outcome =
        finish(scratch.orchestrate_without_checkout().args(["setup", "heavy", "--yes"]).env("PATH", path))
            .exits_with(5);
    outcome.assert_stderr(&["error: a placeholder that downloads the real one"]);
    assert!(outcome.stderr.ends_with("hint: heavy's own guide says where it comes from\n"), "{outcome:?}");
}

#[test]
fn a_set_up_on_a_full_disk_names_the_disk_and_leaves_no_environment() {
    let scratch = tree();
    let manifest = scratch.join("engines/heavy/engine.toml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let text = text
        .replace("download_mb = 2900", "download_mb = 1")
        .replace("installed_mb = 5400", "installed_mb = 1");
    std::fs::write(&manifest, text).unwrap();
    // The packages are half installed when the disk is full.
    let uv = r#"[ "$1" = venv ] || { echo 'error: failed to write: No space left on device (os error 28)'; exit 2; }
for last; do :; done
mkdir -p "$last/bin" && echo half > "$last/bin/python""#;
    let uv = scratch.script("uv", uv);
    let path = format!("{}:/usr/bin:/bin", uv.parent().unwrap().display());
    let outcome =
        finish(scratch.orchestrate_without_checkout().args(["setup", "heavy", "--yes"]).env("PATH", path))
            .exits_with(5);
    outcome
        .assert_stderr(&["error: the disk is full; nothing of the environment is left in ", "hint: export "]);
    let left: Vec<_> = std::fs::read_dir(scratch.join("home/environments"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".lock"))
        .collect();
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn the_option_all_measures_the_engines_that_build_and_lists_the_others_without_failure() {
    let scratch = tree();
    let (outcome, record) = measure(&scratch, &["--all"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!((record.samples_of("able").len(), record.failures_of("able").len()), (1, 0));
    let (kind, message, hint) = failure(&record, "broken");
    assert_eq!((kind, message), ("unavailable", "it does not build: no compiler here"));
    assert!(hint.unwrap().ends_with("setup broken"), "{hint:?}");
    assert!(failure(&record, "foreign").1.contains("needs plan9"), "{record:?}");
    // The manifest has no `setup = "auto"`, so a run does not set up the environment and downloads nothing.
    let (_, message, hint) = failure(&record, "heavy");
    assert!(message.contains("2.9 GB to download") && hint.unwrap().ends_with("setup heavy"), "{message}");
    scratch.assert_no_processes_left();
}

#[test]
fn a_run_fails_when_a_named_engine_cannot_run() {
    let (outcome, record) = measure(&tree(), &["--all", "-e", "foreign"]);
    assert_eq!(outcome.code, Some(4), "{outcome:?}");
    assert_eq!(record.samples_of("able").len(), 1);
}

#[test]
fn an_earlier_build_is_measured_with_a_warning_when_the_build_fails_now() {
    let scratch = tree();
    std::fs::create_dir_all(scratch.join("target/release")).unwrap();
    std::os::unix::fs::symlink(fake_engine(), scratch.join("target/release/broken-engine")).unwrap();
    let (outcome, record) = measure(&scratch, &["-e", "broken"]);
    assert_eq!((outcome.code, record.samples_of("broken").len()), (Some(0), 1), "{outcome:?}");
    let expected = "it does not build: no compiler here; an earlier build";
    assert!(record.entries("warning")[0]["message"].to_string().contains(expected), "{record:?}");
    outcome.assert_stdout(&[expected]);
}

#[test]
fn an_interrupt_during_set_up_ends_the_builder_and_the_run() {
    let scratch = Scratch::outside_checkout();
    let build = "[build]\ncommand = [\"sh\", \"-c\", \"exec sleep 1000\"]\n";
    scratch.write_tree(&[("slow", &format!("about = \"takes long\"\nbinary = \"slow-engine\"\n{build}"))]);
    let mut command = scratch.orchestrate_without_checkout();
    let mut running = Running::start(command.args(["-e", "slow", "--results"]).arg(scratch.results()));
    running.wait_for("slow: building");
    let outcome = running.interrupt();
    assert_eq!(outcome.stdout, "");
    outcome.assert_stderr(&["interrupted during set-up: nothing was measured"]);
    scratch.wait_until_no_processes_left();
}

#[test]
fn without_set_up_nothing_is_built_and_missing_programs_are_reported() {
    let scratch = tree();
    let mut command = scratch.orchestrate_without_checkout();
    command.args(DECODE).args(["--all", "--no-setup", "-m"]).arg(root().join("models/embedded"));
    let outcome = finish(command.arg("--results").arg(scratch.results())).exits_with(4);
    let able = &outcome.json()["failed"][0];
    assert_eq!(
        (&able["engine"]["label"], &able["failure"]["message"]),
        (&"able".into(), &"not built".into())
    );
    outcome.assert_stderr(&["no record: nothing was measured"]);
    assert!(files(&scratch.results()).is_empty() && !scratch.join("target").exists());
}

#[test]
fn a_preset_is_measured_with_its_options_under_its_own_name() {
    let (outcome, record) = measure(&tree(), &["-e", "able", "-e", "able:late"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let token_time = |label: &str| {
        let times =
            record.samples_of(label)[0]["iteration"]["sequences"][0]["token_ns"].as_array().unwrap().clone();
        times[1].as_u64().unwrap() - times[0].as_u64().unwrap()
    };
    assert_eq!((token_time("able"), token_time("able:late")), (2000, 9000));
}

#[test]
fn the_option_presets_adds_all_presets_of_an_engine() {
    let (_, record) = measure(&tree(), &["--all", "--presets"]);
    assert_eq!(record.samples_of("able:late").len(), 1);
}

#[test]
fn ratios_use_the_engine_that_its_manifest_calls_the_reference() {
    let (outcome, _) = measure(&tree(), &["-e", "able:late", "-e", "able"]);
    let report = outcome.json();
    let ratio = |label: &str| case_of(&report, label)["times_reference"].as_f64();
    assert_eq!(ratio("able"), Some(1.0));
    assert!(ratio("able:late").is_some_and(|ratio| (ratio - 2.0 / 9.0).abs() < 1e-9), "{report}");
}

#[test]
fn a_manifest_with_a_mistake_is_refused_with_its_file() {
    let scratch = Scratch::outside_checkout();
    scratch.write_tree(&[("wrong", "about = \"x\"\nbinary = \"x\"\nspeed = 11\n")]);
    snapshot("wrong-manifest", &scratch, &["engines"]);
}

#[test]
fn outside_a_checkout_the_engines_known_at_build_time_are_listed() {
    let scratch = Scratch::outside_checkout();
    let mut engines = scratch.orchestrate_without_checkout();
    let outcome =
        finish(engines.arg("engines").env("LD_LIBRARY_PATH", driver::absent(&scratch))).exits_with(0);
    for folder in std::fs::read_dir(root().join("engines")).unwrap().flatten() {
        let name = folder.file_name().to_string_lossy().into_owned();
        // An engine that needs a GPU reports the missing driver first.
        let missing = [" beside this program", ": no NVIDIA driver found"];
        let is_listed = |line: &str| {
            line.split([':', ' ']).next() == Some(&name) && missing.iter().any(|it| line.contains(it))
        };
        let listed = outcome.stdout.lines().any(is_listed);
        assert_eq!(listed, folder.path().join("engine.toml").is_file(), "{name} in {}", outcome.stdout);
    }
}

/// A PATH that begins with stand-ins: a `uv` that logs its calls, and compilers that do nothing.
fn tools(scratch: &Scratch) -> String {
    let folder = scratch.join("tools");
    std::fs::create_dir_all(&folder).unwrap();
    let uv = "#!/bin/sh\nprintf '%s\\n' \"$*\" >>\"$0.calls\"\n[ \"$1\" = venv ] || exit 0\nfor last; do :; done\nmkdir -p \"$last/bin\" && ln -s /bin/sh \"$last/bin/python\"\n";
    for (name, content) in [("uv", uv), ("cc", "#!/bin/sh\n"), ("c++", "#!/bin/sh\n")] {
        write_program(&folder.join(name), content);
    }
    format!("{}:/usr/bin:/bin", folder.display())
}

#[test]
fn source_packages_are_built_with_the_manifests_settings_and_need_a_compiler() {
    let scratch = Scratch::outside_checkout();
    let manifest = format!(
        "about = \"built from source\"\nbinary = \"built\"\n[build]\n{}\
         [environment]\npython = \"3.11\"\nrequirements = \"requirements.txt\"\n\
         build = [\"build-requirements.txt\", \"build-settings.txt\", \"cure.cmake\"]\nnote = \"slowly\"\n\
         download_mb = 1\ninstalled_mb = 1\n",
        build_command("built")
    );
    scratch.write_tree(&[("built", &manifest)]);
    let folder = scratch.join("engines/built");
    std::fs::write(folder.join("build-requirements.txt"), "cmake==4.4.4\n").unwrap();
    std::fs::write(
        folder.join("build-settings.txt"),
        "# why\nno-such-package:cmake.define.CURE={build}/cure.cmake\n",
    )
    .unwrap();
    std::fs::write(folder.join("cure.cmake"), "set(CURED ON)\n").unwrap();
    let path = tools(&scratch);
    let setup = |compiler: Option<&str>| {
        let mut command = scratch.orchestrate_without_checkout();
        command.args(["setup", "built", "--yes"]).env("PATH", &path).env_remove("CC").env_remove("CXX");
        finish(command.envs(compiler.map(|it| ("CXX", it))))
    };
    let refused = setup(Some("no-such-compiler -O3"));
    assert_ne!(refused.code, Some(0));
    let expected = "no compiler `no-such-compiler`: the packages of `built` are built with it\nhint: apt-get install g++";
    refused.assert_stderr(&[expected]);
    let ready = setup(None).exits_with(0);
    ready.assert_stderr(&["slowly"]);
    let calls = std::fs::read_to_string(scratch.join("tools/uv.calls")).unwrap();
    let install = calls.lines().find(|line| line.starts_with("pip install")).unwrap();
    let words: Vec<&str> = install.split(' ').collect();
    let after = |word: &str| words[words.iter().position(|it| *it == word).unwrap() + 1];
    assert_eq!(std::fs::read_to_string(after("--build-constraints")).unwrap(), "cmake==4.4.4\n");
    let cure = after("--config-settings-package").strip_prefix("no-such-package:cmake.define.CURE=").unwrap();
    assert_eq!(std::fs::read_to_string(cure).unwrap(), "set(CURED ON)\n");
    // A changed setting needs another environment.
    std::fs::write(folder.join("build-settings.txt"), "no-such-package:cmake.define.CURE=OFF\n").unwrap();
    setup(None).exits_with(0);
    let calls = std::fs::read_to_string(scratch.join("tools/uv.calls")).unwrap();
    assert_eq!(calls.lines().filter(|line| line.starts_with("venv")).count(), 2, "{calls}");
}

#[test]
fn a_set_up_that_waits_for_another_set_up_prints_a_message() {
    let scratch = tree();
    let name = format!("heavy-{}", paths::digest(b"no-such-package==1.0\n"));
    let environment = scratch.join("home/environments").join(&name);
    std::fs::create_dir_all(environment.join("bin")).unwrap();
    let lock = std::fs::File::create(environment.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let mut second = Running::start(scratch.orchestrate_without_checkout().args(["setup", "heavy", "--yes"]));
    second.wait_for(
        "heavy: waiting: another set-up creates its environment; this one continues when the other ends",
    );
    // The other set-up ends: the environment is complete.
    std::fs::write(environment.join("bin/python"), "").unwrap();
    std::fs::write(environment.join(paths::READY_FILE), "").unwrap();
    drop(lock);
    second.finish().exits_with(0).assert_stdout(&["`heavy` is ready"]);
}
