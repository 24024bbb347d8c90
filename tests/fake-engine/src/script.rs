//! The script of the engine: one table of settings, overridden by the environment, the command line and `load`.
//!
//! This module depends on no request, process or clock.

use serde_json::{Map, Value};

/// Settings: name, default as JSON, meaning. A value must have the type of the default, unless the default is `null`.
pub const SETTINGS: &[(&str, &str, &str)] = &[
    ("fault", "\"\"", "names from the list of faults, with commas between them"),
    ("at", "0", "the first generate request with the fault or `wrong_from`, counted from 0 in each process"),
    ("exit_code", "3", "the exit code of faults that exit"),
    ("signal", "\"SEGV\"", "the signal of `killed_at_sample`"),
    (
        "answers_folder",
        "\"\"",
        "the folder of stored answers: an answer of an earlier run takes a thousandth of the time",
    ),
    (
        "answers_ignore_ids",
        "0",
        "the number of ids at the start of a prompt that may differ where a stored answer is given",
    ),
    (
        "amount",
        "200000",
        "lines of a flood, bytes of `fills_folder`; bytes of `huge_line` are 100 times as many",
    ),
    ("engine", "\"fake\"", "the engine's name in `hello`"),
    ("version", "\"1.2.3\"", "the engine's version in `hello`"),
    ("output", "\"ids\"", "the output in `hello`: `ids` or `text`"),
    (
        "models_tokenizer",
        "false",
        "whether texts are those of the model's `tokenizer.json`; otherwise a text is bytes, and an output numbers",
    ),
    ("stamp", "\"token\"", "the stamp in `hello`: `token`, `chunk` or `end`"),
    ("deterministic", "true", "the field `deterministic` of `hello`"),
    (
        "capabilities",
        "{}",
        "changes to the default capabilities, which lack GGUF, packed padding and concurrent requests",
    ),
    ("real_sleep", "true", "whether the engine waits until a reported time has passed"),
    (
        "prefix_cache",
        "false",
        "whether the engine keeps the prompts of requests that allow it, and computes only the rest of prompts that begin alike",
    ),
    ("load_ns", "1000", "duration of a load"),
    ("progress_messages", "0", "the number of `progress` messages during a load"),
    ("start_ns", "1000", "from the request line to the start of the first iteration"),
    ("first_token_ns", "20000", "from the start of an iteration to its first token"),
    ("per_prompt_token_ns", "0", "added to the first token for each token of the longest prompt"),
    ("per_token_ns", "2000", "between tokens"),
    ("slower_percent", "0", "effect: the percentage by which every token time is longer"),
    ("drift_percent_per_second", "0", "effect: the percentage by which token times grow in every second"),
    ("drift_from_ns", "null", "UNIX time at which the drift begins in all launches; null: with the process"),
    (
        "noise_percent",
        "0",
        "effect: log-normal noise of each launch; its logarithm has the standard deviation ln(1 + percent / 100)",
    ),
    ("request_noise_percent", "0", "effect: the same noise, but drawn for each iteration"),
    (
        "noise_seed",
        "null",
        "the seed of both noises, with the launch's number; null: another seed for each process",
    ),
    (
        "slow_phase_percent",
        "0",
        "effect: the percentage by which token times are longer on half of the phases",
    ),
    ("phase_ms", "1000", "the length of a phase: a time in which the machine of all engines has one speed"),
    ("draft_length", "4", "tokens of each draft, if a request asks for speculation"),
    ("accepted_of_draft", "3", "tokens of each draft that become output"),
    ("end_ns", "500", "from the last token to the end of the iteration"),
    ("vocabulary_size", "1000", "ids are smaller than this and larger than 2, the id of EOS"),
    ("ignored_ids", "0", "the number of ids after the first one that have no effect on the output"),
    (
        "computed_part",
        "\"\"",
        "the part of a prompt that `generate` computes: `half` (the last one), `start_and_half`, `last_200`, `last_64`; empty: all",
    ),
    (
        "partial_prompts",
        "\"\"",
        "the prompts of which `generate` computes a part: `text`, `patterns` (with one id repeated); empty: all",
    ),
    (
        "looks_back",
        "0",
        "the number of last ids on which the next id depends, unless the prompt repeats an id; 0: all ids",
    ),
    ("token_ids", "null", "an array: the output ids, instead of computed ids"),
    ("dropped_words", "0", "the number of words at the start of a prompt in text that are not read"),
    ("wrong_sequence", "null", "the sequence of a batch, counted from 0, whose ids are wrong"),
    ("wrong_from", "null", "the position from which ids are wrong, beginning with request `at`"),
    ("eos_at", "null", "the position of EOS (id 2) in the output"),
    // The tokens of this engine are bytes, and a token of the embedded model may have 8 of them.
    ("context_tokens", "16384", "the most tokens of prompt and output together; more is `failed`"),
    ("busy_threads", "0", "threads that spin during a `generate`"),
    ("resident_bytes", "0", "bytes of memory that a load allocates and touches"),
    ("leaked_bytes", "0", "bytes of memory that each `generate` allocates, touches and never frees"),
    ("score_offset", "0.0", "added to every log-probability"),
    ("most_likely", "true", "whether `score` gives the most likely ids when they are requested"),
    ("score_noise", "0.0", "the standard deviation of an error of each log-probability, fixed by the ids"),
    (
        "rounding",
        "{}",
        "by dtype: the standard deviation of the error of log-probabilities that are computed in it",
    ),
    ("near_ties", "0.0", "the share of positions where a second id is almost as likely as the likeliest one"),
    (
        "computes_in",
        "\"\"",
        "the dtype of all computations, whatever the engine reports; empty: that of the load",
    ),
    ("generates_in", "\"\"", "the dtype of the computations of `generate`; empty: that of all computations"),
    ("memory_bytes", "null", "the reported bytes of device memory in use; the peak is twice as much"),
    ("loaded", "{}", "changes to the facts of `loaded`"),
    ("facts", "{}", "changes to the answer to `facts`, which are not in `loaded`; null: the fact is missing"),
];

#[derive(Debug, Clone)]
pub struct Script(Map<String, Value>);

impl Default for Script {
    fn default() -> Self {
        let parse = |text| serde_json::from_str(text).unwrap_or(Value::Null);
        Self(SETTINGS.iter().map(|&(name, default, _)| (name.to_owned(), parse(default))).collect())
    }
}

impl Script {
    /// Replaces settings. `Err` names a setting that does not exist or has a value of the wrong type.
    pub fn apply(&mut self, settings: &Map<String, Value>) -> Result<(), String> {
        for (name, value) in settings {
            let &(_, default, _) = SETTINGS
                .iter()
                .find(|(known, ..)| known == name)
                .ok_or_else(|| format!("unknown option `{name}`"))?;
            let default: Value = serde_json::from_str(default).unwrap_or(Value::Null);
            if !default.is_null() && std::mem::discriminant(&default) != std::mem::discriminant(value) {
                return Err(format!("`{name}`: expected a value like `{default}`, found `{value}`"));
            }
            self.0.insert(name.clone(), value.clone());
        }
        self.check_faults()
    }

    /// Refuses unknown faults, because a misspelt fault would have no effect.
    fn check_faults(&self) -> Result<(), String> {
        let known = |name: &str| crate::fault::FAULTS.iter().any(|(known, _)| *known == name);
        match self.faults().find(|name| !known(name)) {
            Some(name) => Err(format!("unknown fault `{name}`")),
            None => Ok(()),
        }
    }

    pub fn faults(&self) -> impl Iterator<Item = &str> {
        self.text("fault").split(',').map(str::trim).filter(|name| !name.is_empty())
    }

    /// The script for the `generate` with this number. Before the number `at`, it has no faults and no wrong ids.
    pub fn at_generate(&self, number: u64) -> Self {
        let mut script = self.clone();
        if number < self.count("at") {
            script.0.insert("fault".to_owned(), "".into());
            script.0.insert("wrong_from".to_owned(), Value::Null);
        }
        script
    }

    /// Sets the dtype of the computations, unless the script has one.
    pub fn compute_in(&mut self, dtype: &str) {
        if self.text("computes_in").is_empty() {
            self.0.insert("computes_in".to_owned(), dtype.into());
        }
    }

    pub fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }

    pub fn count(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_default()
    }

    pub fn flag(&self, name: &str) -> bool {
        self.0[name] == true
    }

    pub fn value(&self, name: &str) -> &Value {
        &self.0[name]
    }
}

/// The fields of `defaults`, replaced by the fields of `changes`.
pub fn merged(mut defaults: Value, changes: &Value) -> Value {
    if let (Some(defaults), Some(changes)) = (defaults.as_object_mut(), changes.as_object()) {
        defaults.extend(changes.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
    defaults
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn applied(settings: Value) -> Result<Script, String> {
        let mut script = Script::default();
        script.apply(settings.as_object().unwrap()).map(|()| script)
    }

    #[test]
    fn every_default_of_a_script_is_valid_json() {
        for (name, default, _) in SETTINGS {
            assert!(serde_json::from_str::<Value>(default).is_ok(), "{name}");
        }
    }

    #[test]
    fn unknown_settings_and_wrong_types_are_refused_by_name() {
        assert_eq!(applied(json!({"mood": 1})).unwrap_err(), "unknown option `mood`");
        assert_eq!(applied(json!({"fault": "no_such_fault"})).unwrap_err(), "unknown fault `no_such_fault`");
        assert!(applied(json!({"at": "2"})).unwrap_err().starts_with("`at`: expected"));
        assert_eq!(applied(json!({"eos_at": 4, "at": 2})).unwrap().count("eos_at"), 4);
    }
}
