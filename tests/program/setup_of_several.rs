//! Tests of `setup` with several engines: the sizes before the question, the question, and what happens after a failure.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::support::{Outcome, Scratch, build_command, finish, write_program};

/// Two engines that can be built, one whose build fails, one for another system, and two that share an environment.
fn tree() -> Scratch {
    let scratch = Scratch::outside_checkout();
    let builds = |name: &str| {
        format!(
            "about = \"x\"\nbinary = \"{name}-engine\"\n[build]\n{}",
            build_command(&format!("{name}-engine"))
        )
    };
    let environment = "[environment]\npython = \"3.11\"\nrequirements = \"../environments/snake/requirements.txt\"\n\
                       download_mb = 2900\ninstalled_mb = 5400\n";
    let fails = "about = \"x\"\nbinary = \"broken-engine\"\n[build]\nnote = \"a moment\"\n\
                 command = [\"sh\", \"-c\", \"echo error: no compiler here; exit 1\"]\n";
    scratch.write_tree(&[
        ("able", &builds("able")),
        ("broken", fails),
        ("deft", &builds("deft")),
        ("foreign", "about = \"x\"\nbinary = \"foreign-engine\"\n[needs]\nos = [\"plan9\"]\n"),
        ("python-one", &format!("{}{environment}", builds("python-one"))),
        ("python-two", &format!("{}{environment}", builds("python-two"))),
    ]);
    let shared = scratch.join("engines/environments/snake");
    std::fs::create_dir_all(&shared).unwrap();
    std::fs::write(shared.join("requirements.txt"), "no-such-package==1.0\n").unwrap();
    scratch
}

fn set_up(scratch: &Scratch, words: &[&str]) -> Outcome {
    finish(scratch.orchestrate_without_checkout().arg("setup").args(words))
}

fn is_built(scratch: &Scratch, engine: &str) -> bool {
    scratch.join(&format!("target/release/{engine}-engine")).exists()
}

#[test]
fn without_a_terminal_several_engines_need_the_option_yes() {
    let scratch = tree();
    let outcome = set_up(&scratch, &["--all"]).exits_with(2);
    let refusal = "error: this set-up must be confirmed, and there is no terminal; nothing was set up\n\
                   hint: ./bin/orchestrate setup --all --yes\n";
    assert!(outcome.stderr.ends_with(refusal), "{outcome:?}");
    assert!(!scratch.join("target").exists() && outcome.stdout.is_empty(), "{outcome:?}");
    // The sizes come first, and a shared environment counts once.
    outcome.assert_stderr(&[
        "to set up:\n  able: build\n  broken: build (a moment)\n",
        "  python-one: build; 2.9 GB to download, 5.4 GB installed\n",
        "  python-two: build; uses the environment of `python-one`\n",
        "cannot run here: `foreign`: needs plan9, this is linux\n",
        "total: 2.9 GB to download, 5.4 GB installed in",
        " free)\n",
    ]);
}

#[test]
fn a_download_for_one_engine_must_be_confirmed_too() {
    let scratch = tree();
    let outcome = set_up(&scratch, &["python-one"]).exits_with(2);
    let refusal = "error: this set-up must be confirmed, and there is no terminal; nothing was set up\n\
                   hint: ./bin/orchestrate setup python-one --yes\n";
    assert!(outcome.stderr.ends_with(refusal), "{outcome:?}");
    outcome
        .assert_stderr(&["to set up:\n  python-one: build; 2.9 GB to download, 5.4 GB installed\ntotal: "]);
    assert!(!scratch.join("target").exists() && outcome.stdout.is_empty(), "{outcome:?}");
    // A build downloads nothing.
    set_up(&scratch, &["able"]).exits_with(0);
    assert!(is_built(&scratch, "able"));
}

#[test]
fn a_failure_of_one_engine_does_not_stop_the_others() {
    let scratch = tree();
    let outcome = set_up(&scratch, &["able", "broken,deft", "able", "--yes"]).exits_with(4);
    assert_eq!(
        outcome.stdout,
        "ready: `able`, `deft`\nfailed: `broken`: no compiler here\n    hint: sh -c 'echo error: no compiler here; exit 1'\n\
         the same command tries the failed engines again, and skips those that are ready\n"
    );
    assert!(is_built(&scratch, "able") && is_built(&scratch, "deft"));
    // The next call starts with what is missing.
    let again = set_up(&scratch, &["able", "broken", "--yes"]).exits_with(4);
    again.assert_stderr(&["broken: building", "ready: `able`\n"]);
    assert!(!again.stderr.contains("able: "), "{again:?}");
    scratch.assert_no_processes_left();
}

#[test]
fn engines_that_are_ready_need_no_confirmation() {
    let scratch = tree();
    set_up(&scratch, &["able", "deft", "--yes"]).exits_with(0);
    let outcome = set_up(&scratch, &["able", "deft"]).exits_with(0);
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("ready: `able`, `deft`\n", ""));
    // A named engine that cannot run here is a failure.
    let foreign = set_up(&scratch, &["able", "foreign"]).exits_with(4);
    assert_eq!(foreign.stdout, "ready: `able`\ncannot run here: `foreign`: needs plan9, this is linux\n");
}

#[test]
fn an_engine_that_cannot_run_here_is_no_failure_of_the_option_all() {
    let scratch = tree();
    for engine in ["broken", "python-one", "python-two"] {
        std::fs::remove_dir_all(scratch.join(&format!("engines/{engine}"))).unwrap();
    }
    let outcome = set_up(&scratch, &["--all", "-y"]).exits_with(0);
    assert_eq!(
        outcome.stdout,
        "ready: `able`, `deft`\ncannot run here: `foreign`: needs plan9, this is linux\n"
    );
}

#[test]
fn a_shared_environment_is_made_once_for_several_engines() {
    let scratch = tree();
    let uv = "#!/bin/sh\nprintf '%s\\n' \"$*\" >>\"$0.calls\"\n[ \"$1\" = venv ] || exit 0\n\
              for last; do :; done\nmkdir -p \"$last/bin\" && ln -s /bin/sh \"$last/bin/python\"\n";
    std::fs::create_dir_all(scratch.join("tools")).unwrap();
    write_program(&scratch.join("tools/uv"), uv);
    let requirements = scratch.join("engines/python-one/engine.toml");
    for engine in [&requirements, &scratch.join("engines/python-two/engine.toml")] {
        let small = std::fs::read_to_string(engine).unwrap().replace("2900", "1").replace("5400", "1");
        std::fs::write(engine, small).unwrap();
    }
    let mut command = scratch.orchestrate_without_checkout();
    command.args(["setup", "python-one", "python-two", "--yes"]);
    let path = format!("{}:/usr/bin:/bin", scratch.join("tools").display());
    let outcome = finish(command.env("PATH", path)).exits_with(0);
    assert_eq!(outcome.stdout, "ready: `python-one`, `python-two`\n");
    let calls = std::fs::read_to_string(scratch.join("tools/uv.calls")).unwrap();
    assert_eq!(calls.lines().filter(|line| line.starts_with("venv")).count(), 1, "{calls}");
}

/// The two ends of a terminal: the test's and the program's.
fn terminal() -> (OwnedFd, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = File::options().read(true).write(true).open(name).unwrap();
    (ours, theirs)
}

/// Sets two engines up on a terminal on which the user types these keys.
fn set_up_with_keys(scratch: &Scratch, keys: &str) -> Outcome {
    let (ours, theirs) = terminal();
    rustix::io::write(&ours, keys.as_bytes()).unwrap();
    let mut command = scratch.orchestrate_without_checkout();
    command.args(["setup", "able", "deft"]).stdin(theirs.try_clone().unwrap()).stderr(theirs);
    let outcome = finish(&mut command);
    // Once no process has the program's end open, reading the test's end fails.
    drop(command);
    let (mut shown, mut chunk) = (Vec::new(), [0; 4096]);
    while let Ok(length @ 1..) = rustix::io::read(&ours, &mut chunk) {
        shown.extend(&chunk[..length]);
    }
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.contains("set up 2 engines? [y/N]"), "{shown}");
    outcome
}

#[test]
fn on_a_terminal_one_confirmation_starts_the_set_up_of_all_engines() {
    let scratch = tree();
    for refusal in ["\n", "n\n", "\u{4}"] {
        let outcome = set_up_with_keys(&scratch, refusal).exits_with(4);
        assert!(outcome.stdout.is_empty() && !is_built(&scratch, "able"), "{outcome:?}");
    }
    let outcome = set_up_with_keys(&scratch, "y\n").exits_with(0);
    assert_eq!(outcome.stdout, "ready: `able`, `deft`\n");
}

#[test]
fn remove_takes_several_engines_and_not_the_option_all() {
    let scratch = tree();
    let outcome = set_up(&scratch, &["able", "deft", "--remove"]).exits_with(0);
    assert_eq!(
        outcome.stdout,
        "`able` has no environment: nothing to remove\n`deft` has no environment: nothing to remove\n"
    );
    set_up(&scratch, &["--all", "--remove"]).exits_with(2);
}

#[test]
fn without_a_checkout_a_set_up_says_in_one_sentence_that_it_needs_one() {
    // No tree is written, so the program has only the manifests from its own build.
    let scratch = Scratch::outside_checkout();
    let outcome = set_up(&scratch, &["--all"]).exits_with(4);
    assert!(outcome.stdout.is_empty(), "{outcome:?}");
    assert_eq!(
        outcome.stderr,
        "error: nothing was set up: engines are built from source, and this program is in no checkout of the source; run \
         the hint in a checkout\nhint: cargo run --release -- setup --all\n"
    );
}
