//! How quiet the machine is: other activity around the run, in messages that name the remedy. Nothing here changes a result. On
//! a noisy machine the confidence intervals are wide, and these messages say why.
//!
//! Every message begins with `machine: ` or `build: `: the cause is the machine at this time or a build, not an
//! engine.

mod counters;

pub use counters::busy_ticks;

use std::path::PathBuf;

use super::device::Device;
use super::gpu::{self, Cuda, Gpu};
use super::kernel::{load_average, read};
use crate::text::plural;
use counters::{Counters, governors, stall_field};

/// The shortest run whose shares are reported: a tenth of a core over a second is ten of the kernel's ticks of 10 ms.
const MIN_SECONDS: f64 = 1.0;
/// The share of the run's time above which a disturbance is reported: half of the 2 % that `faster` and `slower` require.
const MIN_SHARE: f64 = 0.01;
/// The fewest swapped pages that are reported: 1 MiB in pages of 4 KiB. An idle system swaps a few for other reasons.
const MIN_SWAPPED_PAGES: u64 = 256;
/// The least memory pressure that is reported, in per cent of ten seconds: `some avg10`. 1 is a tenth of a second.
const MIN_PRESSURE_PERCENT: f64 = 1.0;

/// An engine of a run, with the facts that these checks need.
#[derive(Debug, Clone, Default)]
pub struct PlannedEngine {
    /// The row's name. `None` for an engine without a row, such as a twin.
    pub label: Option<String>,
    pub program: Option<PathBuf>,
    pub device: Device,
    pub threads: u32,
    pub unavailable: bool,
}

/// The machine's counters at the beginning of a run.
#[derive(Debug, Clone)]
pub struct QuietCheck {
    counters: Counters,
    /// The most threads that any engine of the run uses.
    threads: u32,
}

impl QuietCheck {
    /// Reads the counters from /proc and /sys, which takes milliseconds.
    pub fn probe(engines: &[PlannedEngine]) -> Self {
        let threads = engines.iter().map(|engine| engine.threads).max();
        Self { counters: Counters::read(), threads: threads.unwrap_or(0) }
    }

    /// The reasons against measuring now. `when`: the time as a message names it.
    pub fn warnings_before(&self, engines: &[PlannedEngine], when: &str) -> Vec<String> {
        let cores = self.counters.processor.map(|processor| processor.cores);
        let load = read("/proc/loadavg").and_then(|text| load_average(&text));
        let pressure = read("/proc/pressure/memory").and_then(|text| stall_field(&text, "avg10="));
        let text = "build: this orchestrate is a debug build, so its overhead is larger than a release build's; \
                   run `cargo build --release`";
        let own_build = cfg!(debug_assertions).then(|| text.to_string());
        let mut warnings: Vec<String> = own_build.into_iter().chain(debug_builds(engines)).collect();
        let busy =
            cores.zip(load).and_then(|(cores, [last_minute, ..])| busy_before(cores, last_minute, when));
        warnings.extend(busy);
        warnings.extend(pressure.and_then(|percent| memory_pressure_before(percent, when)));
        warnings.extend(slow_governors(&governors()));
        if engines.iter().any(|engine| !engine.device.is_cpu()) {
            warnings.extend(gpu::warnings(&used_by(engines, gpu::probe(), &Cuda::of_environment())));
        }
        warnings
    }

    /// The disturbances since `probe`. After an interrupt the CPU time of the ended engines is unknown and would count as
    /// other programs' work, so the message about other programs is left out.
    pub fn warnings_after(&self, interrupted: bool) -> Vec<String> {
        let threads = (!interrupted).then_some(self.threads);
        warnings_between(&self.counters, &Counters::read(), threads)
    }
}

/// The GPUs that engines of the run can compute on. If only CUDA knows which GPU a device is, every GPU may be used.
fn used_by(engines: &[PlannedEngine], gpus: Vec<Gpu>, cuda: &Cuda) -> Vec<Gpu> {
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

/// The share of requested CPU time that the host withheld since boot.
pub(super) fn steal_share() -> Option<f64> {
    let processor = Counters::processor_now()?;
    let requested = processor.busy.saturating_add(processor.stolen);
    // Ticks are too coarse for more digits.
    Some((processor.stolen as f64 / requested.max(1) as f64 * 1e4).round() / 1e4)
}

/// Warns above half of the cores: below that the scheduler finds a free core. The average covers a minute, so it also shows a
/// build that has just ended, after which clocks may still be low.
fn busy_before(cores: u32, load: f64, when: &str) -> Option<String> {
    (load > f64::from(cores) / 2.0).then(|| {
        format!(
            "machine: busy {when}: the load average of the last minute is {load:.2} on {}; end other programs, or \
             wait (`top` shows them)",
            plural(cores, "core")
        )
    })
}

fn memory_pressure_before(percent: f64, when: &str) -> Option<String> {
    (percent >= MIN_PRESSURE_PERCENT).then(|| {
        format!(
            "machine: short of memory {when}: processes waited for memory {percent:.1} % of the last ten seconds; \
             end programs that hold memory, or measure a smaller model"
        )
    })
}

fn slow_governors(governors: &[String]) -> Option<String> {
    let slow: Vec<&String> = governors.iter().filter(|governor| *governor != "performance").collect();
    let first = slow.first()?;
    Some(format!(
        "machine: the frequency governor of {} is `{first}`, so clocks follow the load with a delay; \
         run `sudo cpupower frequency-set --governor performance`",
        plural(slow.len(), "core")
    ))
}

/// Warns about engines in a folder where cargo puts unoptimised builds.
fn debug_builds(engines: &[PlannedEngine]) -> impl Iterator<Item = String> {
    engines.iter().filter_map(|engine| {
        let (label, program) = (engine.label.as_ref()?, engine.program.as_ref()?);
        let parts: Vec<_> = program.parent()?.iter().collect();
        let is_debug = parts.iter().any(|part| *part == "target") && parts.last().is_some_and(|part| *part == "debug");
        is_debug.then(|| {
            format!(
                "build: `{label}` is a debug build (`{}`), many times slower than it can be; run `cargo build --release`",
                program.display()
            )
        })
    })
}

/// The warnings about the time between two readings. `threads` is the number of threads that the engines use, or `None` if
/// their CPU time is incomplete.
fn warnings_between(earlier: &Counters, later: &Counters, threads: Option<u32>) -> Vec<String> {
    let seconds = later.at.saturating_duration_since(earlier.at).as_secs_f64();
    let rise = |count: fn(&Counters) -> Option<u64>| count(later)?.checked_sub(count(earlier)?);
    let mut warnings = Vec::new();
    if seconds >= MIN_SECONDS {
        warnings.extend(threads.and_then(|threads| busy_during(earlier, later, threads)));
        warnings.extend(steal_warning(earlier, later));
        warnings.extend(rise(|it| it.memory_stall_us).and_then(|us| memory_pressure(us, seconds)));
        warnings.extend(rise(|it| it.limited_us).and_then(|us| limit_warning(us, seconds)));
    }
    warnings.extend(rise(|it| it.swapped_pages).and_then(swap_warning));
    warnings.extend(rise(|it| it.throttle_count).and_then(heat_warning));
    warnings
}

/// Warns about other programs during the run. The threads of an engine wait for the slowest one, so a tenth of a core is too much
/// if the engines use every core. Work on unused cores disturbs less, but caches and memory are shared. So other programs may
/// use half of the unused cores.
fn busy_during(earlier: &Counters, later: &Counters, threads: u32) -> Option<String> {
    let (start, end) = (earlier.processor?, later.processor?);
    let busy = end.busy.checked_sub(start.busy)?;
    let all = busy + end.idle.saturating_sub(start.idle) + end.stolen.saturating_sub(start.stolen);
    let others = busy.saturating_sub(later.own_ticks.saturating_sub(earlier.own_ticks));
    let taken = others as f64 / all.max(1) as f64 * f64::from(end.cores);
    let spare = f64::from(end.cores.saturating_sub(threads));
    (taken > 0.1 + spare / 2.0).then(|| {
        format!(
            "machine: busy during the run: other programs used {taken:.1} of {} on average; end them and measure again \
             (`top` shows them)",
            plural(end.cores, "core")
        )
    })
}

fn steal_warning(earlier: &Counters, later: &Counters) -> Option<String> {
    let (start, end) = (earlier.processor?, later.processor?);
    let stolen = end.stolen.checked_sub(start.stolen)?;
    let requested = end.busy.checked_sub(start.busy)? + stolen;
    let share = stolen as f64 / requested.max(1) as f64;
    (share > MIN_SHARE).then(|| {
        format!(
            "machine: the host withheld {:.1} % of the requested CPU time (steal); measure on a dedicated machine or \
             at another time, and rely on ratios rather than on single values",
            share * 100.0
        )
    })
}

fn memory_pressure(us: u64, seconds: f64) -> Option<String> {
    let share = us as f64 / 1e6 / seconds;
    (share > MIN_SHARE).then(|| {
        format!(
            "machine: short of memory: processes waited for memory {:.1} % of the run; end programs that hold memory, or \
             measure a smaller model",
            share * 100.0
        )
    })
}

fn limit_warning(us: u64, seconds: f64) -> Option<String> {
    let paused = us as f64 / 1e6;
    (paused / seconds > MIN_SHARE).then(|| {
        format!(
            "machine: the container's CPU limit paused processes for {paused:.1} s of the run; raise the limit, or give \
             engines fewer threads (`--threads`)"
        )
    })
}

fn swap_warning(pages: u64) -> Option<String> {
    (pages >= MIN_SWAPPED_PAGES).then(|| {
        format!(
            "machine: swapping: {pages} pages were written or read during the run; end programs that hold memory, or \
             measure a smaller model"
        )
    })
}

/// One event is enough: the clock after it differs from the clock before.
fn heat_warning(count: u64) -> Option<String> {
    (count > 0).then(|| {
        format!(
            "machine: too hot: the processor throttled itself during the run (its counters rose by {count}); let it cool, or \
             limit its clock (`sudo cpupower frequency-set --max`)"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::counters::ProcessorTicks;
    use super::*;

    /// A minute on two cores, which has 12000 ticks: of this program, of other programs, and stolen ones.
    fn minute(own: u64, others: u64, stolen: u64) -> (Counters, Counters) {
        let at = Instant::now();
        let start = ProcessorTicks { busy: 500, idle: 9000, stolen: 7, cores: 2 };
        let busy = own + others;
        let end = ProcessorTicks {
            busy: start.busy + busy,
            idle: start.idle + 12_000 - busy - stolen,
            stolen: start.stolen + stolen,
            cores: 2,
        };
        let earlier = Counters {
            at,
            processor: Some(start),
            own_ticks: 90,
            swapped_pages: Some(1000),
            memory_stall_us: Some(5_000_000),
            limited_us: Some(100),
            throttle_count: Some(3),
        };
        let later = Counters {
            at: at + Duration::from_secs(60),
            processor: Some(end),
            own_ticks: 90 + own,
            ..earlier.clone()
        };
        (earlier, later)
    }

    /// The only message of a minute in which the engines used both cores.
    fn message(earlier: &Counters, later: &Counters) -> String {
        let mut warnings = warnings_between(earlier, later, Some(2));
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        warnings.remove(0)
    }

    #[test]
    fn a_run_on_a_quiet_machine_gets_no_warning() {
        let (earlier, later) = minute(11_000, 300, 50);
        assert_eq!(warnings_between(&earlier, &later, Some(2)), Vec::<String>::new());
    }

    #[test]
    fn other_programs_are_reported_in_cores_without_the_runs_own_work() {
        let (earlier, later) = minute(6_000, 3_000, 0);
        let warning = message(&earlier, &later);
        assert!(
            warning.starts_with("machine: busy during the run: other programs used 0.5 of 2 cores"),
            "{warning}"
        );
        assert!(warning.contains("`top`"), "{warning}");
    }

    #[test]
    fn an_interrupted_run_reports_everything_except_other_programs() {
        let (earlier, later) = minute(6_000, 3_000, 500);
        let warnings = warnings_between(&earlier, &later, None);
        assert!(warnings.len() == 1 && warnings[0].contains("steal"), "{warnings:?}");
    }

    #[test]
    fn other_programs_may_use_half_of_the_spare_cores() {
        let (earlier, later) = minute(5_000, 3_000, 0);
        assert_eq!(warnings_between(&earlier, &later, Some(1)), Vec::<String>::new());
        let (earlier, later) = minute(5_000, 5_000, 0);
        assert!(warnings_between(&earlier, &later, Some(1))[0].contains("0.8 of 2 cores"));
        // More threads than cores leave no core free, and never a negative number.
        assert_eq!(warnings_between(&earlier, &later, Some(64)).len(), 1);
    }

    #[test]
    fn steal_is_a_share_of_the_requested_time() {
        let (earlier, later) = minute(1_000, 0, 30);
        assert!(message(&earlier, &later).contains("withheld 2.9 %"), "{:?}", message(&earlier, &later));
    }

    #[test]
    fn swapping_heat_memory_and_limits_are_reported_with_numbers() {
        let (earlier, quiet) = minute(9_000, 0, 0);
        let later = Counters { swapped_pages: Some(1300), ..quiet.clone() };
        assert!(message(&earlier, &later).contains("300 pages"));
        let later = Counters { throttle_count: Some(5), ..quiet.clone() };
        assert!(message(&earlier, &later).contains("rose by 2"));
        let later = Counters { memory_stall_us: Some(8_000_000), ..quiet.clone() };
        assert!(message(&earlier, &later).contains("waited for memory 5.0 % of the run"));
        let later = Counters { limited_us: Some(6_000_100), ..quiet };
        assert!(message(&earlier, &later).contains("paused processes for 6.0 s"));
    }

    #[test]
    fn a_run_under_a_second_reports_counts_and_no_shares() {
        let (earlier, later) = minute(6_000, 3_000, 500);
        let later =
            Counters { at: earlier.at + Duration::from_millis(900), throttle_count: Some(4), ..later };
        assert!(message(&earlier, &later).contains("too hot"));
    }

    #[test]
    fn absent_or_decreasing_counters_give_no_warning() {
        let (earlier, later) = minute(6_000, 3_000, 500);
        let nothing = Counters {
            processor: None,
            swapped_pages: None,
            memory_stall_us: None,
            limited_us: None,
            throttle_count: None,
            ..later.clone()
        };
        assert_eq!(warnings_between(&nothing, &later, Some(2)), Vec::<String>::new());
        assert_eq!(warnings_between(&earlier, &nothing, Some(2)), Vec::<String>::new());
        // The counts of a core vanish when it is taken offline.
        let back = Counters { at: later.at + Duration::from_secs(60), ..earlier };
        assert_eq!(warnings_between(&later, &back, Some(2)), Vec::<String>::new());
    }

    #[test]
    fn a_load_above_half_the_cores_is_reported_before_the_run() {
        assert_eq!(busy_before(4, 2.0, "before the run"), None);
        let warning = busy_before(4, 2.5, "before the run").unwrap();
        assert!(
            warning.starts_with("machine: busy before the run: ")
                && warning.contains("2.50")
                && warning.contains("4 cores"),
            "{warning}"
        );
    }

    #[test]
    fn memory_pressure_and_governors_are_reported_before_the_run() {
        assert_eq!(memory_pressure_before(0.99, "now"), None);
        let warning = memory_pressure_before(12.0, "now").unwrap();
        assert!(warning.contains(" now: ") && warning.contains("12.0 % of the last ten"), "{warning}");
        let governors =
            |names: &[&str]| slow_governors(&names.iter().map(|name| name.to_string()).collect::<Vec<_>>());
        assert_eq!([governors(&[]), governors(&["performance", "performance"])], [None, None]);
        let warning = governors(&["performance", "powersave"]).unwrap();
        assert!(warning.contains("of 1 core is `powersave`"), "{warning}");
        assert!(warning.ends_with("run `sudo cpupower frequency-set --governor performance`"), "{warning}");
    }

    #[test]
    fn a_debug_build_of_an_engine_is_reported_once() {
        let engine = |label: Option<&str>, program: &str| PlannedEngine {
            label: label.map(String::from),
            program: Some(program.into()),
            ..PlannedEngine::default()
        };
        let engines = [
            engine(Some("quick"), "/x/target/release/quick"),
            engine(Some("slow"), "/x/target/debug/slow"),
            engine(None, "/x/target/debug/slow"),
            engine(Some("word"), "/debug/target/word"),
            PlannedEngine::default(),
        ];
        let warnings: Vec<String> = debug_builds(&engines).collect();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("build: `slow` is a debug build"), "{warnings:?}");
    }

    #[test]
    fn only_gpus_that_engines_of_the_plan_can_see_count_for_the_plan() {
        let gpus = || (0..4).map(|index| Gpu { index, ..Gpu::default() }).collect::<Vec<_>>();
        let used = |devices: &[&str], order: &str, visible: Option<&str>| {
            let on = |device: &&str| PlannedEngine { device: (*device).into(), ..PlannedEngine::default() };
            let engines: Vec<PlannedEngine> = devices.iter().map(on).collect();
            let cuda = Cuda { device_order: order.into(), visible_devices: visible.map(String::from) };
            used_by(&engines, gpus(), &cuda).iter().map(|gpu| gpu.index).collect::<Vec<_>>()
        };
        let by_slot = "PCI_BUS_ID";
        assert_eq!(used(&["cuda"], by_slot, None), [0]);
        assert_eq!(used(&["cpu", "cuda:1", "cuda:3"], by_slot, None), [1, 3]);
        assert_eq!(used(&["cuda:1"], by_slot, Some("3,2")), [2]);
        assert_eq!(used(&["cuda", "cuda:1"], by_slot, Some("-1")), [0; 0]);
        assert_eq!(used(&["cuda:9"], by_slot, None), [0; 0]);
        assert_eq!(used(&["cpu"], by_slot, None), [0; 0]);
        // Only CUDA or the engine knows which GPU the name means.
        assert_eq!(used(&["cuda"], "FASTEST_FIRST", None), [0, 1, 2, 3]);
        assert_eq!(used(&["gpu"], by_slot, Some("1,2")), [1, 2]);
    }

    #[test]
    fn every_warning_about_this_machine_has_a_known_prefix() {
        let quiet = QuietCheck::probe(&[]);
        let interrupted = false;
        let warnings = [quiet.warnings_before(&[], "now"), quiet.warnings_after(interrupted)].concat();
        assert!(
            warnings.iter().all(|it| it.starts_with("machine: ") || it.starts_with("build: ")),
            "{warnings:?}"
        );
        assert_eq!(
            warnings.iter().any(|it| it.contains("this orchestrate")),
            cfg!(debug_assertions),
            "{warnings:?}"
        );
    }
}
