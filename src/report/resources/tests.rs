use crate::machine::observed::UsedGpuMemory;
use crate::record::specimen::{BEACON, ORIGINAL, measured, selection};
use crate::record::{Energy, Entry, GpuPass, HeldMemory, Idle, Pass, RunRecord};
use crate::report::resources::Resources;
use crate::report::tests::{assert_fits, json, json_case, rendered, rendered_with, row, words};
use crate::report::{Report, TableId, View};

fn resource_table() -> View {
    View { full: true, tables: vec![TableId::Resources], ..View::default() }
}

/// A record of the default suite with memory, CPU time, energy and GPUs of the second engine, `beacon`.
fn with_resources() -> RunRecord {
    let mut record = measured(&selection(&["patient-original", "beacon"]), &[ORIGINAL, BEACON]);
    let held = HeldMemory {
        resident_bytes: 50_000_000,
        pss_bytes: 40_000_000,
        anonymous_bytes: 30_000_000,
        file_bytes: 10_000_000,
    };
    let launches: Vec<(u32, usize)> =
        record.launches.iter().map(|it| (it.launch, it.configuration)).collect();
    let is_of_beacon = |launch: u32| launches.contains(&(launch, 1));
    for sample in record.samples.iter_mut().filter(|sample| is_of_beacon(sample.launch)) {
        sample.held = Some(held);
        sample.cpu_ns = Some((sample.answered_ns - sample.sent_ns) * 3 / 2);
    }
    for launch in record.launches.iter_mut().filter(|launch| launch.configuration == 1) {
        launch.loaded.as_mut().unwrap().facts.weights_bytes = Some(21_000_000);
    }
    let energy = |microjoules, seconds: u64| {
        vec![Energy { counter: "package-0".into(), microjoules, elapsed_ns: seconds * 1_000_000_000 }]
    };
    let launch = launches.iter().find(|it| it.1 == 1).unwrap().0;
    let cases: Vec<usize> = record.header.plan.cases_of(1);
    for case in cases {
        let gpu = |index, percent| GpuPass {
            index,
            utilisation_percent: percent,
            samples: 3,
            ..GpuPass::default()
        };
        record.take(Entry::Pass(Pass {
            launch,
            case,
            requests: 4,
            new_tokens: 100,
            energy: energy(32_000_000, 3),
            gpus: vec![gpu(0, Some(7)), gpu(1, Some(83)), gpu(2, None)],
            ..Pass::default()
        }));
    }
    record.take(Entry::Idle(Idle { energy: energy(15_000_000, 3) }));
    record
}

/// The resources of the engine in the case `decode`.
fn resources(record: &RunRecord, engine: &str) -> Resources {
    row(&Report::of(record), "decode", engine).resources.clone().unwrap()
}

#[test]
fn a_row_on_the_cpu_has_memory_in_parts_cores_and_energy() {
    let it = resources(&with_resources(), "beacon");
    assert_eq!((it.anonymous_bytes, it.file_bytes), (Some(30e6), Some(10e6)));
    // The peak of 61 MB counts shared pages once for each process, 10 MB too much: 50 MB are resident, the PSS is 40 MB.
    assert_eq!(
        (it.peak_bytes, it.weights_bytes, it.over_weights_bytes),
        (Some(51e6), Some(21e6), Some(30e6))
    );
    // 32 J less 3 s of 5 W idle power, divided by 100 tokens.
    assert_eq!((it.joules_per_token, it.idle_watts, it.gpu_percent), (Some(0.17), Some(5.0), None));
    assert!(it.cores_busy.is_some_and(|cores| (cores - 1.5).abs() < 1e-3), "{it:?}");
    assert_eq!(it.device_bytes, None);
}

#[test]
fn gpu_utilisation_belongs_to_the_engine_that_computes_on_the_gpu() {
    let record = on_a_gpu(None);
    assert_eq!(resources(&record, "patient-original").gpu_percent, None);
    let beacon = resources(&record, "beacon");
    // This GPU has no energy counter, and the energy of the CPU package alone would be incomplete.
    assert_eq!((beacon.gpu_percent, beacon.joules_per_token), (Some(83.0), None));
}

/// The record of `with_resources`, with `beacon` on GPU 1. `process_bytes` is the device memory that the driver reports for it.
fn on_a_gpu(process_bytes: Option<u64>) -> RunRecord {
    let mut record = with_resources();
    for launch in record.launches.iter_mut().filter(|launch| launch.configuration == 1) {
        launch.loaded.as_mut().unwrap().facts.device = Some("cuda:1".into());
        launch.gpus_before = vec![UsedGpuMemory { index: 1, memory_used_bytes: 1_000_000_000 }];
    }
    for pass in &mut record.passes {
        pass.gpus[1] = GpuPass {
            index: 1,
            utilisation_percent: Some(83),
            memory_utilisation_percent: Some(41),
            power_milliwatts: Some(412_000),
            samples: 16,
            memory_used_bytes: Some(4_500_000_000),
            process_bytes,
            clock_mhz: Some((1500, 1980)),
            memory_clock_mhz: Some((2619, 2619)),
            temperature_celsius: Some(61),
            throttled_by: vec!["sw_power_cap".into()],
            throttled_samples: Some(4),
        };
    }
    record
}

#[test]
fn gpu_values_are_in_tables_json_and_csv() {
    let record = on_a_gpu(Some(3_000_000_000));
    let table = rendered_with(&record, "table", Some(80), resource_table());
    assert_fits(&table, 80);
    let words = words(&table);
    for expected in [
        "GPU slowed down (sw_power_cap): beacon",
        "device memory, as the driver counts it for these processes: beacon",
    ] {
        assert!(words.contains(expected), "{expected}: {table}");
    }
    let markdown = rendered_with(&record, "markdown", None, resource_table());
    for title in [
        "device memory",
        "device whole",
        "GPU busy %",
        "GPU memory busy %",
        "GPU power W",
        "SM clock lowest MHz",
    ] {
        assert!(markdown.contains(&format!("| {title}")), "{title}: {markdown}");
    }
    let json = json(&record);
    let in_json = &json_case(&json, "decode", "beacon")["resources"];
    let expected = serde_json::json!({
        "device_bytes": 3e9, "device_bytes_from": "processes", "device_process_bytes": 3e9, "device_growth_bytes": 3.5e9,
        "device_whole_bytes": 4.5e9, "gpus": [1], "gpu_percent": 83.0, "gpu_memory_percent": 41.0, "gpu_watts": 412.0,
        "gpu_clock_mhz": [1500, 1980], "gpu_memory_clock_mhz": [2619, 2619], "gpu_celsius": 61, "gpu_slowed_share": 0.25,
        "gpu_slowed_by": ["sw_power_cap"],
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&in_json[name], value, "{name}: {in_json}");
    }
    let csv = rendered(&record, "csv", 80);
    for line in [
        "resources.device_processes,bytes,",
        "resources.device_growth,bytes,",
        "resources.gpu_power,W,",
        "resources.gpu_slowed,%,",
        "resources.gpu_clock_lowest,MHz,",
    ] {
        assert!(csv.contains(line), "{line}: {csv}");
    }
}

#[test]
fn the_legend_names_device_growth_as_the_source_of_device_memory() {
    let text = rendered_with(&on_a_gpu(None), "table", Some(80), resource_table());
    let words = words(&text);
    assert!(words.contains("as growth of the whole device since the launch"), "{text}");
    assert_eq!(resources(&on_a_gpu(None), "beacon").device_bytes, Some(3.5e9));
}

#[test]
fn memory_in_the_sampled_pass_of_one_launch_counts_for_the_whole_case() {
    let mut record = with_resources();
    let held = HeldMemory { anonymous_bytes: 44_000_000, file_bytes: 12_000_000, ..HeldMemory::default() };
    for pass in &mut record.passes {
        pass.held = Some(held);
    }
    let it = resources(&record, "beacon");
    assert!(record.launches_of(1).count() > 1);
    assert_eq!((it.anonymous_bytes, it.file_bytes), (Some(44e6), Some(12e6)));
}

#[test]
fn the_resources_option_adds_a_table_that_names_unknown_values() {
    let text = rendered_with(&with_resources(), "table", Some(80), resource_table());
    assert_fits(&text, 80);
    let (_, section) = text.split_once("resources of each case:").unwrap();
    let rows: Vec<Vec<&str>> = section.lines().map(|line| line.split_whitespace().collect()).collect();
    let first_row = rows.iter().find(|row| row.contains(&"patient-original")).unwrap();
    assert_eq!(first_row.last(), Some(&"n/a"), "{text}");
    // 170 mJ per token, and 1.5 busy cores.
    assert!(section.contains("170") && section.contains("1.50"), "{text}");
    assert!(
        !section.contains("a counter cannot be read") && section.contains("in every row: all GPU values"),
        "{text}"
    );
    assert!(!rendered(&with_resources(), "table", 80).contains("resources of each case"));
    let markdown = rendered_with(&with_resources(), "markdown", None, resource_table());
    assert!(markdown.contains("| case | engine | peak memory MB | memory anonymous MB |"), "{markdown}");
}

#[test]
fn without_energy_counters_the_legend_names_the_missing_columns() {
    let record = measured(&selection(&["patient-original", "beacon"]), &[ORIGINAL, BEACON]);
    let text = rendered_with(&record, "table", Some(100), resource_table());
    let (_, section) = text.split_once("resources of each case:").unwrap();
    let (table, _) = section.split_once("memory: that of the process tree").unwrap();
    assert!(table.contains("peak") && !table.contains("idle"), "{text}");
    let section_words = words(section);
    assert!(
        section_words.contains("over weights, CPU busy, energy per token, idle power, all GPU values"),
        "{text}"
    );
    assert!(section_words.contains("energy: a counter cannot be read"), "{text}");
}

#[test]
fn json_has_null_for_an_unknown_resource_and_csv_has_a_line_for_each_known_resource() {
    let json = json(&with_resources());
    let of_engine = |engine: &str| &json_case(&json, "decode", engine)["resources"];
    assert!(
        of_engine("beacon")["gpu_percent"].is_null()
            && of_engine("patient-original")["gpu_percent"].is_null()
    );
    assert_eq!(of_engine("patient-original")["idle_watts"], 5.0);
    let csv = rendered(&with_resources(), "csv", 80);
    assert!(csv.lines().any(|line| line.contains("resources.idle_power,W,")), "{csv}");
    assert!(csv.lines().any(|line| line.contains("joules_per_token,J,")), "{csv}");
}
