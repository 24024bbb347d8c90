//! `orchestrate model pull` and `model list` against a fake hub: downloads, the cache, refusals.

use std::path::{Path, PathBuf};
use std::process::Command;

use model_files::ModelFolder;

use crate::support::hub::{COMMIT, FakeHub, File, Reply, Request, range_reply};
use crate::support::models::assert_refused;
use crate::support::{Outcome, Running, Scratch, command, finish, root, wait_until};

pub const TINY: &str = "someone/tiny-model";
const WEIGHTS: &str = "model.safetensors";
const TOKEN: &str = "hf_aSecretToken";

/// A hub with the embedded model under the name `TINY`.
pub fn hub() -> FakeHub {
    FakeHub::start_with_folder(TINY, &root().join("models/embedded"))
}

pub fn orchestrate(scratch: &Scratch, hub: &FakeHub, words: &[&str]) -> Command {
    let mut command = scratch.orchestrate();
    command.env_remove("HUGGINGFACE_HUB_CACHE");
    for name in ["TOKEN", "TOKEN_PATH", "HUB_CACHE", "HUB_OFFLINE", "HUB_DOWNLOAD_TIMEOUT"] {
        command.env_remove(format!("HF_{name}"));
    }
    for name in ["http_proxy", "https_proxy", "all_proxy"] {
        command.env_remove(name).env_remove(name.to_uppercase());
    }
    command.env("HF_ENDPOINT", hub.endpoint()).env("HF_HOME", hf_home(scratch)).args(words);
    command
}

pub fn pull(scratch: &Scratch, hub: &FakeHub, words: &[&str]) -> Outcome {
    finish(&mut orchestrate(scratch, hub, &[&["model", "pull"], words].concat()))
}

#[track_caller]
fn assert_fails(scratch: &Scratch, hub: &FakeHub, words: &[&str], texts: &[&str]) {
    assert_refused(&pull(scratch, hub, words), 5, texts);
}

fn hf_home(scratch: &Scratch) -> PathBuf {
    scratch.join("hf")
}

fn cache_folder(scratch: &Scratch) -> PathBuf {
    hf_home(scratch).join("hub/models--someone--tiny-model")
}

fn assert_pulled(outcome: &Outcome, scratch: &Scratch) {
    let snapshot = cache_folder(scratch).join("snapshots").join(COMMIT);
    assert_eq!(outcome.stdout, format!("{}\n", snapshot.display()), "{outcome:?}");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let (pulled, original) =
        (std::fs::read(snapshot.join(WEIGHTS)), root().join("models/embedded").join(WEIGHTS));
    assert!(pulled.unwrap() == std::fs::read(original).unwrap(), "the weights are not those of the hub");
}

/// Every file and link under a folder, by its path inside the folder.
pub fn paths_in(folder: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => paths.extend(paths_in(&entry.path()).iter().map(|it| format!("{name}/{it}"))),
            false => paths.push(name),
        }
    }
    paths.sort();
    paths
}

// Downloads.

#[test]
fn a_pulled_model_is_complete_and_opens_by_its_name() {
    let (scratch, hub) = (Scratch::new(), hub());
    let outcome = pull(&scratch, &hub, &[TINY]);
    assert_pulled(&outcome, &scratch);
    let model = ModelFolder::open(outcome.stdout.trim()).unwrap();
    assert_eq!((model.name.as_str(), model.config.architecture.as_str()), (TINY, "llama"));
    assert!(model.tokenizer().is_ok() && !model.config.eos_ids.is_empty());
    // Files that no engine reads are not downloaded.
    assert!(!paths_in(&model.path).contains(&"heldout.txt".to_string()));
    outcome.assert_stderr(&["5 files (", "  model.safetensors ("]);

    let list = finish(&mut orchestrate(&scratch, &hub, &["model", "list"]));
    let row = list.stdout.lines().find(|line| line.starts_with(TINY)).unwrap_or_default();
    assert!(row.contains("safetensors") && row.contains("llama"), "{list:?}");
    let mut request = orchestrate(&scratch, &hub, &["request", "sh", "ttft", "-m", TINY]);
    let request = finish(&mut request);
    assert!(request.code == Some(0) && request.stdout.contains(COMMIT), "{request:?}");
}

#[test]
fn other_programs_find_pulled_models() {
    let (scratch, hub) = (Scratch::new(), hub());
    assert_pulled(&pull(&scratch, &hub, &[&format!("{TINY}@v1.0")]), &scratch);
    let cache = hf_hub::Cache::new(hf_home(&scratch).join("hub"));
    let repository = hf_hub::Repo::with_revision(TINY.into(), hf_hub::RepoType::Model, "v1.0".into());
    let path = cache.repo(repository).get("config.json").unwrap();
    assert!(path.canonicalize().unwrap().ends_with(hub.file("config.json").hash()), "{path:?}");
    // A tag is not stored as the default revision.
    assert_eq!(cache.model(TINY.into()).get("config.json"), None);
    let list = finish(&mut orchestrate(&scratch, &hub, &["model", "list"]));
    list.assert_stdout(&[&format!("{TINY}@v1.0 ")]);
}

#[test]
fn a_second_pull_fetches_nothing() {
    let (scratch, hub) = (Scratch::new(), hub());
    assert_pulled(&pull(&scratch, &hub, &[TINY]), &scratch);
    hub.take_requests();
    let again = pull(&scratch, &hub, &[TINY]);
    assert_pulled(&again, &scratch);
    again.assert_stderr(&["already complete"]);
    let paths: Vec<_> = hub.take_requests().into_iter().map(|it| it.path).collect();
    assert_eq!(paths, [format!("/api/models/{TINY}/revision/main?blobs=true")]);
}

#[test]
fn patterns_select_the_pulled_files() {
    let files = ["a-q4.gguf", "a-q8.gguf", "config.json", "pytorch_model.bin", "deep/b.gguf"];
    let hub = FakeHub::start(TINY, files.map(|name| File::new(name, name)).into());
    let scratch = Scratch::new();
    let pulled = pull(&scratch, &hub, &[TINY, "--file", "*q8*", "--file", "c?nfig.json", "--file", "deep/*"])
        .exits_with(0);
    let folder = PathBuf::from(pulled.stdout.trim());
    assert_eq!(paths_in(&folder), ["a-q8.gguf", "config.json", "deep/b.gguf"]);
    assert_eq!(std::fs::read(folder.join("deep/b.gguf")).unwrap(), b"deep/b.gguf");

    let nothing = pull(&scratch, &hub, &[TINY, "--file", "*.safetensors"]);
    assert_refused(&nothing, 5, &["no file matches `*.safetensors`", "  a-q4.gguf", "9 B"]);
    assert_fails(&scratch, &hub, &[TINY], &["several `.gguf` files", "hint: name one: `--file"]);
    assert_fails(&scratch, &hub, &[TINY, "--file", "*.bin"], &["`pytorch_model.bin` may run code"]);
}

#[test]
fn a_repository_that_was_renamed_is_found_under_its_old_name() {
    let (scratch, hub) = (Scratch::new(), hub());
    hub.answer(|request| {
        let path = request.path.contains("someone/old").then(|| request.path.replace("someone/old", TINY))?;
        Some(Reply::of(307).with("Location", path))
    });
    pull(&scratch, &hub, &["someone/old"]).exits_with(0);
    let list = finish(&mut orchestrate(&scratch, &hub, &["model", "list"]));
    list.assert_stdout(&["someone/old "]);
}

// Interruptions.

#[test]
fn a_pull_resumes_where_its_connection_was_lost() {
    let (scratch, hub) = (Scratch::new(), hub());
    let mut cuts = [1000, 5000].into_iter();
    let weights = hub.file(WEIGHTS).bytes.clone();
    hub.answer(move |request| {
        let reply = range_reply(&weights, request.first_byte);
        request.is_at_store().then(|| Some(Reply { cut_after_bytes: Some(cuts.next()?), ..reply }))?
    });
    assert_pulled(&pull(&scratch, &hub, &[TINY]), &scratch);
    let at_store: Vec<_> =
        hub.take_requests().into_iter().filter(Request::is_at_store).map(|it| it.first_byte).collect();
    assert_eq!(at_store, [None, Some(1000), Some(6000)]);
}

#[test]
fn an_interrupted_pull_resumes_where_it_stopped() {
    let (scratch, hub) = (Scratch::new(), hub());
    let weights = hub.file(WEIGHTS).bytes.clone();
    hub.answer(move |request| {
        let stalled = Reply { cut_after_bytes: Some(7000), stall: true, ..Reply::bytes(&weights) };
        request.is_at_store().then_some(stalled)
    });
    let running = Running::start(&mut orchestrate(&scratch, &hub, &["model", "pull", TINY]));
    let unfinished =
        cache_folder(&scratch).join("blobs").join(format!("{}.incomplete", hub.file(WEIGHTS).hash()));
    wait_until("the first bytes arrive", || unfinished.metadata().is_ok_and(|it| it.len() == 7000));
    let interrupted = running.interrupt();
    assert_eq!(interrupted.stdout, "");
    interrupted.assert_stderr(&["the same command continues the download"]);
    // An incomplete model is not listed as a snapshot.
    assert!(!cache_folder(&scratch).join("snapshots").exists());

    hub.answer(|_| None);
    hub.take_requests();
    assert_pulled(&pull(&scratch, &hub, &[TINY]), &scratch);
    let requests = hub.take_requests();
    let at_store: Vec<_> = requests.iter().filter(|it| it.is_at_store()).map(|it| it.first_byte).collect();
    assert_eq!(at_store, [Some(7000)]);
    // The small files were complete, and are not downloaded again.
    assert!(!requests.iter().any(|it| it.is_for("config.json")), "{requests:?}");
}

#[test]
fn a_store_that_stops_answering_is_retried() {
    let (scratch, hub) = (Scratch::new(), hub());
    let weights = hub.file(WEIGHTS).bytes.clone();
    hub.answer(move |request| {
        let stalled = Reply { cut_after_bytes: Some(1000), stall: true, ..Reply::bytes(&weights) };
        (request.is_at_store() && request.first_byte.is_none()).then_some(stalled)
    });
    let mut command = orchestrate(&scratch, &hub, &["model", "pull", TINY]);
    assert_pulled(&finish(command.env("HF_HUB_DOWNLOAD_TIMEOUT", "1")), &scratch);
    let at_store: Vec<_> =
        hub.take_requests().into_iter().filter(Request::is_at_store).map(|it| it.first_byte).collect();
    // On a busy machine a second may pass before the first byte. Then the whole file is requested again.
    assert!(at_store[0].is_none() && at_store.contains(&Some(1000)), "{at_store:?}");
}

#[test]
fn two_concurrent_pulls_do_not_write_one_file() {
    let (scratch, hub) = (Scratch::new(), hub());
    let locks = hf_home(&scratch).join("hub/.locks/models--someone--tiny-model");
    std::fs::create_dir_all(&locks).unwrap();
    let lock = std::fs::File::create(locks.join(format!("{}.lock", hub.file(WEIGHTS).hash()))).unwrap();
    lock.lock().unwrap();
    assert_fails(&scratch, &hub, &[TINY], &["another program is fetching `model.safetensors`", "hint: "]);
    drop(lock);
    assert_pulled(&pull(&scratch, &hub, &[TINY]), &scratch);
}

#[test]
fn a_store_without_resume_sends_the_file_again() {
    let (scratch, hub) = (Scratch::new(), hub());
    let weights = hub.file(WEIGHTS).bytes.clone();
    hub.answer(move |request| {
        let cut_after_bytes = request.first_byte.is_none().then_some(1000);
        request.is_at_store().then(|| Reply { cut_after_bytes, ..Reply::bytes(&weights) })
    });
    assert_pulled(&pull(&scratch, &hub, &[TINY]), &scratch);
}

#[test]
fn an_overloaded_hub_is_retried_a_limited_number_of_times() {
    let (scratch, hub) = (Scratch::new(), hub());
    let mut refusals_left = 3;
    hub.answer(move |_| {
        refusals_left -= 1;
        (refusals_left >= 0)
            .then(|| Reply::of(if refusals_left == 1 { 429 } else { 503 }).with("Retry-After", "0"))
    });
    let outcome = pull(&scratch, &hub, &[TINY]);
    assert_pulled(&outcome, &scratch);
    outcome.assert_stderr(&["503", "429"]);

    let scratch = Scratch::new();
    hub.answer(|request| request.is_at_store().then(|| Reply::of(500).with("Retry-After", "0")));
    let outcome = pull(&scratch, &hub, &[TINY]);
    assert_refused(&outcome, 5, &["`model.safetensors`", "500", "8 times in a row", "hint: "]);
}

// Wrong data from the hub.

#[test]
fn a_file_with_a_wrong_hash_is_refused_and_removed() {
    for (name, kind) in [(WEIGHTS, "SHA-256"), ("config.json", "git hash")] {
        let (scratch, hub) = (Scratch::new(), hub());
        let mut wrong = hub.file(name).bytes.clone();
        wrong[0] ^= 1;
        let sends_content = move |it: &Request| it.is_for(name) && (name != WEIGHTS || it.is_at_store());
        hub.answer(move |request| sends_content(request).then(|| Reply::bytes(&wrong)));
        let outcome = pull(&scratch, &hub, &[TINY]);
        assert_refused(&outcome, 5, &[&format!("`{name}` is damaged"), kind, "the file was removed"]);
        let hash = hub.file(name).hash();
        let remaining: Vec<_> =
            paths_in(&cache_folder(&scratch)).into_iter().filter(|it| it.contains(&hash)).collect();
        assert!(remaining.is_empty(), "{remaining:?}");
        // With correct data, the pull succeeds.
        hub.answer(|_| None);
        assert_pulled(&pull(&scratch, &hub, &[TINY]), &scratch);
    }
}

#[test]
fn a_file_longer_than_announced_is_refused() {
    let mut weights = File::new(WEIGHTS, vec![7; 3000]);
    weights.listed_bytes = 2000;
    let hub = FakeHub::start(TINY, vec![weights, File::new("config.json", "{}")]);
    let scratch = Scratch::new();
    assert_fails(&scratch, &hub, &[TINY], &["more than the 2000 bytes"]);
    let remaining = paths_in(&cache_folder(&scratch).join("blobs"));
    assert_eq!(remaining, [hub.file("config.json").hash()], "{remaining:?}");
}

#[test]
fn a_repository_with_a_file_outside_its_folder_writes_nothing() {
    let files = vec![File::new("config.json", "{}"), File::new(WEIGHTS, "x"), File::new("../evil", "x")];
    let (scratch, hub) = (Scratch::new(), FakeHub::start(TINY, files));
    assert_fails(&scratch, &hub, &[TINY], &["`../evil`, which leads out of its folder"]);
    assert_eq!(paths_in(&scratch.path), Vec::<String>::new());
}

#[test]
fn a_repository_name_with_parent_folders_is_refused_without_a_request() {
    let (scratch, hub) = (Scratch::new(), hub());
    for name in ["../evil", "/etc/passwd", "a/../b", "a/b@../c", "a/b/c", "a--b/c"] {
        // The message says `repository` or `revision`.
        assert_refused(&pull(&scratch, &hub, &[name]), 2, &["is not the name of a re", "hint: "]);
    }
    assert_eq!(hub.take_requests(), []);
}

#[test]
fn a_model_larger_than_the_disk_is_refused_before_the_download() {
    let mut weights = File::new(WEIGHTS, "x");
    weights.listed_bytes = 5_000_000_000_000_000;
    let (scratch, hub) =
        (Scratch::new(), FakeHub::start(TINY, vec![weights, File::new("config.json", "{}")]));
    assert_fails(&scratch, &hub, &[TINY], &["needs 5000 TB more", " free\n", "hint: `HF_HUB_CACHE`"]);
    assert!(!hub.take_requests().iter().any(|it| it.path.contains("/resolve/")));
}

// Access tokens.

#[test]
fn a_gated_model_needs_a_token() {
    let (scratch, hub) = (Scratch::new(), hub());
    hub.answer(|request| {
        let is_authorized = request.authorization.as_deref() == Some(&format!("Bearer {TOKEN}"));
        let is_refused = request.path.contains("/resolve/") && !is_authorized;
        is_refused.then(|| Reply::of(401).with("X-Error-Code", "GatedRepo"))
    });
    let refused = pull(&scratch, &hub, &[TINY]);
    assert_refused(&refused, 5, &["401", "hint: accept the licence at http", "set HF_TOKEN"]);
    let wrong = "hf_anotherSecret";
    let mut command = orchestrate(&scratch, &hub, &["model", "pull", TINY]);
    let refused = finish(command.env("HF_TOKEN", wrong));
    assert_refused(&refused, 5, &["the owner of the token in `HF_TOKEN`"]);
    assert!(!refused.stderr.contains(wrong), "{refused:?}");

    hub.take_requests();
    let outcome = finish(command.env("HF_TOKEN", TOKEN));
    assert_pulled(&outcome, &scratch);
    assert!(!outcome.stderr.contains(TOKEN), "{outcome:?}");
    // The store is another host and must not get the user's token.
    let requests = hub.take_requests();
    let (at_store, at_hub): (Vec<_>, Vec<_>) =
        requests.iter().partition(|it| it.host.starts_with("localhost"));
    assert!(!at_store.is_empty() && at_store.iter().all(|it| it.authorization.is_none()), "{at_store:?}");
    assert!(!at_hub.is_empty() && at_hub.iter().all(|it| it.authorization.is_some()), "{at_hub:?}");
}

#[test]
fn the_stored_token_is_used_unless_a_variable_gives_another() {
    let (scratch, hub) = (Scratch::new(), hub());
    let authorization = |command: &mut Command| {
        finish(command);
        hub.take_requests()[0].authorization.clone()
    };
    let mut command = orchestrate(&scratch, &hub, &["model", "pull", TINY]);
    assert_eq!(authorization(&mut command), None);
    std::fs::write(hf_home(&scratch).join("token"), "hf_inHome\n").unwrap();
    assert_eq!(authorization(&mut command).as_deref(), Some("Bearer hf_inHome"));
    std::fs::write(scratch.join("token"), "hf_inFile\n").unwrap();
    assert_eq!(
        authorization(command.env("HF_TOKEN_PATH", scratch.join("token"))).as_deref(),
        Some("Bearer hf_inFile")
    );
    assert_eq!(authorization(command.env("HF_TOKEN", TOKEN)), Some(format!("Bearer {TOKEN}")));
}

// Missing repositories.

#[test]
fn a_missing_repository_or_revision_is_named() {
    let (scratch, hub) = (Scratch::new(), hub());
    assert_fails(&scratch, &hub, &["someone/else"], &["no model `someone/else` at http", "hint: "]);
    let no_revision = pull(&scratch, &hub, &[&format!("{TINY}@v9")]);
    assert_refused(&no_revision, 5, &["`someone/tiny-model` has no revision `v9`", "hint: "]);
    assert_eq!(paths_in(&scratch.path), Vec::<String>::new());
}

#[test]
fn without_a_network_the_hint_is_a_command_that_needs_none() {
    let scratch = Scratch::new();
    // The kernel never assigns port 1 to a process. Any other unused port could be taken by another test's hub.
    let closed = "127.0.0.1:1";
    let mut command = orchestrate(&scratch, &hub(), &["model", "pull", TINY]);
    let outcome = finish(command.env("HF_ENDPOINT", format!("http://{closed}")));
    let expected = format!("cannot reach http://{closed}: ");
    assert_refused(
        &outcome,
        5,
        &[&expected, "refused", "hint: without a network, `orchestrate model synth NAME --out DIR`"],
    );
}

#[test]
fn offline_mode_sends_no_request() {
    let (scratch, hub) = (Scratch::new(), hub());
    let mut command = orchestrate(&scratch, &hub, &["model", "pull", TINY]);
    let offline = ["`HF_HUB_OFFLINE` is set", "hint: without a network, `orchestrate model synth"];
    assert_refused(&finish(command.env("HF_HUB_OFFLINE", "1")), 5, &offline);
    assert_eq!(hub.take_requests(), []);
    assert_pulled(&pull(&scratch, &hub, &[TINY]), &scratch);
    assert_refused(
        &finish(&mut command),
        5,
        &["`HF_HUB_OFFLINE` is set", "is in the cache from an earlier pull"],
    );
}

#[test]
fn an_unknown_repository_name_is_refused_with_the_pull_command() {
    let (scratch, hub) = (Scratch::new(), hub());
    let request_of = |name| finish(&mut orchestrate(&scratch, &hub, &["request", "sh", "ttft", "-m", name]));
    assert_refused(
        &request_of(TINY),
        2,
        &["none of this name was pulled", "hint: `orchestrate model pull someone/tiny-model`"],
    );
    // A path is not treated as a repository.
    assert!(!request_of("/no/such/model").stderr.contains("pull"));
}

#[test]
fn a_path_takes_precedence_over_a_repository_name() {
    let (scratch, hub) = (Scratch::new(), hub());
    assert_pulled(&pull(&scratch, &hub, &[TINY]), &scratch);
    std::fs::create_dir_all(scratch.join(TINY)).unwrap();
    let mut request = orchestrate(&scratch, &hub, &["request", "sh", "ttft", "-m", TINY]);
    let outcome = finish(request.current_dir(&scratch.path));
    assert!(outcome.code != Some(0) && outcome.stderr.contains("the folder is empty"), "{outcome:?}");
}

#[test]
fn a_model_that_cannot_be_opened_is_listed_with_the_reason() {
    let files = vec![File::new("config.json", "{}"), File::new(WEIGHTS, "short")];
    let (scratch, hub) = (Scratch::new(), FakeHub::start(TINY, files));
    pull(&scratch, &hub, &[TINY]).exits_with(0);
    let list = finish(&mut orchestrate(&scratch, &hub, &["model", "list"])).exits_with(0);
    list.assert_stdout(&["embedded ", "broken", "    `model.safetensors`: "]);
    assert!(list.stdout.lines().all(|line| line.chars().count() <= 80), "{list:?}");
}

#[test]
fn the_engine_kit_depends_on_no_network_crate() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut tree = command(cargo);
    // Without `--offline`: `cargo tree` reads the crates of every engine, which a new machine must download first.
    tree.args(["tree", "--locked", "-p", "engine-kit", "-e", "normal,build", "--prefix", "none"]);
    let tree = tree.current_dir(root()).output().unwrap();
    let tree = String::from_utf8(tree.stdout).unwrap();
    assert!(tree.contains("model-files"), "{tree}");
    for network in ["ureq", "rustls", "ring", "openssl", "reqwest"] {
        assert!(!tree.lines().any(|line| line.starts_with(network)), "engine-kit depends on `{network}`");
    }
}
