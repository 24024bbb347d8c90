use super::*;
use crate::machine::gpu::Cuda;
use crate::machine::gpu::facts::GpuProcess;
use crate::report::tests::{assert_fits, words};
use crate::report::{FORMATS, shown};

/// A machine of which most facts are known.
fn page() -> Page {
    let cpu = Cpu {
        model: Some("AMD EPYC 9554 64-Core Processor\u{1b}[2J".into()),
        logical_cores: Some(256),
        physical_cores: Some(128),
        allowed_cores: Some(64),
        simd: ["avx2", "f16c", "fma", "avx512f", "avx512_vnni", "avx512_bf16"].map(String::from).to_vec(),
        caches: vec![
            Cache { level: 1, kind: "Data".into(), size_bytes: 32 << 10, shared_by: 2 },
            Cache { level: 3, kind: "Unified".into(), size_bytes: 32 << 20, shared_by: 16 },
        ],
        governor: Some("powersave".into()),
        mhz: Some(3751),
        max_mhz: Some(3751),
        smt: Some(true),
        numa_nodes: Some(2),
        hypervisor: Some(false),
    };
    let gpu = Gpu {
        index: 0,
        name: Some("NVIDIA H900 80GB HBM3".into()),
        driver: Some("570.86".into()),
        cuda: Some("12.8".into()),
        compute_capability: Some("9.0".into()),
        memory_bytes: Some(80 << 30),
        memory_used_bytes: Some(5 << 30),
        clock_mhz: Some(345),
        max_clock_mhz: Some(1980),
        temperature_celsius: Some(41),
        utilisation_percent: Some(0),
        power_limit_milliwatts: Some(700_000),
        ecc: Some(true),
        mig: Some(true),
        mig_profiles: vec!["1g.10gb".into(), "2g.20gb".into()],
        processes: vec![GpuProcess { pid: 4711, bytes: Some(5 << 30) }],
        ..Gpu::default()
    };
    let machine = Machine {
        cpu,
        memory_bytes: Some(768 << 30),
        cpu_limit_millicpus: Some(1500),
        os: "Debian GNU/Linux 12 (bookworm)".into(),
        architecture: "x86_64".into(),
        kernel: Some("6.1.0-18-amd64".into()),
        load_average: Some([0.5, 0.4, 0.3]),
        steal_share: Some(0.0031),
        huge_pages: Some("madvise".into()),
        kernel_parameters: vec!["mitigations=off".into()],
        gpus: vec![gpu],
        ..Machine::default()
    };
    let denied = ListedCounter { name: "package-0".into(), trouble: Some("permission denied".into()) };
    Page {
        orchestrate_version: "0.1.0".into(),
        commit: Some("32c50c8".into()),
        fingerprint: "a1b2c3".into(),
        machine,
        versions: [("glibc", "2.36".to_string())].into(),
        energy: vec![denied, ListedCounter { name: "gpu-0".into(), trouble: None }],
        limits: None,
        warnings: vec!["machine: the frequency governor of 64 cores is `powersave`, so clocks follow the load with a delay; \
            run `sudo cpupower frequency-set --governor performance`".into()],
    }
}

#[test]
fn the_page_shows_all_known_facts_within_its_width() {
    let text = shown(&page(), "table", Some(80));
    assert_fits(&text, 80);
    assert!(!text.contains('\u{1b}'), "{text}");
    let text = words(&text);
    for expected in [
        "fingerprint a1b2c3",
        "64 allowed, 256 logical, 128 physical, two threads on each (SMT), 2 NUMA nodes",
        "L1d 32 KiB for 2 cores, L3 32 MiB for 16 cores",
        "3751 MHz now; 3751 MHz at most; governor powersave",
        "no hypervisor; steal since boot 0.31 %",
        "768.0 GiB; transparent huge pages madvise",
        "6.1.0-18-amd64; mitigations=off",
        "at most 1.5 CPUs; no memory limit",
        "package-0 cannot be read (permission denied), gpu-0; hint: sudo chmod a+r",
        "GPU 0 NVIDIA H900 80GB HBM3; 80.0 GiB; MIG 1g.10gb + 2g.20gb; compute capability 9.0; driver 570.86; CUDA 12.8; ECC",
        "clock 345 of 1980 MHz; 41 °C; 0 % busy; 5.0 GiB in use; power limit 700 W",
        "used by processes 4711 (5.0 GiB)",
        "orchestrate 0.1.0 (32c50c8), glibc 2.36",
        "warning: machine: the frequency governor",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

#[test]
fn a_gpu_has_the_name_that_engines_use_where_it_is_not_obvious() {
    let mut page = page();
    let second = Gpu { index: 1, power_milliwatts: Some(69_600), ..page.machine.gpus[0].clone() };
    page.machine.gpus[0].mig = None;
    page.machine.gpus.push(Gpu { mig: None, ..second });
    let text_of = |page: &Page| words(&shown(page, "table", Some(80)));
    let cuda = |order: &str, visible: Option<&str>| {
        Some(Cuda { device_order: order.into(), visible_devices: visible.map(String::from) })
    };
    page.machine.cuda = cuda("PCI_BUS_ID", None);
    assert!(
        !text_of(&page).contains("cuda:") && text_of(&page).contains("70 of 700 W"),
        "{}",
        text_of(&page)
    );
    page.machine.cuda = cuda("PCI_BUS_ID", Some("1"));
    let text = text_of(&page);
    assert!(text.contains("GPU 0 NVIDIA H900 80GB HBM3;"), "{text}");
    assert!(text.contains("hidden from engines") && text.contains("`--device cuda:0`"), "{text}");
    page.machine.cuda = cuda("FASTEST_FIRST", None);
    assert_eq!(text_of(&page).matches("hint: CUDA_DEVICE_ORDER=PCI_BUS_ID").count(), 1, "{}", text_of(&page));
    assert_fits(&shown(&page, "table", Some(80)), 80);
}

#[test]
fn a_partitioned_gpu_gives_one_hint_to_name_a_part() {
    let mut page = page();
    page.machine.gpus[0].mig_uuids = vec!["MIG-22345678-aaaa-bbbb-cccc-0123456789ab".into()];
    page.machine.gpus.push(Gpu {
        index: 1,
        mig: Some(false),
        mig_uuids: vec![],
        ..page.machine.gpus[0].clone()
    });
    // The hint about a part takes precedence over the hint about CUDA's order of devices.
    for order in ["PCI_BUS_ID", "FASTEST_FIRST"] {
        page.machine.cuda = Some(Cuda { device_order: order.into(), visible_devices: None });
        let text = shown(&page, "table", Some(80));
        let words = words(&text);
        let remedy = "hint: CUDA_VISIBLE_DEVICES=MIG-22345678-aaaa-bbbb-cccc-0123456789ab";
        assert_eq!(words.matches(remedy).count(), 1, "{text}");
        assert!(!words.contains("CUDA_DEVICE_ORDER"), "{text}");
        assert_fits(&text, 80);
    }
    page.machine.gpus[0].mig_uuids.clear();
    assert!(
        shown(&page, "table", Some(200)).contains("hint: CUDA_VISIBLE_DEVICES=MIG-…"),
        "{}",
        shown(&page, "table", Some(200))
    );
}

#[test]
fn visible_devices_that_name_no_gpu_have_their_own_message() {
    let mut page = page();
    page.machine.gpus[0].mig = None;
    // Slurm sets `NoDevFiles` for a job without GPUs.
    for list in ["-1", "", "NoDevFiles"] {
        page.machine.cuda =
            Some(Cuda { device_order: "PCI_BUS_ID".into(), visible_devices: Some(list.into()) });
        let text = shown(&page, "table", Some(200));
        assert!(text.contains("hidden from engines: CUDA_VISIBLE_DEVICES names no GPU"), "{text}");
    }
}

#[test]
fn a_virtual_machine_shows_the_hypervisors_clock() {
    let mut page = page();
    page.machine.cpu.hypervisor = Some(true);
    let text = shown(&page, "table", Some(200));
    assert!(text.contains("3751 MHz as the hypervisor reports") && !text.contains("MHz now"), "{text}");
}

#[test]
fn a_limit_that_could_not_be_read_is_unknown() {
    let mut page = page();
    page.machine.cpu_limit_millicpus = None;
    let container = |page: &Page| {
        let text = shown(page, "table", Some(200));
        text.lines().find_map(|line| line.strip_prefix("container")).unwrap().trim().to_string()
    };
    assert_eq!(container(&page), "no CPU limit; no memory limit");
    page.machine.memory_limit_unknown = true;
    assert_eq!(container(&page), "no CPU limit; memory limit unknown");
    page.machine.cpu_limit_unknown = true;
    assert_eq!(container(&page), "limits unknown");
}

#[test]
fn an_unknown_machine_has_a_page_of_unknowns() {
    let text = shown(&Page::default(), "table", Some(40));
    assert!(text.contains("CPU           unknown") && text.contains("no energy counters"), "{text}");
    assert!(text.contains("GPUs          none that a driver reports"), "{text}");
    assert!(!text.contains("clock") && !text.contains("warning"), "{text}");
}

#[test]
fn the_page_is_shown_in_every_format_except_formats_of_lines() {
    let markdown = shown(&page(), "markdown", None);
    assert!(
        markdown.contains("- fingerprint: a1b2c3\n") && markdown.contains("- warning: machine: "),
        "{markdown}"
    );
    assert!(!markdown.contains('\u{1b}'), "{markdown}");
    let json: serde_json::Value = serde_json::from_str(&shown(&page(), "json", None)).unwrap();
    assert_eq!((&json["fingerprint"], &json["limits"]), (&"a1b2c3".into(), &serde_json::Value::Null));
    for format in FORMATS {
        assert_eq!(
            format.render(&page(), crate::report::Screen::default()).is_none(),
            format.has_lines(),
            "{}",
            format.name
        );
    }
}
