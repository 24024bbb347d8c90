use std::time::{Duration, Instant};

use super::counters::Processor;
use super::*;

/// A minute on two cores, which is 12000 ticks: those of this program, of other programs, and stolen ones.
fn minute(ours: u64, others: u64, stolen: u64) -> (Counters, Counters) {
    let at = Instant::now();
    let start = Processor { busy: 500, idle: 9000, stolen: 7, cores: 2 };
    let busy = ours + others;
    let end = Processor {
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
        throttled: Some(3),
    };
    let later = Counters {
        at: at + Duration::from_secs(60),
        processor: Some(end),
        own_ticks: 90 + ours,
        ..earlier.clone()
    };
    (earlier, later)
}

/// The only message of a minute in which the engines used both cores.
fn message(earlier: &Counters, later: &Counters) -> String {
    let mut found = since(earlier, later, Some(2));
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn a_run_on_a_quiet_machine_gets_no_warning() {
    let (earlier, later) = minute(11_000, 300, 50);
    assert_eq!(since(&earlier, &later, Some(2)), Vec::<String>::new());
}

#[test]
fn other_programs_are_reported_in_cores_without_the_runs_own_work() {
    let (earlier, later) = minute(6_000, 3_000, 0);
    let found = message(&earlier, &later);
    assert!(found.starts_with("machine: busy during the run: other programs used 0.5 of 2 cores"), "{found}");
    assert!(found.contains("`top`"), "{found}");
}

#[test]
fn an_interrupted_run_reports_everything_except_other_programs() {
    let (earlier, later) = minute(6_000, 3_000, 500);
    let found = since(&earlier, &later, None);
    assert!(found.len() == 1 && found[0].contains("steal"), "{found:?}");
}

#[test]
fn other_programs_may_use_half_of_the_spare_cores() {
    let (earlier, later) = minute(5_000, 3_000, 0);
    assert_eq!(since(&earlier, &later, Some(1)), Vec::<String>::new());
    let (earlier, later) = minute(5_000, 5_000, 0);
    assert!(since(&earlier, &later, Some(1))[0].contains("0.8 of 2 cores"));
    // More threads than cores leave no core free, and never a negative number.
    assert_eq!(since(&earlier, &later, Some(64)).len(), 1);
}

#[test]
fn steal_is_a_share_of_the_demanded_time() {
    let (earlier, later) = minute(1_000, 0, 30);
    assert!(message(&earlier, &later).contains("withheld 2.9 %"), "{:?}", message(&earlier, &later));
}

#[test]
fn swapping_heat_memory_and_limits_are_reported_with_numbers() {
    let (earlier, quiet) = minute(9_000, 0, 0);
    let later = Counters { swapped_pages: Some(1300), ..quiet.clone() };
    assert!(message(&earlier, &later).contains("300 pages"));
    let later = Counters { throttled: Some(5), ..quiet.clone() };
    assert!(message(&earlier, &later).contains("rose by 2"));
    let later = Counters { memory_stall_us: Some(8_000_000), ..quiet.clone() };
    assert!(message(&earlier, &later).contains("waited for it 5.0 % of the run"));
    let later = Counters { limited_us: Some(6_000_100), ..quiet };
    assert!(message(&earlier, &later).contains("held processes back for 6.0 s"));
}

#[test]
fn a_run_under_a_second_reports_counts_and_no_shares() {
    let (earlier, later) = minute(6_000, 3_000, 500);
    let later = Counters { at: earlier.at + Duration::from_millis(900), throttled: Some(4), ..later };
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
        throttled: None,
        ..later.clone()
    };
    assert_eq!(since(&nothing, &later, Some(2)), Vec::<String>::new());
    assert_eq!(since(&earlier, &nothing, Some(2)), Vec::<String>::new());
    // The counts of a core vanish when it is taken offline.
    let back = Counters { at: later.at + Duration::from_secs(60), ..earlier };
    assert_eq!(since(&later, &back, Some(2)), Vec::<String>::new());
}

#[test]
fn a_load_above_half_the_cores_is_reported_before_the_run() {
    assert_eq!(busy_before(4, 2.0), None);
    let found = busy_before(4, 2.5).unwrap();
    assert!(found.starts_with("machine: ") && found.contains("2.50") && found.contains("4 cores"), "{found}");
}

#[test]
fn memory_pressure_and_governors_are_reported_before_the_run() {
    assert_eq!(pressed_before(0.99), None);
    assert!(pressed_before(12.0).unwrap().contains("12.0 % of the last ten seconds"));
    let governors = |names: &[&str]| governed(&names.iter().map(|name| name.to_string()).collect::<Vec<_>>());
    assert_eq!([governors(&[]), governors(&["performance", "performance"])], [None, None]);
    let found = governors(&["performance", "powersave"]).unwrap();
    assert!(found.contains("of 1 core is `powersave`"), "{found}");
    assert!(found.ends_with("sudo cpupower frequency-set --governor performance"), "{found}");
}

#[test]
fn a_debug_build_of_an_engine_is_reported_once() {
    let of = |label: Option<&str>, program: &str| Planned {
        label: label.map(String::from),
        program: Some(program.into()),
        ..Planned::default()
    };
    let engines = [
        of(Some("quick"), "/x/target/release/quick"),
        of(Some("slow"), "/x/target/debug/slow"),
        of(None, "/x/target/debug/slow"),
        of(Some("word"), "/debug/target/word"),
        Planned::default(),
    ];
    let found: Vec<String> = debug_builds(&engines).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("build: `slow` is a debug build"), "{found:?}");
}

#[test]
fn the_gpus_of_a_plan_are_those_visible_to_its_engines() {
    let gpus = || (0..4).map(|index| Gpu { index, ..Gpu::default() }).collect::<Vec<_>>();
    let of = |devices: &[&str], order: &str, visible: Option<&str>| {
        let on = |device: &&str| Planned { device: (*device).into(), ..Planned::default() };
        let engines: Vec<Planned> = devices.iter().map(on).collect();
        let cuda = Cuda { device_order: order.into(), visible_devices: visible.map(String::from) };
        used_by(&engines, gpus(), &cuda).iter().map(|gpu| gpu.index).collect::<Vec<_>>()
    };
    let by_slot = "PCI_BUS_ID";
    assert_eq!(of(&["cuda"], by_slot, None), [0]);
    assert_eq!(of(&["cpu", "cuda:1", "cuda:3"], by_slot, None), [1, 3]);
    assert_eq!(of(&["cuda:1"], by_slot, Some("3,2")), [2]);
    assert_eq!(of(&["cuda", "cuda:1"], by_slot, Some("-1")), [0; 0]);
    assert_eq!(of(&["cuda:9"], by_slot, None), [0; 0]);
    assert_eq!(of(&["cpu"], by_slot, None), [0; 0]);
    // Only CUDA or the engine knows which GPU it is.
    assert_eq!(of(&["cuda"], "FASTEST_FIRST", None), [0, 1, 2, 3]);
    assert_eq!(of(&["gpu"], by_slot, Some("1,2")), [1, 2]);
}

#[test]
fn every_warning_about_this_machine_has_a_known_prefix() {
    let quiet = Quiet::probe(&[]);
    let found = [quiet.before(&[]), quiet.after(false)].concat();
    assert!(found.iter().all(|it| it.starts_with("machine: ") || it.starts_with("build: ")), "{found:?}");
    assert_eq!(found.iter().any(|it| it.contains("this orchestrate")), cfg!(debug_assertions), "{found:?}");
}
