//! The machine's limits as the probes of a run found them. Each probe is kept apart, so that a reader sees changes between
//! them.

use std::collections::BTreeMap;

use machine_limits::{Copies, Limits, Operations};

use crate::machine::Device;
use crate::record::RunRecord;

/// The largest ratio between probes of a steady machine: memory bandwidth has plateaus.
const STEADY: f64 = 1.1;

/// The name of a limit: `cpu` with a number of threads, or a GPU (`cuda:0`) without one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub device: Device,
    pub threads: Option<u32>,
    pub of: Of,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Of {
    /// Bytes read, or bytes copied on a GPU.
    Memory,
    /// Operations of a unit, by its name in the record, and whether with loads.
    Unit(String, bool),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    pub key: Key,
    /// The best rate of each probe, in their order, per second.
    pub probes: Vec<f64>,
}

/// Every limit that a run probed, those of memory first.
pub fn limits(record: &RunRecord) -> Vec<Limit> {
    let mut found: BTreeMap<Key, Vec<f64>> = BTreeMap::new();
    for limits in &record.limits {
        for (key, rate) in best_rates(&limits.probed) {
            found.entry(key).or_default().push(rate);
        }
    }
    found.into_iter().map(|(key, probes)| Limit { key, probes }).collect()
}

/// The best rate of each limit in one probe.
fn best_rates(probed: &Limits) -> BTreeMap<Key, f64> {
    let mut best: BTreeMap<Key, f64> = BTreeMap::new();
    let mut take = |device: Device, threads: Option<u32>, of: Of, rate: Option<f64>| {
        let Some(rate) = rate else { return };
        let known = best.entry(Key { device, threads, of }).or_insert(rate);
        *known = rate.max(*known);
    };
    for reads in &probed.reads {
        take(Device::cpu(), Some(reads.threads), Of::Memory, reads.bytes_per_second());
    }
    for unit in &probed.units {
        take(Device::cpu(), Some(unit.threads), Of::unit(unit), unit.per_second());
    }
    for gpu in &probed.gpus {
        let device = Device::cuda(gpu.index);
        let copies = gpu.copies.as_ref().and_then(Copies::bytes_per_second);
        take(device.clone(), None, Of::Memory, copies);
        for unit in &gpu.matrix {
            take(device.clone(), None, Of::unit(unit), unit.per_second());
        }
    }
    best
}

impl Of {
    pub fn unit(probed: &Operations) -> Self {
        Self::Unit(probed.unit.clone(), probed.loads)
    }
}

impl Limit {
    /// The limit of shares: other work on the machine can only make a probe slower.
    pub fn best(&self) -> f64 {
        self.probes.iter().copied().fold(0.0, f64::max)
    }

    pub fn least(&self) -> f64 {
        self.probes.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Whether it changed during the run. A share of its best then cannot be compared with another run's.
    pub fn moved(&self) -> bool {
        self.best() > STEADY * self.least()
    }
}

impl Key {
    /// Its name for programs: `memory`, `f32_fma`, `amx_bf16_with_loads`.
    pub fn name(&self) -> String {
        match &self.of {
            Of::Memory => "memory".into(),
            Of::Unit(unit, false) => unit.clone(),
            Of::Unit(unit, true) => format!("{unit}_with_loads"),
        }
    }

    pub fn unit(&self) -> &'static str {
        match self.of {
            Of::Memory => "bytes/s",
            Of::Unit(..) => "operations/s",
        }
    }
}
