//! The few cuBLAS functions that a probe needs: a handle, the version, and one matrix product.
#![expect(unsafe_code, reason = "functions of a library that is loaded at run time")]

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::path::PathBuf;
use std::ptr::null_mut;

use libloading::Library;

use super::NumberType;
use super::driver::{Context, Memory, function, open};

/// The names of the library by CUDA's major version, the newest first.
const LIBRARY_NAMES: [&str; 4] = ["libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"];
/// The dependency of cuBLAS, opened first: a loader does not search the folder of a file that is opened by path.
const CUBLAS_LT: [&str; 3] = ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"];
/// The oldest supported version. Earlier versions had no `cublasComputeType_t`.
const MIN_VERSION: c_int = 11_000;

/// `CUBLAS_OP_T`. Frameworks multiply by row-major weights in this way, and tensor cores are fast with it.
const TRANSPOSED: c_int = 1;
/// `CUBLAS_OP_N`.
const NOT_TRANSPOSED: c_int = 0;
/// `CUBLAS_GEMM_DEFAULT`. The library chooses the kernel.
const DEFAULT_ALGORITHM: c_int = -1;

/// `cublasStatus_t`: zero is success.
type Status = c_int;
type Handle = *mut c_void;

/// `CUDA_R_32F`.
pub const DATA_F32: c_int = 0;
/// `CUDA_R_16F`.
pub const DATA_F16: c_int = 2;
/// `CUDA_R_16BF`.
pub const DATA_BF16: c_int = 14;
/// `CUBLAS_COMPUTE_32F`.
pub const COMPUTE_F32: c_int = 68;
/// `CUBLAS_COMPUTE_32F_FAST_TF32`.
pub const COMPUTE_TF32: c_int = 77;

/// The functions as `cublas_v2.h` declares them; `tests/headers.rs` checks the types against an installed header.
#[derive(Clone, Copy)]
struct Functions {
    create: unsafe extern "C" fn(*mut Handle) -> Status,
    destroy: unsafe extern "C" fn(Handle) -> Status,
    version: unsafe extern "C" fn(Handle, *mut c_int) -> Status,
    gemm: unsafe extern "C" fn(
        Handle,
        c_int,
        c_int,
        c_int,
        c_int,
        c_int,
        *const c_void,
        *const c_void,
        c_int,
        c_int,
        *const c_void,
        c_int,
        c_int,
        *const c_void,
        *mut c_void,
        c_int,
        c_int,
        c_int,
        c_int,
    ) -> Status,
}

impl Functions {
    fn of(library: &'static Library) -> Result<Self, String> {
        // SAFETY: the types above match the declarations of cublas_v2.h under these names.
        unsafe {
            Ok(Self {
                create: function(library, "cublasCreate_v2")?,
                destroy: function(library, "cublasDestroy_v2")?,
                version: function(library, "cublasGetVersion_v2")?,
                gemm: function(library, "cublasGemmEx")?,
            })
        }
    }
}

/// A cuBLAS handle in the context that was current at its creation.
pub struct Cublas<'a> {
    handle: Handle,
    functions: Functions,
    context: PhantomData<&'a Context<'a>>,
}

impl<'a> Cublas<'a> {
    /// Loads the first cuBLAS that this driver supports, from the loader's paths, then from `folders`. If none works, the
    /// error is that of the first cuBLAS that was opened.
    pub fn load(context: &'a Context<'a>, folders: &[PathBuf]) -> Result<Self, String> {
        let mut first_error = None;
        let in_folders =
            folders.iter().flat_map(|folder| LIBRARY_NAMES.map(|name| (Some(folder), folder.join(name))));
        let candidates = LIBRARY_NAMES.map(|name| (None, PathBuf::from(name))).into_iter().chain(in_folders);
        for (folder, name) in candidates {
            if let Some(folder) = folder.filter(|_| name.is_file()) {
                // A failure is ignored, because the cuBLAS below may still find this dependency by itself.
                open(CUBLAS_LT.iter().map(|name| folder.join(name)));
            }
            let Some(library) = open([&name]) else { continue };
            match Self::of(context, library) {
                Ok(cublas) => return Ok(cublas),
                Err(reason) => first_error = first_error.or(Some(reason)),
            }
        }
        Err(first_error.unwrap_or_else(|| "no cuBLAS in the loader's paths or a Python environment".into()))
    }

    fn of(_: &'a Context<'a>, library: &'static Library) -> Result<Self, String> {
        let functions = Functions::of(library)?;
        let mut handle = null_mut();
        // SAFETY: the call writes one pointer. A context is current, because the caller passed one.
        check("cublasCreate", unsafe { (functions.create)(&mut handle) })?;
        // This value destroys the handle when it is dropped, also after an error below.
        let cublas = Self { handle, functions, context: PhantomData };
        let mut version = 0;
        // SAFETY: the call writes one int.
        check("cublasGetVersion", unsafe { (functions.version)(handle, &mut version) })?;
        if version < MIN_VERSION {
            return Err(format!("cuBLAS is too old ({version}): expected 11 or later"));
        }
        Ok(cublas)
    }

    /// Starts the product `c` of `a` (transposed) and `b`, all of `n` rows and columns, without waiting for it.
    pub fn product(&self, n: u64, number_type: &NumberType, [a, b, c]: [&Memory; 3]) -> Result<(), String> {
        let Ok(side) = c_int::try_from(n) else { return Err("the matrix side is larger than an int".into()) };
        let needed = (n * n) as usize * number_type.bytes;
        if [a, b, c].iter().any(|matrix| matrix.bytes() < needed) {
            return Err("a matrix is too small".into());
        }
        let pointer = |memory: &Memory| memory.address() as usize as *mut c_void;
        let (one, zero) = (1.0_f32, 0.0_f32);
        // SAFETY: each matrix has room for n by n numbers, as checked above. The factors `one` and `zero` are f32 like the
        // sums, in host memory, and are read before the call returns. Dropping a matrix waits for the GPU to finish with it.
        let status = unsafe {
            (self.functions.gemm)(
                self.handle,
                TRANSPOSED,
                NOT_TRANSPOSED,
                side,
                side,
                side,
                (&raw const one).cast(),
                pointer(a),
                number_type.data,
                side,
                pointer(b),
                number_type.data,
                side,
                (&raw const zero).cast(),
                pointer(c),
                number_type.data,
                side,
                number_type.compute,
                DEFAULT_ALGORITHM,
            )
        };
        check("cublasGemmEx", status)
    }
}

impl Drop for Cublas<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle was created once and is destroyed once, while its context exists.
        unsafe { (self.functions.destroy)(self.handle) };
    }
}

fn check(name: &str, status: Status) -> Result<(), String> {
    let status_name = match status {
        0 => return Ok(()),
        1 => "CUBLAS_STATUS_NOT_INITIALIZED",
        3 => "CUBLAS_STATUS_ALLOC_FAILED",
        7 => "CUBLAS_STATUS_INVALID_VALUE",
        8 => "CUBLAS_STATUS_ARCH_MISMATCH",
        11 => "CUBLAS_STATUS_MAPPING_ERROR",
        13 => "CUBLAS_STATUS_EXECUTION_FAILED",
        14 => "CUBLAS_STATUS_INTERNAL_ERROR",
        15 => "CUBLAS_STATUS_NOT_SUPPORTED",
        16 => "CUBLAS_STATUS_LICENSE_ERROR",
        _ => "an unknown status",
    };
    Err(format!("`{name}` failed: {status_name} ({status})"))
}
