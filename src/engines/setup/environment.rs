//! Python environments of engines: made from pinned requirements, removed on request, and their disk space.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::statvfs;

use super::step::{SetUpEvent, Steps, without_hint};
use crate::engines::manifest::{Engine, Environment};
use crate::shell::megabytes;

/// Creates the environment of an engine that needs one, unless the environment exists.
pub fn create(steps: &mut Steps, engine: &Engine) -> Result<()> {
    let (Some(environment), Some(folder)) = (&engine.manifest.environment, engine.environment()) else {
        return Ok(());
    };
    let created = create_in(steps, engine, environment, &folder?);
    let Some(install_hint) = &environment.install_hint else { return created };
    created.map_err(|error| anyhow!("{}\nhint: {install_hint}", without_hint(&error)))
}

fn create_in(steps: &mut Steps, engine: &Engine, environment: &Environment, folder: &Path) -> Result<()> {
    let parent = folder.parent().context("an environment lies in a folder")?;
    std::fs::create_dir_all(parent).with_context(|| format!("cannot create `{}`", parent.display()))?;
    // If two runs create it at once, the second waits here. Then it finds the environment, or creates it if the first run failed.
    let lock = File::create(folder.with_extension("lock")).context("cannot create the environment's lock")?;
    if let Err(TryLockError::WouldBlock) = lock.try_lock() {
        let subject = engine.manifest.name.clone();
        let reason = "another set-up creates its environment; this one continues when the other ends".into();
        (steps.listener)(SetUpEvent::Waiting { subject, reason });
    }
    lock.lock().context("cannot lock the environment")?;
    if paths::interpreter(folder).is_some() {
        return Ok(());
    }
    let (download, installed) = (environment.download_mb, environment.installed_mb);
    check_space(parent, download + installed)?;
    if !engine.build_files.is_empty() {
        check_compiler(&engine.manifest.name)?;
    }
    // The sizes are shown before any download.
    let sizes = format!("{} to download, {} installed", megabytes(download), megabytes(installed));
    let further = environment.note.as_ref().map_or(String::new(), |note| format!("; {note}"));
    let note = format!("{sizes} in {}{further}", folder.display());
    let (name, step) = (engine.manifest.name.clone(), "setting up its environment".to_string());
    (steps.listener)(SetUpEvent::Started { subject: name, step, note: Some(note) });
    let made = make(steps, engine, environment, folder, parent);
    // A half made environment is of no use, and may be the reason why the disk is full.
    made.map_err(|error| match remove_files(folder) {
        Ok(()) if is_disk_full(&error) => disk_full(parent, download + installed),
        Ok(()) => error,
        Err(not_removed) => error.context(format!("{not_removed:#}")),
    })
}

fn make(
    steps: &mut Steps,
    engine: &Engine,
    environment: &Environment,
    folder: &Path,
    parent: &Path,
) -> Result<()> {
    let uv = uv(steps, engine, parent)?;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let requirements = folder.with_extension("requirements.txt");
    std::fs::write(&requirements, engine.requirements.as_deref().unwrap_or_default())?;
    let venv = ["venv", "--clear", "--python", &environment.python, &text(folder)];
    steps.run(engine, "setting up Python", None, &command(&uv, &venv), parent)?;
    let python = text(&folder.join("bin/python"));
    let install = ["pip", "install", "--python", &python, "-r", &text(&requirements)];
    let mut install = command(&uv, &install);
    install.extend(build_arguments(&engine.build_files, &folder.with_extension("build"))?);
    steps.run(engine, "setting up its packages", None, &install, parent)?;
    // Written last: an environment without this file is incomplete.
    std::fs::write(folder.join(paths::READY_FILE), "")?;
    Ok(())
}

/// Removes the files of an incomplete environment. Its lock stays, because this set-up holds it.
fn remove_files(folder: &Path) -> Result<()> {
    for path in
        [folder.to_path_buf(), folder.with_extension("build"), folder.with_extension("requirements.txt")]
    {
        let removed =
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove `{}`", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a step failed because its disk was full. The tools of a set-up report the system's own text.
fn is_disk_full(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}");
    ["No space left on device", "Disk quota exceeded"].iter().any(|part| text.contains(part))
}

/// The failure of a set-up on a full disk. The folder of downloads may be on another disk than the environment.
fn disk_full(parent: &Path, needed_mb: u64) -> anyhow::Error {
    let (folder, needed, home) = (parent.display(), megabytes(needed_mb), paths::HOME_VARIABLE);
    anyhow!(
        "the disk is full; nothing of the environment is left in `{folder}`; {needed} are needed there and in \
         the cache of `uv`\nhint: export {home}=/a/larger/disk UV_CACHE_DIR=/a/larger/disk/uv"
    )
}

/// `uv` from PATH, or else a copy from PyPI, which the machine's Python installs into the data folder.
fn uv(steps: &mut Steps, engine: &Engine, dir: &Path) -> Result<PathBuf> {
    if let Ok(uv) = which::which("uv") {
        return Ok(uv);
    }
    let tools = paths::data_dir()?.join("tools/uv");
    let uv = tools.join("bin/uv");
    if !uv.is_file() {
        let python = which::which("python3")
            .map_err(|_| anyhow!("neither `uv` nor `python3` is on PATH\nhint: install Python 3"))?;
        let target = tools.to_string_lossy().into_owned();
        let arguments =
            ["-m", "pip", "install", "--disable-pip-version-check", "--upgrade", "--target", &target, "uv"];
        let installed = steps.run(engine, "installing uv", None, &command(&python, &arguments), dir);
        if let Err(error) = installed {
            let error = without_hint(&error);
            bail!("{error}\nhint: install `uv`, or pip for `{}`", python.display());
        }
    }
    Ok(uv)
}

/// Removes an engine's environment. The message names the folders and the other engines that used them.
pub fn remove(engine: &Engine, all: &[Engine]) -> Result<String> {
    let (name, environment) = (&engine.manifest.name, engine.environment_name());
    let removed = remove_folders(environment)?;
    if removed.is_empty() {
        return Ok(format!("`{name}` has no environment: nothing to remove\n"));
    }
    let mut message: String = removed.iter().map(|path| format!("removed {}\n", path.display())).collect();
    let users = all.iter().filter(|it| it.requirements.is_some() && it.environment_name() == environment);
    let others = users.map(|it| &it.manifest.name).filter(|other| *other != name);
    let others: Vec<_> = others.map(|other| format!("`{other}`")).collect();
    if !others.is_empty() {
        message.push_str(&format!("{} used it too\n", others.join(", ")));
    }
    Ok(message)
}

/// Removes every environment of this name, also those with older requirements, and the files beside them. Returns the
/// environments' folders.
fn remove_folders(environment: &str) -> Result<Vec<PathBuf>> {
    let environments = paths::data_dir()?.join("environments");
    let prefix = format!("{environment}-");
    let mut removed = Vec::new();
    for entry in std::fs::read_dir(&environments).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // Only a digest follows the prefix: `toy-fast-0123...` belongs to `toy-fast`, not to `toy`.
        let Some(digest) = name.strip_prefix(&prefix).map(|rest| rest.split('.').next().unwrap_or(rest))
        else {
            continue;
        };
        if digest.len() != 16 || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            continue;
        }
        let path = entry.path();
        let result = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        result.with_context(|| format!("cannot remove `{}`", path.display()))?;
        if !name.contains('.') {
            removed.push(path);
        }
    }
    Ok(removed)
}

/// The bytes of a folder's files on the disk, including files shared with other folders.
pub fn used_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        let children = if metadata.is_dir() { used_bytes(&entry.path()) } else { 0 };
        Some(metadata.blocks() * 512 + children)
    });
    sizes.sum()
}

/// Environments that no engine of this checkout uses: they have older requirements, or belong to another checkout or to a
/// script.
pub fn unused(engines: &[Engine]) -> Result<Vec<PathBuf>> {
    let used: Vec<PathBuf> = engines.iter().filter_map(Engine::environment).collect::<Result<_>>()?;
    let entries = std::fs::read_dir(paths::data_dir()?.join("environments")).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|it| it.is_dir())).map(|it| it.path());
    let mut unused: Vec<PathBuf> =
        folders.filter(|folder| paths::interpreter(folder).is_some() && !used.contains(folder)).collect();
    unused.sort();
    Ok(unused)
}

/// Writes an engine's build files into `folder`, and returns uv's arguments for packages that are built from source. uv reuses
/// a build if its settings are equal, so these values are settings and not environment variables.
fn build_arguments(files: &[(String, String)], folder: &Path) -> Result<Vec<String>> {
    let mut arguments = Vec::new();
    for (name, text) in files {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create `{}`", folder.display()))?;
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write `{}`", path.display()))?;
        match name.as_str() {
            "build-requirements.txt" => {
                arguments.extend(["--build-constraints".into(), path.to_string_lossy().into_owned()]);
            }
            "build-settings.txt" => {
                let settings = text.lines().map(str::trim);
                for setting in settings.filter(|line| !line.is_empty() && !line.starts_with('#')) {
                    let setting = setting.replace("{build}", &folder.to_string_lossy());
                    arguments.extend(["--config-settings-package".into(), setting]);
                }
            }
            _ => {}
        }
    }
    Ok(arguments)
}

/// Checks early that there is a compiler. A build tool reports a missing one minutes later and less clearly.
fn check_compiler(engine: &str) -> Result<()> {
    for (variable, default) in [("CC", "cc"), ("CXX", "c++")] {
        let named = std::env::var(variable).ok().filter(|value| !value.is_empty());
        // The variable may contain arguments: `ccache g++`.
        let program = named.as_deref().and_then(|value| value.split_whitespace().next()).unwrap_or(default);
        if which::which(program).is_err() {
            bail!(
                "no compiler `{program}`: the packages of `{engine}` are built with it\nhint: apt-get install g++"
            );
        }
    }
    Ok(())
}

fn check_space(dir: &Path, needed_mb: u64) -> Result<()> {
    let Some(free_mb) = free_mb(dir) else { return Ok(()) };
    if free_mb < needed_mb {
        let (free, needed) = (megabytes(free_mb), megabytes(needed_mb));
        let home = paths::HOME_VARIABLE;
        bail!("`{}` has {free} free, {needed} are needed\nhint: export {home}=/a/larger/disk", dir.display());
    }
    Ok(())
}

/// The free space on the disk of a folder, or of the nearest folder above it that exists.
pub fn free_mb(folder: &Path) -> Option<u64> {
    let stat = folder.ancestors().find_map(|folder| statvfs(folder).ok())?;
    Some((stat.f_bavail as f64 * stat.f_frsize as f64 / 1e6) as u64)
}

fn command(program: &Path, arguments: &[&str]) -> Vec<String> {
    std::iter::once(program.to_string_lossy().into_owned())
        .chain(arguments.iter().map(|it| it.to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_files_become_arguments_and_settings_may_name_files() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("build");
        let file = |name: &str, text: &str| (name.to_string(), text.to_string());
        let files = [
            file("build-requirements.txt", "cmake==4.4.4\n"),
            file("build-settings.txt", "# why\n\nx:cmake.define.A=ON\n  x:cmake.define.B={build}/b.cmake\n"),
            file("b.cmake", "set(B ON)\n"),
        ];
        let arguments = build_arguments(&files, &folder).unwrap();
        let path_of = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let (requirements, package) = (path_of("build-requirements.txt"), "--config-settings-package");
        let last = format!("x:cmake.define.B={}", path_of("b.cmake"));
        let expected = ["--build-constraints", &requirements, package, "x:cmake.define.A=ON", package, &last];
        assert_eq!(arguments, expected);
        assert_eq!(std::fs::read_to_string(path_of("b.cmake")).unwrap(), "set(B ON)\n");
        let unused = scratch.path().join("unused");
        assert_eq!(build_arguments(&[], &unused).unwrap(), Vec::<String>::new());
        assert!(!unused.exists(), "packages that are not built from source need no folder");
    }
}
