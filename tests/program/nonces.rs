//! The nonce of a run: every run sends prompts of its own, so stored answers of an earlier run do not help.

use std::path::PathBuf;

use serde_json::Value;

use crate::support::record::files;
use crate::support::run::{RUN, Run};
use crate::support::{Scratch, fake_engine, finish, without_line_breaks};

/// Settings that make each request take 17 ms.
const TIMES: &str = "--first-token-ns 1000000 --per-prompt-token-ns 20000 --per-token-ns 250000";
const PER_TOKEN_NS: u64 = 250_000;

/// A run of engines with an engine that verifies them. The results of earlier runs are removed.
fn run(scratch: &Scratch, engines: &[&PathBuf], options: &[&str]) -> Run {
    let _ = std::fs::remove_dir_all(scratch.results());
    let mut command = scratch.orchestrate();
    for engine in engines {
        command.arg("-e").arg(engine);
    }
    command.arg("--verifier").arg(scratch.engine("verifier", ""));
    command.args(RUN).args(options).arg("--results").arg(scratch.results());
    Run::of(scratch, finish(&mut command))
}

/// The time between the first two tokens of each measured request.
fn gaps_ns(run: &Run, label: &str) -> Vec<u64> {
    let gap = |sample: &&Value| {
        let times = &sample["iteration"]["sequences"][0]["token_ns"];
        times[1].as_u64().unwrap() - times[0].as_u64().unwrap()
    };
    run.record.samples_of(label).iter().map(gap).collect()
}

/// The values of a field in an engine's samples, warm-up included. Discarded requests are left out, because their number
/// depends on the times.
fn fields(run: &Run, field: &str, label: &str) -> Vec<String> {
    let launches: Vec<&Value> = run.record.launches_of(label).iter().map(|it| &it["launch"]).collect();
    let samples = run.record.entries("sample").into_iter();
    let of_engine = samples.filter(|it| launches.contains(&&it["launch"]) && it["kind"] != "discarded");
    let field = |it: &Value| it[field].as_str().unwrap_or_else(|| panic!("no `{field}`: {it}")).to_string();
    of_engine.map(field).collect()
}

#[test]
fn stored_answers_of_an_earlier_run_fit_no_prompt_of_a_new_run() {
    let scratch = Scratch::new();
    let folder = scratch.join("answers");
    std::fs::create_dir(&folder).unwrap();
    let engine = scratch.engine("keeps", &format!("{TIMES} --answers-folder '{}'", folder.display()));
    let first = run(&scratch, &[&engine], &["--nonce", "5"]);
    assert_eq!(gaps_ns(&first, "keeps"), [PER_TOKEN_NS; 2]);
    // With the same prompts, no check finds the stored answers. So the record says that the prompts are not new.
    let repeated = run(&scratch, &[&engine], &["--nonce", "5"]);
    assert_eq!(gaps_ns(&repeated, "keeps"), [PER_TOKEN_NS / 1000; 2]);
    assert_eq!((repeated.status("keeps"), repeated.contradictions_of("keeps")), ("exact", Vec::new()));
    assert!(repeated.report["warnings"].to_string().contains("an engine can answer with stored answers"));
    for _ in 0..2 {
        let new = run(&scratch, &[&engine], &[]);
        assert_eq!(gaps_ns(&new, "keeps"), [PER_TOKEN_NS; 2]);
        assert_eq!(new.status("keeps"), "exact");
        assert!(!new.report["warnings"].to_string().contains("stored answers"), "{}", new.report);
    }
}

#[test]
fn two_runs_send_different_prompts_of_the_same_recipe_and_each_engine_of_a_run_gets_the_same() {
    let scratch = Scratch::new();
    let engines = ["one", "other"].map(|name| scratch.engine(name, ""));
    let [first, second] = [(); 2].map(|()| run(&scratch, &[&engines[0], &engines[1]], &[]));
    let prompts = |run: &Run, label| fields(run, "prompt_hash", label);
    assert_eq!(prompts(&first, "one"), prompts(&first, "other"));
    assert!(prompts(&first, "one").iter().all(|hash| !prompts(&second, "one").contains(hash)));
    let recipes = |run: &Run| fields(run, "recipe_hash", "one");
    assert_eq!(recipes(&first), recipes(&second));
    let nonce = |run: &Run| run.record.header()["plan"]["nonce"].as_u64().unwrap();
    assert_ne!(nonce(&first), nonce(&second));
    assert_eq!(first.report["nonce"], nonce(&first));
    // The nonce repeats the prompts of its run.
    let again = run(&scratch, &[&engines[0], &engines[1]], &["--nonce", &nonce(&first).to_string()]);
    assert_eq!(prompts(&again, "one"), prompts(&first, "one"));
}

#[test]
fn records_of_different_nonces_are_compared_and_of_different_seeds_refused() {
    let scratch = Scratch::new();
    let engine = scratch.engine("engine", "");
    // This engine gets text. The number of tokens that it makes of a prompt differs between runs.
    let reader = scratch.engine("reader", r#"--capabilities '{"prompt_ids":false}'"#);
    let record = |name: &str, options: &[&str]| {
        run(&scratch, &[&engine, &reader], options);
        let [file] = &files(&scratch.results())[..] else { panic!("expected one record") };
        let path = scratch.join(name);
        std::fs::rename(file, &path).unwrap();
        path
    };
    let (base, new) = (record("base", &["--nonce", "1"]), record("new", &["--nonce", "2"]));
    let seeded = record("seeded", &["--seed", "3"]);
    let compare =
        |new: &PathBuf| finish(scratch.orchestrate().arg("compare").args([&base, new]).arg("--format=json"));
    let compared = compare(&new);
    // One block has no verdict.
    assert_eq!((compared.code, compared.stderr.as_str()), (Some(3), ""), "{compared:?}");
    let refused = compare(&seeded).exits_with(2);
    refused.assert_stderr(&["prompts of decode: base `seed 0`, new `seed 3`"]);
}

#[test]
fn the_command_request_repeats_a_request_of_a_run_apart_from_its_id() {
    let scratch = Scratch::new();
    let lines = scratch.join("lines");
    let text = format!("tee -a '{}' | '{}'", lines.display(), fake_engine().display());
    let engine = scratch.script("logs", &text);
    let run = run(&scratch, &[&engine], &["--seed", "3"]);
    let nonce = run.record.header()["plan"]["nonce"].to_string();
    let request = |options: &[&str]| -> Value {
        let mut command = scratch.orchestrate();
        let outcome = finish(command.arg("request").arg(&engine).arg("decode").args(options)).exits_with(0);
        let lines = outcome.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut generate = lines.into_iter().find(|line| line["type"] == "generate").unwrap();
        generate.as_object_mut().unwrap().remove("id");
        generate
    };
    let sent: Vec<Value> = std::fs::read_to_string(&lines)
        .unwrap()
        .lines()
        .map(|line| {
            let mut sent: Value = serde_json::from_str(line).unwrap();
            sent.as_object_mut().unwrap().remove("id");
            sent
        })
        .collect();
    let repeated = request(&["--seed", "3", "--nonce", &nonce]);
    assert_eq!(sent.iter().filter(|line| **line == repeated).count(), 1, "{repeated}");
    assert!(!sent.contains(&request(&["--seed", "3"])) && !sent.contains(&request(&["--nonce", &nonce])));
    // `orchestrate explain` prints this command.
    let [record] = &files(&scratch.results())[..] else { panic!("expected one record") };
    let explained = finish(scratch.orchestrate().args(["explain", "logs", "decode"]).arg(record));
    let command =
        format!("`orchestrate request {} decode --depth 0 --seed 3 --nonce {nonce}`", engine.display());
    assert!(
        without_line_breaks(&explained.stdout.replace("\\\n", "")).contains(&command),
        "{}",
        explained.stdout
    );
}

#[test]
fn a_nonce_that_no_json_number_holds_is_refused() {
    for nonce in ["-1", "x", "9007199254740992"] {
        let outcome = finish(Scratch::new().orchestrate().args(["-e", "true", &format!("--nonce={nonce}")]));
        outcome.exits_with(2).assert_stderr(&["--nonce"]);
    }
}
