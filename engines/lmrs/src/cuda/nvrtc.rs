//! NVRTC, which compiles CUDA C++ at run time, on the CPU alone.
#![expect(unsafe_code, reason = "functions of a library that is loaded at run time")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null_mut;

use protocol::{Failed, FailureKind};

use super::library::Library;

/// `nvrtcResult`: zero is success.
type Status = c_int;
/// `nvrtcProgram`.
type Handle = *mut c_void;
type Strings = *const *const c_char;

/// The functions as `nvrtc.h` declares them.
pub struct Nvrtc {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    create:
        unsafe extern "C" fn(*mut Handle, *const c_char, *const c_char, c_int, Strings, Strings) -> Status,
    destroy: unsafe extern "C" fn(*mut Handle) -> Status,
    compile: unsafe extern "C" fn(Handle, c_int, Strings) -> Status,
    log_size: unsafe extern "C" fn(Handle, *mut usize) -> Status,
    log: unsafe extern "C" fn(Handle, *mut c_char) -> Status,
    image_size: unsafe extern "C" fn(Handle, *mut usize) -> Status,
    image: unsafe extern "C" fn(Handle, *mut c_char) -> Status,
}

/// A file of CUDA C++: its name and its text.
pub type SourceFile = (&'static str, &'static str);

impl Nvrtc {
    pub fn load() -> Result<Self, Failed> {
        let library = Library::nvrtc()?;
        // SAFETY: every type matches the declaration of that name in nvrtc.h.
        unsafe {
            Ok(Self {
                version: library.function("nvrtcVersion")?,
                create: library.function("nvrtcCreateProgram")?,
                destroy: library.function("nvrtcDestroyProgram")?,
                compile: library.function("nvrtcCompileProgram")?,
                log_size: library.function("nvrtcGetProgramLogSize")?,
                log: library.function("nvrtcGetProgramLog")?,
                image_size: library.function("nvrtcGetCUBINSize")?,
                image: library.function("nvrtcGetCUBIN")?,
            })
        }
    }

    /// The version, such as `13.0`.
    pub fn version(&self) -> Result<String, Failed> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the call writes two ints.
        check("nvrtcVersion", unsafe { (self.version)(&mut major, &mut minor) })?;
        Ok(format!("{major}.{minor}"))
    }

    /// Compiles a file to an image that the driver loads. `headers` are the files that it may include.
    pub fn compile(
        &self,
        source: SourceFile,
        headers: &[SourceFile],
        options: &[String],
    ) -> Result<Vec<u8>, Failed> {
        let c_string = |text: &str| CString::new(text).unwrap_or_default();
        let (name, text) = (c_string(source.0), c_string(source.1));
        let texts: Vec<CString> = headers.iter().map(|(_, text)| c_string(text)).collect();
        let names: Vec<CString> = headers.iter().map(|(name, _)| c_string(name)).collect();
        let options: Vec<CString> = options.iter().map(|option| c_string(option)).collect();
        let pointers = |strings: &[CString]| {
            strings.iter().map(|string| string.as_ptr()).collect::<Vec<*const c_char>>()
        };
        let (texts, names, options) = (pointers(&texts), pointers(&names), pointers(&options));
        let mut handle = null_mut();
        // SAFETY: the call writes one pointer. All strings end with a nul and live until the end of this function; the lists
        // have the stated lengths.
        let status = unsafe {
            let count = c_int::try_from(texts.len()).unwrap_or(0);
            (self.create)(&mut handle, text.as_ptr(), name.as_ptr(), count, texts.as_ptr(), names.as_ptr())
        };
        check("nvrtcCreateProgram", status)?;
        let program = Program { nvrtc: self, handle };
        // SAFETY: the program exists, and the list has the stated length.
        let status = unsafe {
            (self.compile)(program.handle, c_int::try_from(options.len()).unwrap_or(0), options.as_ptr())
        };
        if status != 0 {
            let log = program.text(self.log_size, self.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let message = format!(
                "NVRTC cannot compile `{}` (status {status}): {}",
                source.0,
                log.trim_matches(['\0', '\n'])
            );
            return Err(Failed::new(FailureKind::Internal, message));
        }
        program.text(self.image_size, self.image)
    }
}

struct Program<'a> {
    nvrtc: &'a Nvrtc,
    handle: Handle,
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was created once and is destroyed once.
        unsafe { (self.nvrtc.destroy)(&mut self.handle) };
    }
}

impl Program<'_> {
    /// A text or an image of the program, by the functions for its size and its bytes.
    fn text(
        &self,
        size: unsafe extern "C" fn(Handle, *mut usize) -> Status,
        read: unsafe extern "C" fn(Handle, *mut c_char) -> Status,
    ) -> Result<Vec<u8>, Failed> {
        let mut bytes = 0;
        // SAFETY: the program exists, and the call writes one size.
        check("the size of NVRTC's result", unsafe { size(self.handle, &mut bytes) })?;
        let mut text = vec![0_u8; bytes];
        // SAFETY: the call writes as many bytes as it stated.
        check("NVRTC's result", unsafe { read(self.handle, text.as_mut_ptr().cast()) })?;
        Ok(text)
    }
}

fn check(call: &str, status: Status) -> Result<(), Failed> {
    match status {
        0 => Ok(()),
        _ => Err(Failed::new(FailureKind::Internal, format!("`{call}` failed: status {status}"))),
    }
}
