//! The name of a metric, as in records and on command lines. `METRICS` describes each metric.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The name of a metric: one of METRICS, or one from a record of a later version. Code refers to a metric by a constant, so that
/// the compiler finds a misspelt name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MetricId(&'static str);

impl MetricId {
    pub const LOAD: Self = Self("load");
    pub const COLD_START: Self = Self("cold_start");
    pub const TOTAL: Self = Self("total");
    pub const FIRST_TOKEN: Self = Self("first_token");
    pub const INTER_TOKEN: Self = Self("inter_token");
    pub const PREFILL_RATE: Self = Self("prefill_rate");
    pub const DECODE_RATE: Self = Self("decode_rate");
    pub const PEAK_MEMORY: Self = Self("peak_memory");
    pub const MEMORY_ANONYMOUS: Self = Self("memory_anonymous");
    pub const MEMORY_FILE: Self = Self("memory_file");
    pub const MEMORY_OVERHEAD: Self = Self("memory_overhead");
    pub const DEVICE_MEMORY: Self = Self("device_memory");
    pub const JOULES_PER_TOKEN: Self = Self("joules_per_token");
    pub const BANDWIDTH_SHARE: Self = Self("bandwidth_share");

    /// Every constant above; a test finds each in METRICS.
    #[cfg(test)]
    pub const NAMED: &[Self] = &[
        Self::LOAD,
        Self::COLD_START,
        Self::TOTAL,
        Self::FIRST_TOKEN,
        Self::INTER_TOKEN,
        Self::PREFILL_RATE,
        Self::DECODE_RATE,
        Self::PEAK_MEMORY,
        Self::MEMORY_ANONYMOUS,
        Self::MEMORY_FILE,
        Self::MEMORY_OVERHEAD,
        Self::DEVICE_MEMORY,
        Self::JOULES_PER_TOKEN,
        Self::BANDWIDTH_SHARE,
    ];

    /// For an entry of METRICS.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The metric of that name in a record, even if this version does not know it. Each name is kept once until the program
    /// ends: records have few names.
    pub fn named(name: &str) -> Self {
        static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.get(name) {
            return Self(known);
        }
        let kept: &'static str = Box::leak(name.into());
        names.insert(kept);
        Self(kept)
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

impl Serialize for MetricId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
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
    fn a_record_has_the_name_and_that_of_a_later_version_is_kept() {
        let read = |text: &str| serde_json::from_str::<MetricId>(text).unwrap();
        assert_eq!(read("\"decode_rate\""), MetricId::DECODE_RATE);
        let later = read("\"of_a_later_version\"");
        assert_eq!((later, later.as_str()), (read("\"of_a_later_version\""), "of_a_later_version"));
        assert!(std::ptr::eq(later.as_str(), read("\"of_a_later_version\"").as_str()));
        assert_eq!(serde_json::to_string(&later).unwrap(), "\"of_a_later_version\"");
    }
}
