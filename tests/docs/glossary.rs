//! The glossary: short enough to be read at once.

use crate::page::Page;

const MAX_WORDS: usize = 40;
/// The limit of CONTRIBUTING.md for a sentence that a user sees.
const MAX_SENTENCE_WORDS: usize = 25;

#[test]
fn the_glossary_has_at_most_forty_words_and_each_has_one_short_sentence() {
    let page = Page::read("docs/glossary.md");
    let rows = page.text.lines().filter_map(|line| line.strip_prefix("| "));
    let rows: Vec<(&str, &str)> = rows
        .filter_map(|row| row.trim_end_matches(" |").split_once(" | "))
        .filter(|(word, _)| *word != "word")
        .collect();
    assert!(rows.len() > 20, "the tables were not read correctly: {rows:?}");
    assert!(rows.len() <= MAX_WORDS, "{} words: replace those that the output hardly uses", rows.len());
    for (word, meaning) in rows {
        let is_short = meaning.split_whitespace().count() <= MAX_SENTENCE_WORDS;
        assert!(is_short && !meaning.contains(". "), "`{word}` needs one short sentence: {meaning}");
    }
}
