//! The scenario `stress`: engines that are in use for a set time.

use serde_json::Value;

use crate::support::run::{Run, Verifier, run_selected};
use crate::support::{Scratch, finish};

/// Requests of 10 ms.
const HONEST: &str = "--first-token-ns 4000000 --per-token-ns 2000000";
const STRESS: &[&str] = &["-s", "stress", "--prompt-tokens", "16", "--new-tokens", "4", "--warmup", "1"];

fn stress(engines: &[(&str, &str)], options: &[&str]) -> Run {
    run_selected(engines, Verifier::None, &[STRESS, &["--json", "-"], options].concat())
}

fn result<'a>(run: &'a Run, label: &str) -> &'a Value {
    &run.case_of(label)["stress"]
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn a_leak_is_found_and_an_honest_engine_is_not_called() {
    let leaks = format!("{HONEST} --leaked-bytes 1000000");
    let run = stress(&[("leaks", &leaks), ("honest", HONEST)], &["--duration", "6s"]);
    let (leaks, honest) = (result(&run, "leaks"), result(&run, "honest"));
    let memory = &leaks["memory"];
    assert_eq!(
        (&memory["verdict"], &honest["memory"]["verdict"]),
        (&"grows".into(), &"none".into()),
        "{leaks} {honest}"
    );
    // A request takes at least 10 ms and leaks one megabyte, so a minute of requests leaks at most 6 GB. A discarded request takes 8 ms.
    assert!(number(&memory["low"]) > 0.0 && number(&memory["estimate"]) < 7.5e9, "{leaks}");
    for (label, result) in [("leaks", leaks), ("honest", honest)] {
        let requests = run.record.samples_of(label).len();
        assert_eq!((&result["requests"], &result["errors"]), (&requests.into(), &0.into()));
        assert!(requests > 20 && number(&result["used_ns"]) > 0.0, "{result}");
        let metrics = run.case_of(label)["metrics"].as_array().unwrap();
        let growth = metrics.iter().find(|it| it["metric"] == "memory_growth").unwrap();
        assert_eq!(growth["estimate"], result["memory"]["estimate"]);
    }
    // The engines take turns: in one block, neither has all its requests before the other.
    assert_eq!(run.report["workloads"][0]["blocks"], 1);
    let launches = ["leaks", "honest"].map(|label| run.record.launches_of(label)[0]["launch"].clone());
    let samples = run.record.entries("sample").into_iter().filter(|it| it["kind"] == "measured");
    let order: Vec<&Value> = samples.map(|it| &it["launch"]).filter(|it| launches.contains(it)).collect();
    let changes = order.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes > 20, "{changes}");
}

#[test]
fn requests_that_become_slower_are_a_growth_of_the_latency() {
    let run =
        stress(&[("slower", &format!("{HONEST} --drift-percent-per-second 25"))], &["--duration", "8s"]);
    let slower = result(&run, "slower");
    assert_eq!(
        (&slower["latency"]["verdict"], &slower["memory"]["verdict"]),
        (&"grows".into(), &"none".into())
    );
    assert!(number(&slower["latency"]["low"]) > 0.0, "{slower}");
}

#[test]
fn an_engine_that_ends_is_a_row_with_its_reason_and_the_requests_before() {
    let ends = format!("{HONEST} --fault exits_at_sample --at 20");
    let run = stress(&[("ends", &ends), ("healthy", HONEST)], &["--duration", "1s"]);
    let failure =
        run.assert_failed("ends", "exited", run.record.failure_of("ends")["when"].as_str().unwrap());
    assert!(failure["when"].as_str().unwrap().contains("sample"), "{failure}");
    run.assert_stderr("ends", "assertion");
    let ends = result(&run, "ends");
    let requests = run.record.samples_of("ends").len();
    assert_eq!((&ends["requests"], &ends["errors"]), (&requests.into(), &1.into()));
    // Of the twenty requests with an answer, one was a warm-up, and some were discarded after a pause.
    assert!((1..20).contains(&requests), "{requests}");
    assert_eq!(result(&run, "healthy")["errors"], 0);
}

#[test]
fn an_engine_that_survives_failed_requests_gets_others_until_there_are_ten_errors() {
    let fails = format!("{HONEST} --fault out_of_memory --at 20");
    // The run ends long before this time.
    let run = stress(&[("fails", &fails)], &["--duration", "1m"]);
    let case = run.case_of("fails");
    assert_eq!((&case["stress"]["errors"], &case["failure"]["times"]), (&10.into(), &10.into()), "{case}");
    assert_eq!(case["failure"]["kind"], "out_of_memory");
}

#[test]
fn the_report_and_the_spreadsheet_have_the_growth_with_its_interval() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("honest", HONEST)).args(STRESS).args(["--duration", "5s"]);
    let shown = finish(command.arg("--results").arg(scratch.results())).exits_with(0).stdout;
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains(
            "in the second half of the time in use; there, 2.1 MB of memory and 5 % of latency count:"
        ),
        "{shown}"
    );
    assert!(
        words.contains("honest, stress 5s: ") && words.contains(", no errors; memory: no growth, "),
        "{shown}"
    );
    let report = |format: &str| {
        let mut command = scratch.orchestrate();
        command.args(["report", "--format", format, "--results"]).arg(scratch.results());
        finish(&mut command).exits_with(0).stdout
    };
    let csv = report("csv");
    let line = csv.lines().find(|line| line.contains("memory_growth,bytes/min")).unwrap();
    assert!(line.contains(",none,"), "{line}");
}

#[test]
fn stress_is_measured_alone_in_one_block_of_one_process() {
    let scratch = Scratch::new();
    let with = |options: &[&str]| {
        let mut command = scratch.orchestrate();
        command.arg("-e").arg(scratch.engine("honest", HONEST)).args(options);
        finish(command.arg("--results").arg(scratch.results()))
    };
    for (options, reason, hint) in [
        (&["-s", "stress,decode"][..], "`stress` is measured alone", "-s stress"),
        (&["-s", "stress", "--blocks", "3"], "`stress` has one block", "-s stress"),
        (&["-s", "stress", "--mode", "one-shot"], "one process answers all requests", "-s stress"),
        (&["-s", "serve", "--duration", "5s"], "--duration: in `serve` it needs", "--request-rate 2"),
        (&["-s", "decode", "--duration", "5s"], "--duration: none of the selected", "orchestrate scenarios"),
    ] {
        let refused = with(options).exits_with(2);
        let (_, hints) = refused.stderr.split_once("\nhint: ").unwrap();
        assert!(refused.stderr.contains(reason) && hints.contains(hint), "{}", refused.stderr);
    }
    let plan = with(&["-s", "stress", "--duration", "90s", "--dry-run"]).exits_with(0).stdout;
    assert!(
        plan.contains("stress 1m30s: requests for 1 min 30 s to each configuration after warm-up"),
        "{plan}"
    );
    assert!(plan.contains("1 block"), "{plan}");
}
