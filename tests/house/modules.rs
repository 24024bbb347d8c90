//! The module graph of a crate, from its source files: the modules that each module needs. Each path is resolved as the
//! compiler does, through `use`, renames, globs and re-exports. A call of a method names no module. So a method of an
//! `impl` outside its type's module counts for the modules around it that call that name.

mod reader;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::Visit;

use reader::Reader;

/// The names from the crate's root to the module.
pub type Module = Vec<String>;
/// A path as it is written; one with leading colons begins with an empty name.
type Path = Vec<String>;
pub type Edges = BTreeMap<Module, BTreeSet<Module>>;

#[derive(Clone, Copy, PartialEq)]
pub enum Scope {
    Program,
    ProgramAndTests,
}

pub struct Graph<'a> {
    read: &'a dyn Fn(&str) -> Option<String>,
    scope: Scope,
    modules: BTreeMap<Module, Contents>,
}

#[derive(Default)]
struct Contents {
    file: String,
    children: BTreeSet<String>,
    types: BTreeSet<String>,
    /// Functions, constants and macros.
    values: BTreeSet<String>,
    imports: Vec<(String, Path)>,
    globs: Vec<Path>,
    /// Paths of expressions, types and macros.
    paths: Vec<Path>,
    /// Each inherent `impl`: the path of its type, and its functions.
    impls: Vec<(Path, BTreeSet<String>)>,
    /// Methods that are called.
    methods: BTreeSet<String>,
}

/// An inherent `impl` outside its type's module. A call of a method does not name the method's module.
pub struct Apart {
    pub at: Module,
    pub home: Module,
    /// The type's name.
    pub of: String,
    functions: BTreeSet<String>,
}

impl Apart {
    /// The innermost module that contains both.
    fn common(&self) -> &[String] {
        let same = self.at.iter().zip(&self.home).take_while(|(one, other)| one == other).count();
        &self.home[..same]
    }

    /// A parent and its own child are one subject.
    pub fn is_parent_or_child(&self) -> bool {
        let (at, home) = (self.at.as_slice(), self.home.as_slice());
        [(at, home), (home, at)]
            .iter()
            .any(|(inner, outer)| inner.split_last().is_some_and(|(_, rest)| rest == *outer))
    }
}

/// The target of a path.
enum Found {
    Module(Module),
    ItemOf(Module),
    /// The full path of another crate.
    Foreign(Path),
}

impl<'a> Graph<'a> {
    /// Reads a crate. `read` returns the text of a file below the crate's root folder, or `None` where there is none.
    pub fn new(scope: Scope, read: &'a dyn Fn(&str) -> Option<String>) -> Self {
        let mut graph = Self { read, scope, modules: BTreeMap::new() };
        graph.add(Vec::new(), "main.rs");
        graph
    }

    /// Each module with its file. An inline module has the file of its parent.
    pub fn files(&self) -> impl Iterator<Item = (&Module, &str)> {
        self.modules.iter().map(|(module, contents)| (module, contents.file.as_str()))
    }

    fn add(&mut self, module: Module, file: &str) {
        let source = (self.read)(file).unwrap_or_else(|| panic!("no file `{file}`"));
        let parsed = syn::parse_file(&source).unwrap_or_else(|error| panic!("{file}: {error}"));
        let mut reader = Reader::new(self.scope, module.clone());
        reader.add_items(&parsed.items);
        reader.visit_file(&parsed);
        for (inner, mut contents) in reader.modules {
            contents.file = file.to_string();
            self.modules.insert(inner, contents);
        }
        let folder = match file.strip_suffix("mod.rs") {
            Some(folder) => folder.to_string(),
            None if file == "main.rs" => String::new(),
            None => format!("{}/", file.trim_end_matches(".rs")),
        };
        for child in reader.in_own_files {
            let name = child[module.len()..].join("/");
            let candidates = [format!("{folder}{name}.rs"), format!("{folder}{name}/mod.rs")];
            let file = candidates.iter().find(|file| (self.read)(file).is_some());
            let file = file.unwrap_or_else(|| panic!("no file for the module `{name}`: {candidates:?}"));
            self.add(child, file);
        }
    }

    /// The other modules that each module needs.
    pub fn edges(&self) -> Edges {
        let apart = self.apart();
        self.modules.keys().map(|module| (module.clone(), self.needed(module, &apart))).collect()
    }

    /// Each inherent `impl` outside its type's module: both modules, and its functions.
    pub fn apart(&self) -> Vec<Apart> {
        let all =
            self.modules.iter().flat_map(|(at, contents)| contents.impls.iter().map(move |it| (at, it)));
        let each = all.flat_map(|(at, (path, functions))| {
            let mut walk = Walk::of(self);
            let homes: BTreeSet<Module> = walk.find(at, path).into_iter().filter_map(Found::home).collect();
            let apart = homes.into_iter().filter(move |home| home != at);
            let of = path.last().cloned().unwrap_or_default();
            apart.map(move |home| Apart {
                at: at.clone(),
                home,
                of: of.clone(),
                functions: functions.clone(),
            })
        });
        each.collect()
    }

    fn needed(&self, module: &Module, apart: &[Apart]) -> BTreeSet<Module> {
        let mut walk = Walk::of(self);
        let mut needed = BTreeSet::new();
        let contents = &self.modules[module];
        for path in contents.imports.iter().map(|(_, path)| path).chain(&contents.globs) {
            needed.extend(walk.find(module, path).into_iter().filter_map(Found::home));
        }
        for path in &contents.paths {
            // A single name outside of `use` is an item or a local variable, never a module.
            let is_item = |found: &Found| path.len() > 1 || matches!(found, Found::ItemOf(_));
            needed.extend(walk.find(module, path).into_iter().filter(is_item).filter_map(Found::home));
        }
        needed.extend(walk.through);
        // The types of values are not known here. Where a module does not name the type, a method of that name is another one.
        let paths = || contents.paths.iter().chain(contents.imports.iter().map(|(_, path)| path));
        let called = |it: &&Apart| {
            let is_path = |path: &Path| matches!(path.as_slice(), [.., of, name] if *of == it.of && it.functions.contains(name));
            let is_method = it.functions.iter().any(|name| contents.methods.contains(name));
            let is_named = || paths().any(|path| path.contains(&it.of));
            module.starts_with(it.common())
                && ((is_method && is_named()) || contents.paths.iter().any(is_path))
        };
        needed.extend(apart.iter().filter(called).map(|it| it.at.clone()));
        needed.remove(module);
        needed
    }

    /// For each module: the needs between its children. A child stands for all modules inside it.
    pub fn side_by_side(&self) -> BTreeMap<Module, Edges> {
        let mut levels: BTreeMap<Module, Edges> = BTreeMap::new();
        for (module, needed) in self.edges() {
            for other in needed {
                let common = module.iter().zip(&other).take_while(|(one, other)| one == other).count();
                // One of the two is inside the other.
                if common == module.len() || common == other.len() {
                    continue;
                }
                let level = levels.entry(module[..common].to_vec()).or_default();
                let (one, other) = (module[..=common].to_vec(), other[..=common].to_vec());
                level.entry(one).or_default().insert(other);
            }
        }
        levels
    }

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

impl Found {
    /// `None` for another crate.
    fn home(self) -> Option<Module> {
        match self {
            Self::Module(module) | Self::ItemOf(module) => Some(module),
            Self::Foreign(_) => None,
        }
    }
}

/// Resolves paths and notes the modules whose `use` it went through.
struct Walk<'a> {
    graph: &'a Graph<'a>,
    through: BTreeSet<Module>,
    /// The lookups in progress, because `use time::time` would look up itself.
    pending: Vec<(Module, String)>,
}

impl<'a> Walk<'a> {
    fn of(graph: &'a Graph) -> Self {
        Self { graph, through: BTreeSet::new(), pending: Vec::new() }
    }

    /// The targets of a path. There are several where a name is both a module and an item. A name that this crate does not
    /// have, such as a local variable, counts as another crate's.
    fn find(&mut self, from: &Module, path: &[String]) -> Vec<Found> {
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
        let full = rest;
        let Some((name, mut rest)) = rest.split_first() else { return vec![Found::Module(base)] };
        let mut found = self.look(&base, name, rest.is_empty());
        if found.is_empty() && is_rooted {
            return vec![Found::ItemOf(base)];
        }
        if found.is_empty() {
            return vec![Found::Foreign(full.iter().filter(|name| !name.is_empty()).cloned().collect())];
        }
        while let Some((name, after)) = rest.split_first() {
            let step = |it| match it {
                Found::Module(module) => {
                    let inside = self.look(&module, name, after.is_empty());
                    if inside.is_empty() { vec![Found::ItemOf(module)] } else { inside }
                }
                Found::Foreign(path) => vec![Found::Foreign([path, vec![name.clone()]].concat())],
                item => vec![item],
            };
            found = found.into_iter().flat_map(step).collect();
            rest = after;
        }
        found
    }

    fn look(&mut self, module: &Module, name: &str, is_last: bool) -> Vec<Found> {
        let key = (module.clone(), name.to_string());
        let Some(contents) = self.graph.modules.get(module).filter(|_| !self.pending.contains(&key)) else {
            return Vec::new();
        };
        self.pending.push(key);
        let mut found = Vec::new();
        if contents.children.contains(name) {
            found.push(Found::Module([&module[..], &[name.to_string()]].concat()));
        }
        if contents.types.contains(name) || (is_last && contents.values.contains(name)) {
            found.push(Found::ItemOf(module.clone()));
        }
        let imports: Vec<_> = contents.imports.iter().filter(|(known_as, _)| known_as == name).collect();
        // A module's own name hides that of a glob.
        let is_named = !found.is_empty() || !imports.is_empty();
        let own = found.len();
        // `mod b; pub use b::b;` looks up the module `b` while it looks up the function: that one is no other crate.
        let is_own = |it: &Found| matches!(it, Found::Foreign(path) if own > 0 && path[0] == name);
        for (_, path) in imports {
            found.extend(self.find(module, path).into_iter().filter(|it| !is_own(it)));
        }
        for path in contents.globs.iter().filter(|_| !is_named) {
            for target in self.find(module, path) {
                if let Found::Module(target) = target {
                    found.extend(self.look(&target, name, is_last));
                }
            }
        }
        if found.len() > own {
            self.through.insert(module.clone());
        }
        self.pending.pop();
        found
    }
}

/// Sets of modules in which each needs every other one, directly or not.
pub fn circles(edges: &Edges) -> BTreeSet<BTreeSet<Module>> {
    let reached = |from: &Module| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            for other in edges.get(module).into_iter().flatten() {
                if seen.insert(other.clone()) {
                    next.push(other);
                }
            }
        }
        seen
    };
    let all: BTreeMap<&Module, BTreeSet<Module>> = edges.keys().map(|it| (it, reached(it))).collect();
    let with = |module: &Module| {
        let back = |other: &&Module| all.get(other).is_some_and(|reached| reached.contains(module));
        all[module].iter().filter(back).cloned().collect::<BTreeSet<_>>()
    };
    all.keys().map(|module| with(module)).filter(|circle| circle.len() > 1).collect()
}

/// Whether a path of another crate is this one or goes through it. A glob may import any name below it.
pub fn goes_through(path: &str, wanted: &str) -> bool {
    let below = |path: &str, above: &str| {
        path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    below(path, wanted) || path.strip_suffix("::*").is_some_and(|above| below(wanted, above))
}
