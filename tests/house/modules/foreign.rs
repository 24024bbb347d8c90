//! The paths of other crates that a module names: through `use`, groups, renames, globs and re-exports.

use std::collections::{BTreeMap, BTreeSet};

use super::{Contents, Graph, Module, Path};

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
        let all = imports.chain(globs).chain(paths);
        all.flat_map(|path| self.outside(module, &path, &mut Vec::new()))
            .map(|path| path.join("::"))
            .collect()
    }

    /// The paths of other crates; empty for a path that stays in this crate. There are several where globs leave a choice.
    fn outside(&self, from: &Module, path: &[String], pending: &mut Vec<(Module, String)>) -> Vec<Path> {
        let (mut base, mut rest) = (from.clone(), path);
        while let Some((first, after)) = rest.split_first() {
            match first.as_str() {
                "crate" => base.clear(),
                "super" => drop(base.pop()),
                "self" => {}
                _ => break,
            }
            rest = after;
        }
        let is_rooted = rest.len() < path.len();
        let found = self.leaving(&base, rest, pending);
        match found {
            Some(found) => found,
            // Not a name of this crate.
            None if !is_rooted => {
                vec![rest.iter().filter(|name| !name.is_empty()).cloned().collect()]
            }
            None => Vec::new(),
        }
    }

    /// `None` where the module has no such name.
    fn leaving(
        &self,
        module: &Module,
        path: &[String],
        pending: &mut Vec<(Module, String)>,
    ) -> Option<Vec<Path>> {
        let contents = self.modules.get(module)?;
        let Some((name, after)) = path.split_first() else { return Some(Vec::new()) };
        let key = (module.clone(), name.clone());
        if pending.contains(&key) {
            return None;
        }
        pending.push(key);
        let mut found = None;
        if contents.children.contains(name) {
            let child = [&module[..], std::slice::from_ref(name)].concat();
            found = Some(self.leaving(&child, after, pending).unwrap_or_default());
        } else if contents.types.contains(name) || contents.values.contains(name) {
            found = Some(Vec::new());
        }
        for (_, import) in contents.imports.iter().filter(|(known_as, _)| known_as == name) {
            let whole = [import, after].concat();
            found.get_or_insert_default().extend(self.outside(module, &whole, pending));
        }
        if found.is_none() {
            for glob in contents.globs.iter().filter(|glob| is_own(glob)) {
                let target = self.module_of(module, glob);
                found = target.and_then(|target| self.leaving(&target, path, pending));
                if found.is_some() {
                    break;
                }
            }
        }
        pending.pop();
        found
    }

    /// The module at the end of a path of this crate, where the path goes through no `use`.
    fn module_of(&self, from: &Module, path: &[String]) -> Option<Module> {
        let mut at = from.clone();
        for name in path {
            match name.as_str() {
                "crate" => at.clear(),
                "super" => drop(at.pop()),
                "self" => {}
                name => at.push(name.to_string()),
            }
        }
        self.modules.contains_key(&at).then_some(at)
    }
}

fn is_own(path: &[String]) -> bool {
    path.first().is_some_and(|first| ["crate", "super", "self"].contains(&first.as_str()))
}

/// Whether a path of another crate is this one or goes through it. A glob may import any name below it.
pub fn goes_through(path: &str, wanted: &str) -> bool {
    let below = |path: &str, above: &str| {
        path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    below(path, wanted) || path.strip_suffix("::*").is_some_and(|above| below(wanted, above))
}
