//! Which metrics there are, by the names that records and command lines use. What each is stands in `METRICS`.

/// The type and the name of each: a metric is one line.
macro_rules! ids {
    ($($id:ident = $name:literal,)+) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum MetricId {
            $($id,)+
        }

        impl MetricId {
            /// In the order in which tables have them.
            pub const ALL: &[Self] = &[$(Self::$id,)+];

            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$id => $name,)+
                }
            }
        }
    };
}

ids! {
    Load = "load",
    ColdStart = "cold_start",
    Total = "total",
    FirstRun = "first_run",
    FirstToken = "first_token",
    InterToken = "inter_token",
    PrefillRate = "prefill_rate",
    DecodeRate = "decode_rate",
    BandwidthShare = "bandwidth_share",
    ComputeShare = "compute_share",
    Throughput = "throughput",
    PeakMemory = "peak_memory",
    MemoryAnonymous = "memory_anonymous",
    MemoryFile = "memory_file",
    MemoryOverhead = "memory_overhead",
    DeviceMemory = "device_memory",
    JoulesPerToken = "joules_per_token",
}
