//! The packages of the workspace with their dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::tree::{SHARED_BY_ENGINES, text};
use super::{command, root};

/// The workspace as cargo describes it, and the dependencies in its lock file.
pub struct Workspace {
    /// The packages of the workspace by name, each with its folder and its direct dependencies.
    pub packages: BTreeMap<String, (String, Vec<String>)>,
    pub default_members: Vec<String>,
    /// The direct dependencies of every package in the lock file.
    pub locked: BTreeMap<String, Vec<String>>,
}

impl Workspace {
    pub fn read() -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut metadata = command(cargo);
        metadata.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(root());
        let output = metadata.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
        let name = |value: &Value| value["name"].as_str().unwrap().to_string();
        let packages = metadata["packages"].as_array().unwrap();
        let folder = |package: &Value| {
            let manifest = Path::new(package["manifest_path"].as_str().unwrap())
                .strip_prefix(root())
                .unwrap()
                .to_path_buf();
            manifest.parent().unwrap().to_string_lossy().into_owned()
        };
        let is_default = |package: &&Value| {
            metadata["workspace_default_members"].as_array().unwrap().contains(&package["id"])
        };
        let direct = packages.iter().map(|package| {
            let named = package["dependencies"].as_array().unwrap().iter().map(name).collect();
            (name(package), (folder(package), named))
        });
        Self {
            packages: direct.collect(),
            default_members: packages.iter().filter(is_default).map(name).collect(),
            locked: locked(),
        }
    }

    /// The direct dependencies of a package of the workspace, also for development and building.
    pub fn dependencies(&self, package: &str) -> &[String] {
        &self.packages[package].1
    }

    /// All direct and indirect dependencies of a package, also for development and building.
    pub fn all_dependencies(&self, package: &str) -> BTreeSet<String> {
        let mut reached = BTreeSet::new();
        let mut pending: Vec<&String> = self.dependencies(package).iter().collect();
        while let Some(name) = pending.pop() {
            if reached.insert(name.clone()) {
                pending.extend(self.locked.get(name).into_iter().flatten());
            }
        }
        assert!(!reached.is_empty(), "found no dependency of `{package}`");
        reached
    }

    pub fn engines(&self) -> Vec<String> {
        let is_engine =
            |folder: &str| folder.strip_prefix("engines/").is_some_and(|it| !SHARED_BY_ENGINES.contains(&it));
        self.packages
            .iter()
            .filter(|(_, (folder, _))| is_engine(folder))
            .map(|(name, _)| name.clone())
            .collect()
    }
}

pub fn locked() -> BTreeMap<String, Vec<String>> {
    locked_in("Cargo.lock")
}

/// Direct dependencies by package name, in this lock file. All versions of a package share one entry.
pub fn locked_in(lock_file: &str) -> BTreeMap<String, Vec<String>> {
    let lock: toml::Table = text(lock_file).unwrap().parse().unwrap();
    let mut locked = BTreeMap::<String, Vec<String>>::new();
    for package in lock["package"].as_array().unwrap() {
        // An entry is `name`, or `name version` if the lock file has several versions.
        let named = package.get("dependencies").and_then(|it| it.as_array()).into_iter().flatten();
        let names = named.map(|it| it.as_str().unwrap().split(' ').next().unwrap().to_string());
        locked.entry(package["name"].as_str().unwrap().to_string()).or_default().extend(names);
    }
    locked
}
