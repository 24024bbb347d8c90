//! Why a program cannot be started, with a hint.

use std::fs::File;
use std::io::{Error, Read};
use std::path::Path;

use rustix::io::Errno;

use crate::shell::{Unavailable, pasteable};
use crate::text;

/// The maximum number of bytes of a script's first line. The kernel reads as many.
const MAX_LINE_BYTES: u64 = 256;

pub fn why_not_started(program: &str, error: &Error) -> Unavailable {
    let of_system = |hint: Option<String>| Unavailable { reason: error.to_string(), hint };
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::ACCESS) => of_system(Some(format!("chmod +x {}", pasteable(&[program.to_string()])))),
        Some(Errno::NOEXEC) => {
            of_system(Some("a script needs a first line such as `#!/usr/bin/env python3`".into()))
        }
        Some(Errno::NOENT) => match missing_interpreter(Path::new(program)) {
            Some(interpreter) => Unavailable {
                reason: format!("its first line names `{interpreter}`, which does not exist"),
                hint: Some(format!("install `{interpreter}`, or name another interpreter in the first line")),
            },
            None => of_system(None),
        },
        _ => of_system(None),
    }
}

/// The interpreter in the first line of a script, if it does not exist.
fn missing_interpreter(program: &Path) -> Option<String> {
    let mut start = Vec::new();
    File::open(program).ok()?.take(MAX_LINE_BYTES).read_to_end(&mut start).ok()?;
    let text = String::from_utf8_lossy(&start);
    let interpreter = text.lines().next()?.strip_prefix("#!")?.split_whitespace().next()?;
    (!Path::new(interpreter).exists()).then(|| text::line(interpreter))
}
