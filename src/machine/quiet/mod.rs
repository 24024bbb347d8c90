//! How quiet the machine is: other activity around the run, in messages that name the remedy. Nothing here changes a result. A
//! noisy machine shows in the confidence intervals, and these messages say why they are wide.
//!
//! Every message begins with `machine: ` or `build: `: it depends on the moment and on this program's build, not on the measured
//! engines.

mod counters;

use std::path::PathBuf;

use super::device::Device;
use super::gpu::{self, Cuda, Gpu};
use super::kernel::{load_average, read};
use counters::{Counters, governors, stalled};

/// The shortest run whose shares are reported: a tenth of a core over a second is ten of the kernel's ticks of 10 ms.
const MIN_SECONDS: f64 = 1.0;
/// The share of the run's time above which a disturbance is reported. It is half of the 2 % below which no difference counts.
const SHARE: f64 = 0.01;
/// The fewest swapped pages that are reported: 1 MiB in pages of 4 KiB. An idle system swaps a few for other reasons.
const SWAPPED_PAGES: u64 = 256;
/// The least memory pressure that is reported, in per cent of ten seconds: `some avg10`. 1 is a tenth of a second.
const PRESSURE: f64 = 1.0;

/// An engine of a run, with the facts that these checks need.
#[derive(Debug, Clone, Default)]
pub struct Planned {
    /// The row's name. `None` for an engine without a row, such as a twin.
    pub label: Option<String>,
    pub program: Option<PathBuf>,
    pub device: Device,
    pub threads: u32,
    pub unavailable: bool,
}

/// The machine's counters at the beginning of a run.
#[derive(Debug, Clone)]
pub struct Quiet {
    counters: Counters,
    /// The most threads that any engine of the run uses.
    threads: u32,
}

impl Quiet {
    /// Takes milliseconds: it reads some files of /proc and /sys.
    pub fn probe(engines: &[Planned]) -> Self {
        let threads = engines.iter().map(|engine| engine.threads).max();
        Self { counters: Counters::read(), threads: threads.unwrap_or(0) }
    }

    /// The reasons against beginning now.
    pub fn before(&self, engines: &[Planned]) -> Vec<String> {
        let cores = self.counters.processor.map(|processor| processor.cores);
        let load = read("/proc/loadavg").and_then(|text| load_average(&text));
        let pressure = read("/proc/pressure/memory").and_then(|text| stalled(&text, "avg10="));
        let own = cfg!(debug_assertions).then(|| {
            "build: this orchestrate is a debug build, so what it costs by itself is not what `orchestrate overhead` promises; \
             cargo build --release"
                .to_string()
        });
        let mut found: Vec<String> = own.into_iter().chain(debug_builds(engines)).collect();
        found.extend(cores.zip(load).and_then(|(cores, [last_minute, ..])| busy_before(cores, last_minute)));
        found.extend(pressure.and_then(pressed_before));
        found.extend(governed(&governors()));
        if engines.iter().any(|engine| !engine.device.is_cpu()) {
            found.extend(gpu::before(&used_by(engines, gpu::probe(), &Cuda::here())));
        }
        found
    }

    /// The disturbances since `probe`. After an interrupt the CPU time of the ended engines is unknown and would count as
    /// other programs' work, so that message is left out.
    pub fn after(&self, interrupted: bool) -> Vec<String> {
        let threads = (!interrupted).then_some(self.threads);
        since(&self.counters, &Counters::read(), threads)
    }
}

/// The GPUs that engines of the run can compute on. If only CUDA knows which GPU a device is, every GPU may be used.
fn used_by(engines: &[Planned], gpus: Vec<Gpu>, cuda: &Cuda) -> Vec<Gpu> {
    let started = engines.iter().filter(|it| !it.unavailable && !it.device.is_cpu());
    let devices: Vec<&Device> = started.map(|engine| &engine.device).collect();
    let visible = cuda.visible(&gpus);
    let is_used = |gpu: &Gpu| {
        devices.iter().any(|device| match (device.cuda_index(), &visible) {
            (Some(index), Some(visible)) => visible.get(index as usize) == Some(&gpu.index),
            // The device is of another family, or has a name that only the engine knows.
            (None, Some(visible)) => visible.contains(&gpu.index),
            (_, None) => true,
        })
    };
    gpus.into_iter().filter(is_used).collect()
}

/// The share of wanted CPU time that the host withheld since boot.
pub(super) fn steal_share() -> Option<f64> {
    let processor = Counters::processor_now()?;
    let wanted = processor.busy.saturating_add(processor.stolen);
    // Ticks are too coarse for more digits.
    Some((processor.stolen as f64 / wanted.max(1) as f64 * 1e4).round() / 1e4)
}

/// The limit is half of the cores: below that the scheduler finds a free core. The average lags by a minute, so it also shows a
/// build that has just ended and may still hold the clock down.
fn busy_before(cores: u32, load: f64) -> Option<String> {
    (load > f64::from(cores) / 2.0).then(|| {
        format!(
            "machine: busy before anything was measured: a load average of {load:.2} over the last minute on {}; end what runs \
             besides, or wait (`top` shows it)",
            counted(cores, "core")
        )
    })
}

fn pressed_before(percent: f64) -> Option<String> {
    (percent >= PRESSURE).then(|| {
        format!(
            "machine: short of memory before anything was measured: processes waited for it {percent:.1} % of the last ten seconds; \
             end what holds it, or measure a smaller model"
        )
    })
}

fn governed(governors: &[String]) -> Option<String> {
    let slow: Vec<&String> = governors.iter().filter(|governor| *governor != "performance").collect();
    let first = slow.first()?;
    Some(format!(
        "machine: the frequency governor of {} is `{first}`, so clocks follow the load with a delay; \
         sudo cpupower frequency-set --governor performance",
        counted(slow.len(), "core")
    ))
}

/// Engines in a folder where cargo puts unoptimised builds.
fn debug_builds(engines: &[Planned]) -> impl Iterator<Item = String> {
    engines.iter().filter_map(|engine| {
        let (label, program) = (engine.label.as_ref()?, engine.program.as_ref()?);
        let parts: Vec<_> = program.parent()?.iter().collect();
        let is_debug = parts.iter().any(|part| *part == "target") && parts.last().is_some_and(|part| *part == "debug");
        is_debug.then(|| {
            format!(
                "build: `{label}` is a debug build (`{}`), many times slower than it can be; cargo build --release",
                program.display()
            )
        })
    })
}

/// `threads` is the number that the engines use, or `None` if their CPU time is not complete.
fn since(earlier: &Counters, later: &Counters, threads: Option<u32>) -> Vec<String> {
    let seconds = later.at.saturating_duration_since(earlier.at).as_secs_f64();
    let rise = |count: fn(&Counters) -> Option<u64>| count(later)?.checked_sub(count(earlier)?);
    let mut found = Vec::new();
    if seconds >= MIN_SECONDS {
        found.extend(threads.and_then(|threads| busy_meanwhile(earlier, later, threads)));
        found.extend(stolen(earlier, later));
        found.extend(rise(|it| it.memory_stall_us).and_then(|us| pressed(us, seconds)));
        found.extend(rise(|it| it.limited_us).and_then(|us| limited(us, seconds)));
    }
    found.extend(rise(|it| it.swapped_pages).and_then(swapped));
    found.extend(rise(|it| it.throttled).and_then(throttled));
    found
}

/// The cores that other programs used. Threads that compute one step together wait for the slowest, so a tenth of a core is too
/// much where the engines use every core. Unused cores take such work but share caches and memory, so only half of them count as
/// free.
fn busy_meanwhile(earlier: &Counters, later: &Counters, threads: u32) -> Option<String> {
    let (was, is) = (earlier.processor?, later.processor?);
    let busy = is.busy.checked_sub(was.busy)?;
    let all = busy + is.idle.saturating_sub(was.idle) + is.stolen.saturating_sub(was.stolen);
    let others = busy.saturating_sub(later.own_ticks.saturating_sub(earlier.own_ticks));
    let taken = others as f64 / all.max(1) as f64 * f64::from(is.cores);
    let spare = f64::from(is.cores.saturating_sub(threads));
    (taken > 0.1 + spare / 2.0).then(|| {
        format!(
            "machine: busy during the run: other programs used {taken:.1} of {} on average; end them and measure again \
             (`top` shows them)",
            counted(is.cores, "core")
        )
    })
}

fn stolen(earlier: &Counters, later: &Counters) -> Option<String> {
    let (was, is) = (earlier.processor?, later.processor?);
    let stolen = is.stolen.checked_sub(was.stolen)?;
    let wanted = is.busy.checked_sub(was.busy)? + stolen;
    let share = stolen as f64 / wanted.max(1) as f64;
    (share > SHARE).then(|| {
        format!(
            "machine: its host withheld {:.1} % of the CPU time that was wanted (steal); measure on a machine of its \
             own or at another time, and trust ratios more than figures",
            share * 100.0
        )
    })
}

fn pressed(us: u64, seconds: f64) -> Option<String> {
    let share = us as f64 / 1e6 / seconds;
    (share > SHARE).then(|| {
        format!(
            "machine: short of memory: processes waited for it {:.1} % of the run; end what holds it, or measure a smaller \
             model",
            share * 100.0
        )
    })
}

fn limited(us: u64, seconds: f64) -> Option<String> {
    let held = us as f64 / 1e6;
    (held / seconds > SHARE).then(|| {
        format!(
            "machine: the container's CPU limit held processes back for {held:.1} s of the run; raise it, or give engines \
             fewer threads (`--threads`)"
        )
    })
}

fn swapped(pages: u64) -> Option<String> {
    (pages >= SWAPPED_PAGES).then(|| {
        format!(
            "machine: swapping: {pages} pages went out or came back during the run; end what holds memory, or measure a \
             smaller model"
        )
    })
}

/// One event is enough: the clock after it differs from the clock before.
fn throttled(count: u64) -> Option<String> {
    (count > 0).then(|| {
        format!(
            "machine: too hot: the processor throttled itself during the run (its counters rose by {count}); let it cool, or \
             hold its clock lower (`sudo cpupower frequency-set --max`)"
        )
    })
}

fn counted(number: impl TryInto<u64> + Copy + std::fmt::Display, one: &str) -> String {
    let s = if number.try_into().is_ok_and(|number| number == 1) { "" } else { "s" };
    format!("{number} {one}{s}")
}

#[cfg(test)]
mod tests;
