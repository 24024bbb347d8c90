//! Names of devices: `cpu`, `cuda`, `cuda:1`.

/// The device that every machine has, and that a witness computes on.
pub const CPU: &str = "cpu";

/// What `cuda:1` and `cuda` have in common.
pub fn family(device: &str) -> &str {
    device.split(':').next().unwrap_or_default()
}

pub fn is_cpu(device: &str) -> bool {
    device.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("cpu"))
}

/// Of what an engine says that it computes on: `cuda` is said of any of them, and is then the one that was asked for.
pub fn cuda_index(stated: &str, asked: &str) -> Option<u32> {
    let index = gpu_index(stated)?;
    if stated.contains(':') { Some(index) } else { gpu_index(asked) }
}

/// CUDA's, of a GPU that limits are probed of: `cuda`, which is the first, or `cuda:1`.
pub fn gpu_index(device: &str) -> Option<u32> {
    let device = device.to_ascii_lowercase();
    let after = device.strip_prefix("cuda")?;
    if after.is_empty() { Some(0) } else { after.strip_prefix(':')?.parse().ok() }
}
