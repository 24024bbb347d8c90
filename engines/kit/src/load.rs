//! The options and the phases of a load. The engine reads its options; the kit times the phases and reports them to the
//! orchestrator.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use protocol::{Failed, FailureKind, Load, Message, PLANTED_DELAY_OPTION, Phase, Progress};
use serde_json::{Map, Value};

use crate::Output;
use crate::inbox::Clock;

/// The options of a load. An engine reads every option that it knows, then calls `finish`.
pub struct Options<'a> {
    values: &'a Map<String, Value>,
    known: RefCell<BTreeSet<String>>,
}

impl<'a> Options<'a> {
    pub fn new(values: &'a Map<String, Value>) -> Self {
        Self { values, known: RefCell::default() }
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>, Failed> {
        self.read(name, "a text", Value::as_str)
    }

    /// A bool, or a text that holds a bool.
    pub fn bool(&self, name: &str) -> Result<Option<bool>, Failed> {
        self.read(name, "true or false", |value| value.as_bool().or_else(|| value.as_str()?.parse().ok()))
    }

    /// A whole number, or a text that holds a whole number.
    pub fn u64(&self, name: &str) -> Result<Option<u64>, Failed> {
        self.read(name, "a whole number", |value| value.as_u64().or_else(|| value.as_str()?.parse().ok()))
    }

    /// Refuses every option that the engine did not read.
    pub fn finish(&self) -> Result<(), Failed> {
        let known = self.known.borrow();
        let Some(unknown) = self.values.keys().find(|name| !known.contains(*name)) else { return Ok(()) };
        Err(unknown_option(unknown, known.iter().map(String::as_str)))
    }

    fn read<T>(
        &self,
        name: &str,
        expected: &str,
        parse: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Failed> {
        self.known.borrow_mut().insert(name.into());
        let Some(value) = self.values.get(name) else { return Ok(None) };
        parse(value).map(Some).ok_or_else(|| {
            let value: String = value.to_string().chars().take(80).collect();
            let message = format!("option `{name}`: expected {expected}, found `{value}`");
            Failed::new(FailureKind::BadRequest, message)
        })
    }
}

fn unknown_option<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Failed {
    let failed = Failed::new(FailureKind::BadRequest, format!("unknown option `{}`", name.escape_debug()));
    match quote(known).as_str() {
        "" => failed.hint("this engine has no options"),
        known => failed.hint(format!("the options are {known}")),
    }
}

pub(crate) fn quote<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// Times the phases of a load. The start of each phase extends the orchestrator's deadline.
pub struct Phases {
    output: Option<Output>,
    running: Option<(String, Clock)>,
    done: Vec<Phase>,
}

impl Phases {
    /// Without an output, phases are timed but not reported: a load within another request, such as `generate`, sends no
    /// progress messages.
    pub fn new(output: Option<Output>) -> Self {
        Self { output, running: None, done: Vec::new() }
    }

    /// Times `work` under a name.
    pub fn phase<T>(&mut self, name: &str, work: impl FnOnce() -> T) -> T {
        self.begin(name);
        let result = work();
        self.end();
        result
    }

    /// Begins a phase, and ends the previous phase.
    pub fn begin(&mut self, name: &str) {
        self.end();
        self.report(Progress { phase: name.into(), fraction: None, note: None });
        self.running = Some((name.into(), Clock::start()));
    }

    fn end(&mut self) {
        if let Some((name, clock)) = self.running.take() {
            self.done.push(Phase { name, ns: clock.ns() });
        }
    }

    /// Reports the progress of the running phase, from 0 to 1, and extends the deadline.
    pub fn progress(&self, fraction: f64, note: Option<String>) {
        let phase = self.running.as_ref().map_or_else(String::new, |(name, _)| name.clone());
        self.report(Progress { phase, fraction: Some(fraction), note });
    }

    pub(crate) fn finish(mut self) -> Vec<Phase> {
        self.end();
        self.done
    }

    fn report(&self, progress: Progress) {
        if let Some(output) = &self.output {
            output.send(&Message::Progress(progress));
        }
    }
}

/// The last part of a delay, which is a busy wait, because a sleep can end late.
const SPIN_TIME: Duration = Duration::from_micros(200);

/// A deliberate delay before each token of a sequence except its first, to test the detection of slowdowns on any real engine.
/// The kit removes the option of the delay, so engines do not see it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PlantedDelay(Duration);

/// Refuses an option that `hello` does not list, so that the list is complete.
pub(crate) fn check_listed(options: &Map<String, Value>, listed: Option<&[String]>) -> Result<(), Failed> {
    let Some(listed) = listed else { return Ok(()) };
    let unknown = options.keys().find(|name| !listed.contains(name));
    unknown.map_or(Ok(()), |name| Err(unknown_option(name, listed.iter().map(String::as_str))))
}

impl PlantedDelay {
    /// The planted delay, and the load without the option.
    pub fn take(load: &Load) -> Result<(Self, Cow<'_, Load>), Failed> {
        let Some(us) = Options::new(&load.options).u64(PLANTED_DELAY_OPTION)? else {
            return Ok((Self::default(), Cow::Borrowed(load)));
        };
        let mut load = load.clone();
        load.options.remove(PLANTED_DELAY_OPTION);
        Ok((Self(Duration::from_micros(us)), Cow::Owned(load)))
    }

    pub fn wait(self) {
        if self.0.is_zero() {
            return;
        }
        let began = Instant::now();
        std::thread::sleep(self.0.saturating_sub(SPIN_TIME));
        while began.elapsed() < self.0 {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(json: serde_json::Value) -> Map<String, Value> {
        json.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn options_are_read_by_name_and_a_text_may_hold_a_number_or_bool() {
        let values = object(serde_json::json!({"a": "8", "b": true, "c": "fast", "d": "false"}));
        let options = Options::new(&values);
        assert_eq!(options.u64("a"), Ok(Some(8)));
        assert_eq!((options.bool("b"), options.bool("d")), (Ok(Some(true)), Ok(Some(false))));
        assert_eq!(options.text("c"), Ok(Some("fast")));
        assert_eq!(options.text("absent"), Ok(None));
        assert_eq!(options.finish(), Ok(()));
    }

    #[test]
    fn an_unknown_option_is_refused_with_a_list_of_the_known_ones() {
        let values = object(serde_json::json!({"speed": 1}));
        let options = Options::new(&values);
        assert_eq!(options.bool("graphs"), Ok(None));
        let failed = options.finish().unwrap_err();
        assert_eq!(failed.message, "unknown option `speed`");
        assert_eq!(failed.hint.as_deref(), Some("the options are `graphs`"));
        let without_options = Options::new(&values).finish().unwrap_err();
        assert_eq!(without_options.hint.as_deref(), Some("this engine has no options"));
    }

    #[test]
    fn an_option_that_hello_does_not_list_is_refused() {
        let values = object(serde_json::json!({"graphs": true}));
        let listed = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!(check_listed(&values, Some(&listed(&["graphs"]))), Ok(()));
        // Without a list, the engine itself refuses unknown options.
        assert_eq!(check_listed(&values, None), Ok(()));
        let failed = check_listed(&values, Some(&listed(&["speed"]))).unwrap_err();
        assert_eq!(failed.message, "unknown option `graphs`");
        assert_eq!(failed.hint.as_deref(), Some("the options are `speed`"));
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused_with_the_expected_type() {
        let values = object(serde_json::json!({"a": -1, "b": "inf", "c": 3}));
        let options = Options::new(&values);
        assert_eq!(options.u64("a").unwrap_err().message, "option `a`: expected a whole number, found `-1`");
        let failed = options.bool("b").unwrap_err();
        assert_eq!(failed.message, "option `b`: expected true or false, found `\"inf\"`");
        assert_eq!(options.text("c").unwrap_err().message, "option `c`: expected a text, found `3`");
    }

    #[test]
    fn a_phase_ends_when_the_next_begins_and_all_are_reported_in_order() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut phases = Phases::new(Some(Output::new(writer)));
        phases.begin("read");
        phases.progress(0.5, Some("half".into()));
        assert_eq!(phases.phase("copy", || 7), 7);
        let phases = phases.finish();
        assert_eq!(phases.iter().map(|phase| phase.name.as_str()).collect::<Vec<_>>(), ["read", "copy"]);
        let mut lines = String::new();
        std::io::Read::read_to_string(&mut reader, &mut lines).unwrap();
        let expected = [
            r#"{"type":"progress","phase":"read"}"#,
            r#"{"type":"progress","phase":"read","fraction":0.5,"note":"half"}"#,
            r#"{"type":"progress","phase":"copy"}"#,
        ];
        assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
    }
}
