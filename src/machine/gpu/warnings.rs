//! Reasons against measuring on a GPU, before and while an engine computes on it, with their remedy.

use super::facts::Gpu;
use crate::machine::observed::GpuPass;

/// The only cause of a slowdown that is no fault: a large GPU under a heavy load lowers its clock to stay within its power
/// limit.
const POWER_LIMIT: &str = "sw_power_cap";

/// The reasons against measuring on these GPUs now.
pub fn warnings(gpus: &[Gpu]) -> Vec<String> {
    gpus.iter().flat_map(|gpu| [shared_gpu(gpu), lowered_limit(gpu)]).flatten().collect()
}

/// The causes that the driver reports for a slowdown while an engine computed. The power limit is left out unless it
/// is below the default: a large GPU normally runs at it, and a report has the share of samples with a slowdown.
pub fn slowdown_warning(pass: &GpuPass, gpu: Option<&Gpu>) -> Option<String> {
    let limits = |gpu: &Gpu| gpu.power_limit_milliwatts.zip(gpu.default_power_limit_milliwatts);
    let lowered_limit = gpu.and_then(limits).filter(|(limit, default)| limit < default);
    let faults = pass.throttled_by.iter().filter(|cause| *cause != POWER_LIMIT || lowered_limit.is_some());
    let causes = faults.map(String::as_str).collect::<Vec<_>>().join(", ");
    let has = |word: &str| causes.contains(word);
    let remedy = match () {
        () if has("thermal") => "let it cool, or limit its clock (`sudo nvidia-smi -lgc`)",
        () if has("brake") => "its power supply limited it; see `nvidia-smi -q -d PERFORMANCE`",
        () if causes == POWER_LIMIT => {
            "its power limit is below the default: raise it (`sudo nvidia-smi -pl`), or compare only values that were measured with the same limit"
        }
        () => "see `nvidia-smi -q -d PERFORMANCE`",
    };
    (!causes.is_empty())
        .then(|| format!("GPU {} was slowed down while it computed ({causes}); {remedy}", pass.index))
}

fn shared_gpu(gpu: &Gpu) -> Option<String> {
    let pids: Vec<String> = gpu.processes.iter().map(|process| process.pid.to_string()).collect();
    let (index, plural_end) = (gpu.index, if pids.len() == 1 { "" } else { "es" });
    let named = format!("process{plural_end} {}", pids.join(", "));
    let remedy = "end them and measure again (`nvidia-smi` shows them)";
    (!pids.is_empty()).then(|| format!("machine: other programs use GPU {index} ({named}); {remedy}"))
}

fn lowered_limit(gpu: &Gpu) -> Option<String> {
    let (limit, default) = gpu.power_limit_milliwatts.zip(gpu.default_power_limit_milliwatts)?;
    let [limit, default] = [limit, default].map(|milliwatts| f64::from(milliwatts) / 1000.0);
    let (index, remedy) = (gpu.index, format!("run `sudo nvidia-smi -i {} -pl {default}`", gpu.index));
    (limit < default).then(|| {
        format!("machine: GPU {index} is limited to {limit} W, but its default is {default} W; {remedy}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::gpu::facts::GpuProcess;

    fn with_limit(milliwatts: u32) -> Gpu {
        Gpu {
            power_limit_milliwatts: Some(milliwatts),
            default_power_limit_milliwatts: Some(700_000),
            ..Gpu::default()
        }
    }

    fn slowed_by(reasons: &[&str], gpu: Option<&Gpu>) -> Option<String> {
        let throttled_by = reasons.iter().map(|it| it.to_string()).collect();
        slowdown_warning(&GpuPass { throttled_by, ..GpuPass::default() }, gpu)
    }

    #[test]
    fn a_slowed_gpu_is_reported_with_a_remedy() {
        let warning = |reasons: &[&str]| slowed_by(reasons, Some(&with_limit(350_000)));
        assert_eq!(warning(&[]), None);
        assert!(warning(&["sw_power_cap"]).unwrap().contains("(sw_power_cap); its power limit is below the"));
        assert!(warning(&["sw_power_cap", "sw_thermal_slowdown"]).unwrap().contains("let it cool"));
        assert!(warning(&["hw_power_brake_slowdown", "hw_slowdown"]).unwrap().contains("power supply"));
        assert!(warning(&["sync_boost"]).unwrap().contains("PERFORMANCE"));
    }

    #[test]
    fn a_gpu_at_its_default_power_limit_gets_no_warning() {
        for gpu in [None, Some(&with_limit(700_000)), Some(&Gpu::default())] {
            assert_eq!(slowed_by(&["sw_power_cap"], gpu), None);
            let hot = slowed_by(&["hw_thermal_slowdown", "sw_power_cap"], gpu).unwrap();
            assert!(hot.contains("(hw_thermal_slowdown); let it cool"), "{hot}");
        }
    }

    #[test]
    fn other_programs_and_a_lowered_power_limit_are_reported_with_a_remedy() {
        let unused = with_limit(700_000);
        assert_eq!(warnings(std::slice::from_ref(&unused)), Vec::<String>::new());
        let processes = vec![GpuProcess { pid: 7, bytes: None }, GpuProcess { pid: 9, bytes: Some(1) }];
        let messages = warnings(&[Gpu { processes, power_limit_milliwatts: Some(350_500), ..unused }]);
        assert!(
            messages[0].starts_with("machine: other programs use GPU 0 (processes 7, 9)"),
            "{messages:?}"
        );
        assert!(
            messages[1].ends_with(
                "limited to 350.5 W, but its default is 700 W; run `sudo nvidia-smi -i 0 -pl 700`"
            ),
            "{messages:?}"
        );
    }
}
