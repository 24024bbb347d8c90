//! The probe of GPU limits, called as in a run, but on stand-ins for the driver and cuBLAS. So these tests need no GPU, and
//! do not show that the probe works on one.

#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;

use machine_limits::{GpuLimits, Limits};
use serde_json::{Value, json};

use crate::support::driver::compile;
use crate::support::record::Record;
use crate::support::{DECODE, Running, Scratch, fake_engine, finish, wait_until};

const GIB: u64 = 1 << 30;
const UNITS: [&str; 4] = ["cublas_bf16", "cublas_f16", "cublas_tf32", "cublas_f32"];

struct StandIns {
    scratch: Scratch,
}

impl StandIns {
    /// Compiles a driver in the loader's path, and a cuBLAS in the given folder, which may be outside that path.
    fn new(cublas_folder: Option<&str>) -> Self {
        let stand_ins = Self { scratch: Scratch::new() };
        compile("stand-in-cuda.c", &stand_ins.driver().join("libcuda.so.1"));
        if let Some(folder) = cublas_folder {
            compile("stand-in-cublas.c", &stand_ins.scratch.join(folder).join("libcublas.so.12"));
        }
        stand_ins
    }

    /// A driver and a cuBLAS, both in the loader's path.
    fn with_cublas() -> Self {
        Self::new(Some("driver"))
    }

    fn driver(&self) -> PathBuf {
        self.scratch.join("driver")
    }

    fn probe(&self, devices: &[&str], variables: &[(&str, &str)]) -> Limits {
        let mut command = self.scratch.orchestrate();
        command.arg("probe-gpu").args(devices).env("LD_LIBRARY_PATH", self.driver());
        command.env("STAND_IN_LOG", self.scratch.join("log")).envs(variables.iter().copied());
        let outcome = finish(&mut command);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
        serde_json::from_value(outcome.json()).unwrap()
    }

    fn run_command(&self, device: &str, results: &Path, variables: &[(&str, &str)]) -> Command {
        let mut command = self.scratch.orchestrate();
        command.arg("-e").arg(fake_engine()).args(DECODE).args(["--iterations", "1", "--blocks", "2"]);
        command.args(["--device", device]).arg("--results").arg(results).current_dir(&self.scratch.path);
        command.env("LD_LIBRARY_PATH", self.driver()).env("STAND_IN_LOG", self.scratch.join("log"));
        command.envs(variables.iter().copied());
        command
    }

    /// The driver's log: the calls of all runs, in order.
    fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.scratch.join("log")).unwrap();
        text.lines().map(String::from).collect()
    }

    fn assert_all_released(&self) {
        let log = self.log();
        let is_end = |line: &&String| line.starts_with("left:") || line.starts_with("release");
        let ends: Vec<_> = log.iter().filter(is_end).collect();
        assert!(!ends.is_empty(), "{log:?}");
        for end in ends {
            assert!(end.ends_with(" 0 memory, 0 events, 0 handles"), "{end}");
            assert!(end.starts_with("release") || end.starts_with("left: 0 contexts,"), "{end}");
        }
    }
}

fn units(gpu: &GpuLimits) -> Vec<&str> {
    gpu.matrix.iter().map(|it| it.unit.as_str()).collect()
}

#[test]
fn rates_count_bytes_read_and_written_and_two_operations_per_multiply_add() {
    let machine = StandIns::with_cublas();
    let limits = machine.probe(&[], &[("STAND_IN_MS", "5,0.5,2")]);
    assert_eq!(limits.absent, [""; 0]);
    let [gpu] = limits.gpus.as_slice() else { panic!("{limits:?}") };
    assert_eq!((gpu.index, gpu.name.as_str(), gpu.l2_bytes), (0, "Pretence 9000", Some(50 << 20)));
    assert_eq!(gpu.uuid.as_deref(), Some("eeeeeeee-eeee-eeee-eeee-eeeeeeeeee00"));
    // The best pass counts: 1 GiB read and 1 GiB written in half a millisecond.
    let copies = gpu.copies.unwrap();
    assert_eq!((copies.bytes, copies.ns), (2 * GIB, 500_000));
    assert_eq!(copies.bytes_per_second(), Some(2.0 * GIB as f64 / 0.0005));
    assert_eq!(units(gpu), UNITS);
    for unit in &gpu.matrix {
        assert_eq!((unit.operations, unit.ns), (2 * 8192_u64.pow(3), 500_000), "{unit:?}");
    }
    machine.assert_all_released();
}

#[test]
fn every_pass_after_the_first_is_timed_between_two_events() {
    let machine = StandIns::with_cublas();
    machine.probe(&[], &[]);
    let log = machine.log();
    assert_eq!(log[1], "retain 0");
    let is_pass = |line: &str| line.starts_with("copy") || line.starts_with("product");
    let mut timed = std::collections::BTreeMap::<&str, usize>::new();
    for at in 1..log.len() {
        if is_pass(&log[at]) && log[at - 1] == "record" {
            assert_eq!(
                [log[at + 1].as_str(), log[at + 2].as_str()],
                ["record", "wait"],
                "line {at}: {log:?}"
            );
            *timed.entry(&log[at]).or_default() += 1;
        }
    }
    let kinds: Vec<&str> = timed.keys().copied().collect();
    let copy = format!("copy {GIB}");
    // `product SIDE of TYPE by COMPUTE_TYPE`, in cuBLAS's numbers: types 0 f32, 2 f16, 14 bf16; computed in 68 f32, 77 tf32.
    let products = [
        "product 8192 of 0 by 68",
        "product 8192 of 0 by 77",
        "product 8192 of 14 by 68",
        "product 8192 of 2 by 68",
    ];
    assert_eq!(kinds, [[copy.as_str()].as_slice(), &products].concat());
    for (kind, &passes) in &timed {
        let all = log.iter().filter(|line| line == kind).count();
        assert_eq!(all, passes + 1, "one untimed `{kind}` must precede the timed ones");
        assert!(passes >= 2, "{kind}");
    }
}

#[test]
fn only_requested_gpus_are_probed_and_missing_ones_are_named() {
    let machine = StandIns::with_cublas();
    let limits = machine.probe(&["1", "7"], &[("STAND_IN_GPUS", "3")]);
    assert_eq!(
        limits.gpus.iter().map(|gpu| (gpu.index, gpu.name.as_str())).collect::<Vec<_>>(),
        [(1, "Pretence 9001")]
    );
    assert_eq!(limits.absent, ["GPU 7: the driver shows 3 GPUs to this process"]);
    let log = machine.log();
    assert!(log.contains(&"retain 1".into()) && !log.iter().any(|line| line == "retain 0"), "{log:?}");
    machine.assert_all_released();
}

#[test]
fn buffers_shrink_with_free_memory_and_too_little_memory_is_reported() {
    let machine = StandIns::with_cublas();
    let some = machine.probe(&[], &[("STAND_IN_FREE_MIB", "1100")]);
    // The probe uses at most half of the free memory: for two buffers, or for three matrices of one size. Those of side 8192
    // take 384 MiB in bf16, and 768 MiB in f32.
    assert_eq!(some.gpus[0].copies.unwrap().bytes, 2 * (275 << 20));
    let operations = some.gpus[0].matrix.iter().map(|it| it.operations).collect::<Vec<_>>();
    let expected = |side: u64| 2 * side.pow(3);
    assert_eq!(operations, [8192, 8192, 4096, 4096].map(expected));
    let none = machine.probe(&[], &[("STAND_IN_FREE_MIB", "40")]);
    assert_eq!((none.gpus[0].copies, none.gpus[0].matrix.len()), (None, 0));
    assert_eq!(none.absent.len(), 1 + UNITS.len());
    for reason in &none.absent {
        assert!(reason.ends_with("only 40 MiB of its memory are free"), "{reason}");
    }
    machine.assert_all_released();
}

#[test]
fn a_refused_call_is_reported_with_its_error_and_resources_are_released() {
    let machine = StandIns::with_cublas();
    for (refused, error, gpus, prefix) in [
        ("cuInit=100", "CUDA_ERROR_NO_DEVICE", 0, ""),
        ("cuDeviceGetCount=999", "an unknown error", 0, ""),
        ("cuDeviceGet=46", "CUDA_ERROR_DEVICE_UNAVAILABLE", 0, "GPU 0: "),
        ("cuDevicePrimaryCtxRetain=2", "CUDA_ERROR_OUT_OF_MEMORY", 1, "GPU 0: "),
        ("cuCtxSetCurrent=46", "CUDA_ERROR_DEVICE_UNAVAILABLE", 1, "GPU 0: "),
        ("cuMemGetInfo_v2=700", "CUDA_ERROR_ILLEGAL_ADDRESS", 1, "GPU 0: copies: "),
        ("cuMemAlloc_v2=2", "CUDA_ERROR_OUT_OF_MEMORY", 1, "GPU 0: copies: "),
        ("cuMemsetD8_v2=700", "CUDA_ERROR_ILLEGAL_ADDRESS", 1, "GPU 0: copies: "),
        ("cuMemcpyDtoDAsync_v2=700", "CUDA_ERROR_ILLEGAL_ADDRESS", 1, "GPU 0: copies: "),
        ("cuEventCreate=2", "CUDA_ERROR_OUT_OF_MEMORY", 1, "GPU 0: copies: "),
        ("cuEventRecord=700", "CUDA_ERROR_ILLEGAL_ADDRESS", 1, "GPU 0: copies: "),
        ("cuEventSynchronize=700", "CUDA_ERROR_ILLEGAL_ADDRESS", 1, "GPU 0: copies: "),
        ("cuEventElapsedTime=700", "CUDA_ERROR_ILLEGAL_ADDRESS", 1, "GPU 0: copies: "),
        ("cuMemcpyHtoD_v2=700", "CUDA_ERROR_ILLEGAL_ADDRESS", 1, "GPU 0: cublas_bf16: "),
        ("cublasCreate_v2=1", "CUBLAS_STATUS_NOT_INITIALIZED", 1, "GPU 0: products: "),
        ("cublasGemmEx:14:68=15", "CUBLAS_STATUS_NOT_SUPPORTED", 1, "GPU 0: cublas_bf16: "),
    ] {
        let (call, code) = refused.split_once('=').unwrap();
        let name = call.trim_end_matches("_v2").trim_end_matches(":14:68");
        let reason = format!("{prefix}`{name}` failed: {error} ({code})");
        let limits = machine.probe(&[], &[("STAND_IN_REFUSES", refused)]);
        assert_eq!((limits.gpus.len(), limits.absent.first()), (gpus, Some(&reason)), "{limits:?}");
        let copied = limits.gpus.first().is_some_and(|gpu| gpu.copies.is_some());
        assert_eq!(copied, prefix.contains("cublas_") || prefix.contains("products"), "{call}: {limits:?}");
    }
    // A number format that the GPU lacks does not affect the others.
    let limits = machine.probe(&[], &[("STAND_IN_REFUSES", "cublasGemmEx:14:68=15")]);
    assert_eq!(units(&limits.gpus[0]), UNITS[1..]);
    machine.assert_all_released();
}

#[test]
fn missing_drivers_missing_gpus_and_invalid_times_are_reported() {
    let scratch = Scratch::new();
    let outcome = finish(scratch.orchestrate().arg("probe-gpu").env("LD_LIBRARY_PATH", &scratch.path));
    let limits: Limits = serde_json::from_str(&outcome.stdout).unwrap();
    // If the machine has a real driver, that driver answers.
    if limits.gpus.is_empty() {
        assert_eq!(limits.absent.len(), 1, "{outcome:?}");
    }
    std::fs::write(scratch.join("libcuda.so.1"), "no library").unwrap();
    let outcome = finish(scratch.orchestrate().arg("probe-gpu").env("LD_LIBRARY_PATH", &scratch.path));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");

    let machine = StandIns::with_cublas();
    let limits = machine.probe(&[], &[("STAND_IN_GPUS", "0")]);
    assert_eq!(limits.absent, ["the driver shows no GPU to this process"]);
    let limits = machine.probe(&[], &[("STAND_IN_MS", "nan,0,-1,inf")]);
    assert_eq!((limits.gpus[0].copies, limits.gpus[0].matrix.len()), (None, 0));
    assert_eq!(limits.absent[0], "GPU 0: copies: the device's clock measured no time for any pass");
}

#[test]
fn without_cublas_only_copies_are_probed_and_an_old_version_counts_as_absent() {
    let machine = StandIns::new(None);
    let limits = machine.probe(&[], &[]);
    // If the machine has a real cuBLAS, it fails on the stand-in driver, which runs no kernels.
    assert!(limits.gpus[0].copies.is_some() && limits.gpus[0].matrix.is_empty(), "{limits:?}");
    assert!(limits.absent[0].starts_with("GPU 0: products: "), "{limits:?}");
    let limits = StandIns::with_cublas().probe(&[], &[("STAND_IN_CUBLAS", "10020")]);
    assert_eq!(limits.absent, ["GPU 0: products: cuBLAS is too old (10020): expected 11 or later"]);
}

#[test]
fn cublas_is_found_in_the_environment_of_an_engine() {
    let wheel = "home/environments/toy-0123456789abcdef/lib/python3.11/site-packages/nvidia/cublas/lib";
    let machine = StandIns::new(Some(wheel));
    let limits = machine.probe(&[], &[]);
    assert_eq!((units(&limits.gpus[0]), limits.absent.len()), (UNITS.to_vec(), 0), "{limits:?}");
}

#[test]
fn cublas_is_found_in_the_users_python_after_an_unusable_cublas() {
    let machine = StandIns::new(Some("venv/lib/python3.12/site-packages/nvidia/cu13/lib"));
    let python = machine.scratch.join("venv/bin/python3");
    let variables = [("ORCHESTRATE_PYTHON_TOY", python.to_str().unwrap())];
    assert_eq!(units(&machine.probe(&[], &variables).gpus[0]), UNITS);
    // The cuBLAS in the loader's path is tried first. It creates no handle, as if it needed a newer driver.
    let in_loader_path = machine.driver().join("libcublas.so.13");
    compile("stand-in-cublas.c", &in_loader_path);
    let refusing = [variables[0], ("STAND_IN_REFUSES_FROM", in_loader_path.to_str().unwrap())];
    let limits = machine.probe(&[], &refusing);
    assert_eq!((units(&limits.gpus[0]), limits.absent.len()), (UNITS.to_vec(), 0), "{limits:?}");
}

#[test]
fn a_run_probes_gpus_once_and_only_if_an_engine_uses_one() {
    let machine = StandIns::with_cublas();
    let measure = |device: &str, crashes_in: &str| {
        let results = machine.scratch.join(&format!("results-{device}-{crashes_in}"));
        finish(&mut machine.run_command(device, &results, &[("STAND_IN_CRASHES", crashes_in)])).exits_with(0);
        Record::only_one_in(&results).entries("limits").into_iter().cloned().collect::<Vec<Value>>()
    };
    let limits = measure("cuda", "");
    assert_eq!(limits.len(), 1, "{limits:?}");
    assert_eq!((&limits[0]["block"], &limits[0]["gpus"][0]["name"]), (&json!(0), &json!("Pretence 9000")));
    let probed_gpus = || machine.log().iter().filter(|line| line.starts_with("retain")).count();
    assert_eq!(probed_gpus(), 1);
    assert_eq!(machine.log()[0], "order PCI_BUS_ID", "the probe must number GPUs as engines do");
    // A driver that crashes ends only the probe's process, not the run.
    let limits = measure("cuda", "cuMemAlloc_v2");
    assert_eq!(limits.len(), 1, "{limits:?}");
    let reason = limits[0]["absent"][0].as_str().unwrap();
    assert!(reason.starts_with("GPUs: the probe ended without an answer: signal"), "{reason}");
    assert_eq!(measure("cpu", ""), [Value::Null; 0]);
    assert_eq!(probed_gpus(), 2, "one for each run with `cuda`");
}

#[test]
fn a_prefill_on_a_known_gpu_has_its_share_of_the_peak_in_the_data_sheet() {
    let machine = StandIns::with_cublas();
    let measure = |name: &str| -> (PathBuf, Value) {
        let results = machine.scratch.join(&format!("results-{name}"));
        let mut command = machine.scratch.orchestrate();
        command.arg("-e").arg(fake_engine()).args([
            "-s",
            "prefill",
            "--prompt-tokens",
            "64",
            "--blocks",
            "1",
        ]);
        command.args(["--device", "cuda", "--dtype", "bf16", "--json", "-"]).arg("--results").arg(&results);
        command.env("LD_LIBRARY_PATH", machine.driver()).env("STAND_IN_NAME", name);
        let report = finish(command.current_dir(&machine.scratch.path)).exits_with(0).json();
        let record = results.join(format!("{}.jsonl", report["record"].as_str().unwrap()));
        (record, report)
    };
    let share = |report: &Value, metric: &str| {
        let metrics = report["cases"][0]["metrics"].as_array().unwrap();
        metrics.iter().find(|it| it["metric"] == metric).map(|it| it["estimate"].as_f64().unwrap())
    };
    let (record, report) = measure("NVIDIA H100 PCIe");
    let (measured, stated) =
        (share(&report, "compute_share").unwrap(), share(&report, "compute_data_sheet_share").unwrap());
    // The stand-in multiplies two matrices of side 8192 in 2 ms, and the data sheet states 756.5 × 10¹² operations a second.
    let probed = 2.0 * 8192_f64.powi(3) / 0.002;
    assert!((measured / stated * probed / 756.5e12 - 1.0).abs() < 1e-6, "{measured} {stated}");
    let show = |arguments: &[&str]| {
        let mut command = machine.scratch.orchestrate();
        finish(command.args(arguments).arg(&record)).exits_with(0).stdout
    };
    let full = show(&["report", "--full"]);
    assert!(full.contains("of data"), "{full}");
    let legend = "of data sheet: that of `H100 PCIe` states 757,000 × 10⁹ bf16 operations/s";
    assert!(full.contains(legend), "{full}");
    // The share of the measured limit has its class in every view.
    assert!(full.contains("share of this machine's limit: below 50 %: `fake-engine` prefill"), "{full}");
    let screen = show(&["report"]);
    assert!(screen.contains("share of this machine's limit: below 50 %: `fake-engine`"), "{screen}");
    assert_eq!(report["cases"][0]["limit_class"], "below_50");
    assert!(show(&["report", "--format", "csv"]).contains(",compute_data_sheet_share,share,"));
    let explained = show(&["explain", "fake-engine", "prefill"]);
    assert!(explained.contains("share of the data sheet's peak: "), "{explained}");
    // Of a part of this GPU, no data sheet is known.
    let (_, report) = measure("NVIDIA H100 PCIe MIG 1g.10gb");
    assert!(share(&report, "compute_share").is_some());
    assert_eq!(share(&report, "compute_data_sheet_share"), None);
}

#[test]
fn an_interrupt_ends_a_gpu_probe_that_does_not_answer() {
    let machine = StandIns::with_cublas();
    let results = machine.scratch.join("results");
    let hangs = [("STAND_IN_HANGS", "cuMemAlloc_v2")];
    let running = Running::start(&mut machine.run_command("cuda", &results, &hangs));
    let log = || std::fs::read_to_string(machine.scratch.join("log")).unwrap_or_default();
    wait_until("the driver is called", || log().contains("hangs in cuMemAlloc_v2"));
    running.interrupt();
    let record = Record::only_one_in(&results);
    // An entry would mean that the run waited for the probe's answer or for its deadline.
    assert_eq!((record.end(), record.entries("limits")), (Some("interrupted"), Vec::<&Value>::new()));
    machine.scratch.assert_no_processes_left();
}
