//! Optional libraries, loaded at run time.
#![expect(unsafe_code, reason = "what a library holds under a name is its word alone")]

use std::ffi::OsStr;

use libloading::Library;

/// The first of these libraries that loads. It is never unloaded: NVIDIA's libraries register exit handlers, and function
/// pointers must stay valid.
pub fn open<N: AsRef<OsStr>>(names: impl IntoIterator<Item = N>) -> Option<&'static Library> {
    names.into_iter().find_map(|name| {
        // SAFETY: loading runs the library's initialisers. The names are those of NVIDIA's libraries, which any program may
        // load; a person who can put another file into the loader's path could also preload it.
        let library = unsafe { Library::new(name.as_ref()) }.ok()?;
        Some(&*Box::leak(Box::new(library)))
    })
}

/// Folders where containers mount a driver that their loader may not know.
const MOUNTED: [&str; 2] = ["/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"];

/// Opens the driver's library: from the loader's paths, then from the mount folders.
pub fn open_driver(name: &str) -> Option<&'static Library> {
    let mounted = MOUNTED.iter().map(|folder| format!("{folder}/{name}"));
    open(std::iter::once(name.to_string()).chain(mounted))
}

/// A function of the library by name.
///
/// # Safety
/// `F` is a function pointer type, and matches the declaration of that name in the library's header.
pub unsafe fn function<F: Copy>(library: &'static Library, name: &str) -> Result<F, String> {
    // SAFETY: the caller guarantees the type, and the library is never closed.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map(|function| *function).map_err(|_| format!("the library has no `{name}`"))
}
