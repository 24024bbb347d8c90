//! The user's environment variables that an engine gets: those that say where things are and how to compute. Others may hold
//! secrets, which an engine could print.

use std::ffi::{OsStr, OsString};

use protocol::environment;

/// Variables by name, or by the beginning of a name before `*`.
const PASSED: &[&str] = &[
    // The user, and folders.
    "HOME",
    "LOGNAME",
    "PATH",
    "TMPDIR",
    "USER",
    "XDG_*",
    // Language and time zone.
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    // Libraries and compilers.
    "CC",
    "CXX",
    "DYLD_LIBRARY_PATH",
    "LD_LIBRARY_PATH",
    "LLAMA_CPP_LIB_PATH",
    "PYTHONHOME",
    "PYTHONPATH",
    // Devices.
    "CUDA_*",
    "HIP_*",
    "NVIDIA_*",
    "ROCR_*",
    // Threads.
    "GOMP_*",
    "KMP_*",
    "MKL_*",
    "OMP_*",
    "OPENBLAS_*",
    "RAYON_*",
    // Jobs of a cluster.
    "SLURM_*",
    // Models, and caches of what libraries compile.
    "HF_*",
    "HUGGINGFACE_HUB_CACHE",
    "TORCHINDUCTOR_*",
    "TORCH_HOME",
    "TRANSFORMERS_*",
    "TRITON_*",
    // This program and its engines.
    "ORCHESTRATE_*",
];

/// The variables that this program sets for each launch. The user's values are not passed, because they would name another model
/// or launch.
const SET_BY_LAUNCH: &[&str] = &[
    environment::MODEL,
    environment::DEVICE,
    environment::DTYPE,
    environment::THREADS,
    environment::RUN,
    environment::LAUNCH,
];

/// Endings of words in the names of secrets, as in `HF_TOKEN`, `NVIDIA_API_KEY` and `SLURM_JWT`.
const SECRET_ENDINGS: &[&str] = &[
    "AUTH",
    "COOKIE",
    "CREDENTIAL",
    "CREDENTIALS",
    "JWT",
    "KEY",
    "KEYS",
    "PASS",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "PASSWORDS",
    "SECRET",
    "SECRETS",
    "TOKEN",
    "TOKENS",
];

/// Shorter values are not removed from an engine's lines, because ordinary text may contain them.
const MIN_SECRET_BYTES: usize = 6;

/// The user's choice of more variables (`--pass-env`): names, and beginnings of names before `*`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PassedVariables {
    pub patterns: Vec<String>,
}

impl PassedVariables {
    /// The variables of this process that an engine gets.
    pub fn of_environment(&self) -> Vec<(OsString, OsString)> {
        std::env::vars_os().filter(|(name, _)| self.passes(name)).collect()
    }

    /// The names of this process's variables that an engine does not get.
    pub fn withheld(&self) -> Vec<String> {
        let names = std::env::vars_os().map(|(name, _)| name).filter(|name| !self.passes(name));
        let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// The values that no record may have: those of passed variables whose names are like those of secrets.
    pub fn secrets(&self) -> Secrets {
        let secret = |(name, value): (OsString, OsString)| {
            let (name, value) = (name.into_string().ok()?, value.into_encoded_bytes());
            (is_secret(&name) && value.len() >= MIN_SECRET_BYTES).then_some((name, value))
        };
        Secrets(self.of_environment().into_iter().filter_map(secret).collect())
    }

    fn passes(&self, name: &OsStr) -> bool {
        let Some(name) = name.to_str().filter(|name| !SET_BY_LAUNCH.contains(name)) else { return false };
        let mut patterns = PASSED.iter().copied().chain(self.patterns.iter().map(String::as_str));
        match is_secret(name) {
            // A secret is passed only if the user gives its whole name.
            true => self.patterns.iter().any(|pattern| pattern == name),
            false => patterns.any(|pattern| match pattern.strip_suffix('*') {
                Some(beginning) => name.starts_with(beginning),
                None => name == pattern,
            }),
        }
    }
}

fn is_secret(name: &str) -> bool {
    name.to_ascii_uppercase()
        .split('_')
        .any(|word| SECRET_ENDINGS.iter().any(|ending| word.ends_with(ending)))
}

/// Secret values, each with the name of its variable.
#[derive(Debug, Clone, Default)]
pub struct Secrets(Vec<(String, Vec<u8>)>);

impl Secrets {
    /// The line with the names of variables in place of their values.
    pub fn removed_from(&self, mut line: Vec<u8>) -> Vec<u8> {
        for (name, value) in &self.0 {
            let mut from = 0;
            let next =
                |line: &[u8], from: usize| line[from..].windows(value.len()).position(|it| it == value);
            while let Some(found) = next(&line, from) {
                let (start, shown) = (from + found, format!("[{name}]"));
                line.splice(start..start + value.len(), shown.bytes());
                from = start + shown.len();
            }
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(patterns: &[&str], name: &str) -> bool {
        let patterns = patterns.iter().map(|pattern| pattern.to_string()).collect();
        PassedVariables { patterns }.passes(OsStr::new(name))
    }

    #[test]
    fn an_engine_gets_the_variables_that_say_where_things_are_and_how_to_compute() {
        for name in [
            "PATH",
            "HOME",
            "LANG",
            "LC_ALL",
            "TMPDIR",
            "LD_LIBRARY_PATH",
            "XDG_CACHE_HOME",
            "CUDA_VISIBLE_DEVICES",
            "NVIDIA_VISIBLE_DEVICES",
            "OMP_NUM_THREADS",
            "MKL_NUM_THREADS",
            "SLURM_JOB_ID",
            "RAYON_NUM_THREADS",
            "HF_HOME",
            "HF_HUB_CACHE",
            "TRANSFORMERS_CACHE",
            "ORCHESTRATE_HOME",
            "ORCHESTRATE_PYTHON_CANDLE",
        ] {
            assert!(passes(&[], name), "{name}");
        }
        for name in [
            "EDITOR",
            "AWS_PROFILE",
            "SSH_AUTH_SOCK",
            "PATHS",
            "HTTPS_PROXY",
            "VLLM_MODE",
            "ORCHESTRATE_DTYPE",
        ] {
            assert!(!passes(&[], name), "{name}");
        }
    }

    #[test]
    fn only_the_whole_name_passes_a_token_or_a_key() {
        for name in [
            "HF_TOKEN",
            "NVIDIA_API_KEY",
            "SLURM_JWT",
            "ORCHESTRATE_PASSWORD",
            "XDG_SESSION_COOKIE",
            "HF_TOKEN_PATH",
            "CUDA_secret",
            "HUGGING_FACE_HUB_TOKEN",
            "ORCHESTRATE_APIKEY",
        ] {
            assert!(!passes(&[], name) && !passes(&["HF_*", "*"], name) && passes(&[name], name), "{name}");
        }
    }

    #[test]
    fn the_user_passes_variables_by_name_or_by_beginning() {
        assert!(passes(&["VLLM_MODE"], "VLLM_MODE") && passes(&["VLLM_*"], "VLLM_MODE"));
        assert!(!passes(&["VLLM"], "VLLM_MODE") && !passes(&["VLLM_*"], "ORCHESTRATE_MODEL"));
    }

    #[test]
    fn a_secret_in_a_line_becomes_the_name_of_its_variable() {
        // A value that is a part of its variable's name is replaced once.
        let secrets =
            Secrets(vec![("A_KEY".into(), b"s3cret".to_vec()), ("MY_SECRET_KEY".into(), b"SECRET".to_vec())]);
        assert_eq!(
            secrets.removed_from(b"a s3cret, s3cretSECRET".to_vec()),
            b"a [A_KEY], [A_KEY][MY_SECRET_KEY]"
        );
        assert_eq!(Secrets::default().removed_from(b"a s3cret".to_vec()), b"a s3cret");
    }
}
