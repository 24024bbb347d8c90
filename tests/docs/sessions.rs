//! The folder of one page, in which its commands run one after the other, as a reader would run them.
//!
//! Without the feature `full`, the program is installed outside the checkout. The fake engine is installed as `lmrs`, so that no
//! engine must be compiled. With the feature, the folder is inside the checkout, and the program and all engines are those
//! that `scripts/check --full` has built and set up.

use std::path::PathBuf;
use std::process::Command;

use crate::support::tree::{text, unignored_files};
use crate::support::{Outcome, Scratch, copy_program, fake_engine, finish, root, write_program};

pub const IS_FULL: bool = cfg!(feature = "full");

/// Programs that pages name and that a parsed command must not start. A script that only reads its input to the end replaces
/// each.
const STAND_INS: &[&str] =
    &["lmrs", "my-engine", "jq", "nvidia-smi", "git", "apt-get", "rustup", "target/release/lmrs"];

pub struct Session {
    scratch: Scratch,
    /// The folder in which commands are parsed.
    parsed: PathBuf,
}

impl Session {
    pub fn start() -> Self {
        let scratch = if IS_FULL { Scratch::new() } else { Scratch::outside_checkout() };
        let parsed = scratch.join("parsed");
        let session = Self { parsed, scratch };
        session.install();
        session.install_parsers();
        session
    }

    /// Writes a file that a page shows.
    pub fn write(&self, name: &str, text: &str) {
        write_program(&self.scratch.join("work").join(name), text);
    }

    /// Runs a command line in the folder of the session.
    pub fn run(&self, line: &str) -> Outcome {
        let mut shell = self.shell(line);
        shell.current_dir(self.scratch.join("work"));
        let found = [self.scratch.join("bin"), target_folder().join("release")];
        shell.env("PATH", path(&found[..if IS_FULL { 2 } else { 1 }]));
        if IS_FULL {
            shell.env_remove("ORCHESTRATE_VERIFIER").env("CARGO_TARGET_DIR", target_folder());
        }
        finish(&mut shell)
    }

    /// Parses a command line: the shell splits it into words, `orchestrate` and `cargo` parse their options, and nothing is
    /// measured, built or fetched.
    pub fn parse(&self, line: &str) -> Outcome {
        let mut shell = self.shell(line);
        finish(shell.current_dir(&self.parsed).env("PATH", path(&[self.parsed.join("bin")])))
    }

    fn shell(&self, line: &str) -> Command {
        let mut shell = self.scratch.command("bash");
        shell.args(["-e", "-o", "pipefail", "-c", line]);
        shell
    }

    /// Installs the programs that a page starts. `my-engine` is the reader's own engine: here the fake engine, which reports
    /// equal times in every launch. It takes text and has no scores, so its output is unverified.
    fn install(&self) {
        let (work, bin) = (self.scratch.join("work"), self.scratch.join("bin"));
        for folder in [&work.join("before"), &work.join("results"), &bin] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let fake = |settings: &str| {
            format!("#!/bin/sh\nexec '{}' --real-sleep false {settings}\n", fake_engine().display())
        };
        let own = fake("--engine my-engine --capabilities '{\"score\":false,\"prompt_ids\":false}'");
        for path in [work.join("my-engine"), work.join("before/my-engine")] {
            write_program(&path, &own);
        }
        // The records of the pages' tables, which a reader has in the checkout.
        std::os::unix::fs::symlink(root().join("results/curated"), work.join("results/curated")).unwrap();
        if IS_FULL {
            for name in ["engines", "models", "protocol", "scripts", "tests"] {
                std::os::unix::fs::symlink(root().join(name), work.join(name)).unwrap();
            }
            std::os::unix::fs::symlink(target_folder(), work.join("target")).unwrap();
            return self.share_set_up();
        }
        copy_program(env!("CARGO_BIN_EXE_orchestrate").as_ref(), &bin.join("orchestrate"));
        write_program(&bin.join("lmrs"), &fake("--engine lmrs"));
    }

    /// Links the user's data directory, so that the engines set up there are ready. Its baselines, calibrations and results are
    /// left out: commands of a page write their own.
    fn share_set_up(&self) {
        let home = self.scratch.join("home");
        std::fs::create_dir_all(&home).unwrap();
        for entry in std::fs::read_dir(paths::data_dir().unwrap()).unwrap().flatten() {
            if !["baselines", "calibration", "results"].iter().any(|name| entry.file_name() == *name) {
                std::os::unix::fs::symlink(entry.path(), home.join(entry.file_name())).unwrap();
            }
        }
    }

    fn install_parsers(&self) {
        let orchestrate = env!("CARGO_BIN_EXE_orchestrate");
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        // `cargo run -- WORDS` passes the words to `orchestrate`.
        let run = "while [ $# -gt 0 ] && [ \"$1\" != -- ]; do shift; done; [ $# = 0 ] || shift; exec orchestrate \"$@\"";
        let programs = [
            ("bin/orchestrate", format!("exec '{orchestrate}' \"$@\" --help >/dev/null")),
            ("target/release/orchestrate", "exec orchestrate \"$@\"".into()),
            (
                "bin/cargo",
                format!("if [ \"$1\" = run ]; then {run}; fi\nexec '{cargo}' \"$@\" --help >/dev/null"),
            ),
            ("my-engine", "cat >/dev/null".into()),
        ];
        let stand_ins = STAND_INS.iter().map(|name| (format!("bin/{name}"), "cat >/dev/null".to_string()));
        let programs = programs.map(|(name, text)| (name.to_string(), text)).into_iter().chain(stand_ins);
        for (name, text) in programs.chain(scripts()) {
            let path = self.parsed.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            write_program(&path, &format!("#!/bin/sh\n{text}\n"));
        }
    }
}

/// A stand-in for each script: it checks the syntax of a bash script, and does nothing for others.
fn scripts() -> Vec<(String, String)> {
    let scripts = unignored_files().into_iter().filter(|path| path.starts_with("scripts/"));
    let stand_in = |script: String| {
        let path = root().join(&script);
        let is_for_bash = text(&script).is_some_and(|text| text.starts_with("#!/usr/bin/env bash"));
        let check = if is_for_bash { format!("exec bash -n '{}'", path.display()) } else { String::new() };
        (script, check)
    };
    scripts.map(stand_in).collect()
}

fn path(folders: &[PathBuf]) -> String {
    let folders = folders.iter().map(|folder| folder.display().to_string());
    let system = if IS_FULL { std::env::var("PATH").unwrap() } else { "/usr/local/bin:/usr/bin:/bin".into() };
    folders.chain([system]).collect::<Vec<_>>().join(":")
}

fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |folder| root().join(folder))
}
