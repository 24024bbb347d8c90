//! Output that gets its name only when complete, and is removed otherwise.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// A temporary folder beside the goal.
pub(crate) struct Staged {
    folder: PathBuf,
    goal: PathBuf,
    /// The parent folders that it created, innermost first.
    around: Vec<PathBuf>,
}

impl Staged {
    /// Refuses a goal that exists.
    pub fn beside(goal: &Path) -> Result<Self> {
        let taken = goal.symlink_metadata().is_ok() && !is_empty_folder(goal);
        ensure!(
            !taken,
            "`{}` exists already\nhint: name another place with `--out`, or remove it first",
            goal.display()
        );
        let name =
            goal.file_name().with_context(|| format!("`{}` is no place for a model", goal.display()))?;
        let parent = goal.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let new = parent.ancestors().filter(|folder| !folder.as_os_str().is_empty());
        let around = new.take_while(|folder| !folder.exists()).map(Path::to_path_buf).collect();
        let name = name.to_string_lossy();
        remove_abandoned(parent, Some(&name));
        let folder = parent.join(part_name(&name));
        let staged = Self { folder, goal: goal.to_path_buf(), around };
        let made = std::fs::create_dir_all(&staged.folder);
        made.with_context(|| format!("cannot write `{}`", parent.display()))?;
        Ok(staged)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<()> {
        let path = self.folder.join(name);
        std::fs::write(&path, content).with_context(|| format!("cannot write `{}`", path.display()))
    }

    /// Renames the folder to the goal.
    pub fn finish(self) -> Result<()> {
        self.rename(&self.folder)
    }

    /// Renames one file of the folder to the goal and removes the others.
    pub fn finish_file(self, name: &str) -> Result<()> {
        self.rename(&self.folder.join(name))
    }

    fn rename(&self, from: &Path) -> Result<()> {
        std::fs::rename(from, &self.goal).with_context(|| format!("cannot write `{}`", self.goal.display()))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // The folder is already gone if it became the goal; otherwise removal is best effort.
        let _ = std::fs::remove_dir_all(&self.folder);
        // Folders with content stay, such as those of a finished goal.
        let _ = self.around.iter().try_for_each(std::fs::remove_dir);
    }
}

/// The text before the process id in a temporary name.
const PART: &str = ".part-";

/// The temporary name of an output while this process writes it.
pub(crate) fn part_name(name: &str) -> String {
    format!(".{name}{PART}{}", std::process::id())
}

/// Removes the temporary output of killed processes, for one name or the whole folder. Best effort.
pub(crate) fn remove_abandoned(folder: &Path, of: Option<&str>) {
    let (Ok(entries), true) = (std::fs::read_dir(folder), Path::new("/proc/self").exists()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let made = name.strip_prefix('.').and_then(|name| name.rsplit_once(PART));
        let Some((_, process)) = made.filter(|(made, _)| of.is_none_or(|of| of == *made)) else { continue };
        let is_number = !process.is_empty() && process.bytes().all(|digit| digit.is_ascii_digit());
        if is_number && !Path::new("/proc").join(process).exists() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn is_empty_folder(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_goes_when_the_same_place_is_written_again_and_a_living_ones_stays() {
        let folder = std::env::temp_dir().join(format!("model-files-staged-{}", std::process::id()));
        // No process has such an id.
        let (abandoned, others) = (".goal.part-4294967295", ".other.part-4294967295");
        let living = format!(".goal{PART}1");
        for name in [abandoned, others, &living] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
        drop(Staged::beside(&folder.join("goal")).unwrap());
        let left = [abandoned, others, &living].map(|name| folder.join(name).exists());
        assert_eq!(left, [false, true, true]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
