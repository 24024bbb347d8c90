//! NVIDIA's libraries, opened at run time: a machine may lack them, and a build needs none of them.
#![expect(unsafe_code, reason = "opens libraries and looks up their functions at run time")]

use std::env::{split_paths, var_os};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use protocol::{Failed, FailureKind};

/// A library that is never closed: NVIDIA's libraries register exit handlers, and function pointers must stay valid.
#[derive(Debug, Clone, Copy)]
pub struct Library {
    handle: &'static libloading::Library,
    name: &'static str,
}

impl Library {
    /// NVIDIA's driver: from the loader's path, or from the folders in which a container or WSL has the driver of its host.
    pub fn driver() -> Result<Self, Failed> {
        let folders = ["/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"];
        let names = ["libcuda.so.1"];
        Self::find(&names, &folders.map(PathBuf::from)).ok_or_else(|| {
            let message = "no `libcuda.so.1`: the NVIDIA driver is not installed";
            Failed::new(FailureKind::Unavailable, message).hint("nvidia-smi    # or use `--device cpu`")
        })
    }

    /// The compiler of kernels.
    pub fn nvrtc() -> Result<Self, Failed> {
        Self::of_toolkit(&["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"])
    }

    /// The products of large matrices.
    pub fn cublas() -> Result<Self, Failed> {
        Self::of_toolkit(&["libcublas.so.13", "libcublas.so.12", "libcublas.so"])
    }

    /// Opens a library of a CUDA toolkit: from the loader's path, then from the folders of toolkits and Python packages.
    fn of_toolkit(names: &'static [&'static str]) -> Result<Self, Failed> {
        Self::find(names, &toolkit_folders()).ok_or_else(|| {
            let message = format!("no `{}` in the loader's path, a CUDA toolkit or a Python environment", names[0]);
            let hint = "python3 -m pip install nvidia-cuda-nvrtc nvidia-cublas, or: export CUDA_HOME=/usr/local/cuda";
            Failed::new(FailureKind::Unavailable, message).hint(hint)
        })
    }

    fn find(names: &[&'static str], folders: &[PathBuf]) -> Option<Self> {
        let in_folders = folders.iter().flat_map(|folder| {
            let candidates = names.iter().map(move |name| (*name, folder.join(name)));
            candidates.filter(|(_, path)| path.is_file())
        });
        let by_loader = names.iter().map(|name| (*name, PathBuf::from(name)));
        by_loader.chain(in_folders).find_map(|(name, path)| {
            if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                open_dependencies(folder);
            }
            Some(Self { handle: open(&path)?, name })
        })
    }

    /// A function by name.
    ///
    /// # Safety
    /// `F` is a function pointer type, and matches the declaration of that name in the library's header.
    pub unsafe fn function<F: Copy>(self, name: &str) -> Result<F, Failed> {
        // SAFETY: the caller guarantees the type, and the library is never closed.
        let symbol = unsafe { self.handle.get::<F>(name.as_bytes()) };
        symbol.map(|function| *function).map_err(|_| {
            let message = format!("`{}` has no `{name}`: the library is too old", self.name);
            Failed::new(FailureKind::Unavailable, message)
                .hint("nvidia-smi    # CUDA 12.0 or later is needed")
        })
    }
}

/// Opens the libraries that others in the folder need: a loader does not search the folder of a file that is opened by path,
/// but it finds a library of the same name that is open.
/// A failure is ignored, because the other libraries may still find these by themselves.
fn open_dependencies(folder: &Path) {
    let is_dependency =
        |name: &str| name.starts_with("libnvrtc-builtins.so.") || name.starts_with("libcublasLt.so.");
    let Ok(entries) = folder.read_dir() else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(is_dependency) {
            open(&entry.path());
        }
    }
}

fn open(path: &Path) -> Option<&'static libloading::Library> {
    // SAFETY: opening runs the library's initialisers. The names are those of NVIDIA's libraries, which any program may load;
    // a person who can put another file into the loader's path could also preload it.
    let library = unsafe { libloading::Library::new(path) }.ok()?;
    Some(&*Box::leak(Box::new(library)))
}

/// The existing folders that may have libraries of a CUDA toolkit.
fn toolkit_folders() -> Vec<PathBuf> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(var_os).map(PathBuf::from);
    let installed = entries_with_prefix(Path::new("/usr/local"), "cuda");
    let parts = ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"];
    let toolkits = homes.chain(installed).chain([PathBuf::from("/opt/cuda")]);
    let mut folders: Vec<PathBuf> = toolkits
        .flat_map(|home| parts.map(|part| home.join(part)))
        .filter(|folder| folder.is_dir())
        .collect();
    folders.extend(python().iter().flat_map(|python| package_folders(python)));
    folders
}

/// The Python that the user names for this engine or for all engines, or else the first `python3` on PATH.
fn python() -> Option<PathBuf> {
    if let Ok(Some(own_python)) = paths::own_python("lmrs") {
        return Some(own_python.interpreter);
    }
    split_paths(&var_os("PATH")?).map(|folder| folder.join("python3")).find(|path| path.is_file())
}

/// The library folders of NVIDIA's packages for this Python: of its environment, and of the one in which it is installed.
fn package_folders(python: &Path) -> Vec<PathBuf> {
    let homes = [Some(python.to_path_buf()), python.canonicalize().ok()];
    let homes = homes.into_iter().flatten().filter_map(|path| Some(path.parent()?.parent()?.to_path_buf()));
    let versions = homes.flat_map(|home| {
        let libraries = [home.join("lib"), home.join("local/lib"), home.join("lib64")];
        libraries.into_iter().flat_map(|folder| entries_with_prefix(&folder, "python3"))
    });
    let packages =
        versions.flat_map(|version| ["site-packages", "dist-packages"].map(|name| version.join(name)));
    let libraries = packages.flat_map(|packages| entries_with_prefix(&packages.join("nvidia"), ""));
    libraries.map(|package| package.join("lib")).filter(|folder| folder.is_dir()).collect()
}

/// The folder's entries whose names begin with `prefix`, the last in order of names first, so that newer versions come first.
fn entries_with_prefix(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    let has_prefix = |path: &PathBuf| {
        path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(prefix))
    };
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(has_prefix).collect();
    found.sort();
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packages_of_a_python_have_library_folders() {
        let home = tempfile::tempdir().unwrap();
        let packages = home.path().join("lib/python3.12/site-packages/nvidia");
        for folder in ["cu13/lib", "cuda_nvrtc/lib", "empty"] {
            std::fs::create_dir_all(packages.join(folder)).unwrap();
        }
        let expected = ["cuda_nvrtc/lib", "cu13/lib"].map(|folder| packages.join(folder));
        assert_eq!(package_folders(&home.path().join("bin/python3")), expected);
    }

    #[test]
    fn a_missing_library_is_not_found_and_no_panic() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libno-such.so.1"), "no library").unwrap();
        assert!(Library::find(&["libno-such.so.1"], &[folder.path().into(), "/no/such".into()]).is_none());
    }
}
