//! Runs of a model that is not on this machine: `-m OWNER/NAME --download` against a fake hub.

use crate::pull::{TINY, hub, orchestrate, paths_in, pull};
use crate::support::hub::{FakeHub, File};
use crate::support::models::assert_refused;
use crate::support::record::Record;
use crate::support::{Outcome, Scratch, copy_folder, fake_engine, finish, root};

const SHORT: &[&str] = &[
    "-s",
    "decode",
    "--depth",
    "0",
    "--blocks",
    "1",
    "--iterations",
    "1",
    "--warmup",
    "1",
    "--results",
    "results",
];

fn run_with(scratch: &Scratch, hub: &FakeHub, model: &str, words: &[&str], offline: bool) -> Outcome {
    let engine = ["-e", fake_engine().to_str().unwrap(), "-m", model];
    let mut command = orchestrate(scratch, hub, &[&engine, SHORT, words].concat());
    if offline {
        command.env("HF_HUB_OFFLINE", "1");
    }
    finish(command.current_dir(&scratch.path))
}

fn run(scratch: &Scratch, hub: &FakeHub, model: &str, words: &[&str]) -> Outcome {
    let offline = false;
    run_with(scratch, hub, model, words, offline)
}

#[test]
fn an_absent_model_is_fetched_measured_and_found_the_next_time() {
    let (scratch, hub) = (Scratch::new(), hub());
    let outcome = run(&scratch, &hub, TINY, &["--download"]).exits_with(0);
    outcome.assert_stderr(&["someone/tiny-model at 01234567: 5 files (", "  model.safetensors ("]);
    let record = Record::only_one_in(&scratch.results());
    assert_eq!((record.samples_of("fake-engine").len(), record.end()), (1, Some("finished")));
    assert_eq!(record.header()["plan"]["configurations"][0]["model"]["name"], TINY);
    hub.take_requests();
    for words in [&[][..], &["--download"]] {
        run(&scratch, &hub, TINY, words).exits_with(0);
    }
    assert_eq!(hub.take_requests(), []);
}

#[test]
fn without_download_an_absent_model_is_refused_with_the_command_that_fetches_it() {
    let (scratch, hub) = (Scratch::new(), hub());
    for mode in [&[][..], &["--dry-run"]] {
        let outcome = run(&scratch, &hub, TINY, mode);
        let hint = format!("-m {TINY} {} --download\n", [SHORT, mode].concat().join(" "));
        assert_refused(&outcome, 2, &["none of this name was pulled\nhint: ", &hint]);
    }
    assert_eq!(hub.take_requests(), []);
    let no_model = run(&scratch, &hub, "./no-such-folder", &["--download"]);
    assert_refused(&no_model, 2, &["no model at `./no-such-folder`"]);
}

#[test]
fn a_dry_run_shows_what_it_would_fetch_and_fetches_nothing() {
    let (scratch, hub) = (Scratch::new(), hub());
    let outcome = run(&scratch, &hub, TINY, &["--download", "--dry-run"]).exits_with(0);
    outcome.assert_stderr(&["would fetch someone/tiny-model at 01234567: 5 files ("]);
    outcome.assert_stdout(&["fake-engine on someone/tiny-model"]);
    assert!(!hub.take_requests().iter().any(|request| request.path.contains("/resolve/")));
    assert_eq!(paths_in(&scratch.join("hf")), [""; 0]);
}

#[test]
fn a_wrong_value_is_refused_before_the_download() {
    let (scratch, hub) = (Scratch::new(), hub());
    let outcome = run(&scratch, &hub, TINY, &["--download", "--device", "metal"]);
    assert_refused(&outcome, 2, &["no device `metal`"]);
    assert_eq!(hub.take_requests(), []);
}

#[test]
fn without_a_network_nothing_is_measured_and_the_hint_needs_none() {
    let (scratch, hub) = (Scratch::new(), hub());
    for words in [&["--download"][..], &["--download", "--dry-run"]] {
        let offline = true;
        let outcome = run_with(&scratch, &hub, TINY, words, offline);
        assert_refused(
            &outcome,
            5,
            &["`HF_HUB_OFFLINE` is set", "hint: without a network, `orchestrate model synth"],
        );
    }
    assert_eq!(hub.take_requests(), []);
    assert!(!scratch.results().exists());
    pull(&scratch, &hub, &[TINY]).exits_with(0);
    let offline = true;
    run_with(&scratch, &hub, TINY, &["--download"], offline).exits_with(0);
}

#[test]
fn a_folder_with_the_name_of_a_repository_is_used() {
    let (scratch, hub) = (Scratch::new(), hub());
    std::fs::create_dir_all(scratch.join("someone")).unwrap();
    copy_folder(&root().join("models/embedded"), &scratch.join(TINY));
    run(&scratch, &hub, TINY, &["--download"]).exits_with(0);
    assert_eq!(hub.take_requests(), []);
}

#[test]
fn one_of_several_gguf_files_is_fetched_by_its_name() {
    let scratch = Scratch::new();
    let weights = std::fs::read(scratch.synth("tiny-llama", "q8_0", "tiny.gguf")).unwrap();
    let files = vec![File::new("a.gguf", weights), File::new("b.gguf", "other")];
    let hub = FakeHub::start(TINY, files);
    assert_refused(
        &run(&scratch, &hub, TINY, &["--download"]),
        5,
        &["several `.gguf` files", "or `-m OWNER/NAME/a.gguf`"],
    );
    let name = format!("{TINY}/a.gguf");
    run(&scratch, &hub, &name, &["--download"]).exits_with(0);
    let fetched = hub.take_requests();
    assert!(!fetched.iter().any(|request| request.is_for("b.gguf")), "{fetched:?}");
}
