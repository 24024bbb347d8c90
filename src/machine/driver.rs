//! Whether there is a GPU driver for an engine that cannot start without one. A run checks this before it builds anything, and a
//! refusal has a hint. If the signs are unclear, the engine may start, because it reports a missing driver itself.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nvml_wrapper::error::NvmlError;

use super::gpu;
use crate::shell::Unavailable;

/// Signs of NVIDIA's driver in the kernel: the module's own file, or the devices of a container or a sandbox.
const DRIVER_FILES: [&str; 3] = ["proc/driver/nvidia/version", "dev/nvidiactl", "dev/nvidia0"];
/// The library that every CUDA program opens.
const LIBRARY: &str = "libcuda.so.1";
/// The library's folder under WSL. WSL uses the driver of Windows, so Linux has no kernel module, only the device `/dev/dxg`.
const WSL_FOLDER: &str = "usr/lib/wsl/lib";
const USUAL_LIBRARY_FOLDERS: [&str; 8] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
    "usr/local/cuda/compat",
    "run/opengl-driver/lib",
    WSL_FOLDER,
];

/// `Ok` where an engine on CUDA may be started.
pub fn nvidia() -> Result<(), Unavailable> {
    static RESULT: OnceLock<Result<(), Unavailable>> = OnceLock::new();
    let check = || {
        let folders = std::env::var_os("LD_LIBRARY_PATH");
        decide(gpu::count(), || Signs::in_root(Path::new("/"), folders.as_deref()))
    };
    RESULT.get_or_init(check).clone()
}

/// The visible signs of the driver, without opening its libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Signs {
    is_loaded: bool,
    has_library: bool,
}

impl Signs {
    fn in_root(root: &Path, library_path: Option<&OsStr>) -> Self {
        let has_library = |folder: &Path| folder.join(LIBRARY).exists();
        let on_path: Vec<PathBuf> = library_path.iter().flat_map(std::env::split_paths).collect();
        let usual_folders = USUAL_LIBRARY_FOLDERS.map(|folder| root.join(folder));
        // The loader's cache is binary, but its names are plain text.
        let cache = std::fs::read(root.join("etc/ld.so.cache")).unwrap_or_default();
        let in_cache = cache.windows(LIBRARY.len()).any(|bytes| bytes == LIBRARY.as_bytes());
        let under_wsl = root.join("dev/dxg").exists() && has_library(&root.join(WSL_FOLDER));
        Self {
            is_loaded: under_wsl || DRIVER_FILES.iter().any(|sign| root.join(sign).exists()),
            has_library: in_cache || on_path.iter().chain(&usual_folders).any(|folder| has_library(folder)),
        }
    }
}

/// Decides by the number of GPUs that the driver's management library (NVML) reports. If NVML cannot answer, other signs decide,
/// because a container may have a GPU without NVML.
fn decide(count: Result<u32, NvmlError>, signs: impl FnOnce() -> Signs) -> Result<(), Unavailable> {
    let (reason, hint) = match count {
        Ok(0) => ("the NVIDIA driver finds no GPU", "`nvidia-smi -L` lists the GPUs that it finds"),
        Ok(_) => return Ok(()),
        Err(NvmlError::LibRmVersionMismatch) => (
            "the NVIDIA driver and its library have different versions",
            "restart the machine; until then `nvidia-smi` has the same error",
        ),
        Err(NvmlError::DriverNotLoaded) => NO_DRIVER,
        Err(_) => match signs() {
            Signs { is_loaded: false, .. } => NO_DRIVER,
            Signs { has_library: true, .. } => return Ok(()),
            Signs { has_library: false, .. } => (
                "the NVIDIA driver has no `libcuda.so.1`",
                "`find / -name libcuda.so.1`; add its folder to LD_LIBRARY_PATH",
            ),
        },
    };
    Err(Unavailable { reason: reason.into(), hint: Some(hint.into()) })
}

const NO_DRIVER: (&str, &str) =
    ("no NVIDIA driver found", "`nvidia-smi` lists the GPUs; containers need `--gpus all`");

#[cfg(test)]
mod tests {
    use super::*;

    const NO_SIGNS: Signs = Signs { is_loaded: false, has_library: false };
    const ONLY_DRIVER: Signs = Signs { is_loaded: true, has_library: false };
    const ONLY_LIBRARY: Signs = Signs { is_loaded: false, has_library: true };
    const ALL_SIGNS: Signs = Signs { is_loaded: true, has_library: true };

    fn reason(count: Result<u32, NvmlError>, signs: Signs) -> Option<String> {
        decide(count, || signs).err().map(|unavailable| unavailable.reason)
    }

    #[test]
    fn the_answer_of_nvml_decides_whether_there_is_a_gpu() {
        assert_eq!(reason(Ok(8), NO_SIGNS), None);
        assert_eq!(reason(Ok(0), ALL_SIGNS).unwrap(), "the NVIDIA driver finds no GPU");
        let not_loaded = reason(Err(NvmlError::DriverNotLoaded), ALL_SIGNS);
        assert_eq!(not_loaded.unwrap(), "no NVIDIA driver found");
        let updated = reason(Err(NvmlError::LibRmVersionMismatch), ALL_SIGNS);
        assert_eq!(updated.unwrap(), "the NVIDIA driver and its library have different versions");
    }

    #[test]
    fn without_nvml_a_usable_gpu_is_accepted() {
        let unknown = || Err(NvmlError::Unknown);
        assert_eq!(reason(unknown(), ALL_SIGNS), None);
        assert!(reason(unknown(), ONLY_DRIVER).unwrap().contains("no `libcuda.so.1`"));
        assert_eq!(reason(unknown(), NO_SIGNS).unwrap(), "no NVIDIA driver found");
        // Many images contain the library without a driver.
        assert_eq!(reason(unknown(), ONLY_LIBRARY).unwrap(), "no NVIDIA driver found");
    }

    #[test]
    fn a_driver_is_found_on_bare_metal_in_containers_and_under_wsl() {
        let scratch = tempfile::tempdir().unwrap();
        let signs_of = |machine: &str, files: &[&str]| {
            let root = scratch.path().join(machine);
            for file in files {
                let path = root.join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "0 libcuda.so.1 0").unwrap();
            }
            Signs::in_root(&root, Some(OsStr::new("/no/such/folder")))
        };
        let library = "usr/lib/x86_64-linux-gnu/libcuda.so.1";
        assert_eq!(signs_of("nothing", &["dev/null", "etc/hosts"]), NO_SIGNS);
        assert_eq!(signs_of("metal", &["proc/driver/nvidia/version", library]), ALL_SIGNS);
        assert_eq!(signs_of("cached", &["proc/driver/nvidia/version", "etc/ld.so.cache"]), ALL_SIGNS);
        assert_eq!(signs_of("sandbox", &["dev/nvidiactl", "usr/local/nvidia/lib64/libcuda.so.1"]), ALL_SIGNS);
        assert_eq!(signs_of("no-library", &["dev/nvidia0"]), ONLY_DRIVER);
        assert_eq!(signs_of("image", &[library]), ONLY_LIBRARY);
        assert_eq!(signs_of("windows", &["dev/dxg", "usr/lib/wsl/lib/libcuda.so.1"]), ALL_SIGNS);
        assert_eq!(signs_of("other-gpu", &["dev/dxg"]), NO_SIGNS);
    }

    #[test]
    fn messages_about_drivers_fit_the_terminal() {
        let errors = [NvmlError::Unknown, NvmlError::LibRmVersionMismatch, NvmlError::DriverNotLoaded];
        for count in std::iter::once(Ok(0)).chain(errors.map(Err)) {
            let unavailable = decide(count, || ONLY_DRIVER).unwrap_err();
            // The form that is printed below a table.
            let hint = format!("  hint: {}", unavailable.hint.unwrap());
            assert!(unavailable.reason.len() <= 72 && hint.len() <= 80, "{hint}");
        }
    }
}
