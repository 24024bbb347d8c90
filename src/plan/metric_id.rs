//! The name of a metric, as records and command lines have it. What each one is stands in `METRICS`.

/// One of METRICS. Code that means a certain metric uses a constant, so that no name is misspelt in silence; a metric that no
/// other code refers to needs none.
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

    pub const fn as_str(self) -> &'static str {
        self.0
    }
}
