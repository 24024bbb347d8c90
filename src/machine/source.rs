//! The source that this program was built from: one question to git for each run.

/// The checkout's commit, with a mark if the tree has changed since.
pub fn commit() -> Option<String> {
    let root = paths::checkout()?;
    let git = duct::cmd!("git", "describe", "--always", "--dirty", "--abbrev=12").dir(root);
    git.stderr_null().read().ok().filter(|commit| !commit.is_empty())
}
