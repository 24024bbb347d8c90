//! The module graph of a crate, read from its source files: the modules that each module needs. Paths are resolved as the
//! compiler does, through `use`, renames, globs and re-exports. A method call names no module. So a module that names a
//! type and calls a method needs the modules of all `impl`s of the type that have a method of that name. An `impl` outside
//! the type's module counts only for modules inside the common parent of `impl` and type.

mod reader;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::Visit;

use reader::Reader;

/// The names from the crate's root to the module.
pub type Module = Vec<String>;
/// A path as written in the source. A path with leading colons begins with an empty name.
type Path = Vec<String>;
/// Each module with the modules that it needs.
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
    /// For each `use`: the name in this module, and the path.
    imports: Vec<(String, Path)>,
    globs: Vec<Path>,
    /// Paths of expressions, types and macros.
    paths: Vec<Path>,
    /// Inherent `impl`s: the path of the type, and the functions.
    impls: Vec<(Path, BTreeSet<String>)>,
    /// The names of called methods.
    called_methods: BTreeSet<String>,
}

/// An inherent `impl` outside its type's module.
pub struct OutsideImpl {
    pub module: Module,
    pub type_module: Module,
    pub type_name: String,
    functions: BTreeSet<String>,
}

impl OutsideImpl {
    /// The innermost module that contains both the `impl` and the type.
    fn common_parent(&self) -> &[String] {
        let shared = self.module.iter().zip(&self.type_module).take_while(|(a, b)| a == b).count();
        &self.type_module[..shared]
    }

    /// Whether one of the two modules is the parent of the other.
    pub fn is_parent_or_child(&self) -> bool {
        let (module, type_module) = (self.module.as_slice(), self.type_module.as_slice());
        [(module, type_module), (type_module, module)]
            .iter()
            .any(|(inner, outer)| inner.split_last().is_some_and(|(_, rest)| rest == *outer))
    }
}

/// The target of a path.
enum Target {
    Module(Module),
    /// An item of this module.
    ItemOf(Module),
    /// The full path of an item or module of another crate.
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
        let outside = self.outside_impls();
        self.modules.keys().map(|module| (module.clone(), self.needed(module, &outside))).collect()
    }

    /// The inherent `impl`s outside their types' modules.
    pub fn outside_impls(&self) -> Vec<OutsideImpl> {
        let impls = self
            .modules
            .iter()
            .flat_map(|(module, contents)| contents.impls.iter().map(move |it| (module, it)));
        let outside = impls.flat_map(|(module, (path, functions))| {
            let mut resolver = Resolver::new(self);
            let targets = resolver.resolve(module, path).into_iter();
            let type_modules: BTreeSet<Module> = targets.filter_map(Target::module).collect();
            let others = type_modules.into_iter().filter(move |type_module| type_module != module);
            let type_name = path.last().cloned().unwrap_or_default();
            others.map(move |type_module| OutsideImpl {
                module: module.clone(),
                type_module,
                type_name: type_name.clone(),
                functions: functions.clone(),
            })
        });
        outside.collect()
    }

    fn needed(&self, module: &Module, outside: &[OutsideImpl]) -> BTreeSet<Module> {
        let mut resolver = Resolver::new(self);
        let mut needed = BTreeSet::new();
        let contents = &self.modules[module];
        for path in contents.imports.iter().map(|(_, path)| path).chain(&contents.globs) {
            needed.extend(resolver.resolve(module, path).into_iter().filter_map(Target::module));
        }
        for path in &contents.paths {
            // A single name outside of `use` is an item or a local variable, never a module.
            let counts = |target: &Target| path.len() > 1 || matches!(target, Target::ItemOf(_));
            let targets = resolver.resolve(module, path).into_iter();
            needed.extend(targets.filter(counts).filter_map(Target::module));
        }
        needed.extend(resolver.importers);
        // The types of values are unknown here. A method call counts only in a module that names the method's type.
        let paths = || contents.paths.iter().chain(contents.imports.iter().map(|(_, path)| path));
        let is_called = |it: &&OutsideImpl| {
            let names_function = |path: &Path| matches!(path.as_slice(), [.., parent, name] if *parent == it.type_name && it.functions.contains(name));
            let calls_method = it.functions.iter().any(|name| contents.called_methods.contains(name));
            let names_type = || paths().any(|path| path.contains(&it.type_name));
            module.starts_with(it.common_parent())
                && ((calls_method && names_type()) || contents.paths.iter().any(names_function))
        };
        needed.extend(outside.iter().filter(is_called).map(|it| it.module.clone()));
        needed.remove(module);
        needed
    }

    /// For each module: the edges between its children. A child stands for all modules inside it.
    pub fn sibling_edges(&self) -> BTreeMap<Module, Edges> {
        let mut levels: BTreeMap<Module, Edges> = BTreeMap::new();
        for (module, needed) in self.edges() {
            for other in needed {
                let common = module.iter().zip(&other).take_while(|(a, b)| a == b).count();
                // If one module is inside the other one, the edge connects no siblings.
                if common == module.len() || common == other.len() {
                    continue;
                }
                let level = levels.entry(module[..common].to_vec()).or_default();
                let (from, to) = (module[..=common].to_vec(), other[..=common].to_vec());
                level.entry(from).or_default().insert(to);
            }
        }
        levels
    }

    /// For each module: the full paths of other crates that it names. The path of a glob ends with `*`.
    pub fn foreign_paths(&self) -> BTreeMap<Module, BTreeSet<String>> {
        self.modules
            .iter()
            .map(|(module, contents)| (module.clone(), self.foreign_paths_of(module, contents)))
            .collect()
    }

    fn foreign_paths_of(&self, module: &Module, contents: &Contents) -> BTreeSet<String> {
        let imports = contents.imports.iter().map(|(_, path)| path.clone());
        let globs = contents.globs.iter().map(|path| [&path[..], &["*".to_string()]].concat());
        // A single name outside of `use` is a local variable, or an import that is listed itself.
        let paths = contents.paths.iter().filter(|path| path.len() > 1).cloned();
        let mut resolver = Resolver::new(self);
        let targets = imports.chain(globs).chain(paths).flat_map(|path| resolver.resolve(module, &path));
        let foreign =
            targets.filter_map(|target| if let Target::Foreign(path) = target { Some(path) } else { None });
        foreign.map(|path| path.join("::")).collect()
    }
}

impl Target {
    /// The module of this crate; `None` for another crate.
    fn module(self) -> Option<Module> {
        match self {
            Self::Module(module) | Self::ItemOf(module) => Some(module),
            Self::Foreign(_) => None,
        }
    }
}

struct Resolver<'a> {
    graph: &'a Graph<'a>,
    /// The modules whose `use` or glob has led to a target.
    importers: BTreeSet<Module>,
    /// The lookups in progress. Without this list, a lookup of `use time::time` would look up itself without end.
    pending: Vec<(Module, String)>,
}

impl<'a> Resolver<'a> {
    fn new(graph: &'a Graph) -> Self {
        Self { graph, importers: BTreeSet::new(), pending: Vec::new() }
    }

    /// The targets of a path. There are several if a name is both a module and an item. A name that this crate does not
    /// have, such as a local variable, counts as another crate's.
    fn resolve(&mut self, from: &Module, path: &[String]) -> Vec<Target> {
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
        let Some((name, mut rest)) = rest.split_first() else { return vec![Target::Module(base)] };
        let mut targets = self.look_up(&base, name, rest.is_empty());
        if targets.is_empty() && is_rooted {
            return vec![Target::ItemOf(base)];
        }
        if targets.is_empty() {
            return vec![Target::Foreign(full.iter().filter(|name| !name.is_empty()).cloned().collect())];
        }
        while let Some((name, after)) = rest.split_first() {
            let step = |it| match it {
                Target::Module(module) => {
                    let inner = self.look_up(&module, name, after.is_empty());
                    if inner.is_empty() { vec![Target::ItemOf(module)] } else { inner }
                }
                Target::Foreign(path) => vec![Target::Foreign([path, vec![name.clone()]].concat())],
                item => vec![item],
            };
            targets = targets.into_iter().flat_map(step).collect();
            rest = after;
        }
        targets
    }

    fn look_up(&mut self, module: &Module, name: &str, is_last: bool) -> Vec<Target> {
        let key = (module.clone(), name.to_string());
        let Some(contents) = self.graph.modules.get(module).filter(|_| !self.pending.contains(&key)) else {
            return Vec::new();
        };
        self.pending.push(key);
        let mut targets = Vec::new();
        if contents.children.contains(name) {
            targets.push(Target::Module([&module[..], &[name.to_string()]].concat()));
        }
        if contents.types.contains(name) || (is_last && contents.values.contains(name)) {
            targets.push(Target::ItemOf(module.clone()));
        }
        let imports: Vec<_> = contents.imports.iter().filter(|(known_as, _)| known_as == name).collect();
        // A name that the module declares or imports hides the same name from a glob.
        let is_named = !targets.is_empty() || !imports.is_empty();
        let declared = targets.len();
        // In `mod b; pub use b::b;`, the path begins with the pending name `b`, so it seems to be of another crate.
        let is_pending_name =
            |it: &Target| matches!(it, Target::Foreign(path) if declared > 0 && path[0] == name);
        for (_, path) in imports {
            targets.extend(self.resolve(module, path).into_iter().filter(|it| !is_pending_name(it)));
        }
        for path in contents.globs.iter().filter(|_| !is_named) {
            for target in self.resolve(module, path) {
                if let Target::Module(target) = target {
                    targets.extend(self.look_up(&target, name, is_last));
                }
            }
        }
        if targets.len() > declared {
            self.importers.insert(module.clone());
        }
        self.pending.pop();
        targets
    }
}

/// The sets of modules in which every module needs every other module, directly or through others.
pub fn cycles(edges: &Edges) -> BTreeSet<BTreeSet<Module>> {
    let reachable_from = |start: &Module| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(module) = next.pop() {
            for other in edges.get(module).into_iter().flatten() {
                if seen.insert(other.clone()) {
                    next.push(other);
                }
            }
        }
        seen
    };
    let reachable: BTreeMap<&Module, BTreeSet<Module>> =
        edges.keys().map(|it| (it, reachable_from(it))).collect();
    let cycle_of = |module: &Module| {
        let leads_back = |other: &&Module| reachable.get(other).is_some_and(|it| it.contains(module));
        reachable[module].iter().filter(leads_back).cloned().collect::<BTreeSet<_>>()
    };
    reachable.keys().map(|module| cycle_of(module)).filter(|cycle| cycle.len() > 1).collect()
}

/// Whether a path is `prefix` or begins with it. A glob may import any name below its path, so a glob above `prefix` counts
/// too.
pub fn has_path_prefix(path: &str, prefix: &str) -> bool {
    let begins_with = |path: &str, prefix: &str| {
        path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    begins_with(path, prefix) || path.strip_suffix("::*").is_some_and(|parent| begins_with(prefix, parent))
}
