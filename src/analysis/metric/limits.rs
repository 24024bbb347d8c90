//! The limits of the machine as the probes of a run measured them. The rates of each probe are kept separately, so that a
//! report can show changes between probes.

use std::collections::BTreeMap;

use machine_limits::{Copies, Limits, Operations};

use crate::machine::Device;
use crate::record::RunRecord;

/// The largest ratio between probes of a steady machine. A larger ratio means that its speed changed.
const MAX_STEADY_RATIO: f64 = 1.1;

/// The name of a limit: a device, a number of threads for the CPU, and the kind of work.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub device: Device,
    pub threads: Option<u32>,
    pub work: Work,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Bytes read, or bytes copied on a GPU.
    Memory,
    /// Operations of a compute unit, with its name in the record. With `from_cache` (`loads` in the record) the operands come
    /// from the nearest cache, else from registers.
    Unit { name: String, from_cache: bool },
}

#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    pub key: Key,
    /// The best rate of each probe in bytes or operations per second, in the order of the probes.
    pub probes: Vec<f64>,
}

/// Every limit that a run probed, in the order of the keys.
pub fn limits(record: &RunRecord) -> Vec<Limit> {
    let mut rates: BTreeMap<Key, Vec<f64>> = BTreeMap::new();
    for limits in &record.limits {
        for (key, rate) in best_rates(&limits.probed) {
            rates.entry(key).or_default().push(rate);
        }
    }
    rates.into_iter().map(|(key, probes)| Limit { key, probes }).collect()
}

/// The best rate of each limit in one probe.
fn best_rates(probed: &Limits) -> BTreeMap<Key, f64> {
    let mut best: BTreeMap<Key, f64> = BTreeMap::new();
    let mut add = |device: Device, threads: Option<u32>, work: Work, rate: Option<f64>| {
        let Some(rate) = rate else { return };
        let best_rate = best.entry(Key { device, threads, work }).or_insert(rate);
        *best_rate = rate.max(*best_rate);
    };
    for reads in &probed.reads {
        add(Device::cpu(), Some(reads.threads), Work::Memory, reads.bytes_per_second());
    }
    for unit in &probed.units {
        add(Device::cpu(), Some(unit.threads), Work::unit(unit), unit.per_second());
    }
    for gpu in &probed.gpus {
        let device = Device::cuda(gpu.index);
        let copies = gpu.copies.as_ref().and_then(Copies::bytes_per_second);
        add(device.clone(), None, Work::Memory, copies);
        for unit in &gpu.matrix {
            add(device.clone(), None, Work::unit(unit), unit.per_second());
        }
    }
    best
}

impl Work {
    pub fn unit(probed: &Operations) -> Self {
        Self::Unit { name: probed.unit.clone(), from_cache: probed.loads }
    }
}

impl Limit {
    /// The best rate of all probes, which shares refer to: other work on the machine can only make a probe slower.
    pub fn best(&self) -> f64 {
        self.probes.iter().copied().fold(0.0, f64::max)
    }

    /// The rate of the slowest probe.
    pub fn least(&self) -> f64 {
        self.probes.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Whether the rate changed during the run. Shares of the best rate then cannot be compared with those of another run.
    pub fn is_unsteady(&self) -> bool {
        self.best() > MAX_STEADY_RATIO * self.least()
    }
}

impl Key {
    /// The name in machine-readable reports: `memory`, `f32_fma`, `amx_bf16_with_loads`.
    pub fn name(&self) -> String {
        match &self.work {
            Work::Memory => "memory".into(),
            Work::Unit { name, from_cache: false } => name.clone(),
            Work::Unit { name, from_cache: true } => format!("{name}_with_loads"),
        }
    }

    pub fn rate_unit(&self) -> &'static str {
        match self.work {
            Work::Memory => "bytes/s",
            Work::Unit { .. } => "operations/s",
        }
    }
}
