//! The tables SCENARIOS and SUITES. To add a scenario, add an entry.

use anyhow::{Result, bail};

use super::metric_id::MetricId;
use crate::engines::registry::Registry;

/// A named set of requests: their prompt lengths, the number of tokens to generate, and the number of requests in each block.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    pub kind: Kind,
    /// The prompt lengths: one workload for each.
    pub prompt_tokens: &'static [u32],
    pub max_new_tokens: u32,
    /// The number of measured requests in each block, interleaved with those of the other engines.
    pub rounds: u32,
    /// The metric by which engines are compared in this scenario.
    pub headline: MetricId,
}

/// The part of an engine's work that a scenario measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The launch itself: from the start of the process to its first token.
    Launch,
    /// Requests to an engine that is loaded and warm.
    Warm,
}

pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "load",
        about: "start the process, load the model, answer a first request cold (files may be in the page cache)",
        kind: Kind::Launch,
        prompt_tokens: &[16],
        max_new_tokens: 1,
        rounds: 1,
        headline: MetricId::COLD_START,
    },
    Scenario {
        name: "ttft",
        about: "time to first token over prompt lengths, warm",
        kind: Kind::Warm,
        prompt_tokens: &[16, 128, 512],
        max_new_tokens: 1,
        rounds: 5,
        headline: MetricId::FIRST_TOKEN,
    },
    Scenario {
        name: "prefill",
        about: "prompt tokens per second over a long prompt, warm",
        kind: Kind::Warm,
        prompt_tokens: &[1024],
        max_new_tokens: 1,
        rounds: 3,
        headline: MetricId::PREFILL_RATE,
    },
    Scenario {
        name: "decode",
        about: "tokens per second after the first token, one request at a time, warm; output length fixed",
        kind: Kind::Warm,
        prompt_tokens: &[32],
        max_new_tokens: 64,
        rounds: 3,
        headline: MetricId::DECODE_RATE,
    },
    Scenario {
        name: "depth",
        about: "decode after 8192 tokens, when each step also reads many keys and values; a run takes minutes",
        kind: Kind::Warm,
        prompt_tokens: &[8192],
        max_new_tokens: 32,
        rounds: 1,
        headline: MetricId::DECODE_RATE,
    },
];

#[derive(Debug)]
pub struct Suite {
    pub name: &'static str,
    pub about: &'static str,
    pub parts: &'static [SuitePart],
}

/// A scenario of a suite.
#[derive(Debug)]
pub struct SuitePart {
    pub scenario: &'static str,
    /// The prompt lengths; empty for all lengths of the scenario.
    pub prompt_tokens: &'static [u32],
}

impl SuitePart {
    const fn all(scenario: &'static str) -> Self {
        Self { scenario, prompt_tokens: &[] }
    }
}

pub const SUITES: &[Suite] = &[Suite {
    name: "default",
    about: "load, first token, prefill and decode, sized for the embedded model",
    parts: &[
        SuitePart::all("load"),
        SuitePart { scenario: "ttft", prompt_tokens: &[128, 512] },
        SuitePart::all("prefill"),
        SuitePart::all("decode"),
    ],
}];

impl Suite {
    pub fn scenarios(&self) -> Vec<Scenario> {
        let of_part = |part: &SuitePart| {
            let scenario = SCENARIOS.iter().find(|scenario| scenario.name == part.scenario)?;
            let lengths =
                if part.prompt_tokens.is_empty() { scenario.prompt_tokens } else { part.prompt_tokens };
            Some(Scenario { prompt_tokens: lengths, ..*scenario })
        };
        self.parts.iter().filter_map(of_part).collect()
    }

    /// The scenarios, with their prompt lengths where these are not all: `load, ttft 128, ttft 512`.
    pub fn describe(&self) -> String {
        let of_part = |part: &SuitePart| match part.prompt_tokens {
            [] => vec![part.scenario.to_string()],
            lengths => lengths.iter().map(|length| format!("{} {length}", part.scenario)).collect(),
        };
        self.parts.iter().flat_map(of_part).collect::<Vec<_>>().join(", ")
    }
}

/// The scenario with this name, or the scenarios of the suite with this name.
pub fn named(name: &str) -> Option<Vec<Scenario>> {
    if let Some(suite) = SUITES.iter().find(|suite| suite.name == name) {
        return Some(suite.scenarios());
    }
    SCENARIOS.iter().find(|scenario| scenario.name == name).map(|scenario| vec![*scenario])
}

/// Checks the suites that engines define: each scenario must exist, and each name must be new.
pub fn check_suites(registry: &Registry) -> Result<()> {
    for (name, engine, suite) in registry.suites() {
        let engine = &engine.manifest.name;
        if named(name).is_some() {
            bail!("engine `{engine}`: `suites.{name}`: a scenario or suite already has this name");
        }
        if let Some(unknown) = suite.scenarios.iter().find(|it| named(it).is_none()) {
            bail!("engine `{engine}`: `suites.{name}.scenarios`: no scenario `{unknown}`");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::manifest::OwnSuite;

    #[test]
    fn every_scenario_of_a_suite_exists() {
        for suite in SUITES {
            let count = named(suite.name).map(|scenarios| scenarios.len());
            assert_eq!(count, Some(suite.parts.len()), "{}", suite.name);
        }
    }

    #[test]
    fn a_suite_may_have_fewer_prompt_lengths_than_its_scenario() {
        let lengths = |name: &str| {
            let scenarios = named(name).unwrap();
            scenarios.iter().find(|it| it.name == "ttft").unwrap().prompt_tokens
        };
        assert_eq!((lengths("default"), lengths("ttft")), (&[128, 512][..], &[16, 128, 512][..]));
        assert_eq!(SUITES[0].describe(), "load, ttft 128, ttft 512, prefill, decode");
    }

    #[test]
    fn an_engines_suite_with_a_taken_name_or_unknown_scenario_is_refused() {
        let registry = |suite: &str, scenario: &str| {
            let mut engine = crate::engines::manifest::embedded().unwrap().remove(0);
            let about = String::from("x");
            let own = OwnSuite { about, scenarios: vec![scenario.into()] };
            engine.manifest.name = "toy".into();
            engine.manifest.suites = [(suite.to_string(), own)].into_iter().collect();
            Registry { engines: vec![engine], root: None }
        };
        let refused = |suite, scenario| check_suites(&registry(suite, scenario)).unwrap_err().to_string();
        assert!(check_suites(&registry("parts", "load")).is_ok());
        let taken = "engine `toy`: `suites.decode`: a scenario or suite already has this name";
        assert_eq!(refused("decode", "load"), taken);
        assert_eq!(refused("parts", "nap"), "engine `toy`: `suites.parts.scenarios`: no scenario `nap`");
    }
}
