//! The GPUs that an engine computed on. NVML and CUDA count GPUs differently, and the record has the facts that map one to the
//! other.

use machine_limits::Limits;

use super::description::Machine;
use super::gpu::Gpu;
use super::observed::GpuPass;

/// NVML's indices of the GPUs on which the driver saw the engine's processes, or else of the GPU that the engine's device names.
pub fn gpus_of(
    gpus: &[GpuPass],
    cuda_index: Option<u32>,
    machine: Option<&Machine>,
    limits: Option<&Limits>,
) -> Option<Vec<u32>> {
    let is_used = |gpu: &&GpuPass| gpu.process_bytes.is_some_and(|bytes| bytes > 0);
    let used: Vec<u32> = gpus.iter().filter(is_used).map(|gpu| gpu.index).collect();
    if used.is_empty() { Some(vec![gpu_of_cuda_index(cuda_index?, machine, limits)?]) } else { Some(used) }
}

/// The GPU by the identity that the probe of limits recorded, or else by CUDA's variables. Without facts of the machine, NVML's
/// index is assumed to equal CUDA's.
fn gpu_of_cuda_index(index: u32, machine: Option<&Machine>, limits: Option<&Limits>) -> Option<u32> {
    let Some(machine) = machine else { return Some(index) };
    let probed = limits.and_then(|limits| limits.gpus.iter().find(|gpu| gpu.index == index));
    let by_identity = probed.and_then(|gpu| gpu.uuid.as_ref()).and_then(|uuid| {
        // NVML puts a prefix before the identity: `GPU-`, `MIG-`.
        let matches =
            |identity: &String| identity.split_once('-').is_some_and(|(_, it)| it.eq_ignore_ascii_case(uuid));
        let has_uuid = |gpu: &&Gpu| gpu.uuid.iter().chain(&gpu.mig_uuids).any(matches);
        machine.gpus.iter().find(has_uuid).map(|gpu| gpu.index)
    });
    by_identity.or_else(|| machine.gpu_of(index))
}

#[cfg(test)]
mod tests {
    use machine_limits::GpuLimits;

    use super::*;
    use crate::machine::gpu::Cuda;

    #[test]
    fn identities_from_cuda_decide_which_gpu_a_name_means() {
        let gpu = |index, uuid: &str| Gpu { index, uuid: Some(uuid.into()), ..Gpu::default() };
        let cuda = Cuda { device_order: "PCI_BUS_ID".into(), visible_devices: None };
        let gpus = vec![gpu(0, "GPU-a"), gpu(1, "GPU-b")];
        let machine = Machine { gpus, cuda: Some(cuda), ..Machine::default() };
        let probed = GpuLimits { index: 0, uuid: Some("B".into()), ..GpuLimits::default() };
        let limits = Limits { gpus: vec![probed], ..Limits::default() };
        assert_eq!(gpu_of_cuda_index(0, Some(&machine), Some(&limits)), Some(1));
        assert_eq!(gpu_of_cuda_index(1, Some(&machine), Some(&limits)), Some(1));
        assert_eq!(gpu_of_cuda_index(7, None, None), Some(7));
    }

    #[test]
    fn an_engines_gpus_hold_its_memory_or_else_match_its_device_name() {
        let gpu = |index, process_bytes| GpuPass { index, process_bytes, ..GpuPass::default() };
        let gpus = [gpu(0, Some(0)), gpu(1, Some(5)), gpu(2, None)];
        assert_eq!(gpus_of(&gpus, Some(0), None, None), Some(vec![1]));
        assert_eq!(gpus_of(&gpus[..1], Some(2), None, None), Some(vec![2]));
        assert_eq!(gpus_of(&gpus[..1], None, None, None), None);
    }
}
