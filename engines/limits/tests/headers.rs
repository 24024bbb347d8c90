//! Compares the declarations of CUDA's driver and of cuBLAS with NVIDIA's own headers. The test extracts types, names and
//! numbers from the sources, so there is no second list, and a C++ compiler compares them. Without headers (`CUDA_HOME`,
//! `CUDA_PATH`, `/usr/local/cuda`) or without a compiler, the test only counts the comparisons.

#![expect(clippy::unwrap_used, reason = "a test panics where it cannot continue")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DRIVER: &str = include_str!("../src/gpu/driver.rs");
const CUBLAS: &str = include_str!("../src/gpu/cublas.rs");

/// C++ code that compares the types of two functions: pointers by their targets, unless one is `void`; numbers by size and kind.
const COMPARE: &str = r"
#include <cuda.h>
#include <cublas_v2.h>
#include <type_traits>
#define TEXT(name) #name
#define NAME(name) TEXT(name)
template <class A, class B> constexpr bool is_compatible() {
    if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
        using P = std::remove_cv_t<std::remove_pointer_t<A>>;
        using Q = std::remove_cv_t<std::remove_pointer_t<B>>;
        if constexpr (std::is_void_v<P> || std::is_void_v<Q>) return true;
        else return is_compatible<P, Q>();
    } else if constexpr (std::is_pointer_v<A> || std::is_pointer_v<B>) {
        return false;
    } else if constexpr (std::is_enum_v<A> || std::is_enum_v<B>) {
        return sizeof(A) == sizeof(B) && !std::is_floating_point_v<A> && !std::is_floating_point_v<B>;
    } else {
        return sizeof(A) == sizeof(B) && std::is_floating_point_v<A> == std::is_floating_point_v<B>
            && std::is_signed_v<A> == std::is_signed_v<B>;
    }
}
template <class Declared, class Header> struct same : std::false_type {};
template <class R, class... A, class S, class... B> struct same<R (*)(A...), S (*)(B...)> {
    static constexpr bool compare() {
        if constexpr (sizeof...(A) == sizeof...(B)) return is_compatible<R, S>() && (is_compatible<A, B>() && ...);
        else return false;
    }
    static constexpr bool value = compare();
};
";

#[test]
fn functions_and_numbers_match_the_headers_of_nvidia() {
    let checks =
        [functions(DRIVER), functions(CUBLAS), constants(DRIVER), constants(CUBLAS), statuses(CUBLAS)];
    let counts = checks.each_ref().map(|checks| checks.lines().count());
    // Two assertions for each function (4 functions of cuBLAS), one for each constant (2 of the driver, 8 of cuBLAS) and status.
    // One driver function occurs twice in the source, because older drivers have another name for it.
    let driver_assertions = 2 * (DRIVER.matches("function(library, ").count() - 1);
    let status_count = CUBLAS.matches("\"CUBLAS_STATUS_").count();
    assert_eq!(counts, [driver_assertions, 8, 2, 8, status_count], "{checks:?}");
    let Some(include) = headers() else {
        eprintln!("no CUDA headers: set CUDA_HOME to compare them");
        return;
    };
    let Some(errors) = compile_errors(&include, &(COMPARE.to_string() + &checks.concat())) else {
        eprintln!("no C++ compiler");
        return;
    };
    assert_eq!(errors, "", "with the headers in {}", include.display());
    // The comparison refuses a missing argument, a narrower number, and a number in place of a pointer.
    for declaration in [
        "int (*)(int *), decltype(&cuDeviceGet)",
        "int (*)(unsigned long long *, unsigned), decltype(&cuMemAlloc)",
        "int (*)(float, void *, void *), decltype(&cuEventElapsedTime)",
    ] {
        let errors =
            compile_errors(&include, &format!("{COMPARE}static_assert(same<{declaration}>::value);\n"))
                .unwrap();
        assert!(errors.contains("static assertion failed"), "{declaration}: {errors}");
    }
}

/// Assertions on each function's type and name. In the header, a macro may rename a function to its newest version.
fn functions(source: &str) -> String {
    let mut text = String::new();
    for (start, call) in source.match_indices("function(library, \"") {
        let (symbol, _) = source[start + call.len()..].split_once('"').unwrap();
        let before = source[..start].trim_end();
        // The fallback for older drivers has the same type.
        if before.ends_with("|_|") {
            continue;
        }
        let field = before.trim_end_matches(':').rsplit(|c: char| !(c.is_alphanumeric() || c == '_'));
        let (field, after) =
            (field.into_iter().next().unwrap(), |start: &str| source.split(start).nth(1).unwrap());
        let declared = after(&format!(" {field}: "));
        let is_alias = declared.starts_with("Option<GetUuid>");
        let declared = if is_alias { after("type GetUuid = ") } else { declared };
        let (arguments, _) = declared.split_once("fn(").unwrap().1.split_once(") ->").unwrap();
        let arguments = arguments.split(',').map(str::trim).filter(|name| !name.is_empty()).map(c_type);
        let declared_type = format!("int (*)({})", arguments.collect::<Vec<_>>().join(", "));
        writeln!(
            text,
            "static_assert(same<{declared_type}, decltype({})>::value, \"{symbol}\");",
            header_fn(symbol)
        )
        .unwrap();
        let unversioned = symbol.strip_suffix("_v2").unwrap_or(symbol);
        writeln!(text, "static_assert(!__builtin_strcmp(NAME({unversioned}), \"{symbol}\"), \"{symbol}\");")
            .unwrap();
    }
    text
}

/// A C++ expression for the address of a function. `cublasGemmEx` has an overload in C++ that no library exports; the cast
/// selects the exported form and checks its types.
fn header_fn(symbol: &str) -> String {
    if symbol != "cublasGemmEx" {
        return format!("&{symbol}");
    }
    let operand = "const void *, cudaDataType, int";
    format!(
        "static_cast<cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void *, \
         {operand}, {operand}, const void *, void *, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t)>(&{symbol})"
    )
}

fn c_type(rust_type: &str) -> String {
    if let Some(target) = rust_type.strip_prefix("*mut ") {
        return format!("{} *", c_type(target));
    }
    if let Some(target) = rust_type.strip_prefix("*const ") {
        return format!("const {} *", c_type(target));
    }
    let c_name = match rust_type {
        "c_int" | "Code" | "Status" | "Ordinal" => "int",
        "c_uint" => "unsigned",
        "usize" => "size_t",
        "u8" => "unsigned char",
        "f32" => "float",
        "Address" => "unsigned long long",
        "Opaque" | "Handle" => "void *",
        "c_char" => "char",
        // A UUID is passed by pointer, and the target of that pointer is not compared.
        "c_void" | "Uuid" => "void",
        other => panic!("unknown C type of `{other}`"),
    };
    c_name.into()
}

/// Assertions on the constants whose comment begins with their name in the header.
fn constants(source: &str) -> String {
    let mut text = String::new();
    for documented in source.split("/// `CU").skip(1) {
        let Some((name, after)) = documented.split_once('`') else { continue };
        let Some(line) = after.lines().nth(1).filter(|line| line.contains("const ")) else { continue };
        let value = line.rsplit("= ").next().unwrap().trim_end_matches(';');
        writeln!(text, "static_assert(CU{name} == {value}, \"CU{name}\");").unwrap();
    }
    text
}

/// Assertions on the names and numbers of cuBLAS errors.
fn statuses(source: &str) -> String {
    let mut text = String::new();
    for line in source.lines().map(str::trim).filter(|line| line.contains("=> \"CUBLAS_STATUS_")) {
        let (value, name) = line.trim_end_matches("\",").split_once(" => \"").unwrap();
        writeln!(text, "static_assert({name} == {value}, \"{name}\");").unwrap();
    }
    text
}

fn headers() -> Option<PathBuf> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let includes = homes.chain([PathBuf::from("/usr/local/cuda")]).map(|home| home.join("include"));
    includes.into_iter().find(|dir| dir.join("cuda.h").is_file() && dir.join("cublas_v2.h").is_file())
}

/// The compiler's messages; `None` without a compiler.
fn compile_errors(include: &Path, source: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "a compiler runs once and ends by itself")]
    let mut compiler = Command::new("c++");
    let compiler = compiler.args(["-std=c++17", "-fsyntax-only", "-x", "c++", "-", "-I"]).arg(include);
    let compiler = compiler.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut running = compiler.spawn().ok()?;
    std::io::Write::write_all(&mut running.stdin.take().unwrap(), source.as_bytes()).unwrap();
    let output = running.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(if output.status.success() { String::new() } else { errors })
}
