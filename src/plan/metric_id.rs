//! The name of a metric, as in records and on command lines. `METRICS` describes each metric.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serialize};

/// The name of a metric in METRICS, or of an unknown metric in a record of a later version. Code refers to a metric by a
/// constant, so that the compiler finds a misspelt name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct MetricId(&'static str);

/// Defines constants for the metrics that code refers to. They include the headline metric of every scenario.
macro_rules! metric_constants {
    ($($constant:ident = $name:literal,)+) => {
        impl MetricId {
            $(pub const $constant: Self = Self($name);)+

            /// Every constant above; a test finds each in METRICS.
            #[cfg(test)]
            pub const NAMED: &[Self] = &[$(Self::$constant),+];
        }
    };
}

metric_constants! {
    LOAD = "load",
    COLD_START = "cold_start",
    TOTAL = "total",
    LATENCY_GROWTH = "latency_growth",
    MEMORY_GROWTH = "memory_growth",
    FIRST_RUN = "first_run",
    FIRST_TOKEN = "first_token",
    FIRST_TOKEN_SINCE_SENT = "first_token_since_sent",
    INTER_TOKEN = "inter_token",
    PREFILL_RATE = "prefill_rate",
    DECODE_RATE = "decode_rate",
    EFFECTIVE_RATE = "effective_rate",
    THROUGHPUT = "throughput",
    SERVED_RATE = "served_rate",
    TIME_PER_TOKEN = "time_per_token",
    HIGHEST_RATE = "highest_rate",
    QUERY = "query",
    PERPLEXITY = "perplexity",
    LOSS = "loss",
    BITS_PER_BYTE = "bits_per_byte",
    PERPLEXITY_CHANGE = "perplexity_change",
    DRIFT = "drift",
    PEAK_MEMORY = "peak_memory",
    MEMORY_ANONYMOUS = "memory_anonymous",
    MEMORY_FILE = "memory_file",
    MEMORY_OVERHEAD = "memory_overhead",
    DEVICE_MEMORY = "device_memory",
    JOULES_PER_TOKEN = "joules_per_token",
    BANDWIDTH_SHARE = "bandwidth_share",
    COMPUTE_SHARE = "compute_share",
    BANDWIDTH_DATA_SHEET_SHARE = "bandwidth_data_sheet_share",
    COMPUTE_DATA_SHEET_SHARE = "compute_data_sheet_share",
}

impl MetricId {
    /// Makes the id of an entry of METRICS.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The id for a name in a record, even if this version does not know the metric. Each name is stored once and never freed:
    /// records have only a small number of names.
    pub fn named(name: &str) -> Self {
        static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.get(name) {
            return Self(known);
        }
        let leaked: &'static str = Box::leak(name.into());
        names.insert(leaked);
        Self(leaked)
    }

    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for MetricId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl<'de> Deserialize<'de> for MetricId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::named(&String::deserialize(deserializer)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_id_is_recorded_by_name_and_unknown_names_are_kept() {
        let read = |text: &str| serde_json::from_str::<MetricId>(text).unwrap();
        assert_eq!(read("\"decode_rate\""), MetricId::DECODE_RATE);
        let later = read("\"of_a_later_version\"");
        assert_eq!((later, later.as_str()), (read("\"of_a_later_version\""), "of_a_later_version"));
        assert!(std::ptr::eq(later.as_str(), read("\"of_a_later_version\"").as_str()));
        assert_eq!(serde_json::to_string(&later).unwrap(), "\"of_a_later_version\"");
    }
}
