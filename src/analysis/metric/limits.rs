//! The machine's limits as the probes of a run found them. Each probe is kept apart, so that a reader sees changes between
//! them.

use machine_limits::{Copies, Operations, Reads};

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
    let mut found: Vec<Limit> = Vec::new();
    for probed in record.limits.iter().map(|limits| &limits.probed) {
        let mut best: Vec<(Key, f64)> = Vec::new();
        let mut take = |device: &Device, threads: Option<u32>, of: Of, rate: Option<f64>| {
            let key = Key { device: device.clone(), threads, of };
            match (best.iter_mut().find(|(other, _)| *other == key), rate) {
                (Some((_, known)), Some(rate)) => *known = rate.max(*known),
                (None, Some(rate)) => best.push((key, rate)),
                (_, None) => {}
            }
        };
        let cpu = Device::cpu();
        for reads in &probed.reads {
            take(&cpu, Some(reads.threads), Of::Memory, Reads::bytes_per_second(reads));
        }
        for unit in &probed.units {
            let of = Of::Unit(unit.unit.clone(), unit.loads);
            take(&cpu, Some(unit.threads), of, Operations::per_second(unit));
        }
        for gpu in &probed.gpus {
            let device = Device::cuda(gpu.index);
            take(&device, None, Of::Memory, gpu.copies.as_ref().and_then(Copies::bytes_per_second));
            for unit in &gpu.matrix {
                let of = Of::Unit(unit.unit.clone(), unit.loads);
                take(&device, None, of, Operations::per_second(unit));
            }
        }
        for (key, rate) in best {
            match found.iter_mut().find(|limit| limit.key == key) {
                Some(limit) => limit.probes.push(rate),
                None => found.push(Limit { key, probes: vec![rate] }),
            }
        }
    }
    found.sort_by(|one, other| one.key.cmp(&other.key));
    found
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
