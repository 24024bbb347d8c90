//! Finds the missing or unusable shared library that kept the system's loader from starting a program. Linux loaders end such a
//! program with an exit status of their own, and the macOS loader ends it with a signal. Neither says anything about the engine.

use std::process::ExitStatus;

use super::error::Cause;

/// The exit status by which Linux loaders (glibc, musl) end a program. A shell uses the same status for a missing program.
const NOT_LOADED_STATUS: i32 = 127;
/// The beginnings of the names of NVIDIA's driver libraries, which no toolkit or package contains.
const NVIDIA_DRIVER_PREFIXES: [&str; 3] = ["libcuda.so", "libnvidia-", "libnvcuvid.so"];

/// The cause of a loader's failure, from a program's exit status and stderr. `None` for other failures.
pub fn loader_failure(status: ExitStatus, stderr: &[String]) -> Option<Cause> {
    use std::os::unix::process::ExitStatusExt;
    let aborted = status.signal() == Some(rustix::process::Signal::ABORT.as_raw());
    let error = stderr.iter().enumerate().rev().find_map(|(at, line)| match status.code() {
        Some(NOT_LOADED_STATUS) => linux_error(line),
        None if aborted => macos_error(line, &stderr[at..]),
        _ => None,
    });
    let LoaderError { library, problem, variable } = error?;
    let name = library.rsplit('/').next().unwrap_or(library);
    let message = match problem {
        None => format!("cannot start: `{name}` is missing"),
        Some(problem) => format!("cannot start: `{library}`: {problem}"),
    };
    let hint = match (problem, NVIDIA_DRIVER_PREFIXES.iter().any(|start| name.starts_with(start))) {
        (Some(_), _) => None,
        (None, true) => {
            Some(format!("find / -name {name} # part of NVIDIA's driver; add its folder to {variable}"))
        }
        (None, false) => Some(format!("find / -name {name} # add its folder to {variable}")),
    };
    Some(Cause::Start { message, hint })
}

struct LoaderError<'a> {
    library: &'a str,
    /// The reason why an existing library is unusable.
    problem: Option<&'a str>,
    /// The variable with the folders of libraries.
    variable: &'static str,
}

/// Parses an error of a Linux loader.
///
/// - glibc: `PROGRAM: error while loading shared libraries: LIBRARY: PROBLEM`
/// - musl: `Error loading shared library LIBRARY: PROBLEM (needed by PROGRAM)`
fn linux_error(line: &str) -> Option<LoaderError<'_>> {
    let markers = ["error while loading shared libraries: ", "Error loading shared library "];
    let error = markers.iter().find_map(|marker| line.split_once(marker))?.1;
    let (library, problem) = error.split_once(": ").unwrap_or((error, ""));
    let missing = problem.is_empty() || problem.contains("No such file");
    let library = Some(library.trim()).filter(|library| !library.is_empty())?;
    Some(LoaderError { library, problem: (!missing).then_some(problem.trim()), variable: "LD_LIBRARY_PATH" })
}

/// Parses an error of the macOS loader: `dyld[1]: Library not loaded: @rpath/libx.dylib`, then a line `Reason: tried:
/// '/a/libx.dylib' (no such file)`.
fn macos_error<'a>(line: &'a str, following_lines: &'a [String]) -> Option<LoaderError<'a>> {
    let (start, library) = line.split_once("Library not loaded: ")?;
    let library = Some(library.trim()).filter(|name| start.starts_with("dyld") && !name.is_empty())?;
    let reason = following_lines.iter().find_map(|line| line.trim().strip_prefix("Reason: "));
    let missing = reason.is_none_or(|reason| reason.contains("no such file") || reason.contains("not found"));
    let problem = (!missing).then_some(reason).flatten();
    Some(LoaderError { library, problem, variable: "DYLD_LIBRARY_PATH" })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    /// The message and the hint of a loader's failure.
    fn error(raw_status: i32, stderr: &[&str]) -> Option<(String, Option<String>)> {
        let stderr: Vec<String> = stderr.iter().map(|line| line.to_string()).collect();
        let cause = loader_failure(ExitStatus::from_raw(raw_status), &stderr)?;
        assert_eq!(cause.kind(), crate::record::FailureKind::Start);
        Some((cause.to_string(), cause.hint()))
    }

    const EXITED_127: i32 = 127 << 8;
    const ABORTED: i32 = 6;
    const GLIBC: &str = "/a/long/path/of/toy: error while loading shared libraries: libcublas.so.13: cannot open \
                         shared object file: No such file or directory";

    #[test]
    fn a_missing_library_is_named_with_the_variable_for_its_folder() {
        let (message, hint) = error(EXITED_127, &["before", GLIBC]).unwrap();
        assert_eq!(message, "cannot start: `libcublas.so.13` is missing");
        assert_eq!(hint.unwrap(), "find / -name libcublas.so.13 # add its folder to LD_LIBRARY_PATH");
        let musl = "Error loading shared library libx.so: No such file or directory (needed by ./a)";
        assert_eq!(error(EXITED_127, &[musl]).unwrap().0, "cannot start: `libx.so` is missing");
        let hint = error(EXITED_127, &[&GLIBC.replace("libcublas.so.13", "libcuda.so.1")]).unwrap().1;
        assert!(hint.unwrap().contains("part of NVIDIA's driver"));
    }

    #[test]
    fn an_unreadable_library_is_not_called_missing() {
        let short = "a: error while loading shared libraries: /b/libx.so.1: file too short";
        let (message, hint) = error(EXITED_127, &[short]).unwrap();
        assert_eq!((&*message, hint), ("cannot start: `/b/libx.so.1`: file too short", None));
    }

    #[test]
    fn messages_of_the_macos_loader_are_recognized() {
        let lines = ["dyld[7]: Library not loaded: @rpath/libx.dylib", "  Referenced from: <0> /a"];
        let (message, hint) = error(ABORTED, &lines).unwrap();
        assert_eq!(message, "cannot start: `libx.dylib` is missing");
        assert!(hint.unwrap().ends_with("DYLD_LIBRARY_PATH"));
        let other = [lines[0], "  Reason: tried: '/l/libx.dylib' (mach-o file, incompatible architecture)"];
        assert!(error(ABORTED, &other).unwrap().0.contains("incompatible architecture"));
    }

    #[test]
    fn other_exits_are_not_called_missing_libraries() {
        assert_eq!(error(1 << 8, &[GLIBC]), None);
        assert_eq!(error(EXITED_127, &["sh: 1: no-such-program: not found"]), None);
        assert_eq!(error(EXITED_127, &["error while loading shared libraries: "]), None);
        assert_eq!(error(ABORTED, &["my own words: Library not loaded: x"]), None);
        assert_eq!(error(ABORTED, &[]), None);
    }
}
