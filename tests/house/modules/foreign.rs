//! The paths of other crates that a module names: through `use`, groups, renames, globs and re-exports.

use std::collections::{BTreeMap, BTreeSet};

use super::{Contents, Found, Graph, Module, Walk};

impl Graph<'_> {
    /// For each module: the full paths of other crates that it names. That of a glob ends with `*`.
    pub fn foreign(&self) -> BTreeMap<Module, BTreeSet<String>> {
        self.modules
            .iter()
            .map(|(module, contents)| (module.clone(), self.foreign_of(module, contents)))
            .collect()
    }

    fn foreign_of(&self, module: &Module, contents: &Contents) -> BTreeSet<String> {
        let imports = contents.imports.iter().map(|(_, path)| path.clone());
        let globs = contents.globs.iter().map(|path| [&path[..], &["*".to_string()]].concat());
        // A single name outside of `use` is a local variable, or an import that is listed itself.
        let paths = contents.paths.iter().filter(|path| path.len() > 1).cloned();
        let mut walk = Walk::of(self);
        let found = imports.chain(globs).chain(paths).flat_map(|path| walk.find(module, &path));
        let foreign =
            found.filter_map(|found| if let Found::Foreign(path) = found { Some(path) } else { None });
        foreign.map(|path| path.join("::")).collect()
    }
}

/// Whether a path of another crate is this one or goes through it. A glob may import any name below it.
pub fn goes_through(path: &str, wanted: &str) -> bool {
    let below = |path: &str, above: &str| {
        path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    below(path, wanted) || path.strip_suffix("::*").is_some_and(|above| below(wanted, above))
}
