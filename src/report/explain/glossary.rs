//! The words of the project's glossary, read from its page, so that the page and `orchestrate explain` never differ.

const PAGE: &str = include_str!("../../../docs/glossary.md");

/// A word, or several words separated by `, `, with the meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    pub name: &'static str,
    pub about: &'static str,
}

/// All words, in the order of the page: the rows of its tables.
pub fn words() -> impl Iterator<Item = Word> {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    let words = rows.map(|(name, about)| Word { name, about });
    words.filter(|word| word.name != "word")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_page_are_found_with_their_meaning() {
        let twin = words().find(|word| word.name == "twin").unwrap();
        assert!(twin.about.starts_with("a second copy of a configuration"), "{twin:?}");
        let names: Vec<&str> = words().map(|word| word.name).collect();
        assert!(names.len() > 30 && !names.contains(&"word"), "{names:?}");
    }
}
