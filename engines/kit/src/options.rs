//! An engine's own load options, read by name. Options that the engine does not read are refused.

use std::cell::RefCell;
use std::collections::BTreeSet;

use protocol::{Failed, FailureKind};
use serde_json::{Map, Value};

/// The options of a load. Read every option that the engine knows, then call `finish`.
pub struct Options<'a> {
    given: &'a Map<String, Value>,
    known: RefCell<BTreeSet<String>>,
}

impl<'a> Options<'a> {
    pub fn new(given: &'a Map<String, Value>) -> Self {
        Self { given, known: RefCell::default() }
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>, Failed> {
        self.read(name, "a text", Value::as_str)
    }

    /// Text from a command line counts as the value that it spells: `"true"`, `"8"`.
    pub fn bool(&self, name: &str) -> Result<Option<bool>, Failed> {
        self.read(name, "true or false", |value| value.as_bool().or_else(|| value.as_str()?.parse().ok()))
    }

    pub fn u64(&self, name: &str) -> Result<Option<u64>, Failed> {
        self.read(name, "a whole number", |value| value.as_u64().or_else(|| value.as_str()?.parse().ok()))
    }

    pub fn f64(&self, name: &str) -> Result<Option<f64>, Failed> {
        let finite = |number: &f64| number.is_finite();
        self.read(name, "a number", |value| {
            value.as_f64().or_else(|| value.as_str()?.parse().ok()).filter(finite)
        })
    }

    /// One of a few words.
    pub fn choice(&self, name: &str, words: &[&'static str]) -> Result<Option<&'static str>, Failed> {
        let Some(given) = self.text(name)? else { return Ok(None) };
        let found = words.iter().find(|word| **word == given).copied();
        found.map(Some).ok_or_else(|| self.refuse(name, &format!("one of {}", quote(words.iter().copied()))))
    }

    /// Refuses every option that the calls above did not read.
    pub fn finish(&self) -> Result<(), Failed> {
        let known = self.known.borrow();
        let Some(unknown) = self.given.keys().find(|name| !known.contains(*name)) else { return Ok(()) };
        let failed =
            Failed::new(FailureKind::BadRequest, format!("unknown option `{}`", unknown.escape_debug()));
        Err(match known.is_empty() {
            true => failed.hint("this engine has no options"),
            false => failed.hint(format!("the options are {}", quote(known.iter().map(String::as_str)))),
        })
    }

    fn read<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Failed> {
        self.known.borrow_mut().insert(name.into());
        let Some(value) = self.given.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.refuse(name, expected))
    }

    fn refuse(&self, name: &str, expected: &str) -> Failed {
        let found = self.given.get(name).map_or_else(String::new, Value::to_string);
        let found: String = found.chars().take(80).collect();
        Failed::new(FailureKind::BadRequest, format!("option `{name}`: expected {expected}, found `{found}`"))
    }
}

pub(crate) fn quote<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(json: serde_json::Value) -> Map<String, Value> {
        json.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn options_are_read_by_name_and_words_count_as_what_they_spell() {
        let given = given(serde_json::json!({"a": "8", "b": true, "c": "fast", "d": 0.5, "e": "false"}));
        let options = Options::new(&given);
        assert_eq!(options.u64("a"), Ok(Some(8)));
        assert_eq!((options.bool("b"), options.bool("e")), (Ok(Some(true)), Ok(Some(false))));
        assert_eq!(options.choice("c", &["slow", "fast"]), Ok(Some("fast")));
        assert_eq!(options.f64("d"), Ok(Some(0.5)));
        assert_eq!(options.text("absent"), Ok(None));
        assert_eq!(options.finish(), Ok(()));
    }

    #[test]
    fn an_option_that_nobody_read_is_refused_with_those_that_there_are() {
        let given = given(serde_json::json!({"speed": 1}));
        let options = Options::new(&given);
        assert_eq!(options.bool("graphs"), Ok(None));
        let refused = options.finish().unwrap_err();
        assert_eq!(
            (refused.message.as_str(), refused.hint.as_deref()),
            ("unknown option `speed`", Some("the options are `graphs`"))
        );
        assert_eq!(
            Options::new(&given).finish().unwrap_err().hint.as_deref(),
            Some("this engine has no options")
        );
    }

    #[test]
    fn a_value_of_the_wrong_kind_says_what_was_expected_and_found() {
        let given = given(serde_json::json!({"a": -1, "b": "inf", "c": "quick"}));
        let options = Options::new(&given);
        assert_eq!(options.u64("a").unwrap_err().message, "option `a`: expected a whole number, found `-1`");
        assert_eq!(options.f64("b").unwrap_err().message, "option `b`: expected a number, found `\"inf\"`");
        let refused = options.choice("c", &["slow", "fast"]).unwrap_err();
        assert_eq!(refused.message, "option `c`: expected one of `slow`, `fast`, found `\"quick\"`");
    }
}
