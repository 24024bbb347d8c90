//! Libraries that are there or not, found when they are asked for.
#![expect(unsafe_code, reason = "what a library holds under a name is its word alone")]

use std::ffi::OsStr;

use libloading::Library;

/// The first of these that can be loaded. It stays for as long as the process lives: NVIDIA's libraries register what is to run
/// at its end, and a function that was taken from one is never left without it.
pub fn open<N: AsRef<OsStr>>(names: impl IntoIterator<Item = N>) -> Option<&'static Library> {
    names.into_iter().find_map(|name| {
        // SAFETY: initialisers of a library run now. The names are those of NVIDIA's libraries, which are made to be loaded
        // so by any program; whoever puts something else under them into the loader's path could preload it as well.
        let library = unsafe { Library::new(name.as_ref()) }.ok()?;
        Some(&*Box::leak(Box::new(library)))
    })
}

/// Where containers mount a driver that their loader may not know.
const MOUNTED: [&str; 2] = ["/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"];

/// The driver's: where the loader looks, then where it may be mounted.
pub fn open_driver(name: &str) -> Option<&'static Library> {
    let mounted = MOUNTED.iter().map(|folder| format!("{folder}/{name}"));
    open(std::iter::once(name.to_string()).chain(mounted))
}

/// What the library holds under a name, as a function.
///
/// # Safety
/// `F` is the type of a pointer to a function, and the one that the library's header declares under that name.
pub unsafe fn function<F: Copy>(library: &'static Library, name: &str) -> Result<F, String> {
    // SAFETY: the caller's promise; and the library is never closed.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map(|function| *function).map_err(|_| format!("the library has no `{name}`"))
}
