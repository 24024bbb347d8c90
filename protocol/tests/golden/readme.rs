//! Authors of engines follow `README.md`, so its examples must be correct.

use protocol::{FailureKind, parse_message, parse_request};

const README: &str = include_str!("../../README.md");

/// The code blocks of one language.
fn code_blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    README.split(fence.as_str()).skip(1).map(|after| after.split("```").next().unwrap()).collect()
}

#[test]
fn the_smallest_engine_of_the_readme_is_the_file_in_tests() {
    assert_eq!(code_blocks("python"), [include_str!("../../../tests/smallest-engine.py")]);
    assert!(code_blocks("python")[0].lines().count() < 30, "the smallest engine must stay small");
}

#[test]
fn every_line_of_the_conversation_in_the_readme_is_parsed() {
    let [requests, messages] = code_blocks("json")[..] else { panic!("expected a code block for each side") };
    let (mut request_count, mut message_count) = (0, 0);
    for line in requests.lines() {
        parse_request(line.as_bytes()).unwrap_or_else(|failed| panic!("{line}: {}", failed.message));
        request_count += 1;
    }
    for line in messages.lines() {
        parse_message(line.as_bytes()).unwrap_or_else(|failed| panic!("{line}: {}", failed.message));
        message_count += 1;
    }
    assert_eq!((request_count, message_count), (4, 5));
}

#[test]
fn the_readme_names_every_field() {
    let schema = crate::schema::committed_schema();
    for field in crate::schema::declared_fields(&schema) {
        let (_, name) = field.split_once('.').unwrap();
        let is_word = |&(at, found): &(usize, &str)| {
            let is_letter = |c: char| c.is_alphanumeric() || c == '_';
            !README[..at].ends_with(is_letter) && !README[at + found.len()..].starts_with(is_letter)
        };
        assert!(README.match_indices(name).any(|found| is_word(&found)), "`{field}` is not in README.md");
    }
}

#[test]
fn the_readme_names_every_kind_of_failure() {
    let schema = crate::schema::committed_schema();
    let kinds = crate::schema::words(&schema, "FailureKind");
    assert!(kinds.contains(&FailureKind::OutOfMemory.as_str()) && kinds.len() == 8, "{kinds:?}");
    for kind in kinds {
        assert!(README.contains(&format!("`{kind}`")), "`{kind}`");
    }
}

#[test]
fn an_invalid_number_is_refused_with_its_field() {
    for number in ["NaN", "-1", "1e400", "1.5", "null", "18446744073709551616"] {
        let line = format!(
            r#"{{"type":"generated","iterations":[{{"start_ns":1,"end_ns":{number},"sequences":[]}}]}}"#
        );
        let failed = parse_message(line.as_bytes()).unwrap_err();
        // NaN is invalid JSON: the error names the outer field and the column.
        let field = if number == "NaN" { "column 58: `iterations`" } else { "`iterations[0].end_ns`" };
        assert!(failed.message.contains(field), "{number}: {}", failed.message);
    }
}
