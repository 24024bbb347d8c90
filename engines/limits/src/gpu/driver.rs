//! Optional libraries, opened at run time, and the few CUDA driver functions that a probe needs. Each value releases what it
//! holds when it is dropped, and the context is dropped last.
#![expect(unsafe_code, reason = "functions of a library that is loaded at run time")]

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use libloading::Library;

const DRIVER_LIBRARY: &str = "libcuda.so.1";

/// `CUresult`: zero is success.
type Code = c_int;
/// `CUdevice`.
type Ordinal = c_int;
/// `CUdeviceptr`.
type Address = u64;
/// `CUuuid`.
type Uuid = [u8; 16];
/// `CUcontext`, `CUevent`, `CUstream`.
type Opaque = *mut c_void;

/// `CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE`.
const L2_CACHE_SIZE: c_int = 38;
/// `CU_EVENT_DEFAULT`: events with timing.
const WITH_TIME: c_uint = 0;
/// The default stream, in which cuBLAS also starts its work.
const DEFAULT_STREAM: Opaque = null_mut();

/// The most passes. More passes would not make the time of a short pass more accurate.
const MAX_PASSES: u32 = 200;
/// The fewest passes, however long they take.
const MIN_PASSES: u32 = 2;

/// The type of `cuDeviceGetUuid_v2`, which drivers before CUDA 11.4 lack.
type GetUuid = unsafe extern "C" fn(*mut Uuid, Ordinal) -> Code;

/// The functions as `cuda.h` declares them; `tests/headers.rs` checks the types against an installed header.
pub struct Driver {
    error_name: unsafe extern "C" fn(Code, *mut *const c_char) -> Code,
    init: unsafe extern "C" fn(c_uint) -> Code,
    device_get_count: unsafe extern "C" fn(*mut c_int) -> Code,
    device_get: unsafe extern "C" fn(*mut Ordinal, c_int) -> Code,
    device_get_name: unsafe extern "C" fn(*mut c_char, c_int, Ordinal) -> Code,
    device_get_attribute: unsafe extern "C" fn(*mut c_int, c_int, Ordinal) -> Code,
    device_get_uuid: Option<GetUuid>,
    context_retain: unsafe extern "C" fn(*mut Opaque, Ordinal) -> Code,
    context_release: unsafe extern "C" fn(Ordinal) -> Code,
    context_set_current: unsafe extern "C" fn(Opaque) -> Code,
    memory_get_info: unsafe extern "C" fn(*mut usize, *mut usize) -> Code,
    memory_alloc: unsafe extern "C" fn(*mut Address, usize) -> Code,
    memory_free: unsafe extern "C" fn(Address) -> Code,
    memory_set: unsafe extern "C" fn(Address, u8, usize) -> Code,
    copy_from_host: unsafe extern "C" fn(Address, *const c_void, usize) -> Code,
    copy_within: unsafe extern "C" fn(Address, Address, usize, Opaque) -> Code,
    event_create: unsafe extern "C" fn(*mut Opaque, c_uint) -> Code,
    event_destroy: unsafe extern "C" fn(Opaque) -> Code,
    event_record: unsafe extern "C" fn(Opaque, Opaque) -> Code,
    event_synchronize: unsafe extern "C" fn(Opaque) -> Code,
    event_elapsed: unsafe extern "C" fn(*mut f32, Opaque, Opaque) -> Code,
}

impl Driver {
    pub fn load() -> Result<Self, String> {
        let library = open_driver(DRIVER_LIBRARY)
            .ok_or_else(|| format!("no `{DRIVER_LIBRARY}`: the NVIDIA driver is not installed"))?;
        // SAFETY: every type matches the declaration of that name in cuda.h, whose macros add `_v2` to some names. Every
        // driver since CUDA 11 has the required functions.
        let driver = unsafe {
            Self {
                error_name: function(library, "cuGetErrorName")?,
                init: function(library, "cuInit")?,
                device_get_count: function(library, "cuDeviceGetCount")?,
                device_get: function(library, "cuDeviceGet")?,
                device_get_name: function(library, "cuDeviceGetName")?,
                device_get_attribute: function(library, "cuDeviceGetAttribute")?,
                device_get_uuid: function(library, "cuDeviceGetUuid_v2").ok(),
                context_retain: function(library, "cuDevicePrimaryCtxRetain")?,
                context_release: function(library, "cuDevicePrimaryCtxRelease_v2")?,
                context_set_current: function(library, "cuCtxSetCurrent")?,
                memory_get_info: function(library, "cuMemGetInfo_v2")?,
                memory_alloc: function(library, "cuMemAlloc_v2")?,
                memory_free: function(library, "cuMemFree_v2")?,
                memory_set: function(library, "cuMemsetD8_v2")?,
                copy_from_host: function(library, "cuMemcpyHtoD_v2")?,
                copy_within: function(library, "cuMemcpyDtoDAsync_v2")?,
                event_create: function(library, "cuEventCreate")?,
                event_destroy: function(library, "cuEventDestroy_v2")?,
                event_record: function(library, "cuEventRecord")?,
                event_synchronize: function(library, "cuEventSynchronize")?,
                // Drivers before CUDA 12.8 have only the older name, with the same arguments.
                event_elapsed: function(library, "cuEventElapsedTime_v2")
                    .or_else(|_| function(library, "cuEventElapsedTime"))?,
            }
        };
        // SAFETY: the first call of the driver, with 0, the only argument that it accepts.
        driver.check("cuInit", unsafe { (driver.init)(0) })?;
        Ok(driver)
    }

    pub fn count(&self) -> Result<u32, String> {
        let mut count = 0;
        // SAFETY: the call writes one int.
        self.check("cuDeviceGetCount", unsafe { (self.device_get_count)(&mut count) })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    pub fn device(&self, index: u32) -> Result<Device<'_>, String> {
        let mut ordinal = 0;
        let index = c_int::try_from(index).map_err(|_| "the index is larger than an int".to_string())?;
        // SAFETY: the call writes one int.
        self.check("cuDeviceGet", unsafe { (self.device_get)(&mut ordinal, index) })?;
        Ok(Device { driver: self, ordinal })
    }

    /// Turns a code into a result. The error has the name of the code, such as `CUDA_ERROR_OUT_OF_MEMORY (2)`.
    fn check(&self, name: &str, code: Code) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: the call writes one pointer: to a string that the driver owns, or null for an unknown code.
        let has_name = unsafe { (self.error_name)(code, &mut text) } == 0 && !text.is_null();
        // SAFETY: as above, and the string ends with a nul.
        let error_name = has_name.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy());
        Err(format!("`{name}` failed: {} ({code})", error_name.as_deref().unwrap_or("an unknown error")))
    }
}

pub struct Device<'a> {
    driver: &'a Driver,
    ordinal: Ordinal,
}

impl<'a> Device<'a> {
    pub fn name(&self) -> String {
        let mut name = [0_u8; 256];
        // SAFETY: the call writes at most 255 bytes, so the last byte stays nul.
        let code = unsafe { (self.driver.device_get_name)(name.as_mut_ptr().cast(), 255, self.ordinal) };
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy();
        if code == 0 { name.into_owned() } else { String::new() }
    }

    /// The UUID, such as `8932f937-d72c-4106-c12f-20bd9faed9f6`. A MIG device has its own UUID.
    pub fn uuid(&self) -> Option<String> {
        let mut uuid: Uuid = [0; 16];
        let get = self.driver.device_get_uuid?;
        // SAFETY: the call writes 16 bytes.
        let code = unsafe { get(&mut uuid, self.ordinal) };
        (code == 0 && uuid != [0; 16]).then(|| uuid_text(&uuid))
    }

    pub fn l2_bytes(&self) -> Option<u64> {
        let mut bytes = 0;
        // SAFETY: the call writes one int.
        let code = unsafe { (self.driver.device_get_attribute)(&mut bytes, L2_CACHE_SIZE, self.ordinal) };
        u64::try_from(bytes).ok().filter(|&bytes| code == 0 && bytes > 0)
    }

    /// The device's primary context, which cuBLAS uses too.
    pub fn context(&self) -> Result<Context<'a>, String> {
        let mut handle = null_mut();
        // SAFETY: the call writes one pointer.
        let code = unsafe { (self.driver.context_retain)(&mut handle, self.ordinal) };
        self.driver.check("cuDevicePrimaryCtxRetain", code)?;
        // This value releases the context when it is dropped, also after an error below.
        let context = Context { driver: self.driver, ordinal: self.ordinal, handle };
        // SAFETY: the context was just retained.
        self.driver.check("cuCtxSetCurrent", unsafe { (self.driver.context_set_current)(handle) })?;
        Ok(context)
    }
}

/// A context that is current on the thread that created it. Its raw pointer makes it `!Send`, so it stays on that thread.
pub struct Context<'a> {
    driver: &'a Driver,
    ordinal: Ordinal,
    handle: Opaque,
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        debug_assert!(!self.handle.is_null());
        // SAFETY: the context was retained once, and everything created in it was dropped. An error here cannot be handled.
        unsafe {
            (self.driver.context_set_current)(null_mut());
            (self.driver.context_release)(self.ordinal);
        }
    }
}

impl Context<'_> {
    pub fn free_bytes(&self) -> Result<u64, String> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the call writes two sizes.
        let code = unsafe { (self.driver.memory_get_info)(&mut free, &mut total) };
        self.driver.check("cuMemGetInfo", code)?;
        Ok(free as u64)
    }

    pub fn allocate(&self, bytes: usize) -> Result<Memory<'_>, String> {
        let mut address = 0;
        // SAFETY: the call writes one address.
        let code = unsafe { (self.driver.memory_alloc)(&mut address, bytes) };
        self.driver.check("cuMemAlloc", code)?;
        Ok(Memory { driver: self.driver, address, bytes })
    }

    /// The time of the fastest of many passes in nanoseconds, by the device's clock, after one warm-up pass.
    pub fn fastest_pass_ns(
        &self,
        budget: Duration,
        mut pass: impl FnMut() -> Result<(), String>,
    ) -> Result<u64, String> {
        let (start, end) = (self.event()?, self.event()?);
        pass()?;
        let (began, mut best) = (Instant::now(), None);
        for passes in 0..MAX_PASSES {
            if passes >= MIN_PASSES && began.elapsed() >= budget {
                break;
            }
            start.record()?;
            pass()?;
            end.record()?;
            end.wait()?;
            let ns = nanoseconds(end.since_ms(&start)?);
            best = best.into_iter().chain(ns).min();
        }
        best.ok_or_else(|| "the device's clock measured no time for any pass".into())
    }

    fn event(&self) -> Result<Event<'_>, String> {
        let mut handle = null_mut();
        // SAFETY: the call writes one pointer.
        let code = unsafe { (self.driver.event_create)(&mut handle, WITH_TIME) };
        self.driver.check("cuEventCreate", code)?;
        Ok(Event { driver: self.driver, handle })
    }
}

fn uuid_text(uuid: &Uuid) -> String {
    let digits: Vec<String> = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&digits[..4], &digits[4..6], &digits[6..8], &digits[8..10], &digits[10..]]
        .map(|part| part.concat())
        .join("-")
}

/// Converts milliseconds to nanoseconds; `None` if the time is not positive and finite.
fn nanoseconds(ms: f32) -> Option<u64> {
    let ns = (f64::from(ms) * 1e6).round();
    (ns.is_finite() && ns >= 1.0).then_some(ns as u64)
}

/// A buffer in device memory.
pub struct Memory<'a> {
    driver: &'a Driver,
    address: Address,
    bytes: usize,
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: the memory came from this driver, and is freed once. The call waits for pending uses on the device.
        unsafe { (self.driver.memory_free)(self.address) };
    }
}

impl Memory<'_> {
    pub fn address(&self) -> Address {
        self.address
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn set(&self, value: u8) -> Result<(), String> {
        // SAFETY: the call writes exactly the allocated range.
        let code = unsafe { (self.driver.memory_set)(self.address, value, self.bytes) };
        self.driver.check("cuMemsetD8", code)
    }

    /// Fills the buffer by repeating `pattern`.
    pub fn fill(&self, pattern: &[u8]) -> Result<(), String> {
        let mut offset = 0;
        while offset < self.bytes && !pattern.is_empty() {
            let bytes = pattern.len().min(self.bytes - offset);
            // SAFETY: the call reads only within `pattern`, before it returns, and writes only within the allocation.
            let code = unsafe {
                (self.driver.copy_from_host)(self.address + offset as u64, pattern.as_ptr().cast(), bytes)
            };
            self.driver.check("cuMemcpyHtoD", code)?;
            offset += bytes;
        }
        Ok(())
    }

    /// Starts a copy, without waiting for it.
    pub fn copy_from(&self, source: &Self) -> Result<(), String> {
        let bytes = self.bytes.min(source.bytes);
        // SAFETY: the call stays within both allocations, which are different. Dropping an allocation waits for the copy.
        let code = unsafe { (self.driver.copy_within)(self.address, source.address, bytes, DEFAULT_STREAM) };
        self.driver.check("cuMemcpyDtoDAsync", code)
    }
}

struct Event<'a> {
    driver: &'a Driver,
    handle: Opaque,
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: the event came from this driver, and is destroyed once.
        unsafe { (self.driver.event_destroy)(self.handle) };
    }
}

impl Event<'_> {
    fn record(&self) -> Result<(), String> {
        // SAFETY: the event belongs to the current context, and the stream is its default stream.
        self.driver.check("cuEventRecord", unsafe { (self.driver.event_record)(self.handle, DEFAULT_STREAM) })
    }

    fn wait(&self) -> Result<(), String> {
        // SAFETY: the event belongs to the current context.
        self.driver.check("cuEventSynchronize", unsafe { (self.driver.event_synchronize)(self.handle) })
    }

    fn since_ms(&self, start: &Self) -> Result<f32, String> {
        let mut ms = 0.0;
        // SAFETY: the call writes one float; both events belong to the current context.
        let code = unsafe { (self.driver.event_elapsed)(&mut ms, start.handle, self.handle) };
        self.driver.check("cuEventElapsedTime", code)?;
        Ok(ms)
    }
}

/// Loads the first of these libraries that can be loaded. The library is never unloaded: NVIDIA's libraries register exit
/// handlers, and function pointers must stay valid.
pub fn open<N: AsRef<OsStr>>(names: impl IntoIterator<Item = N>) -> Option<&'static Library> {
    names.into_iter().find_map(|name| {
        // SAFETY: loading runs the library's initialisers. The names are those of NVIDIA's libraries, which any program may
        // load; a person who can put another file into the loader's path could also preload it.
        let library = unsafe { Library::new(name.as_ref()) }.ok()?;
        Some(&*Box::leak(Box::new(library)))
    })
}

/// Folders in which a container or WSL has the driver of its host. Not every loader searches them.
const MOUNT_FOLDERS: [&str; 2] = ["/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"];

/// Opens the driver's library: from the loader's paths, then from the mount folders.
fn open_driver(name: &str) -> Option<&'static Library> {
    let mounted = MOUNT_FOLDERS.iter().map(|folder| format!("{folder}/{name}"));
    open(std::iter::once(name.to_string()).chain(mounted))
}

/// A function of the library by name.
///
/// # Safety
/// `F` is a function pointer type, and matches the declaration of that name in the library's header.
pub unsafe fn function<F: Copy>(library: &'static Library, name: &str) -> Result<F, String> {
    // SAFETY: the caller guarantees the type, and the library is never closed.
    let symbol = unsafe { library.get::<F>(name.as_bytes()) };
    symbol.map(|function| *function).map_err(|_| format!("the library has no `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_in_the_usual_groups() {
        let mut uuid: Uuid = [0; 16];
        (0..16).for_each(|index| uuid[index] = 0x10 + index as u8);
        assert_eq!(uuid_text(&uuid), "10111213-1415-1617-1819-1a1b1c1d1e1f");
    }

    #[test]
    fn an_invalid_time_gives_no_result() {
        assert_eq!(nanoseconds(0.5), Some(500_000));
        for ms in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert_eq!(nanoseconds(ms), None, "{ms}");
        }
    }
}
