//! Engines whose processes try to outlive the run, and engines that write files: no process and no file remains.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::support::record::Record;
use crate::support::run::RUN;
use crate::support::{DECODE, Running, Scratch, fake_engine, finish, wait_until};

/// The values of `ORCHESTRATE_CGROUPS`. With `none`, and with a version that this machine lacks, engines have no cgroup.
const CGROUPS: [&str; 3] = ["2", "1", "none"];

fn one_block(scratch: &Scratch, engine: &Path) -> Command {
    let mut command = scratch.orchestrate();
    command.args(DECODE).args(["--blocks", "1", "--iterations", "2", "--warmup", "1", "--debug"]);
    command.arg("-e").arg(engine).arg("--results").arg(scratch.results());
    // The working folders of engines are in a folder that the test can examine.
    command.env("TMPDIR", folder_of_work(scratch));
    command
}

fn folder_of_work(scratch: &Scratch) -> std::path::PathBuf {
    let folder = scratch.join("work");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The process id at the end of an engine's message `fake: NAME NUMBER`.
fn process_in(line: &str) -> u32 {
    line.trim().rsplit(' ').next().unwrap().parse().unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// Whether a process runs. A process that has ended and waits for its parent does not count.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn cgroups_of_runs() -> Vec<String> {
    let parents = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer", "/sys/fs/cgroup"];
    let entries = parents.iter().filter_map(|parent| std::fs::read_dir(parent).ok()).flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("orchestrate-")).collect()
}

/// The name of a run's cgroup and of its folder of working folders.
fn name_of_run(record: &Record) -> String {
    format!("orchestrate-{}", record.entries("header")[0]["id"].as_str().unwrap())
}

fn files_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_daemon_with_an_emptied_environment_is_ended_and_named_with_every_version_of_cgroups() {
    for version in CGROUPS {
        let scratch = Scratch::new();
        let engine = scratch.faulty("leaves_daemon", &[]);
        let mut command = one_block(&scratch, &engine);
        let outcome = finish(command.env("ORCHESTRATE_CGROUPS", version)).exits_with(0);
        let daemons: Vec<u32> =
            outcome.stderr.lines().filter(|line| line.contains("fake: daemon")).map(process_in).collect();
        assert!(!daemons.is_empty(), "{outcome:?}");
        let survivors: Vec<_> = daemons.iter().filter(|&&pid| runs(pid)).collect();
        assert!(survivors.is_empty(), "cgroups {version}: {survivors:?}");
        let record = Record::only_one_in(&scratch.results());
        let warnings = record.warnings_of("leaves_daemon");
        let is_named = |pid: &u32| {
            warnings
                .iter()
                // Until `env` becomes `sleep`, the process has the longer name.
                .any(|it| it.contains(&format!("sleep 1000` (process {pid})")) && it.contains("ended"))
        };
        assert!(daemons.iter().all(is_named), "cgroups {version}: {daemons:?} in {warnings:?}");
        assert!(!cgroups_of_runs().contains(&name_of_run(&record)), "its cgroup remains");
    }
}

#[test]
fn a_daemon_that_removes_every_mark_is_ended_and_named_at_the_end_of_the_run() {
    let scratch = Scratch::new();
    let engine = scratch.script(
        "escapes",
        &format!(
            "setsid env -i prlimit --locks=unlimited sleep 1000 >/dev/null 2>&1 &\n\
             until grep -q sleep /proc/$!/comm; do :; done; echo \"fake: daemon $!\" >&2\nexec '{}'",
            fake_engine().display()
        ),
    );
    let mut command = one_block(&scratch, &engine);
    let outcome = finish(command.env("ORCHESTRATE_CGROUPS", "none")).exits_with(0);
    let lines = outcome.stderr.lines().filter(|line| line.contains("fake: daemon"));
    let daemons: Vec<u32> = lines.map(process_in).collect();
    assert!(!daemons.is_empty() && daemons.iter().all(|&pid| !runs(pid)), "{outcome:?}");
    let named = format!(
        "an engine left processes without `ORCHESTRATE_LAUNCH`: `sleep 1000` (process {}",
        daemons[0]
    );
    let record = Record::only_one_in(&scratch.results());
    let warnings = record.entries("warning");
    assert!(warnings.iter().any(|it| it["message"].as_str().unwrap().contains(&named)), "{warnings:?}");
}

#[test]
fn a_daemon_with_an_emptied_environment_ends_with_a_killed_orchestrator() {
    for version in CGROUPS {
        let scratch = Scratch::new();
        let engine = scratch.faulty("leaves_daemon,hangs_in_generate", &["--at", "2"]);
        let mut command = one_block(&scratch, &engine);
        let mut running = Running::start(command.env("ORCHESTRATE_CGROUPS", version));
        let daemon = process_in(&running.wait_for("fake: daemon"));
        running.wait_for("fake: hangs in generate");
        assert!(runs(daemon));
        running.signal(Signal::KILL);
        running.finish();
        wait_until(&format!("the daemon has ended (cgroups {version})"), || !runs(daemon));
        scratch.wait_until_no_processes_left();
        let name = name_of_run(&Record::only_one_in(&scratch.results()));
        wait_until("the cgroup is removed", || !cgroups_of_runs().contains(&name));
        wait_until("the working folders are removed", || files_in(&folder_of_work(&scratch)).is_empty());
    }
}

/// The text of an engine that starts a daemon before anything else: after two forks, in its own session, without environment and
/// without the marked limit. It writes the daemon's process id into the file `daemon`.
fn escaping_daemon(daemon: &Path) -> String {
    format!(
        "(setsid env -i prlimit --locks=unlimited sleep 1000 >/dev/null 2>&1 & echo $! > '{0}')\n\
         until grep -q sleep /proc/$(cat '{0}')/comm; do :; done",
        daemon.display()
    )
}

#[test]
fn a_daemon_without_any_mark_ends_with_a_killed_orchestrator() {
    for version in CGROUPS {
        let scratch = Scratch::new();
        let daemon = scratch.join("daemon");
        let text = format!("{}\necho 'fake: daemon started' >&2\nexec cat", escaping_daemon(&daemon));
        let engine = scratch.script("escapes", &text);
        let mut command = one_block(&scratch, &engine);
        let mut running = Running::start(command.env("ORCHESTRATE_CGROUPS", version));
        running.wait_for("fake: daemon started");
        running.signal(Signal::KILL);
        running.finish();
        let daemon = process_in(&std::fs::read_to_string(&daemon).unwrap());
        wait_until(&format!("the daemon has ended (cgroups {version})"), || !runs(daemon));
        scratch.wait_until_no_processes_left();
        wait_until("the working folders are removed", || files_in(&folder_of_work(&scratch)).is_empty());
    }
}

#[test]
fn an_orchestrator_that_is_killed_while_it_starts_an_engine_leaves_nothing() {
    for version in CGROUPS {
        let scratch = Scratch::new();
        let daemon = scratch.join("daemon");
        let engine = scratch.script("escapes", &format!("{}\nexec cat", escaping_daemon(&daemon)));
        let mut command = one_block(&scratch, &engine);
        let running = Running::start(command.env("ORCHESTRATE_CGROUPS", version));
        // The working folder of a launch is made just before its process is started.
        wait_until("a launch begins", || !files_in(&folder_of_work(&scratch)).is_empty());
        running.signal(Signal::KILL);
        running.finish();
        scratch.wait_until_no_processes_left();
        let started = std::fs::read_to_string(&daemon).unwrap_or_default();
        assert!(started.is_empty() || !runs(process_in(&started)), "cgroups {version}");
        assert_eq!(files_in(&folder_of_work(&scratch)), [""; 0], "cgroups {version}");
    }
}

#[test]
fn an_engine_is_in_its_cgroup_from_its_first_instruction() {
    for (version, parent, line) in [
        ("2", "/sys/fs/cgroup/unified", "0::"),
        ("2", "/sys/fs/cgroup", "0::"),
        ("1", "/sys/fs/cgroup/freezer", ":freezer:"),
    ] {
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let Some((_, path)) = own.lines().find_map(|it| it.split_once(line)) else { continue };
        let folder = Path::new(parent).join(path.trim_start_matches('/'));
        let may_make_cgroup = folder.join("cgroup.procs").exists()
            && tempfile::Builder::new().prefix("orchestrate-test").tempdir_in(&folder).is_ok();
        if !may_make_cgroup {
            continue;
        }
        let scratch = Scratch::new();
        let log = scratch.join("log");
        let text = format!(
            "grep '{line}' /proc/$$/cgroup >> '{}'\nexec '{}'",
            log.display(),
            fake_engine().display()
        );
        let mut command = one_block(&scratch, &scratch.script("logs", &text));
        finish(command.env("ORCHESTRATE_CGROUPS", version)).exits_with(0);
        let log = std::fs::read_to_string(log).unwrap();
        assert!(
            !log.is_empty() && log.lines().all(|it| it.contains("/orchestrate-")),
            "cgroups {version}: {log}"
        );
    }
}

#[test]
fn an_engine_that_kills_the_keeper_has_a_row_and_leaves_no_process() {
    let scratch = Scratch::new();
    let daemon = scratch.join("daemon");
    let engine =
        scratch.script("kills", &format!("{}\nkill -KILL $PPID\nexec sleep 1000", escaping_daemon(&daemon)));
    let outcome = finish(&mut one_block(&scratch, &engine)).exits_with(4);
    let record = Record::only_one_in(&scratch.results());
    let message = record.failure_of("kills")["message"].as_str().unwrap().to_string();
    assert!(message.contains("keeper"), "{message} {outcome:?}");
    let daemon = process_in(&std::fs::read_to_string(&daemon).unwrap());
    assert!(!runs(daemon), "{outcome:?}");
}

#[test]
fn a_daemon_is_paused_while_another_engine_is_measured() {
    let scratch = Scratch::new();
    // The second engine logs the state of the daemon that the first engine has left.
    let (pid, state) = (scratch.join("pid"), scratch.join("state"));
    let first = scratch.script(
        "first",
        &format!(
            "setsid env -i sleep 1000 >/dev/null 2>&1 & echo $! > '{}'\nexec '{}'",
            pid.display(),
            fake_engine().display()
        ),
    );
    let second = scratch.script(
        "second",
        &format!(
            "while read -r line; do\n\
             case \"$line\" in *max_new_tokens*) cut -d' ' -f3 < /proc/$(cat '{}')/stat >> '{}' ;; esac\n\
             printf '%s\\n' \"$line\"\ndone | '{}'",
            pid.display(),
            state.display(),
            fake_engine().display()
        ),
    );
    let mut command = scratch.orchestrate();
    command.args(RUN).arg("-e").arg(first).arg("-e").arg(second);
    finish(command.arg("--results").arg(scratch.results())).exits_with(0);
    let states = std::fs::read_to_string(state).unwrap();
    // `R` is a process that waits for a busy processor: it stops when it gets the processor. An unpaused daemon sleeps: `S`.
    assert!(states.lines().count() > 2 && states.lines().all(|it| ["T", "R"].contains(&it)), "{states}");
}

#[test]
fn an_unknown_version_of_cgroups_is_a_usage_error() {
    let scratch = Scratch::new();
    let mut command = one_block(&scratch, fake_engine());
    let outcome = finish(command.env("ORCHESTRATE_CGROUPS", "3")).exits_with(2);
    outcome.assert_stderr(&["ORCHESTRATE_CGROUPS: `3` is not known, expected `2`, `1` or `none`"]);
}

#[test]
fn files_of_an_engine_are_in_a_new_folder_and_are_removed() {
    let scratch = Scratch::new();
    let (user, log) = (scratch.join("user"), scratch.join("log"));
    std::fs::create_dir_all(&user).unwrap();
    let text = format!(
        "ls -A | wc -l >> '{0}'; pwd >> '{0}'; mkdir a; echo x > a/b; exec '{1}'",
        log.display(),
        fake_engine().display()
    );
    let engine = scratch.script("writer", &text);
    finish(one_block(&scratch, &engine).current_dir(&user)).exits_with(0);
    assert_eq!(files_in(&user), [""; 0]);
    assert_eq!(files_in(&folder_of_work(&scratch)), [""; 0]);
    let log = std::fs::read_to_string(log).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    let (counts, folders): (Vec<_>, Vec<_>) =
        lines.chunks(2).map(|launch| (launch[0].trim(), launch[1])).unzip();
    assert!(counts.iter().all(|count| *count == "0"), "a working folder was not empty: {log}");
    let mut distinct = folders.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), folders.len(), "{log}");
    assert!(folders.iter().all(|it| it.starts_with(folder_of_work(&scratch).to_str().unwrap())), "{log}");
}

#[test]
fn relative_paths_begin_at_the_users_folder() {
    let scratch = Scratch::new();
    let user = scratch.join("user");
    crate::support::copy_folder(&model_files::embedded::folder().unwrap(), &user.join("model"));
    std::fs::write(user.join("draft.gguf"), "").unwrap();
    let log = scratch.join("log");
    let text = format!(
        "while read -r line; do printf '%s\\n' \"$line\" >> '{}'; printf '%s\\n' \"$line\"; done | '{}'",
        log.display(),
        fake_engine().display()
    );
    std::fs::rename(scratch.script("logger", &text), user.join("logger")).unwrap();
    let mut command = one_block(&scratch, Path::new("./logger"));
    command.args([
        "-m",
        "model",
        "--set",
        "engine=draft.gguf",
        "--set",
        "version=./new/1",
        "--set",
        "signal=a/b",
    ]);
    finish(command.current_dir(&user).env("ORCHESTRATE_HOME", "home")).exits_with(0);
    let log = std::fs::read_to_string(log).unwrap();
    let load: serde_json::Value = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .find(|it: &serde_json::Value| it["type"] == "load")
        .unwrap();
    let path = |name: &str| user.join(name).display().to_string();
    assert_eq!(load["model"], path("model"));
    assert_eq!(
        (&load["options"]["engine"], &load["options"]["version"]),
        (&path("draft.gguf").into(), &path("new/1").into())
    );
    // `a/b` does not begin with `./` and does not exist, so it is not treated as a path.
    assert_eq!(load["options"]["signal"], "a/b");
}

#[test]
fn an_engine_that_fills_its_working_folder_is_ended_with_a_row() {
    let scratch = Scratch::new();
    let engine = scratch.faulty("fills_folder", &["--at", "2", "--amount", "3000000"]);
    let mut command = one_block(&scratch, &engine);
    let outcome = finish(command.env("ORCHESTRATE_WORKING_FOLDER_LIMIT", "1MB")).exits_with(4);
    let record = Record::only_one_in(&scratch.results());
    let failure = record.failure_of("fills_folder");
    assert_eq!(failure["kind"], "folder_full", "{outcome:?}");
    let message = failure["message"].as_str().unwrap();
    assert!(
        message.starts_with("wrote 3") && message.contains("into its working folder, the limit is 1"),
        "{message}"
    );
    assert!(
        failure["hint"].as_str().unwrap().starts_with("export ORCHESTRATE_WORKING_FOLDER_LIMIT=5"),
        "{failure}"
    );
    assert_eq!(files_in(&folder_of_work(&scratch)), [""; 0]);
    let mut invalid = one_block(&scratch, &engine);
    let refused = finish(invalid.env("ORCHESTRATE_WORKING_FOLDER_LIMIT", "much")).exits_with(2);
    refused.assert_stderr(&["`much` is not a size"]);
}
