//! The memory that is available, and the longest context that it allows.

use std::path::{Path, PathBuf};

use protocol::Failed;

use crate::cache::Cache;
use crate::kernels::attention::{KvDtype, TILE_POSITIONS};
use crate::shape::Shape;
use crate::weights::Plan;

/// Chooses the context of a load. Returns its tokens, and a note if they are fewer than the model's context.
pub fn choose_context(
    shape: &Shape,
    kv_dtype: KvDtype,
    plan: &Plan,
    requested: Option<u32>,
    available_bytes: Option<u64>,
) -> Result<(usize, Option<String>), Failed> {
    let model_context = shape.context;
    let bytes = |tokens| Cache::bytes_for(shape, tokens, kv_dtype) as u64;
    // A cache is touched as it fills, so without an explicit request its full memory is not required.
    let Some(requested) = requested else {
        plan.refuse_if_too_large(0, available_bytes)?;
        let left_bytes = available_bytes.map_or(u64::MAX, |available| available.saturating_sub(plan.bytes()));
        let tokens = longest_context(model_context, |tokens| bytes(tokens) <= left_bytes);
        let note = || {
            format!(
                "context limited to {tokens} of {model_context} tokens: the keys and values of all need {} bytes, \
                 {left_bytes} are available; set `context_tokens` to change it",
                bytes(model_context)
            )
        };
        return Ok((tokens, (tokens < model_context).then(note)));
    };
    let tokens = model_context.min(requested as usize);
    plan.refuse_if_too_large(bytes(tokens), available_bytes)?;
    Ok((tokens, None))
}

/// The whole context, or the largest power of two that fits. Powers of two keep the result the same when the free memory
/// differs a little from load to load.
fn longest_context(context: usize, fits: impl Fn(usize) -> bool) -> usize {
    if fits(context) {
        return context;
    }
    let mut tokens = context.next_power_of_two();
    while tokens > TILE_POSITIONS && (tokens >= context || !fits(tokens)) {
        tokens /= 2;
    }
    tokens.min(context)
}

/// The memory that a program can take without swapping: the kernel's estimate for the machine, limited by the container. Pages
/// of files count as free, mapped or not, because they can be read again. `None` if unknown.
pub fn available_bytes() -> Option<u64> {
    available(&|path| std::fs::read_to_string(path).ok())
}

type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

fn available(read: Read) -> Option<u64> {
    let machine_bytes = read(Path::new("/proc/meminfo")).and_then(|meminfo| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let left_bytes = groups.lines().filter_map(Cgroup::of).filter_map(|group| group.left_bytes(read));
    machine_bytes.into_iter().chain(left_bytes).min()
}

/// A process group with a memory limit, described by the files of Linux cgroups, version 1 or 2.
struct Cgroup<'a> {
    root: &'static str,
    path: &'a str,
    limit: &'static str,
    used: &'static str,
    /// The statistics that count pages of files.
    files: [&'static str; 2],
}

impl<'a> Cgroup<'a> {
    /// Parses a line `NUMBER:CONTROLLERS:PATH`; version 2 has `0::PATH`.
    fn of(line: &'a str) -> Option<Self> {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        if controllers.is_empty() {
            let files = ["inactive_file", "active_file"];
            return Some(Self {
                root: "/sys/fs/cgroup",
                path,
                limit: "memory.max",
                used: "memory.current",
                files,
            });
        }
        controllers.split(',').any(|name| name == "memory").then_some(Self {
            root: "/sys/fs/cgroup/memory",
            path,
            limit: "memory.limit_in_bytes",
            used: "memory.usage_in_bytes",
            files: ["total_inactive_file", "total_active_file"],
        })
    }

    /// The least memory that the limits of the group and its ancestors leave, as far as they are readable. A container may not
    /// see its own cgroup path.
    fn left_bytes(&self, read: Read) -> Option<u64> {
        let folder: PathBuf = Path::new(self.root).join(self.path.trim_start_matches('/'));
        let folders = folder.ancestors().take_while(|folder| folder.starts_with(self.root));
        let left_bytes = folders.filter_map(|folder| {
            let number = |name: &str| read(&folder.join(name))?.trim().parse::<u64>().ok();
            let (limit, used) = (number(self.limit)?, number(self.used)?);
            let statistics = read(&folder.join("memory.stat")).unwrap_or_default();
            let fields = statistics.lines().filter_map(|line| line.split_once(' '));
            let file_bytes = fields.filter(|(name, _)| self.files.contains(name));
            let file_bytes: u64 = file_bytes.filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok()).sum();
            Some(limit.saturating_sub(used.saturating_sub(file_bytes)))
        });
        left_bytes.min()
    }
}

#[cfg(test)]
mod tests {
    use model_files::{Dtype, Format, Goal, ModelFolder};

    use super::*;
    use crate::weights::RequestedFormat;

    #[test]
    fn the_context_is_the_models_or_else_the_largest_power_of_two_that_fits() {
        let longest_context = |context, fitting| longest_context(context, |tokens| tokens <= fitting);
        assert_eq!(
            (longest_context(131_072, 131_072), longest_context(7_900_000, usize::MAX)),
            (131_072, 7_900_000)
        );
        assert_eq!((longest_context(131_072, 131_071), longest_context(131_072, 40_000)), (65_536, 32_768));
        assert_eq!((longest_context(7_900_000, 7_899_999), longest_context(5000, 4500)), (4_194_304, 4096));
        // At least one block always fits, because the kit refuses texts that are too long.
        assert_eq!((longest_context(5000, 0), longest_context(40, 0)), (TILE_POSITIONS, 40));
    }

    #[test]
    fn the_memory_of_the_weights_is_not_available_to_keys_and_values() {
        let (folder, model) = (env!("CARGO_MANIFEST_DIR"), tempfile::tempdir().unwrap());
        let config = std::path::Path::new(folder).join("tests/golden/configs/llama.json");
        let (out, dtype) = (model.path().join("model"), Dtype::BF16);
        let goal = Goal { format: Format::Safetensors, dtype, out: out.clone() };
        let numbers = model_files::Shape::of_config(&config).unwrap();
        model_files::synthesise(&numbers, 7, &goal, &|_, _| Ok(())).unwrap();
        let folder = ModelFolder::open(&out).unwrap();
        let shape = Shape { context: 1 << 20, ..Shape::of(&folder).unwrap() };
        let plan = Plan::of(&folder, &shape, RequestedFormat::File).unwrap();
        let fitting = |requested, available| {
            choose_context(&shape, KvDtype::F16, &plan, requested, Some(available))
                .map(|(tokens, _)| tokens)
                .ok()
        };
        let needed = plan.bytes() + Cache::bytes_for(&shape, 4096, KvDtype::F16) as u64;
        assert_eq!((fitting(None, needed), fitting(None, needed - 1)), (Some(4096), Some(2048)));
        assert_eq!((fitting(Some(4096), needed), fitting(Some(4096), needed - 1)), (Some(4096), None));
        assert_eq!(
            (fitting(None, plan.bytes()), fitting(None, plan.bytes() - 1)),
            (Some(TILE_POSITIONS), None)
        );
    }

    fn available_with(files: &[(&str, &str)]) -> Option<u64> {
        available(&|path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map(|(_, text)| (*text).to_string())
        })
    }

    const MACHINE: (&str, &str) =
        ("/proc/meminfo", "MemTotal:       24000000 kB\nMemAvailable:   12000000 kB\nBuffers: 1 kB\n");

    #[test]
    fn the_kernels_estimate_is_read_from_meminfo() {
        assert_eq!(available_with(&[MACHINE]), Some(12_000_000 * 1024));
        assert_eq!(
            (available_with(&[]), available_with(&[("/proc/meminfo", "MemAvailable: much kB\n")])),
            (None, None)
        );
    }

    #[test]
    fn the_smallest_limit_of_a_group_and_its_ancestors_counts_without_pages_of_files() {
        let mut files = vec![
            MACHINE,
            ("/proc/self/cgroup", "0::/pod/box\n"),
            ("/sys/fs/cgroup/pod/box/memory.max", "max\n"),
            ("/sys/fs/cgroup/pod/memory.max", "5000\n"),
            ("/sys/fs/cgroup/pod/memory.current", "4500\n"),
            ("/sys/fs/cgroup/pod/memory.stat", "anon 900\ninactive_file 2000\nactive_file 1500\n"),
        ];
        assert_eq!(available_with(&files), Some(4000));
        files.pop();
        assert_eq!(available_with(&files), Some(500));
    }

    #[test]
    fn a_version_1_path_that_a_container_does_not_see_is_read_from_the_mounted_root() {
        let files = [
            ("/proc/self/cgroup", "9:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "8000\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "9000\n"),
            ("/sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 2500\n"),
        ];
        assert_eq!(available_with(&files), Some(1500));
    }
}
