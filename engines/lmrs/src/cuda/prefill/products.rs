//! Products of matrices by cuBLAS: bf16 in, sums in f32.
#![expect(unsafe_code, reason = "functions of a library that is loaded at run time")]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::rc::Rc;

use protocol::{Failed, FailureKind};

use crate::cuda::driver::{Address, Gpu, Memory};
use crate::cuda::library::Library;

/// `cublasStatus_t`: zero is success.
type Status = c_int;
/// `cublasHandle_t`.
type Handle = *mut c_void;
/// `cublasCreate_v2`, `cublasSetStream_v2` and `cublasSetWorkspace_v2`.
type Create = unsafe extern "C" fn(*mut Handle) -> Status;
type SetStream = unsafe extern "C" fn(Handle, *mut c_void) -> Status;
type SetWorkspace = unsafe extern "C" fn(Handle, Address, usize) -> Status;

/// `CUBLAS_STATUS_ALLOC_FAILED`.
const ALLOCATION_FAILED: Status = 3;
/// `CUBLAS_OP_N` and `CUBLAS_OP_T`.
const UNCHANGED: c_int = 0;
const TRANSPOSED: c_int = 1;
/// `CUDA_R_32F` and `CUDA_R_16BF`.
const F32: c_int = 0;
const BF16: c_int = 14;
/// `CUBLAS_COMPUTE_32F`.
const SUMS_IN_F32: c_int = 68;
/// `CUBLAS_GEMM_DEFAULT`: cuBLAS chooses the kernel.
const DEFAULT_ALGORITHM: c_int = -1;

/// The memory that cuBLAS gets for partial sums: as much as NVIDIA recommends for an H100.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// `cublasGemmEx`.
type Gemm = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    Address,
    c_int,
    c_int,
    Address,
    c_int,
    c_int,
    *const c_void,
    Address,
    c_int,
    c_int,
    c_int,
    c_int,
) -> Status;

/// cuBLAS on the stream of a GPU.
pub struct Products {
    gpu: Rc<Gpu>,
    handle: Handle,
    destroy: unsafe extern "C" fn(Handle) -> Status,
    gemm: Gemm,
    _workspace: Memory,
}

/// A matrix [outputs, inputs] in bf16.
#[derive(Debug, Clone, Copy)]
pub struct Matrix {
    pub address: Address,
    pub outputs: usize,
    pub inputs: usize,
}

/// The rows of a result, in f32.
#[derive(Debug, Clone, Copy)]
pub struct Out {
    pub address: Address,
    /// The numbers from one row to the next.
    pub stride: usize,
    /// Whether the product is added to the numbers that are there.
    pub adds: bool,
}

impl Products {
    pub fn new(gpu: &Rc<Gpu>) -> Result<Self, Failed> {
        let library = Library::cublas()?;
        let workspace = gpu.allocate(WORKSPACE_BYTES)?;
        let workspace_address = workspace.address();
        // SAFETY: every type matches the declaration of that name in cublas_api.h, where a pointer to device memory is an
        // address.
        let (create, destroy, set_stream, set_workspace, gemm) = unsafe {
            (
                library.function::<Create>("cublasCreate_v2")?,
                library.function("cublasDestroy_v2")?,
                library.function::<SetStream>("cublasSetStream_v2")?,
                library.function::<SetWorkspace>("cublasSetWorkspace_v2")?,
                library.function("cublasGemmEx")?,
            )
        };
        let mut handle = null_mut();
        // SAFETY: the call writes one handle, of the context that is current on this thread.
        check(gpu, "cublasCreate", unsafe { create(&mut handle) })?;
        let products = Self { gpu: Rc::clone(gpu), handle, destroy, gemm, _workspace: workspace };
        // SAFETY: the handle was just created, and the stream lives as long as the GPU.
        check(gpu, "cublasSetStream", unsafe { set_stream(handle, gpu.stream()) })?;
        // After the stream, because a new stream has the default workspace.
        // SAFETY: the memory has this number of bytes, and lives as long as the handle.
        let status = unsafe { set_workspace(handle, workspace_address, WORKSPACE_BYTES) };
        check(gpu, "cublasSetWorkspace", status)?;
        Ok(products)
    }

    /// Starts `out [rows, outputs] = input [rows, inputs] * matrix`, after all work that was started before.
    ///
    /// # Safety
    /// The addresses are those of device memory with these numbers, and valid until the product has finished.
    pub unsafe fn start(&self, input: Address, rows: usize, matrix: Matrix, out: Out) -> Result<(), Failed> {
        let Matrix { address, outputs, inputs } = matrix;
        let [m, n, k, stride] = [outputs, rows, inputs, out.stride].map(|size| size as c_int);
        let (one, factor) = (1.0_f32, if out.adds { 1.0_f32 } else { 0.0 });
        // For cuBLAS, whose matrices are column-major, this is: the transposed matrix times the transposed input.
        // SAFETY: the caller guarantees the memory. The factors are read before the call returns.
        let status = unsafe {
            (self.gemm)(
                self.handle,
                TRANSPOSED,
                UNCHANGED,
                m,
                n,
                k,
                (&raw const one).cast(),
                address,
                BF16,
                k,
                input,
                BF16,
                k,
                (&raw const factor).cast(),
                out.address,
                F32,
                stride,
                SUMS_IN_F32,
                DEFAULT_ALGORITHM,
            )
        };
        check(&self.gpu, "cublasGemmEx", status)
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        // SAFETY: the handle was created once and is destroyed once. The workspace is freed afterwards.
        unsafe { (self.destroy)(self.handle) };
    }
}

fn check(gpu: &Gpu, call: &str, status: Status) -> Result<(), Failed> {
    if status == 0 {
        return Ok(());
    }
    let kind = if status == ALLOCATION_FAILED { FailureKind::OutOfMemory } else { FailureKind::Device };
    Err(Failed::new(kind, format!("`{}`: `{call}` failed: cuBLAS status {status}", gpu.name)))
}
