//! The only file that calls CUDA. It opens the GPU, and reads what candle does not provide: the GPU's name and compute
//! capability, the library versions, and the memory of this process.
//!
//! candle allocates every tensor in stream order (`cuMemAllocAsync`) from the device's default memory pool. So the pool
//! knows the memory in use and the peak, for this process alone. It does not count CUDA's context, kernel code and cuBLAS's
//! workspace; only the driver knows the memory of the whole process.

use std::collections::BTreeMap;
use std::ffi::c_int;

use candle_core::Device;
use candle_core::cuda_backend::CudaDevice;
use candle_core::cuda_backend::cudarc::cublas::sys as cublas;
use candle_core::cuda_backend::cudarc::driver::result::{device as devices, mem_pool};
use candle_core::cuda_backend::cudarc::driver::sys::{self, CUmemPool_attribute as Pool, CUmemoryPool};
use candle_core::cuda_backend::cudarc::driver::{CudaContext, DriverError};
use protocol::{DeviceMemory, Failed, FailureKind};

use super::Memory;
use super::arch::Arch;
use crate::failure::{self, first_line};

/// The devices of this build; the first is the default.
pub const NAMES: &[&str] = &["cuda", "cpu"];

/// The target architecture of the kernels, from build.rs.
const ARCH: &str = env!("CANDLE_CUDA_ARCH");

pub fn build_features() -> Vec<String> {
    vec!["cuda".into(), ARCH.into()]
}

/// Opens the GPU with this CUDA number, if the kernels of this program can run on it.
pub fn open(number: usize) -> Result<Device, Failed> {
    let name = format!("cuda:{number}");
    let open_failure = |text: String| {
        failure::classified_failure(&text, FailureKind::Unavailable, format!("cannot open `{name}`: {text}"))
    };
    let count = CudaContext::device_count().map_err(|error| open_failure(error.to_string()))?;
    let count = usize::try_from(count).unwrap_or(0);
    if number >= count {
        let message = failure::no_such_gpu(&name, count);
        return Err(
            Failed::new(FailureKind::Unavailable, message).hint("nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES")
        );
    }
    let device = Device::new_cuda(number).map_err(|error| open_failure(first_line(&error)))?;
    let cuda = device.as_cuda_device().map_err(|error| open_failure(first_line(&error)))?;
    let stream = cuda.cuda_stream();
    let gpu = stream.context();
    let (major, minor) = gpu.compute_capability().map_err(|error| open_failure(error.to_string()))?;
    let capability = (u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0));
    if !Arch::parse(ARCH).is_some_and(|arch| arch.runs_on(capability)) {
        let gpu = gpu.name().unwrap_or_else(|_| "GPU".into());
        return Err(failure::wrong_capability(&name, &gpu, capability, ARCH));
    }
    // The peak must count only this load. If the pool cannot reset it, the reported peak may be too high, but the load does
    // not fail.
    let _ = pool(cuda).and_then(|pool| reset_peaks(pool).ok());
    Ok(device)
}

/// Refuses weights that do not fit, before any is copied: candle's llama panics when memory runs out.
pub fn expect_free_memory(device: &Device, weights_bytes: u64) -> Result<(), Failed> {
    let memory = device.as_cuda_device().ok().and_then(device_memory);
    memory.map_or(Ok(()), |memory| memory.expect_free(&super::name(device), weights_bytes))
}

/// The pool's memory for this process. The call reads the driver's counters, without waiting for the GPU.
pub fn memory(device: &Device) -> Option<DeviceMemory> {
    let pool = pool(device.as_cuda_device().ok()?)?;
    let read = |attribute| read(pool, attribute).ok();
    Some(DeviceMemory {
        in_use_bytes: read(Pool::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
        peak_bytes: read(Pool::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
        reserved_bytes: read(Pool::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH),
    })
}

/// The versions of the driver, of CUDA's runtime and of cuBLAS.
pub fn libraries(device: &Device) -> BTreeMap<String, String> {
    let Ok(cuda) = device.as_cuda_device() else { return BTreeMap::new() };
    // The encodings differ: 13000 is 13.0 for the driver and the runtime, 130100 is 13.1.0 for cuBLAS.
    let dotted = |version: c_int| format!("{}.{}", version / 1000, version % 1000 / 10);
    let dotted_cublas =
        |version: c_int| format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100);
    let versions = [
        ("cuda-driver", driver_version().map(dotted)),
        ("cuda-runtime", runtime_version().map(dotted)),
        ("cublas", cublas_version(cuda).map(dotted_cublas)),
    ];
    versions.into_iter().filter_map(|(name, version)| Some((name.to_string(), version?))).collect()
}

/// Adds the free memory to an out-of-memory error, because CUDA's text has no sizes.
pub fn add_free_memory(device: &Device, error: String) -> String {
    let out_of_memory = matches!(failure::classify(&error), Some((FailureKind::OutOfMemory, _)));
    match device.as_cuda_device().ok().filter(|_| out_of_memory).and_then(device_memory) {
        Some(memory) => format!("{error}: `{}` has {memory}", super::name(device)),
        None => error,
    }
}

fn device_memory(device: &CudaDevice) -> Option<Memory> {
    let (free_bytes, total_bytes) = device.cuda_stream().context().mem_get_info().ok()?;
    Some(Memory { free_bytes: free_bytes as u64, total_bytes: total_bytes as u64 })
}

/// The device's default memory pool, if candle allocates tensors from it.
#[expect(unsafe_code, reason = "CUDA returns the pool of a raw device handle")]
fn pool(device: &CudaDevice) -> Option<CUmemoryPool> {
    let stream = device.cuda_stream();
    let context = stream.context();
    // Without pools candle allocates by `cuMemAlloc`, which CUDA does not count for each process.
    let has_pool = context.has_async_alloc() && context.bind_to_thread().is_ok();
    // SAFETY: the handle is that of the open context, which the device keeps.
    has_pool.then(|| unsafe { devices::get_default_mem_pool(context.cu_device()) }.ok()).flatten()
}

#[expect(unsafe_code, reason = "attributes of a pool are read through a pointer")]
fn read(pool: CUmemoryPool, attribute: Pool) -> Result<u64, DriverError> {
    let mut bytes = 0_u64;
    // SAFETY: a device's default pool lives as long as the driver; each attribute that is read here is a cuuint64_t.
    unsafe { mem_pool::get_attribute(pool, attribute, (&raw mut bytes).cast()) }?;
    Ok(bytes)
}

#[expect(unsafe_code, reason = "attributes of a pool are set through a pointer")]
fn reset_peaks(pool: CUmemoryPool) -> Result<(), DriverError> {
    for peak in [Pool::CU_MEMPOOL_ATTR_USED_MEM_HIGH, Pool::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH] {
        let mut zero = 0_u64;
        // SAFETY: as in `read`; CUDA accepts only zero for these, and resets the peak to the current value.
        unsafe { mem_pool::set_attribute(pool, peak, (&raw mut zero).cast()) }?;
    }
    Ok(())
}

#[expect(unsafe_code, reason = "the driver's version comes through a pointer")]
fn driver_version() -> Option<c_int> {
    let mut version = 0;
    // SAFETY: the call writes one int, and needs no context.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().ok().map(|()| version)
}

#[expect(unsafe_code, reason = "cudarc leaves out the runtime that candle's own kernels are linked to")]
fn runtime_version() -> Option<c_int> {
    unsafe extern "C" {
        fn cudaRuntimeGetVersion(version: *mut c_int) -> c_int;
    }
    let mut version = 0;
    // SAFETY: the declaration is that of CUDA's runtime. The call writes one int, and needs no device.
    let status = unsafe { cudaRuntimeGetVersion(&raw mut version) };
    (status == 0).then_some(version)
}

#[expect(unsafe_code, reason = "cuBLAS's version comes through a pointer")]
fn cublas_version(device: &CudaDevice) -> Option<c_int> {
    let mut version = 0;
    // SAFETY: the handle is candle's own, which the device keeps. The call writes one int.
    unsafe { cublas::cublasGetVersion_v2(*device.cublas_handle().handle(), &raw mut version) }
        .result()
        .ok()?;
    Some(version)
}
