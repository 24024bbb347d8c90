//! The machine's facts, and the samplers of the sampled pass: on this machine, and with a stand-in for a GPU driver.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::record::{Record, files};
use crate::support::{DECODE, Scratch, driver, fake_engine, finish, without_line_breaks};

fn json(command: &mut Command) -> Value {
    finish(command).exits_with(0).json()
}

fn run_command(scratch: &Scratch, engine: &Path, options: &[&str]) -> Command {
    let mut command = scratch.orchestrate();
    command.args(DECODE).args(["--iterations", "2", "--warmup", "2", "--json", "-"]).args(options);
    command.arg("-e").arg(engine).arg("--results").arg(scratch.results());
    command
}

fn machine_command(scratch: &Scratch, options: &[&str]) -> Command {
    let mut command = scratch.orchestrate();
    command.args(["machine", "--no-probe"]).args(options);
    command
}

fn bytes_of_gib(gib: u64) -> Value {
    ((gib << 30) as f64).into()
}

#[test]
fn the_page_of_the_machine_fits_eighty_columns_and_has_all_facts() {
    let outcome = finish(&mut machine_command(&Scratch::new(), &[]));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
    assert!(outcome.stdout.lines().all(|line| line.chars().count() <= 80), "{}", outcome.stdout);
    for label in "fingerprint CPU cores SIMD memory kernel container load energy GPU versions".split(' ') {
        assert!(outcome.stdout.lines().any(|line| line.starts_with(label)), "{label}: {}", outcome.stdout);
    }
}

#[test]
fn a_record_has_the_facts_of_the_machine_command() {
    let scratch = Scratch::new();
    let page = json(&mut machine_command(&scratch, &["--format", "json"]));
    finish(&mut run_command(&scratch, fake_engine(), &["--blocks", "1"]));
    let record = Record::only_one_in(&scratch.results());
    let (mut here, mut recorded) = (page["machine"].clone(), record.0[0]["machine"].clone());
    for varying in ["load_average", "steal_share"] {
        for machine in [&mut here, &mut recorded] {
            machine.as_object_mut().unwrap().remove(varying);
        }
    }
    for machine in [&mut here, &mut recorded] {
        machine["cpu"].as_object_mut().unwrap().remove("mhz");
    }
    assert_eq!(here, recorded);
    assert_eq!(page["limits"], Value::Null);
    assert!(page["fingerprint"].as_str().is_some_and(|it| it.len() >= 8), "{page}");
    assert_eq!(page["fingerprint"], record.0[0]["fingerprint"]);
    assert_eq!(page["orchestrate_version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn samplers_run_once_for_each_case_and_add_no_sample() {
    let scratch = Scratch::new();
    let outcome = finish(&mut run_command(&scratch, fake_engine(), &["--blocks", "2"])).exits_with(0);
    let record = Record::only_one_in(&scratch.results());
    let passes = record.entries("pass");
    assert_eq!(passes.len(), 1, "{passes:?}");
    assert_eq!(passes[0]["launch"], 0);
    let memory = &passes[0]["held"];
    let bytes = |name: &str| memory[name].as_u64().unwrap();
    assert!(bytes("resident_bytes") > 100_000 && bytes("pss_bytes") <= bytes("resident_bytes"), "{memory}");
    assert!(passes[0]["requests"].as_u64() >= Some(1) && passes[0]["new_tokens"].as_u64() > Some(0));
    assert_eq!(record.entries("sample").len(), 2 * 4, "two blocks of two warm-ups and two rounds");
    let samples = record.entries("sample");
    let measured = samples.iter().filter(|it| it["kind"] == "measured" && it["index"] == 0);
    assert!(
        measured.clone().count() == 2 && measured.clone().all(|it| it["held"].is_object()),
        "{samples:?}"
    );
    let first = &samples[0]["held"];
    assert!(first["anonymous_bytes"].as_u64() > Some(0) && first["file_bytes"].as_u64() > Some(0), "{first}");
    // For one process, the report has the kernel's peak: nothing is subtracted for pages that other processes map too. The
    // tolerance is for differences between launches.
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let resources = &report["cases"][0]["resources"];
    let peak = samples.iter().filter_map(|it| it["peak_resident_bytes"].as_u64()).max().unwrap() as f64;
    assert!((resources["peak_bytes"].as_f64().unwrap() - peak).abs() < 0.2 * peak, "{resources} {peak}");
    assert!(
        resources["weights_bytes"] == 4_000_000.0 && resources["device_bytes"] == Value::Null,
        "{resources}"
    );
}

#[test]
fn an_engine_that_exits_in_the_sampled_pass_keeps_its_samples() {
    let scratch = Scratch::new();
    let engine = scratch.engine("exits", "--fault exits_at_sample --at 4");
    finish(&mut run_command(&scratch, &engine, &["--blocks", "1"])).exits_with(4);
    let record = Record::only_one_in(&scratch.results());
    record.assert_failed("exits", "exited", "the sampled pass");
    assert_eq!((record.entries("sample").len(), record.entries("pass").len()), (4, 0));
    scratch.assert_no_processes_left();
}

#[test]
fn the_page_of_the_machine_has_each_gpu_with_its_warnings() {
    let scratch = Scratch::new();
    let without = json(&mut machine_command(&scratch, &["--format", "json"]));
    let driver = driver::present(&scratch);
    let page = json(machine_command(&scratch, &["--format", "json"]).env("LD_LIBRARY_PATH", driver));
    let gpu = &page["machine"]["gpus"][0];
    assert_eq!(
        (&gpu["name"], &gpu["driver"], &gpu["cuda"]),
        (&"Pretence 9000".into(), &"570.86.10".into(), &"12.8".into())
    );
    assert_eq!(
        (gpu["memory_bytes"].as_u64(), gpu["memory_used_bytes"].as_u64()),
        (Some(80 << 30), Some(2 << 30))
    );
    assert_eq!((gpu["clock_mhz"].as_u64(), gpu["max_memory_clock_mhz"].as_u64()), (Some(1500), Some(2619)));
    assert_eq!(
        (&gpu["compute_capability"], &gpu["ecc"], &gpu["mig"]),
        (&"9.0".into(), &true.into(), &Value::Null)
    );
    assert_eq!(gpu["processes"][0]["bytes"].as_u64(), Some(1 << 30));
    assert!(page["energy"].as_array().unwrap().iter().any(|it| it["name"] == "gpu-0"), "{page}");
    let warnings = page["warnings"].to_string();
    assert!(warnings.contains("other programs use GPU 0 (process 4194303)"), "{warnings}");
    let limited = "GPU 0 is limited to 350 W, but its default is 700 W; run `sudo nvidia-smi -i 0 -pl 700`";
    assert!(warnings.contains(limited), "{warnings}");
    assert_ne!(without["fingerprint"], page["fingerprint"]);
}

#[test]
fn with_energy_counters_idle_power_is_measured_and_a_pass_has_joules() {
    let scratch = Scratch::new();
    // The sampled pass gets a share of the budget, which has room for several requests even on a busy machine.
    let options = ["--blocks", "1", "--device", "cuda", "--budget", "300s"];
    let mut command = run_command(&scratch, fake_engine(), &options);
    let report = json(command.env("LD_LIBRARY_PATH", driver::present(&scratch)));
    let record = Record::only_one_in(&scratch.results());
    let header = &record.0[0];
    assert_eq!(header["machine"]["energy_counters"][0]["name"], "gpu-0");
    assert_eq!(header["fingerprint"], report["fingerprint"]);
    let idle = record.entries("idle");
    let gpu_microjoules = |entry: &Value| {
        let gpu_energy = entry["energy"].as_array().unwrap().iter().filter(|it| it["counter"] == "gpu-0");
        gpu_energy.map(|it| it["microjoules"].as_u64().unwrap()).sum::<u64>()
    };
    // The stand-in's counter grows by 1.5 J while idle power is measured, and by 1000 J or more at each later reading.
    assert_eq!((idle.len(), gpu_microjoules(idle[0])), (1, 1_500_000));
    let passes = record.entries("pass");
    assert_eq!(passes.len(), 1);
    assert!(gpu_microjoules(passes[0]) >= 1_000_000_000, "{passes:?}");
    assert!(passes[0]["requests"].as_u64() > Some(1), "the pass is too short: {passes:?}");
    let gpu = &passes[0]["gpus"][0];
    assert_eq!((&gpu["utilisation_percent"], &gpu["throttled_by"]), (&83.into(), &json!(["sw_power_cap"])));
    let resources = &report["cases"][0]["resources"];
    assert_eq!(resources["gpu_percent"], 83.0);
    assert!(resources["joules_per_token"].as_f64().is_some_and(|joules| joules > 0.0), "{resources}");
    assert!(resources["idle_watts"].as_f64().is_some_and(|watts| watts > 0.0), "{resources}");
    // The driver does not list the engine's process.
    assert_eq!(resources["device_bytes"], Value::Null);
    let warnings = report["warnings"].to_string();
    let slowed =
        "GPU 0 was slowed down while it computed (sw_power_cap); its power limit is below the default";
    assert!(warnings.contains(slowed) && warnings.contains("other programs use GPU 0"), "{warnings}");
}

/// The report of a run on a machine with two GPUs, of which engines see and use only the second. While an engine runs, this GPU
/// uses 3 GiB more. With `STAND_IN_PROCESSES=own`, the driver lists the engine's process with 2 GiB.
fn report_of_second_gpu(scratch: &Scratch, more_variables: &[(&str, &str)]) -> Value {
    let variables = scratch.join("variables");
    let script = format!(
        "echo \"$CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES\" > '{}'; exec '{}' --memory-bytes 500000000",
        variables.display(),
        fake_engine().display()
    );
    let engine = scratch.script("on-a-gpu", &script);
    let mut command = run_command(scratch, &engine, &["--blocks", "1", "--device", "cuda"]);
    command.env("LD_LIBRARY_PATH", driver::present(scratch)).env("CUDA_VISIBLE_DEVICES", "1");
    command.env_remove("CUDA_DEVICE_ORDER");
    command.envs([("STAND_IN_GPUS", "2"), ("STAND_IN_USED", "1")]).envs(more_variables.iter().copied());
    let report = json(&mut command);
    assert_eq!(std::fs::read_to_string(variables).unwrap(), "PCI_BUS_ID 1\n");
    report
}

#[test]
fn cuda_0_is_the_first_visible_gpu_and_has_the_memory_of_its_processes() {
    let scratch = Scratch::new();
    let report = report_of_second_gpu(&scratch, &[("STAND_IN_PROCESSES", "own")]);
    let resources = &report["cases"][0]["resources"];
    assert_eq!(resources["gpus"], json!([1]));
    assert_eq!(
        (&resources["device_bytes"], &resources["device_bytes_from"]),
        (&bytes_of_gib(2), &"processes".into())
    );
    // The peak that the engine reports (twice `--memory-bytes`) and the growth of the whole device are kept too.
    assert_eq!(resources["device_reported_bytes"], 1e9);
    assert_eq!(resources["device_growth_bytes"], bytes_of_gib(3));
    assert_eq!((&resources["gpu_watts"], &resources["gpu_percent"]), (&70.0.into(), &83.0.into()));
    assert!(resources["joules_per_token"].as_f64().is_some_and(|joules| joules > 0.0), "{resources}");
    let record = Record::only_one_in(&scratch.results());
    let machine = &record.0[0]["machine"];
    assert_eq!(machine["cuda"], json!({"device_order": "PCI_BUS_ID", "visible_devices": "1"}));
    assert_eq!(machine["gpus"][1]["pci"], "00000000:1C:00.0");
}

#[test]
fn gpu_memory_is_the_growth_of_the_device_if_the_driver_does_not_list_the_engine() {
    let scratch = Scratch::new();
    let report = report_of_second_gpu(&scratch, &[("STAND_IN_ENERGY", "none")]);
    let resources = &report["cases"][0]["resources"];
    assert_eq!(
        (&resources["device_bytes"], &resources["device_bytes_from"]),
        (&bytes_of_gib(3), &"growth".into())
    );
    assert_eq!((&resources["gpus"], &resources["device_process_bytes"]), (&json!([1]), &Value::Null));
    // Without an energy counter there is no energy value, but there is a power value.
    assert_eq!((&resources["joules_per_token"], &resources["gpu_watts"]), (&Value::Null, &70.0.into()));
    let record = Record::only_one_in(&scratch.results());
    let launch = record.entries("launch").last().copied().unwrap().clone();
    assert_eq!(launch["gpus_before"][1], json!({"index": 1, "memory_used_bytes": 2u64 << 30}));
    let mut report = scratch.orchestrate();
    let table = finish(report.arg("report").args(files(&scratch.results())).arg("--resources")).stdout;
    assert!(
        without_line_breaks(&table).contains("as growth of the whole device since the launch"),
        "{table}"
    );
}

#[test]
fn the_page_shows_mig_devices_and_their_names_for_engines_in_80_columns() {
    let scratch = Scratch::new();
    let driver = driver::present(&scratch);
    let page = |variables: &[(&str, &str)]| {
        let mut command = machine_command(&scratch, &[]);
        command.env_remove("CUDA_DEVICE_ORDER").env_remove("CUDA_VISIBLE_DEVICES");
        command.env("LD_LIBRARY_PATH", &driver).env("STAND_IN_GPUS", "2").envs(variables.iter().copied());
        finish(&mut command).stdout
    };
    let text = page(&[("STAND_IN_MIG", "1"), ("CUDA_VISIBLE_DEVICES", "MIG-2234")]);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for expected in [
        "MIG 1g.10gb + 1g.10gb",
        "`--device cuda:0`",
        "hidden from engines",
        "412 of 350 W",
        "memory clock 2600 of 2619 MHz",
    ] {
        assert!(without_line_breaks(&text).contains(expected), "{expected}: {text}");
    }
    // The user's device order is kept. With this order, no GPU can be identified.
    let text = page(&[("CUDA_DEVICE_ORDER", "FASTEST_FIRST")]);
    assert!(without_line_breaks(&text).contains("hint: CUDA_DEVICE_ORDER=PCI_BUS_ID"), "{text}");
    // The order by PCI address is right, but it does not choose a MIG device.
    let text = page(&[("STAND_IN_MIG", "1"), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")]);
    assert!(without_line_breaks(&text).contains("hint: CUDA_VISIBLE_DEVICES=MIG-"), "{text}");
    assert!(!text.contains("CUDA_DEVICE_ORDER"), "{text}");
}

#[test]
fn an_engine_on_the_cpu_has_no_gpu_values_and_reads_no_gpu_counter() {
    for device in ["cpu", "cpu:0"] {
        let scratch = Scratch::new();
        let log = scratch.join("calls");
        let script = format!("echo engine >> '{}'; exec '{}'", log.display(), fake_engine().display());
        let engine = scratch.script("on-the-cpu", &script);
        let mut command = run_command(&scratch, &engine, &["--blocks", "2", "--device", device]);
        command.env("LD_LIBRARY_PATH", driver::present(&scratch)).env("STAND_IN_LOG", &log);
        let resources = json(&mut command)["cases"][0]["resources"].take();
        for name in ["gpu_percent", "device_bytes"] {
            assert_eq!(resources[name], Value::Null, "{resources}");
        }
        let record = Record::only_one_in(&scratch.results());
        assert_eq!(record.0[0]["plan"]["configurations"][0]["device"], device);
        assert!(record.entries("launch").iter().all(|launch| launch["gpus_before"].is_null()), "{record:?}");
        let listed = record.0[0]["machine"]["energy_counters"].as_array().unwrap();
        assert!(listed.iter().any(|it| it["name"] == "gpu-0"), "{listed:?}");
        let (idle, passes) = (record.entries("idle"), record.entries("pass"));
        assert!(!passes.is_empty());
        for entry in idle.iter().chain(&passes) {
            let counters = entry["energy"].as_array().into_iter().flatten();
            let names: Vec<_> = counters.map(|it| it["counter"].as_str().unwrap()).collect();
            assert!(names.iter().all(|name| name.starts_with("package")), "{device}: {names:?}");
            assert_eq!(entry["gpus"], Value::Null, "{device}: {entry}");
        }
        // Without an energy counter of the processor, the pass is one request long.
        if listed.iter().all(|it| it["name"] == "gpu-0" || !it["trouble"].is_null()) {
            assert_eq!((idle.len(), &passes[0]["requests"]), (0, &1.into()), "{device}: {passes:?}");
            assert_eq!(resources["joules_per_token"], Value::Null, "{resources}");
        }
        // The machine is described once, before the first launch. After that the driver gets no calls.
        let calls = std::fs::read_to_string(&log).unwrap();
        let (before, since) = calls.split_once("engine\n").unwrap();
        assert_eq!(before.matches("energy").count(), 1, "{device}: {calls}");
        assert_eq!(since.replace("engine\n", ""), "", "{device}: {calls}");
    }
}

#[test]
fn gpus_outside_the_plan_get_no_warning() {
    let scratch = Scratch::new();
    let driver = driver::present(&scratch);
    for (device, visible, expected) in
        [("cuda", "-1", &[][..]), ("cuda:1", "3,2", &["GPU 2"]), ("cpu,cuda", "3", &["GPU 3"])]
    {
        let _ = std::fs::remove_dir_all(scratch.results());
        let mut command = run_command(&scratch, fake_engine(), &["--blocks", "1", "--device", device]);
        command.env_remove("CUDA_DEVICE_ORDER").env("LD_LIBRARY_PATH", &driver);
        finish(command.envs([("STAND_IN_GPUS", "4"), ("CUDA_VISIBLE_DEVICES", visible)]));
        let record = Record::only_one_in(&scratch.results());
        let warnings = record.entries("warning").into_iter().map(|it| it["message"].as_str().unwrap());
        let about_gpus: Vec<&str> =
            warnings.filter(|it| it.starts_with("machine: ") && it.contains("GPU")).collect();
        // Two warnings for each GPU: other processes on it, and its power limit.
        assert_eq!(about_gpus.len(), 2 * expected.len(), "{device} {visible}: {about_gpus:?}");
        assert!(expected.iter().all(|gpu| about_gpus.iter().all(|it| it.contains(gpu))), "{about_gpus:?}");
    }
}

#[test]
fn without_energy_counters_no_idle_power_is_measured_and_energy_is_null() {
    let scratch = Scratch::new();
    let page = json(&mut machine_command(&scratch, &["--format", "json"]));
    let readable = page["energy"].as_array().unwrap().iter().filter(|it| it["trouble"].is_null()).count();
    let report = json(&mut run_command(&scratch, fake_engine(), &["--blocks", "1"]));
    let record = Record::only_one_in(&scratch.results());
    // On a machine with a counter, idle power is measured exactly once.
    assert_eq!(record.entries("idle").len(), usize::from(readable > 0));
    if readable == 0 {
        assert_eq!(report["cases"][0]["resources"]["joules_per_token"], Value::Null);
        assert_eq!(record.entries("pass")[0]["requests"], 1);
    }
}
