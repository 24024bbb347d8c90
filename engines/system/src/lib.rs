//! Facts and permissions that the operating system gives to this process, for the orchestrator and the engines: its
//! processors, the available memory, the limits of its container, and the permission for AMX.

#[cfg(target_arch = "x86_64")]
pub mod amx;
pub mod container;
pub mod memory;
pub mod processors;

/// The text of a file in `/proc` or `/sys`; `None` if it cannot be read.
pub fn read(path: impl AsRef<std::path::Path>) -> Option<String> {
    std::fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
