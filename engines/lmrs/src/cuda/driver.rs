//! The functions of NVIDIA's driver that this engine calls, and a GPU with its memory, kernels and events. Each value releases
//! its resources when it is dropped; all of them keep the GPU open.
#![expect(unsafe_code, reason = "functions of a library that is loaded at run time")]

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::rc::Rc;

use protocol::{DeviceMemory, Failed, FailureKind};

use super::library::Library;

/// `CUresult`: zero is success.
type Code = c_int;
/// `CUdevice`.
type Ordinal = c_int;
/// `CUdeviceptr`: an address in device memory.
pub type Address = u64;
/// `CUcontext`, `CUstream`, `CUmodule`, `CUfunction`, `CUevent`.
type Opaque = *mut c_void;

/// `CUDA_ERROR_NOT_READY`: the stream has unfinished work.
const NOT_READY: Code = 600;
/// `CU_STREAM_NON_BLOCKING`: the stream does not wait for the default stream.
const NON_BLOCKING: c_uint = 1;
/// `CU_MEMHOSTALLOC_DEVICEMAP`: the device can read and write this host memory.
const DEVICE_MAP: c_uint = 2;
/// `CU_EVENT_DEFAULT`: an event with its time.
const WITH_TIME: c_uint = 0;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED_BYTES: c_int = 8;

macro_rules! functions {
    ($($field:ident = $symbol:literal $(or $older:literal)? ($($argument:ty),*);)*) => {
        /// The functions as `cuda.h` declares them. Its macros add `_v2` to some names. Older drivers have an older name of
        /// some functions, with the same arguments.
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Functions {
            fn load(library: Library) -> Result<Self, Failed> {
                // SAFETY: every type matches the declaration of that name in cuda.h.
                unsafe { Ok(Self { $($field: library.function($symbol)$(.or_else(|_| library.function($older)))??,)* }) }
            }
        }
    };
}

functions! {
    error_name = "cuGetErrorName" (Code, *mut *const c_char);
    init = "cuInit" (c_uint);
    driver_version = "cuDriverGetVersion" (*mut c_int);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device = "cuDeviceGet" (*mut Ordinal, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, Ordinal);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, Ordinal);
    context_retain = "cuDevicePrimaryCtxRetain" (*mut Opaque, Ordinal);
    context_release = "cuDevicePrimaryCtxRelease_v2" (Ordinal);
    context_set_current = "cuCtxSetCurrent" (Opaque);
    memory_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    memory_alloc = "cuMemAlloc_v2" (*mut Address, usize);
    memory_free = "cuMemFree_v2" (Address);
    memory_set = "cuMemsetD8Async" (Address, u8, usize, Opaque);
    copy_from_host = "cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Opaque);
    copy_to_host = "cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, Opaque);
    copy_within = "cuMemcpyDtoDAsync_v2" (Address, Address, usize, Opaque);
    host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost" (*mut c_void);
    host_address = "cuMemHostGetDevicePointer_v2" (*mut Address, *mut c_void, c_uint);
    stream_create = "cuStreamCreate" (*mut Opaque, c_uint);
    stream_destroy = "cuStreamDestroy_v2" (Opaque);
    stream_synchronize = "cuStreamSynchronize" (Opaque);
    stream_query = "cuStreamQuery" (Opaque);
    module_load = "cuModuleLoadData" (*mut Opaque, *const c_void);
    module_unload = "cuModuleUnload" (Opaque);
    module_function = "cuModuleGetFunction" (*mut Opaque, Opaque, *const c_char);
    function_attribute = "cuFuncGetAttribute" (*mut c_int, c_int, Opaque);
    function_set_attribute = "cuFuncSetAttribute" (Opaque, c_int, c_int);
    occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor" (*mut c_int, Opaque, c_int, usize);
    launch = "cuLaunchKernel" (Opaque, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Opaque, *mut *mut c_void, *mut *mut c_void);
    launch_cooperative = "cuLaunchCooperativeKernel" (Opaque, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Opaque, *mut *mut c_void);
    event_create = "cuEventCreate" (*mut Opaque, c_uint);
    event_destroy = "cuEventDestroy_v2" (Opaque);
    event_record = "cuEventRecord" (Opaque, Opaque);
    event_synchronize = "cuEventSynchronize" (Opaque);
    event_elapsed = "cuEventElapsedTime_v2" or "cuEventElapsedTime" (*mut f32, Opaque, Opaque);
}

/// `CUdevice_attribute`.
#[derive(Debug, Clone, Copy)]
enum Attribute {
    Multiprocessors = 16,
    CapabilityMajor = 75,
    CapabilityMinor = 76,
    CooperativeLaunch = 95,
    /// The most shared memory of a block, if a kernel requests more than the default.
    MaxSharedBytes = 97,
}

/// `CUfunction_attribute`.
#[derive(Debug, Clone, Copy)]
pub enum KernelAttribute {
    /// Bytes of local memory of a thread: registers that were moved to memory.
    LocalBytes = 3,
    Registers = 4,
}

/// An open GPU. It is current on the thread that opened it, and its raw pointers keep it on that thread.
pub struct Gpu {
    functions: Functions,
    ordinal: Ordinal,
    context: Opaque,
    /// The stream of all work, which runs in order.
    stream: Opaque,
    /// `cuda:0`.
    pub name: String,
    /// The name of the product.
    pub product: String,
    pub capability: (u32, u32),
    pub multiprocessors: u32,
    pub max_shared_bytes: u32,
    allocated_bytes: Cell<u64>,
    peak_bytes: Cell<u64>,
}

impl Gpu {
    /// Opens the GPU with this CUDA number; `CUDA_VISIBLE_DEVICES` may hide some GPUs.
    pub fn open(number: u32) -> Result<Rc<Self>, Failed> {
        let functions = Functions::load(Library::driver()?)?;
        let name = format!("cuda:{number}");
        let (mut count, mut ordinal, mut context) = (0, 0, null_mut());
        let check = |call: &str, code: Code| check(&functions, &name, call, code);
        // SAFETY: the first call of the driver, with 0, the only argument that it accepts.
        check("cuInit", unsafe { (functions.init)(0) })?;
        // SAFETY: the call writes one int.
        check("cuDeviceGetCount", unsafe { (functions.device_count)(&mut count) })?;
        if i64::from(number) >= i64::from(count) {
            let message = match count {
                0 => format!("no `{name}`: CUDA sees no GPU here"),
                1 => format!("no `{name}`: CUDA sees 1 GPU here, `cuda:0`"),
                _ => format!("no `{name}`: CUDA sees {count} GPUs here, the first is `cuda:0`"),
            };
            let hint = "nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES";
            return Err(Failed::new(FailureKind::Unavailable, message).hint(hint));
        }
        // SAFETY: the call writes one int.
        check("cuDeviceGet", unsafe { (functions.device)(&mut ordinal, number as c_int) })?;
        // SAFETY: the call writes one pointer.
        check("cuDevicePrimaryCtxRetain", unsafe { (functions.context_retain)(&mut context, ordinal) })?;
        // This value releases the context when it is dropped, also after an error below.
        let mut gpu = Self {
            functions,
            ordinal,
            context,
            stream: null_mut(),
            name,
            product: String::new(),
            capability: (0, 0),
            multiprocessors: 0,
            max_shared_bytes: 0,
            allocated_bytes: Cell::new(0),
            peak_bytes: Cell::new(0),
        };
        // SAFETY: the context was just retained.
        gpu.check("cuCtxSetCurrent", unsafe { (gpu.functions.context_set_current)(context) })?;
        let mut stream = null_mut();
        // SAFETY: the call writes one pointer.
        gpu.check("cuStreamCreate", unsafe { (gpu.functions.stream_create)(&mut stream, NON_BLOCKING) })?;
        gpu.stream = stream;
        gpu.product = gpu.read_product()?;
        gpu.capability =
            (gpu.attribute(Attribute::CapabilityMajor)?, gpu.attribute(Attribute::CapabilityMinor)?);
        gpu.multiprocessors = gpu.attribute(Attribute::Multiprocessors)?;
        gpu.max_shared_bytes = gpu.attribute(Attribute::MaxSharedBytes)?;
        gpu.refuse_old()?;
        Ok(Rc::new(gpu))
    }

    /// Refuses a GPU that lacks the bulk copies or the cooperative launches of the kernels.
    fn refuse_old(&self) -> Result<(), Failed> {
        let (major, minor) = self.capability;
        if major >= 9 && self.attribute(Attribute::CooperativeLaunch)? != 0 {
            return Ok(());
        }
        let Self { name, product, .. } = self;
        let message = format!(
            "`{name}` ({product}) has compute capability {major}.{minor}, and lmrs needs 9.0 or later, such as an H100"
        );
        Err(Failed::new(FailureKind::Unavailable, message).hint("--device cpu"))
    }

    fn read_product(&self) -> Result<String, Failed> {
        let mut name = [0_u8; 256];
        // SAFETY: the call writes at most 255 bytes, so the last byte stays nul.
        let code = unsafe { (self.functions.device_name)(name.as_mut_ptr().cast(), 255, self.ordinal) };
        self.check("cuDeviceGetName", code)?;
        Ok(CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned())
    }

    fn attribute(&self, attribute: Attribute) -> Result<u32, Failed> {
        let mut value = 0;
        // SAFETY: the call writes one int.
        let code = unsafe { (self.functions.device_attribute)(&mut value, attribute as c_int, self.ordinal) };
        self.check("cuDeviceGetAttribute", code)?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// The newest version of CUDA that the driver supports, such as `13.0`.
    pub fn driver_version(&self) -> Result<String, Failed> {
        let mut version = 0;
        // SAFETY: the call writes one int.
        self.check("cuDriverGetVersion", unsafe { (self.functions.driver_version)(&mut version) })?;
        Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
    }

    /// The free and the total memory of the device, in bytes.
    pub fn memory_info(&self) -> Result<(u64, u64), Failed> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the call writes two sizes.
        self.check("cuMemGetInfo", unsafe { (self.functions.memory_info)(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// The device memory that this engine allocated, without the driver's own.
    pub fn device_memory(&self) -> DeviceMemory {
        let (in_use_bytes, peak_bytes) = (self.allocated_bytes.get(), self.peak_bytes.get());
        DeviceMemory { in_use_bytes, peak_bytes, reserved_bytes: None }
    }

    /// The stream of all work, for a library that starts work by itself.
    pub fn stream(&self) -> *mut c_void {
        self.stream
    }

    /// Waits until all started work has finished.
    pub fn synchronize(&self) -> Result<(), Failed> {
        // SAFETY: the stream belongs to this context.
        self.check("cuStreamSynchronize", unsafe { (self.functions.stream_synchronize)(self.stream) })
    }

    /// Whether all started work has finished. An error of a kernel is an error here.
    pub fn is_idle(&self) -> Result<bool, Failed> {
        // SAFETY: the stream belongs to this context.
        let code = unsafe { (self.functions.stream_query)(self.stream) };
        if code == NOT_READY {
            return Ok(false);
        }
        self.check("cuStreamQuery", code).map(|()| true)
    }

    pub fn allocate(self: &Rc<Self>, bytes: usize) -> Result<Memory, Failed> {
        let (mut address, bytes) = (0, bytes.max(1));
        // SAFETY: the call writes one address.
        self.check("cuMemAlloc", unsafe { (self.functions.memory_alloc)(&mut address, bytes) })?;
        let allocated = self.allocated_bytes.get() + bytes as u64;
        self.allocated_bytes.set(allocated);
        self.peak_bytes.set(self.peak_bytes.get().max(allocated));
        Ok(Memory { gpu: Rc::clone(self), address, bytes })
    }

    /// Allocates device memory of zeros.
    pub fn allocate_zeros(self: &Rc<Self>, bytes: usize) -> Result<Memory, Failed> {
        let memory = self.allocate(bytes)?;
        // SAFETY: the call writes exactly the allocation.
        let code = unsafe { (self.functions.memory_set)(memory.address, 0, memory.bytes, self.stream) };
        self.check("cuMemsetD8Async", code)?;
        Ok(memory)
    }

    /// Allocates host memory of zeros that the device can read and write.
    pub fn allocate_host(self: &Rc<Self>, bytes: usize) -> Result<HostMemory, Failed> {
        let (mut pointer, mut address, bytes) = (null_mut(), 0, bytes.max(1));
        // SAFETY: the call writes one pointer.
        let code = unsafe { (self.functions.host_alloc)(&mut pointer, bytes, DEVICE_MAP) };
        self.check("cuMemHostAlloc", code)?;
        let mut memory = HostMemory { gpu: Rc::clone(self), pointer: pointer.cast(), address, bytes };
        // SAFETY: the call writes one address; the pointer is that of the allocation above.
        let code = unsafe { (self.functions.host_address)(&mut address, pointer, 0) };
        self.check("cuMemHostGetDevicePointer", code)?;
        memory.address = address;
        // SAFETY: the allocation has this number of bytes, and no other reference to it exists.
        unsafe { memory.pointer.write_bytes(0, bytes) };
        Ok(memory)
    }

    /// Loads compiled kernels.
    pub fn load_module(self: &Rc<Self>, image: &[u8]) -> Result<Rc<Module>, Failed> {
        let mut handle = null_mut();
        // SAFETY: the call writes one pointer, and reads a compiled image, which contains its own length.
        let code = unsafe { (self.functions.module_load)(&mut handle, image.as_ptr().cast()) };
        self.check("cuModuleLoadData", code)?;
        Ok(Rc::new(Module { gpu: Rc::clone(self), handle }))
    }

    pub fn event(self: &Rc<Self>) -> Result<Event, Failed> {
        let mut handle = null_mut();
        // SAFETY: the call writes one pointer.
        self.check("cuEventCreate", unsafe { (self.functions.event_create)(&mut handle, WITH_TIME) })?;
        Ok(Event { gpu: Rc::clone(self), handle })
    }

    fn check(&self, call: &str, code: Code) -> Result<(), Failed> {
        check(&self.functions, &self.name, call, code)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: the stream and the context were created once, and everything created in them was dropped. An error here
        // cannot be handled.
        unsafe {
            if !self.stream.is_null() {
                (self.functions.stream_destroy)(self.stream);
            }
            if !self.context.is_null() {
                (self.functions.context_set_current)(null_mut());
                (self.functions.context_release)(self.ordinal);
            }
        }
    }
}

/// Turns a code into a result. The message has the name of the code, such as `CUDA_ERROR_OUT_OF_MEMORY (2)`.
fn check(functions: &Functions, device: &str, call: &str, code: Code) -> Result<(), Failed> {
    if code == 0 {
        return Ok(());
    }
    let mut text = null();
    // SAFETY: the call writes one pointer: to a string that the driver owns, or null for an unknown code.
    let has_name = unsafe { (functions.error_name)(code, &mut text) } == 0 && !text.is_null();
    // SAFETY: as above, and the string ends with a nul.
    let error_name = has_name.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy());
    Err(failure(device, call, code, error_name.as_deref().unwrap_or("an unknown error")))
}

/// The failure for a code of the driver: its kind, and a hint for codes with a known remedy.
fn failure(device: &str, call: &str, code: Code, error_name: &str) -> Failed {
    let message = format!("`{device}`: `{call}` failed: {error_name} ({code})");
    let memory = "nvidia-smi    # lists the programs that hold memory; a smaller `context_tokens` needs less";
    let (kind, hint) = match code {
        2 => (FailureKind::OutOfMemory, memory),
        // No device, or an invalid one.
        100 | 101 => (FailureKind::Unavailable, "nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES"),
        // A stub, or a driver that is too old for the kernels or does not match its kernel module.
        34 | 35 | 209 | 218 | 222 | 803 | 804 => (
            FailureKind::Unavailable,
            "nvidia-smi    # `CUDA Version` must be at least that of NVRTC; or use `--device cpu`",
        ),
        // The codes from 700 on, except for launches with wrong arguments, make the context unusable.
        700..=799 => (FailureKind::Device, "load the model again"),
        _ => return Failed::new(FailureKind::Device, message),
    };
    Failed::new(kind, message).hint(hint)
}

/// Device memory.
pub struct Memory {
    gpu: Rc<Gpu>,
    address: Address,
    bytes: usize,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the memory came from this driver, and is freed once. The call waits for pending uses on the device.
        unsafe { (self.gpu.functions.memory_free)(self.address) };
        self.gpu.allocated_bytes.set(self.gpu.allocated_bytes.get().saturating_sub(self.bytes as u64));
    }
}

impl Memory {
    pub fn address(&self) -> Address {
        self.address
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies bytes to this offset, and waits for the copy.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Failed> {
        self.expect_inside(offset, bytes.len());
        let Gpu { functions, stream, .. } = &*self.gpu;
        let to = self.address + offset as u64;
        // SAFETY: the call reads only `bytes`, which stay borrowed until the stream has finished, and writes only within the
        // allocation, as checked above.
        let code = unsafe { (functions.copy_from_host)(to, bytes.as_ptr().cast(), bytes.len(), *stream) };
        self.gpu.check("cuMemcpyHtoDAsync", code)?;
        self.gpu.synchronize()
    }

    /// Copies bytes from this offset, and waits for the copy.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Failed> {
        self.expect_inside(offset, bytes.len());
        let Gpu { functions, stream, .. } = &*self.gpu;
        let from = self.address + offset as u64;
        // SAFETY: the call writes only `bytes`, which stay borrowed until the stream has finished, and reads only within the
        // allocation, as checked above.
        let code = unsafe { (functions.copy_to_host)(bytes.as_mut_ptr().cast(), from, bytes.len(), *stream) };
        self.gpu.check("cuMemcpyDtoHAsync", code)?;
        self.gpu.synchronize()
    }

    /// Starts a copy of bytes from this offset to an offset of host memory, after all work that was started before.
    pub fn start_read(
        &self,
        offset: usize,
        to: &HostMemory,
        to_offset: usize,
        bytes: usize,
    ) -> Result<(), Failed> {
        self.expect_inside(offset, bytes);
        assert!(to_offset + bytes <= to.bytes, "a copy beyond the end of host memory");
        let Gpu { functions, stream, .. } = &*self.gpu;
        // SAFETY: both ranges are inside their allocations, as checked above. Freeing either allocation waits for the copy.
        let code = unsafe {
            let to = to.pointer.add(to_offset).cast();
            (functions.copy_to_host)(to, self.address + offset as u64, bytes, *stream)
        };
        self.gpu.check("cuMemcpyDtoHAsync", code)
    }

    /// Starts a copy between device memories, after all work that was started before.
    pub fn start_copy(&self, offset: usize, to: &Self, to_offset: usize, bytes: usize) -> Result<(), Failed> {
        self.expect_inside(offset, bytes);
        to.expect_inside(to_offset, bytes);
        let Gpu { functions, stream, .. } = &*self.gpu;
        let (to, from) = (to.address + to_offset as u64, self.address + offset as u64);
        // SAFETY: both ranges are inside their allocations, as checked above. Freeing either allocation waits for the copy.
        self.gpu.check("cuMemcpyDtoDAsync", unsafe { (functions.copy_within)(to, from, bytes, *stream) })
    }

    fn expect_inside(&self, offset: usize, bytes: usize) {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            "a copy beyond the end of device memory"
        );
    }
}

/// Host memory that the device can read and write.
pub struct HostMemory {
    gpu: Rc<Gpu>,
    pointer: *mut u8,
    /// The address of the memory for the device.
    address: Address,
    bytes: usize,
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: the memory came from this driver, and is freed once. Work that uses it has finished after the wait; if the
        // wait fails, no work runs any more.
        unsafe {
            (self.gpu.functions.stream_synchronize)(self.gpu.stream);
            (self.gpu.functions.host_free)(self.pointer.cast());
        }
    }
}

impl HostMemory {
    pub fn address(&self) -> Address {
        self.address
    }

    pub fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    /// The numbers in these bytes, after all started work has finished.
    pub fn finished_floats(&self, count: usize) -> Result<&[f32], Failed> {
        self.gpu.synchronize()?;
        assert!(count * size_of::<f32>() <= self.bytes, "numbers beyond the end of host memory");
        // SAFETY: the allocation starts at a page and holds these numbers. The device has finished its writes, and starts
        // others only through methods that the caller cannot call before this borrow ends, or that the decoder orders after.
        Ok(unsafe { std::slice::from_raw_parts(self.pointer.cast(), count) })
    }
}

/// Compiled kernels in a GPU's context.
pub struct Module {
    gpu: Rc<Gpu>,
    handle: Opaque,
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the module was loaded once, and its kernels keep it loaded.
        unsafe { (self.gpu.functions.module_unload)(self.handle) };
    }
}

impl Module {
    /// A kernel by name, for blocks with this number of threads and this shared memory.
    pub fn kernel(self: &Rc<Self>, name: &str, threads: u32, shared_bytes: u32) -> Result<Kernel, Failed> {
        let (mut handle, gpu) = (null_mut(), &self.gpu);
        let c_name = CString::new(name).unwrap_or_default();
        // SAFETY: the call writes one pointer; the name ends with a nul.
        let code = unsafe { (gpu.functions.module_function)(&mut handle, self.handle, c_name.as_ptr()) };
        gpu.check(&format!("cuModuleGetFunction of `{name}`"), code)?;
        // SAFETY: the call changes an attribute of this function.
        let code = unsafe {
            (gpu.functions.function_set_attribute)(handle, MAX_DYNAMIC_SHARED_BYTES, shared_bytes as c_int)
        };
        gpu.check("cuFuncSetAttribute", code)?;
        Ok(Kernel { module: Rc::clone(self), handle, threads, shared_bytes })
    }
}

pub struct Kernel {
    module: Rc<Module>,
    handle: Opaque,
    threads: u32,
    shared_bytes: u32,
}

impl Kernel {
    pub fn attribute(&self, attribute: KernelAttribute) -> Result<u32, Failed> {
        let (mut value, gpu) = (0, &self.module.gpu);
        // SAFETY: the call writes one int.
        let code = unsafe { (gpu.functions.function_attribute)(&mut value, attribute as c_int, self.handle) };
        gpu.check("cuFuncGetAttribute", code)?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// The number of this kernel's blocks that a multiprocessor can hold at once.
    pub fn blocks_at_once(&self) -> Result<u32, Failed> {
        let (mut blocks, gpu) = (0, &self.module.gpu);
        let (threads, shared_bytes) = (self.threads as c_int, self.shared_bytes as usize);
        // SAFETY: the call writes one int.
        let code = unsafe { (gpu.functions.occupancy)(&mut blocks, self.handle, threads, shared_bytes) };
        gpu.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Starts the kernel, after all work that was started before. The parameters are read before the call returns.
    ///
    /// # Safety
    /// Each parameter points to a value of the type that the kernel declares, and the addresses in it are valid until the
    /// kernel has finished.
    pub unsafe fn launch(&self, grid: [u32; 3], parameters: &[*const c_void]) -> Result<(), Failed> {
        let gpu = &self.module.gpu;
        let mut parameters: Vec<*mut c_void> =
            parameters.iter().map(|parameter| parameter.cast_mut()).collect();
        let [x, y, z] = grid;
        // SAFETY: the caller guarantees the parameters; the driver does not write to them.
        let code = unsafe {
            let (stream, parameters) = (gpu.stream, parameters.as_mut_ptr());
            (gpu.functions.launch)(
                self.handle,
                x,
                y,
                z,
                self.threads,
                1,
                1,
                self.shared_bytes,
                stream,
                parameters,
                null_mut(),
            )
        };
        gpu.check("cuLaunchKernel", code)
    }

    /// Like `launch`, with all blocks on the device at the same time.
    ///
    /// # Safety
    /// As for `launch`.
    pub unsafe fn launch_cooperative(&self, blocks: u32, parameters: &[*const c_void]) -> Result<(), Failed> {
        let gpu = &self.module.gpu;
        let mut parameters: Vec<*mut c_void> =
            parameters.iter().map(|parameter| parameter.cast_mut()).collect();
        // SAFETY: the caller guarantees the parameters; the driver does not write to them.
        let code = unsafe {
            let (stream, parameters) = (gpu.stream, parameters.as_mut_ptr());
            (gpu.functions.launch_cooperative)(
                self.handle,
                blocks,
                1,
                1,
                self.threads,
                1,
                1,
                self.shared_bytes,
                stream,
                parameters,
            )
        };
        gpu.check("cuLaunchCooperativeKernel", code)
    }
}

/// A point in the stream, with the time at which the device reached it.
pub struct Event {
    gpu: Rc<Gpu>,
    handle: Opaque,
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event came from this driver, and is destroyed once.
        unsafe { (self.gpu.functions.event_destroy)(self.handle) };
    }
}

impl Event {
    pub fn record(&self) -> Result<(), Failed> {
        // SAFETY: the event and the stream belong to this context.
        let code = unsafe { (self.gpu.functions.event_record)(self.handle, self.gpu.stream) };
        self.gpu.check("cuEventRecord", code)
    }

    /// The milliseconds since `start`, by the device's clock. Waits for this event.
    pub fn ms_since(&self, start: &Self) -> Result<f32, Failed> {
        let mut ms = 0.0;
        // SAFETY: the event belongs to this context.
        let code = unsafe { (self.gpu.functions.event_synchronize)(self.handle) };
        self.gpu.check("cuEventSynchronize", code)?;
        // SAFETY: the call writes one float; both events belong to this context.
        let code = unsafe { (self.gpu.functions.event_elapsed)(&mut ms, start.handle, self.handle) };
        self.gpu.check("cuEventElapsedTime", code)?;
        Ok(ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_of_the_driver_becomes_a_failure_of_its_kind() {
        let kind = |code| failure("cuda:0", "cuMemAlloc", code, "CUDA_ERROR").kind;
        assert_eq!(kind(2), FailureKind::OutOfMemory);
        assert_eq!((kind(100), kind(804)), (FailureKind::Unavailable, FailureKind::Unavailable));
        assert_eq!(
            (kind(700), kind(719), kind(1)),
            (FailureKind::Device, FailureKind::Device, FailureKind::Device)
        );
        let message = failure("cuda:1", "cuMemAlloc", 2, "CUDA_ERROR_OUT_OF_MEMORY").message;
        assert_eq!(message, "`cuda:1`: `cuMemAlloc` failed: CUDA_ERROR_OUT_OF_MEMORY (2)");
    }
}
