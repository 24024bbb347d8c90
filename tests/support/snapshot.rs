//! Exit code, stdout and stderr of a command in one file, `tests/snapshots/NAME.txt`. What differs from run to run is
//! replaced by a word in brackets.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test` writes the files; read the difference before you commit it.

use std::process::Command;

use super::{Scratch, finish, root};

pub fn assert_snapshot(name: &str, scratch: &Scratch, command: &mut Command) {
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let outcome = finish(command);
    let code = outcome.code.map_or("none".to_string(), |code| code.to_string());
    let (words, stdout, stderr) = (words.join(" "), outcome.stdout, outcome.stderr);
    let whole =
        format!("$ orchestrate {words}\n\n== exit code {code}\n== stdout\n{stdout}== stderr\n{stderr}");
    let lines: Vec<_> = redact(&whole, scratch).lines().map(|line| line.trim_end().to_string()).collect();
    let found = lines.join("\n") + "\n";
    let path = root().join("tests/snapshots").join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        return std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let show = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
    assert!(
        found == expected,
        "`{name}` has changed; if that is right: UPDATE_SNAPSHOTS=1 cargo test --test program --test models\nexpected:\n{}found:\n{}",
        show(&expected),
        show(&found)
    );
}

fn redact(text: &str, scratch: &Scratch) -> String {
    let text = text.replace(env!("CARGO_BIN_EXE_orchestrate"), "[ORCHESTRATE]");
    let text =
        text.replace(&*scratch.path.to_string_lossy(), "[TMP]").replace(&*root().to_string_lossy(), "[ROOT]");
    let relative =
        env!("CARGO_BIN_EXE_orchestrate").strip_prefix(&*root().to_string_lossy()).unwrap_or("/orchestrate");
    let text = text.replace(&format!(".{relative}"), "[ORCHESTRATE]");
    text.replace(env!("CARGO_PKG_VERSION"), "[VERSION]")
}
