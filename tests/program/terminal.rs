//! Runs on a terminal: the results so far, and the live line.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{tcgetwinsize, tcsetwinsize};

use crate::support::{DECODE, Scratch};

/// The output of a run of two engines on a terminal of this size, with its control sequences.
fn on_terminal(columns: u16, rows: u16, options: &[&str]) -> String {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let mut size = tcgetwinsize(&terminal).unwrap();
    (size.ws_col, size.ws_row) = (columns, rows);
    tcsetwinsize(&terminal, size).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let program_side = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let stdio = || Stdio::from(program_side.try_clone().unwrap());
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.args(DECODE).args(["--iterations", "1", "--warmup", "1"]).args(options);
    command.arg("--results").arg(scratch.results()).env("TERM", "xterm");
    for name in ["one", "other"] {
        command.arg("-e").arg(scratch.engine(name, ""));
    }
    let mut child = command.stdin(Stdio::null()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
    // While the command and this process hold the terminal open, reading does not end.
    drop((command, program_side));
    let output = read_to_end(terminal);
    assert!(child.wait().unwrap().success(), "{output}");
    output
}

/// Reads until no program has the terminal open. Then the read fails.
fn read_to_end(terminal: OwnedFd) -> String {
    let (mut terminal, mut bytes, mut buffer) = (File::from(terminal), Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = terminal.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn the_results_so_far_are_replaced_after_each_block_and_the_report_follows() {
    let output = on_terminal(100, 60, &["--blocks", "3"]);
    let position = |text: &str| output.rfind(text).unwrap_or_else(|| panic!("no {text:?} in {output}"));
    let blocks = ["1 block so far", "2 blocks so far", "3 blocks so far"].map(position);
    assert!(blocks.is_sorted(), "{blocks:?}");
    for pair in blocks.windows(2) {
        // The cursor goes up over the earlier table, and the screen below it is cleared.
        let between = &output[pair[0]..pair[1]];
        assert!(between.contains("F\u{1b}[J"), "{between:?}");
    }
    let end = &output[blocks[2]..];
    let report = &end[end.find("F\u{1b}[J").expect(end)..];
    assert!(report.contains("in full: ") && report.contains("decode"), "{report}");
    assert!(!report.contains("so far"), "{report}");
}

#[test]
fn the_live_line_fits_into_eighty_columns() {
    let output = on_terminal(80, 60, &["--blocks", "2"]);
    let lines = output.split(['\r', '\n']).filter(|line| line.contains("block 2 of 2 · decode · "));
    let lines: Vec<&str> = lines.collect();
    assert!(!lines.is_empty(), "{output}");
    for line in lines {
        let shown = &line[line.find(['━', '─', 'b']).unwrap()..];
        assert!(shown.trim_end().chars().count() <= 80, "{shown:?}");
    }
}

#[test]
fn a_pipe_gets_the_final_report_without_the_results_so_far() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.args(DECODE).args(["--iterations", "1", "--warmup", "1", "--blocks", "2", "-e"]);
    command.arg(scratch.engine("one", "")).arg("--results").arg(scratch.results());
    let outcome = crate::support::finish(&mut command).exits_with(0);
    assert!(!outcome.stdout.contains("so far") && !outcome.stderr.contains("so far"), "{outcome:?}");
}
