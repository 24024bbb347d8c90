//! Tests of a process that an engine starts through another program, and that uses the processor in the turns of other engines.

use std::process::Stdio;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::support::record::Record;
use crate::support::{DECODE, Running, Scratch, fake_engine, finish};

#[test]
fn a_chain_of_short_processes_is_noticed_and_the_measurement_repeated() {
    let scratch = Scratch::new();
    let (chain, stop) = (scratch.join("chain"), scratch.join("stop"));
    // Each process computes for some 50 ms and starts the next one.
    let text = format!(
        "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done\n[ -e '{}' ] || setsid '{}' >/dev/null 2>&1 &",
        stop.display(),
        chain.display()
    );
    scratch.script("chain", &text);
    let slow = format!("exec '{}' --per_token_ns 8000000", fake_engine().display());
    let once = scratch.join("once");
    let starts_chain = format!(
        "mkdir '{}' 2>/dev/null && setsid env -i prlimit --locks=unlimited '{}' >/dev/null 2>&1 &\n{slow}",
        once.display(),
        chain.display()
    );
    let mut command = scratch.orchestrate();
    command.env("ORCHESTRATE_CORE_LOCK", scratch.join("locks")).env("ORCHESTRATE_CGROUPS", "none");
    command
        .arg("-e")
        .arg(scratch.script("starter", &starts_chain))
        .arg("-e")
        .arg(scratch.script("other", &slow));
    command.args(DECODE).args(["--blocks", "1", "--iterations", "3", "--warmup", "1"]);
    let outcome = finish(command.arg("--results").arg(scratch.results())).exits_with(0);
    std::fs::write(&stop, "").unwrap();
    let record = Record::only_one_in(&scratch.results());
    let warnings: Vec<_> =
        record.entries("warning").iter().map(|it| it["message"].as_str().unwrap()).collect();
    let named = |it: &&&str| {
        it.contains("machine: short or small processes") && it.contains("of a core together while")
    };
    assert_eq!(warnings.iter().filter(named).count(), 1, "{outcome:?}");
    assert!(record.samples_of("other").iter().any(|sample| sample["repeat"] == 1), "{outcome:?}");
}

#[test]
fn a_process_that_disturbs_another_engine_is_named_and_the_measurement_repeated() {
    let scratch = Scratch::new();
    let (requests, once, stop) = (scratch.join("requests"), scratch.join("once"), scratch.join("stop"));
    mknodat(CWD, &requests, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let burner = scratch.script("burner", &format!("while [ ! -e '{}' ]; do :; done", stop.display()));
    // A service from before the run: neither the environment nor the parents of its processes show that an engine uses it.
    let service = scratch.script(
        "service",
        &format!("read -r line < '{}'; '{}' & wait", requests.display(), burner.display()),
    );
    let service = Running::start(scratch.command(service).stdout(Stdio::null()).stderr(Stdio::null()));
    let slow = format!("exec '{}' --per_token_ns 4000000", fake_engine().display());
    let starts_burner =
        format!("mkdir '{}' 2>/dev/null && echo go > '{}'\n{slow}", once.display(), requests.display());
    let mut command = scratch.orchestrate();
    // This run needs the lock: without it, other runs may use the cores, and other processes are not observed.
    command.env("ORCHESTRATE_CORE_LOCK", scratch.join("locks"));
    command
        .arg("-e")
        .arg(scratch.script("starter", &starts_burner))
        .arg("-e")
        .arg(scratch.script("other", &slow));
    command.args(DECODE).args(["--blocks", "1", "--iterations", "3", "--warmup", "1"]);
    command.arg("--verifier").arg(scratch.engine("verifier", ""));
    let outcome = finish(command.arg("--results").arg(scratch.results())).exits_with(0);
    std::fs::write(&stop, "").unwrap();
    service.finish();
    let record = Record::only_one_in(&scratch.results());
    let warnings: Vec<_> =
        record.entries("warning").iter().map(|it| it["message"].as_str().unwrap()).collect();
    let named = |it: &&&str| it.contains("/burner` (process ") && it.contains("% of a core while `");
    assert_eq!(warnings.iter().filter(named).count(), 1, "{outcome:?}");
    for engine in ["starter", "other"] {
        let samples = record.samples_of(engine);
        assert_eq!(samples.len(), 3, "{samples:?}");
        assert!(samples.iter().any(|sample| sample["repeat"] == 1), "{samples:?}");
        // The verifier gets the prompts of repeated requests too.
        assert_eq!(record.entries_of("not_checked", engine), Vec::<&serde_json::Value>::new());
    }
}
