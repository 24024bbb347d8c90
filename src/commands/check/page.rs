//! The output of the checks: plain text. The entries of checks are aligned and fit 80 columns. Nothing here reads or
//! writes a stream.

use std::fmt::Write as _;

use super::checked_engine::Check;
use super::result::{Counts, Evidence, Finding};
use crate::text::{plural, wrap};

pub const NAME_WIDTH: usize = 16;
const LINE_WIDTH: usize = 80;
/// The column of an entry's text: after two spaces, the result and the name.
const TEXT_COLUMN: usize = 2 + 8 + NAME_WIDTH + 1;
/// The column of a line of evidence: after ten spaces and its name, such as `received`.
const EVIDENCE_COLUMN: usize = 10 + 10;
const EVIDENCE_WIDTH: usize = LINE_WIDTH - EVIDENCE_COLUMN;
/// The maximum number of characters that an entry shows of a protocol line.
const MAX_SHOWN: usize = 240;

pub fn head(label: &str, command: &[String], model: &str) -> String {
    let program = command.join(" ");
    format!("checking `{label}` ({program}) with the model `{model}`\n")
}

pub fn passed(check: &Check) -> String {
    line("passed", check.name, check.property)
}

/// The text of a fault, with the line sent and the line received.
pub fn wrong(check: &Check, fault: &str, evidence: &Evidence) -> String {
    let mut entry = line("WRONG", check.name, fault);
    if evidence.sent.is_empty() && evidence.received.is_empty() {
        return entry;
    }
    let mut show = |name: &str, lines: Vec<String>| {
        let text = lines.join(&format!("\n{}", " ".repeat(EVIDENCE_COLUMN)));
        // Writing to a string cannot fail.
        let _ = writeln!(entry, "          {name:<10}{text}");
    };
    show("sent", pieces(&shown(&evidence.sent)));
    show("received", pieces(&shown(&evidence.received)));
    for line in &evidence.stderr {
        let text = shown(line.as_bytes());
        // People read these lines, so words stay whole. A line that fits keeps its spaces.
        let fits = text.chars().count() <= EVIDENCE_WIDTH;
        show("stderr", if fits { vec![text] } else { wrap(&text, EVIDENCE_WIDTH, "") });
    }
    entry
}

/// The text of a fault that the check `first_check` reported: in short, with the beginning of each line.
pub fn wrong_again(check: &Check, first_check: &str, fault: &str, evidence: &Evidence) -> String {
    let text = format!("the same as `{first_check}`: {}", cut(fault, EVIDENCE_WIDTH));
    let (sent, received) = (shown(&evidence.sent), shown(&evidence.received));
    let mut entry = line("WRONG", check.name, &text);
    for (name, line) in [("sent", sent), ("received", received)] {
        let _ = writeln!(entry, "          {name:<10}{}", cut(&line, EVIDENCE_WIDTH));
    }
    entry
}

/// The text of checks that cannot be made. `reported_by` is the check whose entry has the reason already, if any.
pub fn skipped(count: u32, why: &str, reported_by: Option<&str>) -> String {
    let why = reported_by.map_or(why.into(), |check| format!("no check can run, because `{check}` failed"));
    format!("\n{}", line("skipped", &plural(count, "check"), &why))
}

pub fn no_engine(label: &str) -> String {
    format!("\n`{label}` is not an engine: it gave no valid answer\n")
}

/// The text of successive checks that did not pass, all for one reason.
pub fn not_passed(names: &[&str], result: &Finding) -> String {
    let (outcome, why) = match result {
        Finding::Skipped(why) => ("skipped", why),
        Finding::Absent(why) => ("absent", why),
        Finding::Wrong(why) => ("WRONG", why),
    };
    match names {
        [name] => line(outcome, name, why),
        names => line(outcome, &format!("{} checks", names.len()), &format!("{why} ({})", names.join(", "))),
    }
}

fn line(outcome: &str, name: &str, text: &str) -> String {
    let text = wrap(text, LINE_WIDTH - TEXT_COLUMN, "").join(&format!("\n{:TEXT_COLUMN$}", ""));
    format!("  {outcome:<8}{name:<NAME_WIDTH$} {text}\n")
}

pub fn verdict(label: &str, counts: &Counts) -> String {
    let Counts { passed, absent, wrong, skipped } = counts;
    let version = protocol::version::CURRENT;
    let verdict = match (wrong, skipped) {
        (0, 0) => format!("`{label}` conforms to protocol {version}"),
        (0, _) => format!("`{label}` could not be checked against protocol {version}"),
        _ => format!("`{label}` violates protocol {version}"),
    };
    let skipped_text = if *skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
    format!("\n{verdict}: {passed} passed, {absent} absent (optional), {wrong} wrong{skipped_text}\n")
}

/// A protocol line with all its spaces, split at the right edge.
fn pieces(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(EVIDENCE_WIDTH).map(|line| line.iter().collect()).collect()
}

/// The text, cut to at most `limit` characters.
fn cut(text: &str, limit: usize) -> String {
    match text.chars().count() > limit {
        true => format!("{}...", text.chars().take(limit - 3).collect::<String>()),
        false => text.into(),
    }
}

/// The beginning of a protocol line, printable. After a line that was cut comes its whole length in bytes.
fn shown(line: &[u8]) -> String {
    match line {
        [] => return "nothing".into(),
        b"\n" => return "an empty line".into(),
        _ => {}
    }
    // A character has at most four bytes.
    let start = String::from_utf8_lossy(&line[..line.len().min(4 * MAX_SHOWN)]).into_owned();
    let printable = |character: char| match character.is_control() {
        true => character.escape_default().collect(),
        false => character.to_string(),
    };
    let start = start.trim_end_matches('\n');
    let text: String = start.chars().take(MAX_SHOWN).map(printable).collect();
    match start.chars().count() > MAX_SHOWN {
        true => format!("{text}... ({} bytes)", line.len()),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECK: Check = Check::new("echo", "it answers the request", |_| Ok(()));

    #[test]
    fn a_wrong_check_shows_the_line_sent_and_the_line_received() {
        let evidence = Evidence {
            sent: b"{\"prompt\":\"Hello\"}\n".to_vec(),
            received: b"{\"type\":\"bye\"}".to_vec(),
            stderr: vec!["oh no".into()],
        };
        let page = wrong(&CHECK, "answered `bye`", &evidence);
        let expected = concat!(
            "  WRONG   echo             answered `bye`\n",
            "          sent      {\"prompt\":\"Hello\"}\n",
            "          received  {\"type\":\"bye\"}\n",
            "          stderr    oh no\n",
        );
        assert_eq!(page, expected);
    }

    #[test]
    fn a_repeated_fault_is_printed_in_short_with_the_start_of_each_line() {
        let received = b"{\"type\":\"bye\"}".to_vec();
        let evidence = Evidence { sent: [b'{'].repeat(500), received, ..Evidence::default() };
        let page = wrong_again(&CHECK, "reply", "it died", &evidence);
        let expected = "  WRONG   echo             the same as `reply`: it died\n          sent      {{{";
        assert!(page.starts_with(expected), "{page}");
        assert!(page.ends_with("...\n          received  {\"type\":\"bye\"}\n"), "{page}");
        assert!(page.lines().count() == 3 && page.lines().all(|line| line.len() <= LINE_WIDTH), "{page}");
        let long = wrong_again(&CHECK, "reply", &"word ".repeat(40), &evidence);
        assert!(long.lines().count() == 4 && long.lines().all(|line| line.len() <= LINE_WIDTH), "{long}");
    }

    #[test]
    fn a_fault_before_the_first_message_has_no_lines_as_evidence() {
        let page = wrong(&CHECK, "cannot be started", &Evidence::default());
        assert_eq!(page, "  WRONG   echo             cannot be started\n");
    }

    #[test]
    fn skipped_checks_are_one_line_and_the_reason_is_printed_once() {
        let first = skipped(60, "cannot run here: no driver", None);
        assert_eq!(first, "\n  skipped 60 checks        cannot run here: no driver\n");
        let later = skipped(1, "it died", Some("hello"));
        assert_eq!(later, "\n  skipped 1 check          no check can run, because `hello` failed\n");
    }

    #[test]
    fn a_passed_check_prints_its_property_without_messages() {
        assert_eq!(passed(&CHECK), "  passed  echo             it answers the request\n");
    }

    #[test]
    fn checks_with_the_same_reason_share_one_entry() {
        let why = Finding::Absent("not claimed".into());
        assert_eq!(not_passed(&["echo"], &why), "  absent  echo             not claimed\n");
        assert_eq!(
            not_passed(&["echo", "reply"], &why),
            "  absent  2 checks         not claimed (echo, reply)\n"
        );
    }

    #[test]
    fn long_lines_are_wrapped_at_eighty_columns_without_losing_words() {
        let long = format!("{} and {}", "word ".repeat(40), "x".repeat(200));
        let sent = [b'{'].repeat(5000);
        let stderr = vec!["Traceback: ".repeat(6) + "Permission denied"];
        let evidence = Evidence { sent, stderr, ..Evidence::default() };
        let page = wrong(&CHECK, &long, &evidence);
        assert!(page.lines().all(|line| line.chars().count() <= LINE_WIDTH), "{page}");
        assert_eq!(page.matches("word").count(), 40);
        assert_eq!(page.matches('x').count(), 200);
        assert!(page.contains("(5000 bytes)") && page.contains("received  nothing"));
        assert!(page.contains("Permission denied"), "{page}");
    }

    #[test]
    fn unprintable_characters_are_escaped() {
        assert_eq!(shown(b"a\x07\xffb\n"), "a\\u{7}\u{fffd}b");
        assert_eq!(shown(b"\n"), "an empty line");
    }

    #[test]
    fn the_verdict_has_counts_of_wrong_and_skipped_checks() {
        let counts = Counts { passed: 3, absent: 2, ..Counts::default() };
        assert_eq!(
            verdict("toy", &counts),
            "\n`toy` conforms to protocol 1: 3 passed, 2 absent (optional), 0 wrong\n"
        );
        let skipped = Counts { skipped: 1, ..counts.clone() };
        assert!(verdict("toy", &skipped).starts_with("\n`toy` could not be checked"));
        let broken = Counts { wrong: 1, ..counts };
        assert_eq!(
            verdict("toy", &broken),
            "\n`toy` violates protocol 1: 3 passed, 2 absent (optional), 1 wrong\n"
        );
    }
}
