//! Energy from the machine's own counters: of processors (RAPL, through the kernel's powercap) and of GPUs. Without readable
//! counters the energy is unknown, never zero.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::gpu;
use super::kernel::read;
use crate::machine::observed::{Energy, PACKAGE_PREFIX};

const POWERCAP: &str = "/sys/class/powercap";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedCounter {
    /// `package-0`, `package-0 dram`, `gpu-0`.
    pub name: String,
    /// The reason why the counter cannot be read, if any.
    #[serde(default)]
    pub trouble: Option<String>,
}

/// All counters of this machine. Unreadable counters are listed for processors, but not for GPUs.
pub fn list_counters() -> Vec<ListedCounter> {
    let of_zone =
        |zone: Zone| ListedCounter { trouble: zone.error().map(|kind| kind.to_string()), name: zone.name };
    let of_gpu = |(name, _)| ListedCounter { name, trouble: None };
    let zones = zones(Path::new(POWERCAP)).into_iter();
    zones.map(of_zone).chain(gpu::energy().into_iter().map(of_gpu)).collect()
}

/// The values of the counters at one time.
#[derive(Debug, Clone)]
pub struct Reading {
    at: Instant,
    counters: Vec<Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Counter {
    name: String,
    microjoules: u64,
    /// The value at which the counter starts again at zero.
    range: Option<u64>,
}

/// A processor package, or its memory, with an energy counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    /// `package-0`, `package-0 dram`.
    pub name: String,
    folder: PathBuf,
}

impl Reading {
    /// Reads the processors' readable counters. The code that adds them up checks that no listed counter is missing.
    pub fn of_processors() -> Self {
        let counters = zones(Path::new(POWERCAP)).into_iter().filter_map(|zone| zone.read().ok());
        Self { counters: counters.collect(), at: Instant::now() }
    }

    /// Reads the GPUs' counters too. This asks the driver, which may be slow or hang.
    pub fn with_gpus() -> Self {
        let processors = Self::of_processors().counters.into_iter();
        let gpus = gpu::energy().into_iter();
        let gpus = gpus.map(|(name, microjoules)| Counter { name, microjoules, range: None });
        Self { counters: processors.chain(gpus).collect(), at: Instant::now() }
    }

    pub fn is_empty(&self) -> bool {
        self.counters.is_empty()
    }

    /// The increase of each counter since the earlier reading.
    pub fn since(&self, earlier: &Self) -> Vec<Energy> {
        let elapsed_ns = self.at.saturating_duration_since(earlier.at).as_nanos() as u64;
        let increases = self.counters.iter().filter_map(|counter| {
            let before = earlier.counters.iter().find(|it| it.name == counter.name)?;
            let microjoules = counter.since(before.microjoules)?;
            Some(Energy { counter: counter.name.clone(), microjoules, elapsed_ns })
        });
        increases.collect()
    }
}

impl Counter {
    /// The increase of this counter. A lower value means exactly one wrap, because a wrap takes minutes even at the highest
    /// power.
    fn since(&self, before: u64) -> Option<u64> {
        let wrapped = || self.range?.checked_sub(before)?.checked_add(self.microjoules);
        self.microjoules.checked_sub(before).or_else(wrapped)
    }
}

/// The processors' packages (`intel-rapl:0`), and their memory if it has a counter. Other parts (`intel-rapl:0:0`) are left out,
/// because their package's counter includes them. So is `psys`, which counts the whole platform again.
pub fn zones(powercap: &Path) -> Vec<Zone> {
    let mut zones = Vec::new();
    for folder in folders_named(powercap, |name| name.matches(':').count() == 1) {
        let Some(package) = name_of(&folder).filter(|name| name.starts_with(PACKAGE_PREFIX)) else {
            continue;
        };
        let prefix = folder.file_name().and_then(|name| name.to_str()).map(|name| format!("{name}:"));
        for part in
            folders_named(powercap, |name| prefix.as_ref().is_some_and(|prefix| name.starts_with(prefix)))
        {
            if name_of(&part).as_deref() == Some("dram") {
                zones.push(Zone { name: format!("{package} dram"), folder: part });
            }
        }
        zones.push(Zone { name: package, folder });
    }
    zones.sort_by(|a, b| a.name.cmp(&b.name));
    zones
}

fn folders_named(powercap: &Path, is_wanted_name: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(powercap).into_iter().flatten().flatten();
    let is_wanted = |name: &str| name.starts_with("intel-rapl:") && is_wanted_name(name);
    entries.filter(|it| it.file_name().to_str().is_some_and(is_wanted)).map(|it| it.path()).collect()
}

fn name_of(folder: &Path) -> Option<String> {
    read(folder.join("name")).map(|name| name.trim().to_string())
}

impl Zone {
    fn read(&self) -> Result<Counter, ErrorKind> {
        let number = |file: &str| -> Result<u64, ErrorKind> {
            let text = std::fs::read_to_string(self.folder.join(file)).map_err(|error| error.kind())?;
            text.trim().parse().map_err(|_| ErrorKind::InvalidData)
        };
        Ok(Counter {
            name: self.name.clone(),
            microjoules: number("energy_uj")?,
            range: number("max_energy_range_uj").ok(),
        })
    }

    /// The reason why the counter cannot be read, if any.
    fn error(&self) -> Option<ErrorKind> {
        self.read().err()
    }
}

/// The command that allows reading. Only root may read by default, because a processor's power can reveal cryptographic keys.
pub const PERMISSION_COMMAND: &str = "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj";

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder like the kernel's, with these zones and values.
    fn powercap(zones: &[(&str, &str, Option<&str>)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (folder, name, energy) in zones {
            let folder = root.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("name"), format!("{name}\n")).unwrap();
            std::fs::write(folder.join("max_energy_range_uj"), "262143328850\n").unwrap();
            if let Some(energy) = energy {
                std::fs::write(folder.join("energy_uj"), format!("{energy}\n")).unwrap();
            }
        }
        root
    }

    #[test]
    fn energy_of_packages_and_memory_is_counted_once() {
        let powercap = powercap(&[
            ("intel-rapl:0", "package-1", Some("5")),
            ("intel-rapl:0:0", "core", Some("4")),
            ("intel-rapl:0:1", "dram", Some("3")),
            ("intel-rapl:1", "package-0", Some("7")),
            ("intel-rapl:2", "psys", Some("99")),
            ("intel-rapl-mmio:0", "package-0", Some("7")),
            ("dtpm", "x", None),
        ]);
        let zones = zones(powercap.path());
        let names: Vec<&str> = zones.iter().map(|zone| zone.name.as_str()).collect();
        assert_eq!(names, ["package-0", "package-1", "package-1 dram"]);
        let counted: Vec<u64> = zones.iter().map(|zone| zone.read().unwrap().microjoules).collect();
        assert_eq!(counted, [7, 5, 3]);
    }

    #[test]
    fn an_unreadable_counter_is_listed_with_its_reason() {
        let powercap =
            powercap(&[("intel-rapl:0", "package-0", None), ("intel-rapl:1", "package-1", Some("x"))]);
        let errors: Vec<_> = zones(powercap.path()).iter().map(Zone::error).collect();
        assert_eq!(errors, [Some(ErrorKind::NotFound), Some(ErrorKind::InvalidData)]);
        assert_eq!(zones(&powercap.path().join("missing")), []);
    }

    #[test]
    fn a_wrapped_counter_continues_and_a_lower_one_without_range_is_unknown() {
        let counter = |microjoules, range| Counter { name: "package-0".into(), microjoules, range };
        assert_eq!(counter(900, Some(1000)).since(400), Some(500));
        assert_eq!(counter(100, Some(1000)).since(900), Some(200));
        assert_eq!(counter(100, None).since(900), None);
        // An impossible range.
        assert_eq!(counter(100, Some(50)).since(900), None);
    }

    #[test]
    fn two_readings_give_the_increase_of_each_counter() {
        let at = Instant::now();
        let counter =
            |&(name, microjoules): &(&str, u64)| Counter { name: name.into(), microjoules, range: None };
        let reading = |seconds, counters: &[(&str, u64)]| Reading {
            at: at + std::time::Duration::from_secs(seconds),
            counters: counters.iter().map(counter).collect(),
        };
        let earlier = reading(0, &[("package-0", 10), ("gpu-0", 5)]);
        let increases = reading(2, &[("gpu-0", 9), ("gpu-1", 1)]).since(&earlier);
        assert_eq!(
            increases,
            [Energy { counter: "gpu-0".into(), microjoules: 4, elapsed_ns: 2_000_000_000 }]
        );
    }
}
